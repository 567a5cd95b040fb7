# One disk budget for several members. Law: the space that all members together may use is granted in advance,
# in leases, and never twice; a waiting member is served as soon as enough space is free.
#
# A member writes within its lease without asking, so that a message costs nothing here: its engine's limit
# is the rest of the lease. It asks when the lease is used up, and gives back what it does not need whenever a
# barrier has removed something. No member is changed from outside: `notify` reports that others want space,
# and the member acts in its own thread.
#
# Waiting members are served in order of arrival, with one more rule: a member that would then have no more
# than a fair share (half of the space, divided by the number of members) goes before one that would have
# more. So a large member that waits for space of others does not block members that need little, and they
# cannot starve it either: it is first among all that want more than their share, and gets what those give
# back.
#
# Space that a member frees by dropping files for its own message stays reserved for it until it is used
# again. Only members that would have no more than a fair share get some of it; otherwise a waiting member
# that holds much would take all of it, a file at a time, from one that drops.

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from diskq.errors import FullError
from diskq.options import Budget, OnFull

__all__ = [
    "BLOCK",
    "WALS_IN_A_BUDGET",
    "BudgetMember",
    "BudgetShare",
    "BudgetStatistics",
    "DiskBudget",
    "Refusal",
    "check_new_member",
    "join_budget",
]

Refusal = Literal["droppable", "others", "over_budget"]
"""Why a member does not get space now: "droppable": it has files to drop first; "others": another member was
asked to drop its oldest file; "over_budget": all were asked to give back what they do not need."""

BLOCK = 4 * 1024
"""File systems allocate in blocks of this size: a file may take up to that much more than its size."""

WALS_IN_A_BUDGET = 32
"""A write-ahead log for messages may take this part of a budget. In a smaller one, messages do not wait."""

_LEAST_BOUND = 64 * 1024
# The default headroom is this part of the bound: for committed offsets, temporary files, ack logs.
_HEADROOM_PART = 32
_MOST_HEADROOM = 1024 * 1024
# A lease grows beyond the request by this part of the bound, within these limits.
_LEASE_PART = 64
_LEAST_AHEAD = 2 * 1024
_MOST_AHEAD = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetMember:
    """What a budget knows about one member."""

    name: str
    used: int
    """Bytes on the disk when it last reported them: at its last barrier, or when it last asked for space."""
    granted: int
    """Bytes it may have on the disk without asking again, `used` included."""
    on_full: OnFull
    wanted: int
    """Bytes that the member waits for; 0: it does not wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStatistics:
    """A budget at one moment. Sizes in bytes."""

    max_bytes: int
    headroom: int
    used: int
    """By all members together, as they last reported."""
    granted: int
    """What they may use without asking again: together at most `max_bytes - headroom`, not counting what was
    there when they joined."""
    free: int
    """What is not granted to any member."""
    waiting: int
    """Number of members that wait for space."""
    members: tuple[BudgetMember, ...]


class DiskBudget:
    """Up to `max_bytes` bytes on the disk, shared by several queues and streams.

    A queue or stream opened with `QueueOptions(budget=...)` or `StreamOptions(budget=...)` is a member until
    it is closed; each member's own `on_full` says what happens when there is no space. `max_bytes` covers
    data, checksums, indexes, write-ahead logs, metadata, and consumed messages until they are removed.
    `headroom` bytes of it are never given to messages: they are for small files that must always be written
    (by default a 32nd, at most 1 MiB). May be used from all threads of this process, and shared by
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
        self._dropped: deque[BudgetShare] = deque()  # of members that were dropped unclosed
        self._arrivals = itertools.count(1)

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    @property
    def headroom(self) -> int:
        """Bytes of `max_bytes` that are kept for small files."""
        return self._headroom

    def __repr__(self) -> str:
        return f"<DiskBudget of {self._max_bytes} bytes, {len(self._shares)} members>"

    def statistics(self) -> BudgetStatistics:
        """Return the budget as it is now. Cheap; may be called from any thread."""
        self._forget_dropped()
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

    def _check_new(self, name: str, path: str, least: int) -> None:
        self._forget_dropped()
        with self._lock:
            members, fixed = len(self._shares), sum(share.fixed for share in self._shares)
        if fixed + least > self._room:
            raise FullError(
                path,
                f"{name} needs {least} bytes for its own files and a first message, and the {members} open "
                f"members of the budget of max_bytes={self._max_bytes} need {fixed} for theirs: "
                "enlarge the budget, or share it among fewer",
            )

    def _join(self, name: str, used: int, fixed: int, on_full: OnFull) -> BudgetShare:
        self._forget_dropped()
        share = BudgetShare(self, name, used, fixed, on_full)
        with self._lock:
            self._shares[share] = None
            self._granted += used
        return share

    def _forget_dropped(self) -> None:
        """Let members leave that were dropped unclosed: when that happened, no lock could be taken."""
        while self._dropped:
            with contextlib.suppress(IndexError):  # another thread was faster
                self._dropped.popleft().close()

    # --- internal; the lock is held ---------------------------------------------------------------

    @property
    def _free(self) -> int:
        return self._room - self._granted

    def _rank(self, share: BudgetShare) -> tuple[bool, float]:
        is_large = share.used + share.size > self._room // (2 * len(self._shares))
        return is_large, share.arrived if share in self._waiting else math.inf

    def _missing_to_small(self, but: BudgetShare) -> int:
        """Bytes that are missing for the other waiting members that would have no more than a fair share."""
        small = (share for share in self._waiting if share is not but and not self._rank(share)[0])
        return max(0, sum(max(0, share.used + share.size - share.granted) for share in small) - self._free)

    def _grant(self, share: BudgetShare, more: int) -> None:
        share.granted += more
        self._granted += more

    def _serve(self) -> list[BudgetShare]:
        """Grant waiting members their requests while space lasts. The caller notifies them after it."""
        served = []
        while self._waiting:
            first = min(self._waiting, key=self._rank)
            missing = max(0, first.used + first.size - first.granted)
            if missing > self._free:
                break
            del self._waiting[first]
            self._grant(first, missing)
            first._reserved = first.size  # until it reserves it
            served.append(first)
        return served


class BudgetShare:
    """One member's share of a budget. Used by the thread that uses the member; only `notify` runs in any."""

    def __init__(self, budget: DiskBudget, name: str, used: int, fixed: int, on_full: OnFull) -> None:
        self._budget = budget
        self.name = name
        self.used = self.granted = used
        self.fixed = fixed
        self.on_full = on_full
        self.size = 0  # bytes beyond `used` in the last refused request
        self.arrived = 0
        self.asked = 0
        """Bytes that another member asks this one to drop."""
        self.oldest = math.inf
        """When its oldest droppable file was last written (ns since the Unix epoch); infinity: none."""
        self.notify: Callable[[], None] | None = None
        """Called, in any thread, when the awaited space is granted, or when others want space."""
        self._reserved = 0  # bytes of what it drops that are for itself, even if others wait
        self._is_dropping = False  # True if it drops for itself, so that what becomes free next is its own
        self._dropped = 0  # bytes that it freed by dropping and has not used again
        self._is_notified = False  # True if it knows that others want space
        self._is_closed = False

    def arrival(self) -> int:
        """Return an arrival number, greater than all before it."""
        return next(self._budget._arrivals)

    @property
    def is_waiting(self) -> bool:
        """True if this member waits for space."""
        return self in self._budget._waiting

    @property
    def is_contended(self) -> bool:
        """True if another member waits for space, or asked this one to drop something."""
        waiting = self._budget._waiting
        return len(waiting) > (self in waiting) or self.asked > 0

    @property
    def ahead(self) -> int:
        """Bytes by which a lease exceeds the request, if no member waits."""
        return self._budget._ahead

    def reserve(self, used: int, size: int) -> bool:
        """Reserve `size` bytes beyond the `used` ones on the disk. False: not enough are free."""
        budget = self._budget
        budget._forget_dropped()
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
        """Return the budget's bound, and the bytes that all members use, as they last reported."""
        budget = self._budget
        with budget._lock:
            return budget._max_bytes, sum(share.used for share in budget._shares)

    def covers(self, size: int) -> bool:
        """True if `size` bytes fit at all with the present members. If not, dropping files is useless."""
        with self._budget._lock:
            return size <= self._budget._room - sum(share.fixed for share in self._budget._shares)

    @property
    def missing(self) -> int:
        """Bytes that must become free, here or elsewhere, before the last refused request can be granted."""
        return max(1, self.used + self.size - self.granted - max(0, self._budget._free))

    def on_refusal(self, *, has_old: bool, has_young: bool = False) -> Refusal:
        """Decide what a member does after `reserve` has refused it space that the budget covers.

        `has_old`: it may drop complete files. `has_young`: it may drop other files, after all members'
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
        """Keep the space of files dropped from now on for the last refused request, then for later ones."""
        self._reserved = self.size
        self._is_dropping = True

    def request_space(self) -> None:
        """Notify the other members that space is wanted."""
        with self._budget._lock:
            others = [share for share in self._budget._shares if share is not self and not share._is_notified]
            for share in others:
                share._is_notified = True
        _notify(others)

    def ask_to_drop(self) -> bool:
        """Ask the member with the oldest droppable file to drop what is missing. False: no member has one."""
        with self._budget._lock:
            able = [s for s in self._budget._shares if s is not self and s.oldest < math.inf]
            if not able:
                return False
            oldest = min(able, key=lambda share: share.oldest)
            oldest.asked = max(oldest.asked, self.missing)
        _notify([oldest])
        return True

    def wait(self, arrived: int) -> None:
        """Wait for the last refused request. `notify` is called when it can be granted: then `reserve` it."""
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
        """Stop waiting. Space that was granted meanwhile goes back with the next `settle`."""
        budget = self._budget
        with budget._lock:
            self._reserved = 0
            if self not in budget._waiting:
                return
            del budget._waiting[self]
            served = budget._serve()
        _notify(served)

    def settle(self, used: int, *, is_dropping: bool = False) -> None:
        """Report that `used` bytes are on the disk, and give back what is granted beyond, except some ahead.

        `is_dropping`: files that this member drops are not removed yet.
        """
        budget = self._budget
        with budget._lock:
            self._is_notified = False
            self._note_used(used, is_dropping=is_dropping)
            others = len(budget._waiting) - (self in budget._waiting)
            ahead = 0 if others else min(budget._ahead, budget._free + self.granted - used)
            own = min(self._dropped, self.granted - used - budget._missing_to_small(self))
            goal = used + max(self._reserved, ahead, own)
            # `used` exceeds the grant only if a file's own overhead was estimated too small.
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
        """Leave the budget. Idempotent."""
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

    def drop(self) -> None:
        """Leave the budget with the next call of another member. Takes no lock: a garbage collector calls."""
        self.notify = None
        self._budget._dropped.append(self)

    def full_error(self, path: str, size: int) -> FullError:
        """Return the error for a caller that does not wait."""
        budget = self._budget
        return FullError(
            path,
            f"{self.name} holds {self.used} bytes, {size} more do not fit into the budget of "
            f"max_bytes={budget.max_bytes} that {len(budget._shares)} share",
        )


# --- for queues and streams -----------------------------------------------------------------------


def check_new_member(budget: Budget, name: str, path: str, least: int) -> None:
    """Raise FullError if a new member, which needs `least` bytes to hold one message, never can.

    What the present members need as long as they are open leaves too little. A queue or stream that exists
    is not refused: what is in it can be consumed.
    """
    budget._check_new(name, path, least)


def join_budget(budget: Budget, name: str, used: int, fixed: int, on_full: OnFull) -> BudgetShare:
    """Return a new member, which has `used` bytes on the disk, `fixed` of them as long as it is open.

    Never refuses (`check_new_member` does): if the members use more than the budget allows, none gets more
    until they use less.
    """
    share: BudgetShare = budget._join(name, used, fixed, on_full)
    return share


def _notify(shares: list[BudgetShare]) -> None:
    for share in shares:
        notify = share.notify
        if notify is not None:
            notify()
