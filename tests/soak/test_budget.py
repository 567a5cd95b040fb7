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
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

import diskq

SECONDS = float(os.environ.get("DISKQ_SOAK_SECONDS", "3"))
BOUND = 8 * 1024 * 1024
SEGMENT = BOUND // 8

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
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        # Not in the last moments: what is closed then is counted no more.
        end = time.monotonic() + SECONDS - 0.2
        while time.monotonic() < end and not self._is_over.wait(0.005):
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


async def churn(directory: Path, counts: dict[str, int]) -> None:
    budget = diskq.DiskBudget(BOUND)
    end = trio.current_time() + SECONDS
    rng = random.Random(5)

    async def on_queue(name: str, options: diskq.QueueOptions) -> None:
        """Opened and closed again and again, each time with a producer and a consumer for a while.

        It is emptied before: who is no member is not counted.
        """
        sent, expected, own = 0, 0, random.Random(name)
        while trio.current_time() < end:
            async with diskq.open_queue(directory, name, options=options) as queue:
                with trio.move_on_at(min(end, trio.current_time() + own.uniform(0.3, 2))):
                    async with trio.open_nursery() as nursery:

                        async def produce(queue: diskq.QueueChannel = queue) -> None:
                            nonlocal sent
                            while True:
                                try:
                                    await queue.send(body(sent, own))
                                except diskq.FullError:
                                    counts[f"{name} refused"] = counts.get(f"{name} refused", 0) + 1
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
                counts[f"{name} dropped"] = counts.get(f"{name} dropped", 0) + queue.statistics().dropped
                counts[f"{name} received"] = counts.get(f"{name} received", 0) + queue.statistics().delivered
                await queue.clear()
                expected = sent

    async def on_stream(name: str, options: diskq.StreamOptions) -> None:
        sent = 0
        async with diskq.open_producer(directory / name, options=options) as producer:
            with trio.move_on_at(end):
                while True:
                    try:
                        await producer.send(body(sent, rng))
                        sent += 1
                    except diskq.FullError:
                        counts[f"{name} refused"] = counts.get(f"{name} refused", 0) + 1
                        await trio.sleep(0.002)
                    if options.retention_max_bytes is not None and rng.random() < 0.005:
                        await producer.vacuum()
        counts[f"{name} sent"] = sent

    def in_a_thread() -> None:
        own, sent, expected = random.Random("thread"), 0, 0
        until = time.monotonic() + SECONDS
        with diskq.Queue(directory, "thread", options=diskq.QueueOptions(budget=budget)) as queue:
            while time.monotonic() < until:
                with suppress(diskq.FullError):
                    queue.put(body(sent, own))
                    sent += 1
                if own.random() < 0.5:
                    for message in queue.get_many(3):
                        assert number_of(message) == expected
                        expected += 1
                time.sleep(0.0005)
        counts["thread received"] = expected

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
    assert budget.statistics().members == ()
    assert budget.statistics().granted == 0


@pytest.mark.slow
@pytest.mark.timeout(120 + 2 * SECONDS)
def test_a_budget_is_kept_at_every_moment(tmp_path):
    counts: dict[str, int] = {}
    with Sampler(tmp_path) as sampler:
        trio.run(churn, tmp_path, counts)
    print(counts, sampler.__dict__)
    assert sampler.samples > 10 * SECONDS
    assert sampler.worst_size <= BOUND + SEGMENT, (sampler.worst_size, counts)
    assert sampler.worst_blocks <= BOUND + SEGMENT, (sampler.worst_blocks, counts)
    assert sampler.worst_size > BOUND // 2, "nobody came near the bound"
    for name in ("waits", "also", "refuses", "drops", "thread"):
        assert counts[f"{name} received"] > 20 * SECONDS, counts
    for name in ("kept", "forgets"):
        assert counts[f"{name} sent"] > 20 * SECONDS, counts
