# The calls that a synchronous program has on every engine, whatever its format. Law: they are the writer's,
# under the engine's name.

from __future__ import annotations

from diskq._native.core.thread_guard import ThreadGuard
from diskq.engine.log.steps import LogSteps
from diskq.engine.log.writer import LogWriter
from diskq.storage.closing import Closing
from diskq.storage.repairs import Repair

__all__ = ["LogEngine"]


class LogEngine(Closing):
    """The part that all engines that write a log have in common."""

    name: str

    def __init__(self, steps: LogSteps) -> None:
        self._shown = steps
        self.log: LogWriter = steps.log
        self.guard: ThreadGuard = steps.log.guard

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self._shown.content}, {self.log.condition}>"

    def close(self) -> None:
        """Sync everything, and close the files. Idempotent.

        Raises as `sync`; it is closed all the same.
        """
        self.log.close()

    def flush(self) -> None:
        """Write everything accepted that is not yet written. Raises DiskFullError, OSError."""
        self.log.flush()

    def sync(self) -> None:
        """Return when everything that was accepted is on stable storage.

        Raises DiskFullError if there is no space for messages held in memory; all others are durable then.
        Raises StorageFailedError, after which only `close` is allowed.
        """
        self.log.share_sync()

    @property
    def unsynced_bytes(self) -> int:
        """Bytes accepted since the open, and not yet on stable storage."""
        return self.log.unsynced_bytes

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """The repairs since the open began: what was found wrong, and what was done about it."""
        return tuple(self.log.repairs)
