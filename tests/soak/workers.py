# The processes of the soak tests: `python tests/soak/workers.py NAME ARGUMENTS`. Each prints one JSON
# object when it is done.

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import trio

import diskq
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.retention import retain
from diskq.storage.fs import OsFileSystem

SEGMENT = 1024
LONGEST = 60.0
"""Seconds in which a reader beside retention has met what it is for, after the time that it has."""


def value(number: int) -> bytes:
    """Message `number`: told from every other, and from itself with any byte changed."""
    return b"%010d" % number + random.Random(number).randbytes(40 + number * 7 % 50)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- tailing --------------------------------------------------------------------------------------


async def produce(path: str, count: str, mode: str) -> dict[str, Any]:
    """So many messages: `paced`, one each 200 µs, or in a `burst`, batches of any size without a pause."""
    rng = random.Random(mode)
    total = int(count)
    options = diskq.StreamOptions(partition_count=1, segment_size=SEGMENT)
    async with diskq.open_producer(path, options=options) as producer:
        sent = 0
        while sent < total:
            if mode == "paced":
                await producer.send(value(sent), key="k")
                sent += 1
                await trio.sleep(200e-6)
            else:
                batch = [value(number) for number in range(sent, min(total, sent + rng.randrange(1, 40)))]
                await producer.send_many(batch, key="k")
                sent += len(batch)
    return {"sent": sent}


async def consume(path: str, count: str) -> dict[str, Any]:
    """Tail the stream from its start until so many messages have come; insist on each."""
    total = int(count)
    async with diskq.open_consumer(path, partitions=[0]) as consumer:
        print(json.dumps({"is_ready": True}), flush=True)
        open_files = []
        for number in range(total):
            message = await consumer.receive()
            if (message.offset, message.value) != (number, value(number)):
                return {
                    "wrong": number,
                    "got": message.offset,
                    "losses": [str(gap) for gap in consumer.losses],
                }
            if number % 100 == 0:
                open_files.append(descriptors())
        with trio.move_on_after(0.05):
            message = await consumer.receive()
            return {"too many": message.offset}
    return {"received": total, "more_files": max(open_files) - min(open_files)}


# --- retention ------------------------------------------------------------------------------------


def is_over() -> bool:
    """True if standard input was closed."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


async def write(path: str) -> dict[str, Any]:
    """As fast as it goes, but for a pause now and then, until standard input is closed."""
    options = diskq.StreamOptions(partition_count=1, segment_size=64 * 1024)
    sent = 0
    async with diskq.open_producer(path, options=options) as producer:
        while not is_over():
            await producer.send_many([value(number) for number in range(sent, sent + 50)], key="k")
            sent += 50
            if sent % 1000 == 0:
                await trio.sleep(0.002)
    return {"sent": sent}


async def read_for(path: str, seconds: str, pause: str) -> dict[str, Any]:
    """Read on; where retention was faster, go on at what is left. Insist on each message.

    One that pauses long goes on until it was overtaken, and each until it has received something.
    """
    end = trio.current_time() + float(seconds)
    is_slow = float(pause) >= 0.3
    overtaken = received = 0
    async with diskq.open_consumer(path, partitions=[0]) as consumer:
        expected = consumer.position[0]
        with trio.move_on_at(end + LONGEST):
            while trio.current_time() < end or not received or (is_slow and not overtaken):
                try:
                    for message in await consumer.receive_many(100):
                        if (message.offset, message.value) != (expected, value(expected)):
                            return {"wrong": expected, "got": message.offset}
                        expected += 1
                        received += 1
                except diskq.OffsetOutOfRangeError:
                    overtaken += 1
                    await consumer.seek("oldest", partition=0)
                    assert consumer.position[0] > expected
                    expected = consumer.position[0]
                await trio.sleep(float(pause))
    return {"received": received, "overtaken": overtaken}


async def vacuum(path: str, max_bytes: str) -> dict[str, Any]:
    """A vacuum each 50 ms, until standard input is closed.

    Also tells how many bytes the stream took at most, right after one: what came meanwhile is not counted.
    """
    fs = OsFileSystem()
    files = StreamFiles(fs, path)
    vacuums = most = 0
    while not is_over():
        before = sizes(path)
        retain(fs, files, max_bytes=int(max_bytes), now_ns=time.time_ns())
        vacuums += 1
        most = max(most, sum(size for file, size in sizes(path).items() if file in before))
        await trio.sleep(0.05)
    return {"vacuums": vacuums, "most": most}


def sizes(path: str) -> dict[str, int]:
    found = {}
    for directory, _, names in os.walk(path):
        for name in names:
            file = os.path.join(directory, name)
            with contextlib.suppress(FileNotFoundError):
                found[file] = os.stat(file).st_size
    return found


WORKERS: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
    "produce": produce,
    "consume": consume,
    "write": write,
    "read_for": read_for,
    "vacuum": vacuum,
}

if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print(json.dumps(trio.run(WORKERS[name], *arguments)), flush=True)
