"""Replay: two days of clicks in a second, each at its time, and into a queue.

    python examples/replay.py

A stream gets two days' clicks, with a night between them. They are replayed 100,000 times as fast, in their
original order; then into a queue, by a replay that is interrupted and another one that resumes it.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trio

import diskq

SPEED = 100_000
MORNING = datetime(2013, 7, 4, 8, tzinfo=UTC)


async def record(stream: Path) -> None:
    """Write a click every ten minutes from 8 to 18, and again the next morning."""
    async with diskq.open_producer(stream, partition_count=2) as producer:
        for number in range(80):
            night = timedelta(hours=14) if number >= 60 else timedelta()
            when = MORNING + timedelta(minutes=10 * number) + night
            await producer.send(b"click %d" % number, key=f"customer {number % 7}", timestamp=when)


async def show(stream: Path) -> list[bytes]:
    """Replay the clicks in order, with the night shortened to a hundredth of a second."""
    clicks: list[bytes] = []
    async with diskq.open_replay(stream, speed=SPEED, max_gap=0.010) as replayed:
        async for message in replayed:
            clicks.append(message.value)
        print(f"{replayed.statistics().delivered} clicks in the order in which they came")
    return clicks


async def refill(stream: Path, data: str) -> None:
    """Replay into a queue, in two parts: the second one begins where the first one was interrupted."""
    async with diskq.open_queue(data, "clicks") as queue:
        async with diskq.open_replay(stream, speed=SPEED) as replayed:
            for _ in range(30):
                message = await replayed.receive()
                await queue.send(message.value)
            position = replayed.position
        async with diskq.open_replay(stream, start=position, speed=None) as rest:
            async for message in rest:
                await queue.send(message.value)


async def main() -> None:
    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as data:
        stream = Path(root, "clicks")
        await record(stream)
        clicks = await show(stream)
        await refill(stream, data)
        async with diskq.open_queue(data, "clicks") as queue:
            same = await queue.receive_many(1000) == clicks
        print("the queue has the same, each once:", same)


if __name__ == "__main__":
    trio.run(main)
