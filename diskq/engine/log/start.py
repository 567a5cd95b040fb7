# Where reading begins, as a caller gives it: a word, an offset, or a moment.

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from diskq.engine.log.timestamps import as_timestamp

__all__ = ["STARTS", "Start", "StartWord", "checked_start"]

StartWord = Literal["oldest", "newest", "active"]
Start = StartWord | int | datetime

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
