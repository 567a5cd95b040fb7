# A loop's place in the line of the budget that its engine shares. Law: whoever waits there is heard of in
# his loop's own thread, wherever room came from; and nobody keeps a place that he has no use for.

from __future__ import annotations

import contextlib
from collections.abc import Callable

import trio

from diskq.storage.budget import Share
from diskq.storage.statusnote import Bound

__all__ = ["BudgetPlace", "shared_bound"]


def shared_bound(share: Share | None) -> Bound:
    """The bound of the budget in which that is a share, for who looks from elsewhere."""
    return Bound() if share is None else Bound(*share.totals(), is_shared=True)


class BudgetPlace:
    """One for each loop; with no budget it does nothing."""

    def __init__(self, share: Share | None, on_news: Callable[[], None]) -> None:
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
    def is_pressed(self) -> bool:
        """Do others want room?"""
        return self._share is not None and self._share.is_pressed

    def take(self, arrived: int | None) -> None:
        """Stand where somebody who came then belongs, if it is the budget that he waits for. None: nobody."""
        if self._share is None:
            return
        if arrived is not None and self.is_wanted:
            self._is_taken = True
            self._share.wait(arrived)
        elif self._is_taken:
            self._is_taken = False
            self._share.leave()
