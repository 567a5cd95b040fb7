# Moments as people and programs write them. Law: strict, as sizes and durations are. A moment has a time
# zone; an hour that a zone has twice, or not at all, is refused with advice how to write it. All are
# nanoseconds since the Unix epoch.

from __future__ import annotations

import argparse
import re
import time
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from diskq.cli.core import units
from diskq.engine.log.timestamps import as_text as show_moment

__all__ = ["MOMENTS", "moment", "show_moment"]

MOMENTS = "2013-07-04T10:00:00Z, '2013-07-04 06:00 America/New_York', -1h (ago), now, or nanoseconds"
"""How a moment is written, for help and errors."""

_SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST, _LATEST = -(2**63), 2**63 - 1

# What other programs print times in, by nanoseconds.
_UNITS = {"seconds": 10**9, "milliseconds": 10**6, "microseconds": 10**3}

_NUMBER = re.compile(r"-?[0-9]+", re.ASCII)
_AGO = re.compile(r"-(.+)|(.+) ago", re.ASCII)
_DATE = re.compile(
    r"""
    (?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})
    (?:[Tt\ ](?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})
        (?::(?P<second>[0-9]{2})(?:\.(?P<part>[0-9]{1,9}))?)?
    )?
    (?:[ ]?(?P<utc>[Zz])
        |[ ]?(?P<sign>[+-])(?P<hours>[0-9]{2}):?(?P<minutes>[0-9]{2})
        |[ ](?P<zone>[A-Za-z][A-Za-z0-9_+/-]*)
    )?
    """,
    re.ASCII | re.VERBOSE,
)


def moment(text: str) -> int:
    """Return nanoseconds since the Unix epoch. An argparse type.

    Takes RFC 3339 to the nanosecond, a local time with a zone's name, a duration ago, now, or the number if
    it can be no other unit's.
    """
    try:
        found = _moment(text)
    except ValueError as failure:
        raise argparse.ArgumentTypeError(f"{text!r}: {failure}") from None
    if not _EARLIEST <= found <= _LATEST:
        raise argparse.ArgumentTypeError(f"{text!r} is outside of the years 1678 to 2261")
    return found


def _moment(text: str) -> int:
    if match := _DATE.fullmatch(text):
        return _from_date(match)
    if text == "now":
        return time.time_ns()
    if _NUMBER.fullmatch(text):
        return _from_number(int(text))
    if match := _AGO.fullmatch(text):
        return time.time_ns() - round(units.duration(match[1] or match[2]) * _SECOND)
    raise argparse.ArgumentTypeError(f"a moment is written {MOMENTS}; not {text!r}")


def _from_number(number: int) -> int:
    """Return the moment `number`, in nanoseconds. Raises ValueError if it may be meant in another unit."""
    for unit, size in _UNITS.items():
        if number and _EARLIEST <= number * size <= _LATEST:
            raise ValueError(
                f"as {unit} it is {show_moment(number * size)}, as nanoseconds {show_moment(number)}: "
                "write the date and time that is meant"
            )
    return number


def _from_date(match: re.Match[str]) -> int:
    """Return the moment. Raises ValueError if there is no such moment, or more than one."""
    date = [int(match[name] or 0) for name in ("year", "month", "day", "hour", "minute", "second")]
    zone = _zone(match)
    local = datetime(*date, tzinfo=zone)  # type: ignore[arg-type, misc]
    if isinstance(zone, ZoneInfo) and local.utcoffset() != local.replace(fold=1).utcoffset():
        comes = "comes twice" if local.astimezone(UTC).astimezone(zone) == local else "does not exist"
        offset = local.strftime("%z")
        raise ValueError(f"this time {comes} in {zone}: write its offset, such as {offset[:3]}:{offset[3:5]}")
    seconds = (local - _EPOCH) // timedelta(seconds=1)
    return seconds * _SECOND + int((match["part"] or "").ljust(9, "0"))


def _zone(match: re.Match[str]) -> tzinfo:
    if match["utc"]:
        return UTC
    if match["sign"]:
        hours, minutes = int(match["hours"]), int(match["minutes"])
        if hours > 23 or minutes > 59:
            raise ValueError("no time zone is that far from UTC")
        offset = timedelta(hours=hours, minutes=minutes)
        return timezone(-offset if match["sign"] == "-" else offset)
    if not match["zone"]:
        raise ValueError("in which time zone? Add Z, an offset (-04:00) or a name (Europe/Berlin)")
    try:
        return ZoneInfo(match["zone"])
    except (LookupError, ValueError, OSError):
        raise ValueError(f"no time zone is called {match['zone']}; one is America/New_York") from None
