# A cheap test of whether the running task is cancelled, without Trio's coroutine around it.
#
# `trio.lowlevel.checkpoint_if_cancelled` is a cancellation point that costs a quarter of a
# microsecond when nothing is cancelled, most of it for being a coroutine; a message costs little
# more than that here. So the test first reads the attributes that Trio's function reads.
# They are not public: if a Trio version does not have them, every call takes the public way.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from diskq._native.core.cancellation import CancellationTest

__all__ = ["always", "cancellation_test", "running_task"]


def cancellation_test() -> Callable[[], bool]:
    """Return a test of the running task: False means that `checkpoint_if_cancelled` would do nothing.

    Call this in a task.
    """
    return running_task() or always


def running_task() -> CancellationTest | None:
    """Return the same test, for compiled calls that need the task as well.

    None if this version of Trio has no such attributes.

    Call this in a task.
    """
    try:
        from trio._core._run import GLOBAL_RUN_CONTEXT

        if _latest.get("context") is not GLOBAL_RUN_CONTEXT:
            _latest.update(context=GLOBAL_RUN_CONTEXT, test=CancellationTest(GLOBAL_RUN_CONTEXT))
        is_cancelled: CancellationTest = _latest["test"]
        return is_cancelled if is_cancelled() in (True, False) else None
    except (AttributeError, ImportError, RuntimeError):
        trio.lowlevel.current_task()  # outside a run it is this that raises
        return None


# All handles have one test, also those of other threads: Trio's context differs by thread.
_latest: dict[str, Any] = {}


def always() -> bool:
    return True
