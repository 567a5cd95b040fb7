# What executes the syncs of stores, so that the event loop never waits for a disk. Law: syncs are executed in
# threads; those of one lane one after the other, and a store has two: its files, and its redo log. All stores
# that a run of an event loop has on one disk share a few threads (`SyncPool`), started when needed; they end
# with the last of these stores, or with the run. A disk that does not answer holds its own threads only.
#
# Syncs of open files are executed without the interpreter's lock, and the loop listens for their ends
# (_native/core/sync_queue.pyx). All other work is Python.

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Protocol

import outcome

from diskq._native.core.sync_queue import SyncQueue
from diskq.channels.core.event_loops.seam import EventLoop, running_event_loop
from diskq.engine.log.sync import DurationCounter, Sync
from diskq.storage.barrier import Barrier
from diskq.storage.forks import notify_on_fork
from diskq.storage.fs import FileSystem, syncs_natively
from diskq.storage.status_file import DiskBound, StatusBoard

__all__ = ["MOST_THREADS", "Executed", "SyncExecutor", "SyncPool", "Work"]

OnExecuted = Callable[[Sync, outcome.Outcome[bool]], None]
OnDone = Callable[[outcome.Outcome[Any]], None]

_SECOND = 10**9

# Nanoseconds after which a sync that has not ended is waited for asleep: two slices.
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
        """Wait a short time for the sync of the redo log, without sleeping. The sync may be completed then.

        For a task that has nothing else to wait for; returns at once if the event loop has other tasks to
        run. Tasks of the same pass of the event loop, and input and output, wait as long. After a sync that
        took longer, the next calls return at once: 2 calls, then 4, and so on.
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
        with self._pool.changed:
            self.executed.count(now - began)
            longest = 0.0 if board is None else self.executed.take_longest()
        if board is not None:
            board.write(now, self.executed.now(), longest)
        return is_replaced


class _Lane:
    """Work that is done one after the other. All but `wait` is for the loop's thread."""

    __slots__ = ("_durations", "_pool", "_unreported", "_waiting", "is_idle", "syncing")

    def __init__(self, pool: SyncPool, durations: DurationCounter) -> None:
        """`durations` counts how long each successful sync took."""
        self._pool = pool
        self._durations = durations
        self._waiting: list[tuple[Callable[[], Any], OnDone]] | None = None  # jobs
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
            with self._pool.changed:  # two lanes may end at the same time
                self._durations.count(nanoseconds / _SECOND)
            on_executed(sync, outcome.Value(True))
        else:
            on_executed(sync, outcome.Error(failure))

    def run(self, job: Callable[[], Any], on_done: OnDone, *, is_long: bool = False) -> None:
        """Run `job` in a thread, and call `on_done` in the loop's with its outcome."""
        with self._pool.changed:
            self._unreported += 1
            if self._waiting is None:
                self._waiting = []
            self._waiting.append((job, on_done))
            if not self.is_idle:
                return
        self._begin(is_long=is_long)

    def _begin(self, *, is_long: bool) -> None:
        self.is_idle = False
        (self._pool.run_long if is_long else self._pool.run)(self._work)

    def _work(self) -> Callable[[], None]:
        waiting = self._waiting
        assert waiting is not None
        while True:
            job, on_done = waiting.pop(0)
            result = outcome.capture(job)
            with self._pool.changed:
                if not waiting:
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


# --- the threads of a disk ------------------------------------------------------------------------

Work = Callable[[], Callable[[], None]]
"""Called in a thread; what it returns is called when the thread is free again. Neither raises."""

MOST_THREADS = 8
"""The most threads of a run for one disk."""
# The most threads that do work which may take seconds, such as writing a snapshot: syncs go on beside it.
_MOST_LONG = MOST_THREADS // 2

_POOLS = "sync pools"


class Executed(Protocol):
    """Gets the report of a sync."""

    def executed(self, failure: OSError | None, nanoseconds: int, /) -> None:
        """Called in the loop's thread. Never raises."""


class SyncPool:
    """The threads of one run for one disk. `join` it, and `leave` it."""

    def __init__(self, event_loop: EventLoop, device: Hashable) -> None:
        self._event_loop = event_loop
        self._device = device
        self._queue = SyncQueue()
        self._threads: list[threading.Thread] = []
        self.changed = threading.Condition(threading.Lock())
        """For what the stores that use it share with its threads. Held for a moment."""
        self._lock = threading.Lock()  # a user may leave in any thread
        self._users = 0
        self._listening: Any = None  # it has a `cancel`
        self._in_use: Any = None  # the same
        self._is_left = False  # this is a child of the process that made it
        self._has_ended = False
        self._long: deque[Work] = deque()
        self._long_running = 0
        notify_on_fork(self)

    # --- its users --------------------------------------------------------------------------------

    @classmethod
    def join(cls, device: Hashable = None) -> SyncPool:
        """Return this run's pool for a disk, which is `FileSystem.device_of` a store's path.

        Raises RuntimeError if the system can start no thread.
        """
        event_loop = running_event_loop()
        pools: dict[Hashable, SyncPool] = event_loop.local.setdefault(_POOLS, {})
        pool = pools.get(device)
        if pool is None or not pool._enter():
            pool = cls(event_loop, device)
            pool._start_thread()
            pool._users = 1
            pools[device] = pool
            # A store that was dropped unclosed never leaves: the threads end all the same.
            pool._in_use = event_loop.at_end(pool._queue.end, name="diskq threads")
        return pool

    def _enter(self) -> bool:
        if self._is_left:
            return False  # and nobody will ever release the lock, if a thread of the parent held it
        with self._lock:
            if self._users:
                self._users += 1
            return self._users > 0

    def leave(self) -> None:
        """Leave it, in any thread but its own, with nothing left to do. The last user ends the threads."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self._queue.end()
        for thread in self._threads:
            thread.join()
        self._has_ended = True
        self.report(self._forget)

    def leave_to_parent(self, pid: int) -> None:
        """In a child of a fork, do nothing any more: the threads are the parent's."""
        self._is_left = True

    # --- work -------------------------------------------------------------------------------------

    def sync(self, handles: tuple[int, ...], owner: Executed) -> bool:
        """Sync the bytes and sizes of files, and report to `owner`. Handles are file descriptors.

        For the loop's thread. False: it cannot be done so, and nothing was begun.
        """
        if self._listening is None and not self._listen():
            return False
        if self._queue.add_sync(handles, owner):
            self._start_thread_if_possible()
        return True

    def spin(self, nanoseconds: int) -> bool:
        """Wait up to so long for the end of a sync, without sleeping; and report it. False: there was none.

        For the loop's thread.
        """
        executed = self._queue.spin(nanoseconds)
        for owner, failure, took in executed:
            owner.executed(failure, took)
        return bool(executed)

    def run(self, work: Work) -> None:
        """Call `work`, which takes about as long as a sync, in one of the threads."""
        if self._queue.add(work):
            self._start_thread_if_possible()

    def run_long(self, work: Work) -> None:
        """Call `work`, which may take seconds, in one of the threads."""
        with self._lock:
            self._long.append(work)
            if self._long_running >= _MOST_LONG:
                return
            self._long_running += 1
        self.run(self._run_long)

    def report(self, act: Callable[..., object], *args: object) -> None:
        """Call `act` in the loop's thread; if the run has ended, not at all."""
        self._event_loop.call_soon(act, *args)

    # --- threads ----------------------------------------------------------------------------------

    def _start_thread(self) -> None:
        name = f"diskq sync {len(self._threads) + 1}"
        thread = threading.Thread(target=_serve, args=(self._queue,), name=name, daemon=True)
        self._queue.expect(1)
        try:
            thread.start()
        except BaseException:
            self._queue.expect(-1)
            raise
        self._threads.append(thread)

    def _start_thread_if_possible(self) -> None:
        if len(self._threads) < MOST_THREADS:
            with contextlib.suppress(RuntimeError):  # those that there are do it later
                self._start_thread()

    def _run_long(self) -> Callable[[], None]:
        while True:
            with self._lock:
                if not self._long:
                    # Another thread has done this one's first work as well as its own.
                    self._long_running -= 1
                    return _do_nothing
                work = self._long.popleft()
            report = work()
            with self._lock:
                if not self._long:
                    self._long_running -= 1
                    return report
            report()

    # --- reports ----------------------------------------------------------------------------------

    def _listen(self) -> bool:
        """Begin to listen for the ends of syncs. False: no descriptor is left for that."""
        try:
            descriptor = self._queue.open()
        except OSError:
            return False
        self._listening = self._event_loop.on_readable(
            descriptor, self._report_all, self._end_listening, name="diskq syncs"
        )
        return True

    def _report_all(self) -> None:
        for owner, failure, took in self._queue.executed():
            owner.executed(failure, took)

    def _end_listening(self) -> None:
        if self._has_ended:
            self._queue.close()

    def _forget(self) -> None:
        pools = self._event_loop.local[_POOLS]
        if pools.get(self._device) is self:
            del pools[self._device]
        self._in_use.cancel()
        if self._listening is not None:
            self._listening.cancel()


def _do_nothing() -> None:
    """Report nothing."""


def _serve(queue: SyncQueue) -> None:
    while (work := queue.serve()) is not None:
        report = work()
        queue.finished()
        report()
