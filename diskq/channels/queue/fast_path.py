# The fast path of a handle on a disk queue: the compiled calls that it tries before it calls the loop.
#
# Law: each of them does all or nothing; False or None means that it did nothing. Which calls a handle has
# depends only on the options, and is decided here.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from diskq.channels.core.gathering import NOT_GATHERED
from diskq.engine.queue.steps import QueueSteps
from diskq.engine.queue.tail import Body

__all__ = ["CLOSED", "FastPath", "fast_path"]


def _refuse(*_: Any) -> bool:
    return False


def _take_nothing(*_: Any) -> None:
    return None


def _add_nothing(*_: Any) -> int:
    return NOT_GATHERED


@dataclass(frozen=True, slots=True, kw_only=True)
class FastPath:
    """The calls of one handle."""

    put: Callable[[Body], bool] = _refuse
    """Adds a message as durably as the options say; refuses when the running task's slice is over."""
    put_now: Callable[[Body], bool] = _refuse
    """The same for a caller that cannot yield: it ignores the slice."""
    put_all: Callable[[list[Any]], bool] = _refuse
    """As `put`, for several messages."""
    put_through: Callable[[Body], bool] = _refuse
    """Writes a message, whatever the options say, for a caller that then waits for a sync."""
    gather: Callable[[Body], int] = _add_nothing
    """Adds a message to those that will be written together, for a caller that then waits for their sync."""
    take: Callable[[], bytes | None] = _take_nothing
    take_now: Callable[[], bytes | None] = _take_nothing
    take_some: Callable[[int, int], list[bytes] | None] = _take_nothing
    passes_on: bool = False
    """True if a message that `put` refuses may be a simple case for `QueueLoop.send_simply`."""


CLOSED = FastPath()
"""Of a closed handle."""


def fast_path(engine: QueueSteps, gather: Callable[[Body], int]) -> FastPath:
    """Return the fast path of a handle on this queue; `gather` hands a message to the queue's loop."""
    if engine.has_tier:
        return _in_memory(engine)
    kinds = {"memory": _held, "written": _written, "synced": _synced}
    return replace(kinds[engine.options.durability](engine), gather=gather)


def _in_memory(engine: QueueSteps) -> FastPath:
    """Keep messages in memory while there is space: older ones are written before one that is synced."""
    tier, path = engine.tier, engine.tail.appender("memory")
    return FastPath(
        put=path.append,
        put_now=engine.tail.appender("memory", can_yield=False).append,
        put_all=path.append_all,
        take=tier.take,
        take_now=tier.take_untimed,
        take_some=tier.take_some,
        passes_on=True,
    )


def _held(engine: QueueSteps) -> FastPath:
    return replace(
        _synced(engine),
        put=engine.tail.appender("memory").append,
        put_now=engine.tail.appender("memory", can_yield=False).append,
    )


def _written(engine: QueueSteps) -> FastPath:
    path = engine.tail.appender("written")
    return replace(
        _synced(engine),
        put=path.append,
        put_now=engine.tail.appender("written", can_yield=False).append,
        put_all=path.append_all,
        passes_on=True,
    )


def _synced(engine: QueueSteps) -> FastPath:
    """Write messages to the files, and take them from there."""
    ahead = engine.ahead
    return FastPath(
        put_through=engine.tail.appender("synced").append,
        take=ahead.take,
        take_now=ahead.take_untimed,
        take_some=ahead.take_some,
    )
