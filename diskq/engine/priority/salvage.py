# What is whole behind damage in a segment of the command log. Law: nothing is read but whole commands, by
# their own checksums; and where it is not known how many were lost, nobody says that it is.

from __future__ import annotations

from typing import NamedTuple

from diskq._native.priority.codec import END_MARKER, MARKER, scan
from diskq._native.priority.crc32_mpeg2 import crc32_mpeg2

__all__ = ["DamagedStretch", "pass_over"]

# The shortest command that adds a message: its kind, an empty name, a key, a size.
_LEAST_ADD = 14
_WIDE, _NARROW = 20, 16


class DamagedStretch(NamedTuple):
    """Bytes start:end hold no whole record, and behind them one begins, or the log ends."""

    start: int
    end: int
    records: int | None
    """So many were there; None: nobody knows."""
    has_added: bool
    """One of them may have added a message."""
    record: bytes = b""
    """The only one, whose payload is whole, with its head made anew."""


def pass_over(data: bytes, at: int, end: int) -> DamagedStretch:
    """From byte `at`, where no whole record begins, to the next one. The log ends at byte `end` of `data`."""
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
    """Does a whole record begin there?"""
    return bool(scan(memoryview(data)[at:], most=1, only_records=True).records)


def _made_anew(data: bytes, at: int, head: int, length: int) -> bytes:
    """The record where only its marker or its term is damaged; nothing where its checksum disagrees."""
    checked = data[at + head - 8 : at + head + length]
    if crc32_mpeg2(checked[8:]) != int.from_bytes(checked[:4], "big"):
        return b""
    return MARKER + (1).to_bytes(head - 12, "big") + checked + END_MARKER
