# Threads that put synced messages into one engine, with one lock around each call and without, in turn. Law:
# both sides of a ratio are of one process, seconds apart.

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter

from benchmarks.stopwatch import Reading, Stopwatch, body_of
from diskq import Journal, PriorityStore, Queue, Stream

_BODY = body_of(100)
Put = Callable[[], object]


def queue(directory: str, *, seconds: float, threads: list[int]) -> dict[str, Reading]:
    with Queue(directory, "bench") as engine:
        return _by_turns(lambda: engine.put(_BODY, durability="synced"), seconds, threads)


def stream(directory: str, *, seconds: float, threads: list[int]) -> dict[str, Reading]:
    with Stream(directory) as engine:
        return _by_turns(lambda: engine.append(_BODY, durability="synced"), seconds, threads)


def journal(directory: str, *, seconds: float, threads: list[int]) -> dict[str, Reading]:
    with Journal(directory) as engine:
        return _by_turns(lambda: engine.append(_BODY, durability="synced"), seconds, threads)


def priority(directory: str, *, seconds: float, threads: list[int]) -> dict[str, Reading]:
    with PriorityStore(directory) as engine:
        default = engine.queue()
        return _by_turns(lambda: engine.put(default, _BODY, 0, durability="synced"), seconds, threads)


def _by_turns(put: Put, seconds: float, threads: list[int]) -> dict[str, Reading]:
    """Measure, in random order, each number of threads with a lock and without, each for `seconds`."""
    put()
    parts = [(way, count) for way in ("lock", "shared") for count in threads]
    readings = {}
    for way, count in random.sample(parts, len(parts)):
        lock = threading.Lock() if way == "lock" else nullcontext()
        readings[f"{way}, {count}"] = _put_for(seconds, put, count, lock)
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
