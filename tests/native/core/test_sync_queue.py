# The queue of syncs for threads. Law: each sync is executed once and reported once, with its error.

from __future__ import annotations

import errno
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diskq._native.core.sync_queue import SyncQueue

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it waits for descriptors")

MOST_SECONDS = 30.0


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"x")
    yield descriptor
    os.close(descriptor)


class Threads:
    """Threads that serve a queue; what else than syncs they are given is a function."""

    def __init__(self, queue: SyncQueue, count: int) -> None:
        self.queue = queue
        queue.expect(count)
        self._threads = [threading.Thread(target=self._serve) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _serve(self) -> None:
        while (act := self.queue.serve()) is not None:
            act()
            self.queue.finished()

    def end(self) -> None:
        self.queue.end()
        for thread in self._threads:
            thread.join(MOST_SECONDS)
            assert not thread.is_alive()


@pytest.fixture
def queue() -> Iterator[SyncQueue]:
    queue = SyncQueue()
    queue.open()
    yield queue
    queue.close()


def reported(queue: SyncQueue, count: int) -> list[tuple[Any, OSError | None, int]]:
    """Wait for so many reports."""
    found: list[tuple[Any, OSError | None, int]] = []
    while len(found) < count:
        assert select.select([queue.open()], [], [], MOST_SECONDS)[0], "not readable"
        found += queue.executed()
    return found


def test_a_sync_is_reported_with_its_owner_and_its_duration(queue: SyncQueue, handle: int) -> None:
    threads = Threads(queue, 1)
    owner = object()
    assert not queue.add_sync((handle, handle), owner)
    ((found, failure, took),) = reported(queue, 1)
    assert found is owner
    assert failure is None
    assert 0 < took < 10**10
    assert queue.executed() == []
    assert not select.select([queue.open()], [], [], 0)[0]
    threads.end()


def test_a_sync_that_fails_is_reported_with_its_error(queue: SyncQueue, handle: int) -> None:
    threads = Threads(queue, 1)
    closed = os.dup(handle)
    os.close(closed)
    for handles in ((handle, closed), (closed, handle)):
        queue.add_sync(handles, "owner")
        ((_, failure, _),) = reported(queue, 1)
        assert isinstance(failure, OSError)
        assert (failure.errno, failure.strerror) == (errno.EBADF, os.strerror(errno.EBADF))
    threads.end()


@pytest.mark.parametrize("handles", [("3",), (2**40,), (None, 3)])
def test_what_is_no_handle_is_refused_and_not_added(queue: SyncQueue, handles: tuple[int, ...]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        queue.add_sync(handles, "owner")
    threads = Threads(queue, 1)
    threads.end()
    assert queue.executed() == []


def test_one_thread_does_everything_in_order(queue: SyncQueue, handle: int) -> None:
    done = []
    for number in range(100):
        queue.add_sync((handle,), number)
        queue.add(lambda number=number: done.append(number))
    threads = Threads(queue, 1)
    assert [owner for owner, _, _ in reported(queue, 100)] == list(range(100))
    threads.end()
    assert done == list(range(100))


def test_many_threads_lose_and_repeat_nothing(queue: SyncQueue, handle: int) -> None:
    threads = Threads(queue, 8)
    done = []
    for number in range(2000):
        queue.add_sync((handle,), number)
        if number % 10 == 0:
            queue.add(lambda number=number: done.append(number))
    found = reported(queue, 2000)
    threads.end()
    assert sorted(owner for owner, _, _ in found) == list(range(2000))
    assert sorted(done) == list(range(0, 2000, 10))


def test_it_says_whether_a_thread_is_free(queue: SyncQueue, handle: int) -> None:
    threads = Threads(queue, 2)
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        begun.release()
        go_on.wait(MOST_SECONDS)

    assert not queue.add(wait)
    assert not queue.add(wait)
    for _ in range(2):
        assert begun.acquire(timeout=MOST_SECONDS)
    assert queue.add_sync((handle,), "third")
    go_on.set()
    reported(queue, 1)
    assert not queue.add_sync((handle,), "fourth")
    reported(queue, 1)
    threads.end()


def test_what_was_added_before_the_end_is_done(queue: SyncQueue, handle: int) -> None:
    for number in range(10):
        queue.add_sync((handle,), number)
    threads = Threads(queue, 2)
    threads.end()
    assert sorted(owner for owner, _, _ in queue.executed()) == list(range(10))


def test_one_that_is_dropped_keeps_nothing_and_closes_its_descriptor(handle: int) -> None:
    owner = object()
    before = sys.getrefcount(owner)
    queue = SyncQueue()
    descriptor = queue.open()
    queue.add_sync((handle,), owner)
    queue.add(owner)
    assert sys.getrefcount(owner) == before + 2
    del queue
    assert sys.getrefcount(owner) == before
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_spin_ends_with_the_sync_and_leaves_no_signal(queue: SyncQueue, handle: int) -> None:
    threads = Threads(queue, 1)
    for number in range(200):
        queue.add_sync((handle,), number)
        found: list[tuple[Any, OSError | None, int]] = []
        while not found:
            found = queue.spin(10**9)
        ((owner, failure, _),) = found
        assert (owner, failure) == (number, None)
        assert queue.executed() == []
    threads.end()


def test_a_thread_that_waits_awake_misses_no_work(queue: SyncQueue, handle: int) -> None:
    """Work comes while it is awake, as it falls asleep, and when it sleeps; one piece, or two at once."""
    threads = Threads(queue, 2)
    done = []
    for number in range(1500):
        queue.add_sync((handle,), number)
        if number % 7 == 0:
            queue.add(lambda number=number: done.append(number))
        found: list[tuple[Any, OSError | None, int]] = []
        while not found:
            found = queue.spin(10**9)
        ((owner, failure, _),) = found
        assert (owner, failure) == (number, None)
        wait_until = time.perf_counter() + number % 16 * 20e-6
        while time.perf_counter() < wait_until:
            pass
    threads.end()
    assert sorted(done) == list(range(0, 1500, 7))


def test_a_thread_that_waits_awake_ends_with_the_others(queue: SyncQueue, handle: int) -> None:
    threads = Threads(queue, 2)
    queue.add_sync((handle,), "only")
    while not queue.spin(10**9):
        pass
    threads.end()


def test_a_spin_ends_after_its_time_and_later_syncs_are_signalled(queue: SyncQueue, handle: int) -> None:
    threads = Threads(queue, 1)
    began, used = time.monotonic(), time.thread_time()
    assert queue.spin(20_000_000) == []
    assert time.monotonic() - began >= 0.02
    assert time.thread_time() - used < 5  # it is awake: what others did meanwhile does not count
    queue.add_sync((handle,), "later")
    ((owner, _, _),) = reported(queue, 1)
    assert owner == "later"
    threads.end()


def test_other_threads_run_during_a_spin(queue: SyncQueue) -> None:
    ran = threading.Event()
    thread = threading.Thread(target=ran.set)
    switch = sys.getswitchinterval()
    sys.setswitchinterval(100)  # the interpreter's lock changes hands only where it is given up
    try:
        thread.start()
        # On a busy machine the other thread may not run within one spin.
        end = time.monotonic() + MOST_SECONDS
        while not ran.is_set():
            assert time.monotonic() < end
            queue.spin(50_000_000)
    finally:
        sys.setswitchinterval(switch)
        thread.join()
