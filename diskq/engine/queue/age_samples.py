# How long messages have waited. Law: an age is never reported too small, and too large only by the distance
# of two samples, which are made about once a second, and thinned out if there are many.
#
# NSQ's files do not record when a message was accepted. So its place is compared with samples, each of which
# says: from this place on, messages were accepted at this time or later.

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from diskq.engine.queue.files import QueuePosition

__all__ = ["AgeSamples"]

# If there are more, half of them are left out, and the rest are as evenly spaced as possible:
# less than a fortieth of the time that all of them span.
_MOST = 256


class AgeSamples:
    """Places and times, ascending in both. Times are in seconds since the Unix epoch."""

    def __init__(self, marks: Iterable[tuple[QueuePosition, float]] = ()) -> None:
        self._places: list[QueuePosition] = []
        self._times: list[float] = []
        for place, time in marks:
            self._append(place, time)

    @property
    def marks(self) -> tuple[tuple[QueuePosition, float], ...]:
        return tuple(zip(self._places, self._times, strict=True))

    def add(self, place: QueuePosition, now: float) -> None:
        """Add a sample: what is accepted from `place` on is accepted `now` or later."""
        if self._places and place == self._places[-1]:
            self._times[-1] = max(now, self._times[-1])
        elif not self._places or place > self._places[-1]:
            self._append(place, now)
            if len(self._places) > _MOST:
                self._thin()

    def _append(self, place: QueuePosition, now: float) -> None:
        self._places.append(place)
        # If the clock was set back, later messages still do not count as older than earlier ones.
        self._times.append(max(now, self._times[-1]) if self._times else now)

    def _thin(self) -> None:
        """Leave out samples that are close to each other, compared with the time that all of them span."""
        apart = (self._times[-1] - self._times[0]) / (_MOST // 2)
        places, times = self._places[:1], self._times[:1]
        for place, time in zip(self._places[1:-1], self._times[1:-1], strict=True):
            if time - times[-1] >= apart:
                places.append(place)
                times.append(time)
        self._places, self._times = [*places, self._places[-1]], [*times, self._times[-1]]

    def forget_before(self, place: QueuePosition) -> None:
        """Forget the samples that are needed only for places before `place`."""
        first = max(0, bisect_right(self._places, place) - 1)
        del self._places[:first]
        del self._times[:first]

    def at(self, place: QueuePosition) -> float | None:
        """Return when the message at `place` was accepted, or a little earlier; None if unknown."""
        places, times = self._places, self._times
        # Another thread may call this between the append of a place and that of its time.
        number = min(bisect_right(places, place), len(times))
        return times[number - 1] if number else None
