# Trio's side of the seam: names for what Trio has. Nothing here is a layer on a message's way.

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
from trio import lowlevel

from diskq.channels.core.cancellation import cancellation_test, running_task
from diskq.channels.core.sleeping import SLEEP, sleep_and, wake_tasks

__all__ = ["TrioLoop"]

T = TypeVar("T")


class TrioLoop:
    """One Trio run."""

    cancelled = trio.Cancelled
    sleep = SLEEP
    current_task = staticmethod(lowlevel.current_task)
    wait = staticmethod(lowlevel.wait_task_rescheduled)
    sleep_and = staticmethod(sleep_and)
    wake = staticmethod(lowlevel.reschedule)
    wake_all = staticmethod(wake_tasks)
    cancellation_test = staticmethod(cancellation_test)
    compiled_test = staticmethod(running_task)
    checkpoint = staticmethod(lowlevel.checkpoint)
    checkpoint_if_cancelled = staticmethod(lowlevel.checkpoint_if_cancelled)
    cancel_shielded_checkpoint = staticmethod(lowlevel.cancel_shielded_checkpoint)
    sleep_for = staticmethod(trio.sleep)
    sleep_until = staticmethod(trio.sleep_until)
    wait_readable = staticmethod(lowlevel.wait_readable)
    spawn = staticmethod(lowlevel.spawn_system_task)
    run_in_thread = staticmethod(trio.to_thread.run_sync)
    scope = staticmethod(trio.CancelScope)
    move_on_after = staticmethod(trio.move_on_after)
    open_nursery = staticmethod(trio.open_nursery)
    event = staticmethod(trio.Event)
    lock = staticmethod(trio.StrictFIFOLock)

    def __init__(self) -> None:
        self.local: dict[str, Any] = {}
        self.clock = lowlevel.current_clock().current_time
        self._token = lowlevel.current_trio_token()

    @classmethod
    def running(cls) -> TrioLoop:
        """Return the loop of the running task. Raises RuntimeError outside a run."""
        found = _of_run.get()
        if found is None:
            found = cls()
            _of_run.set(found)
        return found

    @staticmethod
    def has_runnable_tasks() -> bool:
        return lowlevel.current_statistics().tasks_runnable > 0

    def call_soon(self, act: Callable[..., object], *args: Any, idempotent: bool = False) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(act, *args, idempotent=idempotent)

    @staticmethod
    def on_readable(
        descriptor: int, act: Callable[[], object], on_end: Callable[[], object], *, name: str
    ) -> trio.CancelScope:
        async def listen() -> None:
            while True:
                await lowlevel.wait_readable(descriptor)
                act()

        return _beside(listen, on_end, name)

    @staticmethod
    def at_end(act: Callable[[], object], *, name: str) -> trio.CancelScope:
        return _beside(trio.sleep_forever, act, name)

    @staticmethod
    async def shielded(call: Callable[..., Awaitable[T]], *args: Any) -> T:
        with trio.CancelScope(shield=True) as scope:
            result = await call(*args)
        assert not scope.cancelled_caught
        return result

    @staticmethod
    def start(nursery: trio.Nursery, call: Callable[..., Awaitable[Any]], *args: Any, name: str) -> None:
        nursery.start_soon(call, *args, name=name)

    @staticmethod
    def is_inside(task: lowlevel.Task) -> bool:
        running: lowlevel.Task | None = lowlevel.current_task()
        while running is not None:
            if running is task:
                return True
            nursery = running.parent_nursery
            running = None if nursery is None else nursery.parent_task
        return False


def _beside(
    call: Callable[[], Awaitable[object]], on_end: Callable[[], object], name: str
) -> trio.CancelScope:
    """Call it in a task of the run's, until this is cancelled or the run ends, and then `on_end`."""
    scope = trio.CancelScope()

    async def run() -> None:
        try:
            with scope:
                await call()
        finally:
            on_end()

    lowlevel.spawn_system_task(run, name=name)
    return scope


_of_run: lowlevel.RunVar[TrioLoop | None] = lowlevel.RunVar("diskq event loop", None)
