# The spool: what was accepted is delivered in order, tried again for as long as it takes, and nothing of it
# is lost when the block, the process or the destination goes.

from __future__ import annotations

import logging

import pytest
import trio

import diskq
from diskq.testing import CrashFS
from tests.channels.rig import blocked, interrupt, numbered, until
from tests.channels.spools import (
    PATH,
    Destination,
    Hanging,
    dead_letters_in,
    down,
    opened,
    spool_disk,
    waiting_in,
)


@pytest.fixture
def disk() -> CrashFS:
    return spool_disk()


# --- delivering -----------------------------------------------------------------------------------


async def test_what_is_sent_is_delivered_in_order_and_leaves(disk, autojump_clock):
    far_end = Destination()
    async with opened(disk, far_end) as spool:
        for body in numbered(250):
            await spool.send(body)
        await spool.drained()
        assert far_end.got == numbered(250)
        assert spool.statistics().depth == 0
        assert spool.statistics().delivered == 250
    assert waiting_in(disk) == []


async def test_a_batch_has_up_to_max_items_and_max_bytes(disk, autojump_clock):
    far_end = Destination()
    async with opened(disk, far_end, max_messages=3, max_bytes=10) as spool:
        await spool.send_many([b"a", b"b", b"c", b"d", b"x" * 8, b"y" * 8, b"z" * 20, b"e"])
        await spool.drained()
    assert far_end.batches == [[b"a", b"b", b"c"], [b"d", b"x" * 8], [b"y" * 8], [b"z" * 20], [b"e"]]


async def test_a_batch_lingers_for_more(disk, autojump_clock):
    far_end = Destination()
    async with opened(disk, far_end, max_messages=3, linger=5.0) as spool:
        await spool.send(b"1")
        await trio.sleep(4)
        assert far_end.batches == []
        await spool.send_many([b"2", b"3"])
        await spool.drained()
        await spool.send(b"4")
        await trio.sleep(4)
        assert far_end.batches == [[b"1", b"2", b"3"]]
        await spool.drained()
    assert far_end.batches == [[b"1", b"2", b"3"], [b"4"]]


async def test_a_message_keeps_its_id_and_no_other_has_it(disk, autojump_clock):
    far_end = Destination(*down(2))
    async with opened(disk, far_end, max_messages=2) as spool:
        await spool.send_many(numbered(4))
        await spool.drained()
        first, second, third, last = far_end.ids
    assert first == second == third
    assert len({*third, *last}) == 4


@pytest.mark.parametrize("checkpoint_slice", [0.0, 100e-6])
async def test_a_far_end_that_never_waits_lets_others_run(disk, checkpoint_slice):
    async def deliver(batch: diskq.Batch) -> None:
        pass

    queue = diskq.QueueOptions(checkpoint_slice=checkpoint_slice)
    async with opened(disk, deliver, queue=queue, max_messages=1) as spool:
        spool.pause()
        await spool.send_many([b"x"] * 5_000)
        await blocked()
        spool.resume()
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        assert 2_500 < spool.statistics().depth < 5_000


async def test_a_batch_is_a_sequence_of_its_messages(disk, autojump_clock):
    seen: list[diskq.Batch] = []

    async def deliver(batch: diskq.Batch) -> None:
        seen.append(batch)

    async with opened(disk, deliver) as spool:
        await spool.send_many(numbered(3))
        await spool.drained()
    (batch,) = seen
    assert (len(batch), batch[1], batch[-1], list(batch[1:])) == (3, b"1", b"2", [b"1", b"2"])
    assert b"2" in batch
    assert list(batch) == numbered(3)
    assert batch.attempts == 1


# --- when the destination is down ---------------------------------------------------------------------


async def test_a_failure_is_tried_again_until_it_is_none(disk, autojump_clock):
    far_end = Destination(*down(7))
    async with opened(disk, far_end) as spool:
        await spool.send_many(numbered(3))
        await spool.drained()
    assert far_end.batches == [numbered(3)] * 8
    assert far_end.attempts == [1, 2, 3, 4, 5, 6, 7, 8]
    assert far_end.got == numbered(3)


async def test_each_try_waits_twice_as_long_as_the_one_before_up_to_a_bound(disk, autojump_clock):
    far_end = Destination(*down(6))
    options = {"backoff_initial": 1.0, "backoff_max": 10.0, "backoff_jitter": 0.0}
    async with opened(disk, far_end, **options) as spool:
        await spool.send(b"1")
        await spool.drained()
    assert far_end.waits == pytest.approx([1, 2, 4, 8, 10, 10])


async def test_chance_is_added_to_a_wait(disk, autojump_clock):
    far_end = Destination(*down(20))
    options = {"backoff_initial": 1.0, "backoff_max": 1000.0, "backoff_jitter": 5.0}
    async with opened(disk, far_end, **options) as spool:
        await spool.send(b"1")
        await spool.drained()
    first = far_end.waits[:6]
    assert all(2**n <= wait <= 2**n + 5 for n, wait in enumerate(first))
    assert first != pytest.approx([1, 2, 4, 8, 16, 32], abs=0.01)


async def test_the_far_end_may_say_how_long_to_wait(disk, autojump_clock):
    far_end = Destination(diskq.Retry(after=77.0), diskq.Retry("busy"), None)
    async with opened(disk, far_end, backoff_initial=2.0, backoff_jitter=0.0) as spool:
        await spool.send(b"1")
        await spool.drained()
    assert far_end.waits == pytest.approx([77, 4])


async def test_new_messages_wait_for_a_batch_that_is_tried_again(disk, autojump_clock):
    far_end = Destination(*down(3))
    async with opened(disk, far_end) as spool:
        await spool.send_many([b"1", b"2"])
        await blocked()
        await spool.send(b"3")
        await spool.drained()
    assert far_end.batches == [[b"1", b"2"]] * 4 + [[b"3"]]


async def test_a_try_that_takes_too_long_has_failed(disk, autojump_clock):
    far_end = Hanging()
    async with opened(disk, far_end, deliver_timeout=3.0, backoff_initial=1.0, backoff_jitter=0.0) as spool:
        await spool.send(b"1")
        await trio.sleep(8)
        assert spool.statistics().last_error == "TooSlowError: not delivered within 3.0 seconds"
    assert far_end.waits == pytest.approx([4])  # 3 of them trying


async def test_a_failure_is_logged_when_it_is_another_one(disk, autojump_clock, caplog):
    caplog.set_level(logging.INFO, "diskq")
    far_end = Destination(*down(5), TimeoutError("slow"), TimeoutError("slow"))
    async with opened(disk, far_end) as spool:
        await spool.send(b"1")
        await spool.drained()
    said = [record.getMessage() for record in caplog.records if record.name == "diskq.spool"]
    assert said == [
        "spool '/spool' cannot deliver: ConnectionError: nobody there",
        "spool '/spool' cannot deliver: TimeoutError: slow",
        "spool '/spool' delivers again, after 7 failures",
    ]


# --- coming back ----------------------------------------------------------------------------------


async def test_what_was_not_delivered_is_after_a_restart(disk, autojump_clock):
    async with opened(disk, Hanging(), max_messages=2) as spool:
        await spool.send_many(numbered(5))
        await blocked()
    far_end = Destination()
    async with opened(disk, far_end, max_messages=2) as spool:
        await spool.drained()
    assert far_end.batches == [[b"0", b"1"], [b"2", b"3"], [b"4"]]


async def test_a_try_that_was_cancelled_leaves_its_batch_and_is_not_counted(disk, autojump_clock):
    hanging = Hanging()
    with trio.CancelScope() as scope:
        async with opened(disk, hanging) as spool:
            await spool.send_many(numbered(3))
            await until(lambda: len(hanging.batches) == 1)
            scope.cancel()
            await trio.sleep_forever()
    far_end = Destination()
    async with opened(disk, far_end) as spool:
        await spool.drained()
    assert far_end.batches == [numbered(3)]
    assert far_end.attempts == [1]
    assert far_end.ids == hanging.ids


async def test_attempts_are_counted_on_after_a_restart_for_the_same_batch(disk, autojump_clock):
    first = Destination(*down(1000))
    async with opened(disk, first, max_messages=3, backoff_initial=1.0, backoff_jitter=0.0) as spool:
        await spool.send_many(numbered(3))
        await trio.sleep(4)
        await spool.send(b"later")
    assert first.attempts == [1, 2, 3]
    second = Destination()
    async with opened(disk, second, max_messages=100) as spool:
        await spool.drained()
    assert second.attempts == [4, 1]
    assert second.batches == [numbered(3), [b"later"]]


async def test_a_process_that_is_killed_repeats_the_batch_it_was_at_and_no_more(disk, autojump_clock):
    first = Destination()
    async with opened(disk, first, max_messages=2) as spool:
        await spool.send_many(numbered(6))
        while len(first.batches) < 2:
            await blocked()
        disk = disk.kill() if len(first.batches) == 2 else disk
        await spool.drained()
        after_all = disk.kill()
    second = Destination()
    async with opened(after_all, second) as spool:
        await spool.drained()
    assert second.got == []


async def test_leaving_may_wait_for_what_is_left(disk, autojump_clock):
    far_end = Destination(*down(4))
    async with opened(disk, far_end, drain_timeout=100.0) as spool:
        await spool.send_many(numbered(3))
    assert far_end.got == numbered(3)
    assert waiting_in(disk) == []


async def test_leaving_waits_no_longer_than_it_may(disk, autojump_clock):
    async with opened(disk, Destination(*down(10_000)), drain_timeout=30.0) as spool:
        await spool.send_many(numbered(3))
        before = trio.current_time()
    assert trio.current_time() - before == pytest.approx(30, abs=1)
    assert waiting_in(disk) == numbered(3)


# --- what ends a block ----------------------------------------------------------------------------


async def test_a_failure_that_is_not_to_be_tried_again_ends_the_block(disk, autojump_clock):
    async def block() -> None:
        async with opened(disk, Destination(KeyError("a bug")), retry_on=OSError) as spool:
            await spool.send(b"1")
            await trio.sleep_forever()

    with pytest.raises(KeyError, match="a bug"):
        await block()
    assert waiting_in(disk) == [b"1"]


async def test_what_the_block_raises_leaves_it_as_it_is(disk, autojump_clock):
    async def block() -> None:
        async with opened(disk, Destination()) as spool:
            await spool.send(b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await block()


def test_an_interrupt_in_deliver_ends_the_block_and_leaves_its_batch(disk):
    async def deliver(batch: diskq.Batch) -> None:
        interrupt()

    async def main() -> None:
        async with opened(disk, deliver) as spool:
            await spool.send(b"1")
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert waiting_in(disk) == [b"1"]


def test_an_interrupt_of_the_block_ends_it(disk):
    async def main() -> None:
        async with opened(disk, Hanging()) as spool:
            await spool.send(b"1")
            await blocked()
            interrupt()
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert waiting_in(disk) == [b"1"]


async def test_a_spool_that_was_closed_takes_nothing_and_delivers_what_it_has(disk, autojump_clock):
    far_end = Destination(*down(2))
    async with opened(disk, far_end) as spool:
        spool.send_nowait(b"1")
        await spool.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await spool.send(b"2")
        with pytest.raises(trio.ClosedResourceError):
            spool.send_nowait(b"2")
        await spool.drained()
        assert far_end.got == [b"1"]
    with pytest.raises(trio.ClosedResourceError):
        await spool.send(b"3")
    assert waiting_in(disk) == []


async def test_drained_raises_when_the_spool_was_left(disk, autojump_clock):
    async with trio.open_nursery() as nursery:
        told: list[Exception] = []

        async def wait(spool: diskq.SpoolChannel) -> None:
            try:
                await spool.drained()
            except trio.ClosedResourceError as closed:
                told.append(closed)

        async with opened(disk, Hanging()) as spool:
            await spool.send(b"1")
            nursery.start_soon(wait, spool)
            await blocked()
    assert len(told) == 1


async def test_what_is_synced_outlasts_a_power_cut_as_in_a_queue(disk, autojump_clock):
    async with opened(disk, Hanging()) as spool:
        await spool.send(b"1", durability="synced")
        await spool.send(b"2")
        assert waiting_in(disk.crash()) == [b"1"]
        await spool.sync()
        assert waiting_in(disk.crash()) == [b"1", b"2"]


async def test_two_processes_cannot_have_one_spool(disk, autojump_clock):
    async with opened(disk, Destination()):
        with pytest.raises(diskq.LockedError, match="process"):
            async with opened(disk, Destination()):
                pass
        with pytest.raises(diskq.LockedError, match="process"):
            diskq.DeadLetters("/spool", fs=disk)


# --- dead letters ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "items, why",
    [
        ([5], "messages has place 5, and the batch has places 0 to 1"),
        ([-1], "messages has place -1, and the batch has places 0 to 1"),
        (["0"], "messages are places in the batch, whole numbers from 0, got '0'"),
        ([0.0], "messages are places in the batch, whole numbers from 0, got 0.0"),
        ([True], "messages are places in the batch, whole numbers from 0, got True"),
        ([None], "messages are places in the batch, whole numbers from 0, got None"),
        ([0, "1"], "messages are places in the batch, whole numbers from 0, got '1'"),
        (2, "messages has place 2, and the batch has places 0 to 1"),
    ],
    ids=str,
)
async def test_a_place_that_is_not_in_the_batch_gives_up_nothing_and_is_tried_again(
    disk, autojump_clock, items, why
):
    far_end = Destination(diskq.Permanent("no", messages=items))
    async with opened(disk, far_end, retry_on=OSError) as spool:
        await spool.send_many([b"1", b"2"])
        await until(lambda: spool.statistics().last_error is not None)
        assert why in (spool.statistics().last_error or "")
        await spool.drained()
        assert len(spool.dead_letters) == 0
    assert far_end.got == [b"1", b"2"]


async def test_what_will_never_be_delivered_becomes_a_dead_letter_and_the_others_go_on(disk, autojump_clock):
    far_end = Destination(diskq.Permanent("HTTP 400", messages=[1, 3]))
    async with opened(disk, far_end) as spool:
        await spool.send_many(numbered(5))
        await spool.drained()
        letters = await spool.dead_letters.list()
        assert spool.statistics().buried == spool.statistics().dead_letters == 2
    assert far_end.batches == [numbered(5), [b"0", b"2", b"4"]]
    assert far_end.attempts == [1, 2]
    assert [(letter.body, letter.reason, letter.attempts) for letter in letters] == [
        (b"1", "HTTP 400", 1),
        (b"3", "HTTP 400", 1),
    ]
    assert [letter.id for letter in letters] == [far_end.ids[0][1], far_end.ids[0][3]]
    assert dead_letters_in(disk) == letters


async def test_after_max_attempts_a_batch_is_given_up(disk, autojump_clock):
    far_end = Destination(*down(3))
    async with opened(disk, far_end, max_attempts=3, max_messages=2) as spool:
        await spool.send_many(numbered(3))
        await spool.drained()
        letters = await spool.dead_letters.list()
    assert far_end.got == [b"2"]
    assert [(letter.body, letter.attempts) for letter in letters] == [(b"0", 3), (b"1", 3)]
    assert "ConnectionError: nobody there" in letters[0].reason


async def test_what_rotted_among_the_letters_is_among_the_repairs(disk, autojump_clock):
    async with opened(disk, Destination(diskq.Permanent("no"))) as spool:
        await spool.send(b"0")
        await spool.drained()
    path = f"{PATH}/dead.diskqueue.000000.dat"
    handle = disk.open(path, write=True)
    disk.pwrite(handle, b"?", 20)
    disk.close(handle)
    async with opened(disk, Destination()) as spool:
        assert await spool.dead_letters.list() == []
        assert [repair.path for repair in spool.repairs] == [path]
        assert spool.statistics().repairs == spool.repairs


async def test_letters_can_be_sent_again_and_removed(disk, autojump_clock):
    far_end = Destination(diskq.Permanent("no"))
    async with opened(disk, far_end) as spool:
        await spool.send_many(numbered(4))
        await spool.drained()
        ids = [letter.id for letter in await spool.dead_letters.list()]
        assert await spool.dead_letters.purge(ids[:1]) == 1
        assert await spool.dead_letters.replay(ids[2:3]) == 1
        await spool.drained()
        assert [letter.body for letter in await spool.dead_letters.list()] == [b"1", b"3"]
        with pytest.raises(KeyError, match="no such dead letter"):
            await spool.dead_letters.purge(ids[:1])
        assert await spool.dead_letters.purge() == 2
    assert far_end.got == [b"2"]
    assert dead_letters_in(disk) == []
