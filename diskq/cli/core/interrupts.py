# Signals that end a command. Law: SIGTERM and SIGHUP are what Ctrl-C is: KeyboardInterrupt in the code that
# waits, which Trio delivers to the main task; so every verb ends in one way, with one exit code.
#
# Only there: in the middle of a write it would leave a store that cannot be closed any more, and between a
# write and its count a count that is too small. What runs long without waiting has checkpoints.

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

__all__ = ["ended_as_by_ctrl_c", "run_async", "was_interrupted"]

T = TypeVar("T")

_ENDING = [signal.SIGTERM, signal.SIGHUP]


@contextlib.contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """Turn the signals that end a process into KeyboardInterrupt. What is ignored (nohup) stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals in the main thread alone
        return
    with contextlib.ExitStack() as stack:
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            # The shell ignores it for a job in the background. Trio delivers interrupts only if it is not
            # ignored; so it is blocked, which keeps it away as well.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            stack.callback(signal.pthread_sigmask, signal.SIG_UNBLOCK, {signal.SIGINT})
            stack.callback(signal.signal, signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in _ENDING:
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, _interrupt)
                stack.callback(signal.signal, number, signal.SIG_DFL)
        yield


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Trio's handler, while Trio runs.
    handler = signal.getsignal(signal.SIGINT)
    if handler is None or isinstance(handler, int):
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


def run_async(act: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run an async function in Trio. KeyboardInterrupt comes only where its main task waits."""
    return trio.run(_protected, act, args)


@enable_ki_protection
async def _protected(act: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> T:
    try:
        return await act(*args)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        raise KeyboardInterrupt from group  # the main task waited for others


def was_interrupted(failure: BaseException | None) -> bool:
    """True if KeyboardInterrupt came first, and the failure on its way out.

    Such as in a verb that does not run in Trio: a store cannot be closed in the middle of a sync.
    """
    while failure is not None and not isinstance(failure, KeyboardInterrupt):
        failure = failure.__context__
    return failure is not None
