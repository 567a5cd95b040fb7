# Auditing a stream. Law: the audit changes nothing and trusts nothing; and it does not report what a
# producer, or retention, is doing at this moment.
#
# It audits a segment at a time, so that the work can be distributed: a process, or a machine, takes a task,
# and its result is small. For each segment it checks that
#
#   every block has the checksum with which it was written
#   the data consists of records, and ends with the end of a record
#   the index and the timeindex have exactly the entries that the records imply
#   its offsets continue without a gap into the next segment
#
# A reader tolerates more: it reads on after damage, and usually loses less than a strict check suggests. So
# if something is wrong, a reader counts how many messages cannot be read.
#
# In the segment that is written to, index entries come after their records (both programs write in this
# order): so the size of the index is read first, and bytes after the last entry's record are not judged.

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
from diskq.engine.stream.replayed import stream_replay
from diskq.engine.stream.settings import read_settings
from diskq.errors import NotFoundError, OffsetOutOfRangeError
from diskq.storage.checksums import Row, Rows
from diskq.storage.fs import FileSystem, OsFileSystem
from diskq.storage.numbers import UNBOUNDED
from diskq.storage.repairs import RepairKind

__all__ = ["AuditTask", "SegmentAudit", "Trouble", "audit_segment", "audit_tasks", "examine_segment"]

DATA, INDEX, TIMEINDEX = range(3)
NAMES = ("data", "index", "timeindex")

_STRETCH = 256 * 1024
_STAMP = struct.Struct("<q")


class AuditTask(NamedTuple):
    """A segment to audit. `next_base`: where the next one begins; None if the segment is written to."""

    partition: int
    base: int
    next_base: int | None


class Trouble(NamedTuple):
    """One fault of a segment."""

    kind: RepairKind
    """TORN for the end of an interrupted write: the next open repairs it, and no whole message is lost."""
    path: str
    at: int | None
    """The byte in that file; None if there is no such file."""
    what: str
    """The fault in words, for people."""
    size: int | None = None
    """Bytes from there on that are concerned; None: unknown, or no bytes are."""
    missing: range = range(0)
    """Offsets that no segment has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentAudit:
    """The result for one segment. Timestamps are nanoseconds since 1970, None if there is no message."""

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
    """How many of the bytes are covered by a checksum that agrees."""
    lost: int
    """How many messages cannot be read, as far as they can be counted."""
    problem: str | None
    """What is wrong; None if nothing is."""

    @property
    def checksummed_share(self) -> float:
        """The checksummed share of the data: 0.0 (all of a peer, or recent) to 1.0 (also if empty)."""
        return self.checksummed / self.size if self.size else 1.0


def audit_tasks(path: str, fs: FileSystem | None = None) -> list[AuditTask]:
    """Return the audit tasks of the stream: one for each segment, by partition and offset.

    A partition that is in the settings, but is missing or has no segment, gets a task with base 0: the audit
    then reports what is missing. Raises NotFoundError, UnsupportedFormatError, OSError.
    """
    fs = stream_replay(fs or OsFileSystem(), path).shown_files()
    files = StreamFiles(fs, path)
    there = set(files.partitions())
    if (settings := read_settings(fs, files)) is not None:
        there.update(range(settings.partitions))
    tasks = []
    for partition in sorted(there):
        bases: list[int] = []
        with contextlib.suppress(NotFoundError):
            bases = files.partition(partition).bases()
        tasks += [AuditTask(partition, base, next_base) for base, next_base in pairwise(bases)]
        tasks.append(AuditTask(partition, bases[-1] if bases else 0, None))
    return tasks


def audit_segment(path: str, task: AuditTask, fs: FileSystem | None = None) -> SegmentAudit | None:
    """Audit one segment of the stream. Returns None if retention removed it meanwhile.

    Damage is reported, never raised. Raises UnsupportedFormatError if the stream's settings cannot be read,
    and OSError if the disk cannot.
    """
    examined = examine_segment(path, task, fs)
    return None if examined is None else examined[0]


def examine_segment(
    path: str, task: AuditTask, fs: FileSystem | None = None, *, judges_tail: bool = False
) -> tuple[SegmentAudit, list[Trouble]] | None:
    """Audit one segment, as `audit_segment`, and also return its faults one by one.

    With `judges_tail`, bytes after the published end of the segment that is written to are reported as well:
    for a caller that knows that no process is writing it.
    """
    fs = stream_replay(fs or OsFileSystem(), path).shown_files()
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
    with contextlib.suppress(NotFoundError):
        if files.bases():
            return None
    problem = "the partition has no segment"
    return _segment_audit(task, problem=problem), [Trouble(RepairKind.LOST, files.directory, None, problem)]


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
    """The audit of one segment, whose files are open."""

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
        """Open the files. Raises FileNotFoundError if the data file is gone."""
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
        # The index first, and its size before anything else: all records of its entries exist by then.
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
        self._unlike: set[int] = set()  # files of which a wrong entry was reported already

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

    # --- records, with their checksums and their entries ------------------------------------------

    def _pass_through(self) -> tuple[int, tuple[int | None, int | None]]:
        """Compare every record with its entries. Returns the number of records, and the first and last time.

        A stretch is read once: its blocks are compared with their checksums while it is in memory.
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
        """Return the bytes that the torn record at the start needs at least."""
        return rows_of(self._framing, stretch, 0, 0).claimed

    def _report_end(self, position: int, records: int, most: int) -> None:
        if self._is_complete and position < (end := self._fs.size(self._data)):
            what = f"no record begins at byte {position} of the data: {end - position} bytes are left"
            self._report(RepairKind.CORRUPT, DATA, position, what, end - position)
        elif not self._is_complete and records < most:
            what = f"the index has {most} messages, the data has {records}"
            self._report(RepairKind.LOST, DATA, position, what)
        elif not self._is_complete and self._judges_tail:
            self._judge_tail(position, records)

    def _judge_tail(self, position: int, records: int) -> None:
        """Report what follows the last published message, at byte `position`: an interrupted write."""
        size = self._fs.size(self._data)
        if position < size:
            data = self._fs.pread(self._data, size - position, position)
            found = rows_of(self._framing, data, self._task.base + records, position)
            whole = f"{found.records} whole messages, and " if found.records else ""
            left = size - position - found.valid_end
            if found.stop == "CORRUPT" and data[found.valid_end :].strip(b"\0"):
                at = position + found.valid_end
                what = f"no record begins at byte {at} of the data: {left} bytes are left"
                self._report(RepairKind.CORRUPT, DATA, at, what, left)
            else:
                what = f"{whole}{left} bytes follow the last one in the index"
                if not left:
                    what = f"{found.records} whole messages follow the last one in the index"
                self._report(RepairKind.TORN, DATA, position, what, size - position)
        for which, handle, row_size in self._row_files():
            surplus = self._size(handle) - records * row_size
            if surplus >= row_size and which == TIMEINDEX and position == size:
                what = f"{surplus} bytes of the timeindex belong to no record"
                self._report(RepairKind.STALE, which, records * row_size, what, surplus)
            elif surplus % row_size:
                what = f"{surplus % row_size} bytes of an entry are at the end of the {NAMES[which]}"
                self._report(RepairKind.TORN, which, records * row_size, what, surplus)

    def _row_files(self) -> tuple[tuple[int, int | None, int], ...]:
        return (INDEX, self._index, INDEX_ROW_SIZE), (TIMEINDEX, self._timeindex, TIMEINDEX_ROW_SIZE)

    def _compare(self, stretch: memoryview, count: int, before: int, position: int) -> tuple[int, int]:
        """Compare the whole records of the stretch with their entries. Returns their first and last time."""
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
            self._report(RepairKind.REBUILT, which, None, f"there is no {name}")
        elif is_missing:
            # It is written after the index: the entries of the last messages may be missing.
            is_torn = not self._is_complete and which == TIMEINDEX
            kind = RepairKind.TORN if is_torn else RepairKind.REBUILT
            self._report(kind, which, at, f"the {name} ends before offset {offset}")
        else:
            what = f"the {name}'s entry of offset {offset} disagrees with its record"
            self._report(RepairKind.REBUILT, which, at, what)

    # --- checksums --------------------------------------------------------------------------------

    def _verify_loaded(self, position: int, end: int) -> int:
        """Compare the blocks from `position` on, as far as they are loaded. Returns where they end.

        If no block begins there, that is the end of the loaded bytes: without checksums, framing is believed.
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
        """Compare the blocks that `_pass_through` did not reach: after damage, or after the published end."""
        while rows := self._rows.covering(self._checked, _STRETCH):
            start, end = rows[0].start, rows[-1].end
            data = memoryview(self._fs.pread(self._data, end - start, start))
            self._judge_blocks(data, rows[0], end)

    def _judge_blocks(self, data: memoryview, row: Row, end: int) -> None:
        """Compare consecutive blocks, from the one of `row` on up to byte `end`, with the start of `data`."""
        matching_end = self._rows.matching_end(data) if len(data) >= row.end - row.start else row.start
        self._good += matching_end - row.start
        self._checked = end
        if matching_end < end:
            broken = self._rows.first_after(matching_end)
            assert broken is not None, "a block that was compared"
            self._checked = broken.end
            self._bad += 1
            self._first_bad = self._first_bad or (broken, row.start + len(data))

    def _report_checksums(self) -> None:
        """Report the first block that disagrees with its checksum."""
        if self._first_bad is None:
            return
        row, file_end = self._first_bad
        more = f", nor have {self._bad - 1} other blocks" if self._bad > 1 else ""
        if row.end > file_end:
            what = f"the data ends at byte {file_end}, its checksums go on to {row.end}"
            trouble = Trouble(RepairKind.LOST, self._paths[DATA], file_end, what, row.end - file_end)
        else:
            what = f"bytes {row.start} to {row.end} of the data do not have their checksum{more}"
            trouble = Trouble(RepairKind.CORRUPT, self._paths[DATA], row.start, what, row.end - row.start)
        self.troubles.insert(0, trouble)

    # --- ends -------------------------------------------------------------------------------------

    def _check_ends(self, records: int) -> None:
        """Check that a complete segment has no surplus entries, and that the next one continues it."""
        base, next_base = self._task.base, self._task.next_base
        assert next_base is not None
        for which, handle, row_size in self._row_files():
            if (surplus := self._size(handle) - records * row_size) > 0:
                what = f"{surplus} bytes of the {NAMES[which]} belong to no record"
                self._report(RepairKind.STALE, which, records * row_size, what, surplus)
        if base + records < next_base:
            what = (
                f"offsets {base + records} to {next_base - 1} are missing: the next segment begins after them"
            )
            end = self._fs.size(self._data)
            self._report(RepairKind.LOST, DATA, end, what, missing=range(base + records, next_base))
        elif base + records > next_base:
            what = f"it holds {base + records - next_base} messages more than offsets"
            self._report(RepairKind.FOREIGN, DATA, self._fs.size(self._data), what)

    def _report(
        self,
        kind: RepairKind,
        which: int,
        at: int | None,
        what: str,
        size: int | None = None,
        missing: range = range(0),
    ) -> None:
        self.troubles.append(Trouble(kind, self._paths[which], at, what, size, missing))

    # --- what a reader makes of it ----------------------------------------------------------------

    def _read(self) -> tuple[int, tuple[int | None, int | None], int]:
        """Return how many messages a reader gets, the first and last time, and how many are lost."""
        task = self._task
        end = task.next_base if task.next_base is not None else task.base + self._published
        records = 0
        times: list[int] = []
        with PartitionReader(self._fs, self._files, varuint=self._framing.varuint) as reader:
            with contextlib.suppress(OffsetOutOfRangeError, NotFoundError):
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
