# Files of records, rewritten without what cannot be read. Law: bytes are copied, never made; a block that
# gets a checksum was just read as whole records.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from diskq._native.core.append_buffer import BLOCK_SIZE
from diskq._native.core.gate import Gate
from diskq._native.core.read_ahead import ReadAhead
from diskq._native.journal import codec as journal_codec
from diskq._native.queue.codec import MAX_BODY, NsqFraming
from diskq._native.stream.codec import INDEX_ROW_SIZE, TripletFraming
from diskq._native.stream.index_entries import RowsOf, rows_of
from diskq.engine.stream.index_entries import INDEX_ROW
from diskq.storage.append_file import ChecksumFile
from diskq.storage.barrier import write_all
from diskq.storage.fs import FileSystem

__all__ = [
    "RecordRange",
    "between",
    "copied",
    "indexed",
    "moved",
    "nsq_blocks",
    "rows",
    "sej_blocks",
    "size_of",
    "sums",
    "triplet_blocks",
]

_AT_ONCE = 1024 * 1024
_MANY = 2**31

Writer = Callable[[FileSystem, int], None]
Blocks = Callable[[FileSystem, int, "RecordRange"], Iterator[tuple[int, int]]]
"""Yields, for a piece of an open file, where each of its blocks ends and how many records it has."""


class RecordRange(NamedTuple):
    """Bytes start:end of a file: whole records."""

    start: int
    end: int


def size_of(pieces: Iterable[RecordRange]) -> int:
    return sum(piece.end - piece.start for piece in pieces)


def between(pieces: Iterable[RecordRange], start: int, end: int) -> list[RecordRange]:
    """Return the parts of bytes start:end that are in none of the pieces."""
    rest = []
    for piece in sorted(pieces):
        if start < piece.start:
            rest.append(RecordRange(start, piece.start))
        start = max(start, piece.end)
    if start < end:
        rest.append(RecordRange(start, end))
    return rest


def moved(byte: int, pieces: Iterable[RecordRange]) -> int:
    """Return a byte's position when only the pieces are left; if it is in none, that of what follows it."""
    before = 0
    for start, end in pieces:
        if byte < end:
            return before + max(0, byte - start)
        before += end - start
    return before


def copied(path: str, pieces: Iterable[RecordRange]) -> Writer:
    """Return the writer of a file that holds these pieces of the one at `path`, and nothing else."""
    pieces = list(pieces)

    def write(fs: FileSystem, handle: int) -> None:
        source = fs.open(path)
        try:
            end = 0
            for piece in pieces:
                for at in range(piece.start, piece.end, _AT_ONCE):
                    data = fs.pread(source, min(_AT_ONCE, piece.end - at), at)
                    write_all(fs, handle, data, end)
                    end += len(data)
        finally:
            fs.close(source)

    return write


def sums(path: str, pieces: Iterable[RecordRange], blocks: Blocks, *, is_sealed: bool) -> Writer:
    """Return the writer of the checksums of that file."""
    pieces = list(pieces)

    def write(fs: FileSystem, handle: int) -> None:
        checksum_file = ChecksumFile(fs, path, handle, 0, 0, bytearray(), 0)
        source = fs.open(path) if pieces else -1
        try:
            before = 0
            for piece in pieces:
                start = piece.start
                for end, records in blocks(fs, source, piece):
                    data = fs.pread(source, end - start, start)
                    checksum_file.add(before + end - piece.start, end - start, records, memoryview(data))
                    start = end
                before += piece.end - piece.start
        finally:
            if source >= 0:
                fs.close(source)
        if is_sealed:
            checksum_file.covered = before
            checksum_file.seal()
        else:
            checksum_file.flush()

    return write


# --- nsq ------------------------------------------------------------------------------------------


def nsq_blocks(fs: FileSystem, handle: int, piece: RecordRange) -> Iterator[tuple[int, int]]:
    ahead = ReadAhead(fs, NsqFraming(0, MAX_BODY), Gate())
    position, size = piece.start, _AT_ONCE
    ahead.seek(position)
    while position < piece.end:
        loaded = min(size, piece.end - position)
        ahead.load(handle, position, loaded)
        ahead.admit(position, position + loaded)
        if not ahead.is_ready:
            assert loaded < piece.end - position, "whole records"
            size = max(2 * size, ahead.claimed)
        while ahead.is_ready and (records := len(ahead.take_many(_MANY, BLOCK_SIZE))):
            yield ahead.position, records
            size = _AT_ONCE
        position = ahead.position


# --- sej ------------------------------------------------------------------------------------------


def sej_blocks(fs: FileSystem, handle: int, piece: RecordRange) -> Iterator[tuple[int, int]]:
    position, size = piece.start, _AT_ONCE
    while position < piece.end:
        window = fs.pread(handle, min(size, piece.end - position), position)
        offset = int.from_bytes(window[:8], "big")
        end = 0
        for end, records in journal_codec.blocks(window, offset, BLOCK_SIZE):
            yield position + end, records
        assert end or len(window) < piece.end - position, "whole records"
        position += end
        size = _AT_ONCE if end else 2 * size


# --- triplet --------------------------------------------------------------------------------------


def rows(
    fs: FileSystem, handle: int, piece: RecordRange, framing: TripletFraming, offset: int, shift: int = 0
) -> Iterator[RowsOf]:
    """Yield the records of a piece, some at a time, with their index entries for `shift` bytes further on."""
    position, size = piece.start, _AT_ONCE
    while position < piece.end:
        window = fs.pread(handle, min(size, piece.end - position), position)
        made = rows_of(framing, window, offset, position + shift)
        assert made.records or len(window) < piece.end - position, "whole records"
        if made.records:
            yield made
        position += made.valid_end
        offset += made.records
        size = _AT_ONCE if made.records else 2 * size


def indexed(
    path: str, pieces: Iterable[RecordRange], framing: TripletFraming, offset: int, *, by_time: bool
) -> Writer:
    """Return the writer of the index, or timeindex, of a file with these pieces of the one at `path`."""
    pieces = list(pieces)

    def write(fs: FileSystem, handle: int) -> None:
        source = fs.open(path) if pieces else -1
        try:
            first, end, before = offset, 0, 0
            for piece in pieces:
                for made in rows(fs, source, piece, framing, first, before - piece.start):
                    content = made.timeindex_rows if by_time else made.index_rows
                    write_all(fs, handle, content, end)
                    end += len(content)
                    first += made.records
                before += piece.end - piece.start
        finally:
            if source >= 0:
                fs.close(source)

    return write


def triplet_blocks(framing: TripletFraming) -> Blocks:
    def blocks(fs: FileSystem, handle: int, piece: RecordRange) -> Iterator[tuple[int, int]]:
        start, records, end = piece.start, 0, piece.start
        for made in rows(fs, handle, piece, framing, 0):
            for _, position, size in INDEX_ROW.iter_unpack(made.index_rows[: made.records * INDEX_ROW_SIZE]):
                end = position + size
                records += 1
                if end - start >= BLOCK_SIZE:
                    yield end, records
                    start, records = end, 0
        if records:
            yield end, records

    return blocks
