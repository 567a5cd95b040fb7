# Having what another process may have.

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

import trio

from diskq.errors import LockedError

__all__ = ["LOOK_AGAIN", "opened", "patient"]

LOOK_AGAIN = 0.2
"""Seconds between looks at what another process does: there is no event."""

T = TypeVar("T")


@asynccontextmanager
async def opened(make: Callable[[], AbstractAsyncContextManager[T]], wait: float) -> AsyncIterator[T]:
    """What `make` gives, as soon as it can be had. Raises LockedError after `wait` seconds."""
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


def patient(act: Callable[[], T], wait: float) -> T:
    """What `act` returns, as soon as it can be done. Raises LockedError after `wait` seconds."""
    deadline = time.monotonic() + wait
    while True:
        try:
            return act()
        except LockedError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(LOOK_AGAIN)
