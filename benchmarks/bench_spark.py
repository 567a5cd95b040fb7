"""The data source and the sink in Spark, beside Spark's own Parquet on the same rows, in the same session."""

from __future__ import annotations

from benchmarks.floors import SPARK
from benchmarks.harness import Measurement, Scale
from benchmarks.sparkworks import Rows, SparkWork

ROUNDS = 5
SECTIONS = SPARK


def measurements(scale: Scale) -> dict[str, Measurement]:
    small, large = Rows(scale(1_000_000), 100), Rows(scale(200_000), 1024)
    batches, rows = (4, 200) if scale.name == "smoke" else (14, 1600)
    return {
        "read": SparkWork("read", rows=small),
        "read parquet": SparkWork("read_parquet", rows=small),
        "read tuples": SparkWork("read_tuples", rows=small),
        "read three": SparkWork(
            "read", rows=small, columns="partition int, offset long, timestamp timestamp"
        ),
        "read journals": SparkWork("read_journals", rows=small),
        "read 1 KiB": SparkWork("read", rows=large),
        "read parquet 1 KiB": SparkWork("read_parquet", rows=large),
        "write": SparkWork("write", rows=small),
        "write parquet": SparkWork("write_parquet", rows=small),
        "write 1 KiB": SparkWork("write", rows=large),
        "write parquet 1 KiB": SparkWork("write_parquet", rows=large),
        "micro-batch": SparkWork("stream", rows=Rows(batches * rows, 100), batch=rows),
        "micro-batch parquet": SparkWork("stream_parquet", rows=Rows(batches * rows, 100), batch=rows),
    }
