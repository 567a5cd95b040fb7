# Reading a log that is being written to. Law: what a writer of this thread has just written comes from its
# memory, and its files are not asked; a writer may come and go while the log is read.

from __future__ import annotations

from typing import Any, Protocol

from diskq.engine.log.reader import C_co, LiveEnd, LogReader, M, S

__all__ = ["BufferedEnd", "LogTail"]


class BufferedEnd(LiveEnd, Protocol):
    """A `LiveEnd` that has the latest bytes in memory."""

    def lend(self, ahead: Any) -> bool:
        """Pass to `ahead` the bytes after its position that are in memory. False if there are none."""


class LogTail(LogReader[M, C_co, S]):
    """A reader whose log may get a writer in this thread, and lose it, during reading."""

    live: BufferedEnd | None

    def set_live(self, live: BufferedEnd | None) -> None:
        """Set the writer of the log in this thread; None if there is none any more."""
        self.live = live

    def fill(self) -> bool:
        ahead, live = self._ahead, self.live
        if not ahead.is_ready and self._segment is not None:
            if live is None:
                if self.follow():
                    return True
            elif self._caught_up_at is not None:
                # The reader had caught up with the writer.
                if live.next_offset <= ahead.next_offset:
                    return False
                if self.catch_up():
                    return True
        return super().fill()

    def catch_up(self) -> bool:
        """Take what the writer has just written, if it comes next. False: call `fill`, or wait.

        Nothing else must be ready.
        """
        live, segment = self.live, self._segment
        return (
            live is not None
            and segment is not None
            and self._caught_up_at is not None
            and segment.base == live.base
            and live.lend(self._ahead)
        )

    def follow(self) -> bool:
        """Do as `catch_up` for a writer elsewhere, if the kind of log has a fast path for that."""
        return False
