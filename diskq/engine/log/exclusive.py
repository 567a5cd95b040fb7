# One thread at a time. Law: a call that comes while another thread is inside waits before anything is read or
# changed; so what was acknowledged is stored, from whichever thread it was called.
#
# So what a call looks at before it holds the guard may be changed when it does: it checks there again.
#
# Every call of an engine that changes something enters the thread guard: the hottest ones by hand, all
# others through `exclusive`; the compiled fast paths check it themselves. Calls that only look (statistics),
# and those documented for any thread, do not. Nor do the steps with which a channel drives an engine
# (`obstacle`, `accept`, `note`, ...), which run once a message: a channel belongs to Trio's thread alone.

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from diskq._native.core.thread_guard import ThreadGuard

__all__ = ["Exclusive", "exclusive"]


class Exclusive(Protocol):
    """An object that one thread at a time may be inside of."""

    @property
    def guard(self) -> ThreadGuard: ...


S = TypeVar("S", bound=Exclusive)
P = ParamSpec("P")
R = TypeVar("R")


def exclusive(call: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Hold the thread guard while the method runs; the same thread may enter again, others wait."""

    @wraps(call)
    def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.guard:
            return call(self, *args, **kwargs)

    return guarded
