# Shards: one log in several journals, written by key, read in turn; and journals that are found as they come.

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import trio

from diskq.channels.journal.root_watch import open_root_watch
from diskq.channels.journal.scanner import open_scanner
from diskq.channels.journal.shard_scanner import open_shard_scanner
from diskq.channels.journal.shard_writer import open_shards
from diskq.channels.journal.writer import open_journal
from diskq.engine.journal.shards import ShardSet, key_hash
from diskq.errors import LockedError, NotFoundError, ShardNameError
from diskq.storage.fs import OsFileSystem
from tests.channels.journal_rig import elsewhere, filled, rest
from tests.channels.rig import DIRECTORY, Tasks, blocked, fault_disk

GOLDEN = Path(__file__).parents[2] / "golden" / "sej" / "shards" / "data"


# --- names, and which key goes where ----------------------------------------------------------


@pytest.mark.parametrize("prefix", ["a/b", "..", "a.b", "a b", "ä", "x\n", "ok\0", 7, None])
def test_a_prefix_is_judged_whole(prefix):
    with pytest.raises(ShardNameError):
        ShardSet("/root", prefix, 3)


def test_names_are_those_of_sej():
    assert ShardSet("/r", "blue", 3).path(5) == "/r/blue.3.005"
    assert ShardSet("/r", "", 10).path(0x120) == "/r/a.120"
    assert ShardSet("/r", "plain", 0).path(0) == "/r/plain"
    for bits, error in [(11, ValueError), (-1, ValueError), (True, TypeError), (0, ShardNameError)]:
        with pytest.raises(error):
            ShardSet("/r", "", bits)


async def test_what_sej_has_sharded_lies_where_we_would_put_it(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "r")
    async with open_shard_scanner(tmp_path / "r", "blue", 3, end="close") as scanner:
        found = await rest(scanner)
    assert len(found) == 40
    for message in found:
        assert key_hash(message.key) & 7 == message.partition


# --- writing ----------------------------------------------------------------------------------


async def test_a_shard_that_is_not_there_is_made_only_where_it_may_be(tmp_path):
    async with open_shards(tmp_path, "web", 1) as shards:
        made = (await shards.send(b"made", "a")).partition
    other = next(key for key in map(str, range(99)) if shards.shard_of(key) != made)
    async with open_shards(tmp_path, "web", 1, create=False) as shards:
        await shards.send(b"there", "a")
        with pytest.raises(NotFoundError):
            await shards.send(b"not there", other)


async def test_each_key_has_its_journal_and_its_order(tmp_path):
    async with open_shards(tmp_path, "web", 2, max_open=2) as shards:

        async def send(task):
            for number in range(30):
                key = f"{task}-{number % 5}"
                place = await shards.send(b"%d" % number, key)
                assert place.partition == shards.shard_of(key)
                assert len(shards.statistics()) <= 2

        async with trio.open_nursery() as nursery:
            for task in range(4):
                nursery.start_soon(send, task)
    order = defaultdict(list)
    async with open_shard_scanner(tmp_path, "web", 2, end="close") as scanner:
        for message in await rest(scanner):
            order[message.key].append(int(message.value))
    assert len(order) == 20
    assert all(numbers == sorted(numbers) and len(numbers) == 6 for numbers in order.values())


async def test_journals_are_opened_when_they_are_needed(tmp_path):
    async with open_shards(tmp_path, "web", 3) as shards:
        assert list(tmp_path.iterdir()) == []
        place = await shards.send(b"x", "key")
        assert [path.name for path in tmp_path.iterdir()] == [f"web.3.{place.partition:03x}"]


async def test_many_are_sent_at_once_and_an_own_hash_decides(tmp_path):
    async with open_shards(tmp_path, "", 1, hash=len) as shards:
        told = await shards.send_many([(b"a", b"0"), (b"bb", b"1"), b"2", (b"c", b"3", 5, 7)])
        assert told == {0: range(2), 1: range(2)}
        await shards.sync()
    async with open_scanner(tmp_path / "1.001", end="close") as scanner:
        assert [(m.value, m.type) for m in await rest(scanner)] == [(b"0", 0), (b"3", 7)]


async def test_a_cancelled_sender_has_sent_nothing(tmp_path):
    async with open_shards(tmp_path, "web", 2) as shards:
        with trio.CancelScope() as scope:
            scope.cancel()
            await shards.send_many([(b"%d" % number, b"x") for number in range(20)])
        assert scope.cancelled_caught
        with trio.CancelScope() as scope:
            scope.cancel()
            await shards.send(b"x", b"k")
    async with open_shard_scanner(tmp_path, "web", 2, end="close") as scanner:
        assert await rest(scanner) == []


async def test_all_are_synced_when_the_block_is_left_and_what_it_raises_is_as_it_was(disk):

    async def run():
        async with open_shards(DIRECTORY, "web", 2, fs=disk) as shards:
            for number in range(20):
                await shards.send(b"x", f"{number}")
            raise KeyError

    with pytest.raises(KeyError):
        await run()
    async with open_shard_scanner(DIRECTORY, "web", 2, end="close", fs=disk.crash()) as scanner:
        assert len(await rest(scanner)) == 20


async def test_a_journal_with_another_writer_raises_and_is_tried_again(tmp_path):
    async with open_shards(tmp_path, "web", 1) as shards:
        async with open_journal(tmp_path / f"web.1.{shards.shard_of('k'):03x}"):
            with pytest.raises(LockedError):
                await shards.send(b"x", "k")
        assert (await shards.send(b"x", "k")).offset == 0


async def test_a_disk_that_fails_as_a_journal_is_closed_is_reported():
    disk = fault_disk()

    async def run():
        async with open_shards(DIRECTORY, "web", 1, fs=disk) as shards:
            await shards.send(b"x", "k")
            disk.fail("sync_files", times=None)

    with pytest.raises(trio.BrokenResourceError):
        await run()


def test_one_journal_at_least_is_open(tmp_path):
    with pytest.raises(ValueError, match="max_open"):
        open_shards(tmp_path, "web", 1, max_open=0)


# --- reading ----------------------------------------------------------------------------------


async def test_all_shards_are_read_in_turn(disk):
    shards = ShardSet(DIRECTORY, "web", 2)
    for index in range(4):
        filled(disk, 600, shards.path(index))
    async with open_shard_scanner(DIRECTORY, "web", 2, end="close", fs=disk) as scanner:
        found = [message.partition for message in await rest(scanner)]
    assert Counter(found) == dict.fromkeys(range(4), 600)
    assert set(found[:1024]) == set(range(4))


@pytest.mark.parametrize("where", ["in this run", "elsewhere"])
async def test_shards_that_are_made_later_are_read(tmp_path, where):
    async with (
        open_shard_scanner(tmp_path, "web", 2, start="newest") as scanner,
        open_shards(tmp_path, "web", 2) as shards,
    ):
        for number in range(40):
            key = f"{number}"
            if where == "in this run":
                await shards.send(b"%d" % number, key)
            else:
                path = ShardSet(str(tmp_path), "web", 2).path(shards.shard_of(key))
                with elsewhere(OsFileSystem(), path) as journal:
                    journal.append(b"%d" % number, key)
            with trio.fail_after(60):
                assert (await scanner.receive()).value == b"%d" % number
        assert sum(scanner.position.values()) == 40
        await scanner.seek("oldest")
        assert sum(scanner.position.values()) == 0


async def test_a_waiting_task_is_woken_by_any_shard(tmp_path):
    async with open_shards(tmp_path, "web", 3) as shards:
        for number in range(30):
            await shards.send(b"old", f"{number}")
        async with open_shard_scanner(tmp_path, "web", 3, start="newest") as scanner:
            for number in range(30):
                async with trio.open_nursery() as nursery:
                    tasks = Tasks(nursery)
                    await tasks.start("waits", scanner.receive)
                    await shards.send(b"%d" % number, f"{number}")
                    await blocked()
                    assert tasks["waits"].value == b"%d" % number


async def test_a_named_reader_has_a_place_in_each_shard(tmp_path):
    async with open_shards(tmp_path, "web", 2) as shards:
        for number in range(40):
            await shards.send(b"%d" % number, f"{number}")
    async with open_shard_scanner(tmp_path, "web", 2, reader="billing") as scanner:
        first = [await scanner.receive() for _ in range(25)]
        await scanner.commit()
    async with open_shard_scanner(tmp_path, "web", 2, reader="billing", end="close") as scanner:
        second = await rest(scanner)
    assert sorted(int(message.value) for message in first + second) == list(range(40))


# --- watching a root --------------------------------------------------------------------------


async def test_journals_are_reported_once_each_as_they_appear(tmp_path):
    fs = OsFileSystem()
    filled(fs, 1, tmp_path / "a")
    (tmp_path / "none").mkdir()
    async with open_root_watch(tmp_path) as found:
        assert await found.receive() == str(tmp_path / "a")
        with pytest.raises(trio.WouldBlock):
            found.receive_nowait()
        for name in "bcd":
            async with trio.open_nursery() as nursery:
                tasks = Tasks(nursery)
                await tasks.start(name, found.receive)
                filled(fs, 1, tmp_path / name)
                with trio.fail_after(60):
                    while name not in tasks:  # noqa: ASYNC110 (the kernel reports it)
                        await trio.sleep(0.001)
                assert tasks[name] == str(tmp_path / name)
        shutil.rmtree(tmp_path / "b")
        with pytest.raises(trio.WouldBlock):
            found.receive_nowait()
        filled(fs, 1, tmp_path / "b")
        with trio.fail_after(60):
            assert await found.receive() == str(tmp_path / "b")


async def test_a_root_that_is_not_there_is_waited_for_and_a_wait_can_be_cancelled(disk, autojump_clock):
    async with open_root_watch(f"{DIRECTORY}/later", fs=disk) as found:
        with trio.move_on_after(3) as scope:
            await found.receive()
        assert scope.cancelled_caught
        filled(disk, 1, f"{DIRECTORY}/later/x")
        with trio.fail_after(60):
            assert await found.receive() == f"{DIRECTORY}/later/x"


async def test_a_root_may_be_a_journal_itself_and_closing_wakes_waiting_tasks(disk):
    filled(disk, 1)
    async with open_root_watch(f"{DIRECTORY}/j", fs=disk) as found, trio.open_nursery() as nursery:
        assert await found.receive() == f"{DIRECTORY}/j"
        tasks = Tasks(nursery)
        await tasks.start("waits", found.receive)
        found.close()
        await blocked()
        assert isinstance(tasks["waits"], trio.ClosedResourceError)
