# Several logs as one, by time. Law: each log's messages stay in the order of their offsets; of the logs, the
# one whose next message is the earliest comes next.
#
# Times may step back, and may be missing; the order of offsets takes precedence. A message's time, here, is
# the latest of its log so far, its own included, and a message without a time has that of the message before
# it: so no time is earlier than the one before it in its log. There is one exception: after a step back of
# more than `most_back`, times go on from there, because a clock was wrong before or after the step.

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from diskq.engine.log.reader import SkippedBytes
from diskq.storage.closing import Closing

__all__ = ["UNTIMED", "Lane", "TimeOrder"]

UNTIMED = -(2**63)
"""The time of messages before the first message that has one: they come first."""

# Limits of one read from a log: messages and bytes.
_MANY = 256
_BYTES = 128 * 1024


class Timed(Protocol):
    @property
    def offset(self) -> int: ...

    @property
    def timestamp_ns(self) -> int | None: ...


M = TypeVar("M", bound=Timed)
M_co = TypeVar("M_co", bound=Timed, covariant=True)


class LaneReader(Protocol[M_co]):
    """A log's reader, at its first message."""

    losses: list[SkippedBytes]

    @property
    def position(self) -> int: ...

    def read_many(self, max_messages: int, *, max_bytes: int) -> Sequence[M_co]: ...

    def close(self) -> None: ...


class Lane(Generic[M]):
    """One log, from the position of its reader up to a limit."""

    def __init__(self, index: int, reader: LaneReader[M], limit: int) -> None:
        """`limit` is the offset after the last message to hand out."""
        self.index = index
        self.reader = reader
        self.limit = limit
        self.position = reader.position
        """The offset of the message that comes next, or after the last one that was damaged."""
        self.time = UNTIMED
        self._batch: list[M] = []  # the next one is the last

    @property
    def left(self) -> int:
        """The number of messages still to come, as far as offsets show."""
        return max(0, self.limit - self.position)

    def step(self, most_back: int | None) -> bool:
        """Set `time` to the next message's. False if none is left. Raises what reading raises."""
        if not self._batch:
            wanted = min(_MANY, self.limit - self.reader.position)
            messages = self.reader.read_many(wanted, max_bytes=_BYTES) if wanted > 0 else []
            self._batch = [message for message in reversed(messages) if message.offset < self.limit]
            if not self._batch:
                self.position = max(self.position, min(self.reader.position, self.limit))
                return False
        own = self._batch[-1].timestamp_ns
        if own is not None and (own >= self.time or (most_back is not None and self.time - own > most_back)):
            self.time = own
        return True

    def read(self) -> M:
        message = self._batch.pop()
        self.position = message.offset + 1
        return message


class TimeOrder(Closing, Generic[M]):
    """The messages of all lanes, by time. For one thread; closing it closes the readers."""

    def __init__(self, lanes: Iterable[Lane[M]], *, most_back: int | None = None) -> None:
        """`most_back`: nanoseconds; None: times never step back, by whatever amount."""
        self.lanes = sorted(lanes, key=lambda lane: lane.index)
        self._most_back = most_back
        self._unread = self.lanes[::-1]  # lanes whose next message is not known
        self._next: list[tuple[int, int, Lane[M]]] = []  # a heap of the others, by time

    def peek(self) -> int | None:
        """Return the time of the next message, in ns since 1970, or UNTIMED; None if there is none.

        Raises OffsetOutOfRangeError if it was removed meanwhile, OSError: nothing is lost, and the call may
        be repeated.
        """
        while self._unread:
            lane = self._unread[-1]
            is_there = lane.step(self._most_back)
            self._unread.pop()
            if is_there:
                heapq.heappush(self._next, (lane.time, lane.index, lane))
        return self._next[0][0] if self._next else None

    def read(self) -> M:
        """Return the next message; only after `peek` has returned its time."""
        _, _, lane = heapq.heappop(self._next)
        self._unread.append(lane)
        return lane.read()

    @property
    def position(self) -> dict[int, int]:
        """The offset of the message that comes next, by lane."""
        return {lane.index: lane.position for lane in self.lanes}

    @property
    def left(self) -> int:
        """The number of messages still to come, as far as offsets show."""
        return sum(lane.left for lane in self.lanes)

    @property
    def losses(self) -> list[SkippedBytes]:
        """The messages that could not be read so far, because they were damaged."""
        return [gap for lane in self.lanes for gap in lane.reader.losses]

    def close(self) -> None:
        """Close all files. Idempotent."""
        for lane in self.lanes:
            lane.reader.close()
