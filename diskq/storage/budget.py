# One disk budget for many. Law: what all members together may have on the disk is given out beforehand, in
# leases, and never twice; who waits is served as soon as what he waits for is free.
#
# A member writes within its lease without asking, so that a message costs nothing here: its engine's limit
# is what is left of the lease. It asks when that is used up, and gives back what it does not need whenever a
# barrier has removed something. Nobody reaches into another member: it is told (`notify`) that others want
# room, and sees to it in its own thread.
#
# Who waits is served in order of arrival, by one rule more: whoever would then have no more than a fair
# share (half of the room, divided by the number of members) goes before whoever would have more. So a giant
# that waits for what others hold does not stop those who need little, and they cannot starve it either: it is
# first among all who want more than their share, and gets what they give back.
#
# What a member frees by dropping for a message of its own stays its own until it is used again. Only who
# would have no more than a fair share gets of it; or a member that waits and holds much would take it all, a
# file at a time, from one that drops.

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from diskq.errors import DiskFullError
from diskq.options import OnFull

__all__ = ["BLOCK", "BudgetMember", "BudgetShare", "BudgetStatistics", "DiskBudget", "Refusal"]

Refusal = Literal["droppable", "others", "over_budget"]
"""Why a member does not get room now: it has files to drop first; or another member was asked to drop its
oldest; or all were asked to give back what they do not need."""

BLOCK = 4 * 1024
"""File systems give room in such blocks: so much more than its size a file may take."""

_LEAST_BOUND = 64 * 1024
# Of the bound, unless it is said: for offset markers, temporary files, journals of acknowledgements.
_HEADROOM_PART = 32
_MOST_HEADROOM = 1024 * 1024
# Leases grow by so much beyond what is asked for.
_LEASE_PART = 64
_LEAST_AHEAD = 2 * 1024
_MOST_AHEAD = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetMember:
    """What a budget knows of one member."""

    name: str
    used: int
    """Bytes on the disk when it last told: at its last barrier, or when it last asked for room."""
    granted: int
    """Bytes it may have on the disk without asking again, `used` included."""
    on_full: OnFull
    wanted: int
    """Bytes that somebody waits for there; 0: nobody waits for this budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStatistics:
    """A budget at one moment. Sizes in bytes."""

    max_bytes: int
    headroom: int
    used: int
    """By all members together, as they last told."""
    granted: int
    """What they may have without asking again: together at most `max_bytes - headroom`, but for what was
    there when they joined."""
    free: int
    """What is not granted to anybody."""
    waiting: int
    """Members with somebody who waits for room."""
    members: tuple[BudgetMember, ...]


class DiskBudget:
    """So many bytes on the disk for several queues and streams together, whoever of them needs them.

    `QueueOptions(budget=...)` and `StreamOptions(budget=...)` make a member of whatever is opened with them,
    until it is closed; each member's own `on_full` says what happens when there is no room. `max_bytes`
    counts data, checksums, indexes, write-ahead logs and metadata, and what was consumed until it is removed.
    `headroom` of them are never given to messages: for small files that must be written whatever happens
    (by default a 32nd, 1 MiB at most). May be used from all threads of this process, and shared by
    several runs of Trio. Raises TypeError and ValueError.
    """

    def __init__(self, max_bytes: int, *, headroom: int | None = None) -> None:
        for word, value in (("max_bytes", max_bytes), ("headroom", 0 if headroom is None else headroom)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{word} is a whole number, got {value!r}")
        if max_bytes < _LEAST_BOUND:
            raise ValueError(f"max_bytes is at least {_LEAST_BOUND}, got {max_bytes}")
        if headroom is None:
            headroom = min(max_bytes // _HEADROOM_PART, _MOST_HEADROOM)
        if not 0 <= headroom <= max_bytes // 2:
            raise ValueError(f"headroom is 0 to {max_bytes // 2} bytes, half of max_bytes, got {headroom}")
        self._max_bytes = max_bytes
        self._headroom = headroom
        self._room = max_bytes - headroom
        self._ahead = max(_LEAST_AHEAD, min(max_bytes // _LEASE_PART, _MOST_AHEAD))
        self._lock = threading.Lock()
        self._shares: dict[BudgetShare, None] = {}
        self._waiting: dict[BudgetShare, None] = {}
        self._granted = 0
        self._arrivals = itertools.count(1)

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    @property
    def headroom(self) -> int:
        """So many of them are kept for small files."""
        return self._headroom

    def __repr__(self) -> str:
        return f"<DiskBudget of {self._max_bytes} bytes, {len(self._shares)} members>"

    def statistics(self) -> BudgetStatistics:
        """The budget as it is now. Cheap; from any thread."""
        with self._lock:
            members = tuple(
                BudgetMember(
                    name=share.name,
                    used=share.used,
                    granted=share.granted,
                    on_full=share.on_full,
                    wanted=share.size if share in self._waiting else 0,
                )
                for share in self._shares
            )
            return BudgetStatistics(
                max_bytes=self._max_bytes,
                headroom=self._headroom,
                used=sum(member.used for member in members),
                granted=self._granted,
                free=max(0, self._free),
                waiting=len(self._waiting),
                members=members,
            )

    def join(self, name: str, used: int, fixed: int, on_full: OnFull) -> BudgetShare:
        """A new member, which has `used` bytes on the disk, `fixed` of them as long as it is open.

        Never refuses: where there is more than the budget allows, nobody gets more until there is less.
        """
        share = BudgetShare(self, name, used, fixed, on_full)
        with self._lock:
            self._shares[share] = None
            self._granted += used
        return share

    # --- inside; the lock is held -----------------------------------------------------------------

    @property
    def _free(self) -> int:
        return self._room - self._granted

    def _rank(self, share: BudgetShare) -> tuple[bool, float]:
        is_large = share.used + share.size > self._room // (2 * len(self._shares))
        return is_large, share.arrived if share in self._waiting else math.inf

    def _missing_to_small(self, but: BudgetShare) -> int:
        """So much more those wait for who would have no more than a fair share."""
        small = (share for share in self._waiting if share is not but and not self._rank(share)[0])
        return max(0, sum(max(0, share.used + share.size - share.granted) for share in small) - self._free)

    def _grant(self, share: BudgetShare, more: int) -> None:
        share.granted += more
        self._granted += more

    def _serve(self) -> list[BudgetShare]:
        """Give those who wait what they wait for, as far as it goes. Tell them, without the lock."""
        served = []
        while self._waiting:
            first = min(self._waiting, key=self._rank)
            missing = max(0, first.used + first.size - first.granted)
            if missing > self._free:
                break
            del self._waiting[first]
            self._grant(first, missing)
            first._reserved = first.size  # until it comes for it
            served.append(first)
        return served


class BudgetShare:
    """What one member has of a budget. But for `notify`, it is used by who uses the member."""

    def __init__(self, budget: DiskBudget, name: str, used: int, fixed: int, on_full: OnFull) -> None:
        self._budget = budget
        self.name = name
        self.used = self.granted = used
        self.fixed = fixed
        self.on_full = on_full
        self.size = 0  # beyond what is used: what was refused last
        self.arrived = 0
        self.asked = 0
        """So many bytes somebody else asks this member to drop."""
        self.oldest = math.inf
        """When its oldest file that it may drop was written last (ns since the Unix epoch); there is none."""
        self.notify: Callable[[], None] | None = None
        """Called, in any thread, when room came for who waits, or others want some."""
        self._reserved = 0  # of what it drops, so much is for itself, whoever waits
        self._is_dropping = False  # for itself: what becomes free next comes of that
        self._dropped = 0  # so many bytes came of it, and are not used again
        self._is_notified = False  # that others want room
        self._is_closed = False

    def arrival(self) -> int:
        """A number for somebody who comes now: those who come later get greater ones."""
        return next(self._budget._arrivals)

    @property
    def is_waiting(self) -> bool:
        """Does somebody here stand in line?"""
        return self in self._budget._waiting

    @property
    def is_contended(self) -> bool:
        """Does another member wait for room, or want something dropped?"""
        waiting = self._budget._waiting
        return len(waiting) > (self in waiting) or self.asked > 0

    @property
    def ahead(self) -> int:
        """So many bytes a lease is larger than what is asked for, where nobody waits."""
        return self._budget._ahead

    def reserve(self, used: int, size: int) -> bool:
        """Have `size` bytes beyond the `used` that are on the disk. False: there are not so many free."""
        budget = self._budget
        with budget._lock:
            self._note_used(used, is_dropping=True)
            self.size = size
            more = used + size - self.granted
            if more > 0:
                rank = budget._rank(self)
                is_first = all(budget._rank(other) > rank for other in budget._waiting if other is not self)
                if more > budget._free or not is_first:
                    return False
                others = len(budget._waiting) - (self in budget._waiting)
                budget._grant(self, more + (0 if others else min(budget._ahead, budget._free - more)))
            budget._waiting.pop(self, None)
            self._reserved = 0
            return True

    def totals(self) -> tuple[int, int]:
        """The budget's bound, and what all its members use, as they last told."""
        budget = self._budget
        with budget._lock:
            return budget._max_bytes, sum(share.used for share in budget._shares)

    def covers(self, size: int) -> bool:
        """Could `size` bytes ever be had, while the members are those there are? Nothing is given up else."""
        with self._budget._lock:
            return size <= self._budget._room - sum(share.fixed for share in self._budget._shares)

    @property
    def missing(self) -> int:
        """So many bytes must become free, here or elsewhere, before what was refused last can be had."""
        return max(1, self.used + self.size - self.granted - max(0, self._budget._free))

    def on_refusal(self, *, has_old: bool, has_young: bool = False) -> Refusal:
        """What a member does after `reserve` has refused it room that the budget covers.

        `has_old`: it may drop files that are complete. `has_young`: it may drop others, after everybody's
        complete ones.
        """
        if not has_old and self.on_full == "drop_oldest" and self.ask_to_drop():
            return "others"
        if has_old or has_young:
            self.keep()
            return "droppable"
        if not self.is_waiting:
            self.request_space()
        return "over_budget"

    def keep(self) -> None:
        """What is dropped from here on makes room for what was refused last, and then for what follows it."""
        self._reserved = self.size
        self._is_dropping = True

    def request_space(self) -> None:
        """Tell the others that room is wanted."""
        with self._budget._lock:
            others = [share for share in self._budget._shares if share is not self and not share._is_notified]
            for share in others:
                share._is_notified = True
        _notify(others)

    def ask_to_drop(self) -> bool:
        """Have that member drop what is missing which may, and has the oldest file. False: there is none."""
        with self._budget._lock:
            able = [s for s in self._budget._shares if s is not self and s.oldest < math.inf]
            if not able:
                return False
            oldest = min(able, key=lambda share: share.oldest)
            oldest.asked = max(oldest.asked, self.missing)
        _notify([oldest])
        return True

    def wait(self, arrived: int) -> None:
        """Stand in line for what was refused last. `notify` tells when it is there: then `reserve` it."""
        budget = self._budget
        with budget._lock:
            if self._is_closed or (self in budget._waiting and self.arrived == arrived):
                return
            self.arrived = arrived
            budget._waiting[self] = None
            served = budget._serve()
        _notify(served)
        self.request_space()

    def leave(self) -> None:
        """Stand in line no more. What came for who waited goes back with the next `settle`."""
        budget = self._budget
        with budget._lock:
            self._reserved = 0
            if self not in budget._waiting:
                return
            del budget._waiting[self]
            served = budget._serve()
        _notify(served)

    def settle(self, used: int, *, is_dropping: bool = False) -> None:
        """So many bytes are on the disk: what is granted beyond goes back, but for some ahead.

        `is_dropping`: what this member drops is not gone yet.
        """
        budget = self._budget
        with budget._lock:
            self._is_notified = False
            self._note_used(used, is_dropping=is_dropping)
            others = len(budget._waiting) - (self in budget._waiting)
            ahead = 0 if others else min(budget._ahead, budget._free + self.granted - used)
            own = min(self._dropped, self.granted - used - budget._missing_to_small(self))
            goal = used + max(self._reserved, ahead, own)
            # More than is granted was written only where a file's own needs were guessed too small.
            budget._grant(self, max(used, min(self.granted, goal)) - self.granted)
            served = budget._serve()
        _notify(served)

    def _note_used(self, used: int, *, is_dropping: bool) -> None:
        if used > self.used:
            self._dropped = max(0, self._dropped - (used - self.used))
        elif used < self.used and self._is_dropping:
            self._dropped += self.used - used
            self._is_dropping = is_dropping
        self.used = used

    def close(self) -> None:
        """Be a member no more. Idempotent."""
        budget = self._budget
        with budget._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self.notify = None
            budget._grant(self, -self.granted)
            budget._waiting.pop(self, None)
            del budget._shares[self]
            served = budget._serve()
        _notify(served)

    def full_error(self, path: str, size: int) -> DiskFullError:
        """What a refusal means to a caller that will not wait."""
        budget = self._budget
        return DiskFullError(
            path,
            f"{self.name} holds {self.used} bytes, {size} more find no room in the budget of "
            f"max_bytes={budget.max_bytes} that {len(budget._shares)} share",
        )


def _notify(shares: list[BudgetShare]) -> None:
    for share in shares:
        notify = share.notify
        if notify is not None:
            notify()
