# Closing files from a Trio task. Law: they are closed, whatever the system refuses.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import trio

__all__ = ["in_a_thread"]

T = TypeVar("T")


async def in_a_thread(act: Callable[..., T], *args: Any) -> T:
    """Run `act`, which closes files, in a worker thread; if none can be started, in Trio's own thread.

    The files must not stay open. Cancellable only before `act` begins.
    """
    has_begun = False

    def begin() -> T:
        nonlocal has_begun
        has_begun = True
        return act(*args)

    try:
        return await trio.to_thread.run_sync(begin)
    except RuntimeError:
        if has_begun:
            raise
    return act(*args)
