# One thread at a time. Law: a call that comes while another thread is inside raises BusyError, before
# anything is changed; so what was acknowledged is there, whoever calls.
#
# Every call of an engine that changes something takes its turn: the hottest ones by hand, all others
# through `alone`. The compiled doors ask for the turn themselves. What only looks, statistics for one, and
# what is documented for any thread takes none. Nor do the steps that a channel drives an engine with
# (`obstacle`, `accept`, `note`, ...) where each message takes them: a channel is Trio's thread's alone.

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from diskq._native.core.thread_guard import ThreadGuard

__all__ = ["TakesTurns", "alone"]


class TakesTurns(Protocol):
    """What one thread at a time may be inside of."""

    @property
    def turn(self) -> ThreadGuard: ...


S = TypeVar("S", bound=TakesTurns)
P = ParamSpec("P")
R = TypeVar("R")


def alone(call: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Have the turn while the method runs, and let the same thread in again. Else it raises BusyError."""

    @wraps(call)
    def in_turn(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.turn:
            return call(self, *args, **kwargs)

    return in_turn
