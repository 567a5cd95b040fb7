# One budget for several queues, in one run of Trio and in several: who waits, who is served, who is refused.

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
import trio
import trio.testing

import diskq
from diskq.messages import Position
from diskq.testing import CrashFS
from tests.channels.rig import DIRECTORY, Tasks, blocked, crash_disk, drain, until
from tests.channels.stream_rig import producing, stored
from tests.namespaces import run_on_small_disk

KIB = 1024
BODY = b"x" * 1020  # with its framing: 1 KiB


def size_on(disk: CrashFS) -> int:
    """Of all files there are, whatever they are."""
    return sum(map(len, disk.files().values()))


@asynccontextmanager
async def opened(
    disk: CrashFS, budget: diskq.DiskBudget, *names: str, **options: Any
) -> AsyncIterator[list[diskq.QueueChannel]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                diskq.open_queue(DIRECTORY, name, fs=disk, budget=budget, **options)
            )
            for name in names
        ]


async def fill(queue: diskq.QueueChannel, body: bytes = BODY) -> int:
    """Send until there is no room; returns how many were sent."""
    sent = 0
    try:
        while True:
            queue.send_nowait(body)
            sent += 1
            await trio.lowlevel.checkpoint()
    except (trio.WouldBlock, diskq.FullError):
        return sent


def budget_of(kib: int) -> diskq.DiskBudget:
    return diskq.DiskBudget(kib * KIB)


# --- wait -------------------------------------------------------------------------------------


async def test_a_sender_waits_until_a_message_is_consumed_in_another_queue():
    disk, budget = crash_disk(), budget_of(1024)
    async with opened(disk, budget, "a", "b") as (a, b), trio.open_nursery() as nursery:
        sent = await fill(a)
        assert sent > 500
        tasks = Tasks(nursery)
        await tasks.start("b", b.send_many, [BODY] * 100)
        assert not tasks.ended
        assert budget.statistics().waiting == 1
        assert [member.wanted > 0 for member in budget.statistics().members] == [False, True]
        for _ in range(sent):
            await a.receive()
        await until(lambda: "b" in tasks)
        assert tasks["b"] is None
        assert b.depth == 100
        assert budget.statistics().waiting == 0


async def test_a_sender_of_another_queue_is_woken_by_the_last_message_taken():
    disk, budget = crash_disk(), budget_of(1024)
    lazy = {"sync_every": 10**6, "sync_timeout": 1e6}
    async with opened(disk, budget, "a", "b", "c", **lazy) as (a, b, c), trio.open_nursery() as nursery:
        for _ in range(60):
            await a.send(BODY)
        assert await a.receive() == BODY
        await fill(c)
        tasks = Tasks(nursery)
        await tasks.start("b", b.send_many, [BODY] * 60)
        for _ in range(59):
            await a.receive()  # no sync is due, no task waits, and no call follows
        await until(lambda: "b" in tasks)
        assert b.depth == 60


async def test_senders_of_all_queues_are_let_in_in_order_of_arrival():
    disk, budget = crash_disk(), budget_of(2048)
    async with opened(disk, budget, "a", "b", "c") as (a, b, c), trio.open_nursery() as nursery:
        sent = await fill(a)
        tasks = Tasks(nursery)
        batch = [BODY] * 450  # more than a fair share of three
        await tasks.start(1, b.send_many, batch)
        await tasks.start(2, c.send_many, batch)
        await tasks.start(3, b.send_many, batch)
        await tasks.start(4, a.send, BODY)
        assert budget.statistics().waiting == 3
        for count in range(sent):
            await a.receive()
            if count % 50 == 0:
                await a.sync()
        await until(lambda: 3 in tasks)
        b_first, c_first = tasks.ended.index((1, None)), tasks.ended.index((2, None))
        assert b_first < c_first < tasks.ended.index((3, None))
        nursery.cancel_scope.cancel()


async def test_a_small_sender_is_not_stopped_by_a_giant_that_waits_for_the_space_of_others():
    disk, budget = crash_disk(), budget_of(2048)
    async with opened(disk, budget, "stuck", "giant", "small") as (stuck, giant, small):
        for _ in range(1200):
            await stuck.send(BODY)
        async with trio.open_nursery() as nursery:
            tasks = Tasks(nursery)
            await tasks.start("giant", giant.send_many, [BODY] * 900)
            assert not tasks.ended
            with trio.fail_after(60):
                for _ in range(500):  # round and round, in a little room
                    await small.send(BODY)
                    assert await small.receive() == BODY
            assert not tasks.ended
            nursery.cancel_scope.cancel()


async def test_a_giant_is_served_though_small_ones_never_stop():
    disk, budget = crash_disk(), budget_of(2048)
    async with opened(disk, budget, "held", "giant", "small") as (held, giant, small):
        sent = await fill(held)
        async with trio.open_nursery() as nursery:

            async def chatter() -> None:
                while True:
                    await small.send(BODY)
                    await small.receive()

            tasks = Tasks(nursery)
            tasks.start_soon("giant", giant.send_many, [BODY] * 900)
            for _ in range(4):
                nursery.start_soon(chatter)
            for count in range(sent):
                await held.receive()
                if count % 100 == 0:
                    await held.sync()
            for _ in range(100_000):
                if "giant" in tasks:
                    break
                await trio.lowlevel.checkpoint()
            assert tasks["giant"] is None
            nursery.cancel_scope.cancel()


async def test_a_sender_that_gives_up_lets_the_next_one_in():
    disk, budget = crash_disk(), budget_of(1024)
    async with opened(disk, budget, "a", "b", "c") as (a, b, c), trio.open_nursery() as nursery:
        sent = await fill(a)
        for _ in range(300):
            await a.receive()
        await a.sync()
        tasks = Tasks(nursery)
        await tasks.start("large", b.send_many, [BODY] * 500)
        await tasks.start("next", c.send_many, [BODY] * 200)  # as large, for three
        assert not tasks.ended
        tasks.scopes["large"].cancel()
        await until(lambda: "next" in tasks)
        assert tasks["large"] == "cancelled"
        assert tasks["next"] is None
        assert b.depth == 0
        assert a.depth == sent - 300
        assert budget.statistics().waiting == 0


async def test_space_freed_for_a_cancelled_sender_goes_to_the_others():
    disk, budget = crash_disk(), budget_of(1024)
    async with opened(disk, budget, "a", "b", "c") as (a, b, c), trio.open_nursery() as nursery:
        sent = await fill(a)
        tasks = Tasks(nursery)
        await tasks.start("first", b.send_many, [BODY] * 300)
        await tasks.start("second", c.send_many, [BODY] * 300)
        tasks.scopes["first"].cancel()
        for _ in range(sent):
            a.receive_nowait()
        await until(lambda: "second" in tasks)
        assert tasks["second"] is None
        assert budget.statistics().waiting == 0


async def test_closing_one_member_wakes_the_others():
    disk, budget = crash_disk(), budget_of(1024)
    async with opened(disk, budget, "b") as (b,), trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        async with opened(disk, budget, "a") as (a,):
            await fill(a)
            await tasks.start("b", b.send_many, [BODY] * 100)
            assert not tasks.ended
        await until(lambda: "b" in tasks)
        assert tasks["b"] is None
        assert [member.name for member in budget.statistics().members] == ["queue 'b' in /q"]


async def test_a_queue_that_is_closed_waits_no_more():
    disk, budget = crash_disk(), budget_of(1024)
    async with opened(disk, budget, "a") as (a,), trio.open_nursery() as nursery:
        sent = await fill(a)
        tasks = Tasks(nursery)
        async with opened(disk, budget, "b") as (b,):
            await tasks.start("b", b.send_many, [BODY] * 300)
            assert not tasks.ended
        assert type(tasks["b"]) is trio.ClosedResourceError
        assert budget.statistics().waiting == 0
        assert a.depth == sent


async def test_an_idle_queue_gives_back_what_was_consumed_in_its_file():
    disk, budget = crash_disk(), budget_of(2048)
    async with opened(disk, budget, "idle", "other") as (idle, other), trio.open_nursery() as nursery:
        for _ in range(100):
            await idle.send(BODY)
        for _ in range(100):
            await idle.receive()
        # Its only file is still there, and consumed.
        await fill(other)
        tasks = Tasks(nursery)
        await tasks.start("other", other.send_many, [BODY] * 60)
        await until(lambda: "other" in tasks)
        assert tasks["other"] is None


async def test_a_thread_that_frees_space_wakes_waiting_senders(tmp_path):
    budget = budget_of(1024)
    has_filled, may_drain = threading.Event(), threading.Event()

    def engine() -> None:
        with diskq.Queue(tmp_path, "a", options=diskq.QueueOptions(budget=budget, on_full="reject")) as queue:
            with suppress(diskq.FullError):
                while True:
                    queue.put(BODY)
            has_filled.set()
            may_drain.wait(60)
            while queue.get_many(100):
                pass
            queue.sync()

    async with diskq.open_queue(tmp_path, "b", budget=budget) as b, trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, engine)
        await trio.to_thread.run_sync(has_filled.wait, 60)
        nursery.start_soon(b.send_many, [BODY] * 100)
        await blocked()
        assert budget.statistics().waiting == 1
        may_drain.set()
        await until(lambda: b.depth == 100)


async def test_a_run_of_trio_in_another_thread_makes_room_too(tmp_path):
    budget = budget_of(1024)
    has_filled, may_drain = threading.Event(), threading.Event()

    async def elsewhere() -> None:
        async with diskq.open_queue(tmp_path, "a", budget=budget) as queue:
            count = await fill(queue)
            has_filled.set()
            await trio.to_thread.run_sync(may_drain.wait, 60)
            for _ in range(count):
                await queue.receive()
            await until(lambda: not budget.statistics().waiting)

    async with diskq.open_queue(tmp_path, "b", budget=budget) as b, trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, trio.run, elsewhere)
        await trio.to_thread.run_sync(has_filled.wait, 60)
        nursery.start_soon(b.send_many, [BODY] * 100)
        await blocked()
        may_drain.set()
        await until(lambda: b.depth == 100)


# --- reject, and drop_oldest ------------------------------------------------------------------


async def test_a_queue_that_rejects_names_the_budget_in_its_error():
    disk, budget = crash_disk(), budget_of(1024)
    async with (
        opened(disk, budget, "a") as (a,),
        opened(disk, budget, "b", on_full="reject") as (b,),
    ):
        await fill(a)
        with pytest.raises(diskq.FullError, match="budget of max_bytes=1048576 that 2 share") as told:
            await b.send_many([BODY] * 50)
        assert told.value.path == DIRECTORY
        assert "queue 'b'" in told.value.reason
        with pytest.raises(diskq.FullError, match="budget"):
            b.send_nowait(bytes(50 * KIB))
        assert b.depth == 0


async def test_a_queue_that_drops_gives_up_only_its_own_oldest_file():
    disk, budget = crash_disk(), budget_of(1024)
    async with (
        opened(disk, budget, "kept") as (kept,),
        opened(disk, budget, "log", on_full="drop_oldest") as (log,),
    ):
        for _ in range(300):
            await kept.send(BODY)
        for number in range(1500):
            await log.send(b"%d" % number + BODY)
        dropped = log.statistics().dropped
        assert dropped > 500
        assert drain(log)[0] == b"%d" % dropped + BODY
        assert kept.depth == 300
        assert size_on(disk) < 1024 * KIB


async def test_a_queue_with_nothing_to_drop_has_another_one_drop_that_may():
    disk, budget = crash_disk(), budget_of(1024)
    async with (
        opened(disk, budget, "kept") as (kept,),
        opened(disk, budget, "old", "new", on_full="drop_oldest") as (old, new),
    ):
        for _ in range(108):
            await kept.send(BODY)
        for _ in range(1000):
            await old.send(BODY)
        dropped = old.statistics().dropped
        with trio.fail_after(60):
            for _ in range(10):
                await new.send_many([BODY] * 10)
        assert new.depth == 100
        assert new.statistics().dropped == 0
        assert old.statistics().dropped > dropped
        assert kept.depth == 108


# --- whatever the policy ----------------------------------------------------------------------


@pytest.mark.parametrize("on_full", ["wait", "reject", "drop_oldest"])
async def test_what_can_never_fit_is_refused_at_once(on_full):
    disk, budget = crash_disk(), budget_of(1024)
    async with opened(disk, budget, "a", "b", on_full=on_full) as (a, b):
        await b.send(BODY)
        with trio.fail_after(60), pytest.raises(diskq.FullError, match="budget"):
            await a.send(bytes(1100 * KIB))
        assert b.depth == 1
        assert b.statistics().dropped == 0
        await a.send(BODY)


async def test_a_full_queue_opens_in_a_smaller_budget_and_can_be_drained():
    disk = crash_disk()
    async with opened(disk, budget_of(2048), "a") as (a,):
        count = await fill(a)
    budget = budget_of(384)
    async with opened(disk, budget, "a", "b") as (a, b), trio.open_nursery() as nursery:
        assert budget.statistics().granted > 1024 * KIB
        assert budget.statistics().free == 0
        tasks = Tasks(nursery)
        await tasks.start("b", b.send, BODY)
        assert not tasks.ended
        for _ in range(count):
            assert await a.receive() == BODY
        await until(lambda: "b" in tasks)
        assert tasks["b"] is None
        assert size_on(disk) < 384 * KIB


async def test_all_files_together_stay_within_the_budget(autojump_clock):
    disk, budget = crash_disk(), budget_of(1024)
    worst = 0
    async with (
        opened(disk, budget, "a", "b") as (a, b),
        opened(disk, budget, "c", on_full="drop_oldest") as (c,),
        trio.open_nursery() as nursery,
    ):

        async def produce(queue: diskq.QueueChannel, size: int) -> None:
            nonlocal worst
            for _ in range(800):
                with suppress(diskq.FullError):  # c, where it has nothing to drop
                    await queue.send(b"y" * size)
                worst = max(worst, size_on(disk))
            left.remove(queue)
            if not left:
                nursery.cancel_scope.cancel()

        async def consume(queue: diskq.QueueChannel) -> None:
            async for _ in queue:
                await trio.sleep(0.001)

        left = [a, b, c]
        for queue, size in ((a, 3000), (b, 1500), (c, 2000)):
            nursery.start_soon(produce, queue, size)
            nursery.start_soon(consume, queue)
    assert worst <= 1024 * KIB


@pytest.mark.parametrize("seed", range(8))
async def test_no_sender_waits_while_there_is_space_and_none_at_the_end(seed):
    rng, disk, budget = random.Random(seed), crash_disk(), budget_of(704)
    waiting: list[dict[int, trio.CancelScope]] = [{}, {}, {}]
    sent: list[list[int]] = [[], [], []]
    received: list[list[int]] = [[], [], []]
    async with opened(disk, budget, "a", "b", "c") as queues, trio.open_nursery() as nursery:

        async def send(index: int, number: int) -> None:
            message = (b"%d|" % number).ljust(rng.choice((10, 1000, 10_000, 60_000)), b".")
            with trio.CancelScope() as waiting[index][number]:
                try:
                    await queues[index].send(message)
                    sent[index].append(number)
                finally:
                    del waiting[index][number]

        async def receive(index: int, most: int) -> None:
            with suppress(trio.WouldBlock):
                for _ in range(most):
                    received[index].append(int(queues[index].receive_nowait().split(b"|")[0]))
            await blocked()
            assert size_on(disk) <= 704 * KIB

        for number in range(300):
            index, act = rng.randrange(3), rng.random()
            if act < 0.7:
                nursery.start_soon(send, index, number)
                await blocked()
            elif act < 0.8:
                await receive(index, rng.randrange(20))
            elif act < 0.95 and waiting[index]:
                waiting[index][rng.choice(sorted(waiting[index]))].cancel()
                await blocked()
            else:
                await queues[index].sync()
            assert size_on(disk) <= 704 * KIB
        await until(lambda: is_at_rest(budget, queues))
        for _ in range(300):
            if not any(waiting):
                break
            for index in range(3):
                await receive(index, 1000)
                await queues[index].sync()
        assert waiting == [{}, {}, {}]
        for index in range(3):
            await receive(index, 1000)
    assert received == [sorted(numbers) for numbers in sent]


def is_at_rest(budget: diskq.DiskBudget, queues: list[diskq.QueueChannel]) -> bool:
    """True if stores with waiting senders are in line, and the first cannot have its space."""
    parked = [queue.statistics().tasks_waiting_send > 0 for queue in queues]
    members = budget.statistics().members
    missing = [m.used + m.wanted - m.granted for m in members if m.wanted]
    is_any_served = missing != [] and max(missing) <= budget.statistics().free
    return [m.wanted > 0 for m in members] == parked and not is_any_served


# --- streams ----------------------------------------------------------------------------------


async def test_a_producer_waits_until_a_queue_is_consumed_and_gives_a_queue_what_it_need_not_keep():
    disk, budget = crash_disk(), budget_of(1088)
    stream = producing(disk, budget=budget, partition_count=1, retention_max_bytes=100 * KIB)
    async with opened(disk, budget, "a") as (a,), stream as producer, trio.open_nursery() as nursery:
        sent = await fill(a)
        tasks = Tasks(nursery)
        await tasks.start("stream", producer.send_many, [bytes(1000)] * 600, b"k")
        await tasks.start("small", producer.send, bytes(1000), b"k")
        assert not tasks.ended
        assert budget.statistics().waiting == 1
        for _ in range(sent):
            await a.receive()
        await until(lambda: len(tasks.ended) == 2)
        assert (tasks["stream"], tasks["small"]) == ({0: range(600)}, Position(0, 600))
        await tasks.start("queue", a.send_many, [BODY] * 400)
        await until(lambda: "queue" in tasks)
        assert tasks["queue"] is None


async def test_a_producer_that_rejects_names_the_budget_in_its_error():
    disk, budget = crash_disk(), budget_of(1024)
    stream = producing(disk, budget=budget, partition_count=1, on_full="reject")
    async with opened(disk, budget, "a") as (a,), stream as producer:
        await fill(a)
        with pytest.raises(diskq.FullError, match=r"stream /q/s holds .* budget of max_bytes=1048576"):
            await producer.send_many([bytes(1000)] * 40)
        with pytest.raises(diskq.FullError, match="budget"):
            producer.send_nowait(bytes(40_000))
        assert producer.statistics().next_offsets == {0: 0}


async def test_a_producer_drops_its_oldest_segments_without_stopping_anybody():
    disk, budget = crash_disk(), budget_of(1152)
    stream = producing(disk, budget=budget, partition_count=1, on_full="drop_oldest")
    async with opened(disk, budget, "kept") as (kept,), stream as producer:
        for _ in range(200):
            await kept.send(BODY)
        for number in range(3000):
            await producer.send(b"%d" % number + BODY, b"k")
            if number % 100 == 0:
                assert size_on(disk) <= 1152 * KIB
        assert kept.depth == 200
        assert 300 < len(stored(disk)) < 1000


@pytest.mark.parametrize("dropper", ["stream", "queue"])
@pytest.mark.parametrize("size", [100, 1020])
async def test_a_store_that_drops_is_not_starved_by_waiting_senders(dropper, size):
    disk, budget = crash_disk(), diskq.DiskBudget(1_000_000)
    body = b"x" * size
    async with (
        producing(disk, budget=budget, on_full="drop_oldest", partition_count=1) as producer,
        opened(disk, budget, "log", on_full="drop_oldest") as (log,),
        opened(disk, budget, "jobs") as (jobs,),
        trio.open_nursery() as nursery,
    ):
        sink = producer if dropper == "stream" else log

        async def never_consumed() -> None:
            while True:
                await jobs.send(body)

        with suppress(trio.WouldBlock):
            while True:
                jobs.send_nowait(body)
                await sink.send(body)
        nursery.start_soon(never_consumed)
        held = [0]
        for number in range(3_000_000 // size):
            await sink.send(body)
            if number % 100 == 0:
                await trio.lowlevel.checkpoint()
                held.append(budget.statistics().members[0 if dropper == "stream" else 1].used)
        assert size_on(disk) <= 1_000_000
        # It goes on with a part of what there is, and is not left with the file that it writes.
        assert max(held[len(held) // 2 :]) > 100_000
        assert jobs.depth * size > 100_000
        nursery.cancel_scope.cancel()


async def test_a_sender_that_waits_for_little_gets_space_that_another_store_drops():
    disk, budget = crash_disk(), diskq.DiskBudget(1_000_000)
    async with producing(disk, budget=budget, on_full="drop_oldest", partition_count=1) as producer:
        for _ in range(1000):
            await producer.send(BODY)
        async with opened(disk, budget, "jobs") as (jobs,), trio.open_nursery() as nursery:
            tasks = Tasks(nursery)
            await tasks.start("jobs", jobs.send_many, [BODY] * 50)
            for _ in range(1000):
                await producer.send(BODY)
                await trio.lowlevel.checkpoint()
            assert tasks["jobs"] is None


async def test_messages_that_pass_the_compiled_door_stay_within_the_lease():
    disk, budget = crash_disk(), budget_of(1152)
    stream = producing(disk, budget=budget, partition_count=1)
    async with stream as producer, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)

        async def send() -> None:
            while True:
                await producer.send(b"", b"k")  # of whose bytes most lie beside the data

        await tasks.start("sender", send)
        await until(lambda: budget.statistics().waiting == 1)
        await producer.sync()
        assert size_on(disk) <= budget.statistics().used <= 1152 * KIB - budget.headroom
        assert budget.statistics().free < 8 * KIB
        nursery.cancel_scope.cancel()


async def test_cancelled_senders_of_a_stream_have_sent_nothing():
    disk, budget = crash_disk(), budget_of(1024)
    stream = producing(disk, budget=budget, partition_count=1)
    async with opened(disk, budget, "a") as (a,), stream as producer, trio.open_nursery() as nursery:
        await fill(a)
        tasks = Tasks(nursery)
        await tasks.start("stream", producer.send_many, [bytes(1000)] * 50, b"k")
        tasks.scopes["stream"].cancel()
        await blocked()
        assert tasks["stream"] == "cancelled"
        assert producer.statistics().next_offsets == {0: 0}
        assert budget.statistics().waiting == 0


# --- a disk that is really full ---------------------------------------------------------------


@pytest.mark.parametrize("scene", ["within_the_budget", "healing"])
def test_a_tmpfs_of_one_mib(tmp_path, scene):
    assert run_on_small_disk(tmp_path, "tests.channels.full_budget", scene) == "done\n"


# --- a spool ----------------------------------------------------------------------------------


async def test_a_spool_whose_far_end_comes_back_makes_room_for_the_others(autojump_clock):
    disk, budget = crash_disk(), budget_of(1024)
    is_there = False

    async def deliver(batch: diskq.Batch) -> None:
        if not is_there:
            raise ConnectionError("nobody is there")

    options = diskq.SpoolOptions(queue=diskq.QueueOptions(budget=budget, on_full="reject"))
    async with (
        diskq.open_spool(f"{DIRECTORY}/spool", deliver=deliver, options=options, fs=disk) as spool,
        opened(disk, budget, "other") as (other,),
        trio.open_nursery() as nursery,
    ):
        with suppress(diskq.FullError):
            for _ in range(2000):
                await spool.send(BODY)
        assert spool.statistics().depth > 500
        tasks = Tasks(nursery)
        await tasks.start("other", other.send_many, [BODY] * 300)
        assert not tasks.ended
        is_there = True
        await spool.drained()
        await until(lambda: "other" in tasks)
        assert tasks["other"] is None
        await spool.send(BODY)
