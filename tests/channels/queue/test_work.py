# Several workers on one queue. Law: in order of arrival, each message to one worker at a time; what is not
# acknowledged comes again, and Cancelled takes nothing and counts for nothing.

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import outcome
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

import diskq
from diskq.testing import CrashFS
from tests.channels import lives
from tests.channels.lives import ENDINGS, REPEATED, left_by, settled
from tests.channels.rig import (
    CancelAt,
    Tasks,
    blocked,
    crash_disk,
    drain,
    fault_disk,
    left_in,
    metadata,
    numbered,
    opened,
    until,
)
from tests.sampling import examples


def bodies(leases: list[diskq.Lease]) -> list[bytes]:
    return [lease.body for lease in leases]


def attempts(leases: list[diskq.Lease]) -> dict[bytes, int]:
    return {lease.body: lease.attempts for lease in leases}


# --- several workers ------------------------------------------------------------------------------


async def test_leases_come_in_order_and_are_acknowledged_in_any(open_queue):
    async with open_queue() as queue:
        await queue.send_many(numbered(6))
        async with queue.working() as work:
            one = await work.receive()
            two, three = await work.receive_many(2)
            four = work.receive_nowait()
            assert bodies([one, two, three, four]) == numbered(4)
            assert sorted([three.id, one.id, four.id, two.id]) == [one.id, two.id, three.id, four.id]
            work.ack(three)
            work.ack([one, four])
            assert queue.depth == 5
            work.ack(two)
            assert queue.depth == 2
        assert drain(queue) == numbered(2, start=4)
    async with open_queue() as queue:
        assert queue.depth == 0


async def test_workers_are_served_in_order_of_arrival(disk, autojump_clock):
    async with opened(disk) as queue, queue.working() as work, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        for number in range(3):
            await tasks.start(number, work.receive)
        await tasks.start("many", work.receive_many, 5)
        await queue.send_many(numbered(5))
        await blocked()
        assert bodies([tasks[number] for number in range(3)]) == numbered(3)
        assert bodies(tasks["many"]) == numbered(2, start=3)


async def test_each_message_is_dealt_with_by_one_of_many(disk, autojump_clock):
    done: list[bytes] = []

    async def worker(work: diskq.QueueWorkChannel, seed: int) -> None:
        rng = random.Random(seed)
        async for lease in work:
            await trio.sleep(rng.random())
            if rng.random() < 0.3:
                work.nack(lease, delay=rng.choice([0.0, 2.0]))
            else:
                work.ack(lease)
                done.append(lease.body)

    async with opened(disk, segment_size=200) as queue, queue.working(max_in_flight=4) as work:
        with trio.move_on_after(100) as scope:
            async with trio.open_nursery() as nursery:
                for seed in range(7):
                    nursery.start_soon(worker, work, seed)
                for body in numbered(100):
                    await queue.send(body)
                while queue.depth:
                    await trio.sleep(1)
                    assert work.statistics().in_flight <= 4
                nursery.cancel_scope.cancel()
        assert not scope.cancelled_caught
    assert sorted(done) == sorted(numbered(100))
    assert left_in(disk) == []


async def test_a_waiting_worker_goes_on_when_one_in_flight_is_settled(disk, autojump_clock):
    async with opened(disk) as queue, queue.working(max_in_flight=2) as work, trio.open_nursery() as nursery:
        await queue.send_many(numbered(4))
        first, _ = await work.receive_many(10)
        tasks = Tasks(nursery)
        await tasks.start("next", work.receive)
        assert "next" not in tasks
        with pytest.raises(trio.WouldBlock):
            work.receive_nowait()
        work.ack(first)
        await blocked()
        assert tasks["next"].body == b"2"


async def test_a_delayed_message_wakes_a_waiting_task(disk, autojump_clock):
    async with opened(disk) as queue, queue.working() as work:
        await queue.send(b"0")
        start = trio.current_time()
        work.nack(await work.receive(), delay=30.0)
        again = await work.receive()
        assert (again.body, again.attempts) == (b"0", 2)
        assert trio.current_time() == pytest.approx(start + 30.0)
        work.nack(again, delay=50.0)
        async with trio.open_nursery() as nursery:
            tasks = Tasks(nursery)
            await tasks.start("waits", work.receive)
            # What is sent meanwhile comes at once, and the alarm is for who is left.
            await queue.send(b"1")
            await tasks.start("too", work.receive)
            assert tasks["waits"].body == b"1"
            await trio.sleep(50)
            await blocked()
            assert (tasks["too"].body, tasks["too"].attempts) == (b"0", 3)


async def test_a_far_alarm_does_not_put_off_a_sync(disk, autojump_clock):
    async with opened(disk, sync_timeout=2.0) as queue, queue.working() as work:
        await queue.send_many(numbered(2))
        work.nack(await work.receive_many(2), delay=1000.0)
        await queue.sync()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work.receive)
            await trio.sleep(10)
            await queue.send(b"2", durability="memory")
            await trio.sleep(2.5)
            await until(lambda: left_in(disk.crash())[-1:] == [b"2"])
            nursery.cancel_scope.cancel()


async def test_lingering_waits_for_more(disk, autojump_clock):
    async with opened(disk) as queue, queue.working() as work:
        await queue.send(b"0")

        async def send_later() -> None:
            for body in numbered(3, start=1):
                await trio.sleep(1)
                await queue.send(body)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_later)
            assert bodies(await work.receive_many(10, linger=2.5)) == numbered(3)
            assert bodies(await work.receive_many(1, linger=60)) == [b"3"]
        await queue.send_many([b"x" * 50, b"y" * 50, b"z" * 50])
        assert len(await work.receive_many(10, max_bytes=120, linger=5)) == 2
        assert (await work.receive()).attempts == 1


async def test_select_takes_leases_too(disk, autojump_clock):
    async with opened(disk) as queue, queue.working() as work:
        send, receive = trio.open_memory_channel[bytes](5)
        async with trio.open_nursery() as nursery:
            tasks = Tasks(nursery)
            await tasks.start("first", diskq.select, work, receive)
            await queue.send(b"0")
            await blocked()
            receiver, lease = tasks["first"]
            assert receiver is work
            assert lease.body == b"0"
        send.send_nowait(b"1")
        assert await diskq.select(work, receive) == (receive, b"1")
        assert work.statistics().in_flight == 1


# --- blocks ---------------------------------------------------------------------------------------


async def test_a_block_acknowledges_or_gives_back(disk, autojump_clock):
    async with opened(disk) as queue, queue.working() as work:
        await queue.send_many(numbered(2))
        with pytest.raises(ZeroDivisionError):
            async with work.receiving():
                raise ZeroDivisionError
        with trio.CancelScope() as scope:
            async with work.receiving() as lease:
                assert (lease.body, lease.attempts) == (b"0", 2)
                scope.cancel()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep_forever)
        async with work.receiving() as lease:
            assert (lease.body, lease.attempts) == (b"0", 2), "cancelled is not tried"
        async with work.receiving() as lease:
            work.nack(lease, delay=5.0)
        async with work.receiving() as lease:
            assert (lease.body, lease.attempts) == (b"1", 2)
        assert queue.depth == 0


async def test_a_block_that_outlives_the_work_gets_an_error(disk):
    async with opened(disk) as queue:
        await queue.send(b"0")
        with pytest.raises(diskq.LeaseError):
            async with queue.working() as work, work.receiving():
                work.close()
        assert drain(queue) == [b"0"]


async def test_after_the_work_a_lease_is_worth_nothing(open_queue):
    async with open_queue() as queue:
        await queue.send_many(numbered(3))
        async with queue.working() as work:
            leases = await work.receive_many(2)
        for end in (work.ack, work.nack, work.release):
            with pytest.raises(diskq.LeaseError):
                end(leases)
        with pytest.raises(trio.ClosedResourceError):
            await work.receive()
        with pytest.raises(trio.ClosedResourceError):
            work.receive_nowait()
        async with queue.working() as work:
            assert attempts(await work.receive_many(9)) == dict.fromkeys(numbered(3), 1)


async def test_settling_twice_raises(disk):
    async with opened(disk) as queue, queue.working() as work:
        await queue.send_many(numbered(2))
        lease = await work.receive()
        work.nack(lease)
        with pytest.raises(diskq.LeaseError) as told:
            work.ack(lease)
        assert told.value.id == lease.id


# --- exclusive ------------------------------------------------------------------------------------


async def test_no_other_task_receives_meanwhile(disk):
    async with opened(disk) as queue:
        await queue.send_many(numbered(9))
        assert await queue.receive() == b"0"
        async with queue.working(), queue.clone() as other:
            for reader in (queue, other):
                with pytest.raises(trio.BusyResourceError):
                    await reader.receive()
                with pytest.raises(trio.BusyResourceError):
                    await reader.receive_many(3)
                with pytest.raises(trio.BusyResourceError):
                    await reader.receive_many(3, linger=1)
                with pytest.raises(trio.BusyResourceError):
                    reader.receive_nowait()
                with pytest.raises(trio.BusyResourceError):
                    await reader.peek()
                with pytest.raises(trio.BusyResourceError):
                    async with reader.receiving(3):
                        pass
                with pytest.raises(trio.BusyResourceError):
                    async with reader.working():
                        pass
                await reader.send(b"9")
        assert drain(queue) == [*numbered(8, start=1), b"9", b"9"]


async def test_work_does_not_begin_while_another_task_receives(disk, autojump_clock):
    async with opened(disk) as queue, trio.open_nursery() as nursery:
        nursery.start_soon(queue.receive)
        await blocked()
        with pytest.raises(trio.BusyResourceError):
            async with queue.working():
                pass
        await queue.send_many(numbered(2))
        await blocked()
        async with queue.receiving(1):
            with pytest.raises(trio.BusyResourceError):
                async with queue.working():
                    pass


async def test_emptying_takes_all_away(disk):
    async with opened(disk) as queue, queue.working() as work:
        await queue.send_many(numbered(5))
        leases = await work.receive_many(3)
        await queue.clear()
        assert queue.depth == 0
        work.ack(leases)
        await queue.send(b"new")
        assert (await work.receive()).body == b"new"


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["work", "queue", "block"])
async def test_closing_wakes_waiting_tasks(disk, autojump_clock, end):
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        async with opened(disk) as queue, queue.working() as work:
            await tasks.start("one", work.receive)
            await tasks.start("many", work.receive_many, 5, linger=1)
            if end == "work":
                work.close()
            elif end == "queue":
                queue._loop.begin_to_close()
        await blocked()
        assert {key: type(ended) for key, ended in tasks.ended} == dict.fromkeys(
            ["one", "many"], trio.ClosedResourceError
        )


async def test_a_lingering_worker_keeps_nothing_when_the_work_ends(disk, autojump_clock):
    async with trio.open_nursery() as nursery, opened(disk) as queue:
        await queue.send_many(numbered(2))
        tasks = Tasks(nursery)
        async with queue.working() as work:
            await tasks.start("many", work.receive_many, 5, linger=10)
        await blocked()
        assert isinstance(tasks["many"], trio.ClosedResourceError)
        async with queue.working() as work:
            assert attempts(await work.receive_many(9)) == {b"0": 1, b"1": 1}


async def test_a_failing_disk_breaks_the_work(autojump_clock):
    disk = fault_disk()

    async def use() -> None:
        async with opened(disk) as queue, queue.working() as work:
            await queue.send_many(numbered(3))
            lease = await work.receive()
            disk.fail("pwrite", path="*.acks")
            with pytest.raises(trio.BrokenResourceError):
                work.ack(lease)
            with pytest.raises(trio.BrokenResourceError):
                await work.receive()

    with pytest.raises(trio.BrokenResourceError):
        await use()


async def test_files_that_cannot_be_read_raise_and_nothing_is_taken(autojump_clock):
    disk = fault_disk()
    async with opened(disk) as queue:
        await queue.send_many(numbered(3))
    async with opened(disk) as queue, queue.working() as work:
        disk.fail("pread", path="*.dat", times=2)
        with pytest.raises(OSError, match="Input/output"):
            await work.receive()
        with pytest.raises(OSError, match="Input/output"):
            work.receive_nowait()
        assert (await work.receive()).body == b"0"


async def test_a_message_that_was_tried_too_often_goes_to_exhausted(disk, autojump_clock):
    taken: list[tuple[bytes, int]] = []
    async with (
        opened(disk) as queue,
        queue.working(
            max_attempts=3, exhausted=lambda lease: taken.append((lease.body, lease.attempts))
        ) as work,
        trio.open_nursery() as nursery,
    ):
        await queue.send(b"poison")
        for attempt in (1, 2, 3):
            lease = await work.receive()
            assert lease.attempts == attempt
            work.nack(lease, delay=1.0)
        assert taken == [(b"poison", 3)]
        tasks = Tasks(nursery)
        await tasks.start("next", work.receive)
        assert "next" not in tasks
        await queue.send(b"good")
        await blocked()
        assert tasks["next"].body == b"good"
        assert queue.depth == 1


# --- durability -----------------------------------------------------------------------------------


async def test_acknowledgements_are_durable_with_the_next_sync(disk):
    async with opened(disk) as queue:
        await queue.send_many(numbered(5))
        async with queue.working() as work:
            leases = await work.receive_many(5)
            work.ack([leases[0], leases[2], leases[3]])
            killed = disk.kill()
            await queue.sync()
            cut = disk.crash()
    for after in (killed, cut):
        async with opened(after) as queue, queue.working() as work:
            assert attempts(await work.receive_many(9)) == {b"1": 2, b"4": 2}
    assert left_in(cut) == numbered(4, start=1)


async def test_they_count_for_the_sync_that_is_due(disk, autojump_clock):
    async with opened(disk, sync_every=6) as queue, queue.working() as work:
        await queue.send_many(numbered(5))
        leases = await work.receive_many(5)
        await queue.sync()
        work.ack(leases[:2])
        await trio.sleep(2.5)
        await until(lambda: metadata(disk)[:3] == (3, 0, 10))


# --- cancelled ------------------------------------------------------------------------------------


async def linger(work: diskq.QueueWorkChannel) -> None:
    await work.receive_many(30, linger=60)


async def use_block(work: diskq.QueueWorkChannel) -> None:
    async with work.receiving():
        await trio.sleep_forever()


CALLS = {
    "receive": lambda work: work.receive(),
    "receive_many": lambda work: work.receive_many(3),
    "lingering": linger,
    "async for": lambda work: work.__anext__(),
    "receiving": use_block,
    "receive_if": lambda work: work.receive_if(lambda: True),
}


@pytest.mark.parametrize("checkpoint_slice", [0, 1e-9, 100e-6])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_cancelled_means_nothing_was_taken(disk, call, checkpoint_slice, autojump_clock):
    async with opened(disk, checkpoint_slice=checkpoint_slice) as queue, queue.working() as work:
        await queue.send_many(numbered(5))
        with trio.CancelScope() as scope:
            scope.cancel()
            await call(work)
        assert scope.cancelled_caught
        assert work.statistics().in_flight == 0
        # and while it waits
        taken = await work.receive_many(9)
        with trio.move_on_after(1) as scope:
            await call(work)
        assert scope.cancelled_caught
        work.release(taken)
        assert attempts(await work.receive_many(9)) == dict.fromkeys(numbered(5), 1)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_at_each_step_a_call_has_taken_or_was_cancelled(call):
    step = 0
    has_fired = True
    while has_fired:
        step += 1
        async with opened(crash_disk()) as queue, queue.working() as work:
            cancelling = CancelAt(step)
            ended: list[outcome.Outcome[Any]] = []

            async def run(
                work: diskq.QueueWorkChannel = work,
                cancelling: CancelAt = cancelling,
                ended: list[outcome.Outcome[Any]] = ended,
            ) -> None:
                with cancelling.scope, trio.move_on_after(0.05):
                    ended.append(outcome.Value(await call(work)))

            async with trio.open_nursery() as nursery:
                with cancelling.at_work():
                    nursery.start_soon(run)
                    await trio.testing.wait_all_tasks_blocked()
                    queue.send_nowait(b"0")
                    await trio.testing.wait_all_tasks_blocked()
            has_fired = cancelling.has_fired
            got = [lease for each in ended for lease in _leases(each.unwrap())]
            assert work.statistics().in_flight == len(got)
            work.release(got)
            again = await work.receive()
            assert (again.body, again.attempts) == (b"0", 1)


def _leases(result: Any) -> list[diskq.Lease]:
    return result if isinstance(result, list) else [] if result is None else [result]


# --- any sequence of calls, kills and power cuts --------------------------------------------------


@dataclass(frozen=True)
class Op:
    name: str
    count: int = 1
    choice: int = 0


COUNTS = st.integers(1, 6)
CHOICES = st.integers(0, 2**16)
OPERATIONS = st.one_of(
    *(st.builds(Op, st.just("send"), COUNTS, CHOICES) for _ in range(4)),
    *(st.builds(Op, st.just("take"), COUNTS, CHOICES) for _ in range(4)),
    *(st.builds(Op, st.just("ack"), COUNTS, CHOICES) for _ in range(4)),
    *(st.builds(Op, st.just(name), COUNTS, CHOICES) for name in ("nack", "delay", "release") * 2),
    *(st.builds(Op, st.just(name), COUNTS, CHOICES) for name in ("cancelled", "wait", "sync", "pass", "end")),
    *(st.builds(Op, st.just(name), COUNTS, CHOICES) for name in ENDINGS),
)
DELAY = 7.0


@dataclass
class Model:
    """What is in the queue: for each message that is not acknowledged, how often it was handed out."""

    waiting: dict[int, int] = field(default_factory=dict)
    delayed: dict[int, tuple[int, float]] = field(default_factory=dict)
    leases: dict[int, diskq.Lease] = field(default_factory=dict)
    most_tried: dict[int, int] = field(default_factory=dict)
    sent: int = 0
    synced: int = 0
    acked: set[int] = field(default_factory=set)
    acked_durably: set[int] = field(default_factory=set)

    def wake(self, now: float) -> None:
        for number, (tried, due) in list(self.delayed.items()):
            if due <= now:
                self.waiting[number] = tried
                del self.delayed[number]

    def handed(self, number: int, lease: diskq.Lease) -> None:
        assert lease.attempts == self.waiting.pop(number) + 1
        self.most_tried[number] = max(self.most_tried.get(number, 0), lease.attempts)
        self.leases[number] = lease

    @property
    def depth(self) -> int:
        """From the first that is not acknowledged on."""
        rest = [*self.waiting, *self.delayed, *self.leases]
        return self.sent - min(rest) if rest else 0

    def lost_process(self) -> None:
        """What was with the workers was tried."""
        for number, lease in self.leases.items():
            self.waiting[number] = lease.attempts
        self.leases.clear()


class Run:
    def __init__(self, options: dict[str, Any], clock: trio.testing.MockClock) -> None:
        self.clock = clock
        self.options = options
        self.disk = crash_disk()
        self.model = Model()
        self.queue: diskq.QueueChannel
        self.work: diskq.QueueWorkChannel

    async def example(self, operations: list[Op]) -> None:
        rest = list(operations)
        while await self.session(rest) is not None:
            pass

    async def session(self, rest: list[Op]) -> Op | None:
        after: CrashFS | None = None
        ending: Op | None = None
        async with opened(self.disk, **self.options) as self.queue:
            while rest and ending is None:
                async with self.queue.working(max_in_flight=9) as self.work:
                    ending = await self.until_the_end(rest)
                    if ending is not None and ending.name != "close":
                        await settled()
                        after = left_by(ending.name, self.disk, ending.choice % 100)
                        await self.reopened(ending, after)
                if after is None:
                    self.work_has_ended()
            if ending is None:
                self.check_end()
        if after is not None:
            self.disk = after
        elif ending is not None:
            self.model.synced = self.model.sent
            self.model.acked_durably = set(self.model.acked)
        return ending

    async def until_the_end(self, rest: list[Op]) -> Op | None:
        while rest:
            operation = rest.pop(0)
            if operation.name in ENDINGS:
                return operation
            if operation.name == "end":
                return None
            await getattr(self, operation.name.replace("pass", "pass_time"))(operation)
            assert self.queue.depth == self.model.depth
            assert self.work.statistics().in_flight == len(self.model.leases)
        return None

    def check_end(self) -> None:
        """A plain reader finds all messages that were not acknowledged, and those after them."""
        found = [int(body.split(b".")[0]) for body in drain(self.queue)]
        assert found == list(range(self.model.sent - len(found), self.model.sent))
        assert len(found) >= self.model.depth

    def work_has_ended(self) -> None:
        for number, lease in self.model.leases.items():
            self.model.waiting[number] = lease.attempts - 1
        self.model.leases.clear()

    async def reopened(self, ending: Op, after: CrashFS) -> None:
        """What is there after a crash; was that allowed? The model then has what is."""
        model = self.model
        model.lost_process()
        known = model.waiting | {number: tried for number, (tried, _) in model.delayed.items()}
        now, shadow = trio.current_time(), after.copy()
        with diskq.Queue("/q", "events", fs=shadow) as queue, diskq.QueueWork(queue) as work:
            leases = work.get_many(1000)
            delayed: dict[int, tuple[int, float]] = {}
            while work._next_due() < math.inf:
                rest = work._next_due() - shadow.clock
                assert 0 < rest <= DELAY
                now += rest
                shadow.clock += rest
                late = work.get_many(1000)
                delayed |= {int(lease.body.split(b".")[0]): (lease.attempts - 1, now) for lease in late}
                leases += late
        leases.sort(key=lambda lease: lease.id)
        found = {int(lease.body.split(b".")[0]): lease.attempts - 1 for lease in leases}
        assert [lease.body for lease in leases] == [self.body(number) for number in sorted(found)]
        if ending.name == "kill":
            assert found == known
            assert delayed.keys() == {n for n, (_, due) in model.delayed.items() if due > trio.current_time()}
        else:
            assert set(range(model.synced)) - model.acked <= set(found), "lost"
            assert model.acked_durably.isdisjoint(found)
            for number, tried in found.items():
                assert tried <= model.most_tried.get(number, 0)
            # What is not synced survives as a prefix.
            model.sent = max([model.synced, *(number + 1 for number in found), *self.after_acked(after)])
            model.acked = {number for number in model.acked - set(found) if number < model.sent}
            model.most_tried = {n: tried for n, tried in model.most_tried.items() if n < model.sent}
        model.synced = model.sent
        model.acked_durably = set(model.acked)
        model.waiting = {n: tried for n, tried in found.items() if n not in delayed}
        model.delayed = delayed

    def after_acked(self, after: CrashFS) -> list[int]:
        """How far the messages go that a plain reader sees."""
        return [int(body.split(b".")[0]) + 1 for body in left_in(after)[-1:]]

    def body(self, number: int) -> bytes:
        return b"%d." % number + b"x" * (number * 17 % 60)

    def chosen(self, operation: Op) -> list[int]:
        numbers = sorted(self.model.leases)
        return random.Random(operation.choice).sample(numbers, min(operation.count, len(numbers)))

    async def send(self, operation: Op) -> None:
        model = self.model
        numbers = range(model.sent, model.sent + operation.count)
        word = ("written", "written", "synced")[operation.choice % 3]
        await self.queue.send_many(map(self.body, numbers), durability=word)  # type: ignore[arg-type]
        for number in numbers:
            model.waiting[number] = 0
        model.sent += operation.count
        if word == "synced":
            model.synced = model.sent

    async def take(self, operation: Op) -> None:
        model = self.model
        model.wake(trio.current_time())
        room = 9 - len(model.leases)
        due = sorted(model.waiting)[: min(operation.count, room)]
        with trio.CancelScope() as scope:
            if not due:
                scope.cancel()
            leases = await self.work.receive_many(operation.count)
            assert [int(lease.body.split(b".")[0]) for lease in leases] == due
            for number, lease in zip(due, leases, strict=True):
                assert lease.body == self.body(number)
                model.handed(number, lease)
        assert scope.cancelled_caught == (not due)

    async def cancelled(self, operation: Op) -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await self.work.receive_many(operation.count)
        assert scope.cancelled_caught

    async def wait(self, operation: Op) -> None:
        """A worker waits until it is cancelled, or gets a message."""
        self.model.wake(trio.current_time())
        if self.model.waiting or len(self.model.leases) >= 9:
            return
        got: list[diskq.Lease] = []

        async def receive() -> None:
            with scope:
                got.append(await self.work.receive())

        scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            if operation.choice % 2:
                await self.send(Op("send"))
            scope.cancel()
        for lease in got:
            number = int(lease.body.split(b".")[0])
            self.model.handed(number, lease)
        assert len(got) == operation.choice % 2

    async def ack(self, operation: Op) -> None:
        chosen = self.chosen(operation)
        self.work.ack([self.model.leases.pop(number) for number in chosen])
        self.model.acked.update(chosen)

    async def nack(self, operation: Op) -> None:
        for number in self.chosen(operation):
            lease = self.model.leases.pop(number)
            self.work.nack(lease)
            self.model.waiting[number] = lease.attempts

    async def delay(self, operation: Op) -> None:
        for number in self.chosen(operation):
            lease = self.model.leases.pop(number)
            self.work.nack(lease, delay=DELAY)
            self.model.delayed[number] = (lease.attempts, trio.current_time() + DELAY)

    async def release(self, operation: Op) -> None:
        for number in self.chosen(operation):
            lease = self.model.leases.pop(number)
            self.work.release(lease)
            self.model.waiting[number] = lease.attempts - 1

    async def sync(self, operation: Op) -> None:
        await self.queue.sync()
        self.model.synced = self.model.sent
        self.model.acked_durably = set(self.model.acked)

    async def pass_time(self, operation: Op) -> None:
        # Trio's clock and the wall's go together.
        self.clock.jump(DELAY / 2)
        self.disk.clock += DELAY / 2
        await settled()


@settings(REPEATED, max_examples=examples(60))
@given(
    operations=st.lists(OPERATIONS, min_size=30, max_size=80),
    options=st.fixed_dictionaries(
        {
            "segment_size": st.sampled_from([70, 300, 100_000]),
            "sync_every": st.sampled_from([1, 5, 2500]),
            "checkpoint_slice": st.sampled_from([0, 100e-6, 60.0]),
            "sync_timeout": st.just(math.inf),
        }
    ),
)
def test_any_sequence_of_calls_kills_and_power_cuts_keeps_every_promise(operations, options):
    lives.play(partial(Run, options), operations)
