# Churn in one budget: queues and streams of all policies, in Trio and in a thread. Law: at no moment are the
# files of all of them together more than the budget and one segment; and everybody gets on.
#
# The suite runs it briefly; `make soak` for as many seconds as DISKQ_SOAK_SECONDS says, and ten minutes are
# what the promise was measured with.

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

import diskq

SECONDS = float(os.environ.get("DISKQ_SOAK_SECONDS", "3"))
BOUND = 8 * 1024 * 1024
SEGMENT = BOUND // 8
LONGEST = 120.0
ACTS = (
    *(f"{name} received" for name in ("waits", "also", "refuses", "drops", "thread")),
    *(f"{name} sent" for name in ("kept", "forgets")),
)

Act = Callable[[], Awaitable[object]]


class Sampler:
    """Looks, in a thread of its own, at what all files take: by their sizes, and by their blocks."""

    def __init__(self, directory: Path) -> None:
        self.worst_size = self.worst_blocks = self.samples = 0
        self._directory = directory
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(0.005):
            size = blocks = 0
            for above, _, names in os.walk(self._directory):
                for name in names:
                    with suppress(FileNotFoundError):
                        found = os.stat(os.path.join(above, name))
                        size += found.st_size
                        blocks += found.st_blocks * 512
            self.worst_size = max(self.worst_size, size)
            self.worst_blocks = max(self.worst_blocks, blocks)
            self.samples += 1


def body(number: int, rng: random.Random) -> bytes:
    return b"%d|" % number + bytes(rng.choice((0, 10, 100, 1000, 10_000, 60_000)))


def number_of(message: bytes) -> int:
    return int(message.split(b"|", 1)[0])


def is_enough(counts: Counter[str], sampler: Sampler) -> bool:
    is_sampled = sampler.samples > 10 * SECONDS and sampler.worst_size > BOUND // 2
    return is_sampled and all(counts[act] > 20 * SECONDS for act in ACTS)


async def churn(directory: Path, counts: Counter[str], sampler: Sampler) -> None:
    budget = diskq.DiskBudget(BOUND)
    is_over = threading.Event()
    rng = random.Random(5)

    async def end() -> None:
        """Not before there was enough of everything, however busy the machine is."""
        await trio.sleep(SECONDS)
        with trio.move_on_after(LONGEST):
            while not is_enough(counts, sampler):  # noqa: ASYNC110 - a thread does it, too
                await trio.sleep(0.05)
        await trio.to_thread.run_sync(sampler.end)  # what is closed from now on is counted no more
        is_over.set()

    async def on_queue(name: str, options: diskq.QueueOptions) -> None:
        """Opened and closed again and again, each time with a producer and a consumer for a while.

        It is emptied before: who is no member is not counted.
        """
        sent, expected, own = 0, 0, random.Random(name)
        while not is_over.is_set():
            async with diskq.open_queue(directory, name, options=options) as queue:
                with trio.move_on_after(own.uniform(0.3, 2)):
                    async with trio.open_nursery() as nursery:

                        async def produce(queue: diskq.QueueChannel = queue) -> None:
                            nonlocal sent
                            while True:
                                try:
                                    await queue.send(body(sent, own))
                                except diskq.FullError:
                                    counts[f"{name} refused"] += 1
                                    await trio.sleep(0.001)
                                else:
                                    sent += 1

                        async def consume(queue: diskq.QueueChannel = queue) -> None:
                            nonlocal expected
                            async for message in queue:
                                number = number_of(message)
                                if options.on_full == "drop_oldest":
                                    assert number >= expected
                                else:
                                    assert number == expected
                                expected = number + 1
                                if own.random() < 0.002:
                                    await trio.sleep(own.uniform(0, 0.2))

                        nursery.start_soon(produce)
                        nursery.start_soon(consume)
                counts[f"{name} dropped"] += queue.statistics().dropped
                counts[f"{name} received"] += queue.statistics().delivered
                await queue.clear()
                expected = sent

    async def on_stream(name: str, options: diskq.StreamOptions) -> None:
        async with diskq.open_producer(directory / name, options=options) as producer:
            while not is_over.is_set():
                with trio.move_on_after(0.2):  # one that waits for space looks whether it is over
                    while True:
                        try:
                            await producer.send(body(counts[f"{name} sent"], rng))
                            counts[f"{name} sent"] += 1
                        except diskq.FullError:
                            counts[f"{name} refused"] += 1
                            await trio.sleep(0.002)
                        if options.retention_max_bytes is not None and rng.random() < 0.005:
                            await producer.vacuum()

    def in_a_thread() -> None:
        own, sent, expected = random.Random("thread"), 0, 0
        with diskq.Queue(directory, "thread", options=diskq.QueueOptions(budget=budget)) as queue:
            while not is_over.is_set():
                with suppress(diskq.FullError):
                    queue.put(body(sent, own))
                    sent += 1
                if own.random() < 0.5:
                    for message in queue.get_many(3):
                        assert number_of(message) == expected
                        expected += 1
                    counts["thread received"] = expected
                time.sleep(0.0005)

    async with trio.open_nursery() as nursery:
        for name, on_full in (
            ("waits", "wait"),
            ("also", "wait"),
            ("refuses", "reject"),
            ("drops", "drop_oldest"),
        ):
            nursery.start_soon(on_queue, name, diskq.QueueOptions(budget=budget, on_full=on_full))  # type: ignore[arg-type]
        kept = diskq.StreamOptions(budget=budget, partition_count=1, retention_max_bytes=SEGMENT)
        nursery.start_soon(on_stream, "kept", kept)
        forgets = diskq.StreamOptions(budget=budget, partition_count=2, on_full="drop_oldest")
        nursery.start_soon(on_stream, "forgets", forgets)
        nursery.start_soon(trio.to_thread.run_sync, in_a_thread)
        nursery.start_soon(end)
    assert budget.statistics().members == ()
    assert budget.statistics().granted == 0


@pytest.mark.slow
@pytest.mark.timeout(240 + 2 * SECONDS)
def test_a_budget_is_kept_at_every_moment(tmp_path):
    counts = Counter[str]()
    with Sampler(tmp_path) as sampler:
        trio.run(churn, tmp_path, counts, sampler)
    print(counts, sampler.__dict__)
    assert sampler.samples > 10 * SECONDS
    assert sampler.worst_size <= BOUND + SEGMENT, (sampler.worst_size, counts)
    assert sampler.worst_blocks <= BOUND + SEGMENT, (sampler.worst_blocks, counts)
    assert sampler.worst_size > BOUND // 2, "nobody came near the bound"
    for act in ACTS:
        assert counts[act] > 20 * SECONDS, counts
