# Updaters that are killed again and again beside a producer, while readers read. Law: whoever reads,
# whenever, finds each message once in table and tail, as it was appended, with whichever engine.
#
# Spark judges in tests/spark/test_tables.py.

from __future__ import annotations

import os
from pathlib import Path

import pytest

import diskq
from tests.sampling import first
from tests.tables.engines import by_duckdb, by_polars
from tests.tables.killed import judge, kill_updaters

KILLS = int(os.environ.get("DISKQ_SOAK_TABLE_KILLS", "200"))


@pytest.mark.slow
@pytest.mark.timeout(300 + KILLS)
@pytest.mark.parametrize("kills", first(1, [6, KILLS]))
def test_killed_updaters_lose_and_repeat_nothing(kills: int, tmp_path: Path) -> None:
    path, lake = tmp_path / "clicks", tmp_path / "lake"
    engines = (by_duckdb, by_polars)

    def between(total: int | None) -> None:
        for engine in engines:
            found = judge(engine(path, lake).to_batches())
            assert total in (None, found)

    total = kill_updaters(path, lake, kills, between)
    assert judge(diskq.read_arrow(path, table=lake)) == total
    table = diskq.open_table(path, lake)
    table.update()
    table.compact()
    assert judge(diskq.read_arrow(path, table=lake)) == total
    assert table.dataset().count_rows() == table.statistics().offsets > total - 2000
    assert [each.name for each in Path(table.directory, ".diskq").iterdir()] == ["table.lock"]
