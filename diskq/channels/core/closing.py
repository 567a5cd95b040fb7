# Closing files from a task. Law: they are closed, whatever the system refuses.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from diskq.channels.core.event_loops.seam import running_event_loop

__all__ = ["in_a_thread"]

T = TypeVar("T")


async def in_a_thread(act: Callable[..., T], *args: Any) -> T:
    """Run `act`, which closes files, in a worker thread; if none can be started, in the loop's own thread.

    The files must not stay open. Cancellable only before `act` begins.
    """
    has_begun = False

    def begin() -> T:
        nonlocal has_begun
        has_begun = True
        return act(*args)

    try:
        return await running_event_loop().run_in_thread(begin)
    except RuntimeError:
        if has_begun:
            raise
    return act(*args)
