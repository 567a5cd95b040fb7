# Having what another process may have.

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

import trio

from diskq.errors import LockedError

__all__ = ["LOOK_AGAIN", "opened"]

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
