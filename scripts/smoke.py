"""Does an installed diskq work on this machine? Runs against a wheel, far from the source tree."""

from __future__ import annotations

import tempfile
from pathlib import Path

import trio

import diskq

BODIES = [b"message %d" % number for number in range(100)]


async def main(directory: Path) -> None:
    async with diskq.open_queue(directory, "events") as queue:
        await queue.send_many(BODIES)
        await queue.send(b"durable", durability="synced")
    async with diskq.open_queue(directory, "events") as queue:
        with trio.fail_after(60):
            assert [await queue.receive() for _ in range(101)] == [*BODIES, b"durable"]
    async with diskq.open_producer(directory / "stream", partition_count=2) as producer:
        for body in BODIES:
            await producer.send(body, key=body)
    async with diskq.open_consumer(directory / "stream", end="close") as consumer:
        assert sorted([message.value async for message in consumer]) == sorted(BODIES)
    async with diskq.open_journal(directory / "journal") as journal:
        for body in BODIES:
            await journal.send(body)
    async with diskq.open_scanner(directory / "journal", end="close") as scanner:
        assert [message.value async for message in scanner] == BODIES
    async with diskq.open_priority_store(directory / "store") as store, store.queue() as jobs:
        await jobs.send(b"later", priority=2)
        await jobs.send(b"now", priority=1)
        async with jobs.receiving() as record:
            assert record.body == b"now"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        trio.run(main, Path(name))
    print("diskq", diskq.__version__, "works here")
