# Checksums. Law: a block that does not match is refused, a corrupt row is distinguished from corrupt data,
# and a row is found at every place.

from __future__ import annotations

import math
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskq.storage.append_file import ChecksumFile, replace_last_rows
from diskq.storage.checksums import ROW, Row, Rows, checksum, checksummed, pack_row, rows_after, unpack_row
from diskq.testing import CrashFS, FaultFS

PATH = "/q/sums"
BLOCK = b"a block of whole records"
A_ROW = Row(100, 100 + len(BLOCK), 2, checksum(BLOCK))


def disk() -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably("/q")
    return fs


# --- a row --------------------------------------------------------------------------------------

sizes = st.integers(0, 2**32 - 1)
rows = st.builds(
    lambda start, size, records, crc: Row(start, start + size, records, crc),
    st.integers(0, 2**62 - 2**32),
    sizes,
    sizes,
    sizes,
)


@given(rows)
def test_a_row_comes_back(row):
    assert unpack_row(pack_row(row)) == row


@given(rows, st.integers(0, ROW.size - 1), st.integers(1, 255))
def test_a_row_with_a_corrupt_byte_is_none(row, at, mask):
    rotten = bytearray(pack_row(row))
    rotten[at] ^= mask
    assert unpack_row(bytes(rotten)) is None


def test_zeros_are_no_row():
    assert unpack_row(bytes(ROW.size)) is None


def test_a_block_that_would_begin_before_its_file_is_no_row():
    fields = (5).to_bytes(8, "little") + (6).to_bytes(4, "little") + bytes(8)
    assert unpack_row(fields + checksum(fields).to_bytes(4, "little")) is None


def test_a_block_that_ends_where_no_file_does_is_no_row():
    assert unpack_row(pack_row(Row(2**62 - 9, 2**62, 1, 7))) is not None
    for end in (2**62 + 1, 2**63, 2**64 - 1):
        assert unpack_row(pack_row(Row(end - 9, end, 1, 7))) is None


@pytest.mark.parametrize("at", range(len(BLOCK)))
def test_corrupt_data_does_not_match_its_row(at):
    rotten = bytearray(BLOCK)
    rotten[at] ^= 1
    assert A_ROW.matches(BLOCK)
    assert not A_ROW.matches(bytes(rotten))


def test_the_checksum_is_castagnolis():
    assert checksum(b"123456789") == 0xE3069283


# --- a table of rows ----------------------------------------------------------------------------


class Table:
    """A damaged checksum file: rows, corrupt rows, holes of zeros, and zeros ahead."""

    def __init__(self, pieces: list[tuple[str, int]], ahead: int = 0) -> None:
        content = bytearray()
        self.rows: list[tuple[Row, int]] = []  # each with the checksum file's byte after it
        end = 0
        for kind, size in pieces:
            if kind == "zeros":
                content += bytes(size * ROW.size)
            elif kind == "gap":
                end += size
            else:
                row = Row(end, end + size, 1, size)
                packed = bytearray(pack_row(row))
                if kind == "rotten":
                    packed[3] ^= 0x10
                content += packed
                end += size
                if kind == "row":
                    self.rows.append((row, len(content)))
        content += bytes(ahead * ROW.size)
        self.size = end
        self.fs = FaultFS(disk())
        self.fs.inner.write_durably(PATH, bytes(content))

    def expected(self, position: int, most: int) -> list[Row]:
        """By looking at one row after the other."""
        found: list[Row] = []
        for row, _ in self.rows:
            if row.end > position:
                if found and (row.start != found[-1].end or row.end - found[0].start > most):
                    break
                found.append(row)
        return found


def check(found: list[Row], expected: list[Row]) -> None:
    """As many as were at hand, from the first one on; one at least, if there is one."""
    assert found == expected[: len(found)]
    assert bool(found) == bool(expected)


pieces = st.lists(
    st.one_of(
        st.tuples(st.just("row"), st.integers(1, 50)),
        st.tuples(st.just("row"), st.integers(1, 50)),
        st.tuples(st.just("row"), st.integers(1, 50)),
        st.tuples(st.just("rotten"), st.integers(1, 50)),
        st.tuples(st.just("gap"), st.integers(1, 50)),
        st.tuples(st.just("zeros"), st.sampled_from([1, 2, 7, 63, 64, 65, 200])),
    ),
    max_size=60,
)


@given(pieces, st.integers(0, 300), st.data())
def test_the_rows_for_any_byte_are_found_in_any_table(pieces, ahead, data):
    table = Table(pieces, ahead)
    rows = Rows(table.fs, PATH)
    for _ in range(3):
        position = data.draw(st.integers(0, table.size + 1))
        most = data.draw(st.integers(1, 200))
        rows.seek(position)
        passed = [(row, row_end) for row, row_end in table.rows if row.end <= position]
        if passed:
            assert (rows.last, rows.last_end) == (passed[-1][0], passed[-1][0].end)
            assert rows.consumed >= passed[-1][1], "who goes on from here keeps them all"
        check(rows.covering(position, most), table.expected(position, most))


@given(pieces, st.lists(st.integers(0, 400), min_size=1, max_size=10))
def test_rows_are_passed_in_order_without_seeking(pieces, steps):
    table = Table(pieces)
    rows = Rows(table.fs, PATH)
    position = 0
    for step in steps:
        position += step
        check(rows.covering(position, 100), table.expected(position, 100))


@given(pieces, st.integers(0, 400), st.integers(0, 1000), st.integers(0, 1000))
def test_a_stretch_of_rows_ends_where_they_do_or_before_its_limit(pieces, position, most, limit):
    table = Table(pieces)
    rows = Rows(table.fs, PATH)
    found = [row for row in rows.covering(position, most) if row.end <= limit]
    assert rows.reach(most, limit) == (found[-1].end if found else None)


@given(pieces, st.integers(0, 400), st.integers(0, 1000))
def test_records_are_counted_from_one_byte_to_another(pieces, start, until):
    table = Table(pieces)
    found = [row for row, _ in table.rows if row.end > start]
    counted = [row for row in found if row.end <= until]
    end = counted[-1].end if counted else start
    assert checksummed(table.fs, PATH, start, until) == (end, len(counted))
    assert checksummed(table.fs, PATH, start) == (found[-1].end if found else start, len(found))


@given(st.lists(st.integers(0, 60), min_size=1, max_size=20), st.data())
def test_blocks_match_up_to_the_first_corrupt_or_incomplete_one(sizes, data):
    fs = disk()
    checksum_file = ChecksumFile.open(fs, PATH, 0, 0)
    content = bytearray(sum(sizes))
    for size in sizes:
        checksum_file.add(
            checksum_file.covered + size, size, 1, memoryview(content)[checksum_file.covered :][:size]
        )
    checksum_file.flush()
    rotten = data.draw(st.integers(0, len(content)))
    if rotten < len(content):
        content[rotten] ^= 1
    there = data.draw(st.integers(0, len(content)))
    rows = Rows(fs, PATH)
    if (first := rows.first_after(0)) is not None:
        ends = [end for end in accumulate(sizes) if end <= min(rotten, there)]
        assert first.start == 0
        assert rows.matching_end(memoryview(bytes(content[:there]))) == max(ends, default=0)


def test_a_row_in_a_long_table_is_found_by_halving():
    table = Table([("row", 4096)] * 20_000)
    for position in (0, 1, 4096 * 9_999, 4096 * 19_999 + 5, 4096 * 20_000):
        rows = Rows(table.fs, PATH)
        table.fs.calls.clear()
        rows.seek(position)
        reads = sum(call.verb == "pread" for call in table.fs.calls)  # one of them of many rows
        assert reads <= math.log2(20_000) + 4
        assert rows.covering(position, 1) == table.expected(position, 1)


def test_rows_that_come_later_are_found_where_zeros_were():
    fs = disk()
    checksum_file = ChecksumFile.open(fs, PATH, 0, 0)
    checksum_file.make_room()
    rows = Rows(fs, PATH)
    assert rows.covering(0, 100) == []
    checksum_file.add(10, 10, 1, memoryview(bytes(10)))
    assert rows.covering(0, 100) == [], "it waits in memory"
    checksum_file.flush()
    assert [row.end for row in rows.covering(0, 100)] == [10]
    checksum_file.add(30, 20, 1, memoryview(bytes(20)))
    checksum_file.flush()
    assert [row.end for row in rows.covering(10, 100)] == [30]


def test_a_checksum_file_that_is_made_later_is_found():
    fs = disk()
    rows = Rows(fs, PATH)
    rows.seek(0)
    assert rows.covering(0, 100) == []
    checksum_file = ChecksumFile.open(fs, PATH, 0, 0)
    checksum_file.add(10, 10, 1, memoryview(bytes(10)))
    checksum_file.flush()
    assert [row.end for row in rows.covering(0, 100)] == [10]


def test_all_rows_after_a_byte_are_returned_though_they_are_many_and_have_gaps():
    fs = disk()
    known = [Row(start, start + 5, 1, start) for start in range(0, 20_000, 10)]
    fs.write_durably(PATH, b"".join(map(pack_row, known)))
    assert rows_after(fs, PATH, 0) == known
    assert rows_after(fs, PATH, 105) == known[11:]
    assert rows_after(fs, PATH, 104) == known[10:]
    assert rows_after(fs, "/q/none", 0) == []


def test_where_there_is_no_checksum_file_there_are_no_rows():
    rows = Rows(disk(), PATH)
    rows.seek(5)
    assert rows.covering(0, 100) == []
    rows.close()


def test_a_row_that_is_not_whole_is_no_row():
    table = Table([("row", 5), ("row", 5)])
    handle = table.fs.open(PATH, write=True)
    table.fs.truncate(handle, 2 * ROW.size - 1)
    assert [row.end for row in Rows(table.fs, PATH).covering(0, 100)] == [5]


# --- the writing side ---------------------------------------------------------------------------


def blocks(checksum_file: ChecksumFile, count: int) -> None:
    for _ in range(count):
        checksum_file.add(checksum_file.covered + 4096, 4096, 1, memoryview(bytes(4096)))


def test_rows_wait_until_there_are_sixteen():
    fs = disk()
    checksum_file = ChecksumFile.open(fs, PATH, 0, 0)
    blocks(checksum_file, 15)
    assert fs.read(PATH) == b""
    blocks(checksum_file, 1)
    assert len(fs.read(PATH)) == 16 * ROW.size


def test_rows_are_written_over_zeros_that_are_there_so_the_file_does_not_grow():
    fs = disk()
    checksum_file = ChecksumFile.open(fs, PATH, 0, 0)
    checksum_file.make_room()
    size = len(fs.read(PATH))
    assert size == checksum_file.allocated == 4096
    blocks(checksum_file, 100)
    checksum_file.flush()
    assert len(fs.read(PATH)) == size


def test_space_is_asked_for_while_some_is_left():
    checksum_file = ChecksumFile.open(disk(), PATH, 0, 0)
    assert not checksum_file.has_room
    checksum_file.make_room()
    assert checksum_file.has_room
    while checksum_file.has_room:
        blocks(checksum_file, 1)
    assert checksum_file.room > 60


def test_a_seal_drops_the_zeros_and_says_where_the_file_ends():
    fs = disk()
    checksum_file = ChecksumFile.open(fs, PATH, 0, 0)
    checksum_file.make_room()
    blocks(checksum_file, 3)
    checksum_file.seal()
    assert len(fs.read(PATH)) == checksum_file.allocated == 4 * ROW.size
    rows = Rows(fs, PATH)
    rows.seek(3 * 4096)
    assert rows.covering(3 * 4096, 100) == []
    assert rows.last is not None
    assert rows.last.is_seal
    assert rows.last.end == 3 * 4096


def test_continuing_after_some_rows_cuts_off_the_others():
    fs = disk()
    checksum_file = ChecksumFile.open(fs, PATH, 0, 0)
    checksum_file.make_room()
    blocks(checksum_file, 5)
    checksum_file.flush()
    again = ChecksumFile.open(fs, PATH, 2 * ROW.size, 2 * 4096)
    blocks(again, 1)
    again.flush()
    assert [row.end // 4096 for row in Rows(fs, PATH).covering(0, 10**6)] == [1, 2, 3]


def test_last_rows_replace_those_in_their_place_and_may_leave_a_gap_before_them():
    fs = disk()
    checksum_file = ChecksumFile.open(fs, PATH, 0, 0)
    blocks(checksum_file, 5)
    checksum_file.flush()
    last = [Row(10_000, 10_010, 1, 7), Row(10_010, 10_020, 1, 8)]
    replace_last_rows(fs, PATH, last)
    assert rows_after(fs, PATH, 2 * 4096) == last
    assert [row.end for row in rows_after(fs, PATH, 0)] == [4096, 2 * 4096, 10_010, 10_020]


def test_a_full_disk_leaves_the_checksum_file_as_it_was():
    fs = FaultFS(disk())
    checksum_file = ChecksumFile.open(fs, PATH, 0, 0)
    checksum_file.make_room()
    allocated = checksum_file.allocated
    while checksum_file.has_room:
        blocks(checksum_file, 1)
    fs.capacity(100)
    with pytest.raises(OSError, match="No space"):
        checksum_file.make_room()
    assert checksum_file.allocated == allocated
    checksum_file.flush()
    rows = Rows(fs, PATH)
    rows.seek(checksum_file.covered)
    assert rows.last_end == checksum_file.covered
