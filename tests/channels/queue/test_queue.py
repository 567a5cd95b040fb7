# The disk queue as a Trio channel: what each call does, and who gets what.

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import assert_no_checkpoints

import diskq
from tests.channels.rig import (
    DIRECTORY,
    NAME,
    PatientDisk,
    Tasks,
    blocked,
    chunks,
    drain,
    left_in,
    numbered,
    opened,
    until,
)

# --- sending and receiving --------------------------------------------------------------------


async def test_it_is_a_channel_of_trio(open_queue):
    async with open_queue() as queue:
        assert isinstance(queue, trio.abc.Channel)
        assert isinstance(queue, trio.abc.SendChannel)
        assert isinstance(queue, trio.abc.ReceiveChannel)


async def test_what_is_sent_is_received_in_order(open_queue):
    async with open_queue() as queue:
        for body in numbered(300):
            await queue.send(body)
        assert [await queue.receive() for _ in range(300)] == numbered(300)
        assert queue.depth == 0


async def test_what_is_left_is_there_at_the_next_open(open_queue):
    async with open_queue() as queue:
        await queue.send_many(numbered(10))
        assert await queue.receive() == b"0"
    async with open_queue() as queue:
        assert queue.depth == 9
        assert drain(queue) == numbered(9, start=1)


async def test_files_roll_and_are_read_on_and_removed(disk):
    async with opened(disk, segment_size=100) as queue:
        for body in numbered(100):
            await queue.send(body)
        assert queue.statistics().files > 5
        assert [await queue.receive() for _ in range(100)] == numbered(100)
        await queue.sync()
        assert queue.statistics().files == 1


@pytest.mark.parametrize("durability", ["memory", "written", "synced"])
@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)), b"x" * 300_000])
async def test_any_bytes_come_back_as_they_were(open_queue, body, durability):
    async with open_queue(durability=durability) as queue:
        await queue.send(b"before")
        await queue.send(body)
        queue.send_nowait(body)
        await queue.send_many([body, b"after"])
        assert [await queue.receive() for _ in range(5)] == [b"before", body, body, body, b"after"]


@pytest.mark.parametrize("make", [bytearray, memoryview])
async def test_bytes_in_another_shape_are_taken_and_handed_over_as_bytes(open_queue, make):
    async with open_queue() as queue:
        await queue.send(make(b"one"))
        queue.send_nowait(make(b"two"))
        await queue.send_many([make(b"three"), b"four"])
        bodies = await queue.receive_many(9)
        assert bodies == [b"one", b"two", b"three", b"four"]
        assert {type(body) for body in bodies} == {bytes}


@pytest.mark.parametrize("body", ["text", 7, None, ["list"]])
async def test_what_is_not_bytes_is_refused_and_nothing_of_it_is_in(open_queue, body):
    async with open_queue() as queue:
        with pytest.raises(TypeError, match="bytes"):
            await queue.send(body)
        with pytest.raises(TypeError, match="bytes"):
            queue.send_nowait(body)
        with pytest.raises(TypeError, match="bytes"):
            await queue.send_many([b"good", body])
        assert queue.depth == 0


async def test_a_body_of_the_wrong_size_is_refused_and_nothing_of_it_is_in(open_queue):
    async with open_queue(min_message_size=2, max_message_size=4) as queue:
        await queue.send(b"1234")  # the compiled door is open from here on
        for body in (b"1", b"12345"):
            for call in (queue.send(body), queue.send_many([b"123", body])):
                with pytest.raises(diskq.MessageSizeError):
                    await call
            with pytest.raises(diskq.MessageSizeError):
                queue.send_nowait(body)
        assert drain(queue) == [b"1234"]


async def test_an_unknown_durability_is_refused_and_nothing_is_in(open_queue):
    async with open_queue() as queue:
        with pytest.raises(ValueError, match="durability is one of"):
            await queue.send(b"x", durability="forever")
        with pytest.raises(ValueError, match="durability is one of"):
            await queue.send_many([b"x"], durability="forever")
        assert queue.depth == 0


async def test_nowait_calls_do_not_wait_and_are_no_checkpoints(open_queue):
    async with open_queue() as queue:
        with assert_no_checkpoints():
            for body in numbered(5):
                queue.send_nowait(body)
            assert [queue.receive_nowait() for _ in range(5)] == numbered(5)
            with pytest.raises(trio.WouldBlock):
                queue.receive_nowait()


async def test_async_for_receives_until_it_is_left(open_queue):
    async with open_queue() as queue:
        await queue.send_many(numbered(10))
        got = []
        async for body in queue:
            got.append(body)
            if len(got) == 4:
                break
        assert got == numbered(4)
        assert queue.depth == 6


async def test_async_for_waits_for_what_is_still_to_come(open_queue):
    async with open_queue() as queue, trio.open_nursery() as nursery:
        got = []

        async def consume():
            async for body in queue:
                got.append(body)

        nursery.start_soon(consume)
        for body in numbered(5):
            await blocked()
            await queue.send(body)
        await blocked()
        assert got == numbered(5)
        nursery.cancel_scope.cancel()


async def test_a_message_that_was_peeked_at_stays(open_queue):
    async with open_queue() as queue:
        await queue.send_many([b"first", b"second"])
        assert await queue.peek() == b"first"
        assert await queue.peek() == b"first"
        assert queue.depth == 2
        assert await queue.receive() == b"first"
        assert await queue.peek() == b"second"
        assert queue.receive_nowait() == b"second"


async def test_a_peek_waits_for_a_message_and_leaves_it_there(open_queue):
    async with open_queue() as queue, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("peek", queue.peek)
        await queue.send(b"x")
        await blocked()
        assert tasks["peek"] == b"x"
        assert await queue.receive() == b"x"


# --- many at once -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 5000])
async def test_batches_are_next_to_each_other_and_in_order(open_queue, size):
    async with open_queue(segment_size=1000) as queue:
        for batch in chunks(numbered(5000), size):
            await queue.send_many(batch)
        got = []
        while queue.depth:
            got += await queue.receive_many(size)
        assert got == numbered(5000)


async def test_a_batch_may_come_from_any_iterable_and_may_be_empty(open_queue):
    async with open_queue() as queue:
        await queue.send_many(body for body in numbered(3))
        await queue.send_many([])
        await queue.send_many([], durability="synced")
        assert queue.depth == 3


async def test_two_batches_do_not_mix(open_queue):
    async with open_queue(checkpoint_slice=0) as queue, trio.open_nursery() as nursery:
        for letter in (b"a", b"b", b"c"):
            nursery.start_soon(queue.send_many, [letter] * 100)
        await blocked()
        assert sorted(batch[0] for batch in chunks(drain(queue), 100) if len(set(batch)) == 1) == [
            b"a",
            b"b",
            b"c",
        ]


async def test_receive_many_takes_up_to_max_items(open_queue):
    async with open_queue() as queue:
        await queue.send_many(numbered(10))
        assert await queue.receive_many(4) == numbered(4)
        assert await queue.receive_many(100) == numbered(6, start=4)


async def test_receive_many_takes_up_to_max_bytes_but_one_message_of_any_size(open_queue):
    async with open_queue(segment_size=100) as queue:
        await queue.send_many([b"x" * 10] * 10)
        await queue.send(b"y" * 50)
        assert len(await queue.receive_many(100, max_bytes=39)) == 3
        assert len(await queue.receive_many(100, max_bytes=40)) == 4
        assert len(await queue.receive_many(100, max_bytes=69)) == 3
        assert await queue.receive_many(100, max_bytes=1) == [b"y" * 50]


async def test_receive_many_waits_for_one_and_no_more(open_queue):
    async with open_queue() as queue, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("many", queue.receive_many, 10)
        await queue.send(b"x")
        await blocked()
        assert tasks["many"] == [b"x"]


async def test_a_waiting_receive_many_is_handed_a_whole_batch(open_queue):
    async with open_queue() as queue, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("many", queue.receive_many, 10)
        await queue.send_many(numbered(15))
        await blocked()
        assert tasks["many"] == numbered(10)
        assert queue.depth == 5


@pytest.mark.parametrize("max_messages", [0, -1])
async def test_receiving_none_is_a_mistake(open_queue, max_messages):
    async with open_queue() as queue:
        await queue.send(b"x")
        with pytest.raises(ValueError, match="max_messages is at least 1"):
            await queue.receive_many(max_messages)
        with pytest.raises(ValueError, match="max_messages is at least 1"):
            async with queue.receiving(max_messages):
                pass
        assert queue.depth == 1


# --- lingering --------------------------------------------------------------------------------


async def test_lingering_ends_when_the_time_is_over(open_queue, autojump_clock):
    async with open_queue() as queue:
        await queue.send_many(numbered(3))
        began = trio.current_time()
        assert await queue.receive_many(10, linger=5) == numbered(3)
        assert trio.current_time() - began == pytest.approx(5)


async def test_lingering_begins_with_the_first_message(open_queue, autojump_clock):
    async with open_queue() as queue, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        began = trio.current_time()
        tasks.start_soon("many", queue.receive_many, 10, linger=5)
        await trio.sleep(20)
        await queue.send(b"x")
        await trio.sleep(4)
        assert "many" not in tasks
        await queue.send(b"y")
        await trio.sleep(2)
        assert tasks["many"] == [b"x", b"y"]
        assert trio.current_time() - began == pytest.approx(26)


@pytest.mark.parametrize("how", ["send", "send_nowait", "send_many", "one large batch"])
async def test_lingering_ends_when_enough_is_there(open_queue, mock_clock, how):
    async with open_queue() as queue, trio.open_nursery() as nursery:
        await queue.send(b"0")
        tasks = Tasks(nursery)
        await tasks.start("many", queue.receive_many, 10, linger=5)
        if how == "send":
            for body in numbered(9, start=1):
                assert "many" not in tasks
                await queue.send(body)
        elif how == "send_nowait":
            for body in numbered(9, start=1):
                queue.send_nowait(body)
        elif how == "send_many":
            for batch in chunks(numbered(9, start=1), 3):
                await blocked()
                assert "many" not in tasks
                await queue.send_many(batch)
        else:
            await queue.send_many(numbered(100, start=1))
        await blocked()
        assert tasks["many"] == numbered(10)


async def test_lingering_for_more_is_not_woken_with_lingering_for_less(open_queue, mock_clock):
    async with open_queue() as queue, trio.open_nursery() as nursery:
        await queue.send(b"0")
        tasks = Tasks(nursery)
        await tasks.start("ten", queue.receive_many, 10, linger=5)
        await tasks.start("two", queue.receive_many, 2, linger=5)
        await queue.send(b"1")
        await blocked()
        assert "ten" not in tasks
        assert tasks["two"] == numbered(2)
        await queue.send(b"2")
        mock_clock.jump(5)
        await blocked()
        assert tasks["ten"] == [b"2"]


async def test_lingering_does_not_end_with_nothing_where_others_took_it_all(open_queue, mock_clock):
    async with open_queue() as queue, trio.open_nursery() as nursery:
        await queue.send(b"0")
        tasks = Tasks(nursery)
        await tasks.start("many", queue.receive_many, 10, linger=5)
        assert await queue.receive() == b"0"
        mock_clock.jump(6)
        await blocked()
        assert "many" not in tasks
        await queue.send(b"1")
        await blocked()
        assert tasks["many"] == [b"1"]


async def test_a_block_may_linger_too(open_queue, autojump_clock):
    async with open_queue() as queue:
        await queue.send_many(numbered(3))
        began = trio.current_time()
        async with queue.receiving(10, linger=5) as bodies:
            assert bodies == numbered(3)
        assert trio.current_time() - began == pytest.approx(5)
        assert queue.depth == 0


# --- receiving(): the block is the unit of work -----------------------------------------------


async def test_leaving_the_block_cleanly_removes_its_messages(open_queue):
    async with open_queue() as queue:
        await queue.send_many(numbered(10))
        async with queue.receiving(4) as bodies:
            assert bodies == numbered(4)
            assert queue.depth == 10
        assert queue.depth == 6
        assert drain(queue) == numbered(6, start=4)


async def test_an_exception_leaves_all_messages_at_the_head_and_passes_as_it_is(open_queue):
    class SinkIsDownError(Exception):
        pass

    async with open_queue() as queue:
        await queue.send_many(numbered(10))
        with pytest.raises(SinkIsDownError):
            async with queue.receiving(4):
                raise SinkIsDownError
        assert queue.depth == 10
        assert drain(queue) == numbered(10)


async def test_a_cancelled_block_leaves_all_messages_at_the_head(open_queue, autojump_clock):
    async with open_queue() as queue:
        await queue.send_many(numbered(10))
        with trio.move_on_after(1) as scope:
            async with queue.receiving(4):
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert drain(queue) == numbered(10)


async def test_a_block_takes_up_to_max_bytes_and_over_file_ends(open_queue):
    async with open_queue(segment_size=30) as queue:
        await queue.send_many([b"x" * 10] * 10)
        async with queue.receiving(100, max_bytes=45) as bodies:
            assert bodies == [b"x" * 10] * 4
        async with queue.receiving(100) as bodies:
            assert len(bodies) == 6


async def test_what_an_aborted_block_had_may_be_taken_in_other_portions(open_queue):
    async with open_queue(segment_size=30) as queue:
        await queue.send_many(numbered(40))
        with pytest.raises(ZeroDivisionError):
            async with queue.receiving(20):
                raise ZeroDivisionError
        assert await queue.receive() == b"0"
        assert queue.receive_nowait() == b"1"
        assert await queue.receive_many(5) == numbered(5, start=2)
        assert await queue.peek() == b"7"
        async with queue.receiving(3) as bodies:
            assert bodies == numbered(3, start=7)
        async with queue.receiving(100) as bodies:
            assert bodies == numbered(30, start=10)
        assert queue.depth == 0


async def test_a_block_waits_for_a_message(open_queue):
    async with open_queue() as queue, trio.open_nursery() as nursery:

        async def work():
            async with queue.receiving(10) as bodies:
                return bodies

        tasks = Tasks(nursery)
        await tasks.start("block", work)
        await queue.send(b"x")
        await blocked()
        assert tasks["block"] == [b"x"]
        assert queue.depth == 0


async def test_other_receivers_wait_while_a_block_has_the_head_and_senders_do_not(open_queue):
    async with open_queue() as queue, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await queue.send_many(numbered(3))
        async with queue.receiving(1):
            await tasks.start("receive", queue.receive)
            await tasks.start("peek", queue.peek)
            await tasks.start("many", queue.receive_many, 10)
            with pytest.raises(trio.WouldBlock):
                queue.receive_nowait()
            await queue.send(b"3")
            queue.send_nowait(b"4")
            await queue.send_many([b"5"])
            await queue.send(b"6", durability="synced")
            assert not tasks.ended
            assert queue.statistics().tasks_waiting_receive == 3
        await blocked()
        assert dict(tasks.ended) == {"receive": b"1", "peek": b"2", "many": numbered(5, start=2)}


async def test_an_aborted_block_hands_its_messages_to_waiting_tasks(open_queue):
    async with open_queue() as queue, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await queue.send_many(numbered(2))
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with queue.receiving(2):
                await tasks.start(1, queue.receive)
                await tasks.start(2, queue.receive)
                raise ZeroDivisionError
        await blocked()
        assert dict(tasks.ended) == {1: b"0", 2: b"1"}


async def test_blocks_of_several_workers_follow_each_other(open_queue):
    async with open_queue() as queue, trio.open_nursery() as nursery:
        await queue.send_many(numbered(100))
        got: list[bytes] = []
        inside = 0

        async def worker():
            nonlocal inside
            while queue.depth:
                async with queue.receiving(7) as bodies:
                    inside += 1
                    assert inside == 1
                    await trio.lowlevel.checkpoint()
                    got.extend(bodies)
                    inside -= 1
                    if len(got) >= 100:
                        nursery.cancel_scope.cancel()
            await trio.sleep_forever()

        for _ in range(4):
            nursery.start_soon(worker)
    assert got == numbered(100)


async def test_emptying_takes_the_messages_of_a_block_too_and_nothing_that_came_after(open_queue):
    async with open_queue() as queue:
        await queue.send_many(numbered(10))
        async with queue.receiving(5):
            await queue.clear()
            await queue.send_many([b"new", b"newer"])
        assert drain(queue) == [b"new", b"newer"]


# --- who waits ------------------------------------------------------------------------------------


async def test_waiting_tasks_are_served_in_order_of_arrival(open_queue):
    async with open_queue() as queue, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        for key in range(6):
            await tasks.start(key, queue.receive)
        assert queue.statistics().tasks_waiting_receive == 6
        await queue.send(b"0")
        await queue.send_many(numbered(2, start=1))
        queue.send_nowait(b"3")
        await queue.send(b"4", durability="synced")
        await queue.send(b"5", durability="memory")
        await blocked()
        assert [tasks[key] for key in range(6)] == numbered(6)


async def test_each_call_that_waits_keeps_its_place_among_the_others(open_queue):
    async with open_queue() as queue, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("one", queue.receive)
        await tasks.start("three", queue.receive_many, 3)
        await tasks.start("peek", queue.peek)
        await tasks.start("last", queue.receive)
        await queue.send_many(numbered(5))
        await blocked()
        assert tasks["one"] == b"0"
        assert tasks["three"] == numbered(3, start=1)
        assert tasks["peek"] == b"4"
        assert tasks["last"] == b"4"


async def test_a_message_belongs_to_the_waiting_task_before_it_runs(open_queue):
    async with open_queue() as queue, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("waits", queue.receive)
        queue.send_nowait(b"x")
        with pytest.raises(trio.WouldBlock):
            queue.receive_nowait()
        assert queue.depth == 0
        await blocked()
        assert tasks["waits"] == b"x"


@pytest.mark.parametrize("durability", ["memory", "written", "synced"])
async def test_no_task_sleeps_while_there_is_a_message(open_queue, durability):
    # Each time the queue is left idle in another state: after a sync, before one, rolled, drained.
    options = {"durability": durability, "segment_size": 30}
    async with open_queue(**options) as queue, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        for number in range(30):
            await tasks.start(number, queue.receive)
            await queue.send(b"%d" % number)
            await blocked()
            assert tasks[number] == b"%d" % number
            if number % 3 == 0:
                await queue.sync()
            if number % 5 == 0:
                queue.send_nowait(b"between")
                assert queue.receive_nowait() == b"between"


@pytest.mark.parametrize("checkpoint_slice", [0, 100e-6, 0.01])
async def test_many_producers_and_consumers_exchange_every_message_once(open_queue, checkpoint_slice):
    producers, consumers, each = 8, 5, 400
    got: list[bytes] = []
    options = {"checkpoint_slice": checkpoint_slice, "segment_size": 5000, "sync_every": 500}
    async with open_queue(**options) as queue:

        async def produce(who):
            rng = random.Random(who)
            bodies = [b"%d %d" % (who, number) for number in range(each)]
            while bodies:
                match rng.randrange(4):
                    case 0:
                        await queue.send(bodies.pop(0))
                    case 1:
                        queue.send_nowait(bodies.pop(0))
                    case 2:
                        batch = bodies[: rng.randrange(20)]
                        await queue.send_many(batch)
                        del bodies[: len(batch)]
                    case 3:
                        await queue.send(bodies.pop(0), durability="memory")

        async def consume(who):
            rng = random.Random(who)
            while True:
                match rng.randrange(3):
                    case 0:
                        got.append(await queue.receive())
                    case 1:
                        got.extend(await queue.receive_many(rng.randrange(1, 30)))
                    case 2:
                        async with queue.receiving(rng.randrange(1, 30)) as bodies:
                            got.extend(bodies)
                if len(got) == producers * each:
                    nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for who in range(producers):
                nursery.start_soon(produce, who)
            for who in range(consumers):
                nursery.start_soon(consume, who)
        assert queue.depth == 0
    assert len(got) == len(set(got)) == producers * each


async def test_one_consumer_sees_each_producers_messages_in_their_order(open_queue):
    async with open_queue(segment_size=2000) as queue, trio.open_nursery() as nursery:

        async def produce(who):
            for number in range(200):
                await queue.send(b"%d %d" % (who, number))
                if number % 7 == who:
                    await trio.lowlevel.checkpoint()

        for who in range(5):
            nursery.start_soon(produce, who)
        got = [await queue.receive() for _ in range(1000)]
    for who in range(5):
        of_one = [body for body in got if body.startswith(b"%d " % who)]
        assert of_one == [b"%d %d" % (who, number) for number in range(200)]


# --- handles, and the end ---------------------------------------------------------------------------


async def test_clones_share_the_queue_and_are_closed_by_their_blocks(open_queue):
    async with open_queue() as queue:
        shadow = queue.clone()
        await queue.send(b"x")
        assert shadow.statistics() == queue.statistics()
        async with shadow:
            assert await shadow.receive() == b"x"
        with queue.clone() as triplet:
            await triplet.send(b"z")
        assert (queue.depth, queue.statistics().open_handles) == (1, 1)


async def use_block(queue: diskq.QueueChannel) -> None:
    async with queue.receiving(5):
        await trio.lowlevel.checkpoint()


def calls_on(queue: diskq.QueueChannel) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: queue.send(b"late"),
        lambda: queue.send(b"late", durability="synced"),
        lambda: queue.send_many([b"late"]),
        lambda: queue.send_many([]),
        lambda: queue.receive(),
        lambda: queue.receive_many(5),
        lambda: queue.receive_many(5, linger=1),
        lambda: queue.peek(),
        lambda: use_block(queue),
        lambda: queue.clear(),
        lambda: queue.sync(),
        lambda: queue.__aiter__().__anext__(),
    ]


async def assert_closed(queue):
    for call in calls_on(queue):
        with pytest.raises(trio.ClosedResourceError):
            await call()
    with pytest.raises(trio.ClosedResourceError):
        queue.send_nowait(b"late")
    with pytest.raises(trio.ClosedResourceError):
        queue.receive_nowait()
    with pytest.raises(trio.ClosedResourceError):
        queue.clone()


async def test_after_the_block_every_handle_refuses_every_call(open_queue):
    async with open_queue() as queue:
        shadow = queue.clone()
        await queue.send_many(numbered(3))
    await assert_closed(queue)
    await assert_closed(shadow)
    assert not shadow.statistics().tasks_waiting_receive
    shadow.close()
    async with open_queue() as queue:
        assert drain(queue) == numbered(3)


async def test_closing_a_handle_wakes_only_the_tasks_that_wait_on_it(open_queue):
    async with open_queue() as queue, trio.open_nursery() as nursery:
        shadow = queue.clone()
        tasks = Tasks(nursery)
        await tasks.start("receive", shadow.receive)
        await tasks.start("peek", shadow.peek)
        await tasks.start("many", shadow.receive_many, 3)
        await tasks.start("block", use_block, shadow)
        await tasks.start("other", queue.receive)
        await shadow.aclose()
        await blocked()
        for key in ("receive", "peek", "many", "block"):
            assert type(tasks[key]) is trio.ClosedResourceError
        assert "other" not in tasks
        await queue.send(b"x")
        await blocked()
        assert tasks["other"] == b"x"


async def test_the_end_of_the_block_wakes_everybody(open_queue):
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        async with open_queue() as queue:
            shadow = queue.clone()
            await tasks.start("receive", queue.receive)
            await tasks.start("peek", shadow.peek)
            await tasks.start("many", shadow.receive_many, 3, linger=1)
            await tasks.start("block", use_block, shadow)
        await blocked()
        assert [type(result) for _, result in tasks.ended] == [trio.ClosedResourceError] * 4


@pytest.mark.parametrize("checkpoint_slice", [0, 100e-6])
async def test_a_call_that_is_on_its_way_when_the_block_ends_ends_too(disk, checkpoint_slice):
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        begun = 0
        async with opened(disk, checkpoint_slice=checkpoint_slice) as queue:
            shadow = queue.clone()
            for _ in range(3):
                await queue.send(b"x")
                for call in calls_on(shadow):
                    tasks.start_soon(begun, call)
                    begun += 1
                await trio.lowlevel.checkpoint()
            for call in calls_on(shadow):
                tasks.start_soon(begun, call)
                begun += 1
        for call in calls_on(shadow):
            tasks.start_soon(begun, call)
            begun += 1
        await until(lambda: len(tasks.ended) == begun)
        closed = [result for _, result in tasks.ended if isinstance(result, trio.ClosedResourceError)]
        assert len(closed) >= len(calls_on(shadow))
        failures = [result for _, result in tasks.ended if isinstance(result, Exception)]
        assert len(failures) == len(closed)


async def test_each_waiting_task_gets_an_exception_of_its_own_at_the_end(open_queue):
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        async with open_queue() as queue:
            await tasks.start(1, queue.receive)
            await tasks.start(2, queue.receive)
    assert tasks[1] is not tasks[2]


async def test_aclose_of_the_first_handle_leaves_the_queue_open_for_its_clones(open_queue):
    async with open_queue() as queue:
        shadow = queue.clone()
        await queue.aclose()
        await shadow.send(b"x")
        assert await shadow.receive() == b"x"


async def test_a_second_open_is_refused_while_the_first_lives(open_queue):
    async with open_queue():
        with pytest.raises(diskq.LockedError):
            async with open_queue():
                raise AssertionError("two writers")
    async with open_queue():
        pass


async def test_entering_raises_for_a_wrong_name_or_a_missing_queue(tmp_path):
    with pytest.raises(diskq.QueueNameError):
        async with diskq.open_queue(tmp_path, "a/b"):
            raise AssertionError("no such name")
    with pytest.raises(diskq.NotFoundError):
        async with diskq.open_queue(tmp_path / "missing", NAME, create=False):
            raise AssertionError("no such queue")


# --- statistics, emptying, syncing ------------------------------------------------------------------


async def test_statistics_tell_what_is_and_what_was(disk):
    async with opened(disk, segment_size=100) as queue:
        before = queue.statistics()
        assert (before.depth, before.accepted, before.delivered, before.files) == (0, 0, 0, 0)
        await queue.send_many([b"x" * 46] * 5)
        await queue.receive()
        async with queue.receiving(2):
            now = queue.statistics()
            assert (now.depth, now.accepted, now.delivered, now.files) == (4, 5, 1, 3)
        now = queue.statistics()
        assert (now.depth, now.accepted, now.delivered) == (2, 5, 3)
        assert (now.dropped, now.lost, now.repairs) == (0, 0, ())
        assert now.tasks_waiting_send == now.tasks_waiting_receive == 0
        await queue.sync()
        after = queue.statistics()
        assert after.unsynced_bytes == 0
        assert after.barriers > before.barriers
        assert after.depth == queue.depth == 2
        with pytest.raises(dataclasses.FrozenInstanceError):
            after.depth = 7  # type: ignore[misc]


async def test_unsynced_bytes_are_those_since_the_last_sync(open_queue):
    async with open_queue() as queue:
        await queue.send(b"x" * 96)
        assert queue.statistics().unsynced_bytes == 100
        await queue.send(b"x" * 96)
        assert queue.statistics().unsynced_bytes == 200
        await queue.sync()
        assert queue.statistics().unsynced_bytes == 0
        await queue.send(b"x" * 96, durability="synced")
        assert queue.statistics().unsynced_bytes == 0


async def test_statistics_count_tasks_that_wait_for_a_sync():
    disk = PatientDisk()
    async with opened(disk) as queue, trio.open_nursery() as nursery:
        disk.hold()
        nursery.start_soon(lambda: queue.send(b"x", durability="synced"))
        await until(lambda: queue.statistics().tasks_waiting_send == 1)
        disk.let_go()
        await until(lambda: queue.statistics().tasks_waiting_send == 0)


async def test_empty_asks_as_that_of_the_standard_library_and_removes_nothing(open_queue):
    async with open_queue() as queue:
        assert queue.empty()
        await queue.send_many([b"1", b"2", b"3"])
        async with queue.receiving(3):
            assert not queue.empty()
        await queue.send_many([b"4", b"5"])
        got = []
        while not queue.empty():
            got.append(await queue.receive())
        assert got == [b"4", b"5"]


async def test_emptying_removes_everything_durably(disk):
    async with opened(disk, segment_size=100) as queue:
        await queue.send_many(numbered(100))
        await queue.receive()
        await queue.clear()
        assert queue.depth == 0
        with pytest.raises(trio.WouldBlock):
            queue.receive_nowait()
        assert left_in(disk.crash()) == []
        assert not [path for path in disk.files() if path.endswith(".dat") and "meta" not in path]
        await queue.send(b"new")
        assert queue.depth == 1
        assert await queue.receive() == b"new"


async def test_a_queue_that_is_empty_can_be_emptied(open_queue):
    async with open_queue() as queue:
        await queue.clear()
        await queue.clear()
        await queue.send(b"x")
        assert await queue.receive() == b"x"
        await queue.clear()
        assert queue.depth == 0


async def test_a_receiver_waits_on_when_the_queue_is_emptied(open_queue):
    async with open_queue() as queue, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("receive", queue.receive)
        await queue.clear()
        await blocked()
        assert "receive" not in tasks
        await queue.send(b"x")
        await blocked()
        assert tasks["receive"] == b"x"


async def test_after_a_sync_a_power_cut_costs_nothing(disk):
    async with opened(disk, segment_size=100) as queue:
        await queue.send_many(numbered(50))
        await queue.receive_many(20)
        await queue.sync()
        assert left_in(disk.crash()) == numbered(30, start=20)


# --- options ----------------------------------------------------------------------------------------


async def test_options_come_as_an_object_or_one_by_one_or_as_both(disk):
    options = diskq.QueueOptions(max_message_size=5)
    async with opened(disk, options=options) as queue:
        with pytest.raises(diskq.MessageSizeError):
            await queue.send(b"123456")
    async with opened(disk, max_message_size=5) as queue:
        with pytest.raises(diskq.MessageSizeError):
            await queue.send(b"123456")
    async with opened(disk, options=options, max_message_size=7, min_message_size=2) as queue:
        await queue.send(b"123456")
        with pytest.raises(diskq.MessageSizeError):
            await queue.send(b"1")
    assert options == diskq.QueueOptions(max_message_size=5)


@pytest.mark.parametrize(
    "name, value",
    [
        ("segment_size", 0),
        ("min_message_size", -1),
        ("max_message_size", 0),
        ("max_message_size", 2**31),
        ("sync_every", 0),
        ("sync_timeout", 0),
        ("sync_timeout", math.nan),
        ("durability", "forever"),
        ("max_unsynced", 0),
        ("max_bytes", 100),
        ("on_full", "explode"),
        ("memory_flush", -1),
        ("checkpoint_slice", -1),
        ("checkpoint_slice", math.inf),
        ("checkpoint_slice", math.nan),
    ],
)
def test_an_option_out_of_its_range_is_refused_at_once_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        diskq.open_queue(DIRECTORY, NAME, **{name: value})


@pytest.mark.parametrize("value", [2.5, "many", True])
def test_an_option_of_the_wrong_kind_is_refused_at_once(value):
    with pytest.raises(TypeError, match="sync_every"):
        diskq.open_queue(DIRECTORY, NAME, sync_every=value)


def test_an_option_that_does_not_exist_is_refused_at_once():
    with pytest.raises(TypeError, match="retries"):
        diskq.open_queue(DIRECTORY, NAME, retries=3)  # type: ignore[call-arg]


# --- how the block may end --------------------------------------------------------------------------


class OwnError(Exception):
    pass


async def test_an_exception_leaves_the_block_as_it_is(open_queue):
    error = OwnError()
    with pytest.raises(OwnError) as raised:  # noqa: PT012
        async with open_queue() as queue:
            await queue.send(b"x")
            raise error
    assert raised.value is error
    async with open_queue() as queue:
        assert drain(queue) == [b"x"]


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, KeyboardInterrupt])
async def test_so_does_what_is_more_than_an_exception(open_queue, kind):
    error = kind()
    with pytest.raises(kind) as raised:  # noqa: PT012
        async with open_queue() as queue:
            await queue.send(b"x")
            raise error
    assert raised.value is error


async def test_a_group_of_the_blocks_own_nursery_is_not_wrapped_again(open_queue):
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012
        async with open_queue() as queue, trio.open_nursery() as nursery:
            await queue.send(b"x")

            async def fail():
                raise OwnError

            nursery.start_soon(fail)
    assert [type(error) for error in raised.value.exceptions] == [OwnError]


@pytest.mark.parametrize("durability", ["memory", "written"])
async def test_after_a_cancelled_block_everything_sent_is_in_the_files_and_synced(disk, durability):
    with trio.CancelScope() as scope:
        async with opened(disk, durability=durability) as queue:
            await queue.send_many(numbered(100))
            for body in numbered(100, start=100):
                await queue.send(body)
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert left_in(disk.crash()) == numbered(200)


async def test_a_block_that_is_cancelled_before_it_begins_does_not_begin(disk):
    with trio.CancelScope() as scope:
        scope.cancel()
        async with opened(disk):
            raise AssertionError("began")
    assert scope.cancelled_caught
    assert disk.files() == {}
    async with opened(disk):
        pass


async def test_a_cancelled_nursery_around_the_block_takes_it_down_in_order(disk):
    async with trio.open_nursery() as nursery:

        async def serve():
            async with opened(disk) as queue, trio.open_nursery() as inner:

                async def produce():
                    for body in numbered(10):
                        await queue.send(body)

                async def consume():
                    async for _ in queue:
                        pass

                inner.start_soon(consume)
                await blocked()
                inner.start_soon(produce)
                await trio.sleep_forever()

        nursery.start_soon(serve)
        await blocked()
        nursery.cancel_scope.cancel()
    assert left_in(disk) == []


async def test_queues_may_be_open_inside_each_other(tmp_path):
    async with (
        diskq.open_queue(tmp_path, "a") as a,
        diskq.open_queue(tmp_path, "b") as b,
        trio.open_nursery() as nursery,
    ):

        async def forward():
            async for body in a:
                await b.send(body)

        nursery.start_soon(forward)
        for body in numbered(100):
            await a.send(body)
        assert [await b.receive() for _ in range(100)] == numbered(100)
        nursery.cancel_scope.cancel()
