# Waiting for a stream that another process has open. Law: up to the given time; the error then names the
# holder.

from __future__ import annotations

import time
from typing import Any

from diskq.engine.stream.stream import Stream
from diskq.errors import LockedError
from diskq.options import StreamOptions

__all__ = ["LOCK_TIMEOUT", "open_patiently"]

LOCK_TIMEOUT = 30.0
"""The default, in seconds."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5


def open_patiently(
    path: str, options: StreamOptions | None = None, *, timeout: float, fs: Any = None
) -> Stream:
    """Return the stream, open for writing. Raises LockedError after `timeout` seconds, and as `Stream`."""
    deadline = time.monotonic() + timeout
    pause = _FIRST_PAUSE
    while True:
        try:
            return Stream(path, options=options, fs=fs)
        except LockedError:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
