# Threads that put synced messages into one engine, with one lock around each call and without, in turn. Law:
# both sides of a ratio are of one process, seconds apart.
#
# `delay` is a disk whose syncs take that many seconds longer. `bare` is what Python and the disk allow:
# threads that append to a list, and wait for the sync of a page.

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter, sleep

from benchmarks.stopwatch import Reading, Stopwatch, body_of
from diskq import Journal, PriorityStore, Queue, Stream
from diskq.storage.fs import OsFileSystem

_BODY = body_of(100)
_PAGE = bytes(4096)
Put = Callable[[], object]


class _DelayingDisk(OsFileSystem):
    """The disk of this machine, whose syncs take `delay` seconds longer."""

    def __init__(self, delay: float) -> None:
        super().__init__()
        self._delay = delay

    def sync_files(self, handles: Sequence[int]) -> None:
        sleep(self._delay)
        super().sync_files(handles)


def _disk(delay: float) -> _DelayingDisk | None:
    return _DelayingDisk(delay) if delay else None


def queue(directory: str, *, seconds: float, threads: list[int], delay: float = 0.0) -> dict[str, Reading]:
    with Queue(directory, "bench", fs=_disk(delay)) as engine:
        return _by_turns(lambda: engine.put(_BODY, durability="synced"), seconds, threads)


def stream(directory: str, *, seconds: float, threads: list[int], delay: float = 0.0) -> dict[str, Reading]:
    with Stream(directory, fs=_disk(delay)) as engine:
        return _by_turns(lambda: engine.append(_BODY, durability="synced"), seconds, threads)


def journal(directory: str, *, seconds: float, threads: list[int], delay: float = 0.0) -> dict[str, Reading]:
    with Journal(directory, fs=_disk(delay)) as engine:
        return _by_turns(lambda: engine.append(_BODY, durability="synced"), seconds, threads)


def priority(directory: str, *, seconds: float, threads: list[int], delay: float = 0.0) -> dict[str, Reading]:
    with PriorityStore(directory, fs=_disk(delay)) as engine:
        default = engine.queue()
        return _by_turns(lambda: engine.put(default, _BODY, 0, durability="synced"), seconds, threads)


def bare(directory: str, *, seconds: float, threads: list[int], delay: float = 0.0) -> dict[str, Reading]:
    handle = os.open(os.path.join(directory, "bench"), os.O_RDWR | os.O_CREAT)

    def sync() -> None:
        os.pwrite(handle, _PAGE, 0)
        if delay:
            sleep(delay)
        os.fdatasync(handle)

    try:
        return _by_turns(_Sharing(sync).put, seconds, threads, alone=sync)
    finally:
        os.close(handle)


class _Sharing:
    """Threads that share a sync, with a lock of its own for each that waits: one leads, the others follow."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._lock = threading.Lock()
        self._line: list[threading.Lock] = []
        self._is_led = False
        self._next: threading.Lock | None = None

    def put(self) -> None:
        mine = threading.Lock()
        mine.acquire()
        with self._lock:
            self._line.append(mine)
            leads, self._is_led = not self._is_led, True
        if not leads:
            mine.acquire()
            if mine is not self._next:
                return
        with self._lock:
            line, self._line = self._line, []
        self._sync()
        with self._lock:
            self._next = self._line[0] if self._line else None
            self._is_led = self._next is not None
        if self._next is not None:
            self._next.release()
        for other in line:
            if other is not mine:
                other.release()


def _by_turns(put: Put, seconds: float, threads: list[int], alone: Put | None = None) -> dict[str, Reading]:
    """Measure, in random order, each number of threads with a lock and without, each for `seconds`.

    `alone` is the call within the lock, if it is another one.
    """
    put()
    parts = [(way, count) for way in ("lock", "shared") for count in threads]
    readings = {}
    for way, count in random.sample(parts, len(parts)):
        is_locked = way == "lock"
        lock = threading.Lock() if is_locked else nullcontext()
        readings[f"{way}, {count}"] = _put_for(seconds, (is_locked and alone) or put, count, lock)
    return readings


def _put_for(seconds: float, put: Put, threads: int, lock: AbstractContextManager[object]) -> Reading:
    done = [0] * threads
    failures: list[BaseException] = []
    watch, end = Stopwatch(), perf_counter() + seconds

    def produce(number: int) -> None:
        try:
            while perf_counter() < end:
                with lock:
                    put()
                done[number] += 1
        except BaseException as failure:
            failures.append(failure)

    crowd = [threading.Thread(target=produce, args=(number,)) for number in range(threads)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    if failures:
        raise failures[0]
    return watch.stop(max(1, sum(done)))
