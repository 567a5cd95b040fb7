# Since when messages wait. Law: an age is never less than it was, and off by little: by the distance of two
# marks, which are made about once a second, and thinned out where there are many.
#
# NSQ's files do not tell when a message was accepted. So its place is compared with marks, each of which
# says: from this place on, messages were accepted at this time or later.

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from diskq.engine.queue.files import QueuePosition

__all__ = ["AgeSamples"]

# When there are more, half of them are left out, and those that stay are as far from each other as they can
# be: less than a fortieth of the time that all of them span.
_MOST = 256


class AgeSamples:
    """Places and times, ascending in both. Times in seconds since the Unix epoch."""

    def __init__(self, marks: Iterable[tuple[QueuePosition, float]] = ()) -> None:
        self._places: list[QueuePosition] = []
        self._times: list[float] = []
        for place, time in marks:
            self._append(place, time)

    @property
    def marks(self) -> tuple[tuple[QueuePosition, float], ...]:
        return tuple(zip(self._places, self._times, strict=True))

    def add(self, place: QueuePosition, now: float) -> None:
        """What is accepted from here on is accepted now or later."""
        if self._places and place == self._places[-1]:
            self._times[-1] = max(now, self._times[-1])
        elif not self._places or place > self._places[-1]:
            self._append(place, now)
            if len(self._places) > _MOST:
                self._thin()

    def _append(self, place: QueuePosition, now: float) -> None:
        self._places.append(place)
        # A clock that was set back makes nothing younger than what came before it.
        self._times.append(max(now, self._times[-1]) if self._times else now)

    def _thin(self) -> None:
        """Leave out marks that are close to each other, as seen over all of them."""
        apart = (self._times[-1] - self._times[0]) / (_MOST // 2)
        places, times = self._places[:1], self._times[:1]
        for place, time in zip(self._places[1:-1], self._times[1:-1], strict=True):
            if time - times[-1] >= apart:
                places.append(place)
                times.append(time)
        self._places, self._times = [*places, self._places[-1]], [*times, self._times[-1]]

    def forget_before(self, place: QueuePosition) -> None:
        """Nothing before `place` will be asked for any more."""
        first = max(0, bisect_right(self._places, place) - 1)
        del self._places[:first]
        del self._times[:first]

    def at(self, place: QueuePosition) -> float | None:
        """When the message behind `place` was accepted, or a little earlier; None: nothing tells."""
        places, times = self._places, self._times
        # Another thread may ask, between a place and its time.
        number = min(bisect_right(places, place), len(times))
        return times[number - 1] if number else None
