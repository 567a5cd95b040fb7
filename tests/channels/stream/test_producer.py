# The writing side of a stream as a Trio channel: what each call does, and what it promises.

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import assert_checkpoints, assert_no_checkpoints

from diskq._native.stream.codec import key_hash
from diskq.channels.stream.producer import StreamProducer, open_producer
from diskq.engine.stream.files import StreamFiles
from diskq.errors import DiskFullError, KeySizeError, LockedError, MessageSizeError
from diskq.messages import Position
from diskq.storage.fs import OsFileSystem
from diskq.testing import CrashFS
from tests.channels.rig import PatientDisk, Tasks, blocked, crash_disk, fault_disk, numbered, until
from tests.channels.stream_rig import ONE, STREAM, producing, rows_in, send_all, stored, values

Open = Callable[..., open_producer]


@pytest.fixture(params=["in memory", "on disk"])
def open_stream(request: pytest.FixtureRequest, tmp_path: Path, disk: CrashFS) -> Open:
    """Opens one and the same stream, with options: on a disk in memory, and on the real one."""
    if request.param == "in memory":
        return partial(producing, disk)
    return partial(open_producer, tmp_path / "s", fs=OsFileSystem())


# --- sending ----------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["memory", "written", "synced"])
async def test_a_message_goes_to_the_partition_of_its_key_and_its_position_is_returned(disk, durability):
    async with producing(disk, durability=durability) as producer:
        places = [await producer.send(b"%d" % number, b"key-%d" % (number % 7)) for number in range(100)]
    found = {message.position: message for message in stored(disk)}
    assert sorted(places) == sorted(found)
    for number, place in enumerate(places):
        assert found[place].value == b"%d" % number
        assert place.partition == key_hash(b"key-%d" % (number % 7)) % 3


async def test_any_bytes_come_back_as_they_were(open_stream, tmp_path):
    bodies = [b"", b"x", bytes(range(256)), b"x" * 300_000]
    async with open_stream(**ONE, segment_size=1000) as producer:
        assert isinstance(producer, StreamProducer)
        for body in bodies:
            await producer.send(body)
            producer.send_nowait(bytearray(body))
        told = await producer.send_many([memoryview(body) for body in bodies])
        assert told == {0: range(8, 12)}


async def test_a_key_is_text_or_bytes_and_the_same_either_way(disk):
    async with producing(disk) as producer:
        one = await producer.send(b"1", "日本語")
        two = await producer.send(b"2", "日本語".encode())
        assert two == Position(one.partition, one.offset + 1)
    assert [message.key for message in stored(disk)] == ["日本語".encode()] * 2


async def test_without_a_key_it_gets_one_as_go_diskq_makes_them(disk):
    async with producing(disk) as producer:
        for key in (None, "", b""):
            await producer.send(b"x", key)
        await producer.send_many([b"y", (None, b"z")])
    keys = [message.key for message in stored(disk)]
    assert len(set(keys)) == 5
    assert all(re.fullmatch(rb"[0-9a-f]{32}", key) for key in keys)


async def test_its_time_is_the_one_it_was_given_or_now(disk):
    moment = datetime(1968, 5, 1, 12, tzinfo=UTC)
    disk.clock = 100.0
    async with producing(disk, **ONE) as producer:
        await producer.send(b"moment", "k", moment)
        await producer.send(b"number", "k", 123_456_789)
        await producer.send(b"now", "k")
        await producer.send_many([("k", b"own", moment), ("k", b"default")], timestamp=7)
        producer.send_nowait(b"last", "k", moment + timedelta(days=1))
    times = {message.value: message.timestamp_ns for message in stored(disk)}
    assert times[b"moment"] == times[b"own"] == int(moment.timestamp()) * 1_000_000_000
    assert times[b"number"] == 123_456_789
    assert times[b"now"] == int(disk.wall_clock() * 1_000_000_000)
    assert times[b"default"] == 7
    assert times[b"last"] == times[b"moment"] + 86_400_000_000_000


async def test_many_are_sent_at_once_and_the_offsets_of_each_partition_returned(disk):
    async with producing(disk) as producer:
        await producer.send(b"before", "a")
        batch = [(f"key-{number % 10}", b"%d" % number) for number in range(200)]
        told = await producer.send_many(batch)
        assert sum(map(len, told.values())) == 200
        assert set(told) == {0, 1, 2}
        assert await producer.send_many([]) == {}
    by_place = {message.position: message.value for message in stored(disk)}
    for partition, offsets in told.items():
        of_partition = [value for key, value in batch if key_hash(key.encode()) % 3 == partition]
        assert [by_place[Position(partition, offset)] for offset in offsets] == of_partition


REFUSED: list[tuple[tuple[Any, ...], type[Exception]]] = [
    (("text",), TypeError),
    ((7,), TypeError),
    ((None,), TypeError),
    ((b"x", 7), TypeError),
    ((b"x", "k", "today"), TypeError),
    ((b"x", "k", datetime(2024, 1, 1)), ValueError),
    ((b"x", "k", 2**63), ValueError),
    ((b"12345",), MessageSizeError),
    ((b"x", "k" * 33), KeySizeError),
]


@pytest.mark.parametrize("message, error", REFUSED)
async def test_what_cannot_be_sent_is_refused_and_nothing_of_it_is_in(disk, message, error):
    async with producing(disk, **ONE, max_message_size=4, max_key_size=32) as producer:
        await producer.send(b"1", "k")  # the compiled door is open from here on
        with pytest.raises(error):
            await producer.send(*message)
        with pytest.raises(error):
            producer.send_nowait(*message)
        value, key, when = (*message, None, None)[:3]
        with pytest.raises(error):
            await producer.send_many([b"good", (key, value, when)])
    assert values(stored(disk)) == [b"1"]


async def test_an_unknown_durability_is_refused_and_nothing_is_in(disk):
    forever: Any = "forever"
    async with producing(disk) as producer:
        with pytest.raises(ValueError, match="durability is one of"):
            await producer.send(b"x", durability=forever)
        with pytest.raises(ValueError, match="durability is one of"):
            await producer.send_many([b"x"], durability=forever)
    assert stored(disk) == []


async def test_a_second_producer_gets_an_error_that_names_the_first(open_stream):
    async with open_stream():
        with pytest.raises(LockedError):
            async with open_stream():
                pass


async def test_segments_roll_where_go_diskq_rolls(disk):
    async with producing(disk, **ONE, segment_size=400) as producer:
        await send_all(producer, [b"x" * 79] * 20)  # a record has 100 bytes, and a segment four of them
        assert producer.statistics().next_offsets == {0: 20}
    bases = [path for path in disk.files() if path.endswith(".index")]
    assert sorted(int(path.split("/")[-1].split(".")[0]) for path in bases) == [0, 4, 8, 12, 16, 20]


# --- how durable it is ------------------------------------------------------------------------


async def test_a_written_message_survives_a_kill_and_a_synced_one_a_power_cut(disk):
    async with producing(disk) as producer:
        await producer.send(b"synced", durability="synced")
        await producer.send(b"written")
        await blocked()
        assert values(stored(disk.crash())) == [b"synced"]
        assert sorted(values(stored(disk.kill()))) == [b"synced", b"written"]


async def test_a_memory_message_is_written_within_memory_flush(autojump_clock, disk):
    async with producing(disk, durability="memory", memory_flush=0.01) as producer:
        await producer.send(b"x")
        assert stored(disk) == []
        await trio.sleep(0.011)
        assert values(stored(disk)) == [b"x"]


async def test_all_is_synced_when_sync_returns_and_when_the_block_is_left(disk):
    async with producing(disk, durability="memory") as producer:
        await producer.send_many(numbered(10))
        await producer.sync()
        assert len(stored(disk.crash())) == 10
        await producer.send_many(numbered(10))
    assert len(stored(disk.crash())) == 20


async def test_many_waiting_senders_share_a_barrier_over_all_partitions():
    disk = PatientDisk()
    async with producing(disk) as producer, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        disk.hold()
        before = producer.statistics().barriers
        for number in range(100):
            tasks.start_soon(number, partial(producer.send, b"x", f"key-{number}", durability="synced"))
        await until(lambda: disk.waiting > 0)
        await blocked()
        assert tasks.ended == []
        disk.let_go()
        await until(lambda: len(tasks.ended) == 100)
        assert producer.statistics().barriers - before <= 2
        assert len({tasks[number].partition for number in range(100)}) == 3


async def test_a_sync_is_taken_after_sync_every_messages_and_after_sync_timeout(autojump_clock, disk):
    async with producing(disk, sync_every=10, sync_timeout=2.0) as producer:
        await send_all(producer, numbered(10))
        await until(lambda: producer.statistics().unsynced_bytes == 0)
        await producer.send(b"x")
        await blocked()
        assert producer.statistics().unsynced_bytes > 0
        await trio.sleep(2.1)
        await until(lambda: producer.statistics().unsynced_bytes == 0)


# --- when others see it -----------------------------------------------------------------------


async def test_a_message_alone_is_seen_by_others_when_send_returns(disk):
    async with producing(disk, **ONE) as producer:
        await blocked()
        await producer.send(b"1", "k")
        assert rows_in(disk) == 1
        await producer.sync()
        await producer.send_many([("k", b"2"), ("k", b"3")])
        assert rows_in(disk) == 3


async def test_messages_are_seen_by_others_once_their_sender_lets_others_run(disk):
    async with producing(disk, **ONE) as producer:
        for count in (1, 2, 50):
            before = rows_in(disk)
            for _ in range(count):
                producer.send_nowait(b"x", "k")
            await blocked()
            assert rows_in(disk) == before + count


async def test_messages_are_seen_by_others_while_a_barrier_is_being_paid():
    disk = PatientDisk()
    async with producing(disk, **ONE) as producer, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        disk.hold()
        await tasks.start("synced", partial(producer.send, b"1", "k", durability="synced"))
        await until(lambda: disk.waiting > 0)
        for _ in range(10):
            await producer.send(b"x", "k")
        await blocked()
        assert rows_in(disk.inner) == 11
        disk.let_go()


# --- waiting for room -------------------------------------------------------------------------


async def test_senders_above_max_unsynced_wait_for_a_sync_and_get_in_in_order():
    disk = PatientDisk()
    async with producing(disk, **ONE, max_unsynced=4096) as producer, trio.open_nursery() as nursery:
        disk.hold()
        tasks = Tasks(nursery)
        for number in range(4):
            await producer.send(b"%d" % number * 1000, "k")
        for number in range(4, 7):
            await tasks.start(number, producer.send, b"%d" % number * 1000, "k")
        with pytest.raises(trio.WouldBlock):
            producer.send_nowait(b"x" * 1000, "k")
        assert tasks.ended == []
        assert producer.statistics().tasks_waiting_send == 3
        disk.let_go()
        await until(lambda: len(tasks.ended) == 3)
        assert [tasks[number].offset for number in range(4, 7)] == [4, 5, 6]


async def test_a_wait_for_room_that_is_cancelled_sent_nothing():
    disk = PatientDisk()
    async with producing(disk, **ONE, max_unsynced=1024) as producer, trio.open_nursery() as nursery:
        disk.hold()
        tasks = Tasks(nursery)
        await producer.send(b"0" * 900, "k")
        await tasks.start("one", producer.send, b"1" * 900, "k")
        await tasks.start("many", producer.send_many, [b"2" * 900])
        tasks.scopes["one"].cancel()
        tasks.scopes["many"].cancel()
        await blocked()
        assert [tasks["one"], tasks["many"]] == ["cancelled"] * 2
        disk.let_go()
    assert len(stored(disk.inner)) == 1


async def test_a_wait_for_the_disk_is_not_cancelled_for_the_message_is_in():
    disk = PatientDisk()
    async with producing(disk) as producer, trio.open_nursery() as nursery:
        disk.hold()
        tasks = Tasks(nursery)
        await tasks.start("synced", partial(producer.send, b"x", "k", durability="synced"))
        tasks.scopes["synced"].cancel()
        await blocked()
        assert "synced" not in tasks
        disk.let_go()
        await until(lambda: "synced" in tasks)
        assert isinstance(tasks["synced"], Position)


# --- schedule points --------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["memory", "written", "synced"])
async def test_in_strict_mode_each_call_is_a_checkpoint(disk, durability):
    async with producing(disk, checkpoint_slice=0, durability=durability, segment_size=200) as producer:
        for _ in range(20):
            with assert_checkpoints():
                await producer.send(b"x")
            with assert_checkpoints():
                await producer.send_many([b"y", b"z"])
            with assert_checkpoints():
                await producer.send(b"x", durability="synced")
            with assert_no_checkpoints():
                producer.send_nowait(b"x")
        with assert_checkpoints():
            await producer.send_many([])
        with assert_checkpoints():
            await producer.sync()
        with assert_checkpoints():
            await producer.clone().aclose()


async def test_others_run_though_a_sender_never_waits(open_stream):
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            await trio.lowlevel.checkpoint()
            rounds += 1

    async with open_stream(sync_every=1_000_000) as producer, trio.open_nursery() as nursery:
        nursery.start_soon(count)
        for _ in range(5000):
            await producer.send(b"x" * 100, "k")
        nursery.cancel_scope.cancel()
    assert rounds > 20


# --- closing ----------------------------------------------------------------------------------


async def test_closing_a_handle_wakes_the_tasks_that_wait_on_it():
    disk = PatientDisk()
    async with producing(disk, max_unsynced=1024) as producer, trio.open_nursery() as nursery:
        disk.hold()
        tasks = Tasks(nursery)
        clone = producer.clone()
        await producer.send(b"0" * 900, "k")
        await tasks.start("clone", clone.send, b"1" * 900, "k")
        await tasks.start("other", producer.send, b"2" * 900, "k")
        clone.close()
        await blocked()
        assert isinstance(tasks["clone"], trio.ClosedResourceError)
        assert "other" not in tasks
        disk.let_go()
        await until(lambda: "other" in tasks)
    assert [message.value[:1] for message in stored(disk.inner)] == [b"0", b"2"]


async def test_a_cancelled_block_leaves_everything_synced(disk):
    with trio.CancelScope() as scope:
        async with producing(disk) as producer:
            await producer.send(b"x")
            scope.cancel()
            await trio.sleep_forever()
    assert values(stored(disk.crash())) == [b"x"]


async def test_an_error_of_the_block_comes_out_as_it_is(disk):
    with pytest.raises(KeyError):
        async with producing(disk):
            raise KeyError


# --- disks that fail --------------------------------------------------------------------------


async def test_a_full_disk_raises_in_the_sender_and_nothing_partial_stays():
    disk = fault_disk()
    async with producing(disk, **ONE) as producer:
        await producer.send(b"before", "k")
        await producer.sync()
        disk.fail("pwrite", error=errno.ENOSPC, path="*.data")
        with pytest.raises(DiskFullError):
            await producer.send(b"x" * 100, "k")
        disk.heal()
        assert (await producer.send(b"after", "k")).offset == 1
    assert values(stored(disk.inner)) == [b"before", b"after"]


async def test_rows_that_find_no_room_are_written_when_there_is_some(autojump_clock):
    disk = fault_disk()
    async with producing(disk, **ONE) as producer:
        fault = disk.fail("pwrite", error=errno.ENOSPC, path="*index", times=3)
        place = await producer.send(b"x", "k")
        assert place.offset == 0
        await trio.sleep(1)
        assert fault.hits == 3
        assert rows_in(disk.inner) == 1
    assert values(stored(disk.inner)) == [b"x"]


@pytest.mark.parametrize("tasks", [1, 5])
async def test_index_entries_of_synced_messages_are_written_while_the_log_is_synced(tasks):
    disk = fault_disk()
    async with producing(disk, **ONE) as producer:
        await producer.send(b"first", "k", durability="synced")
        await producer.sync()
        await producer.send(b"second", "k", durability="synced")  # the first one after a sync is counted
        for _ in range(5):
            before, rows = len(disk.calls), rows_in(disk.inner)
            async with trio.open_nursery() as nursery:
                for _ in range(tasks):
                    nursery.start_soon(partial(producer.send, b"x", "k", durability="synced"))
            assert rows_in(disk.inner) == rows + tasks
            written = [call.path for call in disk.calls[before:] if call.verb == "pwrite"]
            data, log, index = (
                next(at for at, path in enumerate(written) if path.endswith(end))
                for end in (".data", "/redo", ".index")
            )
            assert data < log < index


async def test_a_synced_message_whose_index_entry_finds_no_room_is_durable_and_in():
    disk = fault_disk()
    async with producing(disk, **ONE) as producer:
        await producer.send(b"first", "k", durability="synced")
        await producer.sync()
        disk.fail("pwrite", error=errno.ENOSPC, path="*index", times=100)
        await producer.send(b"second", "k", durability="synced")
        assert values(stored(disk.inner.crash())) == [b"first", b"second"]
        disk.heal()
    assert rows_in(disk.inner) == 2


async def test_after_a_failed_sync_every_call_raises_and_the_block_ends_with_it():
    disk = fault_disk()

    async def use_it() -> None:
        async with producing(disk) as producer:
            disk.fail("sync_files", path="*.data")
            with pytest.raises(trio.BrokenResourceError):
                await producer.send(b"x", "k", durability="synced")
            with pytest.raises(trio.BrokenResourceError):
                await producer.send(b"y", "k")
            with pytest.raises(trio.BrokenResourceError):
                producer.send_nowait(b"y", "k")
            with pytest.raises(trio.BrokenResourceError):
                await producer.send_many([b"y"])

    with pytest.raises(trio.BrokenResourceError):
        await use_it()
    async with producing(disk.inner):
        pass


async def test_a_stream_that_cannot_be_opened_leaves_nothing_open():
    disk = crash_disk()
    disk.write_durably(f"{STREAM}/parts/000000/stranger", b"")
    for _ in range(2):
        with pytest.raises(Exception, match="stranger"):
            async with producing(disk):
                pass


# --- segments by age --------------------------------------------------------------------------


@pytest.mark.parametrize("sync_timeout", [2.0, 3600.0])
async def test_an_idle_stream_completes_its_segment_by_its_age(autojump_clock, disk, sync_timeout):
    async with producing(disk, **ONE, segment_age=10.0, sync_timeout=sync_timeout) as producer:
        files = StreamFiles(disk, STREAM).partition(0)
        for first in range(0, 6, 2):
            await producer.send(b"one")
            producer.send_nowait(b"two")
            await trio.sleep(9.9)
            assert files.bases()[-1] == first
            await trio.sleep(0.2)
            assert files.bases()[-1] == first + 2
        prepared = producer._loop.syncs_prepared
        await trio.sleep(3600)
        assert producer._loop.syncs_prepared <= prepared + 1
        assert files.bases() == [0, 2, 4, 6]
