# A file of diskq that go-diskqueue has begun anew. Law: what the peer wrote stays where it is, and what diskq
# had written after it is kept.
#
# After a kill of diskq's process the metadata is older than the files: it names a file that diskq had left,
# and go-diskqueue begins the next one at byte 0, although that file exists. The peer's messages then stand
# before the rest of diskq's, which begins inside a record. The peer's metadata says where its messages end;
# if not, the first record does that overlaps one of diskq's: a block whose checksum still agrees is as diskq
# wrote it.

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from diskq._native.core.append_buffer import BLOCK_SIZE
from diskq._native.queue.codec import count, scan
from diskq.engine.queue.files import QueueFiles
from diskq.storage.barrier import let_go, opened
from diskq.storage.checksums import Row, Rows, rows_after
from diskq.storage.fs import FileSystem
from diskq.storage.log.entries import Displaced
from diskq.storage.log.replay import rows_to_add

__all__ = ["Overwritten", "find_overwritten", "is_of_another_program"]

_AT_MOST = 64 * 1024


class Overwritten(NamedTuple):
    """A file that begins with another writer's messages and ends with blocks that diskq wrote."""

    end: int
    """The byte after the last message of the other writer."""
    ours: bytes
    """The records in the blocks that are left of diskq's."""
    lost: int
    """The number of diskq's messages in the blocks that are not as they were written."""
    lost_end: int
    """The byte after the last of these blocks."""


def find_overwritten(fs: FileSystem, data: str, checksum_file: str, end: int | None) -> Overwritten | None:
    """Return the part of the file at `data` that another writer wrote; None if the beginning is diskq's.

    `end` is the byte at which the metadata says that its messages end; None: not known. Raises OSError.
    """
    good, bad = _checked_blocks(fs, data, checksum_file)
    if not bad or bad[0].start > 0 or (good and good[0].start < bad[-1].end):
        return None  # as it was; or damage in several places
    covered = max(row.end for row in good + bad)
    handle = fs.open(data)
    try:
        size = fs.size(handle)
        first = min(good[0].start if good else size, size)
        begun = fs.pread(handle, first if end is None else end, 0)
        ours = b"".join(fs.pread(handle, row.end - row.start, row.start) for row in good)
        # What was only on the write-ahead log has no checksum yet.
        rest = fs.pread(handle, max(0, size - covered), covered)
    finally:
        let_go(fs, handle)
    whole = scan(begun).valid_end
    if end is None:
        whole = _end_before_rest(begun, whole, min(first, bad[-1].end))
        # A rotten block still has frames up to its last byte; another writer's messages end anywhere.
        is_theirs = whole > 0 and (whole < first or not good)
    else:
        is_theirs = whole == end and whole > 0 and end <= first
    if whole <= covered and scan(rest).valid_end == len(rest):
        ours += rest
    lost = sum(row.records for row in bad)
    return Overwritten(whole, ours, lost, bad[-1].end) if is_theirs else None


def is_of_another_program(fs: FileSystem, files: QueueFiles, displaced: Displaced) -> bool:
    """True if another program's messages are where the displaced ones belong; False if these are damaged.

    A go-diskqueue that dies before the first sync of the metadata leaves no other sign: whole messages fill
    the file from there on, and no checksum of diskq's is right. Raises OSError.
    """
    _, _, file, start, records = displaced.part
    if (fs.size_of(displaced.path) or 0) <= start:
        return False
    with opened(fs, displaced.path) as handle:
        size = fs.size(handle)
        there = fs.pread(handle, size - start, start)
        if size == start + len(records) or count(there).valid_end < len(there):
            return False
        rows = rows_after(fs, files.checksum_file(file), start)
        rows += rows_to_add(fs, files.staging).get(file, [])
        return not any(
            start < row.end <= size and row.matches(fs.pread(handle, row.end - row.start, row.start))
            for row in rows
        )


def _end_before_rest(data: bytes, whole: int, limit: int) -> int:
    """Return where the other writer's messages end; the records in data[:whole] may be too many.

    The rest of diskq's may look like one more record. That one ends after the start of a record of diskq's,
    and begins before it; from there records follow each other to byte `limit`, where diskq's ended.
    """
    if whole >= limit:
        return whole
    start = max(0, limit - _AT_MOST)
    leads_to_limit = bytearray(limit - start + 1)
    leads_to_limit[-1] = True
    for at in range(limit - 4, start - 1, -1):
        next_at = at + 4 + int.from_bytes(data[at : at + 4], "big")
        leads_to_limit[at - start] = next_at <= limit and leads_to_limit[next_at - start]
    at = 0
    while at < whole:
        next_at = at + 4 + int.from_bytes(data[at : at + 4], "big")
        if any(leads_to_limit[max(0, at + 1 - start) : max(0, next_at - start)]):
            return at
        at = next_at
    return whole


def _checked_blocks(fs: FileSystem, data: str, checksum_file: str) -> tuple[list[Row], list[Row]]:
    """Return the checksum entries of blocks that are as they were written, and of the other blocks."""
    good: list[Row] = []
    bad: list[Row] = []
    handle = fs.open(data)
    try:
        with closing(Rows(fs, checksum_file)) as rows:
            at = 0
            while group := rows.covering(at, BLOCK_SIZE):
                row = group[0]
                at = row.end
                (good if row.matches(fs.pread(handle, row.end - row.start, row.start)) else bad).append(row)
    finally:
        let_go(fs, handle)
    return good, bad
