# When a destination is tried, and what a spool says of itself.

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

import diskq
from diskq.channels.spool.pacing import Pacing
from diskq.engine.queue.age_samples import AgeSamples
from diskq.engine.queue.files import QueuePosition
from diskq.engine.spool.files import spool_status
from diskq.testing import CrashFS
from tests.channels.rig import blocked, numbered
from tests.channels.spools import PATH, Destination, Hanging, down, opened, spool_disk

STEADY = {"backoff_initial": 1.0, "backoff_max": 1.0, "backoff_jitter": 0.0}


@pytest.fixture
def disk() -> CrashFS:
    return spool_disk()


# --- the circuit ----------------------------------------------------------------------------------


async def test_after_many_failures_the_far_end_is_left_alone_then_tried_once(disk, autojump_clock):
    far_end = Destination(*down(5))
    async with opened(disk, far_end, pause_after=3, pause=100.0, **STEADY) as spool:
        await spool.send(b"1")
        await trio.sleep(3)
        assert spool.statistics().is_paused
        assert 90 < (spool.statistics().next_try_in or 0) <= 110
        await spool.drained()
        assert not spool.statistics().is_paused
    assert far_end.waits[:2] == pytest.approx([1, 1])
    assert all(100 <= wait <= 110 for wait in far_end.waits[2:])
    assert len(far_end.waits) == 5


async def test_a_far_end_that_asks_for_longer_than_a_pause_gets_it(disk, autojump_clock):
    far_end = Destination(diskq.Retry(after=500.0), diskq.Retry(after=1.0))
    async with opened(disk, far_end, pause_after=1, pause=100.0) as spool:
        await spool.send(b"1")
        await spool.drained()
    assert far_end.waits[0] == pytest.approx(500)
    assert 100 <= far_end.waits[1] <= 110


# --- by hand --------------------------------------------------------------------------------------


async def test_while_it_is_paused_messages_are_taken_and_not_delivered(disk, autojump_clock):
    far_end = Destination()
    async with opened(disk, far_end) as spool:
        spool.pause()
        await spool.send_many(numbered(3))
        await trio.sleep(1_000)
        assert far_end.batches == []
        assert spool.statistics().is_paused
        assert spool.statistics().depth == 3
        spool.resume()
        await spool.drained()
        assert not spool.statistics().is_paused
    assert far_end.got == numbered(3)


async def test_a_try_that_is_under_way_is_seen_through_before_a_pause(disk, autojump_clock):
    begun, go_on = trio.Event(), trio.Event()
    delivered: list[bytes] = []

    async def deliver(batch: diskq.Batch) -> None:
        begun.set()
        await go_on.wait()
        delivered.extend(batch)

    async with opened(disk, deliver, max_messages=1) as spool:
        await spool.send_many(numbered(2))
        await begun.wait()
        spool.pause()
        go_on.set()
        await trio.sleep(10)
        assert delivered == [b"0"]
        assert spool.statistics().depth == 1


async def test_resuming_ends_a_back_off(disk, autojump_clock):
    far_end = Destination(*down(2))
    options = {"backoff_initial": 1_000.0, "backoff_max": 10_000.0, "backoff_jitter": 0.0}
    async with opened(disk, far_end, **options) as spool:
        await spool.send(b"1")
        await trio.sleep(10)
        spool.resume()
        await trio.sleep(10)
        assert spool.statistics().next_try_in == pytest.approx(1_990)
        await spool.drained()
    assert far_end.waits == pytest.approx([10, 2_000])


async def test_resuming_ends_the_circuits_pause(disk, autojump_clock):
    far_end = Destination(*down(1))
    async with opened(disk, far_end, pause_after=1, pause=10_000.0) as spool:
        await spool.send(b"1")
        await trio.sleep(5)
        spool.resume()
        await spool.drained()
    assert far_end.waits == pytest.approx([5])


async def test_a_pause_by_hand_outlasts_a_back_off(disk, autojump_clock):
    far_end = Destination(*down(1))
    async with opened(disk, far_end, **STEADY) as spool:
        await spool.send(b"1")
        await blocked()
        spool.pause()
        await trio.sleep(50)
        assert len(far_end.batches) == 1
        spool.resume()
        await spool.drained()
    assert far_end.waits == pytest.approx([50])


# --- the rate -------------------------------------------------------------------------------------


async def test_a_backlog_is_drained_at_a_rate_a_batch_at_once(disk, autojump_clock):
    far_end = Destination()
    async with opened(disk, far_end, max_messages=10, rate=5.0) as spool:
        await spool.send_many(numbered(45))
        await spool.drained()
    assert far_end.waits == pytest.approx([2, 2, 2, 2])
    assert far_end.got == numbered(45)


async def test_a_rate_saves_up_no_more_than_a_batch(disk, autojump_clock):
    far_end = Destination()
    async with opened(disk, far_end, max_messages=10, rate=5.0) as spool:
        await trio.sleep(1_000)
        await spool.send_many(numbered(30))
        await spool.drained()
    assert far_end.waits == pytest.approx([2, 2])


async def test_waiting_for_a_turn_may_be_cancelled(autojump_clock):
    pacing = Pacing(diskq.SpoolOptions(rate=1.0))
    await pacing.turn(100)
    with trio.move_on_after(5) as scope:
        await pacing.turn(1)
    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(5, abs=0.1)
    await pacing.turn(1)
    assert trio.current_time() == pytest.approx(100, abs=0.1)


# --- what it says of itself -----------------------------------------------------------------------


async def test_statistics_tell_what_is_going_on(disk, autojump_clock):
    far_end = Destination(*down(3))
    async with opened(disk, far_end, **STEADY) as spool:
        before = spool.statistics()
        assert (before.depth, before.oldest_age, before.last_error, before.attempts) == (0, None, None, 0)
        await spool.send_many(numbered(7))
        await trio.sleep(1.5)
        during = spool.statistics()
        assert (during.depth, during.failures, during.failed_tries, during.attempts) == (7, 2, 2, 2)
        assert during.last_error == "ConnectionError: nobody there"
        assert during.next_try_in == pytest.approx(0.5, abs=0.1)
        await spool.drained()
        after = spool.statistics()
        assert (after.depth, after.delivered, after.failures, after.failed_tries) == (0, 7, 0, 3)
        assert after.last_error is None
        assert after.next_try_in is None


async def test_another_process_can_read_how_things_are(disk):
    # On the true clock: one that jumps would not wait for the thread that writes the status.
    far_end = Destination(*down(10_000))
    async with opened(disk, far_end, backoff_initial=0.01, backoff_max=0.05) as spool:
        await spool.send_many(numbered(7))
        for _ in range(1_000):
            await trio.sleep(0.05)
            status = spool_status(PATH, fs=disk.copy())
            if status is not None and status.failures > 3:
                break
        assert status is not None
        assert (status.depth, status.delivered, status.last_error) == (7, 0, "ConnectionError: nobody there")
        assert status.next_try_at is not None
    status = spool_status(PATH, fs=disk)
    assert status is not None
    assert status.depth == 7
    assert spool_status("/nowhere", fs=disk) is None


class Timed(CrashFS):
    """A disk on Trio's clock, so that waiting makes messages older."""

    trios: trio.abc.Clock

    def wall_clock(self) -> float:
        return 1_000_000.0 + self.trios.current_time()


@pytest.fixture
def timed(autojump_clock: trio.testing.MockClock) -> CrashFS:
    fs = Timed()
    fs.make_directory_durably("/")
    fs.trios = autojump_clock
    return fs


async def test_the_oldest_message_is_as_old_as_it_is(timed, autojump_clock):
    async with opened(timed, Hanging()) as spool:
        await trio.sleep(500)
        assert spool.statistics().oldest_age is None
        await spool.send(b"1")
        await trio.sleep(10)
        sent_at = trio.current_time()
        await spool.send(b"2")
        await trio.sleep(90)
        assert spool.statistics().oldest_age == pytest.approx(100, abs=1.5)
    async with opened(timed, Destination(None, *down(1000)), max_messages=1, **STEADY) as spool:
        await trio.sleep(5)
        assert spool.statistics().depth == 1
        # Time jumps while a thread writes: by as much as the clock's next step, a mark comes late.
        age = trio.current_time() - sent_at
        assert age <= (spool.statistics().oldest_age or 0) <= age + 11


async def test_a_message_has_an_age_also_if_it_came_before_anybody_looked(timed, autojump_clock):
    async with opened(timed, Destination(*down(1000)), **STEADY) as spool:
        spool.send_nowait(b"at once")
        await trio.sleep(50)
        assert spool.statistics().oldest_age == pytest.approx(50, abs=1.5)


def test_an_age_is_never_less_than_it_is_and_a_little_more_at_most():
    marks, accepted = AgeSamples(), {}
    for second in range(10_000):
        place = QueuePosition(second // 3_000, second % 3_000 * 10)
        marks.add(place, float(second))
        accepted[place] = second + 0.5
    assert len(marks.marks) <= 256
    for place, at in accepted.items():
        known = marks.at(place)
        assert known is not None
        assert known <= at
        assert at - known <= 10_000 / 40
    marks.forget_before(QueuePosition(2, 0))
    assert marks.at(QueuePosition(2, 0)) is not None
    assert AgeSamples(marks.marks).marks == marks.marks


def test_a_clock_that_steps_back_makes_no_message_younger_than_the_one_before_it():
    marks = AgeSamples()
    for byte, time in ((0, 100.0), (10, 50.0), (20, 120.0)):
        marks.add(QueuePosition(0, byte), time)
    assert [time for _, time in marks.marks] == [100.0, 100.0, 120.0]


async def test_rates_are_of_the_last_seconds(disk, autojump_clock):
    async with opened(disk, Destination()) as spool:
        for _ in range(20):
            await spool.send_many(numbered(50))
            await trio.sleep(1)
        now = spool.statistics()
        assert 30 < now.delivery_rate < 70
        assert 30 < now.arrival_rate < 70


async def test_dead_letters_are_counted_and_logged(disk, autojump_clock, caplog):
    caplog.set_level(logging.WARNING, "diskq")
    async with opened(disk, Destination(diskq.Permanent("HTTP 413", [0]))) as spool:
        await spool.send_many(numbered(2))
        await spool.drained()
        assert len(spool.dead_letters) == 1
    assert caplog.messages == ["spool '/spool': 1 messages became dead letters: HTTP 413"]


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_messages": 0},
        {"max_bytes": 0},
        {"max_attempts": 0},
        {"pause_after": 0},
        {"linger": -1.0},
        {"drain_timeout": -1.0},
        {"backoff_initial": 0.0},
        {"backoff_initial": 2.0, "backoff_max": 1.0},
        {"backoff_jitter": -1.0},
        {"deliver_timeout": 0.0},
        {"pause": 0.0},
        {"rate": 0.0},
        {"commit": "memory"},
    ],
)
def test_options_are_checked_once(wrong):
    with pytest.raises(ValueError, match=next(reversed(wrong))):
        diskq.SpoolOptions(**wrong)


@pytest.mark.parametrize("wrong", [{"retry_on": "OSError"}, {"retry_on": BaseException}, {"queue": {}}])
def test_options_are_of_their_kind(wrong):
    with pytest.raises(TypeError, match=next(iter(wrong))):
        diskq.SpoolOptions(**wrong)


@pytest.mark.parametrize("after", [-1.0, float("nan"), float("inf")])
def test_a_wait_is_some_seconds(after):
    with pytest.raises(ValueError, match="after is 0 or more seconds"):
        diskq.Retry(after=after)
