# A table's files, read by Spark itself. Law: it finds what diskq's own source finds, column by column.

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import diskq
from tests.sampling import first
from tests.tables.engines import by_duckdb, by_polars, by_spark
from tests.tables.killed import judge, kill_updaters

KILLS = int(os.environ.get("DISKQ_SOAK_TABLE_KILLS", "20"))

COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp"]


@pytest.mark.spark
@pytest.mark.parametrize("compacted", first(1, [True, False]))
def test_spark_reads_a_table_as_it_reads_the_stream(spark: Any, tmp_path: Path, compacted: bool) -> None:
    with diskq.Stream(tmp_path / "clicks", partition_count=2, segment_size=4000) as stream:
        for number in range(500):
            stream.append(b"\x00value %d\xff" % number * 3, b"key %d" % (number % 7), number * 1001 - 10**9)
    table = diskq.open_table(tmp_path / "clicks", tmp_path / "lake")
    table.update()
    if compacted:
        table.compact()
    rows = spark.read.parquet(str(tmp_path / "lake"))
    assert set(rows.columns) == {*COLUMNS, "timestampNanos"}
    assert rows.where("offset >= 100 and partition = 1").count() == table.ends()[1] - 100
    found = sorted(map(tuple, rows.select(COLUMNS).collect()), key=lambda row: (row[3], row[4]))
    stored = spark.read.format("diskq").load(str(tmp_path / "clicks")).select(COLUMNS).collect()
    ends = table.ends()
    wanted = [tuple(row) for row in stored if row["offset"] < ends[row["partition"]]]
    assert found == sorted(wanted, key=lambda row: (row[3], row[4]))


def judge_frame(frame: Any) -> int:
    """As `judge`; Spark itself computes what each message is."""
    key = "cast('key ' || offset % 9 as binary)"
    value = "cast(repeat('value ' || offset || ' ', 7) as binary)"
    is_right = f"key = {key} and value = {value} and timestampNanos = 1000 + offset"
    found = ("count(*)", "count(distinct offset)", "max(offset) + 1", f"count_if({is_right})")
    count, *others = frame.selectExpr(*found).first()
    assert others == [count] * 3
    return int(count)


@pytest.mark.exhaustive
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300 + 2 * KILLS)
def test_what_killed_updaters_leave_is_the_same_to_each_engine(spark: Any, tmp_path: Path) -> None:
    path, lake = tmp_path / "clicks", tmp_path / "lake"

    def between(total: int | None) -> None:
        found = [judge(engine(path, lake).to_batches()) for engine in (by_duckdb, by_polars)]
        found.append(judge_frame(by_spark(spark, path, lake)))
        assert found == sorted(found)
        assert total is None or found == [total] * 3

    assert kill_updaters(path, lake, KILLS, between) > 0
