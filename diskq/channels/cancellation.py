# Is the running task cancelled? Trio's own question, without Trio's coroutine around it.
#
# `trio.lowlevel.checkpoint_if_cancelled` is a cancellation point that costs a quarter of a
# microsecond when nothing is cancelled, most of it for being a coroutine; a message costs little
# more than that here. So the question is asked first, of the attribute that Trio's function asks.
# It is not public: where a Trio does not have it, every call takes the public way.

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import trio

__all__ = ["cancellation_test"]

_is_cancelled: Callable[[trio.lowlevel.Task], bool] = attrgetter("_cancel_status.effectively_cancelled")


def cancellation_test() -> Callable[[trio.lowlevel.Task], bool]:
    """A test of a task: False means that `checkpoint_if_cancelled` would do nothing. Call it in a task."""
    try:
        _is_cancelled(trio.lowlevel.current_task())
    except AttributeError:
        return lambda _: True
    return _is_cancelled
