# A loop's place in the waiting line of the shared disk budget of its engine. Law: a waiting loop is notified
# in its own thread, wherever the space was freed; and a loop leaves the line as soon as it does not need the
# place.

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from diskq.channels.core.event_loops.seam import running_event_loop
from diskq.channels.core.waiting_line import Line
from diskq.storage.budget import BudgetShare
from diskq.storage.status_file import DiskBound

__all__ = ["BudgetPlace", "shared_bound"]

# For these a sender waits in the budget's line: the budget is full, or others came first.
_OBSTACLES = frozenset({"over_budget", "others"})


def shared_bound(share: BudgetShare | None) -> DiskBound:
    """Return the bound of the budget that `share` is a part of, for the status file."""
    return DiskBound() if share is None else DiskBound(*share.totals(), is_shared=True)


class BudgetPlace:
    """A place in the budget's line, one for each loop."""

    __slots__ = ("_is_taken", "_is_wanted", "_share")

    def __init__(self, share: BudgetShare, on_news: Callable[[], None]) -> None:
        """`on_news` is called in this run when space was freed, or when other loops want some."""
        self._share = share
        self._is_wanted = False  # the last refusal came from the budget
        self._is_taken = False
        # If the run has ended, the loop is closed.
        share.notify = partial(running_event_loop().call_soon, on_news, idempotent=True)

    def note(self, obstacle: str | None) -> None:
        """Note what keeps the first sender waiting: `stand_for` goes by it. None: it need not wait."""
        self._is_wanted = obstacle in _OBSTACLES

    def arrival(self) -> int:
        """Return the next arrival number among all loops that share the budget."""
        return self._share.arrival()

    @property
    def is_contended(self) -> bool:
        """True if other loops wait for space in the budget."""
        return self._share.is_contended

    def stand_for(self, senders: Line[Any], *, is_closing: bool) -> None:
        """Take the place of the first of `senders` if it waits for the budget; otherwise leave the line."""
        if senders and self._is_wanted and not is_closing:
            self._is_taken = True
            self._share.wait(senders.first.arrival)
        else:
            self.leave()

    def leave(self) -> None:
        """Leave the budget's line: no sender of this loop waits for it."""
        if self._is_taken:
            self._is_taken = False
            self._share.leave()
