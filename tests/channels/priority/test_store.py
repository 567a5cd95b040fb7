# Priority queues. Law: the smallest priority first, among equals the oldest; a message in hand is given to no
# other task, and comes back in its place unless it was acknowledged; tasks are served in order of arrival.

from __future__ import annotations

import errno
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import assert_checkpoints

import diskq
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS, FaultFS
from tests.channels.rig import CancelAt, PatientDisk, Tasks, blocked, crash_disk, fault_disk, numbered, until
from tests.engine import stores
from tests.held_disks import HeldDisk

ROOT = stores.ROOT


def opened(fs: FileSystem, **options: Any) -> diskq.open_priority_store:
    return diskq.open_priority_store(ROOT, fs=fs, **{"preallocate": False} | options)


def left_in(fs: CrashFS, name: str = "") -> list[tuple[int, bytes]]:
    """What another process finds in the queue: (priority, payload), in order."""
    with stores.opened(fs.copy()) as store:
        return [(key, payload) for key, _, payload in stores.drain(store, name)]


def told(records: Sequence[diskq.PriorityRecord]) -> list[tuple[int, bytes]]:
    return [(record.priority, record.body) for record in records]


def drain(queue: diskq.PriorityQueueChannel) -> list[tuple[int, bytes]]:
    """Everything that can be received at once; it is acknowledged."""
    records = []
    while True:
        try:
            records.append(queue.receive_nowait())
        except trio.WouldBlock:
            queue.ack_nowait(records)
            return told(records)


async def use_block(queue: diskq.PriorityQueueChannel) -> None:
    async with queue.receiving():
        pass


# --- order ------------------------------------------------------------------------------------------


async def test_many_messages_may_have_a_priority_each(disk):
    async with opened(disk) as store:
        queue = store.queue()
        assert await queue.send_many([b"b", b"a"], [2, 1]) == range(1, 3)
        assert told(await queue.receive_many(2)) == [(1, b"a"), (2, b"b")]
        with pytest.raises(ValueError, match="2 messages and 1 priorities"):
            await queue.send_many([b"b", b"a"], [2])


async def test_the_smallest_priority_comes_first_and_of_equals_the_oldest(disk):
    async with opened(disk) as store:
        mail = await store.create_queue("mail")
        assert await mail.send(b"later", 5) == 1
        assert await mail.send_many([(1, b"first"), b"second", (5, b"last")], priority=1) == range(2, 5)
        assert mail.send_nowait(b"at once", -1) == 5
        assert [await mail.receive() for _ in range(2)][1].id == 2
        mail.nack(await mail.receive())
        assert told(await mail.receive_many(10)) == [(1, b"second"), (5, b"later"), (5, b"last")]
        assert (await store.queue("mail").send(b"again")) == 6
        assert (await mail.peek()).body == b"again"
        assert (await mail.receive()).body == b"again"
        statistics = mail.statistics()
        assert (statistics.ready, statistics.in_flight, statistics.stored) == (0, 6, 6)
    # Nothing was acknowledged: all of it is in its place.
    assert [payload for _, payload in left_in(disk, "mail")] == [
        b"at once", b"again", b"first", b"second", b"later", b"last",
    ]  # fmt: skip


async def test_the_default_queue_is_always_there(disk):
    async with opened(disk) as store:
        queue = store.queue()
        assert queue.name == ""
        await queue.send(b"x")
        assert [info.name for info in store.queues()] == [""]
        with pytest.raises(diskq.QueueNameError):
            await store.delete_queue("")
    assert left_in(disk) == [(0, b"x")]


async def test_receivers_are_served_in_order_of_arrival_and_of_nacks_too(disk):
    async with opened(disk) as store, trio.open_nursery() as nursery:
        queue = store.queue()
        tasks = Tasks(nursery)
        for number in range(3):
            await tasks.start(number, queue.receive)
        await tasks.start("peeks", queue.peek)
        await tasks.start("many", queue.receive_many, 5)
        await queue.send_many([(2, b"b"), (1, b"a"), (3, b"c")])
        await blocked()
        assert told([tasks[number] for number in range(3)]) == [(1, b"a"), (2, b"b"), (3, b"c")]
        assert "peeks" not in tasks
        queue.nack([tasks[2], tasks[0]])
        await blocked()
        assert tasks["peeks"].body == b"a"
        assert told(tasks["many"]) == [(1, b"a"), (3, b"c")]


async def test_a_queue_that_is_received_from_by_others_is_served_by_its_own_senders_only(disk):
    async with opened(disk) as store, trio.open_nursery() as nursery:
        a, b = await store.create_queue("a"), await store.create_queue("b")
        tasks = Tasks(nursery)
        await tasks.start("a", a.receive)
        await b.send(b"to b")
        await blocked()
        assert "a" not in tasks
        await a.send(b"to a")
        await blocked()
        assert tasks["a"].body == b"to a"
        assert b.receive_nowait().body == b"to b"


async def test_lingering_waits_for_more_and_bytes_bound_a_batch(disk, autojump_clock):
    async with opened(disk) as store, trio.open_nursery() as nursery:
        queue = store.queue()

        async def send_later() -> None:
            for body in numbered(3):
                await trio.sleep(1)
                await queue.send(body)

        nursery.start_soon(send_later)
        assert told(await queue.receive_many(10, linger=1.5)) == [(0, b"0"), (0, b"1")]
        assert told(await queue.receive_many(1, linger=60)) == [(0, b"2")]
        await queue.send_many([b"x" * 50] * 3)
        assert len(await queue.receive_many(10, max_bytes=120, linger=5)) == 2
        with pytest.raises(ValueError, match="max_messages"):
            await queue.receive_many(0)


async def test_select_and_async_for_take_records(disk):
    async with opened(disk) as store:
        mail, other = await store.create_queue("mail"), store.queue()
        async with trio.open_nursery() as nursery:
            tasks = Tasks(nursery)
            await tasks.start("selects", diskq.select, mail, other)
            await other.send(b"x")
            await blocked()
            receiver, record = tasks["selects"]
            assert (receiver, record.body) == (other, b"x")
        await mail.send_many([(2, b"b"), (1, b"a")])
        found = []
        async for record in mail:
            found.append(record.body)
            await mail.ack(record)
            if len(found) == 2:
                break
        assert found == [b"a", b"b"]
        assert mail.statistics().stored == 0


# --- durability -------------------------------------------------------------------------------------


async def test_synced_messages_that_need_checks_and_refused_ones_leave_the_store_usable(disk):
    async with opened(disk, durability="synced") as store:
        queue = store.queue()
        assert await queue.send(bytearray(b"checked")) == 1
        with pytest.raises(TypeError):
            await queue.send("refused")  # type: ignore[arg-type]
        assert await queue.send(b"simple") == 2
        assert drain(queue) == [(0, b"checked"), (0, b"simple")]


async def test_a_synced_message_is_not_received_before_it_is_on_stable_storage():
    disk = PatientDisk()
    async with opened(disk) as store, trio.open_nursery() as nursery:
        queue = store.queue()
        tasks = Tasks(nursery)
        await tasks.start("receive", queue.receive)
        disk.hold()
        await tasks.start("synced", lambda: queue.send(b"synced", 1, durability="synced"))
        await until(lambda: disk.waiting == 1)
        assert not tasks.ended
        with pytest.raises(trio.WouldBlock):
            queue.receive_nowait()
        assert (queue.statistics().ready, queue.statistics().stored) == (0, 1)
        await queue.send(b"written", 2)  # it is not held up
        await blocked()
        assert tasks["receive"].body == b"written"
        disk.let_go()
        await until(lambda: "synced" in tasks)
        assert left_in(disk.inner.crash())[:1] == [(1, b"synced")]
        assert (await queue.receive()).body == b"synced"


async def test_many_tasks_that_wait_for_the_disk_share_syncs():
    disk = PatientDisk()
    async with opened(disk) as store, trio.open_nursery() as nursery:
        queue = store.queue()
        tasks = Tasks(nursery)
        before = store.statistics().barriers
        disk.hold()
        for number in range(64):
            await tasks.start(number, lambda: queue.send(b"x", durability="synced"))
        assert store.statistics().tasks_waiting_send == 64
        disk.let_go()
        await until(lambda: len(tasks.ended) == 64)
        assert store.statistics().barriers - before == 2


def log_writes(disk: FaultFS[CrashFS]) -> list[int]:
    """Sizes of the writes to the log."""
    return [call.size for call in disk.calls if call.verb == "pwrite" and call.path.endswith(".log")]


async def test_tasks_that_wait_for_the_disk_share_the_write_too():
    disk = fault_disk()
    async with opened(disk, durability="synced") as store:
        queue = store.queue()
        await blocked()
        disk.calls.clear()
        async with trio.open_nursery() as nursery:
            tasks = Tasks(nursery)
            for number in range(20):
                tasks.start_soon(number, queue.send, b"%d" % number, number % 3)
        assert len(log_writes(disk)) == 1
        sent = {tasks[number]: (number % 3, b"%d" % number) for number in range(20)}
        assert sorted(sent) == list(range(1, 21))
        in_order = sorted(sent, key=lambda number: (sent[number][0], number))
        assert left_in(disk.inner.crash()) == [sent[number] for number in in_order]


async def test_messages_and_acknowledgements_count_for_the_sync_policy():
    async with opened(crash_disk(), sync_every=20, sync_timeout=3600.0) as store:
        queue = store.queue()
        for _ in range(3):
            await until(lambda: store.statistics().unsynced_bytes == 0)
            before = store.statistics().barriers
            for number in range(9):
                await queue.send(b"x", number)
                await queue.ack(await queue.receive())
            await queue.send(b"x", -1)
            await blocked(0.01)
            assert store.statistics().barriers == before
            await queue.ack(await queue.receive())
            await until(functools.partial(lambda before: store.statistics().barriers == before + 1, before))


async def test_what_is_written_is_synced_after_a_while(autojump_clock):
    disk = crash_disk()
    async with opened(disk, sync_timeout=5.0) as store:
        queue = store.queue()
        for number in range(3):
            await queue.send(b"x", number)
        record = await queue.receive()
        await queue.ack(record)
        await trio.sleep(5.1)
        await until(lambda: store.statistics().unsynced_bytes == 0)
        assert left_in(disk.crash()) == [(1, b"x"), (2, b"x")]


async def test_a_message_that_finds_no_space_is_not_in_and_the_next_one_is():
    disk = fault_disk()
    async with opened(disk) as store:
        queue = store.queue()
        assert await queue.send(b"a") == 1
        record = await queue.receive()
        for act in (lambda: queue.send(b"b"), lambda: queue.ack(record)):
            disk.fail("pwrite", error=errno.ENOSPC, path="*.log")
            with pytest.raises(diskq.DiskFullError):
                await act()
            assert queue.statistics().stored == 1
        disk.fail("pwrite", error=errno.ENOSPC, path="*.log")
        with pytest.raises(diskq.DiskFullError):
            queue.send_nowait(b"b")
        assert not record.is_settled
        assert await queue.send(b"c") == 2
        await queue.ack(record)
    assert left_in(disk.inner) == [(0, b"c")]


@pytest.mark.parametrize("act", ["send", "ack", "delete", "sync"])
async def test_what_waits_to_be_written_is_written_before_what_comes_after_it(act):
    disk = PatientDisk()
    async with opened(disk) as store, trio.open_nursery() as nursery:
        queue = await store.create_queue("mail")
        await queue.send(b"first", -1)
        record = await queue.receive()
        tasks = Tasks(nursery)
        disk.hold()
        await tasks.start("holds", lambda: queue.send(b"holds", durability="synced"))
        await tasks.start("waits", lambda: queue.send(b"waits", durability="synced"))
        disk.calls.clear()
        if act == "send":
            assert queue.send_nowait(b"later") == 4
        elif act == "ack":
            queue.ack_nowait(record)
        elif act == "delete":
            await store.delete_queue("mail")
        else:
            await tasks.start("sync", store.sync)
            disk.let_go()
            await until(lambda: "sync" in tasks)
        assert len(log_writes(disk)) == (1 if act == "sync" else 2)
        disk.let_go()
        await until(lambda: "waits" in tasks)
        assert tasks["waits"] == 3


@pytest.mark.parametrize("refused", [0, 1, 2])
async def test_of_messages_that_share_a_write_one_may_be_refused_and_the_others_need_no_other_call(refused):
    disk = PatientDisk()
    async with opened(disk, sync_timeout=3600.0) as store, trio.open_nursery() as nursery:
        queue = store.queue()
        await queue.send(b"first", -1)
        record = await queue.receive()
        tasks = Tasks(nursery)
        disk.hold()
        began = trio.current_time()
        await tasks.start("holds", lambda: queue.send(b"holds", durability="synced"))
        for number in range(3):
            await tasks.start(number, lambda: queue.send(b"waits", durability="synced"))
        # The write of all fails; then that of one, after the end marker was written again for each before it.
        disk.fail("pwrite", path="*.log")
        disk.fail("pwrite", 3 + refused, path="*.log")
        queue.ack_nowait(record)
        disk.let_go()
        await until(lambda: len(tasks.ended) == 4)
        results = [tasks[number] for number in range(3)]
        assert isinstance(results.pop(refused), OSError)
        assert results == [3, 4]
        assert trio.current_time() < began + 60
        assert store.statistics().tasks_waiting_send == 0
        assert len(left_in(disk.inner.crash())) == 3


async def test_a_failed_sync_breaks_the_store_for_all_that_gathered_for_it():
    disk = PatientDisk()
    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012
        async with opened(disk) as store, trio.open_nursery() as nursery:
            queue, mail = store.queue(), await store.create_queue("mail")
            tasks = Tasks(nursery)
            disk.hold()
            for number in range(6):  # one waits for the first sync, the others for the next one
                of = (queue, mail)[number % 2]
                await tasks.start(number, lambda of=of: of.send(b"x", durability="synced"))
            assert store.statistics().tasks_waiting_send == 6
            disk.fail("sync_files")
            disk.let_go()
            await until(lambda: len(tasks.ended) == 6)
            failures = [tasks[number] for number in range(6)]
            assert all(isinstance(failure, trio.BrokenResourceError) for failure in failures)
            assert len({*map(id, failures)}) == 6
            assert store.statistics().tasks_waiting_send == 0


async def test_a_large_message_does_not_keep_small_ones_out():
    disk = fault_disk()
    async with opened(disk, durability="synced") as store:
        queue = store.queue()
        async with trio.open_nursery() as nursery:
            tasks = Tasks(nursery)
            disk.capacity(80_000)
            for body in (b"small", b"x" * 100_000, b"another", b"y" * 60_000, b"z" * 60_000):
                tasks.start_soon(body[:1], queue.send, body)
        refused = {key for key, result in tasks.ended if isinstance(result, diskq.DiskFullError)}
        assert len(refused) == 2
        assert b"x" in refused
        assert not refused & {b"s", b"a"}


@pytest.mark.parametrize("word", ["memory", "written", "synced"])
async def test_each_word_is_true_of_sending_and_acknowledging(disk, word, mock_clock):
    async with opened(disk, durability=word) as store:
        queue = store.queue()
        await queue.send_many([(1, b"a"), (2, b"b"), (3, b"c")], durability="synced")
        await queue.ack(await queue.receive())
        await queue.send(b"d", 4)
        whole = [(2, b"b"), (3, b"c"), (4, b"d")]
        at_least = {"memory": [(1, b"a"), (2, b"b"), (3, b"c")], "written": whole, "synced": whole}[word]
        assert left_in(disk.kill()) == at_least
        if word == "synced":
            assert left_in(disk.crash()) == whole
        mock_clock.jump(0.01)
        await until(lambda: left_in(disk.kill()) == whole)
        await store.sync()
        assert left_in(disk.crash()) == whole


async def test_what_is_in_hand_is_in_its_place_after_a_crash(disk):
    async with opened(disk) as store:
        queue = store.queue()
        await queue.send_many([(1, b"a"), (1, b"b"), (1, b"c")], durability="synced")
        records = await queue.receive_many(3)
        await queue.ack(records[1], durability="synced")
        assert left_in(disk.crash()) == left_in(disk.kill()) == [(1, b"a"), (1, b"c")]


async def test_a_sync_is_due_after_a_time_and_after_a_number_of_messages(disk, mock_clock):
    async with opened(disk, sync_timeout=2.0, sync_every=5) as store:
        queue = store.queue()
        await queue.send(b"0")
        await blocked()
        mock_clock.jump(2.5)
        await until(lambda: left_in(disk.crash()) == [(0, b"0")])
        await queue.send_many(numbered(5, start=1))
        await until(lambda: len(left_in(disk.crash())) == 6)


async def test_leaving_the_block_is_a_sync_even_if_it_was_cancelled(disk):
    with trio.CancelScope() as scope:
        async with opened(disk, durability="memory") as store:
            await store.queue().send(b"x")
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert left_in(disk.crash()) == [(0, b"x")]


# --- blocks and leases ------------------------------------------------------------------------------


async def test_a_block_acknowledges_or_puts_back(disk):
    async with opened(disk) as store:
        queue = store.queue()
        await queue.send_many(numbered(3))
        with pytest.raises(ZeroDivisionError):
            async with queue.receiving():
                raise ZeroDivisionError
        with trio.CancelScope() as scope:
            async with queue.receiving() as record:
                assert record.body == b"0"
                scope.cancel()
                await trio.lowlevel.checkpoint()
        async with queue.receiving() as record:
            assert record.body == b"0"
        async with queue.receiving() as record:
            queue.nack(record)  # by itself
        async with queue.receiving(durability="synced") as record:
            assert record.body == b"1"
        assert left_in(disk.crash()) == [(0, b"2")]


async def test_a_block_that_ends_cleanly_in_a_cancelled_scope_acknowledges(disk):
    async with opened(disk) as store:
        queue = store.queue()
        await queue.send(b"x")
        with trio.CancelScope() as scope:
            async with queue.receiving():
                scope.cancel()
        assert queue.statistics().stored == 0


@pytest.mark.parametrize("settle", ["ack", "nack"])
@pytest.mark.parametrize("again", ["ack", "ack_nowait", "nack"])
async def test_settling_twice_is_refused_and_does_nothing(disk, settle, again):
    async def call(name: str, records: Any) -> None:
        if (result := getattr(queue, name)(records)) is not None:
            await result

    async with opened(disk) as store:
        queue = store.queue()
        await queue.send_many(numbered(2))
        one, two = await queue.receive_many(2)
        await call(settle, one)
        with pytest.raises(diskq.LeaseError) as raised:
            await call(again, [two, one])
        assert raised.value.id == one.id
        assert not two.is_settled
        with pytest.raises(diskq.LeaseError):
            await call(again, await queue.peek() if settle == "nack" else one)
        with pytest.raises(TypeError):
            await call(again, [b"no record"])
        with pytest.raises(diskq.LeaseError):
            await (await store.create_queue("other")).ack(two)
        queue.nack(two)
        assert queue.statistics().in_flight == 0


async def test_acknowledging_none_is_nothing(disk):
    async with opened(disk) as store:
        await store.queue().ack([])
        assert await store.queue().send_many([]) == range(1, 1)
        assert store.statistics().commands == 0


# --- policies ---------------------------------------------------------------------------------------


async def test_senders_wait_for_room_in_order_and_an_ack_makes_some(disk):
    async with opened(disk) as store, trio.open_nursery() as nursery:
        mail = await store.create_queue("mail", max_messages=2)
        await mail.send_many([(5, b"a"), (5, b"b")])
        tasks = Tasks(nursery)
        await tasks.start("two", mail.send_many, [(1, b"c"), (2, b"d")])
        await tasks.start("one", mail.send, b"e", 0)
        with pytest.raises(trio.WouldBlock):
            mail.send_nowait(b"f")
        record = await mail.receive()
        await blocked()
        assert not tasks.ended  # in hand counts
        await mail.ack(record)
        await blocked()
        assert not tasks.ended  # no sender overtakes the first one
        await store.queue().send(b"other queues are not held up")
        async with mail.receiving() as record:
            assert record.body == b"b"
        await blocked()
        assert tasks["two"] == range(3, 5)
        assert "one" not in tasks
        assert mail.statistics().tasks_waiting_send == 1
        tasks.scopes["one"].cancel()
        await blocked()
        assert drain(mail) == [(1, b"c"), (2, b"d")]


async def test_a_sender_that_leaves_lets_the_next_one_in(disk):
    async with opened(disk) as store, trio.open_nursery() as nursery:
        mail = await store.create_queue("mail", max_messages=3)
        await mail.send_many(numbered(2))
        tasks = Tasks(nursery)
        await tasks.start("two", mail.send_many, numbered(2))
        await tasks.start("one", mail.send, b"x")
        tasks.scopes["two"].cancel()
        await blocked()
        assert tasks["one"] == 3


async def test_a_full_queue_refuses_where_that_is_the_policy(disk):
    async with opened(disk, on_full="reject") as store:
        mail = await store.create_queue("mail", max_messages=2)
        with pytest.raises(diskq.FullError):
            await mail.send_many(numbered(3))
        await mail.send_many(numbered(2))
        with pytest.raises(diskq.FullError):
            mail.send_nowait(b"x")
        with pytest.raises(diskq.FullError) as raised:
            await mail.send(b"x")
        assert str(raised.value) == "queue 'mail': holds 2 messages: 2 are allowed"
        await mail.ack(await mail.receive())
        await mail.send(b"x")
        assert store.statistics().commands == 5


async def test_what_never_fits_is_refused_at_once(disk):
    async with opened(disk) as store:
        mail = await store.create_queue("mail", max_messages=2)
        with pytest.raises(diskq.FullError):
            await mail.send_many(numbered(3))
        with pytest.raises(diskq.FullError):
            await (await store.create_queue("none", max_messages=0)).send(b"x")


async def test_too_much_unsynced_has_senders_of_all_queues_wait_for_the_same_sync():
    disk = PatientDisk()
    async with opened(disk, max_unsynced=1000) as store, trio.open_nursery() as nursery:
        a, b = store.queue(), await store.create_queue("b", durability="synced")
        await until(lambda: store.statistics().unsynced_bytes == 0)
        disk.hold()
        tasks = Tasks(nursery)
        await tasks.start("first", a.send, b"x" * 990)
        await tasks.start("large", a.send, b"y" * 990)
        await tasks.start("small", b.send, b"z")  # it would fit, and came later
        assert [key for key, _ in tasks.ended] == ["first"]
        with pytest.raises(trio.WouldBlock):
            b.send_nowait(b"")
        disk.let_go()
        await until(lambda: len(tasks.ended) == 3)
        assert [len(payload) for _, payload in drain(a)] == [990, 990]


async def test_acknowledging_waits_as_well_while_too_much_is_unsynced():
    disk = PatientDisk()
    async with opened(disk, max_unsynced=500) as store, trio.open_nursery() as nursery:
        queue = store.queue()
        await queue.send_many([b"x" * 100] * 4, durability="synced")
        records = await queue.receive_many(4)
        disk.hold()
        await queue.send(b"x" * 490)
        tasks = Tasks(nursery)
        await tasks.start("ack", queue.ack, records[0])
        assert records[0].is_settled
        assert "ack" not in tasks
        with pytest.raises(trio.WouldBlock):
            queue.ack_nowait(records[1])
        assert not records[1].is_settled
        disk.let_go()
        await until(lambda: "ack" in tasks)
        await until(lambda: store.statistics().unsynced_bytes == 0)
        queue.ack_nowait(records[1:])


# --- bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a b", "ä", "\x7f", "\n", "\0", "x" * 256])
async def test_a_name_that_no_queue_can_have_is_refused(disk, name):
    async with opened(disk) as store:
        with pytest.raises(diskq.QueueNameError):
            await store.create_queue(name)
        with pytest.raises(diskq.NotFoundError):
            store.queue(name)
        await store.create_queue("x" * 255 if len(name) > 1 else "!~")
        assert store.statistics().commands == 1


async def test_keys_out_of_range_are_refused(disk):
    async with opened(disk) as store:
        few = await store.create_queue("few", implementation="QA", priority_range=(0, 9))
        any_key = store.queue()
        for queue, least, most in ((few, 0, 9), (any_key, -(2**63), 2**63 - 1)):
            for key in (least - 1, most + 1):
                with pytest.raises(diskq.PriorityRangeError) as raised:
                    await queue.send(b"x", key)
                assert (raised.value.minimum, raised.value.maximum) == (least, most)
                with pytest.raises(diskq.PriorityRangeError):
                    await queue.send_many([(least, b"x"), (key, b"x")])
                with pytest.raises(diskq.PriorityRangeError):
                    queue.send_nowait(b"x", key)
            await queue.send_many([(most, b"most"), (least, b"least")])
            assert [payload for _, payload in drain(queue)] == [b"least", b"most"]
        with pytest.raises(TypeError):
            await any_key.send(b"x", "first")  # type: ignore[arg-type]


async def test_an_unknown_implementation_is_refused(disk):
    async with opened(disk) as store:
        with pytest.raises(ValueError, match="H4, QA"):
            await store.create_queue("q", implementation="H5")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="priority_range"):
            await store.create_queue("q", implementation="QA")
        assert [info.name for info in store.queues()] == [""]


async def test_a_queue_that_is_there_is_not_made_again(disk):
    async with opened(disk) as store:
        await store.create_queue("q")
        with pytest.raises(diskq.ExistsError):
            await store.create_queue("q")


async def test_a_payload_over_the_limit_is_refused(disk):
    async with opened(disk, max_message_size=100) as store:
        small = await store.create_queue("small", max_message_size=10)
        for queue, most in ((small, 10), (store.queue(), 100)):
            with pytest.raises(diskq.MessageSizeError) as raised:
                await queue.send(b"x" * (most + 1))
            assert raised.value.maximum == most
            with pytest.raises(diskq.MessageSizeError):
                await queue.send_many([b"", b"x" * (most + 1)])
            await queue.send(b"x" * most)
        for no_bytes in ("text", None, 5):
            with pytest.raises(TypeError):
                await small.send(no_bytes)  # type: ignore[arg-type]
        assert (await small.send(memoryview(b"view"))) == 2


async def test_an_unknown_word_of_durability_is_refused(disk):
    async with opened(disk) as store:
        queue = store.queue()
        for call in (
            lambda: queue.send(b"x", durability="soon"),  # type: ignore[arg-type]
            lambda: store.create_queue("q", durability="soon"),  # type: ignore[arg-type]
        ):
            with pytest.raises(ValueError, match="durability"):
                await call()
    with pytest.raises(ValueError, match="on_full"):
        opened(disk, on_full="drop_oldest")


async def send_now(queue: diskq.PriorityQueueChannel) -> None:
    queue.send_nowait(b"x")


CALLS_ON_DELETED: dict[str, Callable[[diskq.PriorityQueueChannel], Awaitable[object]]] = {
    "receive": lambda queue: queue.receive(),
    "peek": lambda queue: queue.peek(),
    "send": lambda queue: queue.send(b"x"),
    "send_nowait": send_now,
}


async def test_waiting_for_a_queue_that_is_deleted_raises_and_messages_in_hand_are_settled(disk):
    async with opened(disk) as store, trio.open_nursery() as nursery:
        mail = await store.create_queue("mail", max_messages=2)
        await mail.send_many(numbered(2))
        one, two = await mail.receive_many(2)
        tasks = Tasks(nursery)
        waiting = {"receive": mail.receive, "peek": mail.peek, "block": lambda: use_block(mail)}
        for key, call in waiting.items():
            await tasks.start(key, call)
        await tasks.start("send", mail.send, b"x")
        await store.delete_queue("mail")
        await blocked()
        failures = [tasks[key] for key in (*waiting, "send")]
        assert all(isinstance(failure, diskq.NotFoundError) for failure in failures)
        assert len({id(failure) for failure in failures}) == 4
        commands = store.statistics().commands
        await mail.ack(one)
        mail.nack(two)
        assert store.statistics().commands == commands
        for use in CALLS_ON_DELETED.values():
            with pytest.raises(diskq.NotFoundError):
                await use(mail)
        with pytest.raises(diskq.NotFoundError):
            mail.receive_nowait()
        with pytest.raises(diskq.NotFoundError):
            await store.delete_queue("mail")
        again = await store.create_queue("mail")
        assert await again.send(b"a new one") == 1
        with pytest.raises(diskq.NotFoundError):
            await mail.send(b"x")
    assert left_in(disk, "mail") == [(0, b"a new one")]


async def test_a_message_in_a_queue_that_is_deleted_before_its_sync_was_sent():
    disk = PatientDisk()
    async with opened(disk) as store, trio.open_nursery() as nursery:
        mail = await store.create_queue("mail")
        tasks = Tasks(nursery)
        disk.hold()
        await tasks.start("send", lambda: mail.send(b"x", durability="synced"))
        await store.delete_queue("mail")
        disk.let_go()
        await until(lambda: "send" in tasks)
        assert tasks["send"] == 1


async def test_a_foreign_version_is_refused(disk):
    stores.written(disk, {0: []})
    data = bytearray(disk.read(stores.segment()))
    data[7] = 2
    disk.write_durably(stores.segment(), bytes(data))
    with pytest.raises(diskq.UnsupportedFormatError, match="version 2"):
        async with opened(disk):
            pass


async def test_damage_in_a_sealed_segment_costs_what_it_hit_and_is_reported(disk):
    async with opened(disk, soft_limit=100, snapshot_segments=100) as store:
        for body in numbered(20):
            await store.queue().send(body * 10)
    path = sorted(path for path in disk.files() if path.endswith(".log"))[1]
    data = bytearray(disk.read(path))
    data[8 + 4 + 8 + 4 + 4 + 3] ^= 0x40  # in the payload of its first record
    disk.write_durably(path, bytes(data))
    async with opened(disk) as store:
        (repair,) = store.repairs
        assert (repair.path, repair.kept) == (path, 8)
        assert store.queue().statistics().ready == 19
        assert store.statistics().repairs == store.repairs


async def test_a_store_that_is_in_use_is_refused(disk):
    async with opened(disk):
        with pytest.raises(diskq.LockedError):
            async with opened(disk):
                pass
    async with opened(disk):
        pass


# --- snapshots --------------------------------------------------------------------------------------


def logs(fs: CrashFS) -> list[str]:
    return sorted(path for path in fs.files() if path.endswith(".log"))


async def test_a_snapshot_is_taken_when_the_log_has_grown_and_the_log_goes(disk):
    async with opened(disk, soft_limit=1000, snapshot_segments=3, durability="synced") as store:
        queue = store.queue()
        await queue.send(b"in hand", -1)
        await queue.receive()
        for number in range(60):
            await queue.send(b"x" * 100, number)
            if number % 2:
                await queue.ack(await queue.receive())
        await until(lambda: not store.statistics().is_taking_snapshot)
        statistics = store.statistics()
        assert statistics.snapshots >= 2
        assert statistics.segments <= 4
        assert len(logs(disk)) == statistics.segments
        expected = [(-1, b"in hand"), *((number, b"x" * 100) for number in range(30, 60))]
        assert left_in(disk.crash()) == expected


async def test_a_snapshot_is_taken_when_it_is_asked_for(disk):
    async with opened(disk) as store:
        assert await store.snapshot() is False
        await store.queue().send(b"x")
        assert await store.snapshot() is True
        assert await store.snapshot() is False
        assert store.statistics().snapshot_lsn == 0
    assert left_in(disk.crash()) == [(0, b"x")]


class SlowSnapshots(HeldDisk[CrashFS]):
    """A disk on which, once `hold` was called, writing a snapshot waits for `let_go`."""

    def __init__(self) -> None:
        super().__init__(crash_disk())

    def open(self, path: str, **how: Any) -> int:
        if "/temp" in path and how.get("create"):
            self.wait()
        return super().open(path, **how)


async def test_while_a_snapshot_is_written_the_store_goes_on_and_it_has_the_state_from_before():
    disk = SlowSnapshots()
    async with opened(disk) as store, trio.open_nursery() as nursery:
        queue = store.queue()
        await queue.send_many([(1, b"acked meanwhile"), (2, b"stays")])
        tasks = Tasks(nursery)
        disk.hold()
        await tasks.start("snapshot", store.snapshot)
        await until(disk.has_begun.is_set)
        assert store.statistics().is_taking_snapshot
        await queue.ack(await queue.receive(), durability="synced")
        await queue.send(b"new", 0, durability="synced")
        await tasks.start("another", store.snapshot)
        await tasks.start("left", store.snapshot)
        tasks.scopes["left"].cancel()
        disk.let_go()
        await until(lambda: "another" in tasks)
        assert tasks["snapshot"] is tasks["another"] is True
        assert store.statistics().snapshots == 2
        assert left_in(disk.inner.crash()) == [(0, b"new"), (2, b"stays")]


async def test_leaving_the_block_gives_up_a_snapshot_that_is_being_written():
    disk = SlowSnapshots()
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        async with opened(disk) as store:
            await store.queue().send_many([b"x" * 1000] * 200)
            disk.hold()
            await tasks.start("snapshot", store.snapshot)
            await until(disk.has_begun.is_set)
            nursery.start_soon(trio.to_thread.run_sync, disk.let_go)
        assert isinstance(tasks["snapshot"], trio.ClosedResourceError)
    assert not [path for path in disk.inner.files() if "/temp" in path]
    assert len(left_in(disk.inner.crash())) == 200


async def test_a_snapshot_that_finds_no_room_leaves_the_log_and_says_so(disk):
    faulty = FaultFS(disk)
    async with opened(faulty) as store:
        await store.queue().send(b"x", durability="synced")
        faulty.fail("pwrite", error=errno.ENOSPC, path="*/temp/*")
        with pytest.raises(diskq.DiskFullError):
            await store.snapshot()
        await store.queue().send(b"y")
        assert await store.snapshot() is True
    assert left_in(disk) == [(0, b"x"), (0, b"y")]


async def test_a_snapshot_that_cannot_be_installed_breaks_the_store():
    disk = fault_disk()
    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012
        async with opened(disk) as store:
            await store.queue().send(b"x", durability="synced")
            disk.fail("rename", path="*snapshot*")
            with pytest.raises(trio.BrokenResourceError):
                await store.snapshot()
    assert left_in(disk.inner.crash()) == [(0, b"x")]


# --- closed, and broken -----------------------------------------------------------------------------


CALLS: dict[str, Callable[[diskq.PriorityStoreChannel, diskq.PriorityQueueChannel], Awaitable[object]]] = {
    "send": lambda store, queue: queue.send(b"new"),
    "send synced": lambda store, queue: queue.send(b"new", durability="synced"),
    "send to memory": lambda store, queue: queue.send(b"new", durability="memory"),
    "send_many": lambda store, queue: queue.send_many([b"new"] * 3),
    "receive": lambda store, queue: queue.receive(),
    "receive_many": lambda store, queue: queue.receive_many(3),
    "receive_many, lingering": lambda store, queue: queue.receive_many(30, linger=60),
    "peek": lambda store, queue: queue.peek(),
    "async for": lambda store, queue: queue.__anext__(),
    "receiving": lambda store, queue: use_block(queue),
    "ack": lambda store, queue: queue.ack([]),
    "create_queue": lambda store, queue: store.create_queue("new"),
    "create_queue synced": lambda store, queue: store.create_queue("newer", durability="synced"),
    "delete_queue": lambda store, queue: store.delete_queue("old"),
    "sync": lambda store, queue: store.sync(),
    "snapshot": lambda store, queue: store.snapshot(),
}
call_of = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


async def test_closing_a_handle_wakes_only_the_tasks_that_wait_on_it(disk):
    async with opened(disk) as store, trio.open_nursery() as nursery:
        mail = await store.create_queue("mail", max_messages=1)
        shadow = store.queue("mail")
        tasks = Tasks(nursery)
        await tasks.start("receive", mail.receive)
        await tasks.start("shadow", shadow.receive)
        mail.close()
        await blocked()
        assert isinstance(tasks["receive"], trio.ClosedResourceError)
        await shadow.send(b"x")
        await blocked()
        await tasks.start("send", shadow.send, b"y")
        await shadow.aclose()
        await blocked()
        assert isinstance(tasks["send"], trio.ClosedResourceError)
        for handle in (mail, shadow):
            with pytest.raises(trio.ClosedResourceError):
                handle.send_nowait(b"x")
            with pytest.raises(trio.ClosedResourceError):
                handle.nack(tasks["shadow"])
        await store.queue("mail").ack(tasks["shadow"])
        assert store.queue("mail").statistics().stored == 0


async def test_a_block_whose_handle_was_closed_says_so_and_puts_back(disk):
    async with opened(disk) as store:
        queue = store.queue()
        await queue.send(b"x")
        with pytest.raises(trio.ClosedResourceError):
            async with queue.receiving():
                queue.close()
        assert store.queue().receive_nowait().body == b"x"


@call_of
async def test_a_store_that_is_closed_says_so(disk, call):
    async with opened(disk) as store:
        queue = store.queue()
        await store.create_queue("old")
        await queue.send(b"x")
        records = await queue.receive_many(5)
        store.close()
        with pytest.raises(trio.ClosedResourceError):
            await call(store, queue)
        for now in (lambda: queue.send_nowait(b"x"), queue.receive_nowait, store.queue, store.queues):
            with pytest.raises(trio.ClosedResourceError):
                now()
        with pytest.raises(trio.ClosedResourceError):
            queue.nack(records)
        store.statistics()
    assert left_in(disk) == [(0, b"x")]


async def test_leaving_the_block_wakes_everybody_and_takes_back_what_is_in_hand(disk):
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        async with opened(disk) as store:
            mail = await store.create_queue("mail", max_messages=3)
            await mail.send_many(numbered(3))
            await mail.receive_many(3)
            await tasks.start("receive", mail.receive)
            await tasks.start("send", mail.send, b"x")
        await blocked()
        assert all(isinstance(tasks[key], trio.ClosedResourceError) for key in ("receive", "send"))
    assert [payload for _, payload in left_in(disk, "mail")] == numbered(3)


@call_of
async def test_a_sync_that_fails_breaks_the_store_for_everybody(call, autojump_clock):
    disk = fault_disk()
    with pytest.raises(trio.BrokenResourceError) as at_the_end:  # noqa: PT012
        async with opened(disk) as store, trio.open_nursery() as nursery:
            queue = store.queue()
            empty = await store.create_queue("empty")
            await store.create_queue("old")
            await queue.send_many(numbered(3), durability="synced")
            record = await queue.receive()
            tasks = Tasks(nursery)
            await tasks.start("waits", empty.receive)
            await until(lambda: not store._loop._has_flight)  # one in flight would meet the failure
            disk.fail("sync_files")
            queue.send_nowait(b"unsynced")  # the clock may have jumped, and all else be synced by the policy
            with pytest.raises(trio.BrokenResourceError):
                await store.sync()
            await blocked()
            assert isinstance(tasks["waits"], trio.BrokenResourceError)
            with pytest.raises(trio.BrokenResourceError) as raised:
                await call(store, queue)
            assert isinstance(raised.value.__cause__, diskq.StorageFailedError)
            for now in (lambda: queue.send_nowait(b"x"), lambda: queue.ack_nowait(record)):
                with pytest.raises(trio.BrokenResourceError):
                    now()
    assert isinstance(at_the_end.value.__cause__, diskq.StorageFailedError)
    assert [payload for _, payload in left_in(disk.inner.crash())] == numbered(3)


async def test_a_full_disk_refuses_and_nothing_is_settled_by_it():
    disk = fault_disk()
    async with opened(disk) as store:
        queue = store.queue()
        await queue.send(b"x")
        record = await queue.receive()
        disk.fail("pwrite", error=errno.ENOSPC, path="*.log", times=1)
        with pytest.raises(diskq.DiskFullError):
            await queue.send(b"y")
        disk.fail("pwrite", error=errno.ENOSPC, path="*.log", times=1)
        with pytest.raises(diskq.DiskFullError):
            await queue.ack(record)
        assert not record.is_settled
        queue.nack(record)
        disk.fail("pwrite", error=errno.ENOSPC, path="*.log", times=1)
        with pytest.raises(diskq.DiskFullError):
            async with queue.receiving():
                pass
        async with queue.receiving() as record:
            assert record.body == b"x"
        assert queue.statistics().stored == 0
    assert left_in(disk.inner.crash()) == []


# --- cancelled --------------------------------------------------------------------------------------


async def test_cancelled_at_any_moment_each_message_is_dealt_with_once(disk):
    # Every step of Trio in turn is the one at which the worker is cancelled.
    done: list[bytes] = []
    async with opened(disk, checkpoint_slice=0) as store:
        queue = store.queue()
        await queue.send_many(numbered(600))
        for step in range(60):
            cancel = CancelAt(step)
            with cancel.at_work(), cancel.scope:
                for _ in range(3):
                    async with queue.receiving(durability="synced") as record:
                        await trio.lowlevel.checkpoint()
                        done.append(record.body)
                    records = await queue.receive_many(2)
                    try:
                        await queue.ack(records)
                    finally:
                        done += [record.body for record in records if record.is_settled]
                        queue.nack([record for record in records if not record.is_settled])
            assert queue.statistics().in_flight == 0
        rest = [payload for _, payload in drain(queue)]
        assert rest
        assert sorted(done + rest) == sorted(numbered(600))
    assert left_in(disk) == []


async def test_what_is_sent_without_waiting_is_received_when_it_is_synced(disk):
    async with opened(disk, durability="synced") as store:
        queue = store.queue()
        queue.send_nowait(b"x")
        with pytest.raises(trio.WouldBlock):
            queue.receive_nowait()
        with trio.fail_after(60):
            assert (await queue.receive()).body == b"x"
        assert left_in(disk.crash()) == [(0, b"x")]


# --- who runs, and for how long ---------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["memory", "written", "synced"])
async def test_in_strict_mode_every_call_is_a_checkpoint(disk, durability):
    async with opened(disk, checkpoint_slice=0, durability=durability) as store:
        await store.create_queue("old")
        queue = store.queue()
        await queue.send_many(numbered(40), durability="synced")
        for name, call in CALLS.items():
            if "lingering" not in name:
                with assert_checkpoints():
                    await call(store, queue)
        for _ in range(2):
            with assert_checkpoints():
                await queue.ack(await queue.receive())
            with assert_checkpoints():
                await queue.aclose()
            queue = store.queue()


async def test_a_task_that_loops_lets_others_run_once_per_slice(tmp_path):
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with (
        diskq.open_priority_store(tmp_path / "store", checkpoint_slice=100e-6) as store,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(count_turns)
        queue = store.queue()
        for _ in range(2000):
            await queue.send(b"x" * 100)
            await queue.ack(await queue.receive())
        nursery.cancel_scope.cancel()
    # Some microseconds each, 6000 calls: more than a hundred slices, and not one for each call.
    assert 50 < turns < 6000


async def test_an_idle_store_wakes_no_task(disk, mock_clock):
    steps: list[str] = []

    class Steps(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            steps.append(task.name)

    async with opened(disk) as store:
        await store.queue().send(b"x")
        await store.queue().ack(await store.queue().receive())
        await store.sync()
        await store.snapshot()
        await until(lambda: store.statistics().unsynced_bytes == 0)
        await blocked()
        trio.lowlevel.add_instrument(instrument := Steps())
        for _ in range(10):
            mock_clock.jump(3600)
            await blocked()
        trio.lowlevel.remove_instrument(instrument)
    assert not [name for name in steps if "io_loop" in name]
