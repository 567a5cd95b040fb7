# Waiting in tests for what other threads and processes do, where there is nothing to wait on but time.

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["until"]


def until(
    is_so: Callable[[], object], what: str = "it did not come to that", *, seconds: float, pause: float
) -> None:
    """Return when it is so, asked every `pause` seconds. Fails, and says what, after `seconds`."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(pause)
