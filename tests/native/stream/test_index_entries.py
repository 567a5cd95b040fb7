# What a data file's records need beside them, made from the records.

from __future__ import annotations

import itertools

import pytest

from diskq._native.core.append_buffer import BLOCK_SIZE
from diskq._native.stream.codec import TripletFraming, encode
from diskq._native.stream.index_entries import checksum_rows, rows_of
from diskq.storage.checksums import ROW, checksum, unpack_row
from tests.engine.streams import Triple, triple

POSITION = 1234


def made(messages: list[Triple], varuint: bool) -> tuple[bytes, bytes]:
    data = encode(messages, varuint=varuint).data
    return data, rows_of(TripletFraming(varuint=varuint), data, 77, POSITION).index_rows


@pytest.mark.parametrize("varuint", [False, True])
@pytest.mark.parametrize("length", [0, 100, BLOCK_SIZE, 3 * BLOCK_SIZE])
@pytest.mark.parametrize("count", [0, 1, 2, 200])
def test_blocks_of_whole_records_cover_all_of_them(count, length, varuint):
    data, index = made([triple(number, length) for number in range(count)], varuint)
    rows = checksum_rows(data, index, POSITION)
    blocks = [unpack_row(rows[at : at + ROW.size]) for at in range(0, len(rows), ROW.size)]
    end = POSITION
    for number, block in enumerate(blocks):
        assert block is not None
        assert block.start == end
        assert block.crc == checksum(data[block.start - POSITION : block.end - POSITION])
        assert block.end - block.start >= BLOCK_SIZE or number == len(blocks) - 1
        end = block.end
    assert end == POSITION + len(data)
    assert sum(block.records for block in blocks if block is not None) == count


def test_blocks_end_where_a_writers_do():
    messages = [triple(number, 300) for number in range(100)]
    data, index = made(messages, False)
    rows = checksum_rows(data, index, 0)
    ends, start, at = [], 0, 0
    for message in messages:
        at += len(encode([message]).data)
        if at - start >= BLOCK_SIZE:
            ends.append(at)
            start = at
    blocks = [unpack_row(rows[at : at + ROW.size]) for at in range(0, len(rows), ROW.size)]
    assert [block.end for block in blocks if block is not None] == [*ends, len(data)]


@pytest.mark.parametrize("cut", [1, 20])
def test_rows_that_are_not_of_these_records_are_refused(cut):
    data, index = made([triple(number) for number in range(20)], False)
    for records, rows in ((data[:-cut], index), (data + bytes(cut), index), (data, index[:-24]), (data, b"")):
        with pytest.raises(ValueError, match="records of an index are not the"):
            checksum_rows(records, rows, 0)
    for at, bit in itertools.product(range(16, 24), range(8)):
        wrong = bytearray(index)
        wrong[at] ^= 1 << bit
        with pytest.raises(ValueError, match="records of an index are not the"):
            checksum_rows(data, bytes(wrong), 0)
