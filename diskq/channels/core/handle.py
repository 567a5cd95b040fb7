# A handle on a channel: what a program's tasks call. Many tasks may use one; many may be on one channel.
#
# Law: every call begins with a cancellation point, and with a schedule point where one is due. Then thread,
# handle and channel are checked, and only then is anything touched. Closing a handle wakes the tasks that
# wait through it, and nobody else. A storage failure that a call meets breaks the channel for all.
#
# `send` and `receive` begin with the same points, written out: a frame costs as much as the message.

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NoReturn, Protocol, Self, TypeVar

import trio
from trio.lowlevel import checkpoint, checkpoint_if_cancelled, current_task

from diskq.channels.core.cancellation import always, cancellation_test
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
    "checked_word",
]

MANY_BYTES = 16 * 1024 * 1024
"""What is received together is of so many bytes at most, if the caller names no other number."""
# A task that never needs to wait lets others run after so many seconds.
_SLICE = 100e-6

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Channel(Protocol):
    """What handles are on: the loop behind a writer, or the tail behind a reader."""

    @property
    def is_strict(self) -> bool:
        """Every call passes a full checkpoint: the options' `checkpoint_slice` is 0."""

    @property
    def own_thread(self) -> OwnThread: ...

    async def schedule_point(self) -> None:
        """Let others run if the running task's slice is over."""

    def check(self) -> None:
        """Raises what keeps the channel from being used, and BusyError in another thread than its own."""

    def dismiss(self, tasks: Iterable[trio.lowlevel.Task], why: str) -> None:
        """Wake those of the tasks that wait, with a ClosedResourceError that says why."""

    def broke(self, failure: StorageFailedError) -> NoReturn:
        """A caller met a failure that concerns everybody."""


class Calls:
    """What calls on a channel begin with, and what they make of a failure."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        # In strict mode every call passes a full checkpoint; then one cancellation point is enough.
        self._first_point = checkpoint if channel.is_strict else checkpoint_if_cancelled
        self._needs_point: Callable[[], bool] = always if channel.is_strict else cancellation_test()

    async def _begin(self) -> None:
        """What every call begins with that is not written for speed. Raises what keeps it from going on."""
        if self._needs_point():
            await self._first_point()
        self._channel.own_thread.check()
        await self._channel.schedule_point()
        self._check()

    def _check(self) -> None:
        self._channel.check()

    def _doing(self, act: Callable[..., T], *args: Any) -> T:
        """Do what does not wait."""
        try:
            return act(*args)
        except StorageFailedError as failure:
            self._channel.broke(failure)


class Handle(Calls, Leaving, Closing):
    """One handle on a channel, to be closed on its own."""

    _told = "this handle was closed"
    """What is said of it when it is closed."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        self._is_closed = False
        self._tasks: set[trio.lowlevel.Task] = set()  # those that may be waiting, on this handle

    def _check(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError(self._told)
        self._channel.check()

    async def _waiting(self, call: Awaitable[T]) -> T:
        """Await a call that may wait, so that closing this handle ends it. Check the handle before."""
        task = current_task()
        self._tasks.add(task)
        try:
            return await call
        except StorageFailedError as failure:
            self._channel.broke(failure)
        finally:
            self._tasks.discard(task)

    def close(self) -> None:
        """Close this handle, and wake who waits on it with ClosedResourceError. Idempotent."""
        if not self._is_closed:
            self._channel.own_thread.check()
            self._is_closed = True
            self._shut()
            self._channel.dismiss(self._tasks, self._told)
            self._let_go()

    # --- for the subclass -------------------------------------------------------------------------

    def _shut(self) -> None:
        """The handle is closed: its fast path refuses everything from here on."""

    def _let_go(self) -> None:
        """Nobody waits on the handle any more: let go of what it alone had."""


class SendingHandle(Handle):
    """A handle that messages are sent through."""

    def __init__(self, loop: AdmittingLoop[Any, Any]) -> None:
        super().__init__(loop)
        self._loop: AdmittingLoop[Any, Any] = loop
        self._word = loop.options.durability
        loop.open_handles += 1

    def _checked_word(self, durability: Durability | None) -> Durability:
        """How durable a message is to be. Raises what keeps it from being sent at all."""
        self._check()
        return checked_word(durability, self._word)

    def _write_failed(self, failure: OSError) -> NoReturn:
        """The fast path could not write: raises what that means."""
        self._doing(self._loop.engine.log.append_failed, failure)
        raise failure

    def clone(self) -> Self:
        """Another handle on the same channel, to be closed on its own."""
        self._check()
        return self._another()

    def _another(self) -> Self:
        return type(self)(self._loop)

    def _shut(self) -> None:
        self._loop.open_handles -= 1


class Iterated(trio.abc.ReceiveChannel[T_co]):
    """`async for` without a coroutine of its own: one layer between the user and Trio is enough."""

    def __aiter__(self) -> Any:
        return self

    def __anext__(self) -> Any:
        return self.receive()


class Slice:
    """The points of a channel that has no gate which knows when a slice is over."""

    def __init__(self) -> None:
        self._end = 0.0

    async def point(self) -> None:
        """A cancellation point, and a schedule point once per slice."""
        if time.perf_counter() < self._end:
            await checkpoint_if_cancelled()
        else:
            await checkpoint()
            self._end = time.perf_counter() + _SLICE


def checked_word(durability: Durability | None, default: Durability) -> Durability:
    """`durability`, or else the default. Raises ValueError for what is no word of durability."""
    word = durability or default
    if word not in DURABILITY_WORDS:
        raise ValueError(f"durability is one of {', '.join(DURABILITY_WORDS)}, got {word!r}")
    return word
