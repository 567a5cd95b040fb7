# Many small files into one. Law: the same messages, in fewer files.

from __future__ import annotations

from typing import Any

import pytest

from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.retention import retain
from diskq.errors import CorruptionError
from diskq.storage.barrier import opened
from diskq.tables.compaction import runs
from diskq.tables.names import TableFile, resolved
from diskq.tables.parquet import read_footer
from diskq.tables.table import Table
from diskq.testing import CrashFS
from tests.tables.logs import (
    JOURNAL,
    STREAM,
    fill_journal,
    fill_stream,
    flip,
    in_log,
    in_table,
    read,
    table,
)

FILLED = {STREAM: fill_stream, JOURNAL: fill_journal}


@pytest.mark.parametrize("path", FILLED)
def test_the_messages_are_the_same_in_fewer_files(path):
    fs = CrashFS()
    FILLED[path](fs)
    its = table(fs, path)
    its.update()
    before, rows = its.files(), in_table(its)
    done = its.compact()
    assert len(its.files()) == len({file.partition for file in before})
    assert sorted(done.removed) == before
    assert done.messages == len(rows)
    assert in_table(its) == rows
    assert read(fs, path, table=its) == in_log(fs, path)


def test_a_second_compaction_does_nothing_and_updates_go_on():
    fs = CrashFS()
    fill_stream(fs)
    its = table(fs)
    its.update()
    its.compact()
    assert its.compact().made == ()
    fill_stream(fs, range(40, 80))
    its.update()
    assert read(fs, table=its) == in_log(fs)


def test_a_joined_file_says_what_it_is():
    fs = CrashFS()
    fill_stream(fs, partition_count=1)
    its = table(fs)
    its.update()
    before = [read_footer(fs, file) for file in its.files()]
    its.compact()
    (file,) = its.files()
    footer = read_footer(fs, file)
    assert (footer.first, footer.next) == (before[0].first, before[-1].next)
    assert (footer.stream, footer.mark) == (before[-1].stream, before[-1].mark)


def test_what_was_missing_in_the_files_is_missing_in_the_joined_one():
    fs = CrashFS()
    fill_stream(fs, partition_count=1)
    files = StreamFiles(fs, STREAM).partition(0)
    for base in files.bases()[1:4:2]:
        flip(fs, files.data(base), 30)
    its = table(fs, allow_gaps=True)
    its.update()
    rows = in_table(its)
    gaps = [gap for file in its.files() for gap in read_footer(fs, file).missing]
    assert len(gaps) == 2
    its.compact()
    (file,) = its.files()
    assert [*read_footer(fs, file).missing] == gaps
    assert in_table(its) == rows


def file(first: int, end: int) -> TableFile:
    return TableFile(0, first, end, f"/{first}-{end}")


def test_of_files_that_have_a_message_the_largest_counts():
    found = resolved([file(0, 5), file(5, 9), file(0, 9), file(9, 12), file(5, 7)])
    assert found.files == [file(0, 9), file(9, 12)]
    assert found.superseded == [file(0, 5), file(5, 9), file(5, 7)]


@pytest.mark.parametrize(
    "sizes, joined",
    [
        ([], []),
        ([10], []),
        ([10, 10], [[0, 1]]),
        ([10, 60, 10], []),
        ([10, 10, 60, 10, 10, 10], [[0, 1], [3, 4, 5]]),
        ([40, 40, 40, 40], [[0, 1], [2, 3]]),
        ([40, 30, 40], [[0, 1]]),
        ([100, 100], []),
    ],
)
def test_files_of_half_the_size_stay_and_smaller_ones_are_joined(sizes, joined):
    sized = [(file(number, number + 1), size) for number, size in enumerate(sizes)]
    found = [[each.first_offset for each in run] for run in runs(sized, 100)]
    assert found == joined


@pytest.mark.parametrize("size", [0, -1])
def test_a_target_size_is_a_number_of_bytes(size):
    with pytest.raises(ValueError, match="at least 1 byte"):
        table(CrashFS()).compact(size)
    with pytest.raises(TypeError, match="target_size is a whole number"):
        table(CrashFS()).compact(1.5)  # type: ignore[arg-type]


def test_a_file_that_lacks_rows_replaces_nothing():
    fs = CrashFS()
    fill_stream(fs, partition_count=1)
    its = table(fs)
    its.update()
    files = its.files()
    with opened(fs, files[1].path, write=True) as handle:
        fs.truncate(handle, 50)
    with pytest.raises(CorruptionError):
        its.compact()
    assert its.files() == files


# --- files that stay for whoever has listed them --------------------------------------------------


def compacted(fs: CrashFS, **options: Any) -> tuple[Table, list[TableFile]]:
    """A table that keeps what was joined for ten seconds, and what was joined now."""
    fill_stream(fs, partition_count=1)
    its = table(fs, keep_replaced=10.0, **options)
    its.update()
    before = its.files()
    assert its.compact().removed == ()
    return its, before


def are_there(fs: CrashFS, files: list[TableFile]) -> bool:
    return all(fs.size_of(file.path) is not None for file in files)


@pytest.mark.parametrize("change", ["update", "compact"])
def test_files_that_were_joined_stay_for_as_long_as_was_asked(change):
    fs = CrashFS()
    its, before = compacted(fs)
    assert len(its.files()) == 1
    fs.clock += 9
    assert getattr(its, change)().removed == ()
    assert are_there(fs, before)
    assert its.statistics().superseded == len(before)
    assert read(fs, table=its) == in_log(fs)
    fs.clock += 1
    assert sorted(getattr(its, change)().removed) == before
    assert its.statistics().superseded == 0
    assert read(fs, table=its) == in_log(fs)


def test_the_first_file_that_replaced_another_counts():
    fs = CrashFS()
    its, before = compacted(fs)
    fs.clock += 9
    fill_stream(fs, range(40, 80))
    its.update()
    (joined, *_) = its.files()
    assert its.compact().removed == ()
    fs.clock += 1
    assert sorted(its.compact().removed) == before
    assert are_there(fs, [joined])


def test_an_updater_that_keeps_nothing_removes_what_another_has_kept():
    fs = CrashFS()
    _, before = compacted(fs)
    assert sorted(table(fs).update().removed) == before


def test_files_go_with_their_segments_and_none_that_was_joined_comes_back():
    fs = CrashFS()
    its, before = compacted(fs, keep="segments")
    fill_stream(fs, range(40, 120))
    retain(fs, StreamFiles(fs, STREAM), now_ns=0, max_bytes=1000)
    joined = its.files()
    assert sorted(its.update().removed) == sorted([*before, *joined])
    assert read(fs, table=its) == in_log(fs)


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_how_long_they_stay_is_a_number_of_seconds(seconds):
    with pytest.raises(ValueError, match="keep_replaced is 0 or more seconds"):
        table(CrashFS(), keep_replaced=seconds)
