# A queue as it is now, read by columns. Law: look, and take nothing: no lock is taken, no file is changed,
# no message leaves the queue, and the process that has it open does not notice. Only the first look after a
# crash puts into the files what the redo log alone has (storage/log/reader_replay.py).
#
# A snapshot shows what the next open would deliver: from the read position that was recorded last to the
# end of the last whole message. Messages are numbered from 0 in that order; lost messages keep their
# numbers if checksums show how many they were.
#
# A plan divides it into parts that can be read by other processes, elsewhere, from their own bytes alone.
# Files are only ever appended to and removed, and numbers of files are never used again, so a part stays
# what it was, or its file is gone: then the reader reports that.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from diskq._native.core.gate import Gate
from diskq._native.core.read_ahead import ReadAhead
from diskq._native.queue.codec import MAX_BODY, NsqFraming, QueueColumns, columns, count
from diskq.engine.log.reader import SkippedBytes
from diskq.engine.queue.files import QueueFiles, QueuePosition
from diskq.engine.queue.recovery import Recovered, count_records, survey
from diskq.engine.queue.replayed import queue_replay
from diskq.errors import QueueMovedError
from diskq.storage.append_file import replace_last_rows
from diskq.storage.block_reader import BlockReader, Loss
from diskq.storage.checksums import Row, checksum
from diskq.storage.closing import Closing, Dropped
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path
from diskq.storage.lock import holder_of
from diskq.storage.log.entries import DATA, Part
from diskq.storage.log.format import read_wal
from diskq.storage.numbers import UNBOUNDED
from diskq.storage.overlay import OverlayFS
from diskq.storage.repairs import RepairKind

__all__ = [
    "OtherQueueError",
    "QueueSnapshot",
    "SnapshotRange",
    "SnapshotReader",
    "steady_survey",
    "steady_wal",
    "values_of",
    "waiting_after",
]

_CHUNK = 256 * 1024
_HEAD = 512
# The owner may remove a file during the look: then the queue is looked at again.
_MOST_LOOKS = 20


class OtherQueueError(QueueMovedError):
    """A file of this name holds other messages: there is another queue now than at the snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRange:
    """Whole messages, in bytes start:end of a file. It can be pickled, and read on its own."""

    file: int
    start: int
    end: int
    first: int
    """The number of the first message; the first of the snapshot has 0."""
    records: int
    """The number of messages, including lost ones, as far as they are known."""
    head: int
    """The crc32c of its first bytes: a file of the same name may be another queue's by now."""
    is_checked: bool
    """True if there may be checksums of these bytes. If False, existing checksums may be of other bytes."""
    is_last: bool
    """True if it reaches to the end of a complete file: more messages may be missing after it."""
    min_size: int
    """The size in bytes below which no writer wrote a message, in bytes without checksums."""
    waiting: bytes | None = None
    """The bytes themselves, if the next open puts them into the file: they were on the write-ahead log, or in
    a file that a peer has begun anew."""
    added: tuple[Row, ...] = ()
    """Checksum entries that the next open would add to those of the checksum file."""


class QueueSnapshot:
    """The messages of a queue as they are now. They stay in it."""

    def __init__(
        self, directory: AnyPath, name: str, *, min_message_size: int = 0, fs: FileSystem | None = None
    ) -> None:
        """Look at the queue `name` in `directory`, which must exist. A missing queue is empty.

        Raises QueueNameError and OSError; QueueMovedError if it is emptied faster than it can be read.
        """
        self._fs = queue_replay(fs or OsFileSystem(), as_path(directory), name).files_to_read()
        self._files = QueueFiles(self._fs, as_path(directory), name)
        self._min_size = min_message_size
        # The write-ahead log first: what is written meanwhile is then seen in the file.
        waiting = steady_wal(self._fs, self._files.wal)
        found = steady_survey(self._fs, self._files, min_message_size)
        left = {number: size for number, size in found.sizes.items() if number >= found.read.file}
        self._sizes = {number: size for number, size in left.items() if number not in found.moved}
        self._unchecked = found.unchecked
        self._added = found.added
        self._in_memory = [
            Part(0, DATA, number, 0, found.moved[number]) for number in left.keys() & found.moved
        ]
        rest = waiting_after(self._fs, self._files, waiting, self._end_of_file(found))
        self._in_memory += [] if rest is None else [rest]
        self.read = found.read
        """The place where its first message begins."""
        self.end = found.write
        """The place after its last message that is in a file."""
        self.repairs = tuple(found.repairs)
        """What is known to be missing before a message is read; one with `records` 0 is no lost message."""

    def _end_of_file(self, found: Recovered) -> QueuePosition:
        """Return the place after the last byte that was written, even if the last block is rotten."""
        end = found.write
        path = self._files.data(end.file)
        size = self._fs.size_of(path) or 0  # what was cut off after it is not there
        cut = [each for each in found.repairs if (each.path, each.kept) == (path, end.byte)]
        following = max((each.kept + each.dropped for each in cut), default=end.byte)
        return QueuePosition(end.file, max(end.byte, min(following, size)))

    @property
    def size(self) -> int:
        """The size of its records, in bytes."""
        waiting = sum(len(its.content) for its in self._in_memory)
        return sum(end - start for _, start, end in self._byte_ranges()) + waiting

    def plan(self, parts: int = 1) -> list[tuple[SnapshotRange, ...]]:
        """Divide it into up to `parts` parts of about one size, each of consecutive ranges.

        All messages are counted: by their checksums, if there are any, or by reading them. Raises OSError,
        and QueueMovedError if a file has gone.
        """
        if parts < 1:
            raise ValueError(f"{parts} parts")
        target = max(1, -(-self.size // parts))
        planned: list[tuple[SnapshotRange, ...]] = []
        part: list[SnapshotRange] = []
        filled = 0
        for part_range in self.ranges(target):
            part.append(part_range)
            filled += part_range.end - part_range.start
            if filled >= target * (len(planned) + 1) and len(planned) < parts - 1:
                planned.append(tuple(part))
                part = []
        return [*planned, tuple(part)] if part else planned

    # --- dividing ---------------------------------------------------------------------------------

    def _byte_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield where messages are, or were: the number of a file, a first byte and an end."""
        for number, end in self._sizes.items():
            start = self.read.byte if number == self.read.file else 0
            yield number, min(start, end), end

    def ranges(self, target: int) -> Iterator[SnapshotRange]:
        """Yield all of it, in order: a range ends with its file, and near each multiple of `target` bytes.

        Messages are counted as their range is yielded. Raises as `plan`.
        """
        first = done = 0
        for number, start, end in self._byte_ranges():
            is_checked, is_complete = number not in self._unchecked, number != self.end.file
            sums = self._files.checksum_file(number) if is_checked else None
            added = self._added.get(number, []) if is_checked else []
            path = self._files.data(number)
            with _Passage(
                self._fs, path, sums, start, end, first, is_complete, self._min_size, added
            ) as passage:
                while not passage.is_over:
                    goal = start + target - done % target
                    while passage.position < min(goal, end):
                        passage.skip(min(_CHUNK, goal - passage.position))
                    passage.finish()
                    if passage.position > start or passage.number > first:
                        yield SnapshotRange(
                            file=number,
                            start=start,
                            end=passage.position,
                            first=first,
                            records=passage.number - first,
                            head=passage.head(start, passage.position),
                            is_checked=is_checked,
                            is_last=is_complete and passage.is_over,
                            min_size=self._min_size,
                            added=_reaching(added, start, passage.position),
                        )
                    done += passage.position - start
                    start, first = passage.position, passage.number
        for waiting in self._in_memory:
            yield (its := self._range_of(waiting, first))
            first += its.records

    def _range_of(self, waiting: Part, first: int) -> SnapshotRange:
        return SnapshotRange(
            file=waiting.file,
            start=waiting.position,
            end=waiting.end,
            first=first,
            records=count_records(waiting.content),
            head=0,
            is_checked=False,
            is_last=False,
            min_size=0,
            waiting=waiting.content,
        )


def values_of(found: QueueColumns) -> list[bytes]:
    """Return the messages in columns."""
    offsets = memoryview(found.value_offsets).cast("q" if found.offset_width == 8 else "i")
    return [found.values[start:end] for start, end in pairwise(offsets)]


class SnapshotReader(Closing):
    """The messages of some ranges of a snapshot, in order, in any process."""

    def __init__(
        self,
        directory: AnyPath,
        name: str,
        ranges: Iterable[SnapshotRange],
        *,
        fs: FileSystem | None = None,
    ) -> None:
        self._fs = queue_replay(fs or OsFileSystem(), as_path(directory), name).files_to_read()
        self._files = QueueFiles(self._fs, as_path(directory), name)
        self._ranges = list(reversed(list(ranges)))
        self._passage: _Passage | None = None
        self.losses: list[SkippedBytes] = []
        """What could not be read, in order; `count` is 0 also if the number of lost messages is unknown."""

    def columns(self, max_bytes: int = UNBOUNDED) -> tuple[int, QueueColumns] | None:
        """Return the next messages by column, with the number of the first; None at the end.

        They are those that are loaded, up to `max_bytes` of file; the first may be larger. Messages from the
        write-ahead log come in one piece. Raises OSError, and QueueMovedError if the file has gone.
        """
        while True:
            if self._passage is not None:
                if (found := self._passage.columns(max_bytes)) is not None:
                    return found
                self.close()
            if not self._ranges:
                return None
            part_range = self._ranges.pop()
            if part_range.waiting is not None:
                return part_range.first, columns(part_range.waiting)
            self._passage = self._begin(part_range)

    def _begin(self, its: SnapshotRange) -> _Passage:
        path = self._files.data(its.file)
        sums = self._files.checksum_file(its.file) if its.is_checked else None
        passage = _Passage(
            self._fs,
            path,
            sums,
            its.start,
            its.end,
            its.first,
            its.is_last,
            its.min_size,
            its.added,
            self.losses,
        )
        try:
            if passage.head(its.start, its.end) != its.head:
                raise OtherQueueError(path, "it holds other messages than when the snapshot was made")
        except BaseException:
            passage.close()
            raise
        return passage

    def close(self) -> None:
        """Close the files. Idempotent."""
        if self._passage is not None:
            self._passage.close()
            self._passage = None


class _Passage(Closing, Dropped):
    """One pass through bytes start:end of a file, counting from `number` on; losses go to `losses`."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        checksum_file: str | None,
        start: int,
        end: int,
        number: int,
        is_complete: bool,
        min_size: int,
        added: Sequence[Row] = (),
        losses: list[SkippedBytes] | None = None,
    ) -> None:
        framing, any_size = NsqFraming(min_size, MAX_BODY), NsqFraming(0, MAX_BODY)
        self._files_of, self._path = fs, path
        self._view = OverlayFS(fs)
        try:
            if checksum_file is not None and added:
                fs = self._view
                replace_last_rows(fs, checksum_file, added)
            self._fs = fs
            self._ahead = ReadAhead(fs, framing, Gate(), any_size)
            self._reader = BlockReader(fs, self._ahead, path, checksum_file, start)
        except FileNotFoundError:
            self._view.close_all()
            raise QueueMovedError(path, "its messages were consumed, and the file is gone") from None
        except BaseException:
            self._view.close_all()
            raise
        self._end = end
        self._is_complete = is_complete
        self.is_over = False
        """True if everything was passed, and what is missing at the end was reported."""
        self._losses = [] if losses is None else losses
        self.number = number
        """The number of the next message."""

    def close(self) -> None:
        self._reader.close()
        self._view.close_all()

    def _unclosed(self) -> tuple[FileSystem, str] | None:
        return (self._files_of, f"reader of {self._path}") if self._reader.handle >= 0 else None

    def _let_go_dropped(self) -> None:
        self.close()

    @property
    def position(self) -> int:
        """The byte after everything that was passed."""
        return self._ahead.position

    def head(self, start: int, end: int) -> int:
        """Return the checksum of the first bytes of start:end."""
        return checksum(self._fs.pread(self._reader.handle, min(_HEAD, end - start), start))

    def columns(self, max_bytes: int) -> tuple[int, QueueColumns] | None:
        while self._fill():
            if (found := self._ahead.take_columns(UNBOUNDED, max_bytes)) is not None:
                first = self.number
                self.number += found.records
                return first, found
        return None

    def skip(self, most: int) -> None:
        """Pass over about `most` bytes, but a block at least, and count the messages in them."""
        if not self._skip_blocks(most):
            self._fill()
            self.number += self._ahead.count()

    def _skip_blocks(self, most: int) -> bool:
        """Pass over blocks by their checksum entries, unread and unverified. False if there are none."""
        if self._ahead.is_ready or self._ahead.why != "END":
            return False
        rows = [row for row in self._reader.rows.covering(self.position, most) if row.end <= self._end]
        if not rows or rows[0].start != self.position:
            return False
        self.number += sum(row.records for row in rows)
        self._ahead.seek(rows[-1].end)
        return True

    def _fill(self) -> bool:
        """Load messages. False if these were all."""
        while not self._ahead.is_ready or self._ahead.why != "END":
            if self.finish():
                return False
            if (loss := self._reader.fill(self._end)) is not None:
                self._note(loss)
        return True

    def finish(self) -> bool:
        """Report, at the end, what the file has lost after it. False if this is not the end."""
        if self.position >= self._end and not self.is_over:
            self.is_over = True
            if self._is_complete and (loss := self._reader.missing(self._end)) is not None:
                self._note(loss)
        return self.is_over

    def _note(self, loss: Loss) -> None:
        lost = loss.records or 0
        self._losses.append(
            SkippedBytes(
                path=self._reader.path,
                start=loss.start,
                end=loss.end,
                offset=self.number,
                count=lost,
                reason=loss.reason,
            )
        )
        self.number += lost


def _reaching(rows: Sequence[Row], start: int, end: int) -> tuple[Row, ...]:
    """Return the entries that end after byte `start`, up to the first one that reaches byte `end`."""
    following = [row for row in rows if row.end > start]
    return tuple(following[: 1 + sum(row.end < end for row in following)])


# --- looking --------------------------------------------------------------------------------------


def steady_survey(fs: FileSystem, files: QueueFiles, min_size: int = 0) -> Recovered:
    """Return a `survey` made also while the queue is in use, with the checksums on the write-ahead log.

    Raises QueueMovedError, OSError.
    """
    framing, any_size = NsqFraming(min_size, MAX_BODY), NsqFraming(0, MAX_BODY)
    files.numbers()  # raises now, if there is no directory
    before: list[tuple[str, int, RepairKind]] = []
    for _ in range(_MOST_LOOKS):
        try:
            is_free = holder_of(fs, files.lock)[1] is False
            found = survey(fs, files, framing, any_size, is_free=is_free)
        except FileNotFoundError:
            continue
        # If the owner is at work, what seems to be missing may just have come, or gone.
        seen = [(repair.path, repair.kept, repair.kind) for repair in found.repairs]
        if seen == before:
            return found
        before = seen
    raise QueueMovedError(files.directory, "messages are removed faster than the queue can be read")


def steady_wal(fs: FileSystem, path: str) -> Part | None:
    """Return what is on the write-ahead log; None also if its owner changes it all the time.

    Raises OSError.
    """
    for _ in range(_MOST_LOOKS):
        found = read_wal(fs, path)
        if found is None or read_wal(fs, path) == found:
            return found
    return None


def _holds(fs: FileSystem, path: str, start: int, content: bytes) -> bool:
    """True if `content` is in the file from byte `start` on."""
    try:
        handle = fs.open(path)
    except FileNotFoundError:  # read to its end at this moment
        return False
    try:
        return fs.pread(handle, len(content), start) == content
    finally:
        fs.close(handle)


def waiting_after(fs: FileSystem, files: QueueFiles, waiting: Part | None, end: QueuePosition) -> Part | None:
    """Return the messages on the write-ahead log that follow the end of the files.

    None also if another program's bytes are in their place: the next open appends them. Raises OSError.
    """
    if waiting is None or waiting.file != end.file:
        return None
    known = end.byte - waiting.position
    if not 0 <= known < len(waiting.content):
        return None
    records = waiting.content[known:]
    if known and not _holds(fs, files.data(end.file), waiting.position, waiting.content[:known]):
        return None
    whole = count(records).valid_end
    return waiting._replace(position=end.byte, content=records[:whole]) if whole else None
