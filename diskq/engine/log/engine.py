# What all engines that write a log have in common, whatever the format: how a message is appended, the steps
# that a channel finds in every kind, and the calls of a synchronous program. Law: the work is the writer's.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from diskq._native.core.append_buffer import Mode
from diskq._native.core.gate import Admission
from diskq._native.core.thread_guard import ThreadGuard
from diskq.engine.log.format import Format, SyncOptions
from diskq.engine.log.writer import MOST_WAITING, LogWriter
from diskq.options import Durability
from diskq.storage.closing import Closing
from diskq.storage.fs import AnyPath, FileSystem, as_path
from diskq.storage.log_events import Log
from diskq.storage.repairs import Repair

__all__ = ["MODES", "Admission", "DirectorySteps", "LogEngine", "LogSteps", "Mode", "admission"]

MODES: dict[Durability, Mode] = {"memory": Mode.HELD, "written": Mode.STAGED, "synced": Mode.WRITTEN}
"""By durability. "memory": a later flush writes the message; "synced": the caller syncs it afterwards."""


def admission(can_yield: bool) -> Admission:
    """Return what to ask of the gate for a caller that can, or cannot, let other tasks run."""
    return Admission.TIMED if can_yield else Admission.COUNTED


class LogSteps:
    """The part that the steps of all kinds have in common: the writer, and what it knows."""

    _fs: FileSystem
    log: LogWriter
    name: str

    @property
    def content(self) -> str:
        """What it holds, in a few words."""
        raise NotImplementedError

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """The repairs since the open began: what was found wrong, and what was done about it."""
        return tuple(self.log.repairs)

    def flush(self) -> None:
        """Write everything accepted that is not yet written. Raises OSError, DiskFullError."""
        raise NotImplementedError

    def flush_records(self) -> bool:
        self.flush()
        return False

    is_log = False
    follows_log = False

    def logged(self, state: Any) -> None:
        """Not called: what is durable in the redo log alone is of no interest to this format."""

    def _wall_clock_ns(self) -> int:
        return int(self._fs.wall_clock() * 1_000_000_000)


class DirectorySteps(LogSteps):
    """The steps of a kind that has its own directory: of all but queues. A subclass is a `Format`."""

    def __init__(
        self,
        fs: FileSystem,
        path: AnyPath,
        options: SyncOptions,
        topic: Log,
        what: str,
        clock: Callable[[], float] | None,
        time_slice: float | None,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        """`what` comes before the path in errors. For the rest see `LogWriter`."""
        self._fs = fs
        self.path = self.name = as_path(path)
        self._what = f"{what} {self.path}"
        self.log = LogWriter(
            fs,
            cast(Format, self),
            options,
            topic,
            path=self.path,
            what=self._what,
            clock=clock,
            time_slice=time_slice,
            most_waiting=most_waiting,
        )
        self.guard = self.log.guard

    def obstacle(self, size: int) -> str | None:
        """Return why `size` more bytes cannot be accepted now: "unsynced" if they wait for a sync."""
        self.log.check_usable()
        return "unsynced" if self.log.is_too_much_unsynced(size) else None

    def gather(self, full: bool) -> None:
        self.log.flush()

    def wants_metadata(self, full: bool) -> bool:
        return self.log.is_point_due(full)


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
