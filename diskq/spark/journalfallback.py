# Journals read with pyarrow alone, for executors that have diskq's Python and nothing compiled. Law: what is
# handed out follows from record to record, by offset and by both of its sizes; checksums are not looked at.
# Who opens it instead of the engine logs that (layouts.py).
#
# A record is, all numbers big endian,
#
#     offset u64 | timestamp i64 | type u8 | key's length i8 | key | value's length i32 | value | size i32
#
# and there is no index: so each is looked at, in Python, for where it and its parts begin. A task that begins
# inside a segment passes over what is before. Where a record cannot be right, what is behind it in its
# segment cannot be told, and is lost.
#
# Format: docs/format/sej.md.

from __future__ import annotations

import array
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from diskq.spark.arrow import Piece
from diskq.spark.layouts import Losses
from diskq.spark.uncompiled import Segment, UncompiledLayout

__all__ = ["UnverifiedJournal"]

_DATA = re.compile(r"([0-9a-f]{16})\.jnl")
_HEAD = struct.Struct(">QqBb")
_SIZE = struct.Struct(">i")
_LEAST_RECORD = 26
_NO_TIME = -(2**63)
_WINDOW = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Columns:
    """A piece for Arrow."""

    records: int
    timestamps: Any
    time_validity: Any
    types: bytes
    keys: Any
    key_offsets: Any
    values: Any
    value_offsets: Any
    offset_width: int = 4


class UnverifiedJournal(UncompiledLayout):
    """A journal."""

    removal = "removed"

    def _directory(self, partition: int) -> str:
        return os.path.join(self._path, "jnl")

    def _base_of(self, name: str) -> int | None:
        found = _DATA.fullmatch(name)
        return int(found[1], 16) if found else None

    def _segment(self, partition: int, base: int) -> Segment:
        path = os.path.join(self._directory(partition), f"{base:016x}.jnl")
        return _Segment(path, base, self._place(partition))


class _Segment:
    """One data file, open."""

    def __init__(self, path: str, base: int, where: str) -> None:
        """`where`, as losses have it. Raises FileNotFoundError, OSError."""
        self._base = base
        self._path = path
        self._where = where
        self._file: BinaryIO = open(path, "rb", buffering=0)  # noqa: SIM115 - see __exit__

    def __enter__(self) -> _Segment:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, at: int, end: int, max_bytes: int, losses: Losses) -> Iterator[tuple[int, Piece]]:
        """Messages at:end, up to the first record that cannot be right."""
        for first, piece in _pieces(self._file, self._base, at, end, max_bytes):
            yield first, piece
            at = first + piece.records
        if at < end:
            losses.tell(
                "DISKQ_CORRUPT",
                f"{self._where}: offsets {at} to {end - 1} cannot be read: no record of offset {at} "
                f"({self._path})",
            )


def _pieces(
    file: BinaryIO, base: int, start: int, end: int, max_bytes: int
) -> Iterator[tuple[int, _Columns]]:
    """The messages start:end of a segment, up to the first record that cannot be right."""
    offset, position = base, 0
    wanted = window = min(max_bytes, _WINDOW)
    while offset < end:
        file.seek(position)
        data = file.read(wanted) or b""
        found = _Found(data, offset, start, end)
        if found.records:
            yield found.first, found.columns(data)
        offset, position = found.next_offset, position + found.end
        if found.end:
            wanted = window
        elif found.claimed > len(data) == wanted:
            wanted = found.claimed
        else:
            return


class _Found:
    """Where the records of a stretch of bytes, and their parts, begin."""

    def __init__(self, data: bytes, offset: int, start: int, end: int) -> None:
        """Of records that follow each other from message `offset` on those of start:end."""
        self.first = max(offset, start)
        self.edges = array.array("i", [0])
        self.times = array.array("q")
        self.types = bytearray()
        self.claimed = _LEAST_RECORD
        """Where no record is whole: so large is the first one."""
        at, size = 0, len(data)
        while offset < end and at + _LEAST_RECORD <= size:
            told, time, kind, key_size = _HEAD.unpack_from(data, at)
            key = at + _HEAD.size
            if told != offset or key_size < 0:
                break
            if key + key_size + _SIZE.size > size:
                self.claimed = _LEAST_RECORD + key_size
                break
            value = key + key_size + _SIZE.size
            (value_size,) = _SIZE.unpack_from(data, value - _SIZE.size)
            behind = value + value_size + _SIZE.size
            if value_size < 0:
                break
            if behind > size:
                self.claimed = behind - at
                break
            if _SIZE.unpack_from(data, behind - _SIZE.size)[0] != behind - at:
                break
            if offset >= start:
                self.edges.extend((key, key + key_size, value, value + value_size))
                self.times.append(time)
                self.types.append(kind)
            at, offset = behind, offset + 1
        self.end = at
        self.next_offset = offset
        self.records = len(self.times)

    def columns(self, data: bytes) -> _Columns:
        # Binaries from edge to edge: what is between, a key, the value's length, a value.
        count = len(self.edges) - 1
        slots = pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(self.edges), pa.py_buffer(data)]
        )
        nth = pa.array(array.array("i", range(0, count, 4)), pa.int32())
        keys, values = (slots.take(pc.add(nth, pa.scalar(which, pa.int32()))) for which in (1, 3))
        times = pa.Array.from_buffers(pa.int64(), self.records, [None, pa.py_buffer(self.times)])
        has_time = pc.not_equal(times, _NO_TIME)
        return _Columns(
            records=self.records,
            timestamps=times.buffers()[1],
            time_validity=None if pc.all(has_time).as_py() else has_time.buffers()[1],
            types=bytes(self.types),
            keys=keys.buffers()[2] or b"",
            key_offsets=keys.buffers()[1],
            values=values.buffers()[2] or b"",
            value_offsets=values.buffers()[1],
        )
