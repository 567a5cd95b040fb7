"""Threads that share one engine without a lock: python -m tests.engine.crowd NAME DIRECTORY SEED...

Prints one line of JSON for each seed: the messages that were accepted, those that were taken, those that
are left, how often a thread was seen to wait, and unexpected errors.
"""

# Law: the switch interval is the shortest there is and the files are small, so that threads meet in puts,
# takes, batches, syncs and rolls. Any error is reported.

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import diskq
from diskq.storage.fs import OsFileSystem
from diskq.tools.convert.sources import entries
from diskq.tools.stores import stores_at
from tests.torture.messages import message, number_of

__all__ = ["CROWDS", "meet", "number_in"]

THREADS = 3
CALLS = 30
"""Calls of each thread."""
COPIES = 150
WORDS = ("memory", "written", "written", "synced")


def body_of(number: int) -> bytes:
    """Each seventh is so large that the interpreter's lock is released while it is written."""
    return message(number) * (COPIES if number % 7 == 0 else 1)


def number_in(body: bytes) -> int | None:
    """None for a message that was not put."""
    first = bytes(body[: len(body) // COPIES])
    return number_of(first if len(body) % COPIES == 0 and body == first * COPIES else bytes(body))


class QuickDisk(OsFileSystem):
    """Syncs cost nothing, and let the other threads run: this is about threads, without power cuts."""

    def sync_files(self, handles: Sequence[int]) -> None:
        os.sched_yield()

    def sync_directory(self, path: str) -> None:
        os.sched_yield()


# --- what is shared ---------------------------------------------------------------------------------


class Shared:
    """An engine: its calls, in a few words."""

    def __init__(self, engine: Any, directory: str) -> None:
        self.engine = engine
        self.directory = directory

    def put(self, body: bytes, word: Any) -> object: ...

    def put_many(self, bodies: list[bytes], word: Any) -> object: ...

    def take(self, count: int) -> list[bytes]:
        return []

    def look(self) -> object: ...

    def sync(self) -> None:
        self.engine.sync()

    def read_all(self) -> list[bytes]:
        """Return what is there after it was closed."""
        return [each.value for store in stores_at(self.directory) for each in entries(store)]


class SharedQueue(Shared):
    memory: Mapping[str, Any] = {}

    def __init__(self, directory: str, size: int) -> None:
        options = diskq.QueueOptions(segment_size=size, sync_every=7, **self.memory)
        super().__init__(diskq.Queue(directory, "events", options=options, fs=QuickDisk()), directory)

    def put(self, body: bytes, word: Any) -> object:
        return self.engine.put(body, durability=word)

    def put_many(self, bodies: list[bytes], word: Any) -> object:
        return self.engine.put_many(bodies, durability=word)

    def take(self, count: int) -> list[bytes]:
        if count == 1:
            with contextlib.suppress(diskq.QueueEmptyError):
                return [self.engine.get_nowait()]
            return []
        bodies: list[bytes] = self.engine.get_many(count)
        return bodies

    def look(self) -> object:
        return self.engine.peek_many(3)


class MemoryQueue(SharedQueue):
    memory: Mapping[str, Any] = {"durability": "memory", "memory_size": 30_000}


class Work(SharedQueue):
    """Take leases, each acknowledged in a call of its own."""

    def __init__(self, directory: str, size: int) -> None:
        super().__init__(directory, size)
        self.work = diskq.QueueWork(self.engine)

    def take(self, count: int) -> list[bytes]:
        leases = self.work.get_many(count)
        self.work.ack(leases)
        return [lease.body for lease in leases]

    def look(self) -> object:
        return self.work._has_message()


class Stream(Shared):
    def __init__(self, directory: str, size: int) -> None:
        options = diskq.StreamOptions(partition_count=2, segment_size=size, sync_every=7)
        super().__init__(diskq.Stream(directory, options=options, fs=QuickDisk()), directory)

    def put(self, body: bytes, word: Any) -> object:
        return self.engine.append(body, durability=word)

    def put_many(self, bodies: list[bytes], word: Any) -> object:
        return self.engine.append_many(bodies, durability=word)

    def look(self) -> object:
        return self.engine.flush()


class Journal(Shared):
    def __init__(self, directory: str, size: int) -> None:
        options = diskq.JournalOptions(segment_size=size, sync_every=7)
        super().__init__(diskq.Journal(directory, options=options, fs=QuickDisk()), directory)

    def put(self, body: bytes, word: Any) -> object:
        return self.engine.append(body, durability=word)

    def put_many(self, bodies: list[bytes], word: Any) -> object:
        return self.engine.append_many(bodies, durability=word)

    def look(self) -> object:
        return self.engine.flush()


class Jobs(Shared):
    def __init__(self, directory: str, size: int) -> None:
        options = diskq.PriorityOptions(soft_limit=size, hard_limit=2 * size, sync_every=7)
        super().__init__(diskq.PriorityStore(directory, options=options, fs=QuickDisk()), directory)
        self.queue = self.engine.queue()

    def put(self, body: bytes, word: Any) -> object:
        return self.engine.put(self.queue, body, len(body) % 5, durability=word)

    def put_many(self, bodies: list[bytes], word: Any) -> object:
        return self.engine.put_many(self.queue, bodies, 1, durability=word)

    def take(self, count: int) -> list[bytes]:
        records = self.engine.get_many(self.queue, count)
        self.engine.ack_many(self.queue, records)
        return [record.body for record in records]

    def look(self) -> object:
        return self.engine.peek(self.queue, 3)


CROWDS: dict[str, Callable[[str, int], Shared]] = {
    "queue": SharedQueue,
    "queue in memory": MemoryQueue,
    "work": Work,
    "stream": Stream,
    "journal": Journal,
    "jobs": Jobs,
}


# --- a meeting --------------------------------------------------------------------------------------


def meet(name: str, directory: str, seed: int) -> dict[str, Any]:
    """The result of threads that used one engine at once."""
    shared = CROWDS[name](directory, random.Random(seed).choice((2_000, 50_000)))
    acknowledged: list[int] = []
    taken: list[bytes] = []
    waited: list[int] = []
    surprises: list[str] = []
    start = threading.Barrier(THREADS)

    def use(thread: int) -> None:
        chance = random.Random(seed * THREADS + thread)
        number = thread * 1_000_000 + 1
        start.wait()
        for _ in range(CALLS):
            what, word = chance.random(), chance.choice(WORDS)
            count = 1 if what < 0.6 else chance.randrange(2, 5)
            numbers = range(number, number + count)
            number += count
            try:
                if what < 0.6:
                    shared.put(body_of(numbers[0]), word)
                    acknowledged.append(numbers[0])
                elif what < 0.75:
                    shared.put_many([body_of(each) for each in numbers], word)
                    acknowledged.extend(numbers)
                elif what < 0.9:
                    taken.extend(shared.take(chance.randrange(1, 3)))
                elif what < 0.95:
                    shared.look()
                else:
                    shared.sync()
                waited.append(shared.engine.guard.waiting)
            except BaseException as failure:
                surprises.append(repr(failure))

    threads = [threading.Thread(target=use, args=(thread,)) for thread in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    try:
        if isinstance(shared, Work):
            shared.work.close()
        shared.engine.close()
    except Exception as failure:
        surprises.append(repr(failure))
    return {
        "acknowledged": sorted(acknowledged),
        "found": sorted(number_in(body) or 0 for body in (*taken, *shared.read_all())),
        "waited": sum(waited),
        "surprises": surprises[:3],
    }


def main(name: str, directory: str, *seeds: str) -> None:
    logging.disable()
    sys.setswitchinterval(1e-5)
    for seed in seeds:
        place = os.path.join(directory, seed)
        os.mkdir(place)
        print(json.dumps(meet(name, place, int(seed))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
