# Sleeping until another task wakes this one, not cancellable, with less around it than Trio's function has.
#
# `trio.lowlevel.wait_task_rescheduled` makes a coroutine, a generator, and a message to Trio's run loop, and
# takes the result out of an outcome of its own: more than half of what it costs to wake a task. A sleep that
# cannot be cancelled always has the same message, and nearly always the same result. The message comes from
# Trio's own function; if a Trio version passes something else to its run loop, every sleep is that
# function's. What that saves: docs/decisions/callers-do-the-work.md.

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any

import outcome
import trio
from trio.lowlevel import Abort, Task, reschedule, wait_task_rescheduled

from diskq._native.core.sleep import Sleep

__all__ = [
    "SLEEP",
    "SleepAsTrioDoes",
    "message_to_run_loop",
    "return_at_once",
    "sleep_and",
    "wake_tasks",
]

_WOKEN: outcome.Outcome[Any] = outcome.Value(None)  # it is never unwrapped, so it serves any number of times


def _stay(_: object) -> trio.lowlevel.Abort:
    return Abort.FAILED


def message_to_run_loop(wait: Callable[[Any], Any] = wait_task_rescheduled) -> object:
    """Return what `wait` passes to Trio's run loop to sleep until the end; None if it is not as expected."""
    try:
        waiting = wait(_stay)
        message = waiting.send(None)
        waiting.close()
    except (AttributeError, TypeError, RuntimeError, StopIteration):
        return None
    return message if getattr(message, "abort_func", None) is _stay else None


_MESSAGE = message_to_run_loop()


async def _sleep_as_trio_does() -> Any:
    return await wait_task_rescheduled(_stay)


class SleepAsTrioDoes:
    """`SLEEP`, by Trio's function."""

    def __await__(self) -> Generator[Any, Any, Any]:
        return _sleep_as_trio_does().__await__()


SLEEP: Awaitable[Any] = SleepAsTrioDoes() if _MESSAGE is None else Sleep(_MESSAGE, _WOKEN)
"""Await this to sleep until `wake_tasks` or `reschedule`; the latter's result is returned, or raised."""


@types.coroutine
def _sleep_and(on_wake: Callable[[], object]) -> Generator[object, outcome.Outcome[Any], Any]:
    woken = yield _MESSAGE
    on_wake()
    return None if woken is _WOKEN else woken.unwrap()


async def _sleep_as_trio_does_and(on_wake: Callable[[], object]) -> Any:
    try:
        return await wait_task_rescheduled(_stay)
    finally:
        on_wake()


sleep_and = _sleep_as_trio_does_and if _MESSAGE is None else _sleep_and
"""Do as `SLEEP`, and call `on_wake`, which does not raise, when the task runs again."""


@types.coroutine
def return_at_once() -> Generator[object, None, None]:
    """Return without a pause, for a caller that is to await something."""
    return
    yield  # it is a generator


def wake_tasks(tasks: Iterable[Task]) -> None:
    """Wake tasks that await `SLEEP`, which returns None to each of them."""
    if _MESSAGE is None:
        for task in tasks:
            reschedule(task)
    else:
        for task in tasks:
            reschedule(task, _WOKEN)
