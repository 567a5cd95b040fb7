# What diskq does while it is measured. Each function is one measurement, run in a fresh process
# with an empty directory (benchmarks/child.py), and returns its readings.
#
# The work is the loop that the Go harness runs on go-diskqueue, one `await` per message where Go
# has one channel operation, with diskq's options as they are by default.

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import trio

from benchmarks.stopwatch import Reading, Stopwatch, body_of, quantiles, reading, resident_mib, shares
from diskq import Queue, QueueChannel, QueueOptions, open_queue
from diskq.storage.fs import OsFileSystem
from diskq.testing import FaultFS

NAME = "bench"
# A record in NSQ's files: a length word, and the body.
RECORD = 4 + 100

_fdatasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


def fill(directory: str, count: int, size: int = 100) -> None:
    """Make a queue of `count` messages, closed in order."""
    batch = [body_of(size)] * 1000
    with Queue(directory, NAME) as queue:
        for _ in range(count // len(batch)):
            queue.put_many(batch)
        queue.put_many(batch[: count % len(batch)])


# --- sending and receiving ---------------------------------------------------------------------------


async def send(
    directory: str, *, count: int, size: int = 100, tasks: int = 1, batch: int = 0, **options: Any
) -> Reading:
    """Until the last `send` of the last task has returned."""
    async with open_queue(directory, NAME, **options) as queue:
        watch = Stopwatch()
        await _produce_all(queue, count, size, tasks, batch)
        return watch.stop(count)


async def receive(directory: str, *, count: int, batch: int = 0, **options: Any) -> Reading:
    fill(directory, count)
    async with open_queue(directory, NAME, **options) as queue:
        watch = Stopwatch()
        await _consume(queue, count, batch)
        return watch.stop(count)


async def both(directory: str, *, count: int, batch: int = 0, **options: Any) -> Reading:
    """One task sends, one receives, until the last message has been received."""
    async with open_queue(directory, NAME, **options) as queue:
        watch = Stopwatch()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_consume, queue, count, batch)
            nursery.start_soon(_produce, queue, body_of(100), count, batch)
        return watch.stop(count)


async def _produce_all(queue: QueueChannel, count: int, size: int, tasks: int, batch: int) -> None:
    body = body_of(size)
    async with trio.open_nursery() as nursery:
        for share in shares(count, tasks):
            nursery.start_soon(_produce, queue, body, share, batch)


async def _produce(queue: QueueChannel, body: bytes, count: int, batch: int) -> None:
    if batch:
        bodies = [body] * batch
        for _ in range(count // batch):
            await queue.send_many(bodies)
        bodies = bodies[: count % batch]
        if bodies:
            await queue.send_many(bodies)
    else:
        for _ in range(count):
            await queue.send(body)


async def _consume(queue: QueueChannel, count: int, batch: int) -> None:
    if batch:
        while count:
            count -= len(await queue.receive_many(min(count, batch)))
    else:
        for _ in range(count):
            await queue.receive()


async def latency(directory: str, *, count: int, pace: float = 0.0) -> Reading:
    """From before `send` to received in another task; the next is sent only after that.

    With `pace` seconds before each, so that both sides sleep: rate and seconds include them.
    """
    async with open_queue(directory, NAME) as queue:
        return await latency_of(queue.send, queue.receive, count, pace)


async def hand_over(_: str, *, count: int) -> Reading:
    """The same, with no queue in between: what Trio takes to wake a task and let it run."""
    sent = 0
    sleeper: trio.lowlevel.Task | None = None

    async def wake(_: bytes) -> None:
        nonlocal sent, sleeper
        sent += 1
        if sleeper is not None:
            trio.lowlevel.reschedule(sleeper)
            sleeper = None

    async def sleep() -> None:
        nonlocal sent, sleeper
        if not sent:
            sleeper = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        sent -= 1

    return await latency_of(wake, sleep, count, 0.0)


async def latency_of(
    send: Callable[[bytes], Awaitable[Any]],
    receive: Callable[[], Awaitable[Any]],
    count: int,
    pace: float,
) -> Reading:
    """One message at a time, each sent while the receiver waits for it.

    The receiver notes the time and waits for the next message at once: it does not wait for the sender.
    """
    from trio.testing import wait_all_tasks_blocked  # here, as it imports pytest where that is installed

    warm_up, body = 100, body_of(100)
    arrivals: list[float] = []
    sleeper: trio.lowlevel.Task | None = None

    async def stamp() -> None:
        nonlocal sleeper
        for _ in range(warm_up + count):
            await receive()
            arrivals.append(perf_counter())
            if sleeper is not None:
                trio.lowlevel.reschedule(sleeper)
                sleeper = None

    async def once() -> float:
        nonlocal sleeper
        if pace:
            await trio.sleep(pace)
        began = perf_counter()
        await send(body)
        if not arrivals:
            sleeper = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return arrivals.pop() - began

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stamp)
        await wait_all_tasks_blocked()
        for _ in range(warm_up):
            await once()
        watch = Stopwatch()
        latencies = [await once() for _ in range(count)]
        return watch.stop(count) | quantiles(latencies)


# --- the turns of others -----------------------------------------------------------------------------


async def slow_disk(directory: str, *, seconds: float) -> dict[str, Reading]:
    """Measure a task that only yields, while 16 make synced sends, with syncs 20 ms slower and not."""
    readings = {}
    for part, delay in random.sample([("20 ms", 0.02), ("as it is", 0.0)], 2):
        os.mkdir(f"{directory}/{part}")
        readings[part] = await _longest_wait(f"{directory}/{part}", seconds, delay)
    return readings


async def _longest_wait(directory: str, seconds: float, delay: float) -> Reading:
    """Measure the longest wait for the event loop, while each sync takes `delay` seconds more."""
    disk = FaultFS(OsFileSystem())
    disk.delay("sync_files", delay)
    longest, turns = 0.0, 0
    async with (
        open_queue(directory, NAME, fs=disk, durability="synced") as queue,
        trio.open_nursery() as nursery,
    ):
        for _ in range(16):
            nursery.start_soon(_send_for_ever, queue)
        watch, last = Stopwatch(), perf_counter()
        end = last + seconds
        while last < end:
            await trio.lowlevel.checkpoint()
            now = perf_counter()
            longest, last, turns = max(longest, now - last), now, turns + 1
        assert queue.statistics().barriers, "nothing was synced"
        found = watch.stop(turns)
        nursery.cancel_scope.cancel()
    return found | {"longest_ms": longest * 1e3}


async def _send_for_ever(queue: QueueChannel) -> None:
    body = body_of(100)
    while True:
        await queue.send(body)


async def turns(directory: str, *, count: int) -> dict[str, Reading]:
    """How long a task runs that only sends, or only receives, before it lets others run: in slices.

    By its processor time, and of a hundred such runs the 99th.
    """
    async with open_queue(directory, NAME) as queue:
        return {
            "send": await _turns(_produce(queue, body_of(100), count, 0), count),
            "receive": await _turns(_consume(queue, count, 0), count),
        }


async def _turns(loop: Awaitable[None], count: int) -> Reading:
    watch = Stopwatch()
    steps = _Steps()
    trio.lowlevel.add_instrument(steps)
    await loop
    trio.lowlevel.remove_instrument(steps)
    ordered = sorted(steps.took)
    return watch.stop(count) | {"slices": ordered[len(ordered) * 99 // 100] / QueueOptions().checkpoint_slice}


class _Steps(trio.abc.Instrument):
    """The processor time of each step of the task that made it."""

    def __init__(self) -> None:
        self._task = trio.lowlevel.current_task()
        self._began = thread_time()
        self.took: list[float] = [0.0]

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._began = thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self.took.append(thread_time() - self._began)


# --- long queues -------------------------------------------------------------------------------------


async def long_queue(directory: str, *, count: int, sample: int) -> dict[str, Reading]:
    """Open a queue of `count` messages; receive the first `sample` of them, and as many in its middle."""
    watch, resident = Stopwatch(), resident_mib()
    async with open_queue(directory, NAME) as queue:
        opened = watch.stop(1)
        opened |= {"open_ms": opened["seconds"] * 1e3, "rss_mib": resident_mib() - resident}
        assert queue.depth == count
        watch = Stopwatch()
        await _consume(queue, sample, 0)
        first = watch.stop(sample)
        await _consume(queue, count // 2 - sample, 1000)
        watch = Stopwatch()
        await _consume(queue, sample, 0)
        return {"open": opened, "first": first, "middle": watch.stop(sample)}


async def short_queue(directory: str, *, count: int, sample: int) -> Reading:
    """Receive `sample` messages in all from a queue that never holds more than `count`."""
    batch = [body_of(100)] * count
    seconds = cpu_seconds = 0.0
    async with open_queue(directory, NAME) as queue:
        for _ in range(sample // count):
            await queue.send_many(batch)
            watch = Stopwatch()
            await _consume(queue, count, 0)
            taken = watch.stop(count)
            seconds += taken["seconds"]
            cpu_seconds += taken["cpu_us"] * count / 1e6
        return reading(sample // count * count, seconds, cpu_seconds)


# --- many queues in one program -----------------------------------------------------------------------


async def many_queues(directory: str, *, count: int, rounds: int) -> dict[str, Reading]:
    """Open `count` queues, each in a directory of its own; then rounds of one send to each, by one task.

    Threads and memory are those beyond this program before the first open; threads are the most that there
    are, also while all are synced at once. The first round, which makes the files, is not measured.
    """
    body = body_of(100)
    threads, descriptors, resident = _threads(), _descriptors(), resident_mib()
    watch = Stopwatch()
    async with AsyncExitStack() as stack:
        queues = []
        for number in range(count):
            path = f"{directory}/{number}"
            os.mkdir(path)
            queues.append(await stack.enter_async_context(open_queue(path, NAME)))
        opened = watch.stop(count)
        opened["threads"] = _threads() - threads

        async def send_to_each(times: int) -> Reading:
            watch = Stopwatch()
            for _ in range(times):
                for queue in queues:
                    await queue.send(body)
            return watch.stop(times * count)

        await send_to_each(1)
        sent = await send_to_each(rounds)
        opened["rss_mib"] = resident_mib() - resident
        opened["descriptors"] = _descriptors() - descriptors
        opened["threads"] = max(opened["threads"], _threads() - threads)
        watch = Stopwatch()
        async with trio.open_nursery() as nursery:
            for queue in queues:
                nursery.start_soon(queue.sync)
        synced = watch.stop(count)
        opened["threads"] = max(opened["threads"], _threads() - threads)
    return {"open": opened, "round": sent, "sync": synced}


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- beside Python's queues --------------------------------------------------------------------------


async def send_then_receive(directory: str, *, count: int) -> dict[str, Reading]:
    async with open_queue(directory, NAME) as queue:
        watch = Stopwatch()
        await _produce(queue, body_of(100), count, 0)
        sent = watch.stop(count)
        watch = Stopwatch()
        await _consume(queue, count, 0)
        return {"put": sent, "get": watch.stop(count)}


# --- durable -----------------------------------------------------------------------------------------


def raw_fdatasync(directory: str, *, count: int) -> Reading:
    """What the disk does: append one record's bytes and fdatasync, over and over."""
    handle = os.open(Path(directory, "raw"), os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        watch = Stopwatch()
        for _ in range(count):
            os.write(handle, bytes(RECORD))
            _fdatasync(handle)
        return watch.stop(count)
    finally:
        os.close(handle)


async def fdatasync_by_turns(directory: str, *, seconds: float, tasks: list[int]) -> dict[str, Reading]:
    """Measure fdatasync of 1 file, of 2, and synced sends, in random order, each for `seconds`."""
    handles = [os.open(Path(directory, name), os.O_RDWR | os.O_CREAT | os.O_APPEND) for name in "ab"]
    readings = {}
    async with open_queue(directory, NAME, durability="synced") as queue:
        await queue.send(body_of(100))
        for part in random.sample(["1 file", "2 files", *map(str, tasks)], 2 + len(tasks)):
            if part.isdigit():
                readings[part] = await _synced_for(seconds, queue, int(part))
            else:
                readings[part] = _probe_for(seconds, handles[: int(part[0])])
    for handle in handles:
        os.close(handle)
    return readings


def _probe_for(seconds: float, handles: list[int]) -> Reading:
    """Blocks the event loop, which has nothing else to do."""
    watch, end, latencies = Stopwatch(), perf_counter() + seconds, []
    while (began := perf_counter()) < end:
        for handle in handles:
            os.write(handle, bytes(RECORD))
        for handle in handles:
            _fdatasync(handle)
        latencies.append(perf_counter() - began)
    return watch.stop(len(latencies)) | quantiles(latencies)


async def _synced_for(seconds: float, queue: QueueChannel, tasks: int) -> Reading:
    watch, end, latencies, body = Stopwatch(), perf_counter() + seconds, [], body_of(100)

    async def produce() -> None:
        while (began := perf_counter()) < end:
            await queue.send(body)
            latencies.append(perf_counter() - began)

    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(produce)
    return watch.stop(len(latencies)) | quantiles(latencies)
