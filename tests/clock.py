# The disk, at a time of our own.

from __future__ import annotations

from diskq.storage.fs import OsFileSystem

__all__ = ["Clock"]


class Clock(OsFileSystem):
    """The real disk; but its monotonic clock, in seconds, stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now
