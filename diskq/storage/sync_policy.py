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
    """Bytes. More than half of them, and who can should have a barrier begin: what is written while it is
    paid goes into the other half. The disk works then, and nobody waits for it yet."""
    half: int = field(init=False)
    """Of `max_unsynced`."""
    pending: int = 0
    first_at: float = math.inf
    is_forced: bool = False

    def __post_init__(self) -> None:
        self.half = self.max_unsynced // 2

    def passed(self, records: int, now: float) -> None:
        """`records` more were written or consumed; none of them is durable."""
        if records and not self.pending:
            self.first_at = now
        self.pending += records

    def force(self) -> None:
        """Something happened that should not wait for the count: a file was used up, or rolled."""
        self.is_forced = True

    @property
    def left(self) -> int:
        """How many more records may pass before a barrier is due (at least 1)."""
        return max(1, self.every - self.pending)

    def bytes_until_check(self, unsynced: int) -> int:
        """So many more bytes may pass before somebody has to look whether half is reached, or all of it."""
        return (self.max_unsynced if unsynced > self.half else self.half) - unsynced

    def due(self, now: float) -> bool:
        """Should a barrier be taken now?"""
        return self.is_forced or self.pending >= self.every or now >= self.first_at + self.timeout

    def deadline(self) -> float:
        """When one is due at the latest, on the clock of `now`; infinity while nothing is pending."""
        return self.first_at + self.timeout

    def prepared(self) -> None:
        """A barrier was taken: it covers everything so far."""
        self.pending = 0
        self.first_at = math.inf
        self.is_forced = False
