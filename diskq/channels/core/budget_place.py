# A loop's place in the line of the budget that its engine shares, and the loop that has one. Law: whoever
# waits there is heard of in his loop's own thread, wherever room came from; and nobody keeps a place that he
# has no use for.

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

import trio

from diskq.channels.core.commit_loop import Engine
from diskq.channels.core.sender_line import AdmittingLoop, Sending
from diskq.channels.core.waiting_line import Line
from diskq.storage.budget import BudgetShare
from diskq.storage.status_file import DiskBound

__all__ = ["BUDGET_OBSTACLES", "BudgetPlace", "BudgetedLoop", "shared_bound"]

E = TypeVar("E", bound=Engine)

BUDGET_OBSTACLES = frozenset({"over_budget", "others"})
"""The obstacles for which a sender waits in the budget's line: it has no room, or others came first."""


def shared_bound(share: BudgetShare | None) -> DiskBound:
    """The bound of the budget in which that is a share, for who looks from elsewhere."""
    return DiskBound() if share is None else DiskBound(*share.totals(), is_shared=True)


class BudgetPlace:
    """One for each loop; with no budget it does nothing."""

    def __init__(self, share: BudgetShare | None, on_news: Callable[[], None]) -> None:
        """`on_news` is called in this Trio run when room came, or when others want some."""
        self._share = share
        self.is_wanted = False
        """Was it the budget that refused last?"""
        self._is_taken = False
        if share is not None:
            token = trio.lowlevel.current_trio_token()

            def notify() -> None:
                with contextlib.suppress(trio.RunFinishedError):  # then it is closed, or is being closed
                    token.run_sync_soon(on_news, idempotent=True)

            share.notify = notify

    def arrival(self) -> int:
        """When somebody comes, among all who share the budget."""
        return self._share.arrival() if self._share is not None else 0

    @property
    def is_contended(self) -> bool:
        """Do others want room?"""
        return self._share is not None and self._share.is_contended

    def stand_for(self, senders: Line[Sending], *, is_closing: bool) -> None:
        """Stand where the first of them belongs, if it is the budget that he waits for; otherwise leave."""
        if self._share is None:
            return
        if senders and self.is_wanted and not is_closing:
            self._is_taken = True
            self._share.wait(senders.first.arrival)
        else:
            self.leave()

    def leave(self) -> None:
        """Nobody of this loop waits for the budget."""
        if self._share is not None and self._is_taken:
            self._is_taken = False
            self._share.leave()


class BudgetedLoop(AdmittingLoop[E, Sending]):
    """A loop whose engine may share a budget with others.

    A subclass makes its `_place` before it calls `__init__`, with `_hear_of_budget`; sets `_place.is_wanted`
    where it looks for an obstacle; and calls `_place.stand_for` in `_narrow_gates`.
    """

    _place: BudgetPlace

    @abstractmethod
    def _relieve(self) -> None:
        """Give up what others want of the budget, if there is a way."""

    def _arrival(self) -> int:
        return self._place.arrival()

    def _hear_of_budget(self) -> None:
        """Room came for who waits for it, or others want some."""
        if self._failure is None and not self.is_closing:
            self._relieve()
            self._after()

    def _break(self, failure: BaseException) -> None:
        super()._break(failure)
        self._place.leave()
