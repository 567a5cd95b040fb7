# The seam between channels and the event loop that runs them: what a channel asks of it. Law of each side:
#
#   what one task hands to another that sleeps is returned there, whatever is cancelled meanwhile;
#   what cannot be undone any more is waited for, and the cancellation comes at the caller's next pause;
#   what has not begun is withdrawn.
#
# A store asks once which loop runs it, when it is opened, and keeps the answer.

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import outcome
import sniffio
import trio

from diskq._native.core.cancellation import CancellationTest
from diskq.channels.core.event_loops.on_trio import TrioLoop

__all__ = ["LEFT", "Event", "EventLoop", "FairLock", "Left", "Nursery", "Scope", "Task", "running_event_loop"]

T = TypeVar("T")

Task: TypeAlias = Hashable
"""A task of either loop."""

Left: TypeAlias = trio.lowlevel.Abort
LEFT = Left.SUCCEEDED
"""What the `leave` of `EventLoop.wait` returns."""


class Event(Protocol):
    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self) -> Awaitable[object]: ...


class FairLock(Protocol):
    """Given to the tasks that wait for it in order of arrival."""

    def locked(self) -> bool: ...

    def __aenter__(self) -> Awaitable[object]: ...

    def __aexit__(self, *_: Any) -> Awaitable[None]: ...


class Scope(Protocol):
    """A block that can be cancelled."""

    deadline: float
    """When it is cancelled, on the loop's clock."""
    shield: bool
    """True: what cancels the nursery in which the task was started does not cancel it."""

    @property
    def cancelled_caught(self) -> bool:
        """True if the block was left by its own cancellation."""

    def cancel(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool: ...


class Nursery(Protocol):
    """Tasks that have ended when its block is left. If one raises, the others are cancelled."""

    @property
    def cancel_scope(self) -> Any: ...

    def start_soon(
        self, call: Callable[..., Coroutine[Any, Any, Any]], /, *args: Any, name: object = None
    ) -> object: ...


class EventLoop(Protocol):
    """One run of an event loop."""

    local: dict[str, Any]
    """What the stores of this run share."""

    @property
    def cancelled(self) -> type[BaseException]:
        """The exception that cancels a task."""

    clock: Callable[[], float]
    """Returns the loop's time in seconds, in any thread."""
    sleep: Awaitable[Any]
    """Await this to sleep until `wake`, not cancellable; returns, or raises, the result."""

    # --- tasks that sleep -------------------------------------------------------------------------

    def current_task(self) -> Any: ...

    def wait(self, leave: Callable[[Any], Left], /) -> Awaitable[Any]:
        """Sleep until `wake`. A cancellation before that calls `leave`, which returns `LEFT`."""

    def sleep_and(self, on_wake: Callable[[], object], /) -> Awaitable[Any]:
        """Do as `sleep`, and call `on_wake`, which does not raise, when the task runs again."""

    def wake(self, task: Any, result: outcome.Outcome[Any] = ..., /) -> None:
        """Make a sleeping task run again, with that result, by default None. Once a sleep."""

    def wake_all(self, tasks: Iterable[Any], /) -> None:
        """Wake tasks that await `sleep`."""

    # --- points -----------------------------------------------------------------------------------

    def cancellation_test(self) -> Callable[[], bool]:
        """Return a test of the running task: False means that `checkpoint_if_cancelled` would do nothing."""

    def compiled_test(self) -> CancellationTest | None:
        """Return the same test, for compiled calls that need the task as well; None if there is none."""

    def checkpoint(self) -> Awaitable[None]:
        """Let others run. Raises if the task is cancelled."""

    def checkpoint_if_cancelled(self) -> Awaitable[None]: ...

    def cancel_shielded_checkpoint(self) -> Awaitable[None]:
        """Let others run. Not cancellable."""

    # --- time -------------------------------------------------------------------------------------

    def sleep_for(self, seconds: float, /) -> Awaitable[None]: ...

    def sleep_until(self, at: float, /) -> Awaitable[None]: ...

    # --- what runs beside -------------------------------------------------------------------------

    def has_runnable_tasks(self) -> bool:
        """True if others may want to run now: the loop must not be kept."""

    def call_soon(self, act: Callable[..., object], /, *args: Any, idempotent: bool = False) -> None:
        """Call `act` in the loop's thread, from any thread; not at all if the run has ended.

        `idempotent`: once, however often it was asked for meanwhile.
        """

    def spawn(self, call: Callable[..., Coroutine[Any, Any, Any]], /, *args: Any, name: str) -> object:
        """Start a task of diskq's own, which never raises, for as long as the run lasts."""

    def on_readable(
        self, descriptor: int, act: Callable[[], object], on_end: Callable[[], object], *, name: str
    ) -> Any:
        """Call `act` while the descriptor is readable, until `cancel` of what this returns; then `on_end`."""

    def at_end(self, act: Callable[[], object], *, name: str) -> Any:
        """Call `act` when the run ends, or at `cancel` of what this returns."""

    def wait_readable(self, descriptor: int, /) -> Awaitable[None]: ...

    def run_in_thread(self, call: Callable[..., T], /, *args: Any) -> Awaitable[T]:
        """Call it in a thread. Once it has begun it is waited for, and its result returned.

        Raises RuntimeError if no thread can be started.
        """

    # --- blocks -----------------------------------------------------------------------------------

    def scope(self, *, shield: bool = False) -> Scope: ...

    def move_on_after(self, seconds: float, *, shield: bool = False) -> Scope: ...

    def shielded(self, call: Callable[..., Coroutine[Any, Any, T]], /, *args: Any) -> Awaitable[T]:
        """Await `call(*args)` to its end, whatever is cancelled meanwhile."""

    def open_nursery(self) -> AbstractAsyncContextManager[Any]: ...

    def start(
        self, nursery: Any, call: Callable[..., Coroutine[Any, Any, Any]], /, *args: Any, name: str
    ) -> object:
        """Start a task in a nursery that runs nothing but diskq's own code."""

    def event(self) -> Event: ...

    def lock(self) -> FairLock: ...

    def is_inside(self, task: Any, /) -> bool:
        """True if the running task is `task`, or a child of it as far as the loop knows children."""


def running_event_loop() -> EventLoop:
    """Return the event loop that runs the caller. Raises RuntimeError if there is none."""
    try:
        library = sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        # In a callback of asyncio's there is a loop without a task.
        if "asyncio" not in sys.modules or sys.modules["asyncio"]._get_running_loop() is None:
            raise RuntimeError(
                "must be called from async context: in a task of Trio's or asyncio's"
            ) from None
        library = "asyncio"
    if library == "trio":
        return TrioLoop.running()
    from diskq.channels.core.event_loops.on_asyncio import AsyncioLoop

    return AsyncioLoop.running()
