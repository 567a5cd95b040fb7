# Finding whole commands after damage in a segment of the command log. Law: only whole commands are read, by
# their own checksums; and an unknown number of lost commands is reported as unknown.

from __future__ import annotations

from typing import NamedTuple

from diskq._native.priority.codec import END_MARKER, MARKER, scan
from diskq._native.priority.crc32_mpeg2 import crc32_mpeg2

__all__ = ["DamagedStretch", "pass_over"]

# The shortest command that adds a message: its kind, an empty name, a key, a size.
_LEAST_ADD = 14
_WIDE, _NARROW = 20, 16


class DamagedStretch(NamedTuple):
    """Bytes start:end have no whole record, and after them one begins, or the log ends."""

    start: int
    end: int
    records: int | None
    """How many records they had; None if unknown."""
    has_added: bool
    """True if one of them may have added a message."""
    record: bytes = b""
    """The only record, if its body is whole, with its head made anew."""


def pass_over(data: bytes, at: int, end: int) -> DamagedStretch:
    """Return the damaged bytes from `at` up to the next record. The log ends at byte `end` of `data`."""
    for head in (_WIDE, _NARROW):
        if at + head > end:
            continue
        length = int.from_bytes(data[at + head - 4 : at + head], "big")
        payload_end = at + head + length
        for stop in {payload_end, payload_end + (-length & 3)}:
            if stop == end or (stop < end and _begins(data, stop)):
                record = _made_anew(data, at, head, length)
                return DamagedStretch(at, stop, 1, not record and length >= _LEAST_ADD, record)
    following = at
    while (following := data.find(MARKER, following + 1, end)) >= 0:
        if _begins(data, following):
            return DamagedStretch(at, following, None, True)
    return DamagedStretch(at, max(at, end), None, True)


def _begins(data: bytes, at: int) -> bool:
    """True if a whole record begins at this byte."""
    return bool(scan(memoryview(data)[at:], most=1, only_records=True).records)


def _made_anew(data: bytes, at: int, head: int, length: int) -> bytes:
    """Return the record with a new marker and term; empty if the checksum of the other bytes disagrees."""
    checked = data[at + head - 8 : at + head + length]
    if crc32_mpeg2(checked[8:]) != int.from_bytes(checked[:4], "big"):
        return b""
    return MARKER + (1).to_bytes(head - 12, "big") + checked + END_MARKER
