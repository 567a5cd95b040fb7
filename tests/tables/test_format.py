# The page on the format, and the files. Law: what the page lists is what is in a file.

from __future__ import annotations

import re

import pyarrow.parquet as pq
import pytest

import diskq
from diskq.engine.stream.reader import ReadableStream
from diskq.errors import UnsupportedFormatError
from diskq.storage.checksums import checksum
from diskq.storage.fs import OsFileSystem
from diskq.tables.parquet import Footer, read_footer
from tests.docs.documents import ROOT, table_rows

PAGE = ROOT / "docs/format/table.md"


@pytest.fixture(params=["stream", "journal"])
def table(request, tmp_path):
    """A table on a real disk, of two segments at least."""
    if request.param == "stream":
        options = diskq.StreamOptions(partition_count=1, segment_size=100)
        with diskq.Stream(tmp_path / "clicks", options=options) as stream:
            stream.append_many([(b"key", b"value %d" % number, 1000 + number) for number in range(9)])
    else:
        with diskq.Journal(tmp_path / "clicks", options=diskq.JournalOptions(segment_size=100)) as journal:
            for number in range(9):
                journal.append(b"value %d" % number, b"key", 1000 + number, 7)
    its = diskq.open_table(tmp_path / "clicks", tmp_path / "lake")
    its.update()
    return its


def names(heading, pattern=r"`([^`]+)`"):
    return [re.findall(pattern, row[0])[0] for row in table_rows(PAGE, heading)]


def test_the_columns_of_a_file_are_those_of_the_page(table):
    found = pq.ParquetFile(table.files()[0].path).schema
    is_journal = table.kind() == "journal"
    wanted = [row for row in table_rows(PAGE, "## Columns") if is_journal or row[0] != "`type`"]
    assert list(found.names) == [row[0].strip("`") for row in wanted]
    types = [re.findall(r"`(\w+)`", row[1])[0] for row in wanted]
    assert types == [found.column(number).physical_type for number in range(len(found.names))]


def test_a_file_says_what_the_page_lists(table):
    found = pq.ParquetFile(table.files()[0].path).metadata.metadata
    assert [name.decode() for name in sorted(found)] == sorted(names("## What a file says of itself"))


def test_the_mark_is_the_checksum_that_the_page_describes(table):
    footer = read_footer(OsFileSystem(), table.files()[1])
    assert footer.mark is not None
    row = diskq.read_arrow(table.path).read_all().to_pylist()[footer.mark[0]]
    text = f"{row['timestampNanos']} {row.get('type')} {len(row['key'])} ".encode()
    assert footer.mark == (footer.first, checksum(text + row["key"] + row["value"]))


def test_names_match_the_grammar(table):
    for file in table.files():
        tail = file.path.split("/")[-3:]
        assert tail[:2] == ["topic=clicks", "partition=0"]
        assert re.fullmatch(r"\d{20}-\d{20}\.parquet", tail[2])


def test_a_footer_is_read_as_it_was_written():
    footer = Footer(
        kind="journal", stream="", topic="ä b", partition=3, first=5, next=9, mark=(5, 255), missing=((6, 8),)
    )
    written = {name.encode(): text.encode() for name, text in footer.render().items()}
    assert Footer.parse("file", written) == footer
    assert footer.rows == 2


@pytest.mark.parametrize(
    "change",
    [{b"diskq.version": b"2"}, {b"diskq.first": b"x"}, {b"diskq.mark": b"1 z"}, {b"diskq.missing": b"3"}],
)
def test_a_footer_of_another_version_is_refused(change):
    footer = Footer(kind="stream", stream="", topic="t", partition=0, first=0, next=1)
    written = {name.encode(): text.encode() for name, text in footer.render().items()}
    with pytest.raises(UnsupportedFormatError):
        Footer.parse("file", {**written, **change})


def test_a_row_is_where_the_engine_has_its_message(table):
    if table.kind() == "stream":
        with ReadableStream(table.path).open(0) as reader:
            reader.seek(table.files()[1].first_offset)
            message = reader.read()
        row = pq.read_table(table.files()[1].path, partitioning=None).to_pylist()[0]
        assert message is not None
        assert (row["offset"], row["value"]) == (message.offset, message.value)
