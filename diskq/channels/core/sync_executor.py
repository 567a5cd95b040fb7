# What executes the syncs of one store. Law: they are executed in threads, which the store shares with the
# others of its run on the same disk (sync_pool.py); those of one lane one after the other.

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import outcome

from diskq.channels.core.event_loops.seam import running_event_loop
from diskq.channels.core.sync_pool import SyncPool
from diskq.engine.log.sync import Sync
from diskq.storage.barrier import Barrier
from diskq.storage.fs import FileSystem, syncs_natively
from diskq.storage.status_file import DiskBound, StatusBoard
from diskq.storage.sync_times import DurationCounter

__all__ = ["SyncExecutor"]

OnExecuted = Callable[[Sync, outcome.Outcome[bool]], None]
OnDone = Callable[[outcome.Outcome[Any]], None]

_SECOND = 10**9

# A sync that has not ended after so many nanoseconds is waited for asleep: two slices.
_LONGEST_SPIN = 200_000
_MOST_MISSES = 10
# The thread that syncs, or the disk's driver, needs a processor, too.
_CAN_SPIN = len(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)) > 1


class SyncExecutor:
    """Executes syncs, one of the files at a time. Made in a task, used by its run."""

    def __init__(self, fs: FileSystem, path: str, status: str | None = None) -> None:
        """`path` is the store's directory; `status` the status file for other processes
        (storage/status_file.py).

        Raises RuntimeError if the system can start no thread, and OSError.
        """
        self._event_loop = running_event_loop()
        self._fs = fs
        self._is_native = syncs_natively(fs)
        self.board = None if status is None else StatusBoard(fs, status)
        self.executed = DurationCounter()
        """How long barriers took on the disk, without those that failed."""
        self._pool = SyncPool.join(fs.device_of(path))
        self._files = _Lane(self._pool, self.executed)
        self._log = _Lane(self._pool, self.executed)
        self._misses = self._spins_left_out = 0
        self._is_noting = False  # a thread writes the status file

    def begin(self, sync: Sync, on_executed: OnExecuted, bound: Callable[[], DiskBound]) -> None:
        """Begin to execute a sync: one of the redo log at the same time as one of the files.

        At its end `on_executed` is called in the loop's thread with the sync, and with what `Barrier.execute`
        returned or raised. `bound` is asked if a note of the status file follows the sync.
        """
        lane = self._log if sync.is_of_log else self._files
        barrier, board = sync.barrier, self.board
        if board is None or self._is_noting or self._fs.monotonic() < board.due_at:
            # Without Python, if it is of open files alone.
            if self._is_native and lane.is_idle and (sync.is_of_log or barrier.is_of_files):
                lane.is_idle = False
                lane.syncing = sync, on_executed
                if self._pool.sync(barrier.files, lane):
                    return
                lane.is_idle = True
                lane.syncing = None
            lane.run(lambda: self._execute(barrier, None), partial(on_executed, sync))
            return
        self._is_noting = True  # one lane at a time
        board.bound = bound()

        def noted(executed: outcome.Outcome[bool]) -> None:
            self._is_noting = False
            on_executed(sync, executed)

        lane.run(lambda: self._execute(barrier, board), noted)

    def spin(self) -> None:
        """Wait a short time for the sync of the redo log, without sleeping. It may be completed then.

        For a task that has nothing else to wait for, and not if the loop has others to run; those of the same
        pass of its loop, and input and output, wait as long. After a sync that took longer it is not tried
        again for a while, twice as long each time.
        """
        if not _CAN_SPIN or self._log.syncing is None:
            return
        if self._spins_left_out:
            self._spins_left_out -= 1
        elif self._event_loop.has_runnable_tasks():
            pass
        elif self._pool.spin(_LONGEST_SPIN):
            self._misses = 0
        else:
            self._misses = min(self._misses + 1, _MOST_MISSES)
            self._spins_left_out = 1 << self._misses

    def do(self, job: Callable[[], Any], on_done: OnDone) -> None:
        """Run `job` after all earlier work, and call `on_done` in the loop's thread with its outcome."""
        self._files.run(job, on_done, is_long=True)

    def stop(self) -> None:
        """Wait for the end of the last job. No sync may be left to execute."""
        self._files.wait()
        self._log.wait()
        if self.board is not None:
            with contextlib.suppress(OSError):  # other processes only display it
                self.board.close()
        self._pool.leave()

    def _execute(self, barrier: Barrier, board: StatusBoard | None) -> bool:
        began = self._fs.monotonic()
        is_replaced = barrier.execute(self._fs)
        now = self._fs.monotonic()
        self.executed.count(now - began)
        if board is not None:
            board.write(now, self.executed.now(), self.executed.take_longest())
        return is_replaced


class _Lane:
    """Work that is done one after the other. All but `wait` is for the loop's thread."""

    __slots__ = ("_durations", "_pool", "_unreported", "_waiting", "is_idle", "syncing")

    def __init__(self, pool: SyncPool, durations: DurationCounter) -> None:
        """`durations` counts how long each successful sync took."""
        self._pool = pool
        self._durations = durations
        self._waiting: list[tuple[Callable[[], Any], OnDone]] = []  # jobs
        self._unreported = 0  # jobs
        self.is_idle = True
        """True if nothing is executed, and no thread takes what is waiting."""
        self.syncing: tuple[Sync, OnExecuted] | None = None
        """The sync that is being executed without Python, and whom to report it to."""

    def executed(self, failure: OSError | None, nanoseconds: int) -> None:
        assert self.syncing is not None
        (sync, on_executed), self.syncing = self.syncing, None
        if self._waiting:
            self._begin(is_long=True)
        else:
            self.is_idle = True
        if failure is None:
            self._durations.count(nanoseconds / _SECOND)
            on_executed(sync, outcome.Value(True))
        else:
            on_executed(sync, outcome.Error(failure))

    def run(self, job: Callable[[], Any], on_done: OnDone, *, is_long: bool = False) -> None:
        """Run `job` in a thread, and call `on_done` in the loop's with its outcome."""
        with self._pool.changed:
            self._unreported += 1
            self._waiting.append((job, on_done))
            if not self.is_idle:
                return
        self._begin(is_long=is_long)

    def _begin(self, *, is_long: bool) -> None:
        self.is_idle = False
        (self._pool.run_long if is_long else self._pool.run)(self._work)

    def _work(self) -> Callable[[], None]:
        while True:
            job, on_done = self._waiting.pop(0)
            result = outcome.capture(job)
            with self._pool.changed:
                if not self._waiting:
                    self.is_idle = True
                    return lambda: self._report(on_done, result)
            self._report(on_done, result)

    def _report(self, on_done: OnDone, result: outcome.Outcome[Any]) -> None:
        self._pool.report(on_done, result)
        with self._pool.changed:
            self._unreported -= 1
            self._pool.changed.notify_all()

    def wait(self) -> None:
        """Return when all jobs are done, in any thread but theirs."""
        assert self.syncing is None, "a sync is being executed"
        with self._pool.changed:
            self._pool.changed.wait_for(lambda: not self._unreported)
