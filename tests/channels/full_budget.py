"""Members of a budget on a disk that is really full: `python -m tests.channels.full_budget DIRECTORY SCENE`.

To be run on a disk of 1 MiB. Prints `done` when all of it was as it should be.
"""

from __future__ import annotations

import contextlib
import os
import sys

import trio

import diskq
from diskq.options import OnFull

KIB = 1024
SIZE = 1024 * KIB


async def fill(send: object, body: bytes) -> tuple[int, str]:
    """How many were taken, and why no more were."""
    count = 0
    while True:
        try:
            await send(body)  # type: ignore[operator]
        except diskq.FullError as full:
            return count, full.reason
        count += 1


async def within_the_budget(directory: str) -> None:
    """With a budget of what the disk has, the disk is never full: not for markers and metadata either."""
    budget = diskq.DiskBudget(SIZE, headroom=128 * KIB)
    stream = os.path.join(directory, "s")
    async with contextlib.AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(
                diskq.open_queue(directory, name, budget=budget, on_full="reject", durability="synced")
            )
            for name in "ab"
        ]
        producer = await stack.enter_async_context(
            diskq.open_producer(stream, budget=budget, on_full="reject", partition_count=1)
        )
        counts = []
        for send in (one.send, other.send, producer.send):
            for _ in range(60):
                await send(bytes(1000))
        for send in (one.send, other.send, producer.send):
            count, reason = await fill(send, bytes(500))
            assert "budget" in reason, reason
            counts.append(count)
        assert sum(counts) > 100, counts
        # Each a marker, its shadow copy and its claim, of a block each; metadata; the points of the stream.
        for group in "abcdefghijklmnop":
            async with diskq.open_consumer(stream, group=group) as consumer:
                for _ in range(10):
                    await consumer.receive()
                await consumer.commit()
        await one.receive_many(5)
        for member in (one, other, producer):
            await member.sync()
        assert budget.statistics().free < 40 * KIB


async def healing(directory: str) -> None:
    """Another program fills the disk: every sender gets the error, nothing is partial, and all go on."""
    budget = diskq.DiskBudget(64 * SIZE)
    sent: dict[OnFull, list[bytes]] = {"wait": [], "reject": [], "drop_oldest": []}
    async with contextlib.AsyncExitStack() as stack:
        queues = {
            on_full: await stack.enter_async_context(
                diskq.open_queue(
                    directory,
                    on_full,
                    budget=budget,
                    on_full=on_full,
                    sync_to="files",
                    segment_size=64 * KIB,
                )
            )
            for on_full in sent
        }
        producer = await stack.enter_async_context(
            diskq.open_producer(
                os.path.join(directory, "s"), budget=budget, partition_count=1, sync_to="files"
            )
        )
        values = 0
        for turn in range(3):
            with open(f"{directory}/foreign", "wb", buffering=0) as foreign:  # noqa: ASYNC230 (it is memory)
                for number in range(50):
                    for on_full, queue in queues.items():
                        sent[on_full].append(b"%d %d" % (turn, number))
                        await queue.send(sent[on_full][-1])
                    await producer.send(b"%d" % values, b"k")
                    values += 1
                with contextlib.suppress(OSError):
                    while True:
                        foreign.write(bytes(4096))
                for on_full, queue in queues.items():
                    large = bytes(20_000)
                    count, reason = await fill(queue.send, large)
                    assert "the disk is full" in reason, reason
                    sent[on_full] += [large] * count
                count, reason = await fill(lambda body: producer.send(body, b"k"), bytes(20_000))
                assert "the disk is full" in reason, reason
                values += count
                for queue in queues.values():
                    assert await queue.receive()  # consuming works
            for mine in sent.values():
                mine.pop(0)
            os.unlink(os.path.join(directory, "foreign"))
            for on_full, queue in queues.items():
                sent[on_full].append(b"healed")
                await queue.send(b"healed", durability="synced")
            await producer.send(b"healed", b"k", durability="synced")
            values += 1
            # Each turn fills the write-ahead logs: what was accepted in three would not fit on the disk.
            for on_full, queue in queues.items():
                assert await queue.receive_many(10_000) == sent[on_full]
                sent[on_full].clear()
                await queue.sync()
        assert all(queue.repairs == () for queue in queues.values())
        assert producer.statistics().next_offsets == {0: values}
    async with diskq.open_consumer(os.path.join(directory, "s"), partitions=[0]) as consumer:
        with trio.fail_after(60):
            for offset in range(values):
                assert (await consumer.receive()).offset == offset


if __name__ == "__main__":
    trio.run({"within_the_budget": within_the_budget, "healing": healing}[sys.argv[2]], sys.argv[1])
    print("done")
