# Where reading begins, as a caller gives it: a word, an offset, or a moment.

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from diskq.engine.log.timestamps import as_timestamp

__all__ = ["STARTS", "End", "Start", "StartWord", "checked_end", "checked_start"]

StartWord = Literal["oldest", "newest", "active"]
Start = StartWord | int | datetime
End = Literal["wait", "close"] | int

STARTS: tuple[StartWord, ...] = ("oldest", "newest", "active")


def checked_start(start: Start, words: Sequence[str] = STARTS) -> Start:
    """Return `start`. Raises TypeError, or ValueError: unknown word, negative offset, naive datetime."""
    if isinstance(start, str):
        if start not in words:
            raise ValueError(f"start is one of {', '.join(words)}, an offset or a moment, got {start!r}")
    elif isinstance(start, datetime):
        as_timestamp(start)
    elif isinstance(start, bool) or not isinstance(start, int):
        raise TypeError(f"start is a word, an offset or an aware datetime, not {type(start).__name__}")
    elif start < 0:
        raise ValueError(f"an offset is 0 or more, got {start}")
    return start


def checked_end(end: End) -> End:
    """Return `end`. Raises TypeError, or ValueError for an unknown word or a negative offset."""
    if isinstance(end, str):
        if end not in ("wait", "close"):
            raise ValueError(f'end is "wait", "close" or an offset, got {end!r}')
    elif isinstance(end, bool) or not isinstance(end, int):
        raise TypeError(f"end is a word or an offset, not {type(end).__name__}")
    elif end < 0:
        raise ValueError(f"an offset is 0 or more, got {end}")
    return end
