# What may be wrong with a table, its stream or its disk. Law: each is a clear error, nothing half is left,
# and what was there stays as it was.

from __future__ import annotations

import errno

import pytest

from diskq.engine.stream.files import StreamFiles
from diskq.errors import (
    CorruptionError,
    DiskFullError,
    ForeignFilesError,
    TableGapError,
    TableMismatchError,
    UnsupportedFormatError,
)
from diskq.storage.directories import remove_tree
from diskq.testing import CrashFS, FaultFS
from tests.tables.logs import (
    INTO,
    JOURNAL,
    STREAM,
    content,
    fill_journal,
    fill_stream,
    flip,
    in_log,
    in_table,
    read,
    table,
)

HERE = f"{INTO}/topic=clicks"


def filled():
    """A disk with a stream, and its table."""
    fs = CrashFS()
    fill_stream(fs, partition_count=1)
    its = table(fs)
    its.update()
    return fs, its


def names(fs):
    """All that readers of the table's directory see."""
    there = sorted(name for name in fs.list_directory(HERE) if not name.startswith("."))
    return {name: sorted(fs.list_directory(f"{HERE}/{name}")) for name in there}


def refused(fs, error, match):
    """An update, and a read with the table, raise this; the table's directories stay as they are."""
    before = names(fs)
    with pytest.raises(error, match=match):
        table(fs).update()
    assert names(fs) == before
    with pytest.raises(error, match=match):
        read(fs, table=table(fs))


# --- the stream -----------------------------------------------------------------------------------


def test_a_stream_that_was_made_again_is_another_one():
    fs, _ = filled()
    remove_tree(fs, STREAM)
    fill_stream(fs, range(100))
    refused(fs, TableMismatchError, "its files are of stream")


def test_a_journal_that_was_made_again_is_known_by_its_messages():
    fs = CrashFS()
    fill_journal(fs)
    table(fs, JOURNAL).update()
    before = table(fs, JOURNAL).files()
    remove_tree(fs, JOURNAL)
    fill_journal(fs, range(1, 101))
    with pytest.raises(TableMismatchError, match="is another one"):
        table(fs, JOURNAL).update()
    assert table(fs, JOURNAL).files() == before


def test_a_journal_that_is_shorter_than_its_table_was_made_again():
    fs = CrashFS()
    fill_journal(fs)
    its = table(fs, JOURNAL)
    its.update()
    remove_tree(fs, JOURNAL)
    fill_journal(fs, range(5))
    with pytest.raises(TableMismatchError, match="ends at 5"):
        its.update()


def test_a_stream_is_not_put_into_the_table_of_a_journal():
    fs = CrashFS()
    fill_stream(fs, partition_count=1)
    fill_journal(fs)
    table(fs, JOURNAL).update()
    for file in table(fs, JOURNAL).files():
        fs.write_durably(file.path.replace("topic=events", "topic=clicks"), content(fs, file.path))
    refused(fs, TableMismatchError, "of a journal, and there is a stream")


def test_damage_in_a_segment_is_an_error_and_the_segments_before_it_are_in_the_table():
    fs = CrashFS()
    fill_stream(fs, partition_count=1)
    files = StreamFiles(fs, STREAM).partition(0)
    flip(fs, files.data(files.bases()[2]), 30)
    its = table(fs)
    with pytest.raises(TableGapError, match="allow_gaps") as failure:
        its.update()
    assert failure.value.first_offset == files.bases()[2] == its.ends()[0]
    assert fs.list_directory(f"{HERE}/.diskq") == ["table.lock"]


def test_what_is_damaged_is_left_out_with_allow_gaps_and_the_rest_is_there():
    fs = CrashFS()
    fill_stream(fs, partition_count=1)
    files = StreamFiles(fs, STREAM).partition(0)
    flip(fs, files.data(files.bases()[2]), 30)
    its = table(fs, allow_gaps=True)
    done = its.update()
    found = in_table(its)
    assert found == [row for row in in_log(fs) if row[1] < files.bases()[-1]]
    assert done.missing == files.bases()[-1] - len(found) > 0
    with pytest.raises(CorruptionError, match="were left out of this file"):
        read(fs, table=its)
    assert read(fs, table=its, allow_gaps=True) == in_log(fs)


# --- the table's directory ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["part-0.parquet", "0-7.parquet", "notes.txt", f"{7:020d}-{7:020d}.parquet"])
def test_a_foreign_file_beside_the_tables_is_an_error(name):
    fs, _ = filled()
    fs.write_durably(f"{HERE}/partition=0/{name}", b"anything")
    refused(fs, ForeignFilesError, "is not a file of this table")


@pytest.mark.parametrize("name", ["partition=00", "partition=x", "part"])
def test_a_foreign_directory_is_an_error(name):
    fs, _ = filled()
    fs.make_directory_durably(f"{HERE}/{name}")
    refused(fs, ForeignFilesError, "is not a file of this table")


@pytest.mark.parametrize("name", ["_SUCCESS", ".part-0.crc"])
def test_what_readers_of_parquet_pass_over_may_lie_there(name):
    fs, its = filled()
    fs.write_durably(f"{HERE}/partition=0/{name}", b"anything")
    assert its.update().made == ()


def test_a_gap_between_two_names_is_an_error():
    fs, its = filled()
    fs.unlink(its.files()[1].path)
    refused(fs, TableGapError, "do not touch")


def test_ranges_that_overlap_are_an_error():
    fs, its = filled()
    file = its.files()[0]
    fs.write_durably(its.state.names.file(0, file.first_offset + 1, file.next_offset + 1).path, b"anything")
    refused(fs, ForeignFilesError, "overlap")


@pytest.mark.parametrize("kept", [0, 3, 100])
def test_a_truncated_file_is_an_error(kept):
    fs, its = filled()
    handle = fs.open(its.files()[-1].path, write=True)
    fs.truncate(handle, kept)
    fs.close(handle)
    refused(fs, CorruptionError, r"the end of the Parquet file is missing|no whole Parquet file")


def test_a_rotten_page_is_an_error_of_whoever_reads_it():
    fs, its = filled()
    flip(fs, its.files()[0].path, 60)
    with pytest.raises(CorruptionError, match="no whole Parquet file"):
        read(fs, table=its)


def test_a_parquet_file_of_another_program_under_a_right_name_is_an_error():
    import pyarrow as pa
    import pyarrow.parquet as pq

    fs, its = filled()
    written = pa.BufferOutputStream()
    pq.write_table(pa.table({"offset": [1, 2, 3]}), written)
    last = its.files()[-1]
    path = its.state.names.file(0, last.next_offset, last.next_offset + 3).path
    fs.write_durably(path, written.getvalue().to_pybytes())
    refused(fs, UnsupportedFormatError, "no file of a table")


def test_a_file_under_another_name_is_an_error():
    fs, its = filled()
    last = its.files()[-1]
    fs.rename(last.path, its.state.names.file(0, last.first_offset, last.next_offset + 1).path)
    refused(fs, ForeignFilesError, "says that it has offsets")


# --- the disk -------------------------------------------------------------------------------------


def test_a_full_disk_leaves_no_half_file_and_the_next_update_goes_on():
    fs = FaultFS(CrashFS())
    fill_stream(fs, partition_count=1)
    its = table(fs)
    fs.fail("pwrite", error=errno.ENOSPC, path="*.tmp", nth=80, times=None)
    with pytest.raises(DiskFullError, match="topic=clicks"):
        its.update()
    assert its.files()
    assert fs.list_directory(f"{HERE}/.diskq") == ["table.lock"]
    fs.heal()
    its.update()
    assert in_table(its) == [row for row in in_log(fs) if row[1] < its.ends()[0]]


@pytest.mark.parametrize("verb", ["sync_files", "rename", "sync_directory"])
def test_a_file_that_cannot_be_made_durable_gets_no_name(verb):
    fs = FaultFS(CrashFS())
    fill_stream(fs, partition_count=1)
    its = table(fs)
    its.update()
    before = its.files()
    fill_stream(fs, range(40, 80))
    path = "*.tmp" if verb != "sync_directory" else "*/partition=0"
    fs.fail(verb, error=errno.EIO, path=path)
    with pytest.raises(OSError, match="Input/output"):
        its.update()
    assert its.files() == before
    assert fs.list_directory(f"{HERE}/.diskq") == ["table.lock"]
    fs.heal()
    assert its.update().made
