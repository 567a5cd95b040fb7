"""The data source and the sink in Spark, beside Spark's own Parquet on the same rows, in the same session.

DISKQ_ARCHIVE_ROWS=10000000 archives as many rows instead of 2,000,000, at full length.
"""

from __future__ import annotations

from functools import partial

from benchmarks.engine_works import EngineWork
from benchmarks.floors import ARCHIVED, SPARK
from benchmarks.harness import Measurement, Scale
from benchmarks.spark_works import Rows, SparkWork

ROUNDS = 3  # each of which is a median of three runs
SECTIONS = SPARK

# Where a run is not whole: of the streaming query, and how often each other work is done.
_BATCHES = {"smoke": (4, 200), "quick": (5, 1600)}
_REPEATED = {"smoke": (0, 1), "quick": (1, 1)}


def measurements(scale: Scale) -> dict[str, Measurement]:
    small, large = Rows(scale(1_000_000), 100), Rows(scale(200_000), 1024)
    archived = Rows(scale(ARCHIVED), 100)
    batches, rows = _BATCHES.get(scale.name, (14, 1600))
    warm, times = _REPEATED.get(scale.name, (2, 3))
    work = partial(SparkWork, warm=warm, times=times)
    three = "partition, offset, timestamp"
    return {
        "read": work("read", rows=small),
        "read parquet": work("read_parquet", rows=small),
        "read tuples": work("read_tuples", rows=small),
        "read three": work("read", rows=small, columns="partition int, offset long, timestamp timestamp"),
        "read journals": work("read_journals", rows=small),
        "read 1 KiB": work("read", rows=large),
        "read parquet 1 KiB": work("read_parquet", rows=large),
        "frame": work("read_frame", rows=small),
        "frame three": work("read_frame", rows=small, columns=three),
        "frame count": work("count_frame", rows=small),
        "frame 1 KiB": work("read_frame", rows=large),
        "tabled": work("read_tabled", rows=small),
        "tabled three": work("read_tabled", rows=small, columns=three),
        "tabled count": work("count_tabled", rows=small),
        "tabled 1 KiB": work("read_tabled", rows=large),
        "whole": work("read_whole", rows=small),
        "whole three": work("read_whole", rows=small, columns=three),
        "whole count": work("count_whole", rows=small),
        "engines none": EngineWork("none", small, 5 * times),
        "engines zstd": EngineWork("zstd", small, 5 * times),
        "archive": work("update_table", rows=archived),
        "archive parquet": work("copy_parquet", rows=archived),
        "parquet three": work("read_parquet", rows=small, columns=three),
        "parquet count": work("count_parquet", rows=small),
        "write": work("write", rows=small),
        "write by rows": work("write_by_rows", rows=small),
        "write parquet": work("write_parquet", rows=small),
        "write 1 KiB": work("write", rows=large),
        "write parquet 1 KiB": work("write_parquet", rows=large),
        "micro-batch": work("stream", rows=Rows(batches * rows, 100), batch=rows),
        "micro-batch parquet": work("stream_parquet", rows=Rows(batches * rows, 100), batch=rows),
    }
