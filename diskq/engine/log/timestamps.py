# Moments as the files store them: nanoseconds since the Unix epoch, as a signed 64-bit number.

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

__all__ = ["as_text", "as_timestamp", "from_text"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SECOND = 1_000_000_000
_RFC_3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.([0-9]{1,9}))?([Zz]|[+-][0-9]{2}:[0-9]{2})",
    re.ASCII,
)


def as_timestamp(when: datetime | int) -> int:
    """Return nanoseconds since the Unix epoch, exactly.

    Raises TypeError for anything but a datetime or an int, ValueError for a datetime without a time zone or a
    number that 64 bits cannot hold.
    """
    if isinstance(when, datetime):
        if when.utcoffset() is None:
            raise ValueError(
                f"{when!r} has no time zone: add one, as in datetime.now(UTC) or when.astimezone()"
            )
        return (when - _EPOCH) // _MICROSECOND * 1000
    if isinstance(when, bool) or not isinstance(when, int):
        raise TypeError(f"a moment is an aware datetime or nanoseconds since 1970, not {type(when).__name__}")
    if not -(2**63) <= when < 2**63:
        raise ValueError(f"{when} ns since 1970 is more than 64 bits can hold")
    return when


def as_text(timestamp: int) -> str:
    """Return RFC 3339 text in UTC, to the nanosecond, without zeros at the end: as Go writes it."""
    seconds, part = divmod(timestamp, _SECOND)
    return f"{_whole(seconds)}{f'.{part:09}'.rstrip('0').rstrip('.')}Z" if part else f"{_whole(seconds)}Z"


def from_text(text: str) -> int:
    """Parse RFC 3339 text, to the nanosecond. Raises ValueError for anything else."""
    match = _RFC_3339.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a time like 2013-07-04T10:00:00.5Z")
    whole, part, zone = match.groups()
    try:
        return as_timestamp(_seconds(whole, zone) * _SECOND + int((part or "").ljust(9, "0")))
    except ValueError as failure:
        raise ValueError(f"{text!r} is not a time: {failure}") from None


# Consecutive messages mostly fall in the same second.
@lru_cache(256)
def _whole(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()


@lru_cache(256)
def _seconds(whole: str, zone: str) -> int:
    found = datetime.fromisoformat(whole.upper() + zone.upper())
    return (found - _EPOCH) // timedelta(seconds=1)
