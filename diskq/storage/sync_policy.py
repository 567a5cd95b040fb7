# When a barrier is due: arithmetic, with the clock as an argument. No loop, no sleep, no disk.

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field

__all__ = ["SyncPolicy"]


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
