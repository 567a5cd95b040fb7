"""The entries of diskq's logs by `struct` alone: the judge of the encoder and the reader.

Written from docs/format/log.md and from nothing of ours.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

_ENTRY = struct.Struct("<IIQQQQ")
_PART = struct.Struct("<IIqqII")
_TO_THE_END = 0xFFFF_FFFF

Part = tuple[int, int, int, int, bytes]
"""Group, kind, file, position, bytes."""


class Entry(NamedTuple):
    size: int
    number: int
    sequence: int
    floor: int
    parts: list[Part]


def entry_at(data: bytes, at: int = 0) -> Entry | None:
    """The entry at this byte; None if there is none, or it is not whole."""
    if len(data) - at < _ENTRY.size:
        return None
    size, crc, number, sequence, floor, check = _ENTRY.unpack_from(data, at)
    numbers, content = data[at + 8 : at + 32], data[at + _ENTRY.size : at + size]
    if size < _ENTRY.size or len(data) - at < size or check != crc32c(numbers):
        return None
    return Entry(size, number, sequence, floor, parts(content)) if crc == crc32c(numbers + content) else None


def parts(content: bytes) -> list[Part]:
    found: list[Part] = []
    while len(content) >= _PART.size:
        *head, length, _ = _PART.unpack_from(content)
        end = len(content) if length == _TO_THE_END else min(len(content), _PART.size + length)
        found.append((*head, content[_PART.size : end]))
        content = content[end:]
    return found
