# Tables of what go-diskq and sej have left. Law: the engine's own reader is the judge, and the peer's files
# stay as they are.

from __future__ import annotations

import os
from pathlib import Path

import diskq
from diskq.storage.fs import OsFileSystem
from diskq.tables.sources import open_source
from tests.golden.journals import every_journal, golden_journal
from tests.golden.streams import every_stream, golden_stream
from tests.tables.logs import read, rows


def judge(path: Path, lake: Path) -> None:
    """The table has what the log has, up to the active segment; and both together have all of it."""
    fs = OsFileSystem()
    before = files_of(path)
    log = read(fs, str(path), allow_gaps=True)
    table = diskq.open_table(path, lake, allow_gaps=True)
    table.update()
    source = open_source(fs, str(path))
    sealed = {index: max(source.bases(index), default=0) for index in source.partitions()}
    if files := table.files():
        assert {file.partition for file in files} <= set(sealed)
        found = rows(table.dataset().to_table())
        assert sorted(found) == sorted(row for row in log if row[1] < sealed[row[0]])
    assert rows(diskq.read_arrow(path, table=table, allow_gaps=True)) == log
    assert files_of(path) == before


def files_of(path: Path) -> dict[str, bytes]:
    found = (Path(root, name) for root, _, names in os.walk(path) for name in names)
    return {str(file): file.read_bytes() for file in found}


@every_stream
def test_a_stream_of_go_diskq_is_a_table(name: str, tmp_path: Path) -> None:
    judge(golden_stream(name, tmp_path), tmp_path / "lake")


@every_journal
def test_a_journal_of_sej_is_a_table(name: str, tmp_path: Path) -> None:
    judge(golden_journal(name, tmp_path), tmp_path / "lake")
