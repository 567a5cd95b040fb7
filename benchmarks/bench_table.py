"""A stream's segments as Parquet files, beside pyarrow alone, and reading both by column."""

from __future__ import annotations

from benchmarks.floors import TABLE
from benchmarks.harness import Measurement, Scale, Work

ROUNDS = 7
SECTIONS = TABLE


def measurements(scale: Scale) -> dict[str, Measurement]:
    options = {"count": scale(1_000_000, least=300_000)}
    return {"table": Work("table_and_back", options, module="table_works")}
