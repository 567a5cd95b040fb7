# A loop's place in the waiting line of the shared disk budget of its engine, and the loop that has one.
# Law: a waiting loop is notified in its own thread, wherever the space was freed; and a loop leaves the line
# as soon as it does not need the place.

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

import trio

from diskq.channels.core.commit_loop import Engine
from diskq.channels.core.gathering import GatheringLoop
from diskq.channels.core.sender_line import Sending
from diskq.channels.core.waiting_line import Line
from diskq.storage.budget import BudgetShare
from diskq.storage.status_file import DiskBound

__all__ = ["BUDGET_OBSTACLES", "BudgetPlace", "BudgetedLoop", "shared_bound"]

E = TypeVar("E", bound=Engine)

BUDGET_OBSTACLES = frozenset({"over_budget", "others"})
"""The obstacles for which a sender waits in the budget's line: the budget is full, or others came first."""


def shared_bound(share: BudgetShare | None) -> DiskBound:
    """Return the bound of the budget that `share` is a part of, for the status file."""
    return DiskBound() if share is None else DiskBound(*share.totals(), is_shared=True)


class BudgetPlace:
    """A place in the budget's line, one for each loop. Without a budget it does nothing."""

    __slots__ = ("_is_taken", "_share", "is_wanted")

    def __init__(self, share: BudgetShare | None, on_news: Callable[[], None]) -> None:
        """`on_news` is called in this Trio run when space was freed, or when other loops want some."""
        self._share = share
        self.is_wanted = False
        """True if the last refusal came from the budget."""
        self._is_taken = False
        if share is not None:
            token = trio.lowlevel.current_trio_token()

            def notify() -> None:
                with contextlib.suppress(trio.RunFinishedError):  # then it is closed, or is being closed
                    token.run_sync_soon(on_news, idempotent=True)

            share.notify = notify

    def arrival(self) -> int:
        """Return the next arrival number among all loops that share the budget."""
        return self._share.arrival() if self._share is not None else 0

    @property
    def is_contended(self) -> bool:
        """True if other loops wait for space in the budget."""
        return self._share is not None and self._share.is_contended

    def stand_for(self, senders: Line[Sending], *, is_closing: bool) -> None:
        """Take the place of the first of `senders` if it waits for the budget; otherwise leave the line."""
        if self._share is None:
            return
        if senders and self.is_wanted and not is_closing:
            self._is_taken = True
            self._share.wait(senders.first.arrival)
        else:
            self.leave()

    def leave(self) -> None:
        """Leave the budget's line: no sender of this loop waits for it."""
        if self._share is not None and self._is_taken:
            self._is_taken = False
            self._share.leave()


class BudgetedLoop(GatheringLoop[E, Sending]):
    """A loop whose engine may share a budget with others.

    A subclass makes its `_place` with `_on_budget_change` before it calls `__init__`; sets `_place.is_wanted`
    when it looks for an obstacle; and calls `_place.stand_for` in `_narrow_gates`.
    """

    __slots__ = ("_place",)

    _place: BudgetPlace

    @abstractmethod
    def _relieve(self) -> None:
        """Give up space of the budget that other loops want, if possible."""

    def _arrival(self) -> int:
        return self._place.arrival()

    def _on_budget_change(self) -> None:
        """Serve the waiting senders after space was freed, or give space up if other loops want it."""
        if self._failure is None and not self.is_closing:
            self._relieve()
            self._after()

    def _break(self, failure: BaseException) -> None:
        super()._break(failure)
        self._place.leave()
