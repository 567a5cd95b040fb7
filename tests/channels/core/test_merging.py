# Many receivers as one: who is heard when, and that nothing is lost on the way.

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio
from trio.testing import assert_checkpoints, assert_no_checkpoints

from diskq.channels.core.merging import merge
from diskq.channels.queue.queue import QueueChannel
from tests.channels.rig import Tasks, blocked, crash_disk, drain, numbered, opened


class Channels:
    """Memory channels, their sending and receiving ends."""

    def __init__(self, count: int, room: float = 1000) -> None:
        pairs = [trio.open_memory_channel[Any](room) for _ in range(count)]
        self.send = [sender for sender, _ in pairs]
        self.receive = [receiver for _, receiver in pairs]

    def fill(self, count: int) -> None:
        for number, sender in enumerate(self.send):
            for item in range(count):
                sender.send_nowait((number, item))

    def end(self) -> None:
        for sender in self.send:
            sender.close()


# --- what comes out ---------------------------------------------------------------------------


async def test_every_message_comes_out_once_and_each_receivers_in_order():
    channels = Channels(3)
    channels.fill(100)
    channels.end()
    async with merge(*channels.receive) as merged:
        messages = [message async for message in merged]
    assert sorted(messages) == [(number, item) for number in range(3) for item in range(100)]
    for number in range(3):
        assert [item for of, item in messages if of == number] == list(range(100))


async def test_it_ends_when_all_have_ended_and_not_before():
    channels = Channels(2)
    async with merge(*channels.receive) as merged, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("waits", merged.receive)
        channels.send[0].close()
        await blocked()
        assert "waits" not in tasks
        channels.send[1].send_nowait("from the other")
        await blocked()
        assert tasks["waits"] == "from the other"
        channels.send[1].close()
        for _ in range(2):
            with pytest.raises(trio.EndOfChannel):
                await merged.receive()
        with pytest.raises(trio.EndOfChannel):
            merged.receive_nowait()


async def test_a_merge_of_nothing_has_ended():
    nothing: list[QueueChannel] = []
    async with merge(*nothing) as merged:
        with pytest.raises(trio.EndOfChannel):
            await merged.receive()


async def test_a_waiting_task_is_woken_when_the_last_receiver_ends():
    channels = Channels(3)
    async with merge(*channels.receive) as merged, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("waits", merged.receive)
        channels.end()
        await blocked()
        assert isinstance(tasks["waits"], trio.EndOfChannel)


async def test_no_receiver_waits_long_for_its_turn():
    channels = Channels(4)
    channels.fill(200)
    async with merge(*channels.receive) as merged:
        first = [await merged.receive() for _ in range(100)]
    assert {number for number, _ in first} == {0, 1, 2, 3}


async def test_the_source_comes_with_the_message_where_that_is_asked_for():
    channels = Channels(2)
    async with merge(*channels.receive, with_source=True) as merged:
        channels.send[1].send_nowait("held out")
        assert await merged.receive() == (channels.receive[1], "held out")
        async with trio.open_nursery() as nursery:
            tasks = Tasks(nursery)
            await tasks.start("waits", merged.receive)
            channels.send[0].send_nowait("waited for")
        assert tasks["waits"] == (channels.receive[0], "waited for")


async def test_a_merge_can_be_merged():
    channels = Channels(3)
    channels.fill(2)
    channels.end()
    async with merge(*channels.receive[:2]) as inner, merge(inner, channels.receive[2]) as merged:
        assert len([message async for message in merged]) == 6


async def test_disk_queues_can_be_merged():
    async with AsyncExitStack() as stack:
        disks = [crash_disk() for _ in range(2)]
        queues = [await stack.enter_async_context(opened(disk)) for disk in disks]
        merged = await stack.enter_async_context(merge(*queues))
        await queues[0].send_many(numbered(50))
        await queues[1].send_many(numbered(50, start=50))
        assert sorted([await merged.receive() for _ in range(100)]) == sorted(numbered(100))


# --- waiting ----------------------------------------------------------------------------------


async def test_nothing_is_taken_before_a_task_receives():
    channels = Channels(2)
    async with merge(*channels.receive) as merged:
        channels.fill(1)
        await blocked()
        assert [receiver.statistics().current_buffer_used for receiver in channels.receive] == [1, 1]
        await merged.receive()
        assert sum(receiver.statistics().current_buffer_used for receiver in channels.receive) == 1


async def test_waiting_tasks_are_served_in_order_of_arrival():
    channels = Channels(2)
    async with merge(*channels.receive) as merged, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        for key in range(4):
            await tasks.start(key, merged.receive)
        for item in range(4):
            channels.send[item % 2].send_nowait(item)
            await blocked()
        assert tasks.ended == [(0, 0), (1, 1), (2, 2), (3, 3)]


async def test_a_later_task_does_not_overtake_a_waiting_one():
    channels = Channels(1)
    async with merge(*channels.receive) as merged, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("first", merged.receive)
        channels.send[0].send_nowait(1)
        with pytest.raises(trio.WouldBlock):
            merged.receive_nowait()
        await blocked()
        assert tasks["first"] == 1


async def test_messages_that_come_at_one_moment_all_come_out():
    channels = Channels(5)
    async with merge(*channels.receive) as merged, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("waits", merged.receive)
        channels.fill(1)
        await blocked()
        rest = [merged.receive_nowait() for _ in range(4)]
        assert sorted([tasks["waits"], *rest]) == [(number, 0) for number in range(5)]
        with pytest.raises(trio.WouldBlock):
            merged.receive_nowait()


async def test_a_cancelled_wait_loses_no_message():
    channels = Channels(3)
    async with merge(*channels.receive) as merged, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("waits", merged.receive)
        channels.fill(1)  # a message is on its way to each of the waiting calls
        tasks.scopes["waits"].cancel()
        await blocked()
        got = [tasks["waits"]] if tasks["waits"] != "cancelled" else []
        got += [merged.receive_nowait() for _ in range(3 - len(got))]
        assert sorted(got) == [(number, 0) for number in range(3)]


async def test_a_queue_keeps_what_was_not_handed_over():
    disks = [crash_disk(), crash_disk()]
    async with opened(disks[0]) as one, opened(disks[1]) as other, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        async with merge(one, other) as merged:
            await tasks.start("waits", merged.receive)
            one.send_nowait(b"1")
            other.send_nowait(b"2")
            tasks.scopes["waits"].cancel()
            await blocked()
        left = [*drain(one), *drain(other)]
        assert sorted([*left, *([] if tasks["waits"] == "cancelled" else [tasks["waits"]])]) == [b"1", b"2"]


# --- schedule points --------------------------------------------------------------------------


async def test_a_call_is_a_cancellation_point_though_there_are_messages():
    channels = Channels(1)
    channels.fill(10)
    async with merge(*channels.receive) as merged:
        with trio.CancelScope() as scope:
            scope.cancel()
            await merged.receive()
        assert scope.cancelled_caught
        assert merged.receive_nowait() == (0, 0)


async def test_others_run_though_there_are_always_messages():
    channels = Channels(1, room=100_000)
    channels.fill(100_000)
    channels.end()
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            await trio.lowlevel.checkpoint()
            rounds += 1

    async with merge(*channels.receive) as merged, trio.open_nursery() as nursery:
        nursery.start_soon(count)
        async for _ in merged:
            pass
        nursery.cancel_scope.cancel()
    assert rounds > 20


async def test_not_waiting_is_no_checkpoint_and_closing_is_one():
    channels = Channels(1)
    channels.fill(1)
    merged = merge(*channels.receive)
    with assert_no_checkpoints():
        merged.receive_nowait()
    with assert_checkpoints():
        await merged.aclose()


# --- the end of it ----------------------------------------------------------------------------


async def test_an_error_comes_out_as_it_is_and_the_others_go_on():
    channels = Channels(2)
    channels.receive[0].close()  # the receiver gets ClosedResourceError
    async with merge(*channels.receive) as merged:
        channels.send[1].send_nowait("fine")
        outcomes = []
        for _ in range(3):
            try:
                outcomes.append(merged.receive_nowait())
            except (trio.ClosedResourceError, trio.WouldBlock) as told:
                outcomes.append(type(told))
    assert "fine" in outcomes
    assert trio.ClosedResourceError in outcomes


async def test_an_error_that_a_wait_meets_comes_out_as_it_is():
    disk = crash_disk()
    channels = Channels(1)
    async with opened(disk) as queue, trio.open_nursery() as nursery:
        handle = queue.clone()
        async with merge(handle, *channels.receive) as merged:
            tasks = Tasks(nursery)
            await tasks.start("waits", merged.receive)
            handle.close()
            await blocked()
            assert type(tasks["waits"]) is trio.ClosedResourceError


async def test_a_task_that_got_a_message_before_the_merge_was_closed_returns_it():
    channels = Channels(2)
    merged = merge(*channels.receive)
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("waits", merged.receive)
        channels.send[1].send_nowait("in hand")
        merged.close()
        await blocked()
        assert tasks["waits"] == "in hand"


async def test_closing_wakes_waiting_tasks_and_leaves_the_receivers_open():
    channels = Channels(2)
    merged = merge(*channels.receive)
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        for key in range(2):
            await tasks.start(key, merged.receive)
        merged.close()
        await blocked()
        assert [type(tasks[key]) for key in range(2)] == [trio.ClosedResourceError] * 2
    with pytest.raises(trio.ClosedResourceError):
        merged.receive_nowait()
    channels.send[0].send_nowait("still open")
    assert channels.receive[0].receive_nowait() == "still open"
