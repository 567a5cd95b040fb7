# Table and tail as other engines read them: the files of the table by the engine's own reader of Parquet, the
# tail from `read_arrow`. Those that are no Spark return a `pyarrow.Table` with COLUMNS, in the order of the
# offsets of the one partition.

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc

import diskq

__all__ = ["COLUMNS", "by_duckdb", "by_polars", "by_spark"]

COLUMNS = ["key", "value", "offset", "timestampNanos"]


def by_duckdb(path: Path, lake: Path) -> Any:
    import duckdb

    files, tail = _parts(path, lake)
    columns = 'key, value, "offset", timestampNanos'
    query = f"select {columns} from tail"
    assert tail.schema.names == COLUMNS  # a variable is a table in SQL
    if files:
        query += f" union all select {columns} from read_parquet({files}, hive_partitioning = false)"
    found: Any = duckdb.sql(f'{query} order by "offset"')
    return found.to_arrow_table()


def by_polars(path: Path, lake: Path) -> Any:
    import polars

    files, tail = _parts(path, lake)
    frames: list[Any] = [polars.read_parquet(file, hive_partitioning=False).select(COLUMNS) for file in files]
    frames.append(polars.from_arrow(tail.read_all()))
    return polars.concat(frames).sort("offset").to_arrow()


def by_spark(spark: Any, path: Path, lake: Path) -> Any:
    """Return Spark's DataFrame with these columns: it has no order."""
    import diskq.spark

    return diskq.spark.read(spark, path, table=lake, columns=COLUMNS)


def _parts(path: Path, lake: Path) -> tuple[list[str], Any]:
    """Return the files of the table, and the rest, which the log has."""
    files = diskq.open_table(path, lake).files()
    rest = pc.field("offset") >= (files[-1].next_offset if files else 0)
    return [file.path for file in files], diskq.read_arrow(path, columns=COLUMNS, where=rest)
