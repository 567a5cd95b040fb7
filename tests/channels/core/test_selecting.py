# One message of several receivers, a call at a time: whose it is, and that the others keep theirs.

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import assert_checkpoints, assert_no_checkpoints

from diskq.channels.core import racing
from diskq.channels.core.merging import merge
from diskq.channels.core.selecting import select, select_nowait
from tests.channels.journal_rig import writing
from tests.channels.rig import CancelAt, Tasks, blocked, crash_disk, numbered, opened
from tests.channels.stream_rig import ONE, consuming, producing

# --- receivers of each kind, and what sends to them -------------------------------------------


class Source:
    """A receiver, and how a message gets there without waiting."""

    def __init__(self, receiver: Any, send: Callable[[bytes], object], body: Callable[[Any], bytes] = bytes):
        self.receiver = receiver
        self.send = send
        self.body = body


@asynccontextmanager
async def a_channel() -> AsyncIterator[Source]:
    sender, receiver = trio.open_memory_channel[bytes](1000)
    yield Source(receiver, sender.send_nowait)


@asynccontextmanager
async def a_queue() -> AsyncIterator[Source]:
    async with opened(crash_disk()) as queue:
        yield Source(queue, queue.send_nowait)


@asynccontextmanager
async def a_work() -> AsyncIterator[Source]:
    async with opened(crash_disk()) as queue, queue.working() as work:
        yield Source(work, queue.send_nowait, lambda lease: lease.body)


@asynccontextmanager
async def a_consumer() -> AsyncIterator[Source]:
    disk = crash_disk()
    async with producing(disk, **ONE) as producer, consuming(disk) as consumer:
        yield Source(consumer, lambda body: producer.send_nowait(body, b"k"), lambda message: message.value)


@asynccontextmanager
async def a_scanner() -> AsyncIterator[Source]:
    async with writing(crash_disk()) as journal, journal.open_scanner() as scanner:
        yield Source(scanner, journal.send_nowait, lambda message: message.value)


@asynccontextmanager
async def a_merge() -> AsyncIterator[Source]:
    async with a_channel() as source, merge(source.receiver) as merged:
        yield Source(merged, source.send)


@asynccontextmanager
async def a_merged_queue() -> AsyncIterator[Source]:
    async with a_queue() as source, merge(source.receiver) as merged:
        yield Source(merged, source.send)


@asynccontextmanager
async def a_merged_stranger() -> AsyncIterator[Source]:
    async with a_channel() as source, merge(Stranger(source.receiver)) as merged:
        yield Source(merged, source.send)


class Stranger:
    """A receiver that cannot be stopped."""

    def __init__(self, receiver: Any) -> None:
        self._receiver = receiver

    async def receive(self) -> Any:
        return await self._receiver.receive()

    def receive_nowait(self) -> Any:
        return self._receiver.receive_nowait()


KINDS = [a_channel, a_queue, a_work, a_consumer, a_scanner, a_merge, a_merged_queue, a_merged_stranger]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
async def source(request: pytest.FixtureRequest) -> AsyncIterator[Source]:
    async with request.param() as source:
        yield source


@pytest.fixture
async def other() -> AsyncIterator[Source]:
    async with a_channel() as source:
        yield source


def left_in(source: Source) -> list[bytes]:
    """Everything that can be received at once."""
    bodies = []
    while True:
        try:
            bodies.append(source.body(source.receiver.receive_nowait()))
        except trio.WouldBlock:
            return bodies


# --- what comes out ---------------------------------------------------------------------------


async def test_a_message_that_is_there_comes_with_its_receiver(source, other):
    source.send(b"there")
    receiver, message = await select(other.receiver, source.receiver)
    assert receiver is source.receiver
    assert source.body(message) == b"there"


async def test_a_message_that_comes_is_waited_for(source, other):
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("waits", select, other.receiver, source.receiver)
        assert "waits" not in tasks
        source.send(b"comes")
        await blocked()
        receiver, message = tasks["waits"]
        assert receiver is source.receiver
        assert source.body(message) == b"comes"


async def test_messages_of_all_come_out_once_and_each_receivers_in_order(source, other):
    for number in range(50):
        source.send(b"%d" % number)
        other.send(b"%d" % number)
    came: dict[Any, list[bytes]] = {source.receiver: [], other.receiver: []}
    for _ in range(100):
        receiver, message = await select(source.receiver, other.receiver)
        came[receiver].append((source if receiver is source.receiver else other).body(message))
    assert came == {source.receiver: numbered(50), other.receiver: numbered(50)}


async def test_without_waiting_there_is_a_message_or_none(source, other):
    with pytest.raises(trio.WouldBlock):
        select_nowait(source.receiver, other.receiver)
    source.send(b"there")
    await blocked()
    receiver, message = select_nowait(source.receiver, other.receiver)
    assert (receiver, source.body(message)) == (source.receiver, b"there")


async def test_a_timeout_is_a_cancel_scope(source, other, autojump_clock):
    with trio.move_on_after(5) as scope:
        await select(source.receiver, other.receiver)
    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(5)
    source.send(b"later")
    assert (await select(source.receiver, other.receiver))[0] is source.receiver


async def test_one_that_cannot_be_stopped_is_refused_and_its_merge_is_not(other):
    async with a_channel() as source:
        stranger = Stranger(source.receiver)
        with pytest.raises(TypeError, match="merge"):
            await select(stranger, other.receiver)
        source.send(b"fine")
        assert select_nowait(stranger, other.receiver) == (stranger, b"fine")


# --- a receiver that loses keeps its message ---------------------------------------------------


@pytest.mark.parametrize("is_first", [True, False])
async def test_two_messages_at_one_moment_are_one_taken_and_one_left(source, is_first):
    async with a_queue() as other, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("waits", select, source.receiver, other.receiver)
        for each in [source, other] if is_first else [other, source]:
            each.send(b"mine")
        await blocked()
        receiver, _ = tasks["waits"]
        winner, loser = (source, other) if receiver is source.receiver else (other, source)
        assert left_in(winner) == []
        assert left_in(loser) == [b"mine"]


async def test_many_messages_at_one_moment_are_one_taken():
    async with AsyncExitStack() as stack:
        sources = [await stack.enter_async_context(kind()) for kind in KINDS * 3]
        async with trio.open_nursery() as nursery:
            tasks = Tasks(nursery)
            await tasks.start("waits", select, *(source.receiver for source in sources))
            for source in sources:
                source.send(b"mine")
            await blocked()
            winner, _ = tasks["waits"]
        assert [source.receiver for source in sources if left_in(source) == []] == [winner]


async def test_a_lease_that_was_not_taken_was_not_tried():
    async with a_channel() as source, a_work() as other, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("waits", select, source.receiver, other.receiver)
        source.send(b"first")
        other.send(b"second")
        await blocked()
        assert tasks["waits"] == (source.receiver, b"first")
        lease = await other.receiver.receive()
        assert (lease.body, lease.attempts) == (b"second", 1)
        assert other.receiver.statistics().in_flight == 1


async def test_a_channel_without_a_buffer_would_block_when_no_task_takes_its_message():
    pairs = [trio.open_memory_channel[int](0) for _ in range(3)]
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("waits", select, *(receiver for _, receiver in pairs))
        pairs[1][0].send_nowait(1)
        for sender in (pairs[0][0], pairs[2][0]):
            with pytest.raises(trio.WouldBlock):  # the task that would have taken it has a message already
                sender.send_nowait(2)
        await blocked()
        assert tasks["waits"] == (pairs[1][1], 1)


async def test_a_message_that_came_and_whose_sender_left_ends_the_wait_alone():
    # Both before the waiting tasks have run for the first time.
    pairs = [trio.open_memory_channel[int](1) for _ in range(8)]

    async def come_and_leave() -> None:
        for number, (sender, _) in enumerate(pairs):
            sender.send_nowait(number)
            sender.close()

    for step in range(6):
        pairs = [trio.open_memory_channel[int](1) for _ in range(8)]
        async with trio.open_nursery() as nursery:
            tasks = Tasks(nursery)
            tasks.start_soon("waits", select, *(receiver for _, receiver in pairs))
            for _ in range(step):
                await trio.lowlevel.cancel_shielded_checkpoint()
            await come_and_leave()
        winner, number = tasks["waits"]
        assert winner is pairs[number][1]
        rest = sorted(receiver.receive_nowait() for _, receiver in pairs if receiver is not winner)
        assert rest == sorted({*range(8)} - {number})


async def test_tasks_that_select_from_the_same_get_each_message_once(source, other):
    got = []

    async def take(count: int) -> None:
        for _ in range(count):
            receiver, message = await select(source.receiver, other.receiver)
            got.append((source if receiver is source.receiver else other).body(message))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(take, 10)
        for number in range(20):
            source.send(b"%d" % number)
            other.send(b"%d" % (100 + number))
            if number % 3 == 0:
                await blocked()
    assert sorted(got, key=int) == [*numbered(20), *numbered(20, start=100)]


# --- fairness ---------------------------------------------------------------------------------


async def test_receivers_that_always_have_a_message_take_turns():
    async with AsyncExitStack() as stack:
        sources = [await stack.enter_async_context(kind()) for kind in KINDS]
        for source in sources:
            for number in range(20):
                source.send(b"%d" % number)
        await blocked()  # a stream's messages of one slice are written together, when others run
        receivers = [source.receiver for source in sources]
        assert [(await select(*receivers))[0] for _ in range(10 * len(KINDS))] == receivers * 10


async def test_the_receiver_served_longest_ago_has_the_turn(source, other):
    for _ in range(5):
        source.send(b"x")
    for _ in range(3):
        await select(source.receiver, other.receiver)
    other.send(b"late")
    assert (await select(source.receiver, other.receiver))[0] is other.receiver


async def test_two_tasks_in_step_do_not_starve_a_receiver():
    async with AsyncExitStack() as stack:
        sources = [await stack.enter_async_context(a_channel()) for _ in range(4)]
        for source in sources:
            for _ in range(50):
                source.send(b"x")
        served: Counter[Any] = Counter()

        async def take(*receivers: Any) -> None:
            for _ in range(20):
                served[(await select(*receivers))[0]] += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, sources[0].receiver, sources[1].receiver)
            nursery.start_soon(take, sources[2].receiver, sources[3].receiver)
        assert [served[source.receiver] for source in sources] == [10] * 4


async def test_a_selecting_task_stands_in_line_with_receiving_ones(other):
    # If it only looked, and then took, the next receiver in line would always take the message first.
    async with a_queue() as source, trio.open_nursery() as nursery:
        got: Counter[str] = Counter()

        async def keep_receiving() -> None:
            while True:
                await source.receiver.receive()
                got["receives"] += 1

        async def keep_selecting() -> None:
            while True:
                await select(source.receiver, other.receiver)
                got["selects"] += 1

        nursery.start_soon(keep_selecting)
        await blocked()
        nursery.start_soon(keep_receiving)
        await blocked()
        for _ in range(10):
            source.send(b"x")
            await blocked()
        assert got == {"selects": 5, "receives": 5}
        nursery.cancel_scope.cancel()


# --- cancelled anywhere -----------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [KINDS, [a_channel] * 3, [a_queue] * 2, [a_queue, a_channel]])
async def test_wherever_it_is_cancelled_each_message_is_received_or_left(kinds):
    step = 1
    while not await is_over_before(step, kinds):
        step += 1
    assert step > 20


async def is_over_before(step: int, kinds: list[Any]) -> bool:
    """Send two messages to each while a task selects that is cancelled before Trio's step `step`."""
    async with AsyncExitStack() as stack:
        sources = [await stack.enter_async_context(kind()) for kind in kinds]
        got: dict[Any, list[bytes]] = {source.receiver: [] for source in sources}
        by_receiver = {source.receiver: source for source in sources}
        saboteur = CancelAt(step)

        async def take() -> None:
            with saboteur.scope:
                for _ in range(2 * len(sources)):
                    receiver, message = await select(*by_receiver)
                    got[receiver].append(by_receiver[receiver].body(message))

        with saboteur.at_work():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take)
                for number in range(2):
                    for source in sources:
                        source.send(b"%d" % number)  # to all in one step: only one may be taken
                    for _ in range(8):
                        await trio.lowlevel.cancel_shielded_checkpoint()
        await blocked()
        for source in sources:
            assert got[source.receiver] + left_in(source) == numbered(2)
        return not saboteur.has_fired


@pytest.mark.parametrize("seed", range(20))
async def test_no_selecting_task_loses_a_message_however_they_are_sent(seed):
    chance = random.Random(seed)
    async with AsyncExitStack() as stack:
        kinds = chance.choices(KINDS, k=5)
        sources = [await stack.enter_async_context(kind()) for kind in kinds]
        by_receiver = {source.receiver: source for source in sources}
        sent, got = Counter[bytes](), Counter[bytes]()

        async def take() -> None:
            while True:
                chosen = chance.sample(sources, chance.randint(1, len(sources)))
                scopes.append(scope := trio.CancelScope())
                with scope:
                    receiver, message = await select(*(source.receiver for source in chosen))
                    got[by_receiver[receiver].body(message)] += 1

        scopes: list[trio.CancelScope] = []
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(take)
            for number in range(150):
                for source in chance.sample(sources, chance.randint(0, 3)):
                    body = b"%d of %d" % (number, sources.index(source))
                    source.send(body)
                    sent[body] += 1
                if chance.random() < 0.3 and scopes:
                    chance.choice(scopes[-4:]).cancel()
                for _ in range(chance.randint(0, 4)):
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        await blocked()
        for source in sources:
            got.update(left_in(source))
    assert got == sent


async def test_a_cancelled_call_takes_nothing_that_is_there(source, other):
    source.send(b"stays")
    await blocked()
    with trio.CancelScope() as scope:
        scope.cancel()
        await select(source.receiver, other.receiver)
    assert scope.cancelled_caught
    assert left_in(source) == [b"stays"]


async def test_it_is_a_checkpoint_and_without_waiting_it_is_none(source, other):
    source.send(b"one")
    source.send(b"two")
    await blocked()
    with assert_checkpoints():
        await select(source.receiver, other.receiver)
    with assert_no_checkpoints():
        select_nowait(source.receiver, other.receiver)


async def test_a_wait_leaves_no_trace(source, other):
    with trio.move_on_after(0):
        await select(source.receiver, other.receiver)
    async with trio.open_nursery() as nursery:
        await Tasks(nursery).start("waits", select, source.receiver, other.receiver)
        other.send(b"x")
    assert other.receiver.statistics().tasks_waiting_receive == 0
    with pytest.raises(KeyError):
        trio.lowlevel.remove_instrument(racing.wakings())


# --- the end of them --------------------------------------------------------------------------


async def test_one_that_has_ended_is_passed_over_and_it_ends_with_the_last():
    pairs = [trio.open_memory_channel[int](1) for _ in range(2)]
    receivers = [receiver for _, receiver in pairs]
    pairs[0][0].close()
    pairs[1][0].send_nowait(1)
    assert await select(*receivers) == (receivers[1], 1)
    pairs[1][0].close()
    for _ in range(2):
        with pytest.raises(trio.EndOfChannel):
            await select(*receivers)
    with pytest.raises(trio.EndOfChannel):
        select_nowait(*receivers)


async def test_one_that_ends_meanwhile_leaves_the_others_to_be_waited_for(source):
    sender, receiver = trio.open_memory_channel[bytes](0)
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("waits", select, receiver, receiver.clone(), source.receiver)
        sender.close()
        await blocked()
        assert "waits" not in tasks
        source.send(b"goes on")
        await blocked()
        assert tasks["waits"][0] is source.receiver


async def test_a_waiting_task_gets_end_of_channel_when_the_last_receiver_ends():
    pairs = [trio.open_memory_channel[int](0) for _ in range(3)]
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("waits", select, *(receiver for _, receiver in pairs))
        for sender, _ in pairs:
            sender.close()
        await blocked()
        assert type(tasks["waits"]) is trio.EndOfChannel


async def test_of_nothing_it_has_ended():
    with pytest.raises(trio.EndOfChannel):
        await select()


async def test_a_consumer_that_is_to_end_does():
    disk = crash_disk()
    async with producing(disk, **ONE) as producer:
        await producer.send(b"last", b"k")
        async with consuming(disk, end="close") as consumer:
            assert (await select(consumer))[1].value == b"last"
            with pytest.raises(trio.EndOfChannel):
                await select(consumer)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_a_closed_receiver_is_an_error_as_it_is_and_the_others_are_heard(kind, other):
    async with kind() as source:
        other.send(b"fine")
        source.receiver.close()
        outcomes = []
        for _ in range(2):
            try:
                outcomes.append((await select(source.receiver, other.receiver))[1])
            except trio.ClosedResourceError:
                outcomes.append("closed")
        assert sorted(outcomes, key=str) == [b"fine", "closed"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_a_receiver_that_is_closed_meanwhile_wakes_the_waiting_task(kind, other):
    async with kind() as source, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("waits", select, other.receiver, source.receiver)
        source.receiver.close()
        await blocked()
        assert type(tasks["waits"]) is trio.ClosedResourceError
        other.send(b"fine")
        assert await select(other.receiver) == (other.receiver, b"fine")


async def test_an_error_beside_a_message_is_logged_and_met_again(other, caplog):
    async with a_queue() as source, trio.open_nursery() as nursery:
        handle = source.receiver.clone()
        tasks = Tasks(nursery)
        await tasks.start("waits", select, other.receiver, handle)
        other.send(b"first")
        handle.close()
        with caplog.at_level(logging.WARNING, "diskq"):
            await blocked()
        assert tasks["waits"] == (other.receiver, b"first")
        assert "this handle was closed" in caplog.text
        with pytest.raises(trio.ClosedResourceError):
            await select(handle)
