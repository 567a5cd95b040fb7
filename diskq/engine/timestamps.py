# Moments, as the files have them: nanoseconds since the Unix epoch, 64 bits with a sign.

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["as_text", "as_timestamp"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SECOND = 1_000_000_000


def as_timestamp(when: datetime | int) -> int:
    """Nanoseconds since the Unix epoch, exactly.

    Raises TypeError for anything else, ValueError for a datetime without a time zone or a number that
    64 bits cannot hold.
    """
    if isinstance(when, datetime):
        if when.utcoffset() is None:
            raise ValueError(
                f"{when!r} has no time zone: say which, as in datetime.now(UTC) or when.astimezone()"
            )
        return (when - _EPOCH) // _MICROSECOND * 1000
    if isinstance(when, bool) or not isinstance(when, int):
        raise TypeError(f"a moment is an aware datetime or nanoseconds since 1970, not {type(when).__name__}")
    if not -(2**63) <= when < 2**63:
        raise ValueError(f"{when} ns since 1970 is more than 64 bits hold")
    return when


def as_text(timestamp: int) -> str:
    """RFC 3339 in UTC, to the nanosecond, without zeros at the end: as Go writes it."""
    seconds, part = divmod(timestamp, _SECOND)
    whole = (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()
    return f"{whole}{f'.{part:09}'.rstrip('0').rstrip('.')}Z"
