# Replays: when each message comes, on a clock that jumps while all tasks wait; and that no message is lost.

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import trio
from trio.testing import assert_checkpoints

from diskq.channels.replay import AnyMessage, Replay, open_replay
from diskq.errors import NotFoundError, OffsetOutOfRangeError
from diskq.messages import NULL_TIMESTAMP
from diskq.testing import CrashFS, FaultFS
from tests.channels.journal_rig import JOURNAL, elsewhere
from tests.channels.rig import CancelAt, Tasks, blocked, crash_disk
from tests.channels.stream_rig import STREAM, producing

SECOND = 10**9
YEAR = 365 * 86_400


async def written(fs, *messages: tuple[str, float], partition_count: int = 1) -> None:
    """A stream of messages with these keys at these seconds since 1970; a value is its number."""
    async with producing(fs, partition_count=partition_count) as producer:
        for number, (key, second) in enumerate(messages):
            await producer.send(b"%d" % number, key, round(second * SECOND))


async def at_seconds(fs, *seconds: float) -> None:
    await written(fs, *(("k", second) for second in seconds))


async def heard(replayed: Replay) -> list[tuple[int, float]]:
    """Each message's value, and how many seconds after the first one was asked for it came."""
    began = trio.current_time()
    return [(int(message.value), round(trio.current_time() - began, 6)) async for message in replayed]


# --- when ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "speed, expected", [(1, [0, 2, 5]), (10, [0, 0.2, 0.5]), (0.5, [0, 4, 10]), (None, [0, 0, 0])]
)
async def test_messages_are_as_far_apart_as_they_were_divided_by_the_speed(
    disk, autojump_clock, speed, expected
):
    await at_seconds(disk, 100, 102, 105)
    async with open_replay(STREAM, speed=speed, fs=disk) as replayed:
        assert await heard(replayed) == list(enumerate(expected))


async def test_an_hour_of_messages_takes_an_hour_however_long_each_of_them_is_worked_on(disk, autojump_clock):
    await at_seconds(disk, *range(0, 3601, 5))
    async with open_replay(STREAM, fs=disk) as replayed:
        began = trio.current_time()
        async for _ in replayed:
            await trio.sleep(0.3)
        assert trio.current_time() - began == pytest.approx(3600.3, abs=1e-6)


async def test_all_partitions_come_as_one_by_time_and_each_in_its_order(disk, autojump_clock):
    keys = "abcdefghi"
    await written(disk, *((key, 10 - at) for at, key in enumerate(keys)), partition_count=3)
    async with open_replay(STREAM, fs=disk) as replayed:
        found = [message async for message in replayed]
    assert sorted(int(message.value) for message in found) == list(range(9))
    for partition in range(3):
        offsets = [message.offset for message in found if message.partition == partition]
        assert offsets == list(range(len(offsets)))


async def test_of_two_partitions_the_earlier_message_comes_first(disk, autojump_clock):
    await written(disk, ("a", 1), ("b", 2), ("b", 3), ("a", 4), partition_count=8)
    async with open_replay(STREAM, fs=disk) as replayed:
        assert await heard(replayed) == [(0, 0), (1, 1), (2, 2), (3, 3)]


async def test_a_step_back_is_not_waited_for_and_not_paid_twice(disk, autojump_clock):
    await at_seconds(disk, 10, 14, 11, 15)
    async with open_replay(STREAM, fs=disk) as replayed:
        assert await heard(replayed) == [(0, 0), (1, 4), (2, 4), (3, 5)]


async def test_a_long_silence_is_cut_and_so_is_a_message_from_the_far_future(disk, autojump_clock):
    await at_seconds(disk, 10, 11, 4000, YEAR, 4001, 4003)
    async with open_replay(STREAM, max_gap=5, fs=disk) as replayed:
        assert await heard(replayed) == [(0, 0), (1, 1), (2, 6), (3, 11), (4, 11), (5, 13)]


async def test_a_silence_is_cut_in_seconds_of_waiting(disk, autojump_clock):
    await at_seconds(disk, 0, 40, 140)
    async with open_replay(STREAM, max_gap=5, speed=10, fs=disk) as replayed:
        assert await heard(replayed) == [(0, 0), (1, 4), (2, 9)]


async def test_messages_without_a_time_come_with_the_one_before(disk, autojump_clock):
    with elsewhere(disk) as journal:
        for number, when in enumerate([NULL_TIMESTAMP, SECOND, NULL_TIMESTAMP, 3 * SECOND]):
            journal.append(b"%d" % number, b"", when)
    async with open_replay(JOURNAL, fs=disk) as replayed:
        assert await heard(replayed) == [(0, 0), (1, 0), (2, 0), (3, 2)]


@pytest.mark.parametrize(
    "late, expected", [("catch_up", [0, 2.5, 2.5, 4]), ("keep_gaps", [0, 2.5, 3.5, 5.5])]
)
async def test_a_late_receiver_catches_up_or_keeps_the_gaps(disk, autojump_clock, late, expected):
    await at_seconds(disk, 0, 1, 2, 4)
    async with open_replay(STREAM, late=late, fs=disk) as replayed:
        began, found = trio.current_time(), []
        async for message in replayed:
            found.append(trio.current_time() - began)
            if message.offset == 0:
                await trio.sleep(2.5)
        assert found == pytest.approx(expected)


async def test_many_are_those_that_are_due(disk, autojump_clock):
    await at_seconds(disk, 0, 1, 1, 1, 5)
    async with open_replay(STREAM, fs=disk) as replayed:
        found = [[m.offset for m in await replayed.receive_many(2)] for _ in range(4)]
    assert found == [[0], [1, 2], [3], [4]]


# --- from where to where --------------------------------------------------------------------------


@pytest.mark.parametrize("path", [STREAM, JOURNAL], ids=["stream", "journal"])
async def test_two_replays_in_succession_have_each_message_once(disk, autojump_clock, path):
    await at_seconds(disk, *range(10))
    with elsewhere(disk) as journal:
        for number in range(10):
            journal.append(b"%d" % number, b"", number * SECOND)
    middle = datetime.fromtimestamp(4, UTC)
    async with (
        open_replay(path, end=middle, fs=disk) as before,
        open_replay(path, start=middle, fs=disk) as after,
    ):
        found = [value for each in (before, after) for value, _ in await heard(each)]
    assert found == list(range(10))


async def test_it_begins_at_an_offset_at_once_and_ends_after_one(disk, autojump_clock):
    await at_seconds(disk, 0, 1, 2, 3, 4)
    async with open_replay(STREAM, start=2, end=3, fs=disk) as replayed:
        assert await heard(replayed) == [(2, 0), (3, 1)]


async def test_its_position_has_another_one_go_on_there(disk, autojump_clock):
    await written(disk, *((f"k{number}", number) for number in range(20)), partition_count=3)
    async with open_replay(STREAM, fs=disk) as first:
        found = [int((await first.receive()).value) for _ in range(7)]
    async with open_replay(STREAM, start=first.position, fs=disk) as second:
        found += [value for value, _ in await heard(second)]
    assert found == list(range(20))


async def test_what_comes_after_the_open_is_not_replayed(disk, autojump_clock):
    await at_seconds(disk, 0)
    async with open_replay(STREAM, fs=disk) as replayed:
        await at_seconds(disk, 1)
        assert len(await heard(replayed)) == 1


async def test_where_there_is_nothing_to_replay_it_says_so(disk):
    for path in (STREAM, "/nowhere"):
        with pytest.raises(NotFoundError, match="neither a stream nor a journal"):
            async with open_replay(path, fs=disk):
                pass
    await at_seconds(disk, 0)
    with pytest.raises(OffsetOutOfRangeError):
        async with open_replay(STREAM, start=5, fs=disk):
            pass


@pytest.mark.parametrize(
    "name, value",
    [
        *(("speed", speed) for speed in (0, -1, float("nan"), float("inf"))),
        ("max_gap", -1),
        ("late", "never"),
        ("start", "soon"),
        ("end", "wait"),
        ("end", datetime(2020, 1, 1)),
    ],
)
async def test_options_that_make_no_sense_are_refused(name, value):
    with pytest.raises(ValueError, match=r"got|no time zone"):
        open_replay(STREAM, **{name: value})


# --- no message is lost ---------------------------------------------------------------------------


async def test_a_receiver_cancelled_anywhere_loses_nothing(disk, autojump_clock):
    await at_seconds(disk, *range(4))
    step = 0
    while True:
        instrument = CancelAt(step)
        found: list[AnyMessage] = []
        async with open_replay(STREAM, fs=disk) as replayed:
            with instrument.at_work(), instrument.scope:
                while len(found) < 3:
                    found.append(await replayed.receive())
            found += [message async for message in replayed]
        assert [int(message.value) for message in found] == [0, 1, 2, 3]
        if not instrument.has_fired:
            break
        step += 1
    assert step > 3  # each of the three was, once at least; how often more is the clock's business


async def test_what_cannot_be_read_comes_when_it_can(autojump_clock):
    disk: FaultFS[CrashFS] = FaultFS(crash_disk())
    await at_seconds(disk, 0, 1)
    async with open_replay(STREAM, speed=None, fs=disk) as replayed:
        disk.fail("pread")
        with pytest.raises(OSError, match="error"):
            await replayed.receive()
        assert [value for value, _ in await heard(replayed)] == [0, 1]


async def test_what_was_taken_before_something_could_not_be_read_is_handed_over(autojump_clock):
    disk: FaultFS[CrashFS] = FaultFS(crash_disk())
    async with producing(disk, partition_count=1) as producer:
        await producer.send_many([("k", bytes(8192), 0) for number in range(1000)])
    async with open_replay(STREAM, speed=None, fs=disk) as replayed:
        found = await replayed.receive_many(1)
        disk.fail("pread", times=None)
        found += await replayed.receive_many(2000)
        assert 1 < len(found) < 1000
        disk.heal()
        found += [message async for message in replayed]
    assert [message.offset for message in found] == list(range(1000))


async def test_several_tasks_are_served_in_order_of_arrival(disk, autojump_clock):
    await at_seconds(disk, 0, 1, 2)
    async with open_replay(STREAM, fs=disk) as replayed, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        for name in ("first", "second", "third"):
            await tasks.start(name, replayed.receive)
        await trio.sleep(3)
    came = [(name, message.offset) for name, message in tasks.ended]
    assert came == [("first", 0), ("second", 1), ("third", 2)]


async def test_closing_it_wakes_waiting_tasks(disk, autojump_clock):
    await at_seconds(disk, 0, YEAR)
    async with open_replay(STREAM, fs=disk) as replayed, trio.open_nursery() as nursery:
        await replayed.receive()
        tasks = Tasks(nursery)
        await tasks.start("late", replayed.receive)
        replayed.close()
        await blocked()
    assert isinstance(tasks["late"], trio.ClosedResourceError)
    with pytest.raises(trio.ClosedResourceError):
        replayed.receive_nowait()


async def test_every_receive_is_a_checkpoint_now_and_then_and_nowait_does_not_wait(disk, autojump_clock):
    await at_seconds(disk, 0, 1)
    async with open_replay(STREAM, fs=disk) as replayed:
        with assert_checkpoints():
            await replayed.receive()
        with pytest.raises(trio.WouldBlock):
            replayed.receive_nowait()
        await trio.sleep(1)
        assert replayed.receive_nowait().offset == 1
        with pytest.raises(trio.EndOfChannel):
            replayed.receive_nowait()


async def test_statistics_tell_where_it_is_and_how_late(disk, autojump_clock):
    await at_seconds(disk, 10, 12, 20)
    async with open_replay(STREAM, fs=disk) as replayed:
        assert replayed.statistics().delivered == 0
        await replayed.receive()
        await trio.sleep(5)
        told = replayed.statistics()
        assert (told.position, told.delivered, told.lag) == ({0: 1}, 1, 2)
        assert (told.timestamp_ns, round(told.behind, 6), told.rate) == (10 * SECOND, 3, 0.2)
