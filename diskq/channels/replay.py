# A stream or a journal again, at the pace at which it came, or faster. Law: a message is handed over when
# its time has come, never before; until then it is nobody's: who is cancelled while he waits loses nothing.
#
# When that is, is counted from the start: the sum of all gaps so far, in whole nanoseconds, divided by the
# speed. So late wake-ups do not add up: an hour of messages takes an hour. What comes before what, where
# times step back or are missing, is engine/log/time_order.py's.

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import trio
from trio.lowlevel import enable_ki_protection

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
from diskq.engine.stream.reader import StreamReader
from diskq.errors import DiskqError, StreamNotFoundError
from diskq.messages import JournalMessage, Message
from diskq.storage.closing import Closing
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path

__all__ = ["AnyMessage", "Late", "Replay", "ReplayEnd", "ReplayStatistics", "replay"]

AnyMessage = Message | JournalMessage
ReplayEnd = Literal["close"] | int | datetime
Late = Literal["catch_up", "keep_gaps"]

_MANY_BYTES = 16 * 1024 * 1024
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStatistics:
    """A replay at one moment."""

    position: dict[int, int]
    """Of each partition (a journal is partition 0) the offset of the message that comes next."""
    delivered: int
    left: int
    """Messages that are still to come, as far as offsets tell."""
    timestamp_ns: int | None
    """When the last message that was delivered was written, ns since 1970; None: none, or it does not say."""
    behind: float
    """Seconds since the next message was due; 0.0 where it is not due, or not known, or there is no pace."""
    rate: float
    """Messages per second, since the first one was asked for."""


class _Schedule:
    """When each message is due, on Trio's clock."""

    def __init__(self, speed: float | None, max_gap: float | None, late: Late) -> None:
        self._speed = speed
        self._max_gap = None if max_gap is None or speed is None else round(max_gap * speed * _SECOND)
        self._keeps_gaps = late == "keep_gaps"
        self._origin: float | None = None  # when the first message was asked for, and what was put off since
        self._before = UNTIMED  # the time of the message before
        self._elapsed = 0  # ns, from the first message to that one, as the messages tell

    @property
    def max_gap(self) -> int | None:
        """In the messages' own time, ns."""
        return self._max_gap

    def asked(self, next_time: int, now: float) -> None:
        """Somebody is there for the message with this time."""
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
    """Receives messages when their time comes. Made by `replay`.

    Any number of tasks may receive at once; each message is handed to one of them. Every async method is a
    cancellation point, and a schedule point at least every 100 µs of running; where one raises `Cancelled`,
    nothing was received.
    """

    def __init__(self, order: TimeOrder[AnyMessage], schedule: _Schedule) -> None:
        self._order = order
        self._schedule = schedule
        self._lock = trio.StrictFIFOLock()  # held by the one who waits for the next message
        self._sleep = trio.CancelScope()
        self._is_closed = False
        self._own_thread = OwnThread("this replay")
        self._slice = Slice()
        self._delivered = 0
        self._timestamp: int | None = None
        self._began: float | None = None
        self._next_due = math.inf  # as far as is known
        self._clock = trio.lowlevel.current_clock()

    # --- receiving --------------------------------------------------------------------------------

    async def receive(self) -> AnyMessage:
        """The next message, when its time has come. Receivers are served in order of arrival.

        `Cancelled` means: nothing was received. Raises trio.EndOfChannel behind the last message,
        OffsetOutOfRangeError where what comes next was removed meanwhile, OSError where it cannot be read:
        nothing was received then, either.
        """
        return (await self.receive_many(1))[0]

    @enable_ki_protection
    async def receive_many(self, max_items: int, *, max_bytes: int = _MANY_BYTES) -> list[AnyMessage]:
        """The next message, when its time has come, and behind it those whose time has come as well.

        At most `max_items`, keys and values of together about `max_bytes`. Raises as `receive`.
        """
        if max_items < 1:
            raise ValueError(f"max_items is at least 1, got {max_items}")
        await self._slice.point()
        async with self._lock:
            await self._until_due()
            messages = [self._take()]
            size = _size(messages[0])
            now = trio.current_time()
            # What cannot be read is told to who asks for it next: these are in our hands.
            with contextlib.suppress(DiskqError, OSError):
                while len(messages) < max_items and size < max_bytes and self._is_due(now):
                    messages.append(self._take())
                    size += _size(messages[-1])
                self._is_due(now)
            return messages

    @enable_ki_protection
    def receive_nowait(self) -> AnyMessage:
        """As `receive`; raises trio.WouldBlock where no message is due now, or others wait for it."""
        self._check()
        if self._lock.locked():
            raise trio.WouldBlock
        self._ask()
        now = trio.current_time()
        if not self._is_due(now):
            raise trio.WouldBlock
        message = self._take()
        with contextlib.suppress(DiskqError, OSError):
            self._is_due(now)
        return message

    def _ask(self) -> int:
        """The next message's time, now that somebody is there for it. Raises trio.EndOfChannel."""
        self._check()
        next_time = self._order.peek()
        if next_time is None:
            raise trio.EndOfChannel
        now = trio.current_time()
        if self._began is None:
            self._began = now
        self._schedule.asked(next_time, now)
        return next_time

    async def _until_due(self) -> None:
        due = self._schedule.due(self._ask())
        while trio.current_time() < due:
            with trio.CancelScope() as self._sleep:
                await trio.sleep_until(due)
            self._check()

    def _is_due(self, now: float) -> bool:
        """Is there a next message, and has its time come?"""
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
        """Of each partition (a journal is partition 0) the offset of the message that comes next.

        As `start` it has another replay go on here.
        """
        return self._order.position

    @property
    def losses(self) -> tuple[SkippedBytes, ...]:
        """What could not be read since the open, because it was damaged."""
        return tuple(self._order.losses)

    def statistics(self) -> ReplayStatistics:
        """The replay as it is now. Cheap, and from any thread."""
        now, due, began = self._clock.current_time(), self._next_due, self._began
        seconds = 0.0 if began is None else now - began
        return ReplayStatistics(
            position=self.position,
            delivered=self._delivered,
            left=self._order.left,
            timestamp_ns=self._timestamp,
            behind=max(0.0, now - due) if due > -math.inf else 0.0,
            rate=self._delivered / seconds if seconds > 0 else 0.0,
        )

    def close(self) -> None:
        """Let go of the files, and wake who waits with ClosedResourceError. Idempotent."""
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


class replay(Opening[Replay]):  # noqa: N801 (it is used as a function)
    """Read the stream or the journal at `path` at its own pace: an async context manager, gives a `Replay`.

    All that is there when it is opened comes, its partitions as one, by time, and each partition in its
    order: spaced as the messages' timestamps are, divided by `speed`. 1.0 is the original pace, 10.0 ten
    times that; None is no pace: as fast as it can be read. The first message comes at once.

    `start` and `partitions` are as `open_consumer` has them, and of a journal as `open_scanner` does. `end`
    is "close" (behind what is there now), the last offset to be delivered, or a moment: where a replay would
    begin whose `start` it is; or a mapping of partitions to such, as `start` may be. So two of them, one
    behind the other, have each message once.

    `max_gap` is the longest silence, in seconds of waiting. `late` tells what comes of it when a receiver
    takes longer than messages are apart: with "catch_up" the replay keeps to its schedule, and what has
    become due comes at once; with "keep_gaps" the rest is put off, and no two messages are closer than they
    were.

    A message whose time is earlier than one before it in its partition comes with that one; one without a
    time comes with the one before it. With `max_gap`, a step back by more than that begins anew there.

    Nothing is locked, made or changed. Raises StreamNotFoundError where there is neither a stream nor a
    journal, OffsetOutOfRangeError for an offset that is not there, TypeError or ValueError (a naive
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
        lanes = await trio.to_thread.run_sync(self._open_files)
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
        raise StreamNotFoundError(self._path, "there is neither a stream nor a journal")

    def _start_of(self, index: int) -> Start:
        return self._start.get(index, "oldest") if isinstance(self._start, Mapping) else self._start

    def _end_of(self, index: int) -> ReplayEnd:
        return self._end.get(index, "close") if isinstance(self._end, Mapping) else self._end

    def _open_stream(self) -> list[Lane[AnyMessage]]:
        stream = StreamReader(self._path, fs=self._fs)
        lanes: list[Lane[AnyMessage]] = []
        with contextlib.ExitStack() as opened:  # all of it goes again where a step fails
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
