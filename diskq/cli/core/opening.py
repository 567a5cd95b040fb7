# Opening a store that another process may have open.

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from typing import TypeVar

import trio

from diskq.errors import LockedError

__all__ = ["LOOK_AGAIN", "opened", "opened_engine", "patient"]

LOOK_AGAIN = 0.2
"""Seconds between attempts: there is no event when another process closes a store."""

T = TypeVar("T")


@asynccontextmanager
async def opened(make: Callable[[], AbstractAsyncContextManager[T]], wait: float) -> AsyncIterator[T]:
    """Enter what `make` returns, as soon as it is not locked. Raises LockedError after `wait` seconds."""
    deadline = trio.current_time() + wait
    async with AsyncExitStack() as stack:
        while True:
            try:
                found = await stack.enter_async_context(make())
                break
            except LockedError:
                if trio.current_time() >= deadline:
                    raise
            await trio.sleep(LOOK_AGAIN)
        yield found


@asynccontextmanager
async def opened_engine(make: Callable[[], AbstractContextManager[T]], wait: float) -> AsyncIterator[T]:
    """As `opened`, where `make` opens an engine, which is no async context manager."""

    @asynccontextmanager
    async def entered() -> AsyncIterator[T]:
        with make() as engine:
            yield engine

    async with opened(entered, wait) as engine:
        yield engine


def patient(act: Callable[[], T], wait: float) -> T:
    """Return what `act` returns, as soon as it is not locked out. Raises LockedError after `wait` seconds.

    Not for what runs in Trio, where no interrupt would end it.
    """
    deadline = time.monotonic() + wait
    while True:
        try:
            return act()
        except LockedError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(LOOK_AGAIN)
