# Tasks that wait in order of arrival, each for something that is handed to it.
#
# Trio's ParkingLot wakes tasks with nothing in their hands; here whoever wakes a task has already
# taken, on its behalf, what it waits for, so that nobody who arrives later can snatch it away.

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import outcome
import trio

__all__ = ["NOTHING", "Line"]

Tag = TypeVar("Tag")

NOTHING: outcome.Outcome[Any] = outcome.Value(None)


class Line(OrderedDict[trio.lowlevel.Task, Tag]):
    """A line of waiting tasks. Each has a tag that says what it waits for."""

    async def wait(
        self,
        tag: Tag,
        *,
        on_arrival: Callable[[], None] | None = None,
        on_leave: Callable[[], None] | None = None,
    ) -> Any:
        """Stand in line until woken; returns what the task was woken with.

        `on_arrival` is called with the task in line, before it sleeps. `Cancelled` means: left the
        line empty-handed; `on_leave` is then called.
        """
        task = trio.lowlevel.current_task()
        self[task] = tag
        if on_arrival is not None:
            on_arrival()

        def leave(_: object) -> trio.lowlevel.Abort:
            del self[task]
            if on_leave is not None:
                on_leave()
            return trio.lowlevel.Abort.SUCCEEDED

        return await trio.lowlevel.wait_task_rescheduled(leave)

    async def wait_to_the_end(self, tag: Tag) -> Any:
        """As `wait`, not cancellable: what the task waits for cannot be taken back."""
        self[trio.lowlevel.current_task()] = tag
        return await trio.lowlevel.wait_task_rescheduled(_stay)

    @property
    def first(self) -> Tag:
        """The tag of the task that is next."""
        return next(iter(self.values()))

    def wake(self, task: trio.lowlevel.Task, result: outcome.Outcome[Any]) -> None:
        del self[task]
        trio.lowlevel.reschedule(task, result)

    def wake_first(self, result: outcome.Outcome[Any] = NOTHING) -> None:
        task, _ = self.popitem(last=False)
        if result is NOTHING:
            trio.lowlevel.reschedule(task)  # an outcome serves once: Trio has its own for this
        else:
            trio.lowlevel.reschedule(task, result)

    def wake_until(self, most: Tag) -> None:
        """Wake those in front whose tags are no more than `most`."""
        while self and next(iter(self.values())) <= most:  # type: ignore[operator]
            trio.lowlevel.reschedule(self.popitem(last=False)[0])

    def dismiss(self, tasks: Iterable[trio.lowlevel.Task], why: str) -> None:
        """Wake those of the tasks that are in line: their handle was closed."""
        for task in tasks:
            if task in self:
                self.wake(task, outcome.Error(trio.ClosedResourceError(why)))

    def wake_all(self, make: Callable[[], outcome.Outcome[Any]]) -> None:
        """Each with a result of its own: two tasks must not raise one exception object."""
        while self:
            self.wake_first(make())


def _stay(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
