# Other programs that read the files, without diskq. Law: they find what the engine's own reader hands out.

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import diskq

Found = list[tuple[int, int, int, bytes, bytes]]


@pytest.fixture(params=[False, True], ids=["by segment", "compacted"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with diskq.Stream(tmp_path / "clicks", partition_count=2, segment_size=4000) as stream:
        for number in range(500):
            stream.append(b"\x00value %d\xff" % number * 3, b"key %d" % (number % 7), number * 1001 - 10**9)
    table = diskq.open_table(tmp_path / "clicks", tmp_path / "lake")
    table.update()
    if request.param:
        table.compact()
    return tmp_path


def wanted(lake: Path) -> Found:
    table = diskq.open_table(lake / "clicks", lake / "lake")
    found = diskq.read_arrow(lake / "clicks").read_all().to_pylist()
    rows = [row for row in found if row["offset"] < table.ends()[row["partition"]]]
    return sorted(
        (row["partition"], row["offset"], row["timestampNanos"], row["key"], row["value"]) for row in rows
    )


def glob(lake: Path) -> str:
    return f"{lake}/lake/topic=clicks/*/*.parquet"


def test_duckdb_reads_the_files(lake: Path) -> None:
    duckdb: Any = pytest.importorskip("duckdb")
    columns = 'partition, "offset", timestampNanos, key, value'
    found = duckdb.sql(
        f"select {columns} from read_parquet('{glob(lake)}', hive_partitioning=true)"
    ).fetchall()
    assert sorted((int(row[0]), *row[1:]) for row in found) == wanted(lake)


def test_duckdb_reads_table_and_tail(lake: Path) -> None:
    duckdb: Any = pytest.importorskip("duckdb")
    views = diskq.read_arrow(lake / "clicks", table=lake / "lake")
    query = 'select count(*), count(distinct ("offset", "partition")) from views'
    assert views.schema is not None  # a variable is a table in SQL
    assert duckdb.sql(query).fetchall() == [(500, 500)]


def test_polars_reads_the_files(lake: Path) -> None:
    polars: Any = pytest.importorskip("polars")
    columns = ["partition", "offset", "timestampNanos", "key", "value"]
    found = polars.read_parquet(glob(lake), hive_partitioning=True).select(columns).rows()
    assert sorted((int(row[0]), *row[1:]) for row in found) == wanted(lake)


def test_pandas_reads_table_and_tail(lake: Path) -> None:
    pytest.importorskip("pandas")
    found = diskq.read_arrow(lake / "clicks", table=lake / "lake").read_pandas()
    assert len(found) == len(found.drop_duplicates(["partition", "offset"])) == 500
    assert found["timestampNanos"].min() == -(10**9)
