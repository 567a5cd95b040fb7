"""A queue in a program of asyncio's: one task sends, two receive, and what is left is there the next time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import diskq


async def produce(queue: diskq.QueueChannel) -> None:
    for number in range(10):
        await queue.send(b"job %d" % number, durability="synced")


async def consume(queue: diskq.QueueChannel, done: list[bytes]) -> None:
    while True:
        async with queue.receiving(
            max_messages=3
        ) as jobs:  # an exception in this block leaves them in the queue
            done += jobs


async def main() -> None:
    done: list[bytes] = []
    async with diskq.open_queue("data", "jobs") as queue:
        consumers = [asyncio.create_task(consume(queue, done)) for _ in range(2)]
        await produce(queue)
        while not queue.empty():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for consumer in consumers:
            consumer.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)
    print(len(done), "jobs,", len(set(done)), "different ones")


if __name__ == "__main__":
    Path("data").mkdir(exist_ok=True)
    asyncio.run(main())
