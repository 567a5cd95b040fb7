# The processes of the soak tests: `python tests/soak/workers.py NAME ARGUMENTS`. Each prints one JSON
# object when it is done.

from __future__ import annotations

import json
import os
import random
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


async def write_for(path: str, seconds: str) -> dict[str, Any]:
    """As fast as it goes, but for a pause now and then."""
    options = diskq.StreamOptions(partition_count=1, segment_size=64 * 1024)
    end = time.monotonic() + float(seconds)
    sent = 0
    async with diskq.open_producer(path, options=options) as producer:
        while time.monotonic() < end:
            await producer.send_many([value(number) for number in range(sent, sent + 50)], key="k")
            sent += 50
            if sent % 1000 == 0:
                await trio.sleep(0.002)
    return {"sent": sent}


async def read_for(path: str, seconds: str, pause: str) -> dict[str, Any]:
    """Read on; where retention was faster, go on at what is left. Insist on each message."""
    end = trio.current_time() + float(seconds)
    overtaken = received = 0
    async with diskq.open_consumer(path, partitions=[0]) as consumer:
        expected = consumer.position[0]
        with trio.move_on_at(end):
            while True:
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


async def vacuum_for(path: str, seconds: str, max_bytes: str) -> dict[str, Any]:
    """A vacuum each 50 ms; also tells how many bytes the stream took at most, right after one."""
    fs = OsFileSystem()
    files = StreamFiles(fs, path)
    end = time.monotonic() + float(seconds)
    vacuums = most = 0
    while time.monotonic() < end:
        retain(fs, files, max_bytes=int(max_bytes), now_ns=time.time_ns())
        vacuums += 1
        most = max(most, size_of(path))
        await trio.sleep(0.05)
    return {"vacuums": vacuums, "most": most}


def size_of(path: str) -> int:
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                total += os.stat(os.path.join(directory, name)).st_size
            except FileNotFoundError:
                continue
    return total


WORKERS: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
    "produce": produce,
    "consume": consume,
    "write_for": write_for,
    "read_for": read_for,
    "vacuum_for": vacuum_for,
}

if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print(json.dumps(trio.run(WORKERS[name], *arguments)), flush=True)
