# When a sync is due, and how long syncs took. Law: arithmetic, with times and durations, in seconds, as
# arguments. No loop, no sleep, no disk, no clock.

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from dataclasses import dataclass, field

__all__ = ["BOUNDS", "DurationCounter", "Durations", "SyncPolicy"]

# --- when a sync is due ---------------------------------------------------------------------------


@dataclass(slots=True)
class SyncPolicy:
    """A barrier after `every` records (written or consumed), or `timeout` seconds after the first.

    go-diskqueue counts the same way, but asks for equality, so a count that jumps past is missed.
    """

    every: int
    timeout: float
    max_unsynced: int = sys.maxsize
    """Bytes. After more than half of them, a barrier should begin if possible: what is written while it runs
    goes into the other half. So the disk works before any sender has to wait for it."""
    half: int = field(init=False)
    """Half of `max_unsynced`."""
    pending: int = 0
    due_at: float = math.inf
    """When a barrier is due at the latest, on the clock of `now`; infinity: nothing is pending."""
    is_forced: bool = False

    def __post_init__(self) -> None:
        self.half = self.max_unsynced // 2

    def count(self, records: int, now: float) -> int:
        """Count `records` that were written or consumed since the last call, at the time `now` in seconds.

        Returns how many more may pass before a barrier is due; 0: one is due now.
        """
        if records:
            if not self.pending:
                self.due_at = now + self.timeout
            self.pending += records
        if self.is_forced or self.pending >= self.every or now >= self.due_at:
            return 0
        return self.every - self.pending

    def force(self) -> None:
        """Make a barrier due now, since a file was used up, or rolled."""
        self.is_forced = True

    def bytes_until_check(self, unsynced: int) -> int:
        """Return the bytes that may be written before the caller must check against half or all of them."""
        return (self.max_unsynced if unsynced > self.half else self.half) - unsynced

    def prepared(self) -> None:
        """Note that a barrier was prepared, which covers everything so far."""
        self.pending = 0
        self.due_at = math.inf
        self.is_forced = False


# --- how long syncs took --------------------------------------------------------------------------

BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds, ascending: from a disk with its own cache to one that is about to fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """How often an operation ran, and how long it took."""

    count: int
    seconds: float
    """Total duration."""
    buckets: tuple[int, ...]
    """How many took at most `BOUNDS[i]` seconds and more than the bound before; the last: more than all."""


class DurationCounter:
    """Counts durations, in seconds. One thread at a time calls it, but for `now`. No number decreases."""

    def __init__(self) -> None:
        self._seconds = self._longest = 0.0
        self._buckets = [0] * (len(BOUNDS) + 1)

    def count(self, seconds: float) -> None:
        """Count one more operation, which took `seconds`."""
        self._seconds += seconds
        self._longest = max(self._longest, seconds)
        self._buckets[bisect_left(BOUNDS, seconds)] += 1

    def take_longest(self) -> float:
        """Return the longest duration since the last call."""
        longest, self._longest = self._longest, 0.0
        return longest

    def now(self) -> Durations:
        """Return the counts, in any thread."""
        buckets = tuple(self._buckets)
        return Durations(count=sum(buckets), seconds=self._seconds, buckets=buckets)
