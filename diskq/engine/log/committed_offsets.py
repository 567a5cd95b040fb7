# Several committed offsets, driven as one engine. Law: all that are due are replaced by one barrier, so the
# code that drives engines drives these.

from __future__ import annotations

import contextlib
import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import NoReturn, Self

from diskq.engine.log.committed_offset import CommittedOffset, joint_barrier
from diskq.engine.log.sync import Sync
from diskq.errors import DiskFullError, StorageFailedError
from diskq.storage.barrier import NO_ROOM
from diskq.storage.fs import FileSystem

__all__ = ["CommittedOffsets"]


class CommittedOffsets:
    """Committed offsets for one committer. For one thread at a time. A subclass lists them.

    They are driven as the log of an engine is: see log/sync.py.
    """

    gates = ()
    is_flushed = True
    is_half_unsynced = False
    is_log_ready = False
    has_one_lane = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.due_at = math.inf
        """When a sync is due at the latest, as of the last `note` or `prepare`."""
        self._failure: StorageFailedError | None = None
        self._moved: dict[CommittedOffset, None] = {}  # those with something to sync, and perhaps others

    @abstractmethod
    def _committed_offsets(self) -> Iterable[CommittedOffset]:
        """Return those that there are now."""

    def moved(self, committed_offset: CommittedOffset) -> None:
        """Note that it was moved, or opened: nothing walks over those that were not."""
        self._moved[committed_offset] = None

    @property
    def log(self) -> Self:
        return self

    def note(self) -> bool:
        """True if a sync is due."""
        self.due_at = self.deadline()
        return self._failure is None and any(offset.note() for offset in self._moved)

    def deadline(self) -> float:
        """Return when a sync is due at the latest."""
        return min((offset.deadline() for offset in self._moved), default=math.inf)

    def flush(self) -> None:
        """Do nothing: only a barrier writes."""

    def prepare(self, *, full: bool) -> Sync:
        """Prepare a sync of all commits so far. Execute it; then `complete` it, or `fail`."""
        if self._failure is not None:
            raise self._failure
        prepared = ((offset, offset.prepare()) for offset in self._moved)
        syncs = tuple((offset, sync) for offset, sync in prepared if sync is not None)
        self._moved = {offset: None for offset, _ in syncs}  # their sync may fail
        self.due_at = math.inf
        return Sync(barrier=joint_barrier(sync for _, sync in syncs), state=syncs)

    def prepare_log(self) -> None:
        """There is no redo log."""

    def complete(self, sync: Sync, is_replaced: bool) -> None:
        """Note that the sync was executed."""
        for offset, own in sync.state:
            offset.complete(own, is_replaced)

    def sync(self, fs: FileSystem) -> None:
        """Return when all commits so far are on stable storage, in a synchronous program.

        Raises DiskFullError if there is no space: they are still pending. Raises StorageFailedError.
        """
        sync = self.prepare(full=True)
        if not sync.state:
            return
        try:
            is_replaced = sync.barrier.execute(fs)
        except Exception as failure:
            self.fail(failure)
        except BaseException as interrupt:
            # Ctrl-C: how far it came is not known. It is raised as itself, to end the program.
            with contextlib.suppress(StorageFailedError):
                self.fail(interrupt)
            raise
        self.complete(sync, is_replaced)
        if not is_replaced:
            raise DiskFullError(self.name, f"{NO_ROOM}: commits are not durable")

    def fail(self, failure: BaseException) -> NoReturn:
        """Refuse all further calls: the disk broke a promise."""
        for offset in self._committed_offsets():
            try:
                offset.fail(failure)
            except StorageFailedError as failed:
                self._failure = failed
        if self._failure is None:
            self._failure = StorageFailedError(self.name)
        raise self._failure from failure
