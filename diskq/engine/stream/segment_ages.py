# When the active segments of a stream are complete by their age. Law: a segment has the age of its first
# message, and one without messages has none; what is asked at each turn does not grow with the partitions.

from __future__ import annotations

import math
from collections.abc import Iterator

__all__ = ["SegmentAges"]


class SegmentAges:
    """The moment at which the active segment of each partition is to be complete. All in seconds."""

    def __init__(self, age: float) -> None:
        self.age = age
        """How long after its first message a segment is complete."""
        # Each moment is as long after its beginning as the others: they are in ascending order, but for
        # those that `begin` puts in for segments that were there at the open, which come first.
        self._due: dict[int, float] = {}

    @property
    def next_due(self) -> float:
        """The first of these moments; infinity if no segment has a message."""
        return next(iter(self._due.values()), math.inf)

    def resume(self, ages: dict[int, float], now: float) -> None:
        """Note how old the active segments are that exist already, by partition."""
        oldest_first = sorted(ages, key=lambda partition: -ages[partition])
        self._due = {partition: now + max(0.0, self.age - ages[partition]) for partition in oldest_first}

    def begin(self, partition: int, now: float) -> None:
        """Note that the active segment of a partition has a message now, if it had none before."""
        self._due.setdefault(partition, now + self.age)

    def forget(self, partition: int) -> None:
        """Note that the active segment of a partition is complete."""
        self._due.pop(partition, None)

    def take_due(self, now: float) -> Iterator[int]:
        """Forget the partitions whose active segment is to be complete, and return them."""
        while self.next_due <= now:
            partition = next(iter(self._due))
            del self._due[partition]
            yield partition
