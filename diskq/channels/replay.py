# Replays a stream or a journal at its original pace, or faster. Law: a message is returned when it is due,
# never before; until then it is not taken, so that a cancelled receiver loses nothing.
#
# The due time is counted from the start: the sum of all gaps so far, in whole nanoseconds, divided by the
# speed. So late wake-ups do not add up: an hour of messages takes an hour. engine/log/time_order.py defines
# the order of messages if times step back or are missing.

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.core.event_loops.seam import running_event_loop
from diskq.channels.core.handle import Slice
from diskq.channels.core.leaving import Leaving
from diskq.channels.core.opening import Opening
from diskq.channels.core.own_thread import OwnThread
from diskq.engine.journal.reader import JournalReader
from diskq.engine.journal.starts import checked_journal_start, seek_start
from diskq.engine.layouts import layout_of
from diskq.engine.log.reader import SkippedBytes
from diskq.engine.log.start import Start, checked_start
from diskq.engine.log.time_order import UNTIMED, Lane, TimeOrder
from diskq.engine.stream.reader import ReadableStream
from diskq.errors import DiskqError, NotFoundError
from diskq.messages import JournalMessage, Message
from diskq.storage.closing import Closing
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path

__all__ = ["AnyMessage", "Late", "Replay", "ReplayEnd", "ReplayStatistics", "open_replay"]

AnyMessage = Message | JournalMessage
ReplayEnd = Literal["close"] | int | datetime
Late = Literal["catch_up", "keep_gaps"]

_MANY_BYTES = 16 * 1024 * 1024
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStatistics:
    """Figures of a replay at one moment."""

    position: dict[int, int]
    """The offset of the next message, by partition (a journal is partition 0)."""
    delivered: int
    lag: int
    """Messages still to come, by the difference of offsets."""
    timestamp_ns: int | None
    """The timestamp of the last delivered message, in ns since 1970; None: no message, or no timestamp."""
    behind: float
    """Seconds since the next message was due; 0.0 if it is not due, or not known, or there is no pace."""
    rate: float
    """Messages per second, since the first call of a receive method."""


class _Schedule:
    """Computes when each message is due, on the loop's clock."""

    def __init__(self, speed: float | None, max_gap: float | None, late: Late) -> None:
        self._speed = speed
        self._max_gap = None if max_gap is None or speed is None else round(max_gap * speed * _SECOND)
        self._keeps_gaps = late == "keep_gaps"
        self._origin: float | None = None  # the time of the first receive, plus the delays since
        self._before = UNTIMED  # the time of the previous message
        self._elapsed = 0  # ns between the first message and that one, by their timestamps

    @property
    def max_gap(self) -> int | None:
        """In nanoseconds of the messages' own time."""
        return self._max_gap

    def asked(self, next_time: int, now: float) -> None:
        """Note that a receiver waits for the message with this time."""
        if self._origin is None:
            self._origin = now
        elif self._keeps_gaps:
            self._origin += max(0.0, now - self.due(next_time))

    def due(self, next_time: int) -> float:
        if self._speed is None or self._origin is None:
            return -math.inf
        return self._origin + (self._elapsed + self._gap(next_time)) / _SECOND / self._speed

    def delivered(self, its_time: int) -> None:
        self._elapsed += self._gap(its_time)
        self._before = its_time

    def _gap(self, next_time: int) -> int:
        if self._before == UNTIMED:
            return 0
        gap = max(0, next_time - self._before)
        return gap if self._max_gap is None else min(gap, self._max_gap)


class Replay(Leaving, trio.abc.ReceiveChannel[AnyMessage], Closing):
    """Receives messages when they are due. Made by `open_replay`.

    Any number of tasks may receive at once; each message is handed to one of them. Every async method is a
    cancellation point, and a schedule point at least every 100 µs of running; if one raises `Cancelled`,
    nothing was received.
    """

    def __init__(self, order: TimeOrder[AnyMessage], schedule: _Schedule) -> None:
        self._order = order
        self._schedule = schedule
        self._event_loop = running_event_loop()
        self._lock = self._event_loop.lock()  # held by the task that waits for the next message
        self._sleep = self._event_loop.scope()
        self._is_closed = False
        self._own_thread = OwnThread("this replay")
        self._slice = Slice()
        self._delivered = 0
        self._timestamp: int | None = None
        self._began: float | None = None
        self._next_due = math.inf  # as far as is known

    # --- receiving --------------------------------------------------------------------------------

    async def receive(self) -> AnyMessage:
        """Return the next message; waits until it is due. Receivers are served in order of arrival.

        `Cancelled` means: nothing was received. Raises trio.EndOfChannel after the last message,
        OffsetOutOfRangeError if the next message was removed meanwhile, OSError if it cannot be read: nothing
        was received then either.
        """
        return (await self.receive_many(1))[0]

    @enable_ki_protection
    async def receive_many(self, max_messages: int, *, max_bytes: int = _MANY_BYTES) -> list[AnyMessage]:
        """Return the next message and the later ones that are also due; waits until the first one is due.

        At most `max_messages` messages, with about `max_bytes` of keys and values in all. Raises as
        `receive`; `Cancelled` means: nothing was received.
        """
        if max_messages < 1:
            raise ValueError(f"max_messages is at least 1, got {max_messages}")
        self._own_thread.check()
        await self._slice.point()
        async with self._lock:
            await self._until_due()
            messages = [self._take()]
            size = _size(messages[0])
            now = self._event_loop.clock()
            # A message that cannot be read raises in the next call: these are already taken.
            with contextlib.suppress(DiskqError, OSError):
                while len(messages) < max_messages and size < max_bytes and self._is_due(now):
                    messages.append(self._take())
                    size += _size(messages[-1])
                self._is_due(now)
            return messages

    @enable_ki_protection
    def receive_nowait(self) -> AnyMessage:
        """Do as `receive` without waiting; raises trio.WouldBlock if no message is due, or others wait."""
        self._check()
        if self._lock.locked():
            raise trio.WouldBlock
        self._ask()
        now = self._event_loop.clock()
        if not self._is_due(now):
            raise trio.WouldBlock
        message = self._take()
        with contextlib.suppress(DiskqError, OSError):
            self._is_due(now)
        return message

    def _ask(self) -> int:
        """Note a receiver for the next message, and return its time. Raises trio.EndOfChannel."""
        self._check()
        next_time = self._order.peek()
        if next_time is None:
            raise trio.EndOfChannel
        now = self._event_loop.clock()
        if self._began is None:
            self._began = now
        self._schedule.asked(next_time, now)
        return next_time

    async def _until_due(self) -> None:
        due = self._schedule.due(self._ask())
        while self._event_loop.clock() < due:
            with self._event_loop.scope() as self._sleep:
                await self._event_loop.sleep_until(due)
            self._check()

    def _is_due(self, now: float) -> bool:
        """True if there is a next message, and it is due."""
        next_time = self._order.peek()
        self._next_due = math.inf if next_time is None else self._schedule.due(next_time)
        return self._next_due <= now

    def _take(self) -> AnyMessage:
        next_time = self._order.peek()
        assert next_time is not None, "it was asked for"
        message = self._order.read()
        self._schedule.delivered(next_time)
        self._next_due = math.inf
        self._delivered += 1
        self._timestamp = message.timestamp_ns
        return message

    # --- as a whole -------------------------------------------------------------------------------

    @property
    def position(self) -> dict[int, int]:
        """The offset of the next message, by partition (a journal is partition 0).

        Another replay with this as its `start` continues here.
        """
        return self._order.position

    @property
    def losses(self) -> tuple[SkippedBytes, ...]:
        """The damaged ranges that were skipped since the open."""
        return tuple(self._order.losses)

    def statistics(self) -> ReplayStatistics:
        """Return figures of the replay as it is now. Cheap; may be called from any thread."""
        now, due, began = self._event_loop.clock(), self._next_due, self._began
        seconds = 0.0 if began is None else now - began
        return ReplayStatistics(
            position=self.position,
            delivered=self._delivered,
            lag=self._order.left,
            timestamp_ns=self._timestamp,
            behind=max(0.0, now - due) if due > -math.inf else 0.0,
            rate=self._delivered / seconds if seconds > 0 else 0.0,
        )

    def close(self) -> None:
        """Close the files, and wake waiting tasks with ClosedResourceError. Idempotent."""
        self._own_thread.check()
        self._is_closed = True
        self._sleep.cancel()
        self._order.close()

    def _check(self) -> None:
        self._own_thread.check()
        if self._is_closed:
            raise trio.ClosedResourceError("this replay was closed")


def _size(message: AnyMessage) -> int:
    return len(message.key) + len(message.value)


# --- opening --------------------------------------------------------------------------------------


class open_replay(Opening[Replay]):  # noqa: N801 (it is used as a function)
    """Replay the stream or the journal at `path` at its own pace: an async context manager for a `Replay`.

    It gives all messages that are present at the open, merged from all partitions by time, each partition in
    its order. The gap between two messages is the difference of their timestamps, divided by `speed`: 1.0
    is the original pace, 10.0 is ten times as fast, None is as fast as it can be read. The first message
    comes at once.

    `start` and `partitions` are as in `open_consumer`; for a journal, `start` is as in `open_scanner`. `end`
    is "close" (after the present messages), the last offset to deliver, a moment (the replay ends where one
    with that `start` would begin), or a mapping of partitions to these. So the `end` of one replay as the
    `start` of another gives each message once.

    `max_gap` is the longest gap, in seconds of waiting. `late` applies when a receiver takes longer than the
    gap between messages: with "catch_up" the replay keeps to its schedule, and messages that are due come at
    once; with "keep_gaps" the rest is delayed, and no two messages are closer than they were.

    A message with an earlier time than one before it in its partition comes together with that one; a message
    without a time comes with the one before it. With `max_gap`, a step back by more than that starts a new
    sequence there.

    Nothing is locked, made or changed. Raises NotFoundError if there is neither a stream nor a
    journal, OffsetOutOfRangeError for an offset that does not exist, TypeError or ValueError (a naive
    datetime), UnsupportedFormatError, OSError.
    """

    def __init__(
        self,
        path: AnyPath,
        partitions: Iterable[int] | None = None,
        *,
        start: Start | Mapping[int, Start] = "oldest",
        end: ReplayEnd | Mapping[int, ReplayEnd] = "close",
        speed: float | None = 1.0,
        max_gap: float | None = None,
        late: Late = "catch_up",
        fs: FileSystem | None = None,
    ) -> None:
        if speed is not None and not 0 < speed < math.inf:
            raise ValueError(f"speed is more than 0, or None for as fast as it can be read, got {speed!r}")
        if max_gap is not None and not 0 <= max_gap < math.inf:
            raise ValueError(f"max_gap is 0 seconds or more, got {max_gap!r}")
        if late not in ("catch_up", "keep_gaps"):
            raise ValueError(f'late is "catch_up" or "keep_gaps", got {late!r}')
        for last in end.values() if isinstance(end, Mapping) else [end]:
            checked_start(last, ("close",))  # type: ignore[arg-type]
        for each in start.values() if isinstance(start, Mapping) else [start]:
            checked_start(each)
        self._path = as_path(path)
        self._partitions = None if partitions is None else tuple(dict.fromkeys(partitions))
        self._start = start
        self._end = end
        self._schedule = _Schedule(speed, max_gap, late)
        self._fs = fs or OsFileSystem()

    async def _open(self) -> tuple[None, Replay]:
        lanes = await self._event_loop.run_in_thread(self._open_files)
        return None, Replay(TimeOrder(lanes, most_back=self._schedule.max_gap), self._schedule)

    def _open_files(self) -> list[Lane[AnyMessage]]:
        try:
            layout = layout_of(self._fs, self._path)
        except (FileNotFoundError, NotADirectoryError):
            layout = None
        if layout == "triplet":
            return self._open_stream()
        if layout == "sej":
            return [self._open_journal()]
        raise NotFoundError("stream or journal", self._path, "there is neither a stream nor a journal")

    def _start_of(self, index: int) -> Start:
        return self._start.get(index, "oldest") if isinstance(self._start, Mapping) else self._start

    def _end_of(self, index: int) -> ReplayEnd:
        return self._end.get(index, "close") if isinstance(self._end, Mapping) else self._end

    def _open_stream(self) -> list[Lane[AnyMessage]]:
        stream = ReadableStream(self._path, fs=self._fs)
        lanes: list[Lane[AnyMessage]] = []
        with contextlib.ExitStack() as opened:  # everything is closed again if a step fails
            for index in stream.partitions() if self._partitions is None else self._partitions:
                reader = stream.open(index)
                opened.callback(reader.close)
                end, limit = self._end_of(index), reader.next_offset()
                if isinstance(end, datetime):
                    with stream.open(index) as other:
                        stream.seek(other, index, end)
                        limit = min(limit, other.position)
                elif isinstance(end, int):
                    limit = min(limit, end + 1)
                stream.seek(reader, index, self._start_of(index))
                lanes.append(Lane(index, reader, limit))
            opened.pop_all()
        return lanes

    def _open_journal(self) -> Lane[AnyMessage]:
        if self._partitions not in (None, (0,)):
            raise ValueError(f"{self._path} is a journal, which has no partitions: leave them out")
        start = self._start_of(0)
        if start == "active":
            raise ValueError('a journal is begun at "oldest", "newest", an offset or a moment')
        reader = JournalReader(self._path, fs=self._fs)
        try:
            end, limit = self._end_of(0), reader.next_offset()
            if isinstance(end, datetime):
                with reader.another() as other:
                    seek_start(other, end)
                    limit = min(limit, other.position)
            elif isinstance(end, int):
                limit = min(limit, end + 1)
            seek_start(reader, checked_journal_start(start))
        except BaseException:
            reader.close()
            raise
        return Lane(0, reader, limit)
