# Cancelled means: nothing happened. And what was interrupted is put in order first.

from __future__ import annotations

import random
import signal
from collections.abc import Sequence

import pytest
import trio

import diskq
from diskq.testing import CrashFS, FaultFS
from tests.channels.rig import (
    PatientDisk,
    Tasks,
    blocked,
    crash_disk,
    drain,
    fault_disk,
    interrupt,
    left_in,
    numbered,
    opened,
    until,
)


async def use_block(queue: diskq.QueueChannel, max_messages: int = 3, linger: float = 0.0) -> None:
    async with queue.receiving(max_messages, linger=linger):
        pass


CALLS = {
    "send": lambda queue: queue.send(b"new"),
    "send synced": lambda queue: queue.send(b"new", durability="synced"),
    "send to memory": lambda queue: queue.send(b"new", durability="memory"),
    "send_many": lambda queue: queue.send_many([b"new"] * 3),
    "receive": lambda queue: queue.receive(),
    "receive_many": lambda queue: queue.receive_many(3),
    "receive_many, lingering": lambda queue: queue.receive_many(30, linger=60),
    "peek": lambda queue: queue.peek(),
    "async for": lambda queue: queue.__anext__(),
    "receiving": lambda queue: use_block(queue),
    "receiving, lingering": lambda queue: use_block(queue, max_messages=30, linger=60),
    "clear": lambda queue: queue.clear(),
    "sync": lambda queue: queue.sync(),
}
SLICES = [0, 1e-9, 100e-6]
"""Strict; a schedule point in every call all the same; as it comes."""


# --- cancelled before -------------------------------------------------------------------------


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_so_does_a_call_after_the_deadline(disk, call):
    async with opened(disk) as queue:
        await queue.send_many(numbered(10))
        with trio.CancelScope(deadline=trio.current_time() - 1) as scope:
            await call(queue)
        assert scope.cancelled_caught
        assert drain(queue) == numbered(10)


@pytest.mark.parametrize("call", ["receive", "receive_many", "peek", "receiving", "async for"])
async def test_a_call_in_a_cancelled_scope_does_not_get_in_line(disk, call):
    async with opened(disk) as queue:
        with trio.CancelScope() as scope:
            scope.cancel()
            await CALLS[call](queue)
        await queue.send(b"x")
        assert queue.receive_nowait() == b"x"


# --- cancelled while waiting for a message ------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    ["receive", "receive_many", "receive_many, lingering", "peek", "receiving", "receiving, lingering"],
)
async def test_a_task_that_stops_waiting_takes_nothing_and_the_next_one_gets_it(disk, call):
    async with opened(disk) as queue, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("gives up", CALLS[call], queue)
        await tasks.start("next", queue.receive)
        tasks.scopes["gives up"].cancel()
        await blocked()
        assert tasks["gives up"] == "cancelled"
        assert queue.statistics().tasks_waiting_receive == 1
        await queue.send(b"x")
        await blocked()
        assert tasks["next"] == b"x"
        await queue.send(b"y")
        assert queue.receive_nowait() == b"y"


@pytest.mark.parametrize("gives_up", range(4))
async def test_the_others_keep_their_places_when_any_task_gives_up(disk, gives_up):
    async with opened(disk) as queue, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        for key in range(4):
            await tasks.start(key, queue.receive)
        tasks.scopes[gives_up].cancel()
        await queue.send_many(numbered(3))
        await blocked()
        rest = [key for key in range(4) if key != gives_up]
        assert [tasks[key] for key in rest] == numbered(3)


async def test_a_lingering_task_that_is_cancelled_takes_nothing(disk, mock_clock):
    async with opened(disk) as queue, trio.open_nursery() as nursery:
        await queue.send_many(numbered(3))
        tasks = Tasks(nursery)
        await tasks.start("lingers", queue.receive_many, 10, linger=5)
        await tasks.start("lingers, too", use_block, queue, max_messages=10, linger=5)
        tasks.scopes["lingers"].cancel()
        tasks.scopes["lingers, too"].cancel()
        await blocked()
        assert queue.statistics().tasks_waiting_receive == 0
        assert drain(queue) == numbered(3)


async def test_a_message_that_is_handed_over_arrives_though_the_scope_is_cancelled_then(disk):
    async with opened(disk) as queue, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("receive", queue.receive)
        await tasks.start("many", queue.receive_many, 5)
        queue.send_nowait(b"one")
        await queue.send_many([b"two", b"three"])
        tasks.scopes["receive"].cancel()
        tasks.scopes["many"].cancel()
        await blocked()
        assert tasks["receive"] == b"one"
        assert tasks["many"] == [b"two", b"three"]


async def test_a_message_that_comes_after_the_cancel_stays(disk):
    async with opened(disk) as queue, trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        await tasks.start("receive", queue.receive)
        tasks.scopes["receive"].cancel()
        queue.send_nowait(b"x")
        await blocked()
        assert tasks["receive"] == "cancelled"
        assert drain(queue) == [b"x"]


async def test_a_block_that_was_handed_over_ends_in_order_though_it_is_cancelled_at_once(disk):
    async with opened(disk) as queue, trio.open_nursery() as nursery:

        async def work():
            async with queue.receiving(5):
                await trio.lowlevel.checkpoint()
                raise AssertionError("not cancelled")

        tasks = Tasks(nursery)
        await tasks.start("block", work)
        queue.send_nowait(b"x")
        tasks.scopes["block"].cancel()
        await blocked()
        assert tasks["block"] == "cancelled"
        assert drain(queue) == [b"x"]


# --- cancelled while waiting for room, or for a sync ----------------------------------------------


@pytest.mark.parametrize("bound", ["unsynced", "bytes"])
async def test_a_sender_that_stops_waiting_for_space_is_not_in(bound):
    disk = PatientDisk()
    options = {"max_unsynced": 8192} if bound == "unsynced" else {"max_bytes": 65536}
    async with opened(disk, **options) as queue, trio.open_nursery() as nursery:
        disk.hold()
        sent = 0
        while True:
            try:
                queue.send_nowait(b"x" * 1020)
                sent += 1
            except trio.WouldBlock:
                break
        tasks = Tasks(nursery)
        await tasks.start("one", queue.send, b"y" * 1020)
        await tasks.start("many", queue.send_many, [b"z" * 1020] * 3)
        await tasks.start("synced", lambda: queue.send(b"s" * 1020, durability="synced"))
        assert not tasks.ended
        for scope in tasks.scopes.values():
            scope.cancel()
        await blocked()
        assert {result for _, result in tasks.ended} == {"cancelled"}
        assert queue.statistics().tasks_waiting_send == 0
        disk.let_go()
        await queue.sync()
        assert drain(queue) == [b"x" * 1020] * sent


@pytest.mark.parametrize("call", ["send synced", "sync", "clear"])
async def test_waiting_for_a_sync_is_seen_through(call):
    disk = PatientDisk()
    async with opened(disk) as queue, trio.open_nursery() as nursery:
        await queue.send(b"old")
        tasks = Tasks(nursery)
        disk.hold()
        await tasks.start("call", CALLS[call], queue)
        tasks.scopes["call"].cancel()
        await blocked()
        assert not tasks.ended
        disk.let_go()
        await until(lambda: "call" in tasks)
        assert tasks["call"] is None  # it was done, although its caller was cancelled
        rest = {"send synced": [b"old", b"new"], "sync": [b"old"], "clear": []}[call]
        assert left_in(disk.inner.crash()) == rest


# --- a storm ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint_slice", SLICES)
@pytest.mark.parametrize("seed", range(4))
async def test_in_a_storm_of_cancellations_every_acknowledged_message_is_received_once(
    seed, checkpoint_slice
):
    # Five producers, five consumers, rolling files, little space, and a task that cancels at random.
    disk = crash_disk()
    rng = random.Random(seed)
    acknowledged: list[bytes] = []
    received: list[bytes] = []
    scopes: list[trio.CancelScope] = []
    cancelled = 0
    options = {"segment_size": 700, "max_unsynced": 900, "sync_every": 40}
    options["checkpoint_slice"] = checkpoint_slice

    async with opened(disk, **options) as queue:

        async def under_threat(call, *args, **words):
            nonlocal cancelled
            with trio.CancelScope() as scope:
                scopes.append(scope)
                result = await call(*args, **words)
            scopes.remove(scope)
            if scope.cancelled_caught:
                cancelled += 1
                return None
            return result or True

        async def produce(who: int) -> None:
            number = 0
            while number < 150 or cancelled <= 30:  # a storm, however quick the machine
                number += 1
                body = b"%d %d " % (who, number) + b"x" * rng.randrange(60)
                match rng.randrange(4):
                    case 0:
                        batch = [body + b" %d" % part for part in range(rng.randrange(1, 6))]
                        if await under_threat(queue.send_many, batch):
                            acknowledged.extend(batch)
                    case 1:
                        if await under_threat(queue.send, body, durability="synced"):
                            acknowledged.append(body)
                    case _:
                        if await under_threat(queue.send, body):
                            acknowledged.append(body)

        async def work() -> Sequence[bytes]:
            async with queue.receiving(rng.randrange(1, 9)) as bodies:
                if rng.random() < 0.5:
                    await trio.lowlevel.checkpoint()
                return bodies

        async def consume() -> None:
            while True:
                match rng.randrange(4):
                    case 0:
                        received.extend(await under_threat(queue.receive_many, rng.randrange(1, 9)) or [])
                    case 1:
                        received.extend(await under_threat(work) or [])
                    case 2:
                        await under_threat(queue.peek)
                    case 3:
                        if body := await under_threat(queue.receive):
                            received.append(body)

        async def threaten() -> None:
            while True:
                await trio.lowlevel.checkpoint()
                if scopes and rng.random() < 0.3:
                    rng.choice(scopes).cancel()

        async with trio.open_nursery() as consumers:
            for _ in range(5):
                consumers.start_soon(consume)
            consumers.start_soon(threaten)
            async with trio.open_nursery() as producers:
                for who in range(5):
                    producers.start_soon(produce, who)
            consumers.cancel_scope.cancel()
        received += drain(queue)
    assert sorted(received) == sorted(acknowledged)
    assert len(set(acknowledged)) == len(acknowledged)
    assert cancelled > 30
    assert left_in(disk) == []


# --- interrupted ----------------------------------------------------------------------------------


def run_interrupted(main) -> None:
    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_in_the_block_leaves_it_as_it_is_and_everything_sent_is_in_the_files():
    disk = crash_disk()

    async def main() -> None:
        async with opened(disk) as queue:
            await queue.send_many(numbered(10))
            interrupt()

    run_interrupted(main)
    assert left_in(disk.crash()) == numbered(10)


@pytest.mark.parametrize("call", ["receive", "receive_many", "peek", "receiving", "receive_many, lingering"])
def test_an_interrupt_while_waiting_takes_nothing(call):
    disk = crash_disk()

    async def main() -> None:
        async with opened(disk) as queue:
            try:
                async with trio.open_nursery() as nursery:

                    @trio.lowlevel.enable_ki_protection
                    async def interrupt_later() -> None:
                        await blocked()
                        interrupt()

                    nursery.start_soon(interrupt_later)
                    await CALLS[call](queue)
            except* KeyboardInterrupt:
                pass
            await queue.send(b"x")
            assert queue.receive_nowait() == b"x"
            await queue.send(b"y")
            raise KeyboardInterrupt

    run_interrupted(main)
    assert left_in(disk) == [b"y"]


class InterruptingDisk(FaultFS[CrashFS]):
    """Sends an interrupt while it syncs."""

    is_armed = False

    def sync_files(self, handles: Sequence[int]) -> None:
        if self.is_armed:
            self.is_armed = False
            interrupt()  # from a thread: the main one hears of it
        super().sync_files(handles)


def test_an_interrupt_during_the_last_sync_comes_after_it():
    disk = InterruptingDisk(crash_disk())

    async def main() -> None:
        async with opened(disk) as queue:
            await queue.send_many(numbered(10))
            disk.is_armed = True

    run_interrupted(main)
    assert left_in(disk.inner.crash()) == numbered(10)
    with diskq.Queue("/q", "events", fs=disk) as queue:  # the lock is free again
        assert queue.depth == 10


def test_an_interrupt_during_a_sync_does_not_break_the_queue():
    disk = InterruptingDisk(crash_disk())

    async def main() -> None:
        async with opened(disk) as queue:
            disk.is_armed = True
            try:
                await queue.send(b"x", durability="synced")
                await trio.sleep(5)
            except KeyboardInterrupt:
                await queue.send(b"y", durability="synced")
                raise

    run_interrupted(main)
    assert left_in(disk.inner.crash()) == [b"x", b"y"]


@pytest.mark.parametrize("seed", range(30))
def test_an_interrupt_at_any_moment_leaves_the_queue_whole(seed):
    disk = crash_disk()
    rng = random.Random(seed)
    sent: list[bytes] = []
    received: list[bytes] = []

    async def main() -> None:
        interrupts_in = rng.randrange(1, 400)

        class Alarm(trio.abc.Instrument):
            def before_task_step(self, task: trio.lowlevel.Task) -> None:
                nonlocal interrupts_in
                interrupts_in -= 1
                if not interrupts_in:
                    interrupt()

        trio.lowlevel.add_instrument(Alarm())
        async with opened(disk, checkpoint_slice=0, segment_size=100) as queue:
            for body in numbered(10_000):
                sent.append(body)
                await queue.send(body)
                if queue.depth and rng.random() < 0.4:
                    received.append(await queue.receive())
                if queue.depth and rng.random() < 0.2:
                    async with queue.receiving(3) as bodies:
                        pass
                    received.extend(bodies)

    run_interrupted(main)
    rest = left_in(disk.crash())
    got = received + rest
    assert got == sent[: len(got)]
    assert len(got) >= len(sent) - 1  # the last one was not acknowledged
    with diskq.Queue("/q", "events", fs=disk) as queue:  # the lock is free again
        assert queue.depth == len(rest)


async def test_an_error_of_a_full_disk_is_not_taken_for_a_cancellation():
    disk = fault_disk()
    async with opened(disk) as queue:
        await queue.send(b"x")
        disk.capacity(0)
        with trio.CancelScope() as scope, pytest.raises(diskq.DiskFullError):
            await queue.send(b"y" * 5000)
        assert not scope.cancelled_caught
