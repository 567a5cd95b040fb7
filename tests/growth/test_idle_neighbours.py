"""What is idle costs nothing: ten times the neighbours, and a send or a take is at most 1.5 times the work.

To hold another one, add it to `NEIGHBOURS`: a function that opens everything, with that number of neighbours,
and returns what is done on one of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType

import pytest

from diskq.engine.journal.journal import Journal
from diskq.engine.priority.store import PriorityStore
from diskq.engine.queue.fifo_queue import Queue
from diskq.options import JournalOptions, PriorityOptions, QueueOptions
from diskq.storage.budget import DiskBudget
from diskq.storage.fs import FileSystem
from tests.growth.meter import MeteredDisk, do_all, growth, work
from tests.growth.stores import MAKERS, NAME

FEW, MANY = 10, 100
MOST = 1.5
TIMES = 20

Act = Callable[[], object]


def _members_of_a_budget(fs: FileSystem, path: str, count: int, stack: ExitStack) -> Act:
    budget = DiskBudget(1 << 30)
    options = QueueOptions(budget=budget)
    queues = [
        stack.enter_context(Queue(path, f"queue{number}", options=options, fs=fs)) for number in range(count)
    ]
    return partial(do_all, [partial(queues[0].put, b"x", durability="synced"), queues[0].get])


def _files_of_a_queue(fs: FileSystem, path: str, count: int, stack: ExitStack) -> Act:
    MAKERS["files of a queue"](fs, path, count)
    queue = stack.enter_context(Queue(path, NAME, fs=fs))
    return lambda: queue.put(b"x", durability="synced")


def _files_of_a_drained_queue(fs: FileSystem, path: str, count: int, stack: ExitStack) -> Act:
    MAKERS["files of a queue"](fs, path, count + TIMES)
    queue = stack.enter_context(Queue(path, NAME, fs=fs))
    return partial(do_all, [queue.get, queue.sync])


def _segments_of_a_journal(fs: FileSystem, path: str, count: int, stack: ExitStack) -> Act:
    MAKERS["segments of a journal"](fs, path, count)
    journal = stack.enter_context(Journal(path, options=JournalOptions(segment_size=1), fs=fs))
    return lambda: journal.append(b"x", durability="synced")


def _priority_queues(fs: FileSystem, path: str, count: int, stack: ExitStack) -> Act:
    MAKERS["priority queues"](fs, path, count)
    options = PriorityOptions(preallocate=False)
    store = stack.enter_context(PriorityStore(path, options=options, fs=fs, takes_snapshots=False))
    queue = store.queue("queue0")

    def turn() -> None:
        store.put(queue, b"x", durability="synced")
        record = store.get(queue)
        assert record is not None
        store.ack(queue, record)

    return turn


NEIGHBOURS = MappingProxyType[str, Callable[[FileSystem, str, int, ExitStack], Act]](
    {
        "members of a budget": _members_of_a_budget,
        "files of a queue": _files_of_a_queue,
        "files of a queue that is drained": _files_of_a_drained_queue,
        "segments of a journal": _segments_of_a_journal,
        "priority queues": _priority_queues,
    }
)


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_idle_neighbours_cost_nothing(neighbours, tmp_path):
    disk = MeteredDisk()
    counts = []
    for count in (FEW, MANY):
        path = tmp_path / str(count)
        path.mkdir()
        with ExitStack() as stack:
            act = NEIGHBOURS[neighbours](disk, os.fspath(path), count, stack)
            counts.append(work(partial(do_all, [act] * TIMES), disk))
    grown = growth(*counts)
    assert max(grown.values(), default=0) <= MOST, grown
