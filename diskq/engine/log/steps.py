# What a channel finds in the steps of every kind, whatever its format.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from diskq.engine.log.format import Format, SyncOptions
from diskq.engine.log.writer import MOST_WAITING, LogWriter
from diskq.storage.fs import AnyPath, FileSystem, as_path
from diskq.storage.log_events import Log
from diskq.storage.repairs import Repair

__all__ = ["DirectorySteps", "LogSteps"]


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

    def log_handles(self) -> tuple[int, ...] | None:
        return None

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
