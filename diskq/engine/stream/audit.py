# Is a stream as it should be? Law: look, change nothing, believe nothing; and raise no alarm over what a
# producer, or retention, is doing at this moment.
#
# A segment at a time, so that the work can be shared out: a process, or a machine, takes a task, and what
# it tells is small. Of each segment it is asked whether
#
#   every block has the checksum with which it was written
#   the data is records and nothing else, and its end is the end of one
#   the index and the timeindex hold what the records ask for, row by row, and no row more
#   its offsets go on without a gap into the next segment
#
# What a reader makes of damage is another question: it reads on, and mostly more is left than a strict eye
# would believe. So where something is wrong, a reader counts how many messages cannot be had.
#
# In the segment that is written to, rows of the index come after their records (both programs write in
# this order): so its size is asked first, and what lies behind is not judged.

from __future__ import annotations

import contextlib
import struct
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from diskq._native.core.gate import Gate
from diskq._native.core.read_ahead import ReadAhead
from diskq._native.stream.codec import INDEX_ROW_SIZE, TIMEINDEX_ROW_SIZE, TripletFraming, count
from diskq._native.stream.index_entries import compare_rows, rows_of
from diskq.engine.stream.files import PartitionFiles, StreamFiles
from diskq.engine.stream.partition_reader import PartitionReader
from diskq.engine.stream.settings import read_settings
from diskq.errors import OffsetOutOfRangeError, StreamNotFoundError
from diskq.storage.checksums import Row, Rows
from diskq.storage.fs import FileSystem, OsFileSystem
from diskq.storage.numbers import UNBOUNDED

__all__ = ["AuditTask", "SegmentAudit", "Trouble", "audit_segment", "audit_tasks", "examine_segment"]

DATA, INDEX, TIMEINDEX = range(3)
NAMES = ("data", "index", "timeindex")

_STRETCH = 256 * 1024
_STAMP = struct.Struct("<q")


class AuditTask(NamedTuple):
    """A segment to be looked at. `next_base`: where the one behind begins; None: it is written to."""

    partition: int
    base: int
    next_base: int | None


class Trouble(NamedTuple):
    """One thing that is wrong with a segment."""

    path: str
    at: int | None
    """The byte in that file; None: there is no such file."""
    what: str
    is_torn: bool = False
    """It is the end of a write that was cut off: the next open mends it, and no whole message is lost."""
    missing: range = range(0)
    """Offsets that no segment has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentAudit:
    """One segment as it was found. Timestamps are nanoseconds since 1970; None where there is no message."""

    partition: int
    base: int
    records: int
    """The messages that can be read."""
    size: int
    """Bytes of data."""
    first_offset: int | None
    last_offset: int | None
    first_timestamp_ns: int | None
    last_timestamp_ns: int | None
    checksummed: int
    """For so many of the bytes a checksum vouches."""
    lost: int
    """The messages that cannot be read, as far as they can be counted."""
    problem: str | None
    """What is wrong; None: nothing."""

    @property
    def checksummed_share(self) -> float:
        """From 0.0 (a peer wrote all of it, or it is young) to 1.0; of nothing, all."""
        return self.checksummed / self.size if self.size else 1.0


def audit_tasks(path: str, fs: FileSystem | None = None) -> list[AuditTask]:
    """What there is to look at in the stream: its segments, by partition and offset.

    Of a partition that its settings name, and that is not there, or has no segment, the task says base 0:
    to audit it tells what is missing. Raises StreamNotFoundError, UnsupportedFormatError, OSError.
    """
    fs = fs or OsFileSystem()
    files = StreamFiles(fs, path)
    there = set(files.partitions())
    if (settings := read_settings(fs, files)) is not None:
        there.update(range(settings.partitions))
    tasks = []
    for partition in sorted(there):
        bases: list[int] = []
        with contextlib.suppress(StreamNotFoundError):
            bases = files.partition(partition).bases()
        tasks += [AuditTask(partition, base, next_base) for base, next_base in pairwise(bases)]
        tasks.append(AuditTask(partition, bases[-1] if bases else 0, None))
    return tasks


def audit_segment(path: str, task: AuditTask, fs: FileSystem | None = None) -> SegmentAudit | None:
    """Look at one segment of the stream, closely. None: it is gone, retention took it meanwhile.

    Damage is told, never raised. Raises UnsupportedFormatError where the stream's settings cannot be read,
    and OSError where the disk cannot.
    """
    examined = examine_segment(path, task, fs)
    return None if examined is None else examined[0]


def examine_segment(
    path: str, task: AuditTask, fs: FileSystem | None = None, *, judges_tail: bool = False
) -> tuple[SegmentAudit, list[Trouble]] | None:
    """As `audit_segment`; and its problem piece by piece.

    With `judges_tail` all that lies behind the published end of the segment that is written to is told as
    well: for who knows that nobody is writing it.
    """
    fs = fs or OsFileSystem()
    stream = StreamFiles(fs, path)
    settings = read_settings(fs, stream)
    framing = TripletFraming(varuint=settings is not None and settings.encoding == "varuint")
    files = stream.partition(task.partition)
    with ExitStack() as stack:
        try:
            audit = _Audit(fs, files, task, framing, stack, judges_tail=judges_tail)
        except FileNotFoundError:
            return _absent(files, task)
        return audit.run(), audit.troubles


def _absent(files: PartitionFiles, task: AuditTask) -> tuple[SegmentAudit, list[Trouble]] | None:
    with contextlib.suppress(StreamNotFoundError):
        if files.bases():
            return None
    problem = "the partition has no segment"
    return _segment_audit(task, problem=problem), [Trouble(files.directory, None, problem)]


def _segment_audit(
    task: AuditTask,
    *,
    records: int = 0,
    size: int = 0,
    offsets: tuple[int | None, int | None] = (None, None),
    times: tuple[int | None, int | None] = (None, None),
    checksummed: int = 0,
    lost: int = 0,
    problem: str | None,
) -> SegmentAudit:
    return SegmentAudit(
        partition=task.partition,
        base=task.base,
        records=records,
        size=size,
        first_offset=offsets[0],
        last_offset=offsets[1],
        first_timestamp_ns=times[0],
        last_timestamp_ns=times[1],
        checksummed=checksummed,
        lost=lost,
        problem=problem,
    )


class _Audit:
    """One segment, its files open."""

    def __init__(
        self,
        fs: FileSystem,
        files: PartitionFiles,
        task: AuditTask,
        framing: TripletFraming,
        stack: ExitStack,
        *,
        judges_tail: bool,
    ) -> None:
        """Raises FileNotFoundError where its data file is gone."""
        self._fs = fs
        self._files = files
        self._task = task
        self._framing = framing
        self.troubles: list[Trouble] = []
        self._judges_tail = judges_tail
        self._is_complete = task.next_base is not None

        def opened(path: str) -> int | None:
            with contextlib.suppress(FileNotFoundError):
                handle = fs.open(path)
                stack.callback(fs.close, handle)
                return handle
            return None

        data, index, timeindex = self._paths = files.segment(task.base)
        # The index first, and before anything else its size: all that it tells of is there by then.
        self._index = opened(index)
        self._published = self._size(self._index) // INDEX_ROW_SIZE
        self._timeindex = opened(timeindex)
        self._data = fs.open(data)
        stack.callback(fs.close, self._data)
        self._rows = Rows(fs, files.checksum_file(task.base))
        stack.callback(self._rows.close)
        self._ahead = ReadAhead(fs, framing, Gate())
        self._checked = self._good = self._bad = 0
        self._first_bad: tuple[Row, int] | None = None
        self._unlike: set[int] = set()  # files of which a row was told already

    def _size(self, handle: int | None) -> int:
        return 0 if handle is None else self._fs.size(handle)

    def run(self) -> SegmentAudit:
        task = self._task
        records, times = self._pass_through()
        self._verify_rest()
        self._report_checksums()
        if self._is_complete:
            self._check_ends(records)
        size = self._fs.size(self._data)
        lost = 0
        problems = [trouble.what for trouble in self.troubles]
        if problems:
            records, times, lost = self._read()
            problems.append(f"{lost} messages cannot be read" if lost else "every message can be read")
        return _segment_audit(
            task,
            records=records,
            size=size,
            offsets=(task.base, task.base + records + lost - 1) if records else (None, None),
            times=times,
            checksummed=self._good,
            lost=lost,
            problem="; ".join(problems) or None,
        )

    # --- records, with their checksums and their rows ---------------------------------------------

    def _pass_through(self) -> tuple[int, tuple[int | None, int | None]]:
        """Every record with its rows. How many follow each other, and the first and the last time.

        A stretch is read once: its blocks are compared with their checksums while it is at hand.
        """
        most = UNBOUNDED if self._is_complete else self._published
        position = records = 0
        first = last = None
        size = _STRETCH
        while records < most:
            loaded = self._ahead.load(self._data, position, size)
            end = self._verify_loaded(position, position + loaded)
            stretch = self._ahead.view(position, end)
            found = count(stretch, self._framing.varuint, most - records)
            if not found.records:
                # What the loaded bytes do not hold may be a large record, or none at all.
                claimed = self._claimed(stretch)
                is_all = loaded < size and end == position + loaded
                if found.stop != "TORN" or is_all or position + claimed > self._fs.size(self._data):
                    break
                size = max(2 * size, claimed)
                continue
            times = self._compare(stretch[: found.valid_end], found.records, records, position)
            first, last = times[0] if first is None else first, times[1]
            records += found.records
            position += found.valid_end
            size = _STRETCH
        self._report_end(position, records, most)
        return records, (first, last)

    def _claimed(self, stretch: memoryview) -> int:
        """Bytes that the torn record at its start needs at least."""
        return rows_of(self._framing, stretch, 0, 0).claimed

    def _report_end(self, position: int, records: int, most: int) -> None:
        if self._is_complete and position < (end := self._fs.size(self._data)):
            what = f"no record begins at byte {position} of the data: {end - position} bytes are left"
            self._report(DATA, position, what)
        elif not self._is_complete and records < most:
            self._report(DATA, position, f"the index has {most} messages, the data has {records}")
        elif not self._is_complete and self._judges_tail:
            self._judge_tail(position, records)

    def _judge_tail(self, position: int, records: int) -> None:
        """What lies behind the last published message, at byte `position`: of a write that was cut off."""
        size = self._fs.size(self._data)
        if position < size:
            data = self._fs.pread(self._data, size - position, position)
            found = rows_of(self._framing, data, self._task.base + records, position)
            whole = f"{found.records} whole messages, and " if found.records else ""
            left = size - position - found.valid_end
            if found.stop == "CORRUPT" and data[found.valid_end :].strip(b"\0"):
                at = position + found.valid_end
                self._report(DATA, at, f"no record begins at byte {at} of the data: {left} bytes are left")
            elif left:
                self._report(DATA, position, f"{whole}{left} bytes follow the last one in the index", True)
            else:
                what = f"{found.records} whole messages follow the last one in the index"
                self._report(DATA, position, what, True)
        for which, handle, row_size in self._row_files():
            surplus = self._size(handle) - records * row_size
            if surplus >= row_size and which == TIMEINDEX and position == size:
                self._report(
                    which, records * row_size, f"{surplus} bytes of the timeindex belong to no record"
                )
            elif surplus % row_size:
                what = f"{surplus % row_size} bytes of an entry are at the end of the {NAMES[which]}"
                self._report(which, records * row_size, what, True)

    def _row_files(self) -> tuple[tuple[int, int | None, int], ...]:
        return (INDEX, self._index, INDEX_ROW_SIZE), (TIMEINDEX, self._timeindex, TIMEINDEX_ROW_SIZE)

    def _compare(self, stretch: memoryview, count: int, before: int, position: int) -> tuple[int, int]:
        """The whole records of the stretch with their rows. Their first and their last time."""
        rows = [
            self._read_rows(handle, which, count, before, row_size)
            for which, handle, row_size in self._row_files()
        ]
        found = compare_rows(self._framing, stretch, self._task.base + before, position, *rows)
        for (which, handle, row_size), content, good in zip(self._row_files(), rows, found[:2], strict=True):
            if good < count and which not in self._unlike:
                self._unlike.add(which)
                self._report_entry(which, handle, before + good, len(content) < (good + 1) * row_size)
        return found.first_timestamp, found.last_timestamp

    def _read_rows(self, handle: int | None, which: int, count: int, before: int, row_size: int) -> bytes:
        if handle is None or which in self._unlike:
            return b""
        return self._fs.pread(handle, count * row_size, before * row_size)

    def _report_entry(self, which: int, handle: int | None, number: int, is_missing: bool) -> None:
        offset, name = self._task.base + number, NAMES[which]
        at = number * (INDEX_ROW_SIZE, TIMEINDEX_ROW_SIZE)[which - INDEX]
        if handle is None:
            self._report(which, None, f"there is no {name}")
        elif is_missing:
            # It is written behind the index: of the last messages its rows may be missing.
            is_torn = not self._is_complete and which == TIMEINDEX
            self._report(which, at, f"the {name} ends before offset {offset}", is_torn)
        else:
            self._report(which, at, f"the {name}'s entry of offset {offset} disagrees with its record")

    # --- checksums --------------------------------------------------------------------------------

    def _verify_loaded(self, position: int, end: int) -> int:
        """Compare the blocks from `position` on, as far as they are loaded. Returns where they end.

        Where none begins there, that is the end of what is loaded: who has none is believed by its framing.
        """
        if position != self._checked:
            return end
        row = self._rows.first_after(position)
        if row is None or row.start != position or row.end > end:
            return end
        reach = self._rows.reach(end - position, end)
        assert reach is not None, "the first row's block at least"
        self._judge_blocks(self._ahead.view(position, reach), row, reach)
        return reach

    def _verify_rest(self) -> None:
        """The blocks that `_pass_through` did not come by: behind damage, or behind what is published."""
        while rows := self._rows.covering(self._checked, _STRETCH):
            start, end = rows[0].start, rows[-1].end
            data = memoryview(self._fs.pread(self._data, end - start, start))
            self._judge_blocks(data, rows[0], end)

    def _judge_blocks(self, data: memoryview, row: Row, end: int) -> None:
        """Blocks that follow each other, from that of `row` to byte `end`; `data` begins with them."""
        agreeing = self._rows.agreeing(data) if len(data) >= row.end - row.start else row.start
        self._good += agreeing - row.start
        self._checked = end
        if agreeing < end:
            broken = self._rows.first_after(agreeing)
            assert broken is not None, "a block that was compared"
            self._checked = broken.end
            self._bad += 1
            self._first_bad = self._first_bad or (broken, row.start + len(data))

    def _report_checksums(self) -> None:
        """The first block that is not as it was written."""
        if self._first_bad is None:
            return
        row, file_end = self._first_bad
        more = f", nor have {self._bad - 1} other blocks" if self._bad > 1 else ""
        if row.end > file_end:
            what = f"the data ends at byte {file_end}, its checksums go on to {row.end}"
            self.troubles.insert(0, Trouble(self._paths[DATA], file_end, what))
        else:
            what = f"bytes {row.start} to {row.end} of the data do not have their checksum{more}"
            self.troubles.insert(0, Trouble(self._paths[DATA], row.start, what))

    # --- ends -------------------------------------------------------------------------------------

    def _check_ends(self, records: int) -> None:
        """Of a complete segment: nothing is behind the last row, and the next one goes on where it ends."""
        base, next_base = self._task.base, self._task.next_base
        assert next_base is not None
        for which, handle, row_size in self._row_files():
            if (surplus := self._size(handle) - records * row_size) > 0:
                what = f"{surplus} bytes of the {NAMES[which]} belong to no record"
                self._report(which, records * row_size, what)
        if base + records < next_base:
            what = (
                f"offsets {base + records} to {next_base - 1} are missing: the next segment begins after them"
            )
            end = self._fs.size(self._data)
            self._report(DATA, end, what, missing=range(base + records, next_base))
        elif base + records > next_base:
            what = f"it holds {base + records - next_base} messages more than offsets"
            self._report(DATA, self._fs.size(self._data), what)

    def _report(
        self, which: int, at: int | None, what: str, is_torn: bool = False, missing: range = range(0)
    ) -> None:
        self.troubles.append(Trouble(self._paths[which], at, what, is_torn, missing))

    # --- what a reader makes of it ----------------------------------------------------------------

    def _read(self) -> tuple[int, tuple[int | None, int | None], int]:
        """How many messages a reader gets, the first and the last time, and how many are lost to it."""
        task = self._task
        end = task.next_base if task.next_base is not None else task.base + self._published
        records = 0
        times: list[int] = []
        with PartitionReader(self._fs, self._files, varuint=self._framing.varuint) as reader:
            with contextlib.suppress(OffsetOutOfRangeError, StreamNotFoundError):
                reader.seek(task.base)
                while reader.position < end and (found := reader.columns(_STRETCH)) is not None:
                    first, columns = found
                    count = min(columns.records, end - first)
                    if count > 0:
                        stamps = columns.timestamps
                        times += [_STAMP.unpack_from(stamps, at)[0] for at in (0, (count - 1) * _STAMP.size)]
                        records += count
            lost = end - task.base - records
        return records, (times[0], times[-1]) if times else (None, None), max(0, lost)
