# Files of diskq that go-diskqueue has begun anew, because a killed process had left old metadata.

from __future__ import annotations

import struct

import pytest

from diskq.engine.queue.overwritten import find_overwritten
from diskq.storage.checksums import Row, checksum, pack_row
from tests.engine.queues import bodies, records
from tests.engine.ram import RamFS

DATA, SUMS = "/q/data", "/q/sums"
OURS = [records(*bodies(10)), records(*bodies(10, start=10)), records(*bodies(10, start=20))]


def disk(theirs: bytes, behind: bytes = b"") -> RamFS:
    """Three blocks of diskq with their checksums, and `theirs` written over their beginning."""
    whole = b"".join(OURS)
    rows, at = [], 0
    for block in OURS:
        rows.append(Row(at, at + len(block), 10, checksum(block)))
        at += len(block)
    content = theirs + whole[len(theirs) :] + behind
    return RamFS({DATA: content, SUMS: b"".join(map(pack_row, rows)) + bytes(1024)})


@pytest.mark.parametrize("tells_its_end", [True, False])
@pytest.mark.parametrize("count", [1, 3, 9])
def test_the_end_of_a_peers_messages_is_found_and_whole_blocks_of_diskq_are_kept(
    count: int, tells_its_end: bool
) -> None:
    theirs = records(*bodies(count, length=77, start=1000))
    found = find_overwritten(disk(theirs), DATA, SUMS, len(theirs) if tells_its_end else None)
    assert found is not None
    assert found.end == len(theirs)
    assert found.ours == OURS[1] + OURS[2]
    assert found.lost == 10


def test_messages_of_the_wal_after_the_checksums_are_kept_too() -> None:
    theirs = records(*bodies(2, length=50, start=1000))
    found = find_overwritten(disk(theirs, records(b"staged")), DATA, SUMS, None)
    assert found is not None
    assert found.ours == OURS[1] + OURS[2] + records(b"staged")


def test_the_rest_of_an_overwritten_record_is_not_a_message_though_it_looks_like_one() -> None:
    """It would end in the middle of the next record of diskq."""
    theirs = records(b"t" * 20)
    block = records(b"x" * 20 + struct.pack(">I", 12) + b"y" * 8, b"next", b"last")
    rows = pack_row(Row(0, len(block), 3, checksum(block)))
    fs = RamFS({DATA: theirs + block[len(theirs) :], SUMS: rows + bytes(1024)})
    found = find_overwritten(fs, DATA, SUMS, None)
    assert found is not None
    assert found.end == len(theirs)


def test_a_file_as_diskq_wrote_it_is_not_another_writers() -> None:
    assert find_overwritten(disk(b""), DATA, SUMS, None) is None


@pytest.mark.parametrize("at", [2, 40, 500, 1500, 2900])
def test_rot_is_not_taken_for_another_writer(at: int) -> None:
    fs = disk(b"")
    content = bytearray(fs.read(DATA))
    content[at] ^= 0x40
    fs.now[DATA] = content
    assert find_overwritten(fs, DATA, SUMS, None) is None


def test_a_peer_that_appended_has_not_begun_the_file_anew() -> None:
    fs = disk(b"", records(b"theirs"))
    assert find_overwritten(fs, DATA, SUMS, len(fs.read(DATA))) is None
