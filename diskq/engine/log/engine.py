# What a synchronous program calls of every engine, whatever its format. Law: it is the writer's, under the
# engine's name.

from __future__ import annotations

from diskq._native.core.thread_guard import ThreadGuard
from diskq.engine.log.writer import LogWriter
from diskq.storage.closing import Closing
from diskq.storage.repairs import Repair

__all__ = ["LogEngine"]


class LogEngine(Closing):
    """An engine that writes a log: beside what is its own."""

    def __init__(self, log: LogWriter) -> None:
        self.log = log
        self.guard: ThreadGuard = log.guard

    def close(self) -> None:
        """Sync everything, and let go of the files. Idempotent.

        Raises as `sync`; it is closed all the same.
        """
        self.log.close()

    def flush(self) -> None:
        """Write what was accepted and waits to be written. Raises DiskFullError, OSError."""
        self.log.flush()

    def sync(self) -> None:
        """Return when everything that was accepted is on stable storage.

        Raises DiskFullError where messages held in memory find no room; all others are then. Raises
        StorageFailedError, after which it is of no use but to be closed.
        """
        self.log.sync()

    @property
    def unsynced_bytes(self) -> int:
        """Accepted since the open, and not yet on stable storage."""
        return self.log.unsynced_bytes

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """What was found wrong since the open began, and what was done about it."""
        return tuple(self.log.repairs)
