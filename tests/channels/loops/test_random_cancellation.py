# Whatever is cancelled, and whenever: each message is where its sender and its receiver were told that it is.
#
# 10,000 calls are cancelled for each kind on each loop, at random moments: by a timeout, by another task, and
# together with the tasks around them. `make test` takes a sample.

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.lowlevel
import pytest
import sniffio
import trio

import diskq
from diskq.options import Durability
from tests.loops import each_loop
from tests.sampling import IS_EXHAUSTIVE

CANCELLATIONS = 10_000 if IS_EXHAUSTIVE else 400
TASKS = 16
LONGEST = 0.002
CANCELLED = "cancelled"
LEVELS: list[Durability | None] = [None, "memory", "written", "synced", "synced"]

Call = Callable[[], Awaitable[Any]]


class Store(Protocol):
    async def send(self, body: bytes, durability: Durability | None) -> None: ...

    async def receive(self) -> list[bytes]: ...

    async def rest(self) -> list[bytes]: ...


# --- cancelling one call, as a program of that loop would ---------------------------------------------


async def _by_timeout(call: Call, seconds: float) -> Any:
    try:
        async with asyncio.timeout(seconds):
            return await call()
    except TimeoutError:
        return CANCELLED


async def _by_another_task(call: Call, seconds: float) -> Any:
    async def made() -> Any:
        return await call()

    task = asyncio.create_task(made())
    await asyncio.sleep(seconds)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return CANCELLED


async def _with_its_group(call: Call, seconds: float) -> Any:
    found: Any = CANCELLED

    async def made() -> None:
        nonlocal found
        found = await call()

    async def fail() -> None:
        await asyncio.sleep(seconds)
        raise ZeroDivisionError

    async def grouped() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await made()  # in the task whose group fails
        except* ZeroDivisionError:
            pass

    # A group of Python 3.11 that fails at its end leaves its task cancelled.
    await asyncio.create_task(grouped())
    return found


async def _by_scope(call: Call, seconds: float) -> Any:
    with anyio.move_on_after(seconds):
        return await call()
    return CANCELLED


async def _by_trios_nursery(call: Call, seconds: float) -> Any:
    found: Any = CANCELLED

    async def made() -> None:
        nonlocal found
        found = await call()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(made)
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()
    return found


def ways() -> list[Callable[[Call, float], Awaitable[Any]]]:
    if sniffio.current_async_library() == "trio":
        return [_by_scope, _by_trios_nursery]
    return [_by_timeout, _by_another_task, _with_its_group, _by_scope]


# --- the kinds ------------------------------------------------------------------------------------------


class _Queue:
    def __init__(self, queue: diskq.QueueChannel, rng: random.Random) -> None:
        self.queue, self._rng = queue, rng

    async def send(self, body: bytes, durability: Any) -> None:
        if self._rng.random() < 0.2:
            await self.queue.send_many([body], durability=durability)
        else:
            await self.queue.send(body, durability=durability)

    async def receive(self) -> list[bytes]:
        how = self._rng.random()
        if how < 0.2:
            return await self.queue.receive_many(3, linger=0.001)
        if how < 0.3:
            return await self.queue.receive_many(3)
        if how < 0.4:
            return await self.queue.receive_if(lambda: True)
        return [await self.queue.receive()]

    async def rest(self) -> list[bytes]:
        return drained(self.queue.receive_nowait)


class _Work(_Queue):
    def __init__(self, queue: diskq.QueueChannel, work: diskq.QueueWorkChannel, rng: random.Random) -> None:
        super().__init__(queue, rng)
        self.work = work

    async def receive(self) -> list[bytes]:
        if self._rng.random() < 0.5:
            lease = await self.work.receive()
            self.work.ack(lease)
            return [bytes(lease.body)]
        leases = await self.work.receive_many(3, linger=0.001)
        self.work.ack(leases)
        return [bytes(lease.body) for lease in leases]

    async def rest(self) -> list[bytes]:
        return [bytes(lease.body) for lease in drained(self.work.receive_nowait)]


class _Priority:
    def __init__(self, queue: diskq.PriorityQueueChannel, rng: random.Random) -> None:
        self.queue, self._rng = queue, rng

    async def send(self, body: bytes, durability: Any) -> None:
        await self.queue.send(body, durability=durability)

    async def receive(self) -> list[bytes]:
        if self._rng.random() < 0.5:
            records = [await self.queue.receive()]
        else:
            records = await self.queue.receive_many(3, linger=0.001)
        self.queue.ack_nowait(records)
        return [bytes(record.body) for record in records]

    async def rest(self) -> list[bytes]:
        return [bytes(record.body) for record in drained(self.queue.receive_nowait)]


class _Log:
    """A stream or a journal, and one reader of it."""

    def __init__(self, writer: Any, reader: Any, rng: random.Random) -> None:
        self._writer, self._reader, self._rng = writer, reader, rng

    async def send(self, body: bytes, durability: Any) -> None:
        await self._writer.send(body, b"key", durability=durability)

    async def receive(self) -> list[bytes]:
        how = self._rng.random()
        if how < 0.3:
            return [message.value for message in await self._reader.receive_many(3, linger=0.001)]
        if how < 0.5:
            async with self._reader.receiving(3) as messages:
                await anyio.lowlevel.checkpoint()
                found = [message.value for message in messages]
            return found
        return [(await self._reader.receive()).value]

    async def rest(self) -> list[bytes]:
        return [message.value for message in drained(self._reader.receive_nowait)]


def drained(take: Callable[[], Any]) -> list[Any]:
    found = []
    while True:
        try:
            found.append(take())
        except diskq.WouldBlock:
            return found


# --- the trial ------------------------------------------------------------------------------------------


async def trial(store: Store, rng: random.Random, cancellations: int) -> None:
    numbers = count()
    told: Counter[str] = Counter()
    sent: set[bytes] = set()
    not_sent: set[bytes] = set()
    got: list[bytes] = []

    def is_going_on() -> bool:
        return told[CANCELLED] < cancellations

    async def send_all() -> None:
        while is_going_on():
            body = b"%d" % next(numbers)
            durability = rng.choice(LEVELS)
            way = rng.choice(ways())
            if rng.random() < 0.5:
                await store.send(body, durability)
                result = None
            else:
                result = await way(partial(store.send, body, durability), rng.random() * LONGEST)
            (not_sent if result is CANCELLED else sent).add(body)
            told[CANCELLED if result is CANCELLED else "sent"] += 1
            await anyio.sleep(rng.random() * LONGEST)

    async def receive_all() -> None:
        while is_going_on():
            result = await rng.choice(ways())(store.receive, rng.random() * LONGEST)
            if result is CANCELLED:
                told[CANCELLED] += 1
            else:
                got.extend(result)
                told["received"] += 1
            if sniffio.current_async_library() == "asyncio":
                task = asyncio.current_task()
                assert task is not None
                assert task.cancelling() == 0, "the caller itself is left cancelled"

    async with anyio.create_task_group() as tasks:
        for _ in range(TASKS):
            tasks.start_soon(receive_all)
        for _ in range(TASKS // 2):
            tasks.start_soon(send_all)
    got += await store.rest()
    assert sorted(got, key=int) == sorted(sent, key=int), "lost, doubled, or in although it was cancelled"
    assert told["received"] > 0
    assert told["sent"] > 0


def _rng(seed: int) -> random.Random:
    return random.Random(seed)


@pytest.mark.parametrize("seed", range(3))
@each_loop
async def test_of_a_queue(seed: int, tmp_path: Path) -> None:
    async with diskq.open_queue(tmp_path, "q") as queue:
        await trial(_Queue(queue, _rng(seed)), _rng(seed + 1), CANCELLATIONS)


@each_loop
async def test_of_a_queue_with_bounds(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_bytes": 65_536, "segment_size": 2_000}
    async with diskq.open_queue(tmp_path, "q", **options) as queue:
        await trial(_Queue(queue, _rng(0)), _rng(1), CANCELLATIONS // 4)


@each_loop
async def test_of_a_queue_in_memory_first(tmp_path: Path) -> None:
    async with diskq.open_queue(tmp_path, "q", durability="memory", memory_size=10_000) as queue:
        await trial(_Queue(queue, _rng(0)), _rng(1), CANCELLATIONS // 4)


@each_loop
async def test_of_work(tmp_path: Path) -> None:
    async with diskq.open_queue(tmp_path, "q") as queue, queue.working() as work:
        await trial(_Work(queue, work, _rng(0)), _rng(1), CANCELLATIONS)


@each_loop
async def test_of_a_priority_queue(tmp_path: Path) -> None:
    async with diskq.open_priority_store(tmp_path) as store:
        await trial(_Priority(store.queue(), _rng(0)), _rng(1), CANCELLATIONS)


@each_loop
async def test_of_a_stream(tmp_path: Path) -> None:
    async with (
        diskq.open_producer(tmp_path / "s") as producer,
        diskq.open_consumer(tmp_path / "s") as consumer,
    ):
        await trial(_Log(producer, consumer, _rng(0)), _rng(1), CANCELLATIONS)


@each_loop
async def test_of_a_journal(tmp_path: Path) -> None:
    async with diskq.open_journal(tmp_path / "j") as journal, diskq.open_scanner(tmp_path / "j") as scanner:
        await trial(_Log(journal, scanner, _rng(0)), _rng(1), CANCELLATIONS)


@each_loop
async def test_of_opening(tmp_path: Path) -> None:
    """A store whose opening is cancelled is closed again: the next one gets its lock."""
    rng = _rng(0)
    opened = 0

    async def use() -> None:
        nonlocal opened
        async with diskq.open_queue(tmp_path, "q") as queue:
            opened += 1
            await queue.send(b"x", durability="synced")

    for _ in range(CANCELLATIONS // 40):
        await rng.choice(ways())(use, rng.random() * 2 * LONGEST)
        with diskq.Queue(tmp_path, "q"):
            pass
    assert opened
