# What sej's own tests say of its writer, scanner, offsets and shards, said of our channels.

from __future__ import annotations

import pytest
import trio

from diskq.channels.journal.root_watch import open_root_watch
from diskq.engine.journal.shards import ShardSet
from diskq.errors import LockedError
from tests.channels.journal_rig import JOURNAL, drain, elsewhere, filled, rest, scanning, values, writing
from tests.channels.rig import DIRECTORY, Tasks, numbered

SIZES = pytest.mark.parametrize("size", [0, 50, 10**6])


def sizes(disk):
    return [len(content) for path, content in sorted(disk.files().items()) if path.endswith(".jnl")]


async def test_write_lock(disk):
    async with writing(disk):
        with pytest.raises(LockedError):
            await writing(disk).__aenter__()
    async with writing(disk):
        pass


async def test_offset_lock_and_offset(disk):
    filled(disk, 2)
    async with scanning(disk, reader="r") as scanner:
        assert scanner.position == 0
        with pytest.raises(LockedError):
            await scanning(disk, reader="r").__aenter__()
        await scanner.commit(await scanner.receive())
    async with scanning(disk, reader="r") as scanner:
        assert scanner.position == 1
    async with scanning(disk, reader="last", start="newest") as scanner:
        assert scanner.position == 2


async def test_watch(disk):
    for path in ("root", "root/d1", "root/d2"):
        filled(disk, 1, f"{DIRECTORY}/{path}")
    async with open_root_watch(f"{DIRECTORY}/root", fs=disk) as found:
        told = [found.receive_nowait() for _ in range(3)]
        assert told == [f"{DIRECTORY}/root", f"{DIRECTORY}/root/d1", f"{DIRECTORY}/root/d2"]
        with pytest.raises(trio.WouldBlock):
            found.receive_nowait()


@SIZES
async def test_scan_from_each_offset_through_segment_boundaries(disk, size):
    filled(disk, 9, segment_size=size)
    for start in range(10):
        async with scanning(disk, start=start, end="close") as scanner:
            assert values(await rest(scanner)) == numbered(9)[start:]
            assert scanner.position == 9


@SIZES
async def test_scan_before_write(disk, autojump_clock, size):
    filled(disk, 0)
    async with scanning(disk, end=4) as scanner, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("scan", rest, scanner)
        with elsewhere(disk, segment_size=size) as journal:
            for body in numbered(5):
                journal.append(body)
        with trio.fail_after(5):
            while "scan" not in tasks:  # noqa: ASYNC110 (files are looked at now and then)
                await trio.sleep(0.1)
        assert values(tasks["scan"]) == numbered(5)


async def test_scan_timeout_and_again(disk, autojump_clock):
    async with writing(disk) as journal, journal.open_scanner() as scanner:
        for body in numbered(3):
            with pytest.raises(trio.TooSlowError), trio.fail_after(1):
                await scanner.receive()
            await journal.send(body)
            assert (await scanner.receive()).value == body


async def test_write_flush(disk):
    async with writing(disk) as journal:
        await journal.send(b"x")
        async with scanning(disk.kill()) as scanner:
            assert values(drain(scanner)) == [b"x"]


async def test_write_segment(disk):
    async with writing(disk, segment_size=0) as journal:
        for _ in range(3):
            await journal.send(b"x")
    assert sizes(disk) == [27, 27, 27, 0]


@pytest.mark.parametrize("size", [0, 50])
async def test_write_reopen(disk, size):
    for number in range(4):
        async with writing(disk, segment_size=size) as journal:
            assert await journal.send(b"%d" % number) == number
    async with scanning(disk, end="close") as scanner:
        assert values(await rest(scanner)) == numbered(4)


async def test_write_detect_corruption(disk):
    filled(disk, 2)
    path = f"{JOURNAL}/jnl/{0:016x}.jnl"
    disk.write_durably(path, disk.read(path)[:-1])
    async with writing(disk) as journal:  # sej's fails the first time
        assert journal.repairs
        assert await journal.send(b"after") == 2  # message 1 was there: its offset is not given again
    async with scanning(disk, end="close") as scanner:
        assert values(await rest(scanner)) == [b"0", b"after"]


def test_shard_directory():
    for prefix, bits, index, name in [
        ("", 1, 0, "1.000"),
        ("", 10, 1023, "a.3ff"),
        ("blue", 3, 7, "blue.3.007"),
        ("blue", 9, 0x1FF, "blue.9.1ff"),
        ("a_b-C", 4, 15, "a_b-C.4.00f"),
        ("plain", 0, 0, "plain"),
    ]:
        assert ShardSet("/r", prefix, bits).path(index) == f"/r/{name}"
