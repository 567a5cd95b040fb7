# A stream's messages on the write-ahead log: accepted, and written with their rows a moment later. What is
# told here: they outlive a kill at every moment, and readers of the same run do not wait for them.

from __future__ import annotations

import errno
import random

import pytest
import trio

import diskq
from diskq.engine.stream.files import StreamFiles
from diskq.storage.log.format import ROWS_SIZE, read_wal
from diskq.testing import CrashFS, FaultFS


def disk() -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably("/q")
    return fs


async def left_in(fs: CrashFS) -> list[tuple[int, bytes]]:
    diskq.Stream("/q/s", fs=fs).close()
    async with diskq.open_consumer("/q/s", end="close", fs=fs) as consumer:
        assert not consumer.losses
        return sorted((message.partition, message.value) for message in await consumer.receive_many(10_000))


async def test_messages_of_one_slice_are_written_together() -> None:
    fs = FaultFS(disk())
    async with diskq.open_producer("/q/s", partition_count=1, fs=fs, checkpoint_slice=60.0) as producer:
        await producer.send(b"sets the clock running")
        await trio.testing.wait_all_tasks_blocked()
        before = len(fs.calls)
        for number in range(100):
            await producer.send(b"%d" % number)
        await producer.send_many([b"%d" % number for number in range(100)])
        await trio.testing.wait_all_tasks_blocked()
        writes = [
            call for call in fs.calls[before:] if call.verb == "pwrite" and call.path.endswith("0.data")
        ]
        assert len(writes) <= 3
        assert producer.statistics().accepted == 201


async def test_at_every_moment_a_kill_loses_nothing_that_was_sent() -> None:
    fs = disk()
    rng = random.Random(1)
    sent: list[tuple[int, bytes]] = []
    async with diskq.open_producer("/q/s", segment_size=20_000, fs=fs, checkpoint_slice=60.0) as producer:
        for number in range(300):
            values = [b"%06d-%d" % (number, part) + rng.randbytes(rng.randrange(900)) for part in range(3)]
            if number % 3:
                position = await producer.send(values[0], key=b"%d" % rng.randrange(9))
                sent.append((position.partition, values[0]))
            else:
                key = b"%d" % rng.randrange(9)
                (partition,) = await producer.send_many(values, key=key)
                sent += [(partition, value) for value in values]
            if rng.random() < 0.1:
                await trio.testing.wait_all_tasks_blocked()
            if number % 7 == 0:
                assert await left_in(fs.kill()) == sorted(sent)


async def test_a_power_cut_ignores_the_wal() -> None:
    fs = disk()
    async with diskq.open_producer("/q/s", partition_count=1, fs=fs, checkpoint_slice=60.0) as producer:
        expected = [b"synced", *(b"%03d" % number for number in range(50))]
        await producer.send(expected[0], durability="synced")
        for value in expected[1:]:
            await producer.send(value)
        for seed in range(20):
            found = [value for _, value in await left_in(fs.crash(random.Random(seed)))]
            assert sorted(found) == sorted(expected[: len(found)])
            assert found


async def test_a_reader_of_the_same_run_is_handed_what_stands_on_the_wal() -> None:
    fs = disk()
    received: list[bytes] = []
    async with (
        diskq.open_producer("/q/s", partition_count=1, fs=fs, checkpoint_slice=60.0) as producer,
        diskq.open_consumer("/q/s", fs=fs) as consumer,
        trio.open_nursery() as nursery,
    ):

        async def receive() -> None:
            while len(received) < 30:
                received.append((await consumer.receive()).value)

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(30):
            await producer.send(b"%d" % number)
            if number % 10 == 9:
                await trio.testing.wait_all_tasks_blocked()
                assert len(received) == number + 1
    assert received == [b"%d" % number for number in range(30)]


async def test_what_finds_no_room_until_the_end_is_there_at_the_next_open() -> None:
    inner = disk()
    fs = FaultFS(inner)

    async def fill_the_disk() -> None:
        async with diskq.open_producer("/q/s", partition_count=1, fs=fs, checkpoint_slice=60.0) as producer:
            await producer.send(b"written")
            fs.fail("pwrite", error=errno.ENOSPC, path="*.data", times=None)
            for number in range(3):
                await producer.send(b"%d" % number)

    with pytest.raises(diskq.DiskFullError):
        await fill_the_disk()
    assert await left_in(inner) == [(0, b"0"), (0, b"1"), (0, b"2"), (0, b"written")]
    assert "/q/s/owner" not in inner.files()


async def fill_the_disk(fs: FaultFS[CrashFS], sent: list[bytes], partitions: int = 4) -> None:
    """Send until the disk refuses, with as much as can be on the write-ahead logs, and leave."""
    async with diskq.open_producer(
        "/q/s", partition_count=partitions, fs=fs, checkpoint_slice=60.0
    ) as producer:
        fs.capacity(300 * 1024)
        with pytest.raises(diskq.DiskFullError):  # noqa: PT012
            while True:
                value = b"%06d" % len(sent) + bytes(300)
                await producer.send(value)
                sent.append(value)


async def test_leaving_on_a_full_disk_has_room_for_what_was_accepted() -> None:
    fs, sent = FaultFS(disk()), list[bytes]()
    await fill_the_disk(fs, sent)
    fs.capacity(0)  # another program took the space that this freed
    # The write-ahead log that is left makes room for the next open.
    async with diskq.open_producer("/q/s", fs=fs, checkpoint_slice=60.0) as producer:
        assert producer.repairs == ()
        assert sorted(value for _, value in await left_in(fs.inner.kill())) == sent
        fs.capacity(None)
        await producer.send(b"there is room again")
    assert sorted(value for _, value in await left_in(fs.inner)) == [*sent, b"there is room again"]


async def test_after_a_kill_every_wal_makes_room_for_the_next_one() -> None:
    fs, sent = FaultFS(disk()), list[bytes]()
    async with diskq.open_producer("/q/s", partition_count=4, fs=fs, checkpoint_slice=60.0) as producer:
        # What does not fit is refused: all write-ahead logs are nearly full, and nothing of them is written.
        while len(sent) < 700:
            sent.append(b"%06d" % len(sent) + bytes(300))
            await producer.send(sent[-1])
        killed = FaultFS(fs.inner.kill())
    assert sum(size_of_waiting(killed.inner, index) for index in range(4)) > 2 * 64 * 1024
    killed.capacity(0)
    async with diskq.open_producer("/q/s", fs=killed, checkpoint_slice=60.0) as producer:
        assert producer.repairs == ()
    assert sorted(value for _, value in await left_in(killed.inner)) == sent


def size_of_waiting(fs: CrashFS, index: int) -> int:
    files = StreamFiles(fs, "/q/s").partition(index)
    waiting = read_wal(fs, files.wal)
    if waiting is None:
        return 0
    return waiting.end - (fs.size_of(files.data(waiting.file)) or 0)


async def test_without_amortised_schedule_points_no_message_waits_on_a_wal() -> None:
    fs = disk()
    async with diskq.open_producer("/q/s", partition_count=1, fs=fs, checkpoint_slice=0) as producer:
        await producer.send(b"written when it returns")
        (wal,) = [content for path, content in fs.files().items() if path.endswith("/wal")]
        assert len(wal) == ROWS_SIZE
