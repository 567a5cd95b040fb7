# Snapshots of a store that is in use. Law: the state is frozen in Trio's thread, at once, and written in
# another one; the log that it covers is removed when both are on stable storage.
#
#   requested     the log has grown, or a task calls `take`     `go_on`, in a turn of the loop
#   written       in the thread, while the store stays usable   `_note`, then `_take_over`
#   installed     when the log up to it is durable: a barrier   `_install`, in the thread again
#
# The threads are those that execute barriers, but only half of them do such work at a time: a task that waits
# for stable storage waits only for its own sync.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import outcome

from diskq.channels.core.commit_loop import Beside
from diskq.channels.core.sync_executor import SyncExecutor
from diskq.channels.core.waiting_line import Line
from diskq.engine.priority.snapshot import SnapshotStopped, StateSnapshot
from diskq.engine.priority.steps import PrioritySteps
from diskq.errors import DiskFullError, DiskqError, FullError, StorageFailedError
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem
from diskq.storage.log_events import Log

__all__ = ["Snapshots"]

log = Log("priority")


class Snapshots(Beside):
    """Takes a store's snapshots, one at a time. `ring` makes the loop call `go_on`; the other, sync."""

    def __init__(
        self,
        engine: PrioritySteps,
        fs: FileSystem,
        ring: Callable[[], None],
        ask_for_barrier: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._fs = fs
        self._ring = ring
        self._ask_for_barrier = ask_for_barrier
        self.line: Line[int] = Line()  # each waits for the snapshot of this number, or a later one
        self._executor: SyncExecutor | None = None
        self._snapshot: StateSnapshot | None = None  # that is under way
        self._begun = 0
        self._is_written = self._is_installing = False
        self._ended: outcome.Outcome[Any] | None = None  # of what the thread was given
        self._is_closing = False

    @property
    def is_busy(self) -> bool:
        """True while a snapshot is being taken."""
        return self._snapshot is not None

    async def take(self) -> bool:
        """Wait for a snapshot of the present state or a later one. False: nothing was new.

        `Cancelled` ends only the wait.
        """
        self._ring()
        return bool(await self.line.wait(self._begun + 1))

    # --- in a turn of the loop --------------------------------------------------------------------

    def go_on(self) -> None:
        """Take the next step if one is possible. Raises StorageFailedError."""
        if self._ended is not None:
            self._take_over(self._ended)
        if self._snapshot is None and not self._is_closing and (self.line or self._engine.wants_snapshot):
            self._begin()
        if self._is_written and not self._is_installing:
            self._install()

    def _begin(self) -> None:
        self._begun += 1
        try:
            if self._executor is None:
                self._executor = SyncExecutor(self._fs, self._engine.path)
        except (RuntimeError, OSError) as failure:
            # No thread can be started, for example: it is tried again at the next call of `take`.
            self._engine.put_off_snapshots()
            self._failed(failure)
            return
        try:
            snapshot = self._engine.begin_snapshot()
        except StorageFailedError:
            raise
        except (DiskqError, OSError) as failure:
            self._failed(failure)
            return
        if snapshot is None:
            self._wake(lambda: outcome.Value(False))
            return
        self._snapshot = snapshot
        self._executor.do(snapshot.write, self._note)

    def _note(self, ended: outcome.Outcome[Any]) -> None:
        self._ended = ended
        self._ring()

    def _take_over(self, ended: outcome.Outcome[Any]) -> None:
        """Take over the outcome of the thread's work."""
        snapshot, self._ended = self._snapshot, None
        assert snapshot is not None
        if self._is_installing:
            self._is_installing = self._is_written = False
            self._snapshot = None
            try:
                ended.unwrap()
            except OSError as failure:
                self._engine.log.fail(failure)
            self._engine.mark_snapshot(snapshot)
            self._wake(lambda: outcome.Value(True))
            return
        try:
            ended.unwrap()
        except (OSError, SnapshotStopped) as failure:
            self._snapshot = None
            self._engine.drop_snapshot(snapshot)
            self._failed(failure)
        else:
            self._is_written = True

    def _install(self) -> None:
        assert self._snapshot is not None
        assert self._executor is not None
        if not self._engine.is_durable(self._snapshot.lsn):
            self._ask_for_barrier()
            return
        barrier = self._engine.snapshot_barrier(self._snapshot)
        self._is_installing = True
        self._executor.do(lambda: barrier.execute(self._fs), self._note)

    # --- waiting tasks ----------------------------------------------------------------------------

    def _failed(self, failure: Exception) -> None:
        if isinstance(failure, SnapshotStopped):
            return  # the waiting tasks got ClosedResourceError
        if not isinstance(failure, StorageFailedError):
            log.report(
                "no_snapshot",
                "%s: no snapshot, the log stays: %s",
                self._engine.path,
                failure,
                path=self._engine.path,
                error=failure,
            )
        self._wake(lambda: outcome.Error(self._copy_of(failure)))

    def _copy_of(self, failure: Exception) -> Exception:
        """Return a new exception for a waiting task: two tasks must not raise the same one."""
        if isinstance(failure, OSError) and failure.errno not in FULL_DISK_ERRNOS:
            copy: Exception = OSError(*failure.args)
        elif isinstance(failure, OSError | FullError):
            copy = DiskFullError(self._engine.path, f"no room for a snapshot ({failure})")
        else:
            copy = failure
        copy.__cause__ = failure if copy is not failure else failure.__cause__
        return copy

    def _wake(self, make: Callable[[], outcome.Outcome[Any]]) -> None:
        while self.line and self.line.first <= self._begun:
            self.line.wake_first(make())

    # --- the end ----------------------------------------------------------------------------------

    def begin_to_close(self) -> None:
        """Begin no new snapshot; one that is being written is given up, a written one is installed."""
        self._is_closing = True
        if self._snapshot is not None and not self._is_written:
            self._snapshot.stop()

    def close(self) -> None:
        """End the thread, and wait for it. Not to be called in Trio's thread."""
        if self._snapshot is not None:
            self._snapshot.stop()
        if self._executor is not None:
            self._executor.stop()
