"""The task in which all loops of a run take their turns: when each gets one, and when it sleeps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import diskq
from diskq.channels.core.cadence import Cadence
from diskq.channels.core.loop_task import NO_TASK, LoopTask, SharedTask
from tests.channels.rig import DIRECTORY, blocked, crash_disk, fault_disk, opened, until


class TurnTaker:
    """A loop that only notes its turns."""

    def __init__(self) -> None:
        self.task: LoopTask = NO_TASK
        self.cadence = Cadence.SHARED
        self.due_at = self.listed_at = math.inf
        self.turns: list[float] = []
        self.times_awake = 0

    def stay_awake(self) -> None:
        self.times_awake += 1

    def take_turn(self) -> None:
        self.turns.append(trio.current_time())
        if self.due_at <= trio.current_time():
            self.task.wake_at(self, math.inf)

    def leave(self) -> None:
        self.task.leave(self)
        self.task = NO_TASK


@contextmanager
def joined(count: int) -> Iterator[list[TurnTaker]]:
    loops = [TurnTaker() for _ in range(count)]
    for loop in loops:
        loop.task = SharedTask.join(loop)
    try:
        yield loops
    finally:
        for loop in loops:
            if loop.task is not NO_TASK:
                loop.leave()


def tasks_of_loops() -> list[str]:
    root = trio.lowlevel.current_root_task()
    assert root is not None
    tasks = [task for nursery in root.child_nurseries for task in nursery.child_tasks]
    return [task.name for task in tasks if "io_loop" in task.name]


def next_deadline() -> float:
    return trio.lowlevel.current_statistics().seconds_to_next_deadline


async def test_all_loops_have_one_task_which_ends_with_the_last_of_them(autojump_clock):
    with joined(100) as loops:
        await blocked()
        assert len(tasks_of_loops()) == 1
        assert all(len(loop.turns) == 1 for loop in loops)
    await blocked()
    assert not tasks_of_loops()
    with joined(1) as (again,):
        await blocked()
        assert len(again.turns) == 1


async def test_a_loop_gets_a_turn_when_it_was_rung_and_no_other_does(autojump_clock):
    with joined(3) as (first, second, third):
        await blocked()
        second.task.ring(second)
        second.task.ring(second)
        await blocked()
        assert [len(loop.turns) for loop in (first, second, third)] == [1, 2, 1]


async def test_a_loop_stays_awake_only_while_no_other_has_a_turn(autojump_clock):
    loops = [TurnTaker() for _ in range(2)]
    for loop in loops:
        loop.task = SharedTask.join(loop)
    await blocked()
    assert [loop.times_awake for loop in loops] == [0, 0]
    loops[0].task.ring(loops[0])
    await blocked()
    assert [loop.times_awake for loop in loops] == [1, 0]
    for loop in loops:
        loop.task.ring(loop)
    await blocked()
    assert [loop.times_awake for loop in loops] == [1, 0]
    for loop in loops:
        loop.leave()


async def test_each_loop_is_woken_at_its_own_time_and_the_task_at_no_other(mock_clock):
    with joined(3) as loops:
        await blocked()
        for seconds, loop in zip((3.0, 1.0, 2.0), loops, strict=True):
            loop.task.wake_at(loop, trio.current_time() + seconds)
        assert next_deadline() == 1
        mock_clock.jump(1)
        await blocked()
        assert [len(loop.turns) for loop in loops] == [1, 2, 1]
        assert next_deadline() == 1
        mock_clock.jump(5)
        await blocked()
        assert [len(loop.turns) for loop in loops] == [2, 2, 2]
        assert next_deadline() == math.inf


async def test_a_time_that_is_put_off_gives_no_turn_and_one_that_is_taken_back_no_deadline(mock_clock):
    with joined(2) as (first, second):
        await blocked()
        first.task.wake_at(first, 1.0)
        second.task.wake_at(second, 2.0)
        first.task.wake_at(first, 5.0)
        mock_clock.jump(1)
        await blocked()
        assert len(first.turns) == 1
        second.task.wake_at(second, math.inf)
        mock_clock.jump(3)
        await blocked()
        assert len(second.turns) == 1
        assert next_deadline() == 1
        first.task.wake_at(first, math.inf)
        assert next_deadline() == math.inf


async def test_a_loop_that_lets_others_join_has_its_turn_after_the_woken_tasks(autojump_clock, nursery):
    with joined(1) as (loop,):
        await blocked()
        order: list[str] = []
        loop.take_turn = lambda: order.append("turn")  # type: ignore[method-assign]

        async def sender() -> None:
            await event.wait()
            order.append("sender")

        event = trio.Event()
        nursery.start_soon(sender)
        await blocked()
        event.set()
        loop.cadence = Cadence.JOINED
        loop.task.ring(loop)
        await blocked()
        assert order == ["sender", "turn"]
        assert loop.cadence is Cadence.SHARED


async def test_a_loop_that_has_left_gets_no_turn(mock_clock):
    with joined(2) as (stays, leaves):
        await blocked()
        leaves.task.ring(leaves)
        leaves.task.wake_at(leaves, 1.0)
        leaves.leave()
        assert next_deadline() == math.inf
        mock_clock.jump(2)
        await blocked()
        assert (len(stays.turns), len(leaves.turns)) == (1, 1)


steps = st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(1, 9))), max_size=30)


@given(steps=steps)
def test_whatever_times_are_set_each_loop_has_its_turn_at_the_last_one(
    steps: list[tuple[int, int | None]],
) -> None:
    async def main() -> None:
        with joined(4) as loops:
            await blocked()
            for number, seconds in steps:
                at = math.inf if seconds is None else trio.current_time() + seconds
                loops[number].task.wake_at(loops[number], at)
                clock.jump(0.5)
                await blocked()
                for loop in loops:
                    assert loop.due_at > trio.current_time(), "it had its turn"
            due = {id(loop): loop.due_at for loop in loops if loop.due_at < math.inf}
            assert (next_deadline() == math.inf) == (not due)
            clock.jump(10)
            await blocked()
            assert all(loop.turns[-1] >= due[id(loop)] for loop in loops if id(loop) in due)
            assert next_deadline() == math.inf

    clock = MockClock()
    trio.run(main, clock=clock)


# --- with queues --------------------------------------------------------------------------------------


async def test_a_queue_that_is_open_has_no_task_of_its_own():
    before = trio.lowlevel.current_statistics().tasks_living
    disk = crash_disk()
    async with opened(disk) as first, diskq.open_queue(DIRECTORY, "other", fs=disk) as second:
        await first.send(b"x")
        await second.send(b"y")
        await blocked()
        # One for all loops, and one that ends the threads with the run.
        assert trio.lowlevel.current_statistics().tasks_living == before + 2
    await until(lambda: trio.lowlevel.current_statistics().tasks_living == before)


async def test_a_queue_that_breaks_takes_no_turn_and_the_others_go_on(mock_clock):
    async def use_both() -> None:
        async with opened(disk) as queue, diskq.open_queue(DIRECTORY, "other", fs=disk) as other:
            await queue.send(b"x")
            disk.fail("sync_files")
            with pytest.raises(trio.BrokenResourceError):
                await queue.send(b"y", durability="synced")
            await other.send(b"z")
            await blocked()
            mock_clock.jump(10)
            await until(lambda: other.statistics().unsynced_bytes == 0)
            assert next_deadline() == math.inf
            has_gone_on.append(True)

    disk = fault_disk()
    has_gone_on: list[bool] = []
    with pytest.raises(trio.BrokenResourceError):
        await use_both()
    assert has_gone_on


def test_a_queue_is_closed_in_an_async_generator_that_the_end_of_the_run_closes(tmp_path):
    async def messages():
        async with diskq.open_queue(tmp_path, "q") as queue:
            while True:
                await queue.send(b"x")
                yield

    async def main() -> None:
        generator.append(messages())
        await anext(generator[0])

    generator: list[Any] = []
    trio.run(main)
    with diskq.Queue(tmp_path, "q") as queue:
        assert queue.get_many(9) == [b"x"]
        assert not queue.repairs
