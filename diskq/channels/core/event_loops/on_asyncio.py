# asyncio's side of the seam. Law: as seam.py. A task hears of a cancellation when it runs again, and may be
# woken with a result in between: then that is returned, and the task cancelled again at its next pause, if
# who cancelled it (`asyncio.timeout`) has not taken it back. No task of diskq's own is in `all_tasks()`: a
# program that cancels those at its end still closes its stores.

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import threading
import types
from asyncio import CancelledError, Future, Handle, current_task
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable
from functools import partial
from typing import Any, Self, TypeVar

import outcome

__all__ = ["AsyncioLoop"]

T = TypeVar("T")

_Steps = Generator[Any, Any, Any]
_Call = Callable[..., object] | None


class AsyncioLoop:
    """One asyncio event loop, of the standard library or any other."""

    cancelled = CancelledError
    sleep_for = staticmethod(asyncio.sleep)
    event = staticmethod(asyncio.Event)
    lock = staticmethod(asyncio.Lock)
    has_runnable_tasks = staticmethod(lambda: True)  # as far as asyncio says
    cancellation_test = staticmethod(lambda: bool)  # False, and quick: who runs was told
    compiled_test = staticmethod(lambda: None)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.local: dict[str, Any] = {}
        self.clock = loop.time
        self.loop = loop
        self.current_task: Callable[[], Any] = current_task
        if sys.version_info < (3, 12):  # where asyncio's is Python
            self.current_task = partial(asyncio.tasks._current_tasks.get, loop)  # type: ignore[attr-defined]
        self.new_future: Callable[[], Future[Any]] = partial(Future, loop=loop)
        self.sleep: Awaitable[Any] = _Sleep(self)
        self.asleep: dict[Any, Future[Any]] = {}
        self.woken_late: dict[Any, outcome.Outcome[Any] | None] = {}  # they had been cancelled by then
        self.to_cancel: dict[Any, tuple[Any, ...]] = {}  # their number, and the last one's words
        self._asked: set[Callable[..., object]] = set()

    @classmethod
    def running(cls) -> AsyncioLoop:
        loop = asyncio.get_running_loop()
        if not hasattr(loop, "_diskq"):
            loop._diskq = cls(loop)  # type: ignore[attr-defined]  # it goes with the loop
        return loop._diskq  # type: ignore[attr-defined,no-any-return]

    def wait(self, leave: Callable[[Any], object], /) -> Awaitable[Any]:
        return _Sleep(self, leave)

    def sleep_and(self, on_wake: Callable[[], object], /) -> Awaitable[Any]:
        return _Sleep(self, None, on_wake)

    def wake(self, task: Any, result: outcome.Outcome[Any] | None = None, /) -> None:
        future = self.asleep.pop(task)
        if future.done():
            self.woken_late[task] = result
        else:
            future.set_result(result)

    def wake_all(self, tasks: Iterable[Any], /) -> None:
        for task in tasks:
            self.wake(task)

    def cancel_later(self, task: Any, cancelled: CancelledError) -> None:
        if task not in self.to_cancel:
            self.loop.call_soon(self._cancel_again, task)
        self.to_cancel[task] = task.cancelling(), *cancelled.args

    def _cancel_again(self, task: Any) -> None:
        count, *why = self.to_cancel.pop(task)
        if 0 < count <= task.cancelling() and not _hears_already(task):  # else it was taken back
            task.uncancel()
            task.cancel(*why)  # who cancelled it may know its cancellation by its words

    # --- points -----------------------------------------------------------------------------------

    @staticmethod
    @types.coroutine
    def checkpoint() -> _Steps:
        yield

    @types.coroutine
    def checkpoint_if_cancelled(self) -> _Steps:
        if self.to_cancel and current_task() in self.to_cancel:
            yield

    @types.coroutine
    def cancel_shielded_checkpoint(self) -> _Steps:
        try:
            yield
        except CancelledError as cancelled:
            self.cancel_later(current_task(), cancelled)

    # --- time -------------------------------------------------------------------------------------

    def sleep_until(self, at: float, /) -> Awaitable[None]:
        return asyncio.sleep(max(0.0, at - self.clock()))

    # --- what runs beside -------------------------------------------------------------------------

    def call_soon(self, act: Callable[..., object], /, *args: Any, idempotent: bool = False) -> None:
        if idempotent:
            if act in self._asked:
                return
            self._asked.add(act)
            act, args = self._call_asked, (act,)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(act, *args)

    def _call_asked(self, act: Callable[[], object]) -> None:
        self._asked.discard(act)
        act()

    def spawn(
        self, call: Callable[..., Coroutine[Any, Any, Any]], /, *args: Any, name: str
    ) -> asyncio.Task[Any]:
        task = self.loop.create_task(call(*args), name=name)
        asyncio.tasks._unregister_task(task)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        return task

    def on_readable(
        self, descriptor: int, act: Callable[[], object], on_end: Callable[[], object], *, name: str
    ) -> types.SimpleNamespace:
        self.loop.add_reader(descriptor, act)
        return types.SimpleNamespace(cancel=lambda: (self.loop.remove_reader(descriptor), on_end()))

    def at_end(self, act: Callable[[], object], *, name: str) -> types.SimpleNamespace:
        async def wait() -> AsyncGenerator[None, None]:
            try:
                yield
            finally:
                act()

        waiting = wait()  # the one thing that a loop closes at its end is its asynchronous generators
        _step(waiting.__anext__())
        return types.SimpleNamespace(cancel=lambda: _step(waiting.aclose()))

    async def wait_readable(self, descriptor: int, /) -> None:
        event = asyncio.Event()
        self.loop.add_reader(descriptor, event.set)
        try:
            await event.wait()
        finally:
            if not self.loop.is_closed():
                self.loop.remove_reader(descriptor)

    async def run_in_thread(self, call: Callable[..., T], /, *args: Any) -> T:
        await self.checkpoint_if_cancelled()
        task = current_task()

        def work() -> None:
            self.call_soon(self.wake, task, outcome.capture(call, *args))

        threading.Thread(target=work, name="diskq files").start()
        result: T = await self.sleep
        return result

    # --- blocks -----------------------------------------------------------------------------------

    def scope(self, *, shield: bool = False) -> _Scope:
        return _Scope(self, math.inf, shield)

    def move_on_after(self, seconds: float, *, shield: bool = False) -> _Scope:
        return _Scope(self, self.clock() + seconds, shield)

    async def shielded(self, call: Callable[..., Coroutine[Any, Any, T]], /, *args: Any) -> T:
        caller = current_task()
        task = self.loop.create_task(call(*args))
        task.add_done_callback(lambda _: self.wake(caller))
        await self.sleep
        return task.result()

    def open_nursery(self) -> _Nursery:
        return _Nursery(self)

    def start(
        self, nursery: _Nursery, call: Callable[..., Coroutine[Any, Any, Any]], /, *args: Any, name: str
    ) -> None:
        nursery.add(self.spawn(call, *args, name=name), is_own=True)

    def is_inside(self, task: Any, /) -> bool:
        return current_task() is task


def _step(steps: Awaitable[None]) -> None:
    """Run what does not pause."""
    with contextlib.suppress(StopIteration):
        steps.__await__().send(None)


def _hears_already(task: Any) -> bool:
    """True if the task has ended, or hears of a cancellation when it runs again: its words are to stay."""
    waits_for = task._fut_waiter
    return task.done() or task._must_cancel or (waits_for is not None and waits_for.cancelled())


class _Sleep:
    """A sleep until `wake`, each time it is awaited. Without a `leave` it goes on after a cancellation."""

    __slots__ = ("_event_loop", "_leave", "_on_cancel", "_on_wake")

    def __init__(
        self, event_loop: AsyncioLoop, leave: _Call = None, on_wake: _Call = None, on_cancel: _Call = None
    ) -> None:
        self._event_loop = event_loop
        self._leave, self._on_wake, self._on_cancel = leave, on_wake, on_cancel

    def __await__(self) -> _Steps:
        event_loop = self._event_loop
        task = event_loop.current_task()
        cancelled: CancelledError | None = None
        while True:
            future = event_loop.asleep[task] = event_loop.new_future()
            future._asyncio_future_blocking = True
            try:
                yield future
                woken = future.result()
                break
            except CancelledError as error:
                cancelled = error
                if event_loop.asleep.get(task) is not future:
                    woken = event_loop.woken_late.pop(task) if future.cancelled() else future.result()
                    break
                if self._leave is not None:
                    del event_loop.asleep[task]
                    self._leave(None)
                    raise
                if self._on_cancel is not None:
                    self._on_cancel()
            except BaseException:  # it is thrown away, with its loop
                if event_loop.asleep.pop(task, None) is not None and self._leave is not None:
                    self._leave(None)
                raise
        if cancelled is not None:
            event_loop.cancel_later(task, cancelled)
        if self._on_wake is not None:
            self._on_wake()
        return None if woken is None else woken.unwrap()


class _Scope:
    """A block that can be cancelled, as `asyncio.timeout` cancels one."""

    def __init__(self, event_loop: AsyncioLoop, deadline: float, shield: bool) -> None:
        self.cancelled_caught = False
        self.shield = shield  # of a nursery that is cancelled from outside: not asyncio's way with its tasks
        self._event_loop = event_loop
        self._deadline = deadline
        self._task: Any = None
        self._cancellations = 0  # that the task had heard of before the block
        self._is_cancelled = self._has_told = False
        self._timer: Handle | None = None
        self._timer_at = math.inf
        self._telling: Handle | None = None

    @property
    def deadline(self) -> float:
        return self._deadline

    @deadline.setter
    def deadline(self, at: float) -> None:
        self._deadline = at
        if self._task is not None and at < self._timer_at:
            self._set_timer()

    def __enter__(self) -> Self:
        self._task = current_task()
        self._cancellations = self._task.cancelling() - (self._task in self._event_loop.to_cancel)
        self._set_timer()
        if self._is_cancelled:
            self._tell()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: types.TracebackType | None
    ) -> bool:
        for handle in (self._timer, self._telling):
            if handle is not None:
                handle.cancel()
        task, self._task = self._task, None
        if self._has_told and task.uncancel() <= self._cancellations and isinstance(value, CancelledError):
            self.cancelled_caught = True
        return self.cancelled_caught

    def cancel(self) -> None:
        if not self._is_cancelled:
            self._is_cancelled = True
            if self._task is not None:
                self._tell()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._deadline
        if self._deadline < math.inf:
            self._timer = self._event_loop.loop.call_at(self._deadline, self._on_time)

    def _on_time(self) -> None:
        if self._event_loop.clock() < self._deadline:  # it was put off
            self._set_timer()
        else:
            self.cancel()

    def _tell(self) -> None:
        if self._task is current_task():
            self._telling = self._event_loop.loop.call_soon(self._tell)  # when it pauses
        elif not _hears_already(self._task):
            self._has_told = True
            self._task.cancel()


class _Nursery:
    """Tasks that have ended when its block is left. A failure cancels the others."""

    def __init__(self, event_loop: AsyncioLoop) -> None:
        self._event_loop = event_loop
        self._tasks: dict[asyncio.Task[Any], bool] = {}  # True: it is diskq's own
        self._failures: list[BaseException] = []
        self._waiting: Any = None  # the task that leaves the block

    @property
    def cancel_scope(self) -> Self:
        return self

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _cancel_callers(self) -> None:
        for task in [task for task, is_own in self._tasks.items() if not is_own]:
            task.cancel()

    def start_soon(
        self, call: Callable[..., Coroutine[Any, Any, Any]], /, *args: Any, name: object = None
    ) -> None:
        self.add(self._event_loop.loop.create_task(call(*args), name=None if name is None else str(name)))

    def add(self, task: asyncio.Task[Any], *, is_own: bool = False) -> None:
        self._tasks[task] = is_own
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failures.append(failure)
            self.cancel()
        if not self._tasks and self._waiting is not None:
            self._event_loop.wake(self._waiting)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, value: BaseException | None, trace: object) -> None:
        if value is not None:
            self.cancel()
        if self._tasks:
            self._waiting = current_task()
            await _Sleep(self._event_loop, None, None, self._cancel_callers)
        if self._failures:
            if value is not None and not isinstance(value, CancelledError):
                self._failures.insert(0, value)
            raise BaseExceptionGroup("tasks have failed", self._failures)
