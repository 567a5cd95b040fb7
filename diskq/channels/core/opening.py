# Opening and closing a channel: an async context manager around a loop and its first handle.
#
# Law: the files are closed before the block is left, also if it is cancelled, and an exception of the block
# leaves it unchanged.

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Generic, NoReturn, Protocol, TypeVar

from trio.lowlevel import enable_ki_protection

from diskq.channels.core.event_loops.seam import EventLoop, Nursery, running_event_loop
from diskq.errors import LockedError
from diskq.storage.closing import Closing
from diskq.storage.fs import FileSystem, os_file_system
from diskq.storage.lock import checked_wait

__all__ = ["Opening", "OpeningEngine"]


# Seconds between two attempts at a lock that is waited for: they double.
_SOON = 0.002
_SELDOM = 0.05


class _Loop(Protocol):
    @property
    def title(self) -> str: ...

    @property
    def is_broken(self) -> bool: ...

    def begin(self) -> bool:
        """Begin to work. True: until `begin_to_close` it needs no task of its own for `run`."""

    async def run(self) -> None:
        """Run until `begin_to_close`, then complete the pending work. Never raises."""

    def begin_to_close(self) -> None: ...

    def check_end(self) -> None:
        """Raise what went wrong. Call it after `run`."""


class _OpenedHandle(Protocol):
    def close(self) -> None: ...


H = TypeVar("H", bound=_OpenedHandle)
E = TypeVar("E", bound=Closing)


class Opening(ABC, Generic[H]):
    """The async context manager. A subclass makes the loop and the handle in `_open`."""

    _wait = 0.0
    """Seconds for which the open is tried again while another process has the lock."""
    _runs_callers_code = False
    """True if the loop calls what the caller gave it."""

    @abstractmethod
    async def _open(self) -> tuple[_Loop | None, H]:
        """Return the loop and the first handle. The loop is None if there is nothing to run."""

    if not TYPE_CHECKING:  # a type checker finds that there is no such block by itself

        def __enter__(self) -> NoReturn:
            raise TypeError(
                f"{type(self).__name__} is for an event loop: write `async with`, in an async function; "
                "without one there are diskq.Queue, Stream, StreamReader, Journal, PriorityStore and Spool"
            )

        def __exit__(self, *error: object) -> None:
            """Never called."""

    @enable_ki_protection
    async def __aenter__(self) -> H:
        self._event_loop: EventLoop = running_event_loop()
        self._nursery_manager: AbstractAsyncContextManager[Nursery] | None = None
        self._is_running = False
        self._loop, self._handle = await self._open_or_wait()
        if self._loop is not None and not self._loop.begin():
            await self._run_loop()
        return self._handle

    async def _open_or_wait(self) -> tuple[_Loop | None, H]:
        """Open, again and again while another process has the lock. `Cancelled` means: nothing is open."""
        end, pause = self._event_loop.clock() + self._wait, _SOON
        while True:
            try:
                return await self._open()
            except LockedError:
                left = end - self._event_loop.clock()
                if left <= 0:
                    raise
            await self._event_loop.sleep_for(min(left, pause))
            pause = min(2 * pause, _SELDOM)

    async def _run_loop(self) -> None:
        assert self._loop is not None
        self._is_running = True
        await self._open_nursery()
        name = f"io_loop of {self._loop.title}"
        if self._runs_callers_code:
            self._nursery.start_soon(self._loop.run, name=name)
        else:
            self._event_loop.start(self._nursery, self._loop.run, name=name)

    async def _open_nursery(self) -> None:
        """Open the nursery of the block's tasks, which never raise, and end when the block does.

        So the nursery never has an exception of its own: an exception of the block leaves it unchanged, not
        wrapped in a group. Not a checkpoint.
        """
        if self._nursery_manager is None:
            self._nursery_manager = self._event_loop.open_nursery()
            self._nursery = await self._nursery_manager.__aenter__()

    @enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._handle.close()
        if self._loop is None:
            return None
        self._loop.begin_to_close()
        if not self._is_running:
            await self._run_loop()
        assert self._nursery_manager is not None
        try:
            # Waits for the loop to end, also if this task is cancelled meanwhile.
            await self._nursery_manager.__aexit__(None, None, None)
        except BaseExceptionGroup as interrupted:
            # A KeyboardInterrupt, kept until the files were closed: raised unwrapped as well.
            raise interrupted.exceptions[0] from None
        if value is None:
            # Otherwise the block ends with its own exception, which says more.
            self._loop.check_end()
        return None


class OpeningEngine(Opening[H], Generic[H, E]):
    """The async context manager of a channel on one engine.

    `engine` opens the engine, given `fs`, `clock` (the loop's) and `time_slice` (seconds).
    """

    def __init__(
        self, engine: Callable[..., E], time_slice: float, fs: FileSystem | None, wait: float
    ) -> None:
        self._wait = checked_wait(wait)
        self._open_engine = engine
        self._time_slice = time_slice
        self._fs = fs or os_file_system()

    @abstractmethod
    def _handle_on(self, engine: E) -> tuple[_Loop, H]:
        """Return the loop of the open engine, and the first handle on it."""

    async def _open(self) -> tuple[_Loop, H]:
        clock = self._event_loop.clock
        engine = await self._event_loop.run_in_thread(
            lambda: self._open_engine(fs=self._fs, clock=clock, time_slice=self._time_slice)
        )
        with contextlib.ExitStack() as opened:  # the engine is closed again if the next step fails
            opened.callback(engine.close)
            made = self._handle_on(engine)
            opened.pop_all()
        return made
