# The same queue on Trio, on asyncio and on uvloop, in turn. Law: both sides of a ratio are of one process,
# seconds apart.

from __future__ import annotations

import asyncio
import importlib
import random
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

import trio

from benchmarks.stopwatch import Reading, Stopwatch, body_of, quantiles
from diskq import QueueChannel, open_queue

BODY = body_of(100)
AT_ONCE = 256

Part = Callable[[QueueChannel, float], Awaitable[Reading]]


def on_asyncio(directory: str, *, seconds: float) -> dict[str, Reading]:
    return _beside_trio("asyncio", directory, seconds)


def on_uvloop(directory: str, *, seconds: float) -> dict[str, Reading]:
    importlib.import_module("uvloop")
    return _beside_trio("uvloop", directory, seconds)


def _beside_trio(own: str, directory: str, seconds: float) -> dict[str, Reading]:
    """Measure each part on that loop, and on Trio, in random order, each for `seconds`."""
    parts: dict[str, Part] = {
        "send": _send,
        "receive": _receive,
        "hand-over": _hand_over,
        "alone": _synced_alone,
        "at once": _synced_together,
    }
    turns = [(loop, part) for loop in ("trio", own) for part in parts]
    readings: dict[str, Reading] = {}
    for loop, part in random.sample(turns, len(turns)):

        async def main(loop: str = loop, part: str = part) -> None:
            async with open_queue(directory, f"{loop}-{len(readings)}") as queue:
                await parts[part](queue, seconds / 10)  # once for nothing
                readings[part if loop == own else f"trio, {part}"] = await parts[part](queue, seconds)

        _run(loop, main)
    return readings


def _run(loop: str, main: Callable[[], Awaitable[None]]) -> None:
    if loop == "trio":
        trio.run(main)
        return
    factory: Any = (
        asyncio.new_event_loop if loop == "asyncio" else importlib.import_module(loop).new_event_loop
    )
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())  # type: ignore[arg-type]


async def _together(count: int, call: Callable[[], Awaitable[None]]) -> None:
    """Await so many calls at the same time, each in a task."""
    if _on_trio():
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(call)
    else:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(call())  # type: ignore[arg-type]


def _on_trio() -> bool:
    return trio.lowlevel.in_trio_run()


async def _pause() -> None:
    if _on_trio():
        await trio.lowlevel.checkpoint()
    else:
        await asyncio.sleep(0)


async def _send(queue: QueueChannel, seconds: float) -> Reading:
    watch, end, count = Stopwatch(), perf_counter() + seconds, 0
    while not count or perf_counter() < end:
        for _ in range(100):
            await queue.send(BODY)
        count += 100
    return watch.stop(count)


async def _receive(queue: QueueChannel, seconds: float) -> Reading:
    count = int(500_000 * seconds) + 1
    await queue.send_many([BODY] * count)
    watch = Stopwatch()
    for _ in range(count):
        await queue.receive()
    return watch.stop(count)


async def _hand_over(queue: QueueChannel, seconds: float) -> Reading:
    """From a send to the task that waits for it."""
    took: list[float] = []
    sent_at = 0.0
    is_over = False

    async def receive() -> None:
        while not is_over:
            await queue.receive()
            took.append(perf_counter() - sent_at)

    async def send() -> None:
        nonlocal is_over, sent_at
        end = perf_counter() + seconds
        while not is_over:
            while not queue.statistics().tasks_waiting_receive:
                await _pause()
            is_over = perf_counter() > end
            sent_at = perf_counter()
            await queue.send(BODY)

    calls = iter((receive, send))
    watch = Stopwatch()
    await _together(2, lambda: next(calls)())
    return watch.stop(len(took)) | quantiles(took)


async def _synced_alone(queue: QueueChannel, seconds: float) -> Reading:
    took: list[float] = []
    watch, end = Stopwatch(), perf_counter() + seconds
    while not took or perf_counter() < end:
        began = perf_counter()
        await queue.send(BODY, durability="synced")
        took.append(perf_counter() - began)
    return watch.stop(len(took)) | quantiles(took)


async def _synced_together(queue: QueueChannel, seconds: float) -> Reading:
    count = 0

    async def send() -> None:
        nonlocal count
        while True:
            await queue.send(BODY, durability="synced")
            count += 1
            if perf_counter() >= end:
                return

    watch, end = Stopwatch(), perf_counter() + seconds
    await _together(AT_ONCE, send)
    return watch.stop(count)
