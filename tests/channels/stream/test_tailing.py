# Consumers of a stream that another process writes: nothing is lost, nothing comes twice, whatever the
# writer does, and what a killed member of a group had is read by another.

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
import trio

from diskq.channels.stream.consumer import open_consumer
from diskq.channels.stream.producer import open_producer
from diskq.messages import Message
from tests.channels.rig import numbered
from tests.sampling import first

PRODUCE = """
import sys, trio
from diskq import open_producer

path, count, pace, options = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), eval(sys.argv[4])

async def main():
    async with open_producer(path, **options) as producer:
        for number in range(count):
            await producer.send(b"%d" % number, b"key-%d" % (number % 5))
            if pace:
                await trio.sleep(pace)
        print("sent", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)

trio.run(main)
"""

MEMBER = """
import sys, trio
from diskq import open_consumer

async def main():
    async with open_consumer(sys.argv[1], group="g") as consumer:
        for _ in range(int(sys.argv[2])):
            message = await consumer.receive()
            await consumer.commit(message)
        await consumer.sync()
        for _ in range(int(sys.argv[3])):
            await consumer.receive()
        print("received", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@asynccontextmanager
async def another_process(script: str, *arguments: object) -> AsyncIterator[trio.Process]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    process = await trio.lowlevel.open_process(command, stdin=PIPE, stdout=PIPE)
    try:
        yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def said(process: trio.Process, word: bytes) -> None:
    assert process.stdout is not None
    heard = b""
    while not heard.endswith(b"\n"):
        heard += await process.stdout.receive_some()
    assert heard == word + b"\n"


def check(messages: list[Message], count: int) -> None:
    """Each message once, and each partition's in order."""
    assert sorted(message.value for message in messages) == sorted(numbered(count))
    for partition in {message.partition for message in messages}:
        offsets = [message.offset for message in messages if message.partition == partition]
        assert offsets == list(range(len(offsets)))


@pytest.mark.slow
@pytest.mark.parametrize("pace", first(1, [0.0002, 0]), ids=["paced", "burst"])
@pytest.mark.parametrize("how", first(1, ["one by one", "many at once"]))
async def test_a_thousand_rolls_of_another_process_are_followed(tmp_path, pace, how):
    count = 10_000 if not pace else 2_000
    async with open_producer(tmp_path / "s", partition_count=2, segment_size=256):
        pass
    before = len(os.listdir("/proc/self/fd"))
    messages: list[Message] = []
    async with (
        open_consumer(tmp_path / "s") as consumer,
        another_process(PRODUCE, tmp_path / "s", count, pace, {"partition_count": 2, "segment_size": 256}),
    ):
        with trio.fail_after(120):
            while len(messages) < count:
                if how == "one by one":
                    messages.append(await consumer.receive())
                else:
                    messages += await consumer.receive_many(100)
        assert consumer.losses == ()
        assert len(os.listdir("/proc/self/fd")) < before + 20
    check(messages, count)
    rolls = sum(len(list(part.glob("*.index"))) - 1 for part in (tmp_path / "s" / "parts").iterdir())
    assert rolls > 0.09 * count


async def test_partitions_that_another_process_makes_are_noticed(tmp_path):
    async with open_producer(tmp_path / "s", partition_count=1):
        pass
    async with (
        open_consumer(tmp_path / "s") as consumer,
        another_process(PRODUCE, tmp_path / "s", 500, 0, {"partition_count": 4}),
    ):
        with trio.fail_after(60):
            messages = [await consumer.receive() for _ in range(500)]
        check(messages, 500)
        assert {message.partition for message in messages} > {0}


async def test_a_killed_producers_messages_are_received_once_the_next_one_has_opened(tmp_path):
    options: dict[str, Any] = {"partition_count": 2, "segment_size": 1024}
    async with open_producer(tmp_path / "s", **options):
        pass
    async with open_consumer(tmp_path / "s") as consumer:
        for _ in range(3):
            async with another_process(PRODUCE, tmp_path / "s", 300, 0, options) as producer:
                await said(producer, b"sent")
                os.kill(producer.pid, signal.SIGKILL)
                await producer.wait()
            async with open_producer(tmp_path / "s"):
                with trio.fail_after(60):
                    got = [await consumer.receive() for _ in range(300)]
            assert sorted(message.value for message in got) == sorted(numbered(300))
        assert consumer.losses == ()


async def test_partitions_of_a_killed_member_are_taken_over_after_its_commits(tmp_path: Path):
    async with open_producer(tmp_path / "s", partition_count=3) as producer:
        for number in range(300):
            await producer.send(b"%d" % number, b"key-%d" % number)
    async with another_process(MEMBER, tmp_path / "s", 100, 50) as member:
        await said(member, b"received")
        async with open_consumer(tmp_path / "s", group="g", claim_interval=0.05) as consumer:
            with trio.move_on_after(0.2):
                await consumer.receive()
            assert consumer.position == {}
            os.kill(member.pid, signal.SIGKILL)
            await member.wait()
            with trio.fail_after(60):
                messages = [await consumer.receive() for _ in range(200)]
            assert len({message.value for message in messages}) == 200
            assert set(consumer.position) == {0, 1, 2}
            with pytest.raises(trio.WouldBlock):
                consumer.receive_nowait()
