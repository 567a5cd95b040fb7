# A handle on a channel: what a program's tasks call. Several tasks may use one handle; a channel may have
# several handles.
#
# Law: every call begins with a cancellation point, and with a schedule point when one is due. Then thread,
# handle and channel are checked, and only then is anything touched. Closing a handle wakes only the tasks
# that wait through it. A storage failure that a call meets breaks the channel for all handles.
#
# `send` and `receive` begin with the same points, written out: a frame costs as much as the message.

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NoReturn, Protocol, Self, TypeVar

import trio

from diskq.channels.core.cancellation import always
from diskq.channels.core.event_loops.seam import EventLoop, Task, running_event_loop
from diskq.channels.core.leaving import Leaving
from diskq.channels.core.own_thread import OwnThread
from diskq.channels.core.sender_line import AdmittingLoop
from diskq.errors import StorageFailedError
from diskq.options import DURABILITY_WORDS, Durability
from diskq.storage.closing import Closing

__all__ = [
    "MANY_BYTES",
    "Calls",
    "Channel",
    "Handle",
    "Iterated",
    "SendingHandle",
    "Slice",
    "chosen_durability",
]

MANY_BYTES = 16 * 1024 * 1024
"""The default for the most bytes of messages that are received together."""
# Seconds after which a task that never needs to wait lets others run.
_SLICE = 100e-6

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Channel(Protocol):
    """What a handle works on: the loop of a writer, or the tail of a reader."""

    @property
    def is_strict(self) -> bool:
        """True if every call passes a full checkpoint: the options' `checkpoint_slice` is 0."""

    @property
    def event_loop(self) -> EventLoop: ...

    @property
    def own_thread(self) -> OwnThread: ...

    async def schedule_point(self) -> None:
        """Let others run if the running task's slice is over."""

    def check(self) -> None:
        """Raise if the channel cannot be used; BusyError in any thread but its own."""

    def dismiss(self, tasks: Iterable[Task], why: str) -> None:
        """Wake the waiting ones of `tasks`, with a ClosedResourceError whose text is `why`."""

    def broke(self, failure: StorageFailedError) -> NoReturn:
        """Break the channel for all handles after a caller met a storage failure."""


class Calls:
    """The first steps of every call on a channel, and the handling of storage failures."""

    # Handles have slots: a call then looks at the handle alone, and not at a dict elsewhere in memory.
    __slots__ = ("_channel", "_first_point", "_needs_point", "_sleep")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        # In strict mode every call passes a full checkpoint; then one cancellation point is enough.
        event_loop = channel.event_loop
        self._first_point = event_loop.checkpoint if channel.is_strict else event_loop.checkpoint_if_cancelled
        self._needs_point: Callable[[], bool] = (
            always if channel.is_strict else event_loop.cancellation_test()
        )
        self._sleep = event_loop.sleep

    async def _begin(self) -> None:
        """Pass the points and checks of every call that is not written for speed. Raises if a check fails."""
        if self._needs_point():
            await self._first_point()
        self._channel.own_thread.check()
        await self._channel.schedule_point()
        self._check()

    def _check(self) -> None:
        self._channel.check()

    def _doing(self, act: Callable[..., T], *args: Any) -> T:
        """Call `act`, which does not wait; a storage failure breaks the channel."""
        try:
            return act(*args)
        except StorageFailedError as failure:
            self._channel.broke(failure)


class Handle(Calls, Leaving, Closing):
    """One handle on a channel, which is closed separately."""

    __slots__ = ("__weakref__", "_is_closed", "_tasks")

    _closed_text = "this handle was closed"
    """The error text for calls on a closed handle."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        self._is_closed = False
        self._tasks: set[Task] | None = None  # those that may be waiting, on this handle

    def _check(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError(self._closed_text)
        self._channel.check()

    async def _waiting(self, call: Awaitable[T]) -> T:
        """Await a call that may wait, so that closing this handle ends it. Check the handle first."""
        task = self._channel.event_loop.current_task()
        tasks = self._tasks
        if tasks is None:
            tasks = self._tasks = set()
        tasks.add(task)
        try:
            return await call
        except StorageFailedError as failure:
            self._channel.broke(failure)
        finally:
            tasks.discard(task)

    def close(self) -> None:
        """Close this handle, and wake the tasks that wait on it with ClosedResourceError. Idempotent."""
        if not self._is_closed:
            self._channel.own_thread.check()
            self._is_closed = True
            self._shut()
            self._channel.dismiss(self._tasks or (), self._closed_text)
            self._let_go()

    # --- for the subclass -------------------------------------------------------------------------

    def _shut(self) -> None:
        """Make the fast path refuse everything: the handle is closed."""

    def _let_go(self) -> None:
        """Release what only this handle used. No task waits on it any more."""


class SendingHandle(Handle):
    """A handle that messages are sent through."""

    __slots__ = ("_durability", "_loop")

    def __init__(self, loop: AdmittingLoop[Any, Any]) -> None:
        super().__init__(loop)
        self._loop: AdmittingLoop[Any, Any] = loop
        self._durability = loop.options.durability
        loop.open_handles += 1

    def __repr__(self) -> str:
        engine = self._loop.engine
        condition = "closed" if self._is_closed else engine.log.condition
        return f"<{type(self).__name__} {engine.name!r}: {engine.content}, {condition}>"

    def _chosen_durability(self, durability: Durability | None) -> Durability:
        """Return the durability of a message, by default the options'. Raises if nothing can be sent."""
        self._check()
        return chosen_durability(durability, self._durability)

    def _write_failed(self, failure: OSError) -> NoReturn:
        """Raise the error for a write of the fast path that failed."""
        self._doing(self._loop.engine.log.append_failed, failure)
        raise failure

    def clone(self) -> Self:
        """Return another handle on the same channel, which is closed separately."""
        self._check()
        return self._another()

    def _another(self) -> Self:
        return type(self)(self._loop)

    def _shut(self) -> None:
        self._loop.open_handles -= 1


class Iterated(trio.abc.ReceiveChannel[T_co]):
    """Adds `async for` without a coroutine of its own: one layer between the user and Trio is enough."""

    __slots__ = ()

    def __aiter__(self) -> Any:
        return self

    def __anext__(self) -> Any:
        return self.receive()


class Slice:
    """The schedule points of a channel without a gate that knows when a slice is over."""

    def __init__(self) -> None:
        self._end = 0.0
        self._event_loop: EventLoop | None = None  # that of the first call

    async def point(self) -> None:
        """Pass a cancellation point, and a schedule point once per slice."""
        if self._event_loop is None:
            self._event_loop = running_event_loop()
        if time.perf_counter() < self._end:
            await self._event_loop.checkpoint_if_cancelled()
        else:
            await self._event_loop.checkpoint()
            self._end = time.perf_counter() + _SLICE


def chosen_durability(durability: Durability | None, default: Durability) -> Durability:
    """Return `durability`, or `default` if it is None. Raises ValueError for an unknown durability."""
    level = durability or default
    if level not in DURABILITY_WORDS:
        raise ValueError(f"durability is one of {', '.join(DURABILITY_WORDS)}, got {level!r}")
    return level
