# What DuckDB and Polars are asked to do with a table's files, beside files that Spark has written of the same
# rows. Law: both have the same codec, and are given by the list of their names; the two take turns, call by
# call, in one process.

from __future__ import annotations

import gc
import importlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Literal

from benchmarks.harness import MissingError, Readings
from benchmarks.spark_works import Rows, SparkWork
from benchmarks.stopwatch import reading

__all__ = ["EngineWork"]

Query = Callable[[Sequence[str]], object]
_THREE = ("partition", "offset", "timestamp")
_THREADS = 2


class EngineWork(SparkWork):
    """All columns, three columns and a count, by DuckDB and by Polars; their median call counts."""

    def __init__(self, codec: Literal["none", "zstd"], rows: Rows, times: int) -> None:
        """`times` is how often all columns are read; what is faster is asked more often."""
        super().__init__("engines", rows, times=times)
        self.codec: Literal["none", "zstd"] = codec

    def describe(self) -> dict[str, Any]:
        return {"engines": "benchmarks.engine_works", "rows": self.rows.count, "codec": self.codec}

    def measure(self, directory: Path) -> Readings:
        spark = SparkWork.session(directory.parent)
        sides = {
            "": [file.path for file in self.sealed(self.codec).files()],
            " parquet": sorted(map(str, self.parquet(spark, self.codec).glob("*.parquet"))),
        }
        found: Readings = {}
        for name, query, times in self._queries():
            calls: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
            gc.collect()
            for number in range(times + 1):
                for side, paths in sides.items():
                    cpu, began = process_time(), perf_counter()
                    query(paths)
                    took = perf_counter() - began, process_time() - cpu
                    if number:  # the first one finds everything cold
                        calls[side].append(took)
            for side, each in calls.items():
                seconds, cpu = (statistics.median(values) for values in zip(*each, strict=True))
                found[name + side] = reading(self.rows.count, seconds, cpu)
        return found

    def _queries(self) -> Iterator[tuple[str, Query, int]]:
        """Yield the name of each query, what asks it of the files with these names, and how often."""
        try:
            duckdb, polars = (importlib.import_module(name) for name in ("duckdb", "polars"))
        except ModuleNotFoundError as missing:
            raise MissingError(f"{missing.name} is not installed") from missing
        sql = duckdb.connect(config={"threads": _THREADS})

        def scanned(paths: Sequence[str]) -> Any:
            return polars.scan_parquet(paths, hive_partitioning="partition=" in paths[0])

        three = ", ".join(f'"{name}"' for name in _THREE)
        yield "duckdb all", lambda paths: sql.sql(f"from {_list(paths)}").to_arrow_table(), self.times
        yield (
            "duckdb three",
            lambda paths: sql.sql(f"select {three} from {_list(paths)}").to_arrow_table(),
            5 * self.times,
        )
        yield (
            "duckdb count",
            lambda paths: sql.sql(f"select count(*) from {_list(paths)}").fetchall(),
            20 * self.times,
        )
        yield "polars all", lambda paths: scanned(paths).collect(), self.times
        yield "polars three", lambda paths: scanned(paths).select(_THREE).collect(), 5 * self.times
        yield "polars count", lambda paths: scanned(paths).select(polars.len()).collect(), 20 * self.times


def _list(paths: Sequence[str]) -> str:
    return f"read_parquet({list(paths)!r})"
