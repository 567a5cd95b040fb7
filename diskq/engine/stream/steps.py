# The steps of a stream: for a channel, which can wait between them, and for the stream's writer, whose
# format it is. Law: the caller of a step holds the thread guard, and a step never waits for a sync, unless
# it says so.

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal

from diskq._native.core.message import Position
from diskq._native.stream.append_buffer import Changes, StreamRouter, TripletBuffer
from diskq._native.stream.codec import TripletFraming, count, key_hash
from diskq.engine.log.engine import Admission, DirectorySteps, Mode
from diskq.engine.log.message_checks import as_body, as_key
from diskq.engine.log.opening import LeftBehind, LogOpening, NewLogs
from diskq.engine.log.recovery import FoundLog, trust_of_points
from diskq.engine.log.recovery_points import (
    RecoveryPoint,
    RecoveryPoints,
    leave_points,
    missing_start,
    read_points,
)
from diskq.engine.log.segment import SegmentedLog
from diskq.engine.log.sync import exclusive
from diskq.engine.log.timestamps import as_timestamp
from diskq.engine.stream.disk_share import INDEX_BYTES, BudgetObstacle, StreamDiskShare, size_on_disk
from diskq.engine.stream.files import PartitionFiles, StreamFiles, read_first
from diskq.engine.stream.groups import slowest
from diskq.engine.stream.owner import OwnerFile, owner_state
from diskq.engine.stream.recovery import recover_partition, redo_source
from diskq.engine.stream.retention import PartitionRetention, RetentionReport, remove_oldest, retain
from diskq.engine.stream.segment import TripletSegment
from diskq.engine.stream.segment_ages import SegmentAges
from diskq.engine.stream.settings import StreamSettings, read_settings, settings_as, settings_of
from diskq.engine.stream.time_summary import forget_from, forget_removed
from diskq.engine.stream.transactions import roll_forward as rollforward
from diskq.engine.stream.transactions import side_by_side
from diskq.engine.stream.transactions.adoption import Adoption, describe
from diskq.engine.stream.transactions.staging import Extent, StagedFile, StagedReader, least_size
from diskq.engine.stream.transactions.transaction import Intent, Transaction, forget_finished, pending
from diskq.errors import DiskFullError, DiskqError, FullError, MessageSizeError, StorageFailedError
from diskq.options import StreamOptions
from diskq.storage.append_file import AppendFile
from diskq.storage.barrier import Barrier, Replacement, keep_path
from diskq.storage.budget import BLOCK, WALS_IN_A_BUDGET, BudgetShare
from diskq.storage.fs import AnyPath, FileSystem, directory_of
from diskq.storage.log.entries import Displaced
from diskq.storage.log.format import ROWS_SIZE, WAL_SIZE
from diskq.storage.log.replay import Redone
from diskq.storage.log_events import Log
from diskq.storage.redo_log import LEAST_SIZE
from diskq.storage.repairs import Repair, RepairKind, keep_content
from diskq.storage.write_ahead_log import RESERVE

__all__ = ["Item", "Key", "StreamSteps", "Value", "When", "key_maker"]

log = Log("stream")

Value = bytes | bytearray | memoryview
Key = str | bytes | None
When = datetime | int | None
Item = Value | tuple[Key, Value] | tuple[Key, Value, When]

StreamObstacle = Literal["unsynced"] | BudgetObstacle
"""Why a message cannot be accepted now: it waits for a sync, or for space in the budget."""

# Bytes of encoded records in one write; and the number of records whose index entries may wait.
_AT_ONCE = 256 * 1024
_MANY_ROWS = 16 * 1024
# A redo log may take this part of a budget.
_REDO_LOGS_IN_A_BUDGET = 64
# How many partitions have a write-ahead log: each is a mapped file.
_MOST_WALS = 64


class _WrittenPartition:
    """One partition that is written to."""

    def __init__(self, files: PartitionFiles, segment: TripletSegment, bases: list[int]) -> None:
        self.files = files
        self.segment = segment
        self.buffer = segment.buffer
        self.log = SegmentedLog(segment, bases)
        self._settled = -1  # records whose data is in a prepared barrier
        self._indexed = -1  # the offset before which entries are in a prepared barrier

    @property
    def point(self) -> RecoveryPoint:
        """The recovery point of the partition."""
        return self.segment.point._replace(first=self.log.bases[0])

    def settle(self) -> tuple[int, ...]:
        """Return the handles of data and checksums, if a barrier has to sync them. Raises OSError."""
        records = self.buffer.records_written
        if records == self._settled:
            return ()
        data = self.segment.settle()
        self._settled = records
        return data

    def settle_rows(self) -> tuple[int, ...]:
        """Return the handles of the indexes, if a barrier has to sync them."""
        if self.buffer.rows_written == self._indexed:
            return ()
        self._indexed = self.buffer.rows_written
        return self.segment.rows


class _Changed:
    """The partitions of which something is still to be done, each of these once. All by their numbers.

    Nothing that is done for a message, a turn or a sync walks over the others, of which there may be many.
    """

    __slots__ = ("_changes", "not_ready", "to_age", "to_index", "to_log", "to_mark", "to_settle")

    def __init__(self) -> None:
        self._changes: Changes | None = None
        self.not_ready: set[int] = set()
        """Those that may not take a record without `_make_way`."""
        self.to_settle: set[int] = set()
        """Those with data that may be in no prepared barrier."""
        self.to_index: set[int] = set()
        """Those with index entries that may be in no prepared barrier."""
        self.to_log: set[int] = set()
        """Those with data that may be durable nowhere."""
        self.to_mark: set[int] = set()
        """Those whose time index summary may be behind."""
        self.to_age: set[int] = set()
        """Those whose active segment may have got its first message. Taken only if segments have an age."""

    def follow(self, router: StreamRouter, count: int) -> None:
        """Note the partitions that this router writes to, the first `count`; forget others."""
        self.look()
        self._changes = router.changes()
        for noted in (self.not_ready, *self._noted):
            noted.intersection_update(range(count))

    def look(self) -> None:
        """Take in which partitions were written to."""
        if self._changes is not None and (found := self._changes.take()):
            for noted in self._noted:
                noted.update(found)

    def note(self, index: int) -> None:
        """Note that a partition was written to, and may not take a record without `_make_way`."""
        for noted in (self.not_ready, *self._noted):
            noted.add(index)

    @property
    def _noted(self) -> tuple[set[int], ...]:
        """The sets in which a partition is noted once it was written to."""
        return (self.to_settle, self.to_index, self.to_log, self.to_mark, self.to_age)


class StreamSteps(DirectorySteps):
    """A stream's messages on their way into its files, and the format of its writer.

    `Stream` opens it; `log.close` closes it.
    """

    def __init__(
        self,
        path: AnyPath,
        options: StreamOptions,
        fs: FileSystem,
        clock: Callable[[], float] | None,
        time_slice: float | None,
        uses_wal: bool,
    ) -> None:
        self.options = options
        super().__init__(fs, path, self.options, log, "stream", clock, time_slice)
        self.files = StreamFiles(fs, self.path)
        self._gate = self.log.new_gate()
        self._partitions: list[_WrittenPartition] = []
        self._changed = _Changed()
        self._others: dict[int, RecoveryPoint] = {}  # points of partitions that are not written to
        self.has_pending_rows = False
        """True if a disk has refused index entries that are still to be written."""
        self._uses_wal = uses_wal
        self._reported_future: set[tuple[int, int]] = set()  # partition and base of segments
        self.share: BudgetShare | None = None
        """The share of the disk budget that this stream uses, or None."""
        self._disk_share: StreamDiskShare | None = None
        self._could_not_drop = False
        self._ages = None if options.segment_age is None else SegmentAges(options.segment_age)
        if self._ages is not None:
            self.log.policy.timeout = min(self.log.policy.timeout, self._ages.age)
        self._takes_over = self._was_ours = False
        self._made_owner: OwnerFile | None = None  # in this open, while it may fail
        self._old_settings: StreamSettings | None = None
        self._intent: Intent | None = None  # of a transaction that is to be carried out

    # --- opening ----------------------------------------------------------------------------------

    def open(self, take_over: bool) -> None:
        """Lock the stream, repair what a crash has left, and continue after the last messages.

        Raises as `Stream`.
        """
        self._takes_over = take_over
        opening = LogOpening(self._fs, self, self.files, log, root=self.path, guarded=self._what)
        try:
            opening.run()
        except BaseException:
            # The next producer must not find an owner file that did not exist before.
            if self._made_owner is not None:
                with contextlib.suppress(OSError):
                    Barrier(removals=self._made_owner.removals()).execute(self._fs)
            raise
        self._made_owner = None
        self._join_budget()

    def prepare(self) -> None:
        _make_with_parents(self._fs, self.path)
        private_parts = directory_of(self.files.partition(0).private)
        self.log.make_directories(self.path, self.files.private, private_parts, self.files.parts)
        self.log.on_release(self._leave_budget)

    def look(self, opening: LogOpening) -> LeftBehind:
        fs, files = self._fs, self.files
        self._was_ours = owner_state(fs, files) == "ours"
        return LeftBehind(self, redo_source(fs, files, self._count), in_place=self._was_ours)

    def claim(self, opening: LogOpening) -> None:
        fs, files = self._fs, self.files
        if not self._was_ours:
            opening.wals.clear_empty()
            # Before diskq's owner file says that no peer has written since the points were noted.
            leave_points(fs, files, opening.state, read_points(fs, files))
        self._owner = OwnerFile(fs, files, take_over=self._takes_over)
        self._made_owner = None if self._was_ours else self._owner
        self.log.repairs += self._owner.repairs
        self._read_settings()

    def judge(self, redone: Redone) -> None:
        """Decide nothing."""

    def recover(self, opening: LogOpening) -> Sequence[Repair]:
        self._intent = pending(self._fs, self.files) if self.files.has_transactions else None
        self._open_partitions(opening, self._intent)
        self._make_router()
        return ()

    def begin(self) -> None:
        settings = () if self.settings == self._old_settings else (settings_as(self.files, self.settings),)
        self.log.begin((*settings, *self.metadata()), can_wait=not settings)

    def carry_out(self) -> None:
        """Carry out a transaction whose intent is durable. Only after it may more be appended."""
        if self._intent is not None:
            self.roll_forward(self._intent, is_new=False)
            self._retire(self.settings.partitions)
            self._intent = None
        elif self.files.has_transactions:
            forget_finished(self._fs, self.files)
        if self._ages is not None:
            self._ages.resume(self._found_ages(), self.log.clock())

    def new_logs(self) -> NewLogs:
        stagings = {index: its.files.staging for index, its in enumerate(self._partitions)}
        buffers = {index: its.buffer for index, its in enumerate(self._partitions[:_MOST_WALS])}
        return NewLogs(stagings, buffers, is_for_rows=not self._uses_wal)

    def appends(self) -> Iterable[AppendFile[TripletBuffer]]:
        return (its.segment.append for its in self._partitions)

    def unlogged(self) -> Iterable[tuple[int, AppendFile[TripletBuffer]]]:
        changed = self._changed
        changed.look()
        found = [(index, self._partitions[index].segment.append) for index in sorted(changed.to_log)]
        unlogged = [(index, append) for index, append in found if append.buffer.flushed > append.logged]
        changed.to_log = {index for index, _ in unlogged}
        return unlogged

    def abandon(self) -> None:
        with contextlib.ExitStack() as stack:
            for partition in self._partitions:
                stack.callback(partition.segment.abandon)

    @property
    def most_redo(self) -> int:
        """The most bytes that the redo log may have: a small part of a budget, and 0 in a small one."""
        options = self.options
        most = options.redo_log_size
        if options.budget is not None:
            most = min(most, options.budget.max_bytes // _REDO_LOGS_IN_A_BUDGET)
        return most if most >= LEAST_SIZE and options.sync_to == "log" else 0

    def _wals_size(self, *, is_for_rows: bool) -> int:
        """Return the bytes of the write-ahead logs, if they are only for checksums, or for messages, too."""
        count = min(_MOST_WALS, self.settings.partitions)
        return count * ROWS_SIZE if is_for_rows else count * WAL_SIZE + RESERVE

    def _read_settings(self) -> None:
        """Take the settings that the stream has, or give it its own. Raises DiskFullError without space."""
        fs, files = self._fs, self.files
        existing = self._old_settings = read_settings(fs, files)
        self.settings = settings_of(self.options, existing, files.settings)
        self._framing = TripletFraming(
            self.options.min_message_size,
            self.options.max_message_size,
            self.options.max_key_size,
            self.settings.encoding == "varuint",
        )
        if self.options.budget is not None:
            bounds = (self.settings.retention_max_bytes, self.settings.retention_max_age_ns)
            self._disk_share = StreamDiskShare(
                fs,
                files,
                self.options.budget,
                self.settings.roll_size,
                has_retention=any(bound is not None for bound in bounds),
            )
            self._uses_wal = self._uses_wal and self._wals_size(is_for_rows=False) <= (
                self.options.budget.max_bytes // WALS_IN_A_BUDGET
            )
            if existing is None and not files.partitions():
                logs = self._wals_size(is_for_rows=not self._uses_wal) + self.most_redo
                self._disk_share.check_new(self.settings.partitions, logs)

    def _make_router(self) -> None:
        self.router = StreamRouter(
            [partition.buffer for partition in self._partitions],
            self._framing,
            self._gate,
            key_maker(self._fs),
            None if self._fs.native else self._wall_clock_ns,
            self._on_full,
        )
        self._changed.follow(self.router, len(self._partitions))
        self._write = self.router.appender(Mode.WRITTEN, Admission.FORCED)
        self._hold = self.router.appender(Mode.HELD, Admission.FORCED)

    def _retire(self, count: int) -> None:
        """Close partitions beyond the first `count`: they were open for a transaction, which is done."""
        if len(self._partitions) == count:
            return
        for partition in self._partitions[count:]:
            self._others[partition.files.index] = partition.point
            partition.segment.abandon()
        del self._partitions[count:]
        self._make_router()

    def _leave_budget(self) -> None:
        if self.share is not None:
            if self.log.is_dropped:
                self.share.drop()
            else:
                self.share.close()

    def _on_full(self, index: int) -> None:
        self._changed.not_ready.add(index)  # until space is reserved for the next segment's checksums
        if self._ages is not None:
            self._ages.forget(index)
        self.log.segment_filled(self._partitions[index].log)

    def _open_partitions(self, opening: LogOpening, intent: Intent | None) -> None:
        points = read_points(self._fs, self.files)
        if points.is_readable and not points.partitions:
            keep_path(self._fs, self.path)  # once: if there are points, it was done
        self.log.pending.removals += self.files.leftovers()
        there = self.files.partitions()
        # A transaction may be pending for partitions that are no longer written to.
        refilled = [] if intent is None else [index + 1 for index in intent.shares]
        count = max(self.settings.partitions, *refilled, 0)
        for index in there:
            if index < count:
                self.files.partition(index).check_names()
        for index in range(count):
            self._open_partition(opening, index, points, intent)
        # Partitions that are no longer written to are left whole, and keep their recovery points.
        for index in points.partitions if points.is_readable else there:
            if index < count:
                continue
            if index not in there:
                self._others[index] = points.partitions[index]
            elif points.is_closed:
                self._others[index] = self._left_as_it_is(index, points.partitions[index])
            else:
                found = self._recovered(opening, index, points, None)
                bases = found.bases or [found.next_offset]
                self._others[index] = RecoveryPoint(bases[-1], found.end, found.next_offset, bases[0])

    def _left_as_it_is(self, index: int, point: RecoveryPoint) -> RecoveryPoint:
        """Return the new point of a partition that needs no recovery. Its first segments may be missing."""
        files = self.files.partition(index)
        bases = files.bases()
        if not bases:
            return point
        noted, first = point.first, read_first(self._fs, files)
        missing = missing_start(bases, files.checksum_files(), files.data, noted=noted, first=first)
        if missing is not None:
            self.log.repairs.append(missing)
            self.log.pending.removals += files.orphans(bases)
        return point._replace(first=bases[0])

    def _recovered(
        self, opening: LogOpening, index: int, points: RecoveryPoints, intent: Intent | None
    ) -> FoundLog:
        files = self.files.partition(index)
        refilled, differs_at = range(0), None
        if intent is not None and index in intent.shares:
            refilled = intent.shares[index].offsets
            differs_at = partial(
                rollforward.differs_at, self._fs, self.files, intent, index, varuint=self._framing.varuint
            )
        self.log.make_directories(files.private)
        wals = opening.wals
        found = recover_partition(
            self._fs,
            files,
            self._framing,
            self.log.pending,
            point=points.partitions.get(index),
            trust=trust_of_points(points, index, wals, was_ours=self._was_ours),
            strict=self.options.strict,
            refilled=refilled,
            differs_at=differs_at,
            staged=wals.restored.get(index),
            has_wal=index < _MOST_WALS and not wals.was_unlogged,
        )
        opening.note_found(found.repairs, self._count)
        return found

    def _count(self, records: bytes) -> int:
        return count(records, self._framing.varuint).records

    def _open_partition(
        self, opening: LogOpening, index: int, points: RecoveryPoints, intent: Intent | None
    ) -> None:
        files = self.files.partition(index)
        self.log.make_directories(files.directory)
        found = self._recovered(opening, index, points, intent)
        if found.changed_from is not None:
            forget_from(self._fs, files, found.changed_from)
        bases = found.bases or [found.next_offset]
        roll_size = self.settings.roll_size
        if self._disk_share is not None:
            roll_size = self._disk_share.settle_roll_size(self.settings.partitions)
        segment = TripletSegment(self._fs, files, self._framing, self._gate, roll_size)
        segment.buffer.number(index, found.next_offset)
        partition = _WrittenPartition(files, segment, bases)
        changed = self._changed
        segment.append.on_not_ready = partial(changed.not_ready.add, index)
        for noted in (changed.not_ready, changed.to_settle, changed.to_index, changed.to_mark):
            noted.add(index)
        self._partitions.append(partition)
        segment.resume(bases[-1], found.end, found.rows, self.log.pending)

    def append_again(self, displaced: Displaced) -> None:
        """Append accepted messages again, durably, if another producer has written in their place."""
        path, part = displaced
        number = part.group
        records = count(part.content, self._framing.varuint).records
        reason = f"its bytes from {part.position} on are another producer's: {records} accepted before "
        dropped = lost = 0
        aside = None
        if number < len(self._partitions):
            first, point = self.next_offset(number), self._partitions[number].segment.point
            self.accept_encoded(number, part.content)
            self.log.pending.directories[self.path] = None  # so that the barrier syncs the entries, too
            self.log.sync()
            if (point.base, point.end) == (part.file, part.position):
                return  # in their place
            reason += f"are appended again from offset {first} on"
        else:
            reason += "are kept aside, as this partition is no longer written to"
            aside = keep_content(self._fs, self.files.partition(number).wal, part.content)
            dropped, lost = len(part.content), records
        self.log.repairs.append(
            Repair(
                path=path,
                kind=RepairKind.DISPLACED,
                kept=part.position,
                dropped=dropped,
                reason=reason,
                records=lost,
                saved_as=aside,
            )
        )

    # --- messages ---------------------------------------------------------------------------------

    def accept(self, value: Value, key: Key, timestamp: When, *, is_held: bool) -> Position:
        """Append one message that has no `obstacle`. Its entries wait for `flush`. Raises as `append`."""
        self._make_way()
        append = (self._hold if is_held else self._write).append
        try:
            position = append(value, key, timestamp)
            if position is None:
                key, value, timestamp = self.checked(value, key, timestamp)
                position = append(value, key, timestamp)
        except OSError as failure:
            self.log.append_failed(failure)
        assert position is not None
        return position

    def accept_many(self, batch: list[Any], key: Key, timestamp: When, *, is_held: bool) -> dict[int, range]:
        """Append messages of `checked_many` that have no `obstacle`. Their index entries wait for `flush`."""
        key = as_key(key, self.options.max_key_size)
        if timestamp is not None:
            timestamp = as_timestamp(timestamp)
        done = 0
        mode = Mode.HELD if is_held else Mode.STAGED
        self.router.begin_batch()
        try:
            while done < len(batch):
                self._make_way()
                try:
                    done = self.router.append_many(batch, done, key, timestamp, mode)
                except OSError as failure:
                    self.log.append_failed(failure)
        except FullError as full:
            accepted = sum(self.router.taken().values())
            raise type(full)(
                full.path, full.reason, accepted, self.router.left_out(batch)
            ) from full.__cause__
        except OSError as failure:
            failure.add_note(f"{sum(self.router.taken().values())} messages of the batch were accepted")
            raise
        starts = self.router.batch_starts
        return {
            index: range(starts[index], starts[index] + taken)
            for index, taken in sorted(self.router.taken().items())
        }

    @exclusive
    def accept_encoded(self, partition: int, data: bytes | memoryview) -> None:
        """Append encoded records to a partition; with barriers, if too many bytes are unsynced.

        The index entries wait for `flush`. Raises as `accept`, and as `sync`; some records are then appended.
        """
        its = self._partitions[partition]
        end = len(data)
        at = 0
        while at < end:
            while self.log.is_too_much_unsynced(min(_AT_ONCE, end - at)):
                self.log.sync()
            self._make_way(its)
            try:
                at = self.router.append_encoded(partition, data, at)
            except OSError as failure:
                self.log.append_failed(failure)
            if its.buffer.written_offset - its.buffer.rows_written >= _MANY_ROWS:
                self.log.flush()

    def may_adopt(self, extent: Extent) -> bool:
        """True if this staged file, whose only extent it is, may become the next segment of its partition.

        It may not if the last segment is empty: that has the name, and readers may have it open.
        """
        buffer = self._partitions[extent.partition].buffer
        segment = self._partitions[extent.partition].segment
        is_begun = segment.is_open and buffer.next_offset > buffer.base
        is_large = extent.size >= least_size(self.settings.roll_size)
        return is_begun and is_large and self._disk_share is None

    @exclusive
    def adopt(self, staged: Iterable[StagedFile]) -> None:
        """Let staged files, for which `may_adopt` is true, become segments: one for each of some partitions.

        They are durable then, and so is all that was accepted before. Raises as `accept`, and as `sync`; and
        CorruptionError.
        """
        fs, pending = self._fs, self.log.pending
        varuint = self._framing.varuint

        def described(due: tuple[StagedFile, Extent, int]) -> Adoption:
            file, extent, base = due
            with StagedReader(fs, self.files, file.name, varuint=varuint) as reader:
                return describe(fs, self.files, reader, extent, base, pending, varuint=varuint)

        try:
            due = []
            for file in staged:
                extent = file.whole
                assert extent is not None
                its = self._partitions[extent.partition]
                its.segment.finish(pending)
                if self._ages is not None:
                    self._ages.forget(extent.partition)
                due.append((file, extent, its.buffer.next_offset))
            adoptions = side_by_side.each(fs, described, due)
        except OSError as failure:
            self.log.append_failed(failure)
        self.log.sync()
        Barrier(installs=tuple(pair for each in adoptions for pair in each.installs)).execute(fs)
        for extent, base, checksum_bytes, _ in adoptions:
            its = self._partitions[extent.partition]
            its.buffer.adopt(extent.records)
            its.segment.resume(base, extent.size, checksum_bytes, pending)
            its.log.bases.append(base)
            self._changed.note(extent.partition)

    def checked(
        self, value: Value, key: Key, timestamp: When
    ) -> tuple[str | bytes | None, bytes, int | None]:
        """Return key, value and timestamp as the compiled router takes them.

        Raises TypeError, ValueError, MessageSizeError and KeySizeError before anything is written.
        """
        value = as_body(value, "a message's value")
        if not self.options.min_message_size <= len(value) <= self.options.max_message_size:
            raise MessageSizeError(len(value), self.options.min_message_size, self.options.max_message_size)
        key = as_key(key, self.options.max_key_size)
        return key, value, None if timestamp is None else as_timestamp(timestamp)

    def checked_many(self, items: Iterable[Item], key: Key, timestamp: When) -> list[Any]:
        """Return the batch as the compiled router takes it. Raises as `checked`; nothing is written."""
        self.log.check_usable()
        self.checked(b"x" * self.options.min_message_size, key, timestamp)
        batch: list[Any] = list(items)
        odd = self.router.first_odd(batch)
        while odd >= 0:
            item = batch[odd]
            if isinstance(item, tuple):
                if not 2 <= len(item) <= 3:
                    raise TypeError(
                        f"a message is (key, value) or (key, value, timestamp), not {len(item)} items"
                    )
                batch[odd] = self.checked(item[1], item[0], item[2] if len(item) == 3 else timestamp)
            else:
                batch[odd] = self.checked(item, None, None)[1]
            odd = self.router.first_odd(batch, odd + 1)
        return batch

    def obstacle(self, size: int) -> StreamObstacle | None:
        """Return what keeps `size` more bytes (`size_of`) from being accepted now, or None."""
        if super().obstacle(size):
            return "unsynced"
        if self._disk_share is None:
            return None
        may_drop, self._could_not_drop = not self._could_not_drop, False
        return self._disk_share.obstacle(size, self.router, may_drop=may_drop)

    def size_of(self, value: bytes, key: Key) -> int:
        """Return the size of one message for `obstacle`: with a budget, all that it takes on the disk."""
        if self._disk_share is None:
            return len(value)
        return self.size_of_many([(key, value)], None)

    def size_of_many(self, batch: list[Any], key: Key) -> int:
        """Return the size of a batch of `checked_many` for `obstacle`."""
        if self._disk_share is None:
            return self.router.size_of(batch)
        return size_on_disk(self.router.room_of(batch, as_key(key, self.options.max_key_size)), len(batch))

    def roll_forward(self, intent: Intent, *, is_new: bool) -> None:
        """Carry out a committed transaction. If that fails nothing is appended until the next open."""
        try:
            varuint = self._framing.varuint
            rollforward.roll_forward(self, self._fs, intent, varuint=varuint, is_new=is_new)
        except FullError as full:
            which = f"epoch {intent.epoch} of sink {intent.sink!r}"
            reason = f"the disk is full; {which} is committed, and continues when the stream is opened again"
            refused = DiskFullError(self.path, reason)
            self.log.refuse(refused)
            raise refused from full
        except BaseException as failure:
            if self.log.failure is None and isinstance(failure, OSError):
                self.log.fail(failure)
            if self.log.failure is None:
                self.log.refuse(failure if isinstance(failure, DiskqError) else StorageFailedError(self.path))
            self.log.shut()
            raise

    def _make_way(self, only: _WrittenPartition | None = None) -> None:
        """Open segments for the next message, as go-diskq would choose them."""
        self.seal_aged()
        try:
            if self.has_pending_rows:
                self._write_rows()
            not_ready = self._changed.not_ready
            for partition in [self._partitions[index] for index in not_ready] if only is None else (only,):
                if not partition.segment.is_ready:
                    if partition.segment.is_full:
                        self.log.roll(partition.log)
                    partition.segment.prepare()
        except OSError as failure:
            self.log.append_failed(failure)

    # --- segments by age --------------------------------------------------------------------------

    def _found_ages(self) -> dict[int, float]:
        """Return the ages in seconds of the active segments that have messages, by partition."""
        now, ages = self._wall_clock_ns(), {}
        for index, partition in enumerate(self._partitions):
            first = partition.segment.first_timestamp()
            if first is not None:
                ages[index] = max(0, now - first) / 1e9  # a message may be stamped in the future
        return ages

    @property
    def segment_due(self) -> float:
        """When the next segment is complete by its age, on the clock of the writer; infinity: none is."""
        return math.inf if self._ages is None else self._ages.next_due

    @exclusive
    def seal_aged(self) -> None:
        """Complete the segments that are as old as `segment_age`, and make a sync due for each of them.

        What cannot be done now, since the disk is full, is done before the partition's next message.
        """
        if self._ages is None or self._ages.next_due > (now := self.log.clock()):
            return
        for index in self._ages.take_due(now):
            if index < len(self._partitions):
                self._partitions[index].segment.seal()
                self._on_full(index)
                self.log.policy.force()

    def _note_ages(self) -> None:
        """Note which active segments have got their first message."""
        if self._ages is None:
            return
        self._changed.look()
        now = self.log.clock()
        for index in self._changed.to_age:
            buffer = self._partitions[index].buffer
            if buffer.next_offset > buffer.base:
                self._ages.begin(index, now)
        self._changed.to_age.clear()

    # --- retention --------------------------------------------------------------------------------

    def remove_old(self) -> RetentionReport:
        """Remove segments as `vacuum` does, without updating notes: in any thread, while others append."""
        report = retain(
            self._fs,
            self.files,
            now_ns=self._wall_clock_ns(),
            max_bytes=self.settings.retention_max_bytes,
            max_age_ns=self.settings.retention_max_age_ns,
            age_rule=self.options.age_rule,
            keep_from=self._keep_from(),
        )
        self._report_future(report)
        return report

    def _report_future(self, report: RetentionReport) -> None:
        """Log, once for each segment, that a message in it is stamped in the future."""
        found = {(each.partition, each.base): each for each in report.from_future}
        for key in found.keys() - self._reported_future:
            each = found[key]
            log.report("future_timestamp", "%s: %s", self.path, each, path=self.path, offset=each.base)
        self._reported_future |= found.keys()

    def _keep_from(self) -> dict[int, int] | None:
        """Return the offsets from which groups have still to read, if messages are kept for groups."""
        if not self.options.keep_for_groups:
            return None
        needed = {index: slowest(self._fs, self.files, index) for index in self.files.partitions()}
        return {index: offset for index, offset in needed.items() if offset is not None}

    @exclusive
    def forget_removed(self, report: RetentionReport) -> None:
        """Drop notes about removed segments. In the thread that appends."""
        for removed in report.partitions:
            # A note that stays costs a little time, and no more.
            with contextlib.suppress(OSError):
                forget_removed(self._fs, self.files.partition(removed.partition))
        if self._disk_share is not None:
            self._disk_share.forget((p.partition, base) for p in report.partitions for base in p.removed)
            self.relieve()

    # --- the budget that it shares ----------------------------------------------------------------

    def _join_budget(self) -> None:
        if self._disk_share is not None:
            self.router.index_bytes = INDEX_BYTES
            wals = self.log.wals.size if self.log.wals is not None else 0
            wals += self.most_redo
            self.share = self._disk_share.join(self._partitions, wals, self.options.on_full, self.router)
            self.log.note()

    @property
    def missing(self) -> int:
        """The bytes to be dropped, for this stream or because another member of the budget asks for it."""
        if self.share is None:
            return 0
        return max(self.share.asked, self.share.missing)

    def make_room(self, wanted: int) -> RetentionReport:
        """Remove what retention does not keep; and then, with `drop_oldest`, more, up to `wanted` bytes.

        In any thread, as `remove_old`.
        """
        kept: tuple[PartitionRetention, ...] = ()
        if self._disk_share is not None and self._disk_share.has_retention:
            report = self.remove_old()
            kept, wanted = report.partitions, wanted - report.removed_bytes
        if self.options.on_full == "drop_oldest" and wanted > 0:
            kept += remove_oldest(self._fs, self.files, wanted, keep_from=self._keep_from()).partitions
        return RetentionReport(partitions=kept)

    @exclusive
    def dropped(self, report: RetentionReport) -> None:
        """Note the result of `make_room`. In the thread that appends."""
        if self.share is not None:
            self.share.asked = 0
        self._could_not_drop = not report.partitions
        self.forget_removed(report)

    @property
    def is_contended(self) -> bool:
        """True if other members want space that `make_room` might free here."""
        if self._disk_share is None or self.share is None:
            return False
        return self.share.asked > 0 or (self._disk_share.has_retention and self.share.is_contended)

    @exclusive
    def relieve(self) -> None:
        """Return to the budget what is not needed."""
        if self._disk_share is not None and self.share is not None:
            self._disk_share.settle(self.router)

    def full_error(self, size: int) -> FullError:
        """Return the error for the obstacles `over_budget` and `others`, for a caller that will not wait."""
        assert self._disk_share is not None
        return self._disk_share.full_error(size)

    @property
    def content(self) -> str:
        return f"{self.partition_count} partitions"

    @property
    def partition_count(self) -> int:
        """The number of partitions that are written to."""
        return len(self._partitions)

    def partition_of(self, key: bytes) -> int:
        """Return the partition that messages of that key go to."""
        return key_hash(key) % len(self._partitions)

    def live(self, partition: int) -> TripletSegment | None:
        """Return the active segment of a partition, for readers of this thread; None if it has none."""
        return self._partitions[partition].segment if partition < len(self._partitions) else None

    def next_offset(self, partition: int) -> int:
        """Return the offset that the partition's next message gets."""
        return self._partitions[partition].buffer.next_offset

    @property
    def next_offsets(self) -> tuple[int, ...]:
        """For each partition, the offset that its next message gets."""
        return tuple(partition.buffer.next_offset for partition in self._partitions)

    def transaction_records(self, transaction: Transaction) -> dict[int, int]:
        """Return how many of its records each partition gets. Raises as `rollforward.verified`."""
        varuint, count = self._framing.varuint, self.partition_count
        return rollforward.verified(self._fs, self.files, transaction, count, varuint=varuint)

    # --- the format of its writer: see format.py --------------------------------------------------

    @property
    def passed(self) -> int:
        return self.router.records

    @property
    def accepted_bytes(self) -> int:
        return self.router.accepted_bytes

    @property
    def written_bytes(self) -> int:
        return self.router.accepted_bytes - self.router.waiting_bytes

    def open_gates(self, left: int, unsynced: int) -> None:
        not_ready = self._changed.not_ready
        for index in not_ready:
            if (failure := self._partitions[index].segment.append.failure) is not None:
                raise failure
        self._note_ages()
        room = self.log.policy.bytes_until_check(unsynced)
        if self._disk_share is not None and self.share is not None:
            # Minus the part of the checksums, and the key of the last message that fits.
            most = self._disk_share.left(self.router)
            room = min(room, most - (most >> 7) - BLOCK)
        self.router.room = room
        for index in [index for index in not_ready if self._partitions[index].segment.is_ready]:
            not_ready.discard(index)
        self._gate.left = 0 if not_ready or self.has_pending_rows else left

    @property
    def is_flushed(self) -> bool:
        return self.router.is_flushed

    def flush(self) -> None:
        try:
            self.router.flush()
        finally:
            self._write_rows()

    def flush_records(self) -> bool:
        self.router.flush()
        return not self.router.is_flushed

    def _write_rows(self) -> None:
        """Write the index entries of written records. Raises OSError; nothing is written after them then."""
        self.has_pending_rows = True
        try:
            self.router.write_rows()
            self.has_pending_rows = False
        finally:
            changed = self._changed
            changed.look()
            while changed.to_mark:
                self._partitions[changed.to_mark.pop()].segment.rows_are_written()

    def cut_back(self) -> None:
        for index in self.router.active_partitions:
            self._partitions[index].segment.cut_back()

    def settle(self, with_metadata: bool) -> tuple[int, ...]:
        """Return the handles of records and checksums, enough for recovery; with metadata, of indexes too."""
        handles: list[int] = []
        changed = self._changed
        changed.look()
        for index in sorted(changed.to_settle):
            handles += self._partitions[index].settle()
        changed.to_settle.clear()
        if with_metadata:
            for index in sorted(changed.to_index):
                handles += self._partitions[index].settle_rows()
            changed.to_index.clear()
        return tuple(handles)

    def metadata(self) -> tuple[Replacement, ...]:
        is_closing = self.log.is_closing
        # On a full disk entries may be missing; only an open that does not trust this close makes them anew.
        is_closed = is_closing and all(its.segment.has_all_rows for its in self._partitions)
        points = {partition.files.index: partition.point for partition in self._partitions}
        rest = RecoveryPoints(is_closed, points | self._others).render()
        return (self.log.state.replacing(rest, is_last=is_closing and not self.router.waiting_bytes),)

    def state(self) -> None:
        return None

    def completed(self, state: None, is_replaced: bool) -> None:
        self.relieve()

    def finish(self) -> None:
        writer = self.log
        # Messages that could not be written stay in the write-ahead log for the next open, which is to come
        # before a peer: so the owner file stays.
        if not (writer.wals and self.router.waiting_bytes):
            with contextlib.suppress(OSError):
                writer.pending.removals += self._owner.removals()
        sync = writer.prepare(full=True)
        writer.run(sync)
        # A power cut would bring the owner file back, and no go-diskq producer could open it.
        writer.pending.directories[self.path] = None
        # Through the lock's handle: no descriptor may be left to open the directory.
        writer.commit((writer.lock.handle,))
        if writer.wals is not None:
            writer.wals.retire()
        writer.raise_left_out(sync)


def key_maker(fs: FileSystem) -> Callable[[], bytes]:
    """Return what makes keys for messages that have none: random UUIDs (version 4) in 32 hex digits.

    Only their seed is drawn from the system: two system calls for each key take longer than all else of it.
    """
    draw = random.Random(fs.unique_number() << 63 | fs.unique_number()).getrandbits

    def new_key() -> bytes:
        high, low = divmod(draw(126), 1 << 62)
        return b"%016x%016x" % (high & ~0xF000 | 0x4000, low | 1 << 63)

    return new_key


def _make_with_parents(fs: FileSystem, path: str) -> None:
    """Make the directory and its parents. The caller syncs the parents if it has to be durable."""
    try:
        fs.make_directory(path)
    except FileNotFoundError:
        if path == directory_of(path):
            raise
        _make_with_parents(fs, directory_of(path))
        fs.make_directory(path)
