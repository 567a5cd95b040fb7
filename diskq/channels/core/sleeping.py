# Sleeping until another task wakes this one, not cancellable, with less around it than Trio's function has.
#
# `trio.lowlevel.wait_task_rescheduled` makes a coroutine, a generator, and a message to Trio's run loop, and
# takes the result out of an outcome of its own: a third of what it costs to wake a task. A sleep that cannot
# be cancelled always has the same message, and nearly always the same result. The message comes from Trio's
# own function; if a Trio version passes something else to its run loop, every sleep is that function's.

from __future__ import annotations

import types
from collections.abc import Callable, Generator, Iterable
from typing import Any

import outcome
import trio
from trio.lowlevel import Abort, Task, reschedule, wait_task_rescheduled

__all__ = [
    "message_to_run_loop",
    "rescheduler",
    "return_at_once",
    "sleep",
    "sleep_and",
    "sleep_as_trio_does",
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


@types.coroutine
def _sleep() -> Generator[object, outcome.Outcome[Any], Any]:
    woken = yield _MESSAGE
    return None if woken is _WOKEN else woken.unwrap()


async def sleep_as_trio_does() -> Any:
    """Do as `sleep`, with Trio's function."""
    return await wait_task_rescheduled(_stay)


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
"""Do as `sleep`, and call `on_wake`, which does not raise, when the task runs again."""


@types.coroutine
def return_at_once() -> Generator[object, None, None]:
    """Return without a pause, for a caller that is to await something."""
    return
    yield  # it is a generator


sleep = sleep_as_trio_does if _MESSAGE is None else _sleep
"""Sleep until `wake_tasks` or `reschedule`; return, or raise, the result that is passed to the latter."""


def wake_tasks(tasks: Iterable[Task]) -> None:
    """Wake tasks that called `sleep`, which returns None to each of them."""
    if _MESSAGE is None:
        for task in tasks:
            reschedule(task)
    else:
        wake = rescheduler()
        for task in tasks:
            wake(task, _WOKEN)


def rescheduler() -> Callable[[Task, outcome.Outcome[Any]], object]:
    """Return what `reschedule` calls for each task; if this version of Trio has no such attribute, that."""
    try:
        from trio._core._run import GLOBAL_RUN_CONTEXT

        wake: Callable[[Task, outcome.Outcome[Any]], object] = GLOBAL_RUN_CONTEXT.runner.reschedule
    except (AttributeError, ImportError):
        return reschedule
    return wake
