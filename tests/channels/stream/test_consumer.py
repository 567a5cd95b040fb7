# The reading side of a stream as a Trio channel: what is received, in which order, and by whom.

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import assert_checkpoints, assert_no_checkpoints

from diskq.channels.core.merging import merge
from diskq.channels.stream.consumer import StreamConsumer, open_consumer
from diskq.channels.stream.producer import StreamProducer, open_producer
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.retention import retain
from diskq.engine.stream.stream import Stream
from diskq.errors import GroupNameError, NotFoundError, OffsetOutOfRangeError
from diskq.messages import Message, Position
from diskq.options import StreamOptions
from diskq.storage.file_watch import FileWatch
from diskq.storage.fs import OsFileSystem
from diskq.testing import CrashFS, FaultFS
from tests.channels.rig import Tasks, blocked, numbered, until
from tests.channels.stream_rig import (
    ONE,
    STREAM,
    consuming,
    drain,
    index,
    producing,
    send_all,
    stored,
    values,
)

MOMENT = datetime(2013, 7, 4, 6, tzinfo=UTC)


async def fill(disk: CrashFS, count: int = 10, **options: Any) -> list[bytes]:
    """Make a stream of one partition, or more, and close it."""
    bodies = numbered(count)
    async with producing(disk, **{**ONE, **options}) as producer:
        for number, body in enumerate(bodies):
            when = MOMENT + timedelta(minutes=number)
            await producer.send(body, b"key-%d" % (number % 7), when)
    return bodies


async def received(disk: CrashFS, partitions: list[int] | None = None, **how: Any) -> list[Message]:
    """What a consumer that does not wait receives."""
    async with consuming(disk, partitions, **{"end": "close", **how}) as consumer:
        return [message async for message in consumer]


# --- what is received -------------------------------------------------------------------------


async def test_it_is_a_channel_of_trio(disk):
    await fill(disk)
    async with consuming(disk) as consumer:
        assert isinstance(consumer, trio.abc.ReceiveChannel)
        message = await consumer.receive()
        assert message == Message(0, 0, int(MOMENT.timestamp()) * 1_000_000_000, b"key-0", b"0")


async def test_all_messages_are_received_once_and_each_partitions_in_order(disk):
    await fill(disk, 5000, partition_count=4, segment_size=10_000)
    messages = await received(disk)
    assert {message.position for message in messages} == {message.position for message in stored(disk)}
    assert len(messages) == 5000
    for partition in range(4):
        offsets = [message.offset for message in messages if message.partition == partition]
        assert offsets == list(range(len(offsets)))


async def test_partitions_take_turns(disk):
    async with producing(disk, partition_count=3) as producer:
        await producer.send_many([(f"key-{number % 10}", b"x") for number in range(6000)])
    first = (await received(disk))[:1500]
    assert {message.partition for message in first} == {0, 1, 2}


async def test_only_those_partitions_are_read_that_were_asked_for(disk):
    await fill(disk, 100, partition_count=4)
    messages = await received(disk, [2, 0, 2])
    assert {message.partition for message in messages} == {0, 2}
    assert len(messages) == len({message.position for message in messages})


async def test_it_receives_many_at_once_of_all_partitions(disk):
    await fill(disk, 100, partition_count=4)
    async with consuming(disk, end="close") as consumer:
        first = await consumer.receive_many(90)
        assert len(first) == 90
        assert len(await consumer.receive_many(90)) == 10
        with pytest.raises(trio.EndOfChannel):
            await consumer.receive_many(90)
        with pytest.raises(ValueError, match="at least 1"):
            await consumer.receive_many(0)


async def test_many_are_bounded_by_bytes_but_one_however_large(disk):
    async with producing(disk, **ONE) as producer:
        await send_all(producer, [b"x" * 99, b"y" * 99, b"z" * 999, b"small"])
    async with consuming(disk) as consumer:
        for max_bytes, wanted in ((250, b"xy"), (250, b"z"), (250, b"s")):
            messages = await consumer.receive_many(9, max_bytes=max_bytes)
            assert b"".join(message.value[:1] for message in messages) == wanted


async def test_what_is_peeked_at_stays_and_is_received_next(disk):
    async with producing(disk) as producer, consuming(disk) as consumer, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("peeks", consumer.peek)
        await tasks.start("receives", consumer.receive)
        place = await producer.send(b"x", b"k")
        await blocked()
        assert tasks["peeks"] == tasks["receives"]
        await producer.send(b"y", b"k")
        for _ in range(3):
            assert (await consumer.peek()).offset == place.offset + 1
        assert consumer.position[place.partition] == place.offset + 1
        assert (await consumer.receive()).value == b"y"


# --- where it begins, and ends ----------------------------------------------------------------


@pytest.mark.parametrize(
    "start, first",
    [
        ("oldest", 0),
        ("newest", 9),
        ("active", 8),  # a record has 30 bytes or so, and a segment 100
        (4, 4),
        (10, 10),
        ({0: 3}, 3),
        ({1: 3}, 0),
        (MOMENT - timedelta(days=1), 0),
        (MOMENT + timedelta(minutes=4), 5),
        (MOMENT + timedelta(minutes=9), 10),
        (MOMENT + timedelta(days=1), 10),
    ],
)
async def test_it_begins_at_start(disk, start, first):
    bodies = await fill(disk, 10, segment_size=100)
    assert values(await received(disk, start=start)) == bodies[first:]


async def test_where_the_active_segment_is_empty_the_newest_is_the_next_one(disk):
    """go-diskq's consumer waits there: it looks for the newest in the active segment alone."""
    await fill(disk, 4, segment_size=1)
    assert await received(disk, start="newest") == []
    async with consuming(disk, start="newest") as consumer, producing(disk, segment_size=1) as producer:
        await producer.send(b"x", b"k")
        message = await consumer.receive()
    assert (message.offset, message.value) == (4, b"x")


async def test_from_the_newest_of_an_empty_stream_it_begins_with_what_comes(disk):
    async with producing(disk, **ONE) as producer:
        for start in ("newest", "oldest", "active", MOMENT, 0):
            async with consuming(disk, start=start) as consumer:
                place = await producer.send(b"x")
                assert (await consumer.receive()).position == place
            if start == "newest":
                break


@pytest.mark.parametrize("start", [11, {0: 11}, 2**62, 2**63, 2**64])
async def test_an_offset_that_is_not_there_yet_is_refused(disk, start):
    await fill(disk)
    with pytest.raises(OffsetOutOfRangeError) as refused:
        await received(disk, start=start)
    assert (refused.value.first_offset, refused.value.next_offset) == (0, 10)


@pytest.mark.parametrize(
    "how, error",
    [
        ({"start": datetime(2013, 7, 4)}, ValueError),
        ({"start": "last"}, ValueError),
        ({"start": -1}, ValueError),
        ({"start": 1.5}, TypeError),
        ({"start": {0: "last"}}, ValueError),
        ({"end": "later"}, ValueError),
        ({"end": -1}, ValueError),
        ({"end": None}, TypeError),
        ({"autocommit": True}, ValueError),
        ({"group": ""}, GroupNameError),
        ({"group": "../etc"}, GroupNameError),
        ({"claim_interval": 0}, ValueError),
        ({"partitions": [0, 7]}, NotFoundError),
    ],
)
async def test_what_makes_no_sense_is_refused(disk, how, error):
    await fill(disk)
    with pytest.raises(error):
        await received(disk, **how)


async def test_a_missing_stream_raises(disk, tmp_path):
    with pytest.raises(NotFoundError):
        await received(disk)
    with pytest.raises(NotFoundError):
        async with open_consumer(tmp_path / "none"):
            pass


@pytest.mark.parametrize("end, last", [(0, 0), (4, 4), (9, 9)])
async def test_it_ends_after_the_offset_of_end(disk, end, last):
    bodies = await fill(disk)
    assert values(await received(disk, end=end)) == bodies[: last + 1]
    assert await received(disk, start=5, end=4) == []


async def test_an_end_that_is_not_there_yet_is_waited_for(disk):
    await fill(disk)
    async with (
        producing(disk, **ONE) as producer,
        consuming(disk, end=11) as consumer,
        trio.open_nursery() as nursery,
    ):
        assert len(drain(consumer)) == 10
        tasks = Tasks(nursery)
        await tasks.start("waits", consumer.receive)
        await send_all(producer, [b"10", b"11", b"12"])
        await blocked()
        assert tasks["waits"].value == b"10"
        assert values([message async for message in consumer]) == [b"11"]


async def test_what_comes_later_is_not_waited_for_where_it_closes(disk):
    await fill(disk)
    async with producing(disk, **ONE) as producer, consuming(disk, end="close") as consumer:
        await producer.send(b"later", b"k")
        assert len([message async for message in consumer]) == 10
        with pytest.raises(trio.EndOfChannel):
            await consumer.receive()
        with pytest.raises(trio.EndOfChannel):
            consumer.receive_nowait()


# --- waiting for a producer in this run -------------------------------------------------------


async def test_waiting_tasks_are_woken_by_the_producer_in_order_of_arrival(disk):
    async with producing(disk) as producer, consuming(disk) as consumer, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        for key in range(5):
            await tasks.start(key, consumer.receive)
        for number in range(3):
            await producer.send(b"%d" % number, b"key-%d" % number)
        await producer.send_many([(b"key-%d" % number, b"%d" % number) for number in (3, 4)])
        await blocked()
        assert values([tasks[key] for key in range(3)]) == numbered(3)
        assert sorted(values([tasks[key] for key in (3, 4)])) == [b"3", b"4"]
        with pytest.raises(trio.WouldBlock):
            consumer.receive_nowait()


async def test_messages_sent_while_no_task_waited_are_there(disk):
    async with producing(disk) as producer, consuming(disk) as consumer:
        for count in (1, 10, 1000):
            await producer.send_many([(b"key-%d" % number, b"x") for number in range(count)])
            assert len(drain(consumer)) == count


@pytest.mark.parametrize("segment_size", [1, 100, 100_000])
async def test_a_consumer_follows_its_producer_through_segments(disk, segment_size):
    got = []

    async def consume() -> None:
        async with consuming(disk, end=999) as consumer:
            got.extend([message async for message in consumer])

    async with producing(disk, **ONE, segment_size=segment_size) as producer, trio.open_nursery() as nursery:
        nursery.start_soon(consume)
        await blocked()
        for number in range(1000):
            await producer.send(b"%d" % number, b"k")
            if number % 7 == 0:
                await trio.lowlevel.checkpoint()
    assert values(got) == numbered(1000)


async def test_a_memory_message_is_received_when_it_is_written(autojump_clock, disk):
    async with (
        producing(disk, durability="memory", memory_flush=0.5) as producer,
        consuming(disk) as consumer,
    ):
        start = trio.current_time()
        await producer.send(b"x")
        assert (await consumer.receive()).value == b"x"
        assert trio.current_time() - start >= 0.5


async def test_producers_come_and_go_while_a_consumer_waits(autojump_clock, disk):
    await fill(disk, 3)
    async with consuming(disk) as consumer, trio.open_nursery() as nursery:
        assert len(drain(consumer)) == 3
        for number in range(5):
            tasks = Tasks(nursery)
            await tasks.start("waits", consumer.receive)
            async with producing(disk, **ONE, segment_size=60) as producer:
                await send_all(producer, [b"%d" % number, b"more"])
            await until(lambda tasks=tasks: "waits" in tasks)  # type: ignore[misc]
            assert tasks["waits"].value == b"%d" % number
            assert values(drain(consumer)) == [b"more"]


async def test_two_consumers_of_one_run_each_receive_everything(disk):
    async with producing(disk) as producer, consuming(disk) as one, consuming(disk) as other:
        await producer.send_many([(b"key-%d" % number, b"x") for number in range(100)])
        assert len(drain(one)) == len(drain(other)) == 100


async def test_a_disk_wrapped_in_another_is_the_same_stream(disk):
    async with (
        producing(FaultFS(disk)) as producer,
        consuming(disk) as consumer,
        trio.open_nursery() as nursery,
    ):
        tasks = Tasks(nursery)
        await tasks.start("waits", consumer.receive)
        await producer.send(b"x")
        await blocked()
        assert tasks["waits"].value == b"x"


# --- waiting for a producer elsewhere ---------------------------------------------------------
# A `Stream` belongs to the process, but not to the Trio run: it notifies no reader in the run.


async def test_a_producer_elsewhere_is_heard_of_by_the_kernel(tmp_path):
    with Stream(tmp_path / "s", options=StreamOptions(**ONE)) as stream:
        async with open_consumer(tmp_path / "s") as consumer, trio.open_nursery() as nursery:
            for number in range(20):
                tasks = Tasks(nursery)
                await tasks.start("waits", consumer.receive)
                stream.append(b"%d" % number)
                await until(lambda tasks=tasks: "waits" in tasks)  # type: ignore[misc]
                assert tasks["waits"].value == b"%d" % number


async def test_where_the_kernel_does_not_tell_it_is_found_out(autojump_clock, disk):
    with Stream(STREAM, options=StreamOptions(**ONE), fs=disk) as stream:
        async with consuming(disk) as consumer, trio.open_nursery() as nursery:
            for number in range(20):
                tasks = Tasks(nursery)
                await tasks.start("waits", consumer.receive)
                stream.append(b"%d" % number)
                with trio.fail_after(0.011):
                    await trio.sleep(0.0101)
                assert tasks["waits"].value == b"%d" % number


async def test_rolls_elsewhere_are_followed(tmp_path):
    with Stream(tmp_path / "s", options=StreamOptions(**ONE, segment_size=200)) as stream:
        async with open_consumer(tmp_path / "s", end=499) as consumer, trio.open_nursery() as nursery:
            tasks = Tasks(nursery)

            async def consume() -> list[Message]:
                return [message async for message in consumer]

            await tasks.start("all", consume)
            for number in range(500):
                stream.append(b"%d" % number)
                if number % 3 == 0:
                    await trio.lowlevel.checkpoint()
            await until(lambda: "all" in tasks)
            assert values(tasks["all"]) == numbered(500)


async def test_an_idle_consumer_does_nothing(autojump_clock, tmp_path):
    class Steps(trio.abc.Instrument):
        taken = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.taken += task is not me

    me = trio.lowlevel.current_task()
    with Stream(tmp_path / "s"):
        async with open_consumer(tmp_path / "s") as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.receive)
            await blocked()
            steps = Steps()
            trio.lowlevel.add_instrument(steps)
            await trio.sleep(86_000)
            trio.lowlevel.remove_instrument(steps)
            nursery.cancel_scope.cancel()
    assert steps.taken <= 1  # the mock clock's own


async def test_new_partitions_are_noticed(tmp_path):
    with Stream(tmp_path / "s", options=StreamOptions(partition_count=1)) as stream:
        stream.append(b"first")
    async with open_consumer(tmp_path / "s", start="newest") as consumer, trio.open_nursery() as nursery:
        assert values(drain(consumer)) == [b"first"]
        tasks = Tasks(nursery)
        for key in range(30):
            await tasks.start(key, consumer.receive)
        with Stream(tmp_path / "s", options=StreamOptions(partition_count=5)) as stream:
            stream.append_many([(f"key-{number}", b"%d" % number) for number in range(30)])
        await until(lambda: len(tasks.ended) == 30)
        assert sorted(values([tasks[key] for key in range(30)])) == sorted(numbered(30))
        assert set(consumer.position) == set(range(5))


class TellsLate(OsFileSystem):
    """Partitions come after they were listed, and before their directory is watched."""

    def __init__(self, partitions: str, come: Callable[[], object]) -> None:
        super().__init__()
        self._partitions, self._come = partitions, come

    def open_watch(self) -> FileWatch:
        watch = super().open_watch()
        assert watch is not None
        add = watch.add_directory

        def add_directory(path: str) -> None:
            if path == self._partitions:
                self._come()
            add(path)

        watch.add_directory = add_directory  # type: ignore[method-assign]
        return watch


async def test_partitions_that_come_just_before_they_are_watched_for_are_noticed(tmp_path):
    path = tmp_path / "s"

    def come() -> None:
        with Stream(path, options=StreamOptions(partition_count=5)) as stream:
            stream.append_many([(f"key-{number}", b"%d" % number) for number in range(30)])

    with Stream(path, options=StreamOptions(partition_count=1)):
        pass
    disk = TellsLate(StreamFiles(OsFileSystem(), str(path)).parts, come)
    async with open_consumer(path, fs=disk) as consumer:
        with trio.fail_after(30):
            messages = [await consumer.receive() for _ in range(30)]
    assert sorted(values(messages)) == sorted(numbered(30))


async def test_new_partitions_are_noticed_on_a_disk_that_does_not_tell(autojump_clock, disk):
    await fill(disk, 1)
    async with consuming(disk) as consumer, trio.open_nursery() as nursery:
        drain(consumer)
        tasks = Tasks(nursery)
        for key in range(30):
            await tasks.start(key, consumer.receive)
        async with producing(disk, partition_count=5) as producer:
            await producer.send_many([(f"key-{number}", b"%d" % number) for number in range(30)])
            await trio.sleep(1)
        assert len(tasks.ended) == 30


async def test_new_partitions_are_not_read_when_some_are_named(autojump_clock, disk):
    await fill(disk, 1)
    async with consuming(disk, [0]) as consumer, producing(disk, partition_count=5) as producer:
        await producer.send_many([(f"key-{number}", b"%d" % number) for number in range(30)])
        await trio.sleep(1)
        assert {message.partition for message in drain(consumer)} == {0}


# --- retention --------------------------------------------------------------------------------


def remove_all_but_the_active(disk: CrashFS) -> int:
    """What a vacuum elsewhere does; returns the first offset that is left."""
    report = retain(disk, StreamFiles(disk, STREAM), now_ns=0, max_bytes=1)
    return report.partitions[0].first_offset


async def receive_for_ever(consumer: StreamConsumer) -> None:
    async for _ in consumer:
        pass


async def test_an_overtaken_reader_gets_the_range_that_is_left_and_continues_there(disk):
    await fill(disk, 100, segment_size=200)
    async with consuming(disk) as consumer:
        assert (await consumer.receive()).value == b"0"
        first = remove_all_but_the_active(disk)
        with pytest.raises(OffsetOutOfRangeError) as told:
            await receive_for_ever(consumer)
        assert told.value.first_offset == first
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError):
                await consumer.receive()
            with pytest.raises(OffsetOutOfRangeError):
                consumer.receive_nowait()
        await consumer.seek("oldest")
        assert (await consumer.receive()).offset == first


async def test_an_error_met_by_a_batch_does_not_raise_after_a_seek(disk):
    await fill(disk, 30, segment_size=100)
    async with consuming(disk) as consumer:
        first = remove_all_but_the_active(disk)
        messages = await consumer.receive_many(30)
        assert 0 < len(messages) < first
        await consumer.seek("oldest")
        assert (await consumer.receive()).offset == first


async def test_a_reader_overtaken_in_one_partition_receives_the_others(disk):
    await fill(disk, 400, partition_count=3, segment_size=500)
    async with consuming(disk, end="close") as consumer:
        await consumer.receive()
        files = StreamFiles(disk, STREAM).partition(1)
        for base in files.bases()[:-1]:
            for path in files.segment(base):
                disk.unlink(path)
        got, errors = set(), 0
        for _ in range(2000):
            try:
                got.add((await consumer.receive()).partition)
            except OffsetOutOfRangeError:
                errors += 1
        assert got >= {0, 2}
        assert errors


async def test_what_was_read_to_its_end_may_be_removed(disk):
    async with producing(disk, **ONE, segment_size=100) as producer, consuming(disk) as consumer:
        for _ in range(10):
            await send_all(producer, [b"x" * 50] * 10)
            assert len(drain(consumer)) == 10
            remove_all_but_the_active(disk)


async def test_a_vacuum_removes_what_the_settings_do_not_keep_and_spares_groups(disk):
    options = {**ONE, "segment_size": 200, "retention_max_bytes": 400, "keep_for_groups": True}
    async with consuming_group(disk, options) as consumer, producing(disk, **options) as producer:
        messages = [await consumer.receive() for _ in range(50)]
        await consumer.commit(messages[-1])
        await consumer.sync()
        report = await producer.vacuum()
        assert 0 < report.partitions[0].first_offset <= 50
        await consumer.commit(drain(consumer)[-1])
        await consumer.sync()
        assert (await producer.vacuum()).partitions[0].first_offset > 50


def consuming_group(disk: CrashFS, options: dict[str, Any]) -> open_consumer:
    with Stream(STREAM, options=StreamOptions(**options), fs=disk) as stream:
        stream.append_many([("k", b"%d" % number) for number in range(100)])
    return consuming(disk, group="g")


# --- damage -----------------------------------------------------------------------------------


async def test_an_unreadable_message_raises_and_the_rest_is_received(disk):
    await fill(disk, 1000)
    data = index().replace(".index", ".data")
    content = bytearray(disk.read(data))
    content[5000] ^= 1
    disk.write_durably(data, bytes(content))
    async with consuming(disk, end="close") as consumer:
        messages = [message async for message in consumer]
        assert consumer.statistics().lost == sum(gap.count for gap in consumer.losses) == 1000 - len(messages)
        assert 0 < consumer.statistics().lost < 300
    for message in messages:
        assert message.value == b"%d" % message.offset


async def test_files_that_cannot_be_read_now_are_received_later(disk):
    await fill(disk, 10)
    failing = FaultFS(disk)
    async with consuming(failing) as consumer:
        failing.fail("pread", path="*.data", times=2)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                await consumer.receive()
        assert values(drain(consumer)) == numbered(10)


# --- units of work ----------------------------------------------------------------------------


async def test_a_block_that_ends_well_is_committed(disk):
    bodies = await fill(disk, 50, partition_count=3)
    got = []
    for _ in range(5):
        async with (
            consuming(disk, group="g", end="close") as consumer,
            consumer.receiving(10) as messages,
        ):
            got += messages
    assert sorted(values(got)) == sorted(bodies)


async def test_a_block_that_fails_is_received_again(disk):
    await fill(disk, 50, partition_count=3)
    async with consuming(disk, group="g") as consumer:
        with pytest.raises(KeyError):
            async with consumer.receiving(20) as first:
                raise KeyError
        with trio.CancelScope() as scope:
            async with consumer.receiving(30) as second:
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert len(first) == 20
        assert len(second) == 30
        assert len(drain(consumer)) == 50
        assert {lag.committed for lag in consumer.statistics().partitions.values()} == {None}


async def test_others_wait_while_a_block_is_open(disk):
    await fill(disk, 10)
    async with consuming(disk) as consumer, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        async with consumer.receiving(4) as messages:
            await tasks.start("waits", consumer.receive)
            with pytest.raises(trio.WouldBlock):
                consumer.receive_nowait()
            assert "waits" not in tasks
            assert values(messages) == numbered(4)
        await blocked()
        assert tasks["waits"].value == b"4"


async def test_a_block_of_a_consumer_that_was_closed_is_not_committed(disk):
    await fill(disk, 10)

    async def work(consumer: StreamConsumer) -> None:
        async with consumer.receiving(4):
            consumer.close()

    async with consuming(disk, group="g") as consumer:
        with pytest.raises(trio.ClosedResourceError):
            await work(consumer)
    assert len(await received(disk, group="g")) == 10


async def test_lingering_waits_for_more_and_no_longer_than_linger(autojump_clock, disk):
    async with (
        producing(disk, **ONE) as producer,
        consuming(disk) as consumer,
        trio.open_nursery() as nursery,
    ):
        tasks = Tasks(nursery)
        await tasks.start("batch", partial(consumer.receive_many, 4, linger=5.0))
        for number in range(3):
            await producer.send(b"%d" % number, b"k")
            await trio.sleep(1)
            assert "batch" not in tasks
        await producer.send(b"3", b"k")
        await blocked()
        assert values(tasks["batch"]) == numbered(4)
        await producer.send(b"4", b"k")
        start = trio.current_time()
        assert values(await consumer.receive_many(4, linger=5.0)) == [b"4"]
        assert trio.current_time() - start == pytest.approx(5.0)


async def test_a_cancelled_linger_puts_everything_back(autojump_clock, disk):
    await fill(disk, 3)
    async with consuming(disk) as consumer:
        with trio.move_on_after(1):
            await consumer.receive_many(9, linger=5.0)
        with trio.move_on_after(1):
            async with consumer.receiving(9, linger=5.0):
                pass
        assert values(drain(consumer)) == numbered(3)


# --- groups -----------------------------------------------------------------------------------


async def test_a_group_continues_after_its_commits(disk):
    bodies = await fill(disk, 100, partition_count=3)
    got = []
    for _ in range(4):
        async with consuming(disk, group="g", end="close") as consumer:
            for _ in range(25):
                message = await consumer.receive()
                got.append(message)
                await consumer.commit(message)
    assert sorted(values(got)) == sorted(bodies)
    assert await received(disk, group="g") == []
    assert len(await received(disk, group="other")) == 100


@pytest.mark.parametrize("value", [10, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
async def test_a_group_beyond_the_end_gets_an_error(disk, value):
    """Whatever 64 bits can say: a peer's marker has no checksum."""
    await fill(disk, 10)
    await received(disk, group="g", autocommit=True)
    disk.write_durably(f"{STREAM}/groups/g/000000", value.to_bytes(8, "little"))
    disk.unlink(f"{STREAM}/.diskq/groups/g/000000.mark")
    async with consuming(disk, group="g") as consumer:
        with pytest.raises(OffsetOutOfRangeError) as told:
            await receive_for_ever(consumer)
        assert told.value.next_offset == 10
        await consumer.seek("oldest")
        assert (await consumer.receive()).offset == 0


async def test_what_was_not_committed_is_received_again(disk):
    await fill(disk, 10)
    async with consuming(disk, group="g") as consumer:
        messages = drain(consumer)
        await consumer.commit(messages[4])
        await consumer.commit(Position(0, 2))  # backwards: nothing happens
    assert values(await received(disk, group="g")) == numbered(5, start=5)


async def test_all_that_was_received_is_committed_at_once(disk):
    await fill(disk, 100, partition_count=3)
    async with consuming(disk, group="g", end="close") as consumer:
        await consumer.receive_many(40)
        await consumer.commit()
    assert len(await received(disk, group="g")) == 60


async def test_a_group_that_had_come_to_the_end_receives_what_comes(disk):
    await fill(disk, 10)
    assert len(await received(disk, group="g", autocommit=True)) == 10
    async with producing(disk, **ONE) as producer:
        await producer.send(b"new", b"k")
        assert values(await received(disk, group="g")) == [b"new"]


async def test_autocommit_commits_what_was_received_before_the_last_call(disk):
    await fill(disk, 10)

    async def fail_at(number: int) -> None:
        async with consuming(disk, group="g", autocommit=True) as consumer:
            for _ in range(number):
                await consumer.receive()
            raise KeyError

    with pytest.raises(KeyError):
        await fail_at(4)
    async with consuming(disk, group="g", autocommit=True) as consumer:
        assert values(await consumer.receive_many(3)) == numbered(3, start=3)
    assert values(await received(disk, group="g")) == numbered(4, start=6)


async def test_a_commit_is_durable_with_sync_and_before_long(autojump_clock, disk):
    await fill(disk, 10)

    def committed(after: CrashFS) -> int:
        committed_offset = after.files().get(f"{STREAM}/groups/g/000000", b"")
        return int.from_bytes(committed_offset, "little") if committed_offset else -1

    async with consuming(disk, group="g", sync_every=4, sync_timeout=2.0) as consumer:
        messages = drain(consumer)
        await consumer.commit(messages[0])
        await blocked()
        assert committed(disk.crash()) == -1
        await consumer.sync()
        assert committed(disk.crash()) == 0
        for message in messages[1:5]:
            await consumer.commit(message)
        await until(lambda: committed(disk.crash()) == 4)
        await consumer.commit(messages[5])
        await trio.sleep(2.1)
        await until(lambda: committed(disk.crash()) == 5)
        await consumer.commit(messages[6])
    assert committed(disk.crash()) == 6


async def test_a_partition_has_one_reader_of_a_group(autojump_clock, disk):
    await fill(disk, 90, partition_count=3)
    # Before the first claim interval is over: after it the second one gets its part.
    patient = partial(consuming, disk, group="g", claim_interval=3600.0)
    async with patient() as one, patient() as other:
        assert len(drain(one)) == 90
        assert drain(other) == []
        assert set(one.position) == {0, 1, 2}
        assert other.position == {}
        async with consuming(disk, group="another") as third:
            assert len(drain(third)) == 90


async def test_what_a_member_leaves_is_taken_over_where_it_was_left(autojump_clock, disk):
    bodies = await fill(disk, 90, partition_count=3)
    got = []
    entered, leave, left = trio.Event(), trio.Event(), trio.Event()

    async def be_a_member() -> None:
        async with consuming(disk, [0, 1], group="g") as one:
            entered.set()
            for _ in range(10):
                message = await one.receive()
                got.append(message)
                await one.commit(message)
            await leave.wait()
        left.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(be_a_member)
        await entered.wait()
        async with consuming(disk, group="g", claim_interval=0.5) as other:
            await trio.sleep(5)
            assert set(other.position) == {2}
            got += drain(other)
            tasks = Tasks(nursery)
            await tasks.start("waits", other.receive)
            leave.set()
            await left.wait()
            await trio.sleep(1)
            got += [tasks["waits"], *drain(other)]
    assert sorted(values(got)) == sorted(bodies)


async def test_what_others_have_is_not_waited_for_where_it_closes(disk):
    await fill(disk, 90, partition_count=3)
    async with consuming(disk, [1], group="g"):
        messages = await received(disk, group="g")
        assert {message.partition for message in messages} == {0, 2}
    async with consuming(disk, group="g"):
        assert await received(disk, group="g") == []


async def test_only_a_group_commits_and_only_what_it_has(disk):
    await fill(disk, 10, partition_count=3)
    async with consuming(disk) as consumer:
        with pytest.raises(ValueError, match="no group"):
            await consumer.commit(Position(0, 0))
        with pytest.raises(ValueError, match="no group"):
            await consumer.commit()
        with pytest.raises(ValueError, match="no group"):
            await consumer.sync()
    async with consuming(disk, [1], group="g") as consumer:
        with pytest.raises(ValueError, match="partition 0"):
            await consumer.commit(Position(0, 0))


async def test_an_overtaken_group_gets_an_error_and_may_seek(disk):
    await fill(disk, 100, segment_size=200)
    async with consuming(disk, group="g") as consumer:
        await consumer.commit(await consumer.receive())
    first = remove_all_but_the_active(disk)
    async with consuming(disk, group="g") as consumer:
        with pytest.raises(OffsetOutOfRangeError) as told:
            await consumer.receive()
        assert told.value.first_offset == first
        await consumer.seek("oldest")
        assert (await consumer.receive()).offset == first


async def test_seeking_moves_the_place_of_the_group(disk):
    await fill(disk, 10)
    async with consuming(disk, group="g") as consumer:
        await consumer.commit(drain(consumer)[-1])
        await consumer.seek(3)
    async with consuming(disk, group="g") as consumer:
        assert (await consumer.receive()).offset == 3
        await consumer.seek("oldest")
    assert len(await received(disk, group="g")) == 10


async def test_commits_that_cannot_be_synced_break_the_consumer():
    disk = FaultFS(CrashFS())
    disk.inner.make_directory_durably("/q")
    await fill(disk.inner, 10)

    async def use_it() -> None:
        async with consuming(disk, group="g") as consumer:
            await consumer.commit(await consumer.receive())
            disk.fail("sync_files")
            with pytest.raises(trio.BrokenResourceError):
                await consumer.sync()
            with pytest.raises(trio.BrokenResourceError):
                await consumer.commit(Position(0, 5))

    with pytest.raises(trio.BrokenResourceError):
        await use_it()
    assert len(await received(disk.inner, group="g")) in (9, 10)


# --- seeking ----------------------------------------------------------------------------------


async def test_it_goes_on_elsewhere_and_may_come_back(disk):
    await fill(disk, 100, partition_count=3, segment_size=500)
    async with consuming(disk, end="close") as consumer:
        assert len([message async for message in consumer]) == 100
        await consumer.seek("oldest", partition=1)
        assert {message.partition async for message in consumer} == {1}
        await consumer.seek({0: 5, 2: MOMENT + timedelta(minutes=50)})
        again = [message async for message in consumer]
        assert min(message.offset for message in again if message.partition == 0) == 5
        assert all(
            message.timestamp > MOMENT + timedelta(minutes=50) for message in again if message.partition == 2
        )
        with pytest.raises(OffsetOutOfRangeError):
            await consumer.seek(1000)
        with pytest.raises(ValueError, match="partition 9"):
            await consumer.seek("oldest", partition=9)
        with pytest.raises(ValueError, match="time zone"):
            await consumer.seek(datetime(2013, 7, 4))


async def test_a_waiting_task_receives_from_where_another_task_sought(disk):
    await fill(disk, 10)
    async with consuming(disk, start="newest") as consumer, trio.open_nursery() as nursery:
        await consumer.receive()
        tasks = Tasks(nursery)
        await tasks.start("waits", consumer.receive)
        await consumer.seek(4)
        await blocked()
        assert tasks["waits"].offset == 4


# --- statistics -------------------------------------------------------------------------------


async def test_statistics_have_the_lag(disk):
    await fill(disk, 10)
    async with consuming(disk, group="g") as consumer:
        messages = [await consumer.receive() for _ in range(4)]
        await consumer.commit(messages[2])
        (unknown,) = consumer.statistics().partitions.values()
        assert unknown.lag is None  # before the first look at the files
        (lag,) = consumer.look().partitions.values()
        assert (lag.position, lag.lag, lag.committed) == (4, 6, 2)
        async with producing(disk, **ONE) as producer:
            await producer.send(b"x")
            assert consumer.statistics().partitions[0].lag == 7
        assert consumer.position == {0: 4}


# --- schedule points --------------------------------------------------------------------------


async def test_in_strict_mode_each_call_is_a_checkpoint(disk):
    await fill(disk, 100, partition_count=3)
    async with consuming(disk, group="g", checkpoint_slice=0) as consumer:
        for _ in range(5):
            with assert_checkpoints():
                message = await consumer.receive()
            with assert_checkpoints():
                await consumer.commit(message)
            with assert_checkpoints():
                await consumer.peek()
            with assert_checkpoints():
                await consumer.receive_many(3)
            with assert_checkpoints():
                await consumer.receive_many(3, linger=0.001)
            with assert_checkpoints():
                await consumer.__anext__()
            with assert_no_checkpoints():
                consumer.receive_nowait()
        for call in (consumer.sync(), consumer.seek("oldest"), consumer.commit(), consumer.aclose()):
            with assert_checkpoints():
                await call


async def test_a_cancelled_wait_takes_nothing_and_the_next_in_line_gets_it(disk):
    async with producing(disk) as producer, consuming(disk) as consumer, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("first", consumer.receive)
        await tasks.start("second", consumer.receive)
        tasks.scopes["first"].cancel()
        await producer.send(b"x")
        await blocked()
        assert tasks["first"] == "cancelled"
        assert tasks["second"].value == b"x"
        nursery.cancel_scope.cancel()


async def test_others_run_though_there_are_always_messages(tmp_path):
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            await trio.lowlevel.checkpoint()
            rounds += 1

    async with open_producer(tmp_path / "s") as producer:
        await producer.send_many([b"x" * 100] * 50_000)
    async with open_consumer(tmp_path / "s", end="close") as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(count)
        async for _ in consumer:
            pass
        nursery.cancel_scope.cancel()
    assert rounds > 20


# --- closing ----------------------------------------------------------------------------------


async def test_closing_wakes_waiting_tasks_and_nothing_is_received_any_more(disk):
    await fill(disk, 3)
    async with consuming(disk, group="g") as consumer, trio.open_nursery() as nursery:
        message = drain(consumer)[0]
        tasks = Tasks(nursery)
        await tasks.start("one", consumer.receive)
        await tasks.start("many", consumer.receive_many, 3)
        await consumer.aclose()
        consumer.close()
        await blocked()
        assert [type(tasks[key]) for key in ("one", "many")] == [trio.ClosedResourceError] * 2
        calls: list[Callable[[], Awaitable[Any]]] = [
            consumer.receive,
            consumer.peek,
            lambda: consumer.receive_many(3),
            consumer.receiving(3).__aenter__,
            consumer.__anext__,
            lambda: consumer.commit(message),
            consumer.sync,
            partial(consumer.seek, "oldest"),
        ]
        for call in calls:
            with pytest.raises(trio.ClosedResourceError):
                await call()
        with pytest.raises(trio.ClosedResourceError):
            consumer.receive_nowait()


@pytest.mark.usefixtures("no_collections")
async def test_no_descriptor_is_left_open(tmp_path):
    async with open_producer(tmp_path / "s", segment_size=1000) as producer:
        await producer.send_many([b"x" * 100] * 300)
    await blocked()
    before = set(os.listdir("/proc/self/fd"))
    for group in (None, "g"):
        async with open_consumer(tmp_path / "s", group=group) as consumer:
            assert len(await consumer.receive_many(200)) == 200
        async with open_consumer(tmp_path / "s", group=group, end="close") as consumer:
            assert [message async for message in consumer]
            await consumer.aclose()
        with pytest.raises(NotFoundError):
            async with open_consumer(tmp_path / "s", [0, 77], group=group):
                pass
    await blocked()
    assert set(os.listdir("/proc/self/fd")) == before


async def test_an_error_of_the_block_comes_out_as_it_is(disk):
    await fill(disk, 1)
    for group in (None, "g"):
        with pytest.raises(KeyError):
            async with consuming(disk, group=group):
                raise KeyError


# --- with others ------------------------------------------------------------------------------


async def test_consumers_can_be_merged(disk):
    other = CrashFS()
    other.make_directory_durably("/q")
    await fill(disk, 50)
    await fill(other, 50)
    async with (
        consuming(disk, end="close") as one,
        consuming(other, end="close") as two,
        merge(one, two, with_source=True) as merged,
    ):
        got = [(source, message.offset) async for source, message in merged]
    assert sorted(offset for source, offset in got if source is one) == list(range(50))
    assert sorted(offset for source, offset in got if source is two) == list(range(50))


async def test_a_merge_takes_nothing_from_a_consumer_that_it_does_not_hand_over(disk):
    async with producing(disk) as producer, consuming(disk) as one, consuming(disk) as other:
        async with merge(one, other) as merged, trio.open_nursery() as nursery:
            tasks = Tasks(nursery)
            await tasks.start("waits", merged.receive)
            await producer.send(b"x")
            await blocked()
            assert tasks["waits"].value == b"x"
        assert len(drain(one)) + len(drain(other)) == 1


async def test_a_producer_and_many_consumers_in_one_run(disk):
    got: list[list[Message]] = [[] for _ in range(4)]

    async def consume(into: list[Message]) -> None:
        async with consuming(disk) as consumer:
            async for message in consumer:
                into.append(message)

    async def produce(producer: StreamProducer, name: int) -> None:
        for number in range(200):
            await producer.send(b"%d" % number, b"producer-%d" % name)
            if number % 20 == name:
                await trio.lowlevel.checkpoint()

    async with (
        producing(disk, partition_count=2, segment_size=3000) as producer,
        trio.open_nursery() as consumers,
    ):
        for into in got:
            consumers.start_soon(consume, into)
        async with trio.open_nursery() as producers:
            for name in range(3):
                producers.start_soon(produce, producer, name)
        await until(lambda: all(len(into) >= 600 for into in got))
        consumers.cancel_scope.cancel()
    for into in got:
        assert len(into) == 600
        for name in range(3):
            of_one = [message.value for message in into if message.key == b"producer-%d" % name]
            assert of_one == numbered(200)
