# What a channel finds in the steps of every kind, whatever its format.

from __future__ import annotations

from diskq.engine.log.writer import LogWriter
from diskq.storage.fs import FileSystem
from diskq.storage.recovery import Repair

__all__ = ["LogSteps"]


class LogSteps:
    """Beside what is a kind's own: its writer, and what that knows."""

    _fs: FileSystem
    log: LogWriter

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """What was found wrong since the open began, and what was done about it."""
        return tuple(self.log.repairs)

    def _wall_clock_ns(self) -> int:
        return int(self._fs.wall_clock() * 1_000_000_000)
