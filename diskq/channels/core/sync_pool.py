# The threads that wait for the disk, so that the event loop never does. Law: a run of a loop has few of them
# for each disk, however many stores are open on it; they are started when needed, and end with its last
# store, or with the run, if a store was not closed. A disk that does not answer holds its own threads only.
#
# Syncs of open files are executed without the interpreter's lock, and the loop listens for their ends
# (_native/core/sync_queue.pyx). All other work is Python.

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from diskq._native.core.sync_queue import SyncQueue
from diskq.channels.core.event_loops.seam import EventLoop, running_event_loop
from diskq.storage.forks import notify_on_fork

__all__ = ["MOST_THREADS", "Executed", "SyncPool", "Work"]

Work = Callable[[], Callable[[], None]]
"""Called in a thread; what it returns is called when the thread is free again. Neither raises."""

MOST_THREADS = 8
"""The most threads of a run for one disk."""
# So many of them at most do work that may take seconds, such as writing a snapshot: syncs go on beside it.
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
        self._in_use = event_loop.scope()
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
            event_loop.spawn(pool._end_with_run, name="diskq threads")
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

    async def _end_with_run(self) -> None:
        """A store that was dropped unclosed never leaves: the threads end all the same."""
        try:
            with self._in_use:
                await self._event_loop.sleep_forever()
        finally:
            self._queue.end()

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
