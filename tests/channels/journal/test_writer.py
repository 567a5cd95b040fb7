# The writing side of a journal as a Trio channel: what each call does, and what it promises.

from __future__ import annotations

import errno
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import assert_checkpoints, assert_no_checkpoints

from diskq.channels.journal.writer import JournalWriter, open_journal
from diskq.errors import DiskFullError, KeySizeError, LockedError, MessageSizeError
from diskq.messages import NULL_TIMESTAMP
from diskq.storage.fs import OsFileSystem
from diskq.testing import CrashFS, FaultFS
from tests.channels.journal_rig import JOURNAL, drain, recovered, stored, values, writing
from tests.channels.rig import PatientDisk, Tasks, blocked, fault_disk, numbered, until

Open = Callable[..., open_journal]


@pytest.fixture(params=["in memory", "on disk"])
def open_one(request: pytest.FixtureRequest, tmp_path: Path, disk: CrashFS) -> Open:
    """Opens one and the same journal, with options: on a disk in memory, and on the real one."""
    if request.param == "in memory":
        return partial(writing, disk)
    return partial(open_journal, tmp_path / "j", fs=OsFileSystem())


# --- sending ----------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["memory", "written", "synced"])
async def test_offsets_are_given_in_the_order_of_the_calls(disk, durability):
    async with writing(disk, durability=durability, segment_size=100) as journal:
        assert [await journal.send(body) for body in numbered(10)] == list(range(10))
        assert await journal.send_many(numbered(10, start=10)) == range(10, 20)
        assert journal.send_nowait(b"20") == 20
        assert journal.next_offset == 21
    assert values(stored(disk)) == numbered(21)


async def test_a_message_comes_back_as_it_was_given(open_one):
    moment = datetime(2013, 7, 4, 10, tzinfo=UTC)
    async with open_one() as journal:
        assert isinstance(journal, JournalWriter)
        await journal.send(bytearray(b"a"), "key", moment, 7)
        await journal.send(b"", b"\x00\xff", NULL_TIMESTAMP)
        await journal.send_many([b"c", ("k", b"d"), (b"k", b"e", 5), (None, b"f", None, 255)])
        async with journal.open_scanner(end="close") as scanner:
            found = [message async for message in scanner]
    assert [(m.value, m.key, m.type) for m in found] == [
        (b"a", b"key", 7),
        (b"", b"\x00\xff", 0),
        (b"c", b"", 0),
        (b"d", b"k", 0),
        (b"e", b"k", 0),
        (b"f", b"", 255),
    ]
    assert [found[0].timestamp, found[1].timestamp, found[4].timestamp_ns] == [moment, None, 5]


REFUSED: list[tuple[tuple[Any, ...], type[Exception]]] = [
    (("text",), TypeError),
    ((b"x", 7), TypeError),
    ((b"x", "k", "today"), TypeError),
    ((b"x", "k", datetime(2024, 1, 1)), ValueError),
    ((b"x", "k", None, 256), ValueError),
    ((b"x", "k" * 128), KeySizeError),
    ((b"12345",), MessageSizeError),
]


@pytest.mark.parametrize("message, error", REFUSED)
async def test_what_is_refused_is_not_in(disk, message, error):
    async with writing(disk, max_message_size=4) as journal:
        with pytest.raises(error):
            await journal.send(*message)
        with pytest.raises(error):
            journal.send_nowait(*message)
        item = (message[1], message[0], *message[2:]) if len(message) > 1 else message[0]
        with pytest.raises(error):
            await journal.send_many([b"fine", item])
        with pytest.raises(ValueError, match="durability is one of"):
            await journal.send(b"x", durability="maybe")  # type: ignore[arg-type]
        assert await journal.send(b"next") == 0
    assert values(stored(disk)) == [b"next"]


async def test_many_tasks_and_clones_send_at_once(open_one):
    async with open_one(segment_size=500) as journal:

        async def send(handle, name):
            async with handle:
                for number in range(50):
                    await handle.send(b"%s-%d" % (name, number))
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for name in (b"a", b"b", b"c"):
                nursery.start_soon(send, journal.clone(), name)
        assert journal.statistics().open_handles == 1
        async with journal.open_scanner(end="close") as scanner:
            found = values([message async for message in scanner])
    for name in (b"a", b"b", b"c"):
        mine = [value for value in found if value.startswith(name)]
        assert mine == [b"%s-%d" % (name, number) for number in range(50)]


# --- what the words promise -------------------------------------------------------------------


async def test_written_survives_the_process(disk):
    async with writing(disk) as journal:
        for body in numbered(5):
            await journal.send(body)
            assert stored(disk.kill())[-1].value == body
        await journal.send_many(numbered(5, start=5))
        assert values(stored(disk.kill())) == numbered(10)


async def test_synced_survives_a_power_cut(disk):
    async with writing(disk, segment_size=60) as journal:
        for body in numbered(5):
            await journal.send(body, durability="synced")
            assert recovered(disk.crash())[-1].value == body
        await journal.send(b"5")
        await journal.sync()
        assert values(stored(disk.crash())) == numbered(6)
        assert journal.statistics().synced_offset == 6


async def test_sixteen_synced_sends_share_their_barriers():
    disk = PatientDisk()
    async with writing(disk) as journal, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        disk.hold()
        before = journal.statistics().barriers
        for number in range(16):
            await tasks.start(number, journal.send, b"x", durability="synced")
        assert not tasks.ended
        assert journal.statistics().tasks_waiting_send == 16
        disk.let_go()
        await until(lambda: len(tasks.ended) == 16)
        assert journal.statistics().barriers - before == 2


def log_writes(disk: FaultFS[CrashFS]) -> int:
    """Writes to the journal's file, without its checksums."""
    return sum(call.verb == "pwrite" and call.path.startswith(f"{JOURNAL}/jnl/") for call in disk.calls)


async def test_tasks_that_wait_for_the_disk_share_the_write_too():
    disk = fault_disk()
    async with writing(disk, durability="synced") as journal:
        await journal.send(b"first")
        disk.calls.clear()
        async with trio.open_nursery() as nursery:
            tasks = Tasks(nursery)
            for number in range(20):
                tasks.start_soon(number, journal.send, b"%d" % number)
        assert log_writes(disk) == 2, "the first one is alone yet"
        sent = {tasks[number]: b"%d" % number for number in range(20)}
        found = values(recovered(disk.inner.crash()))
        assert found == [b"first", *(sent[offset] for offset in range(1, 21))]


@pytest.mark.parametrize("act", ["send", "send_nowait", "send_many", "a large one", "sync", "leave"])
async def test_what_waits_to_be_written_is_written_before_what_comes_after_it(act):
    disk = PatientDisk()
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        async with writing(disk) as journal:
            await journal.send(b"0")
            disk.hold()
            await tasks.start("holds", journal.sync)
            await tasks.start("waits", journal.send, b"1", durability="synced")
            disk.calls.clear()
            match act:
                case "send":
                    assert await journal.send(b"2") == 2
                case "send_nowait":
                    assert journal.send_nowait(b"2") == 2
                case "send_many":
                    assert await journal.send_many([b"2", b"3"]) == range(2, 4)
                case "a large one":
                    await tasks.start("large", journal.send, b"x" * 100_000, durability="synced")
                case "sync":
                    await tasks.start("sync", journal.sync)
            disk.let_go()
            if act == "sync":
                await until(lambda: "sync" in tasks)
                assert tasks["waits"] == 1
        await until(lambda: "waits" in tasks)
        assert tasks["waits"] == 1
        assert values(stored(disk.inner.crash()))[:2] == [b"0", b"1"]


async def test_a_scanner_of_this_run_gets_what_was_gathered():
    disk = fault_disk()
    async with writing(disk, durability="synced") as journal, journal.open_scanner() as scanner:
        async with trio.open_nursery() as nursery:
            tasks = Tasks(nursery)
            await tasks.start("received", scanner.receive_many, 10)
            for number in range(3):
                tasks.start_soon(number, journal.send, b"x")
        assert [message.value for message in tasks["received"]][:1] == [b"x"]


async def test_a_cancelled_send_is_in_no_group():
    async with writing(fault_disk(), durability="synced") as journal, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        tasks.start_soon("sent", journal.send, b"x")
        with trio.CancelScope() as scope:
            scope.cancel()
            await journal.send(b"never")
        await until(lambda: "sent" in tasks)
        assert scope.cancelled_caught
        assert journal.next_offset == 1


async def test_a_closed_handle_adds_nothing_to_a_group():
    async with writing(fault_disk(), durability="synced") as journal, trio.open_nursery() as nursery:
        other = journal.clone()
        await other.send(b"x")
        nursery.start_soon(journal.send, b"x")
        await trio.lowlevel.checkpoint()
        other.close()
        with pytest.raises(trio.ClosedResourceError):
            await other.send(b"never")


async def test_what_is_in_memory_is_written_before_long(disk, autojump_clock):
    async with writing(disk, durability="memory", memory_flush=0.01) as journal:
        await journal.send(b"x")
        await trio.sleep(0.02)
        assert values(stored(disk)) == [b"x"]


# --- waiting, and being cancelled -------------------------------------------------------------


async def test_a_sender_waits_for_space_and_a_cancelled_one_has_sent_nothing():
    disk = PatientDisk()
    async with writing(disk, max_unsynced=100) as journal, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        disk.hold()
        await journal.send(b"x" * 60)
        await tasks.start("waits", journal.send, b"second" * 10)
        await tasks.start("cancelled", journal.send, b"third" * 10)
        with pytest.raises(trio.WouldBlock):
            journal.send_nowait(b"fourth" * 10)
        tasks.scopes["cancelled"].cancel()
        await blocked()
        assert tasks.ended == [("cancelled", "cancelled")]
        disk.let_go()
        await until(lambda: "waits" in tasks)
        assert tasks["waits"] == 1
        assert journal.next_offset == 2


async def test_in_strict_mode_each_call_is_a_schedule_point(disk):
    async with writing(disk, checkpoint_slice=0) as journal:
        with assert_checkpoints():
            await journal.send(b"x")
        with assert_checkpoints():
            await journal.send_many([b"y"])
        with assert_no_checkpoints():
            journal.send_nowait(b"z")


# --- one writer, and what goes wrong ----------------------------------------------------------


async def test_there_is_one_writer_and_the_lock_file_stays(disk):
    async with writing(disk):
        with pytest.raises(LockedError):
            await writing(disk).__aenter__()
    assert disk.size_of(f"{JOURNAL}/jnl.lck") is not None
    async with writing(disk) as journal:
        assert await journal.send(b"x") == 0


async def test_a_full_disk_refuses_and_what_is_in_stays_in():
    disk = fault_disk()
    async with writing(disk, checkpoint_slice=60.0) as journal:
        await journal.send(b"before")
        disk.fail("pwrite", error=errno.ENOSPC, times=None)
        with pytest.raises(DiskFullError):
            await journal.send(b"x" * 1000, durability="written")
        disk.heal()
        assert await journal.send(b"after") == 1
        async with journal.open_scanner() as scanner:
            assert values(drain(scanner)) == [b"before", b"after"]


async def test_a_synced_batch_after_waiting_ones_is_refused_without_space():
    disk = fault_disk()
    async with writing(disk, checkpoint_slice=60.0) as journal:
        for body in (b"a", b"b", b"c"):  # in one slice: the last ones wait to be written together
            await journal.send(body)
        disk.fail("pwrite", error=errno.ENOSPC, times=None)
        with pytest.raises(DiskFullError) as refused:
            await journal.send_many([b"x" * 1000] * 3, durability="synced")
        assert refused.value.accepted == 0
        disk.heal()
        assert await journal.send_many([b"d"], durability="synced") == range(3, 4)
        async with journal.open_scanner() as scanner:
            assert values(drain(scanner)) == [b"a", b"b", b"c", b"d"]


async def test_after_a_failed_sync_nothing_is_promised():
    disk = fault_disk()

    async def run():
        async with writing(disk) as journal:
            await journal.send(b"x")
            disk.fail("sync_files", times=None)
            with pytest.raises(trio.BrokenResourceError):
                await journal.sync()
            with pytest.raises(trio.BrokenResourceError):
                await journal.send(b"y")

    with pytest.raises(trio.BrokenResourceError):
        await run()
    disk.heal()
    async with writing(disk) as journal:
        assert journal.next_offset in (0, 1)


async def test_a_torn_tail_is_repaired_at_the_first_open_and_reported(disk):
    async with writing(disk) as journal:
        await journal.send_many(numbered(3))
    path = f"{JOURNAL}/jnl/{0:016x}.jnl"
    disk.write_durably(path, disk.read(path) + b"\x00\x00\x00\x00\x00\x00\x00\x03torn")
    async with writing(disk) as journal:
        assert len(journal.repairs) == 1
        assert await journal.send(b"3") == 3
    assert values(stored(disk)) == numbered(4)


async def test_leaving_the_block_syncs_also_when_it_was_cancelled(disk):
    with trio.CancelScope() as scope:
        async with writing(disk) as journal:
            await journal.send(b"x")
            scope.cancel()
            await trio.sleep_forever()
    assert values(stored(disk.crash())) == [b"x"]
