# Messages on the write-ahead log: accepted, and written together a moment later. Law: they survive a kill at
# every moment, no task waits for that moment, and it is never long.

from __future__ import annotations

import contextlib
import functools
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import trio

import diskq
from diskq.storage.log.format import read_wal
from diskq.testing import CrashFS, FaultFS, PowerCut
from tests.sampling import spread

WAL = "/q/.diskq/events.wal"
RECORDS = 1160


def disk() -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably("/q")
    return fs


def left_in(fs: CrashFS) -> list[bytes]:
    with diskq.Queue("/q", "events", fs=fs) as queue:
        assert not queue.repairs
        return queue.peek_many(10_000)


def data(fs: CrashFS) -> bytes:
    return fs.files().get("/q/events.diskqueue.000000.dat", b"")


async def test_messages_of_one_slice_wait_for_each_other_and_are_written_together() -> None:
    fs = FaultFS(disk())
    async with diskq.open_queue("/q", "events", fs=fs, checkpoint_slice=60.0) as queue:
        await queue.send(b"sets the clock running")
        await trio.testing.wait_all_tasks_blocked()
        before = len(fs.calls)
        for number in range(100):
            await queue.send(b"%d" % number)
        await trio.testing.wait_all_tasks_blocked()
        writes = [call for call in fs.calls[before:] if call.verb == "pwrite" and call.path.endswith(".dat")]
        assert len(writes) <= 3
        assert queue.statistics().accepted == 101


async def test_at_every_moment_a_kill_loses_nothing_that_was_sent() -> None:
    fs = disk()
    rng = random.Random(1)
    async with diskq.open_queue("/q", "events", fs=fs, checkpoint_slice=60.0, segment_size=20_000) as queue:
        sent = []
        for number in range(400):
            body = b"%06d" % number + rng.randbytes(rng.randrange(900))
            await queue.send(body)
            sent.append(body)
            if rng.random() < 0.1:
                await trio.testing.wait_all_tasks_blocked()
            if number % 7 == 0:
                assert left_in(fs.kill()) == sent


async def test_what_waits_is_written_as_soon_as_the_sender_lets_others_run() -> None:
    fs = disk()
    async with diskq.open_queue("/q", "events", fs=fs, checkpoint_slice=60.0) as queue:
        for number in range(3):
            await queue.send(b"%d" % number)
        waited = data(fs)
        await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        assert len(data(fs)) == 3 * 5 > len(waited)


async def test_a_power_cut_ignores_the_wal() -> None:
    fs = disk()
    async with diskq.open_queue("/q", "events", fs=fs, checkpoint_slice=60.0) as queue:
        await queue.send(b"synced", durability="synced")
        for number in range(50):
            await queue.send(b"%d" % number)
        for seed in range(20):
            after = fs.crash(random.Random(seed))
            with diskq.Queue("/q", "events", fs=after) as survivor:
                found = survivor.peek_many(100)
            expected = [b"synced", *(b"%d" % number for number in range(50))]
            assert found == expected[: len(found)]
            assert found


@pytest.mark.sampled
async def test_a_wal_from_before_a_power_cut_is_never_believed() -> None:
    fs = disk()
    expected = [b"synced", *(b"%d" % number for number in range(50))]
    async with diskq.open_queue("/q", "events", fs=fs, checkpoint_slice=60.0) as queue:
        await queue.send(expected[0], durability="synced")
        for body in expected[1:]:
            await queue.send(body)
        cuts = [fs.crash(random.Random(seed)) for seed in spread(range(12))]
    for after in cuts:
        cut = 0
        while True:  # the first process that opens it is killed at every step
            cut += 1
            first = after.copy()
            first.cut_at = cut
            with contextlib.suppress(PowerCut), diskq.Queue("/q", "events", fs=first):
                pass
            with diskq.Queue("/q", "events", fs=first.kill()) as survivor:
                found = survivor.peek_many(100)
            assert found == expected[: len(found)] != []
            if not first.is_cut:
                break


async def test_a_synced_send_gets_no_error_of_a_full_disk_that_others_met() -> None:
    fs = FaultFS(disk())
    async with diskq.open_queue("/q", "events", fs=fs, memory_flush=3600.0, sync_to="files") as queue:
        fs.delay("sync_files", 0.1)
        synced = functools.partial(queue.send, durability="synced")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(synced, b"first")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(synced, b"must not be lost")  # while the first one's barrier is being paid
            await trio.testing.wait_all_tasks_blocked()
            fs.capacity(2000)
            await queue.send(bytes(10_000), durability="memory")
        with pytest.raises(diskq.DiskFullError):
            await queue.sync()
        assert left_in(fs.inner.crash(random.Random(0)))[:2] == [b"first", b"must not be lost"]
        fs.capacity(None)
        await queue.sync()
        assert len(left_in(fs.inner.crash())) == 3


async def test_closing_on_a_full_disk_syncs_what_is_written() -> None:
    fs = FaultFS(disk())

    async def fill_and_close() -> None:
        async with diskq.open_queue("/q", "events", fs=fs, memory_flush=3600.0) as queue:
            for number in range(50):
                await queue.send(b"%d" % number)
            await trio.testing.wait_all_tasks_blocked()
            fs.capacity(2000)
            await queue.send(bytes(100_000), durability="memory")

    with pytest.raises(diskq.DiskFullError):
        await fill_and_close()
    assert left_in(fs.inner.crash()) == [b"%d" % number for number in range(50)]


async def test_a_clean_close_wipes_the_wal() -> None:
    fs = disk()
    async with diskq.open_queue("/q", "events", fs=fs) as queue:
        for number in range(50):
            await queue.send(b"%d" % number)
    assert read_wal(fs, WAL) is None
    assert len(left_in(fs)) == 50


async def test_a_wal_that_was_written_again_is_not_repeated() -> None:
    fs = disk()
    async with diskq.open_queue("/q", "events", fs=fs, checkpoint_slice=60.0) as queue:
        for number in range(50):
            await queue.send(b"%d" % number)
        killed = fs.kill()
    for _ in range(3):
        assert len(left_in(killed)) == 50
        killed = killed.kill()


async def test_a_garbled_wal_gives_no_message() -> None:
    fs = disk()
    async with diskq.open_queue("/q", "events", fs=fs) as queue:
        await queue.send(b"one", durability="synced")
    for content in (b"\xff" * 65536, b"", b"diskqlog" + b"\xff" * 65528, b"diskqlog" + bytes(65528)):
        fs.write_durably(WAL, content)
        with diskq.Queue("/q", "events", fs=fs.kill()) as survivor:
            assert survivor.peek_many(10) == [b"one"]
            assert all(repair.path == WAL and repair.kept in (0, RECORDS) for repair in survivor.repairs)


async def test_without_room_for_a_wal_each_message_is_written() -> None:
    fs = FaultFS(disk())
    fs.fail("share_memory", error=28)
    async with diskq.open_queue("/q", "events", fs=fs, checkpoint_slice=60.0) as queue:
        for number in range(10):
            await queue.send(b"%d" % number)
        assert len(data(fs.inner)) == 10 * 5


async def test_a_full_disk_raises_in_the_next_sender_and_loses_nothing_accepted() -> None:
    fs = FaultFS(disk())
    async with diskq.open_queue("/q", "events", fs=fs, checkpoint_slice=60.0) as queue:
        await queue.send(b"first")
        fs.capacity(0)
        accepted = [b"first"]

        async def send_until_refused() -> None:
            for number in range(100_000):
                await queue.send(b"%d" % number)
                accepted.append(b"%d" % number)

        with pytest.raises(diskq.DiskFullError):
            await send_until_refused()
        assert left_in(fs.inner.kill()) == accepted
        fs.capacity(None)
        await queue.send(b"last")
        assert await queue.receive_many(100_000) == [*accepted, b"last"]


async def fill_the_disk(queue: diskq.QueueChannel, size: int, accepted: list[bytes]) -> None:
    """Send until the disk refuses."""
    while True:
        body = b"%d" % len(accepted) + bytes(size)
        await queue.send(body)
        accepted.append(body)


@pytest.mark.parametrize("size", [10, 1000])
async def test_a_queue_opens_on_the_disk_that_it_has_filled(size: int) -> None:
    fs = FaultFS(disk())
    accepted: list[bytes] = []

    async def fill() -> None:
        async with diskq.open_queue("/q", "events", fs=fs, checkpoint_slice=60.0) as queue:
            fs.capacity(300 * 1024)
            await fill_the_disk(queue, size, accepted)

    # It is closed, and what stands on the write-ahead log finds no room; the disk is as full as it was.
    with pytest.raises(diskq.DiskFullError):
        await fill()
    async with diskq.open_queue("/q", "events", fs=fs, checkpoint_slice=60.0) as queue:
        assert queue.repairs == ()
        assert await queue.receive_many(100_000) == accepted
    assert left_in(fs.inner) == []


@pytest.mark.parametrize("size", [10, 1000])
async def test_a_queue_that_has_filled_the_disk_accepts_again_when_it_is_consumed(size: int) -> None:
    fs = FaultFS(disk())
    async with diskq.open_queue("/q", "events", fs=fs, checkpoint_slice=60.0) as queue:
        fs.capacity(300 * 1024)
        for _ in range(3):
            accepted: list[bytes] = []
            with pytest.raises(diskq.DiskFullError):
                await fill_the_disk(queue, size, accepted)
            assert sum(map(len, accepted)) > 200 * 1024 * size // (size + 4)
            assert await queue.receive_many(100_000) == accepted
            await queue.sync()
        assert queue.repairs == ()


PRODUCER = """
    import sys, trio, diskq
    async def main():
        async with diskq.open_queue(sys.argv[1], "events") as queue:
            number = 0
            while True:
                await queue.send(b"%d" % number)
                number += 1
                if number % 100 == 0:
                    sys.stdout.write("%d\\n" % number)
                    sys.stdout.flush()
    trio.run(main)
"""


@pytest.mark.parametrize("seed", range(8))
def test_a_real_process_killed_at_any_moment_loses_no_acknowledged_message(tmp_path: Path, seed: int) -> None:
    program = textwrap.dedent(PRODUCER)
    lines = random.Random(seed).randrange(1, 300)
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(lines):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split(b"\n")[:-1]  # but a line that the kill cut short
        told = int(rest[-1]) if rest else lines * 100
    with diskq.Queue(tmp_path, "events") as queue:
        found = queue.get_many(10**7)
    assert found == [b"%d" % number for number in range(len(found))]
    assert len(found) >= told
