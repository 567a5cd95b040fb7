# What is looked over while verifying is measured, as works.py has it for the queue: things as their writers
# leave them, closed in order.

from __future__ import annotations

from collections.abc import Iterator
from time import process_time

from benchmarks.stopwatch import Reading, Stopwatch, body_of
from diskq import Journal, PriorityOptions, PriorityStore, Queue, Stream, StreamOptions
from diskq.tools.stores import stores_at
from diskq.tools.verify.verification import verify

NAME, KEY = "bench", b"user-042"


def looked_over(directory: str, *, kind: str, size: int, count: int) -> Reading:
    """One thing of `count` messages, of which every byte is verified."""
    _FILLS[kind](directory, size, count)
    (store,) = stores_at(directory)
    watch, began = Stopwatch(), process_time()
    found = verify(store)
    used = process_time() - began
    reading = watch.stop(count)
    assert (found.verdict, found.messages) == ("clean", count)
    return reading | {"gb_s": found.size / used / 1e9}


def _batches(count: int) -> Iterator[int]:
    yield from [1000] * (count // 1000)
    if count % 1000:
        yield count % 1000


def _queue(directory: str, size: int, count: int) -> None:
    with Queue(directory, NAME) as queue:
        for share in _batches(count):
            queue.put_many([body_of(size)] * share)


def _stream(directory: str, size: int, count: int) -> None:
    with Stream(directory, options=StreamOptions(partition_count=1)) as stream:
        for share in _batches(count):
            stream.append_many([(KEY, body_of(size))] * share)


def _journal(directory: str, size: int, count: int) -> None:
    with Journal(directory) as journal:
        for share in _batches(count):
            journal.append_many([(KEY, body_of(size))] * share)


def _jobs(directory: str, size: int, count: int) -> None:
    with PriorityStore(directory, options=PriorityOptions(preallocate=False), takes_snapshots=False) as store:
        for share in _batches(count):
            store.put_many(store.queue(), [body_of(size)] * share)


_FILLS = {"queue": _queue, "stream": _stream, "journal": _journal, "jobs": _jobs}
