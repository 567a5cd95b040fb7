# Sleeping without Trio's function around it, beside that function.

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import outcome
import pytest
import trio
from trio.lowlevel import Abort, current_task, reschedule, wait_task_rescheduled
from trio.testing import wait_all_tasks_blocked

from diskq.channels.core import sleeping
from diskq.channels.core.sleeping import SLEEP, SleepAsTrioDoes


class _Iterated:
    """`SLEEP` as an interpreter awaits it that does not know its slot."""

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = SLEEP.__await__()
        woken = yield next(steps)
        try:
            steps.send(woken)
        except StopIteration as end:
            return end.value


sleeps = pytest.mark.parametrize(
    "sleep", [SLEEP, SleepAsTrioDoes(), _Iterated()], ids=["compiled", "as Trio does", "iterated"]
)


async def _awaited(sleep: Awaitable[Any]) -> Any:
    return await sleep


async def woken_by(sleep: Awaitable[Any], wake: Callable[[trio.lowlevel.Task], None]) -> Any:
    """What a task that sleeps gets when it is woken."""
    got: list[outcome.Outcome[Any]] = []
    asleep: list[trio.lowlevel.Task] = []

    async def sleeper() -> None:
        asleep.append(current_task())
        got.append(await outcome.acapture(_awaited, sleep))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper)
        await wait_all_tasks_blocked()
        wake(asleep[0])
    return got[0].unwrap()


@sleeps
async def test_it_returns_the_result_that_it_is_woken_with(sleep: Awaitable[Any]) -> None:
    assert await woken_by(sleep, lambda task: reschedule(task, outcome.Value(7))) == 7
    assert await woken_by(sleep, reschedule) is None


@sleeps
async def test_it_raises_the_error_that_it_is_woken_with(sleep: Awaitable[Any]) -> None:
    failure = OSError("in the way")
    with pytest.raises(OSError, match="in the way") as caught:
        await woken_by(sleep, lambda task: reschedule(task, outcome.Error(failure)))
    assert caught.value is failure


async def test_many_are_woken_each_time() -> None:
    asleep: list[trio.lowlevel.Task] = []
    passed = []

    async def sleeper(number: int) -> None:
        for _ in range(3):
            asleep.append(current_task())
            assert await SLEEP is None
            passed.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(sleeper, number)
        for turn in range(3):
            await wait_all_tasks_blocked()
            assert len(passed) == 5 * turn
            tasks, asleep[:] = asleep[:], []
            sleeping.wake_tasks(tasks)
    assert sorted(passed) == sorted([*range(5)] * 3)


@sleeps
async def test_cancelling_does_not_end_it(sleep: Awaitable[Any]) -> None:
    asleep: list[trio.lowlevel.Task] = []
    events = []

    async def sleeper() -> None:
        asleep.append(current_task())
        await sleep
        events.append("woken")
        await trio.lowlevel.checkpoint()
        events.append("not cancelled")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await wait_all_tasks_blocked()
        assert not events
        reschedule(asleep[0])
    assert events == ["woken"]


def test_this_version_of_trio_has_the_message_that_is_expected() -> None:
    assert sleeping.message_to_run_loop() is not None
    assert not isinstance(SLEEP, SleepAsTrioDoes)


async def _with_a_message_that_asks_for_something_else(_: Any) -> None:
    await wait_task_rescheduled(lambda _: Abort.SUCCEEDED)


async def _without_a_message(_: Any) -> None: ...


@pytest.mark.parametrize(
    "wait", [_with_a_message_that_asks_for_something_else, _without_a_message, lambda _: None]
)
def test_another_way_of_trio_is_noticed(wait: Callable[[Any], Any]) -> None:
    assert sleeping.message_to_run_loop(wait) is None


async def test_a_task_that_sleeps_shows_where_it_sleeps() -> None:
    asleep: list[trio.lowlevel.Task] = []

    async def sleeper() -> None:
        asleep.append(current_task())
        await SLEEP

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper)
        await wait_all_tasks_blocked()
        names = [frame.f_code.co_name for frame, _ in asleep[0].iter_await_frames()]
        sleeping.wake_tasks(asleep)
    assert names == ["sleeper"]


def test_a_sleep_that_is_given_up_ends() -> None:
    async def sleeper() -> None:
        try:
            await SLEEP
        finally:
            ended.append(True)

    ended: list[bool] = []
    coroutine = sleeper()
    coroutine.send(None)
    coroutine.close()
    assert ended == [True]


@pytest.mark.parametrize("sleep", [SLEEP, _Iterated()])
async def test_a_sleep_keeps_no_reference(sleep: Awaitable[Any]) -> None:
    result = object()
    held = (SLEEP, sleeping._MESSAGE, sleeping._WOKEN, result)
    before = [sys.getrefcount(each) for each in held]
    for _ in range(100):
        await woken_by(sleep, lambda task: sleeping.wake_tasks([task]))
        await woken_by(sleep, lambda task: reschedule(task, outcome.Value(result)))
    after = [sys.getrefcount(each) for each in held]
    assert all(now - then < 50 for then, now in zip(before, after, strict=True))
