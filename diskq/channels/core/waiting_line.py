# Tasks that wait in order of arrival, each for a result.
#
# Parking lots wake tasks without a result. Here the waker takes what the task waits for on its
# behalf, before it wakes the task, so that a task that arrives later cannot take it first.

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import outcome
import trio

from diskq.channels.core.event_loops.seam import LEFT, Left, Task, running_event_loop

__all__ = ["NOTHING", "Line"]

Tag = TypeVar("Tag")

NOTHING: outcome.Outcome[Any] = outcome.Value(None)


class Line(OrderedDict[Task, Tag]):
    """A line of waiting tasks. Each has a tag that says what it waits for. Made in a task."""

    __slots__ = ("_event_loop",)

    def __init__(self) -> None:
        super().__init__()
        self._event_loop = running_event_loop()

    async def wait(
        self,
        tag: Tag,
        *,
        on_arrival: Callable[[], None] | None = None,
        on_leave: Callable[[], None] | None = None,
    ) -> Any:
        """Wait in line until woken; returns the result that the task was woken with.

        `on_arrival` is called when the task is in line, before it sleeps. `Cancelled` means: the task left
        the line without a result; `on_leave` is then called.
        """
        task = self._event_loop.current_task()
        self[task] = tag
        if on_arrival is not None:
            on_arrival()

        def leave(_: object) -> Left:
            del self[task]
            if on_leave is not None:
                on_leave()
            return LEFT

        return await self._event_loop.wait(leave)

    def wait_to_the_end(self, tag: Tag, on_wake: Callable[[], object]) -> Awaitable[Any]:
        """Put the task in line; it has to await what this returns at once, and sleeps until it is woken.

        Not cancellable: what it waits for cannot be undone. `on_wake`, which does not raise, is called when
        it runs again.
        """
        self[self._event_loop.current_task()] = tag
        return self._event_loop.sleep_and(on_wake)

    @property
    def first(self) -> Tag:
        """The tag of the first task in line."""
        return next(iter(self.values()))

    def wake(self, task: Task, result: outcome.Outcome[Any]) -> None:
        del self[task]
        self._event_loop.wake(task, result)

    def wake_first(self, result: outcome.Outcome[Any] = NOTHING) -> None:
        task, _ = self.popitem(last=False)
        if result is NOTHING:
            self._event_loop.wake(task)  # an outcome serves once: Trio has its own for this
        else:
            self._event_loop.wake(task, result)

    def dismiss(self, tasks: Iterable[Task], why: str) -> None:
        """Wake the tasks in line among `tasks`, whose handle was closed, with a ClosedResourceError."""
        for task in tasks:
            if task in self:
                self.wake(task, outcome.Error(trio.ClosedResourceError(why)))

    def wake_all(self, make: Callable[[], outcome.Outcome[Any]]) -> None:
        """Wake every task, each with a result of its own: two tasks must not raise one exception object."""
        while self:
            self.wake_first(make())
