# Reading a log, across its segments: a partition of a stream, or a journal. Law: every readable message is
# handed out once, in the order of offsets; what cannot be read is reported; nothing is skipped or repeated
# where a segment ends.
#
# A segment is named by the offset of its first message, and is written completely before the next one is
# made. So a reader that has come to offset o goes on in the file named o as soon as that file exists, and
# needs no other signal: the name shows that nothing is missing between the two. If messages were lost or
# removed, no file has that name; only then the directory is listed.
#
# Each kind reads its segments in its own way: stream/segment_reader.py, journal/segment_reader.py.
# Synchronous, for one thread. The reader keeps open what it reads (data, checksums, and the index where it is
# needed), so the removal of a segment does not take it away during reading.

from __future__ import annotations

import contextlib
from abc import abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from diskq.errors import DiskqError, OffsetOutOfRangeError
from diskq.storage.arguments import whole_number
from diskq.storage.block_reader import Loss
from diskq.storage.closing import Closing, Dropped
from diskq.storage.fs import FileSystem
from diskq.storage.numbers import UNBOUNDED

__all__ = ["LiveEnd", "LogReader", "MessagePlace", "OpenSegment", "Sized", "SkippedBytes", "places_to_commit"]

# Up to this many bytes that a producer in this thread has just written are read before they have a checksum.
_JUST_WRITTEN = 64 * 1024


class LiveEnd(Protocol):
    """The position of a producer in this very thread: it is asked instead of its files."""

    @property
    def base(self) -> int:
        """The segment it writes to."""

    @property
    def end(self) -> int:
        """The byte of that segment's data up to which whole records are in the page cache."""

    @property
    def next_offset(self) -> int:
        """The offset after the last of those records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedBytes:
    """Bytes of a data file that were passed over, and the messages that are missing because of it."""

    path: str
    start: int
    end: int
    offset: int
    """The first message that is missing."""
    count: int
    """The number of missing messages: 0 if the bytes held none."""
    reason: str

    def __str__(self) -> str:
        lost = f"from offset {self.offset} on, {self.count} messages are lost"
        what = lost if self.count else "no message is lost"
        return f"{self.path}: {self.reason}; bytes {self.start} to {self.end} are passed over, {what}"


class Sized(Protocol):
    """A message, as far as its size in bytes needs."""

    @property
    def key(self) -> bytes: ...

    @property
    def value(self) -> bytes: ...


class MessagePlace(Protocol):
    """A message, or its place."""

    @property
    def partition(self) -> int: ...

    @property
    def offset(self) -> int: ...


def places_to_commit(processed: tuple[MessagePlace, ...], handed_out: str) -> list[tuple[int, int]]:
    """Return partition and offset of each, before the first of them is committed.

    `handed_out` is the word for how messages come to the caller. Raises TypeError for what is no message.
    """
    try:
        return [(one.partition, one.offset) for one in processed]
    except AttributeError:
        kinds = ", ".join(type(one).__name__ for one in processed)
        raise TypeError(f"commit is given messages that were {handed_out}, got {kinds}") from None


M = TypeVar("M", bound=Sized)
C_co = TypeVar("C_co", covariant=True)


class Ahead(Protocol[M, C_co]):
    """The messages that were read and not yet handed out: a compiled read-ahead that knows offsets."""

    next_offset: int

    def seek(self, position: int) -> None: ...

    def skip_to(self, offset: int) -> int: ...

    def take_now(self) -> M | None: ...

    def take_many(self, max_messages: int, max_bytes: int) -> list[M]: ...

    def take_columns(self, max_records: int, max_bytes: int) -> C_co | None: ...

    @property
    def next_size(self) -> int: ...

    @property
    def is_ready(self) -> bool: ...

    @property
    def why(self) -> Literal["END", "TORN", "CORRUPT"]: ...

    @property
    def position(self) -> int: ...


class OpenSegment(Protocol):
    """One segment, read forward through the log's `Ahead`."""

    base: int
    path: str

    @property
    def size(self) -> int:
        """The present size of the data file, in bytes."""

    @property
    def index_size(self) -> int:
        """The present size of the index, in bytes; 0 if there is none."""

    def approach(self, offset: int) -> None:
        """Go to message `offset`, or as near before it as is possible without reading what lies between."""

    def begin_at(self, position: int, offset: int) -> None:
        """Go to message `offset`, which begins at byte `position` of the data."""

    def read_on(self, end: int, known_end: int | None = None, covered_end: int | None = None) -> Loss | None:
        """Make the next messages available, from bytes up to `end`, or pass over what is bad and return that.

        `known_end` is the offset after byte `end`, if it is known. With `covered_end`, no checksums are
        looked for after that byte.
        """

    def believe_to(self, end: int) -> None:
        """Take it as known that up to byte `end` the data consists of whole records."""

    def missing_end(self) -> Loss | None:
        """Return what is known to be missing after the end of the data; None if nothing is known."""

    def close(self) -> None: ...


S = TypeVar("S", bound=OpenSegment)


class LogFiles(Protocol):
    """Where the segments are stored."""

    def bases(self) -> list[int]:
        """Return the existing segments, ascending; no existing segment between two of them is left out."""

    def data(self, base: int) -> str: ...


class LogReader(Closing, Dropped, Generic[M, C_co, S]):
    """The messages of one log, from any offset on. A subclass defines its segments.

    `ahead` holds what was read and not yet handed out; its `take`, `take_some` and `take_columns` are the
    fast path, and `fill` supplies them. `losses` lists what could not be read, in order.
    """

    def __init__(self, fs: FileSystem, files: LogFiles, ahead: Ahead[M, C_co], live: LiveEnd | None) -> None:
        """Start at offset 0, with no file open: seek first.

        `live`: the log's producer, while there is one in this thread; it may be set, and set to None, at any
        time.
        """
        self._fs = fs
        self._files = files
        self._ahead = ahead
        self.live = live
        self.losses: list[SkippedBytes] = []
        self._segment: S | None = None
        self._end = 0  # the end of the data of the open segment that was read, or looked at
        self._bases: list[int] = []  # the segments that were there when they were listed last
        self._named_offset = -1  # the name of the next segment, and its path
        self._named_path = ""
        self._is_settled = False  # the open segment was idle, and was looked at closely then
        self._stuck: tuple[int, int] | None = None  # sizes at which the next message could not be decided
        self._caught_up_at: int | None = (
            None  # where the reader had caught up with the producer in this thread
        )

    @abstractmethod
    def _open_segment(self, base: int) -> S:
        """Open a segment, at its first message. Raises FileNotFoundError if it is gone, OSError."""

    @abstractmethod
    def _another(self) -> LogReader[M, C_co, S]:
        """Return another reader of the same log, at offset 0."""

    @abstractmethod
    def _out_of_range(self, offset: int, first: int, end: int | None = None) -> OffsetOutOfRangeError:
        """Return the error: there is no message `offset`.

        The first is `first`; the next is `end`, or has to be looked for.
        """

    def close(self) -> None:
        """Close the files. Idempotent. A later `seek` opens them again."""
        self._leave(self.position)

    def _unclosed(self) -> tuple[FileSystem, str] | None:
        if self._segment is None:
            return None
        return self._fs, f"reader of {self._files.data(self._segment.base)}"

    def _let_go_dropped(self) -> None:
        self.close()

    # --- where to begin ---------------------------------------------------------------------------

    def seek(self, offset: int) -> None:
        """Go to message `offset`; `next_offset()` is allowed: the reader then waits for the next message.

        Raises OffsetOutOfRangeError if the message is gone or not there yet (the reader stays where it was),
        TypeError, NotFoundError, OSError.
        """
        offset = whole_number("offset", offset)
        before = self.position
        while True:
            bases = self._bases = self._files.bases()
            first = bases[0] if bases else 0
            if offset < first or (self.live is not None and offset > self.live.next_offset):
                raise self._out_of_range(offset, first)
            if not bases and offset:
                raise self._out_of_range(offset, 0, 0)
            if not bases:
                return self._leave(0)
            if self._go_to(max(base for base in bases if base <= offset), min(offset, UNBOUNDED)):
                break  # otherwise the segment was removed at this moment
        if (end := self.position) < offset:
            self._leave(before)
            raise self._out_of_range(offset, first, end)
        return None

    def seek_oldest(self) -> None:
        """Go to the first message there is. Raises NotFoundError, OSError."""
        while True:
            first = self.first_offset()
            try:
                return self.seek(first)
            except OffsetOutOfRangeError:
                if self.first_offset() == first:
                    raise

    def seek_active(self) -> None:
        """Go to the beginning of the segment that is being written. Raises as `seek_oldest`."""
        self.seek(max(self._files.bases(), default=0))

    def seek_newest(self) -> None:
        """Go to the last message there is: it is handed out next. Go to the end, if there is none."""
        self.seek(max(self.first_offset(), self.next_offset() - 1))

    def first_offset(self) -> int:
        """Return the offset of the first message there is now. Raises NotFoundError, OSError."""
        return min(self._files.bases(), default=0)

    def next_offset(self) -> int:
        """Return the offset after the last message there is now. Raises NotFoundError, OSError."""
        if self.live is not None:
            return self.live.next_offset
        while True:
            with self._another() as reader:
                bases = self._files.bases()
                # Retention may remove what is the last segment now, if much is written meanwhile.
                with contextlib.suppress(OffsetOutOfRangeError):
                    if not bases or reader._go_to(bases[-1], UNBOUNDED):
                        return reader.position

    @property
    def position(self) -> int:
        """The offset of the message that comes next."""
        return self._ahead.next_offset

    @property
    def base(self) -> int | None:
        """The segment that is being read; None if none is open."""
        return None if self._segment is None else self._segment.base

    def _go_to(self, base: int, offset: int, near: tuple[int, int] | None = None) -> bool:
        """Go to message `offset`, or to the end, of the segment `base`. False if the segment is gone.

        `near`: a byte at or before that message where a message begins, and the offset of that one, if known.
        """
        if not self._enter(base):
            return False
        assert self._segment is not None
        if near is None:
            self._segment.approach(offset)
        else:
            self._segment.begin_at(*near)
        known = len(self.losses)
        while self.position < offset and self.fill():
            self._ahead.skip_to(offset)
        # Messages that are missing before `offset` were not asked for.
        self.losses[known:] = [gap for gap in self.losses[known:] if gap.offset + gap.count > offset]
        return True

    # --- reading ----------------------------------------------------------------------------------

    def read(self) -> M | None:
        """Return the next message, whatever the gate says; None if there is none now. Raises as `fill`."""
        while (message := self._ahead.take_now()) is None:
            if not self.fill():
                return None
        return message

    def read_many(self, max_messages: int, *, max_bytes: int = UNBOUNDED) -> list[M]:
        """Return up to `max_messages` of the next messages.

        Their keys and values have up to `max_bytes` together; the first one may be larger; the list is empty
        if there is none now. Raises as `fill`.
        """
        messages: list[M] = []
        left = max_bytes
        try:
            while len(messages) < max_messages and self.fill():
                if messages and self._ahead.next_size > left:
                    break
                more = self._ahead.take_many(max_messages - len(messages), left)
                if max_bytes < UNBOUNDED:
                    left -= sum(len(message.key) + len(message.value) for message in more)
                messages += more
        except (DiskqError, OSError):
            # The next call raises it again.
            if not messages:
                raise
        return messages

    def columns(self, max_bytes: int = UNBOUNDED) -> tuple[int, C_co] | None:
        """Return the next messages by column, with the offset of the first; None if there is none now.

        They are those that are loaded, up to `max_bytes` of the data file; the first one may be larger.
        Raises as `fill`.
        """
        while self.fill():
            first = self.position
            columns = self._ahead.take_columns(UNBOUNDED, max_bytes)
            if columns is not None:
                return first, columns
        return None

    # --- filling ----------------------------------------------------------------------------------

    def fill(self) -> bool:
        """Make messages available to the fast path. False if there are none now.

        Raises OffsetOutOfRangeError if the next message was removed meanwhile: then `seek`. Raises
        NotFoundError if the log is gone, and OSError; nothing is then passed over.
        """
        ahead = self._ahead
        while not ahead.is_ready or ahead.why != "END":
            if self._segment is None:
                self.seek(self.position)
                if self._segment is None:
                    return False
                continue
            offset = self.position
            loss = self._read_on(self._segment)
            if loss is not None:
                self._note(self._segment, loss, offset)
            elif not ahead.is_ready and not self._continue_elsewhere(self._segment):
                return False
        return True

    def _read_on(self, segment: S) -> Loss | None:
        live = self.live
        if live is None or live.base != segment.base:
            self._end = segment.size
            return segment.read_on(self._end, self._next_base(segment))
        self._end = live.end
        position = self._ahead.position
        if position >= self._end:
            self._caught_up_at = position
        covered = None
        if self._caught_up_at is not None and position >= self._caught_up_at:
            segment.believe_to(self._end)
            if self._end - position <= _JUST_WRITTEN:
                covered = position
        return segment.read_on(self._end, live.next_offset, covered)

    def _note(self, segment: S, loss: Loss, offset: int) -> None:
        count = self.position - offset
        if count or loss.end > loss.start:
            self.losses.append(
                SkippedBytes(
                    path=segment.path,
                    start=loss.start,
                    end=loss.end,
                    offset=offset,
                    count=count,
                    reason=loss.reason,
                )
            )

    # --- from one segment to the next -------------------------------------------------------------

    def _continue_elsewhere(self, segment: S) -> bool:
        """Look for more messages after the end of this segment. True: try to read again."""
        offset = self.position
        if self.live is not None and self.live.base == segment.base:
            return False
        if self._is_segment_named(offset) and self._enter(offset):
            return True
        if self._needs_listing(segment):
            return self._list_again(segment, offset)
        return False

    def _is_segment_named(self, offset: int) -> bool:
        """True if there is a segment of that name. It is called all the time while nothing comes."""
        if self._named_offset != offset:
            self._named_offset, self._named_path = offset, self._files.data(offset)
        is_ours = self._segment is not None and self._segment.base == offset
        return not is_ours and self._fs.size_of(self._named_path) is not None

    def _needs_listing(self, segment: S) -> bool:
        """True once in each segment, if some bytes cannot be explained, and if the segment is gone."""
        is_due = not self._is_settled or self._next_base(segment) is not None
        if self._end > self._ahead.position:
            # A moment ago may be too early: index entries are written after their records.
            sizes = (self._end, segment.index_size)
            is_due |= sizes == self._stuck
            self._stuck = sizes
        return is_due or self._fs.size_of(segment.path) is None

    def _list_again(self, segment: S, offset: int) -> bool:
        self._is_settled = True
        before = self._next_base(segment)
        bases = self._files.bases()
        if self._fs.size_of(segment.path) is None and (not bases or bases[-1] > offset):
            # The oldest segments are removed first: those after this one may be gone as well.
            if offset in bases:
                return True
            raise self._out_of_range(offset, bases[0] if bases else 0)
        self._bases = bases
        if segment.size != self._end:
            return True
        next_base = self._next_base(segment)
        if next_base is not None:
            nearest = max((base for base in bases if base <= offset), default=0)
            if nearest > segment.base:
                # This segment held messages that belong to other segments, by their names.
                self._go_to(nearest, offset)
                return True
            return next_base != before
        loss = segment.missing_end() if self._ahead.position >= self._end else None
        if loss is not None:
            self._note(segment, loss, offset)
        return loss is not None

    def _next_base(self, segment: S) -> int | None:
        """Return the next segment, if there was one at the last listing: then this one is complete."""
        at = bisect_right(self._bases, segment.base)
        return self._bases[at] if at < len(self._bases) else None

    def _enter(self, base: int) -> bool:
        """Go to the beginning of the segment `base`. False if there is none."""
        try:
            segment = self._open_segment(base)
        except FileNotFoundError:
            return False
        follows = self._caught_up_at is not None
        if self._segment is not None:
            self._segment.close()
        self._segment = segment
        self._is_settled = False
        self._stuck = None
        self._end = 0
        self._caught_up_at = 0 if follows and self.live is not None and self.live.base == base else None
        return True

    def _leave(self, offset: int) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        self._caught_up_at = None
        self._ahead.seek(0)
        self._ahead.next_offset = offset
