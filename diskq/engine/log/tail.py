# Reading a log that is being written to. Law: what a writer of this thread has just written is had from it,
# and its files are not asked; a writer may come and go while it is read.

from __future__ import annotations

from typing import Any, Protocol

from diskq.engine.log.reader import C_co, LiveEnd, LogReader, M, S

__all__ = ["Lending", "LogTail"]


class Lending(LiveEnd, Protocol):
    """A `LiveEnd` that has the latest bytes in memory."""

    def lend(self, ahead: Any) -> bool:
        """Let it have what is written and still here of the bytes from its position on. False: nothing is."""


class LogTail(LogReader[M, C_co, S]):
    """A reader whose log gets a writer in this thread, and loses it, while it reads."""

    live: Lending | None

    def produced_by(self, live: Lending | None) -> None:
        """From now on, somebody in this thread writes to the log; None: nobody does any more."""
        self.live = live

    def fill(self) -> bool:
        ahead, live = self._ahead, self.live
        if not ahead.is_ready and self._segment is not None:
            if live is None:
                if self.follow():
                    return True
            elif self._young_from is not None:
                # It had caught up with the writer.
                if live.next_offset <= ahead.next_offset:
                    return False
                if self.catch_up():
                    return True
        return super().fill()

    def catch_up(self) -> bool:
        """Have what the writer has just written, where that is what comes next. False: `fill`, or wait.

        Nothing else must be ready.
        """
        live, segment = self.live, self._segment
        return (
            live is not None
            and segment is not None
            and self._young_from is not None
            and segment.base == live.base
            and live.lend(self._ahead)
        )

    def follow(self) -> bool:
        """As `catch_up`, behind a writer elsewhere, where its kind of log knows a short way."""
        return False
