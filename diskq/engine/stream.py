# A stream, and the one who writes it: partitions in go-diskq's files. Law: a message goes where its
# key belongs, offsets are dense and given once, and what is acknowledged is what the word says.
#
# Synchronous, and complete in itself; the Trio channel (diskq.channels.stream) drives the same
# object, takes its barriers inline and has them paid in a thread. Whoever reads needs no stream:
# see partitionreader.py.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal, NoReturn, Self

from diskq._native.gate import Gate
from diskq._native.message import Position
from diskq._native.triplet import TripletFraming, count, key_hash
from diskq._native.tripletbuffer import StreamDoor
from diskq._native.turn import Turn
from diskq.engine import rollforward
from diskq.engine.alone import alone
from diskq.engine.contents import as_body, as_key
from diskq.engine.duebarrier import sync_if_due
from diskq.engine.groups import slowest
from diskq.engine.retention import PartitionRetention, RetentionReport, remove_oldest, retain
from diskq.engine.segmentedlog import SegmentedLog
from diskq.engine.streamfiles import PartitionFiles, StreamFiles
from diskq.engine.streamowner import OwnerFile, owner_state
from diskq.engine.streampoints import Point, Points, leave_points, read_points
from diskq.engine.streamrecovery import Found, recover_partition
from diskq.engine.streamroom import BESIDE, RoomObstacle, StreamRoom, room_size
from diskq.engine.streamsettings import read_settings, settings_as, settings_of
from diskq.engine.timemarks import forget_from, forget_removed
from diskq.engine.timestamps import as_timestamp
from diskq.engine.transactions import Committed, Intent, Transaction, pending
from diskq.engine.tripletsegment import TripletSegment
from diskq.errors import (
    BusyError,
    DiskFullError,
    DiskqError,
    MessageSizeError,
    StorageFailedError,
)
from diskq.options import Durability, StreamOptions, checked_durability, checked_options
from diskq.storage.barrier import NO_ROOM, Barrier, Debts, Replacement, close_all, keep_path, write_over
from diskq.storage.budget import BLOCK, Share
from diskq.storage.callbacks import check_plain
from diskq.storage.closing import Closing
from diskq.storage.fs import FULL_DISK_ERRNOS, AnyPath, FileSystem, OsFileSystem, as_path, directory_of
from diskq.storage.lock import Lock
from diskq.storage.logs import Log
from diskq.storage.numbers import UNBOUNDED
from diskq.storage.recovery import Repair, keep_content
from diskq.storage.slates import Slates
from diskq.storage.swap import finish_swap
from diskq.storage.syncpolicy import SyncPolicy

__all__ = ["Item", "Key", "Stream", "StreamTicket", "Value", "When", "new_key"]

log = Log("stream")

Value = bytes | bytearray | memoryview
Key = str | bytes | None
When = datetime | int | None
Item = Value | tuple[Key, Value] | tuple[Key, Value, When]

StreamObstacle = Literal["unsynced"] | RoomObstacle
"""Why a message cannot be accepted now: it waits for a sync, or for room in the budget."""

_A_DAY = 86_400.0
# So many handles of complete segments may wait to be synced and closed.
_MANY_WAITING = 64
# So many bytes, of all partitions, are looked at again after a power cut at most, beside whole segments.
_POINT_EVERY = 16 * 1024 * 1024
_MOST_WAITING = 256
# So many bytes of encoded records go into one write; and of so many records rows wait.
_AT_ONCE = 256 * 1024
_MANY_ROWS = 16 * 1024
# So many partitions have a slate: each is a mapped file.
_MOST_SLATES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTicket:
    """A barrier taken and not yet paid, and what is true once it is."""

    barrier: Barrier
    written: int
    """Of all bytes ever accepted, this many are then durable."""
    has_metadata: bool
    left_out: DiskFullError | None
    """What was accepted and waits to be written found no room, and is not durable then."""


class _Partition:
    """One partition that is written to."""

    def __init__(self, files: PartitionFiles, segment: TripletSegment, bases: list[int]) -> None:
        self.files = files
        self.segment = segment
        self.buffer = segment.buffer
        self.log = SegmentedLog(segment, bases)
        self.settled = -1  # so many records' data a barrier has been taken for,
        self.indexed = -1  # and the rows of those before this offset

    def handles(self, *, with_rows: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What of it a barrier has to sync: data and checksums, and rows. Raises OSError."""
        records = self.buffer.records_written
        data: tuple[int, ...] = ()
        rows: tuple[int, ...] = ()
        if records != self.settled:
            data = self.segment.settle()
            self.settled = records
        if with_rows and self.buffer.rows_written != self.indexed:
            rows = self.segment.rows
            self.indexed = self.buffer.rows_written
        return data, rows


class Stream(Closing):
    """A stream open for writing: messages go to its partitions, in the order in which they are appended.

    For one process at a time, and one thread at a time: a call while another thread is inside raises
    BusyError, and does nothing.
    """

    def __init__(
        self,
        path: AnyPath,
        options: StreamOptions | None = None,
        *,
        take_over: bool = False,
        fs: FileSystem | None = None,
        clock: Callable[[], float] | None = None,
        time_slice: float | None = None,
        uses_slate: bool = False,
    ) -> None:
        """Open the stream in the directory `path`, which is made, with those above it, where it is not there.

        Returns when every partition is whole and durable; `repairs` tells what was mended. What
        `options` leave open is as the stream's settings say. `take_over` goes on where the owner file of
        a go-diskq producer is left behind; be sure that it does not run. `clock` (seconds, monotonic) is
        the sync policy's; `time_slice` (seconds) shuts the fast doors periodically; with `uses_slate`
        messages may be jotted down, to be written by `flush` soon after: all for a channel.

        Raises LockedError where somebody writes to it, UnsupportedFormatError, ForeignFilesError,
        DiskFullError, OSError, and CorruptionError if `options.strict`.
        """
        self.options = checked_options(options, StreamOptions)
        self._fs: FileSystem = fs or OsFileSystem()
        self.path = as_path(path)
        self.name = self.path
        self.files = StreamFiles(self._fs, self.path)
        self._clock = check_plain("clock", clock or self._fs.monotonic)
        self._keeps_time = time_slice is None
        self.turn = Turn(partial(BusyError, self.path))
        """Of the thread that is inside."""
        time_slice = min(self.options.sync_timeout, _A_DAY) if time_slice is None else time_slice
        self.gate = Gate(time_slice, self.turn)
        self._policy = SyncPolicy(
            self.options.sync_every, self.options.sync_timeout, self.options.max_unsynced
        )
        self.is_half_unsynced = False
        self._debts = Debts()
        self._partitions: list[_Partition] = []
        self._others: dict[int, Point] = {}  # where partitions end that are not written to
        self._repairs: list[Repair] = []
        self._outstanding: StreamTicket | None = None
        self._failure: DiskqError | None = None
        self._is_closed = False
        self._owes_rows = False  # a disk has refused them
        self._counted = 0
        self._is_closing = False
        self._synced_bytes = 0
        self._pointed_bytes = 0  # recovery begins behind them, of those accepted since the open
        self._barriers = 0
        self._slates: Slates | None = None
        self._most_slates = _MOST_SLATES if uses_slate else 0
        self.share: Share | None = None
        """What it has of a budget,"""
        self._room: StreamRoom | None = None  # and what for
        self._could_not_drop = False
        try:
            self._open(take_over)
            self._open_slates()
            self._join_budget()
        except OSError as failure:
            if failure.errno in FULL_DISK_ERRNOS:
                raise DiskFullError(self.path, f"the disk is full ({failure})") from failure
            raise

    def _open(self, take_over: bool) -> None:
        fs, files = self._fs, self.files
        private_parts = directory_of(files.partition(0).private)
        self._make_directories(files.path, files.private, private_parts, files.parts)
        self._lock = Lock(fs, files.lock, f"stream {self.path}")
        made: OwnerFile | None = None
        try:
            finish_swap(fs, files.path, files.swap)
            was_ours = owner_state(fs, files) == "ours"
            slates = self._slates = Slates(
                fs,
                self._lock,
                {index: files.partition(index).staging for index in files.partitions()},
                read_points(fs, files).staged,
            )
            if not was_ours:
                slates.clear_empty()
                # Before our owner file says that nobody else has written since they were noted, too.
                leave_points(fs, files, read_points(fs, files))
            self._owner = OwnerFile(fs, files, take_over=take_over)
            made = None if was_ours else self._owner
            self._repairs += self._owner.repairs
            existing = read_settings(fs, files)
            self.settings = settings_of(self.options, existing, files.settings)
            self._framing = TripletFraming(
                self.options.min_message_size,
                self.options.max_message_size,
                self.options.max_key_size,
                self.settings.encoding == "varuint",
            )
            if self.options.budget is not None:
                bounds = (self.settings.retention_max_bytes, self.settings.retention_max_age_ns)
                self._room = StreamRoom(
                    fs,
                    files,
                    self.options.budget,
                    self.settings.roll_size,
                    has_retention=any(bound is not None for bound in bounds),
                )
            intent = pending(fs, files)
            self._open_partitions(was_ours, slates, intent)
            self.door = self._door()
            self._lock.sign()
            self._debts.files.append(self._lock.handle)
            told = log.all_repaired(self._repairs)
            replacements = () if self.settings == existing else (settings_as(files, self.settings),)
            points = self._points()
            if not self._pay(self._ticket((), (*replacements, points))) and (
                replacements or not write_over(fs, points)
            ):
                raise DiskFullError(self.path, NO_ROOM)
            # What was found is durable, the intent's name too. Before anything else may be appended:
            if intent is not None:
                self._roll_forward(intent, is_new=False)
                self._retire(self.settings.partitions)
            else:
                rollforward.forget(fs, files)
            self.note()
            self._append_displaced()
        except BaseException:
            self._give_up(made)
            raise
        log.all_repaired(self._repairs, told)

    def _door(self) -> StreamDoor:
        return StreamDoor(
            [partition.buffer for partition in self._partitions],
            self._framing,
            self.gate,
            self._new_key,
            None if self._fs.native else self._wall_clock_ns,
            self._on_full,
        )

    def _retire(self, count: int) -> None:
        """Partitions beyond the first `count` were open for a transaction, which is done."""
        if len(self._partitions) == count:
            return
        for partition in self._partitions[count:]:
            self._others[partition.files.index] = partition.segment.point
            partition.segment.abandon()
        del self._partitions[count:]
        self.door = self._door()

    def _give_up(self, made: OwnerFile | None) -> None:
        """It cannot be opened: whoever comes next finds no owner file that was not there."""
        if made is not None:
            with contextlib.suppress(OSError):
                Barrier(removals=made.removals()).pay(self._fs)
        self._release()

    def _make_directories(self, *paths: str) -> None:
        for path in paths:
            self._make_directory(path)
            self._debts.directories[path] = None

    def _make_directory(self, path: str) -> None:
        """Make it with those above it. Whoever wants it durable syncs what is above."""
        try:
            self._fs.make_directory(path)
        except FileNotFoundError:
            if path == directory_of(path):
                raise
            self._make_directory(directory_of(path))
            self._fs.make_directory(path)

    def _open_partitions(self, was_ours: bool, slates: Slates, intent: Intent | None) -> None:
        points = read_points(self._fs, self.files)
        if points.is_readable and not points.partitions:
            keep_path(self._fs, self.path)  # once: where there are points, it was done
        self._debts.removals += self.files.leftovers()
        there = self.files.partitions()
        slates.put_back(in_place=was_ours)
        self._repairs += [*slates.untold, *slates.repairs]
        refilled = {} if intent is None else {index: s.offsets for index, s in intent.shares.items()}
        # A transaction may be pending for partitions that are not to be written to any more.
        count = max(self.settings.partitions, *(index + 1 for index in refilled), 0)
        for index in there:
            if index < count:
                self.files.partition(index).check_names()
        # Where our owner file is gone a peer has written since, of whose bytes no checksum tells.
        was_restarted = was_ours and not points.was_left and slates.was_restarted
        for index in range(count):
            self._open_partition(index, points, was_restarted, refilled.get(index, range(0)))
        # Those that were written to before, and are no more, are left as whole, and known as well.
        for index in points.partitions if points.is_readable else there:
            if index < count:
                continue
            if points.is_closed or index not in there:
                self._others[index] = points.partitions[index]
            else:
                found = self._recovered(index, points, was_restarted, range(0))
                base = found.bases[-1] if found.bases else found.next_offset
                self._others[index] = Point(base, found.end, found.next_offset)

    def _recovered(self, index: int, points: Points, was_restarted: bool, refilled: range) -> Found:
        files = self.files.partition(index)
        self._make_directories(files.private)
        found = recover_partition(
            self._fs,
            files,
            self._framing,
            self._debts,
            point=points.partitions.get(index),
            was_closed=points.was_closed(
                index, was_killed=self._slates is not None and self._slates.was_killed and not was_restarted
            ),
            was_restarted=was_restarted,
            strict=self.options.strict,
            refilled=refilled,
        )
        self._repairs += found.repairs
        return found

    def _open_partition(self, index: int, points: Points, was_restarted: bool, refilled: range) -> None:
        files = self.files.partition(index)
        self._make_directories(files.directory)
        found = self._recovered(index, points, was_restarted, refilled)
        if found.changed_from is not None:
            forget_from(self._fs, files, found.changed_from)
        bases = found.bases or [found.next_offset]
        roll_size = self.settings.roll_size
        if self._room is not None:
            roll_size = self._room.settle_roll_size(self.settings.partitions)
        segment = TripletSegment(self._fs, files, self._framing, self.gate, roll_size)
        segment.buffer.number(index, found.next_offset)
        partition = _Partition(files, segment, bases)
        self._partitions.append(partition)
        segment.resume(bases[-1], found.end, found.rows, self._debts)

    def _append_displaced(self) -> None:
        """Another producer has taken the place of accepted messages: append them again, durably."""
        assert self._slates is not None
        for number, path, waiting in self._slates.displaced:
            records = count(waiting.records, self._framing.varuint).records
            reason = f"its bytes from {waiting.start} on are another producer's: {records} accepted before "
            if number < len(self._partitions):
                first, point = self.next_offsets[number], self._partitions[number].segment.point
                self.accept_encoded(number, waiting.records)
                self._debts.directories[self.path] = None  # so that the barrier syncs the rows, too
                self.sync()
                if (point.base, point.end) == (waiting.file, waiting.start):
                    continue  # where they belong
                reason += f"are appended again from offset {first} on"
                self._repairs.append(Repair(path=path, kept=waiting.start, dropped=0, reason=reason))
            else:
                reason += "are kept aside, as nothing is written to this partition any more"
                aside = keep_content(self._fs, self.files.partition(number).slate, waiting.records)
                self._repairs.append(
                    Repair(
                        path=path,
                        kept=waiting.start,
                        dropped=len(waiting.records),
                        reason=reason,
                        records=records,
                        saved_as=aside,
                    )
                )
        self._slates.clear()

    def _open_slates(self) -> None:
        """Only now, with what stood on the old ones written and synced, may there be new ones."""
        assert self._slates is not None
        stagings = {index: its.files.staging for index, its in enumerate(self._partitions)}
        self._slates = Slates(self._fs, self._lock, stagings)
        try:
            self._slates.open(
                {index: its.buffer for index, its in enumerate(self._partitions[: self._most_slates])}
            )
        except BaseException:
            self._release()
            raise

    @alone
    def close(self) -> None:
        """Sync everything, remove the owner file and let go of the lock. Idempotent.

        Raises as `sync`; the stream is closed all the same.
        """
        if self._is_closed:
            return
        try:
            if self._failure is None:
                self._is_closing = True
                if self._slates is not None:
                    self._slates.flush_to_the_end(self.flush)
                # What found no room stands on the slate for the next open, which is to come before a peer.
                if not (self._slates and self._waiting_bytes):
                    with contextlib.suppress(OSError):
                        self._debts.removals += self._owner.removals()
                ticket = self.prepare(full=True)
                self._pay(ticket)
                # A power cut would bring the owner file back, and no go-diskq producer could open it.
                self._debts.directories[self.path] = None
                # The lock's handle: by way of it, where no descriptor is left to open the directory.
                self._pay(self._ticket((self._lock.handle,), ()))
                if self._slates is not None:
                    self._slates.retire()
                self._tell_left_out(ticket)
        finally:
            self._release()

    def _release(self) -> None:
        self._is_closed = True
        self.gate.left = 0
        debts, self._debts = self._debts, Debts()
        with contextlib.ExitStack() as stack:  # all of it, whatever a part of it says
            if self.share is not None:
                stack.callback(self.share.close)
            stack.callback(self._lock.release)
            stack.callback(close_all, self._fs, debts.closing)
            for partition in self._partitions:
                stack.callback(partition.segment.abandon)
            if self._slates is not None:
                stack.callback(self._slates.close)

    @property
    def log(self) -> Self:
        return self

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise ValueError(f"stream {self.path} is closed")

    # --- appending --------------------------------------------------------------------------------

    def append(
        self, value: Value, key: Key = None, timestamp: When = None, durability: Durability | None = None
    ) -> Position:
        """Add one message: to the partition that its key belongs to, at the end.

        Without a key it gets one of 32 random hex digits, as go-diskq makes them; without a timestamp
        (an aware datetime, or nanoseconds since the Unix epoch) the time it is. Returns when it is as
        durable as `durability` (else the options) says. Raises TypeError, ValueError, MessageSizeError,
        KeySizeError, BusyError and DiskFullError, after which the message is not in the stream, and
        StorageFailedError, after which nobody knows.
        """
        word = self._word(durability)
        if type(value) is not bytes:
            key, value, timestamp = self.checked(value, key, timestamp)
        try:
            self.turn.take()
            self._clear_way(self.size_of(value, key))
            position = self.accept(value, key, timestamp, is_held=word == "memory")
            self._show(word)
            self._sync_if_due(word)
        finally:
            self.turn.give()
        return position

    def append_many(
        self,
        items: Iterable[Item],
        key: Key = None,
        timestamp: When = None,
        durability: Durability | None = None,
    ) -> dict[int, range]:
        """Add messages, with as few system calls as they allow. Returns each partition's new offsets.

        An item is a value, (key, value) or (key, value, timestamp); `key` and `timestamp` are for those
        that have none. All are checked before the first is added. Raises as `append`: where a disk is
        full midway some are in the stream all the same, and `DiskFullError.rest` are those that are not.
        """
        word = self._word(durability)
        batch = self.checked_many(items, key, timestamp)
        with self.turn:
            self._clear_way(self.size_of_many(batch, key))
            offsets = self.accept_many(batch, key, timestamp, is_held=word == "memory")
            self._show(word)
            self._sync_if_due(word)
        return offsets

    @alone
    def commit(self, transaction: Transaction) -> bool:
        """Append all that was staged, or nothing; and once, however often it is committed. Synced on return.

        False: it was committed before. An epoch that is lower than the sink's last one was, too. What was
        appended before is synced as well; and what was staged is removed.
        Raises SinkNameError, SinkError, StagedError, CorruptionError (a staged file rotted), DiskFullError
        and StorageFailedError. After an error nothing of it is in the stream, and it may be committed again;
        unless the stream then raises it at every call: the transaction is committed, and is in the stream
        when that was opened again.
        """
        self._check_usable()
        transaction.check()
        if rollforward.is_committed(self._fs, self.files, transaction):
            rollforward.forget(self._fs, self.files)
            return False
        records = rollforward.verified(
            self._fs, self.files, transaction, self.partition_count, varuint=self._framing.varuint
        )
        self.sync()
        if self._owes_rows or self._waiting_bytes:
            raise DiskFullError(self.path, "the disk is full")
        if self._room is not None:
            # Once it is committed there is no way back: all of it has to find room before.
            size = sum(extent.size for file in transaction.staged for extent in file.extents)
            self._clear_way(room_size(size, sum(records.values())))
        intent = rollforward.intent_of(transaction, records, self.next_offsets)
        try:
            if records:
                rollforward.write_intent(self._fs, self.files, intent)
            else:
                last = Committed(transaction.epoch, transaction.query)
                rollforward.note_committed(self._fs, self.files, transaction.sink, last)
        except OSError as failure:
            self.fail(failure)
        if records:
            self._roll_forward(intent, is_new=True)
        else:
            rollforward.forget(self._fs, self.files)
        return True

    def _roll_forward(self, intent: Intent, *, is_new: bool) -> None:
        """Carry out what is committed. Where that fails nothing more is appended: the next open goes on."""
        try:
            varuint = self._framing.varuint
            rollforward.roll_forward(self, self._fs, intent, varuint=varuint, is_new=is_new)
        except DiskFullError as full:
            which = f"epoch {intent.epoch} of sink {intent.sink!r}"
            reason = f"the disk is full; {which} is committed, and goes on when the stream is opened again"
            self._failure = DiskFullError(self.path, reason)
            self.gate.left = 0
            raise self._failure from full
        except BaseException as failure:
            if self._failure is None and isinstance(failure, OSError):
                self.fail(failure)
            if self._failure is None:
                self._failure = failure if isinstance(failure, DiskqError) else StorageFailedError(self.path)
            self.gate.left = 0
            raise

    @alone
    def accept_encoded(self, partition: int, data: bytes | memoryview) -> None:
        """Add records that are encoded, at the end of a partition; with barriers, where much is unsynced.

        Their rows wait for `flush`. Raises as `accept`, and as `sync`; some of them are then in.
        """
        its = self._partitions[partition]
        end = len(data)
        at = 0
        while at < end:
            while self._is_too_much_unsynced(min(_AT_ONCE, end - at)):
                self.sync()
            self._make_way(its)
            try:
                at = self.door.put_encoded(partition, data, at)
            except OSError as failure:
                self.append_failed(failure)
            if its.buffer.written_offset - its.buffer.rows_written >= _MANY_ROWS:
                self.flush()

    def _clear_way(self, size: int) -> None:
        """Do what can be done against obstacles. Raises DiskFullError where that is not enough."""
        while (obstacle := self.obstacle(size)) is not None:
            if obstacle == "unsynced":
                self.sync()
            elif obstacle == "droppable":
                self.dropped(self.make_room(self.missing))
            else:
                raise self.full_error(size)

    def _show(self, word: Durability) -> None:
        """Write the rows of what was accepted. It is in: where they are refused, so is the next message."""
        if word != "memory":
            with contextlib.suppress(DiskFullError, OSError):
                self._flush()

    def _word(self, durability: Durability | None) -> Durability:
        return checked_durability(durability or self.options.durability)

    def _sync_if_due(self, word: Durability) -> None:
        if sync_if_due(self, self._pay, word) and self.is_pressed:
            self.dropped(self.make_room(self.missing))

    # --- the same, for a channel that waits where this cannot -------------------------------------

    def accept(self, value: Value, key: Key, timestamp: When, *, is_held: bool) -> Position:
        """Add one message that has no `obstacle`. Its rows wait for `flush`. Raises as `append`."""
        self._make_way()
        put = self.door.hold_now if is_held else self.door.put_now
        try:
            position = put(value, key, timestamp)
            if position is None:
                key, value, timestamp = self.checked(value, key, timestamp)
                position = put(value, key, timestamp)
        except OSError as failure:
            self.append_failed(failure)
        assert position is not None
        return position

    def accept_many(self, batch: list[Any], key: Key, timestamp: When, *, is_held: bool) -> dict[int, range]:
        """Add messages that were `checked_many` and have no `obstacle`. Their rows wait for `flush`."""
        key = as_key(key, self.options.max_key_size)
        if timestamp is not None:
            timestamp = as_timestamp(timestamp)
        before = self.next_offsets
        done = 0
        self.door.begin_batch()
        try:
            while done < len(batch):
                self._make_way()
                try:
                    done = self.door.put_many(batch, done, key, timestamp, not is_held)
                except OSError as failure:
                    self.append_failed(failure)
        except DiskFullError as full:
            taken = self._taken_since(before)
            rest = self.door.left_out(batch, taken)
            raise DiskFullError(full.path, full.reason, sum(taken), rest) from full.__cause__
        except OSError as failure:
            failure.add_note(f"{sum(self._taken_since(before))} messages of the batch were accepted")
            raise
        taken = self._taken_since(before)
        return {index: range(before[index], before[index] + n) for index, n in enumerate(taken) if n}

    def _taken_since(self, before: tuple[int, ...]) -> list[int]:
        """How many messages each partition was given."""
        return [after - first for after, first in zip(self.next_offsets, before, strict=True)]

    def checked(
        self, value: Value, key: Key, timestamp: When
    ) -> tuple[str | bytes | None, bytes, int | None]:
        """Key, value and timestamp as the compiled door takes them.

        Raises TypeError, ValueError, MessageSizeError and KeySizeError before anything is written.
        """
        value = as_body(value, "a message's value")
        if not self.options.min_message_size <= len(value) <= self.options.max_message_size:
            raise MessageSizeError(len(value), self.options.min_message_size, self.options.max_message_size)
        key = as_key(key, self.options.max_key_size)
        return key, value, None if timestamp is None else as_timestamp(timestamp)

    def checked_many(self, items: Iterable[Item], key: Key, timestamp: When) -> list[Any]:
        """The batch as the compiled door takes it. Raises as `checked`, before anything is written."""
        self._check_usable()
        self.checked(b"x" * self.options.min_message_size, key, timestamp)
        batch: list[Any] = list(items)
        odd = self.door.first_odd(batch)
        while odd >= 0:
            item = batch[odd]
            if isinstance(item, tuple):
                if not 2 <= len(item) <= 3:
                    raise TypeError(
                        f"a message is (key, value) or (key, value, timestamp), not {len(item)} things"
                    )
                batch[odd] = self.checked(item[1], item[0], item[2] if len(item) == 3 else timestamp)
            else:
                batch[odd] = self.checked(item, None, None)[1]
            odd = self.door.first_odd(batch, odd + 1)
        return batch

    def obstacle(self, size: int) -> StreamObstacle | None:
        """What keeps `size` more bytes (`size_of`) from being accepted now."""
        self._check_usable()
        if self._is_too_much_unsynced(size):
            return "unsynced"
        if self._room is None:
            return None
        may_drop, self._could_not_drop = not self._could_not_drop, False
        return self._room.obstacle(size, self.door, may_drop=may_drop)

    def _is_too_much_unsynced(self, size: int) -> bool:
        unsynced = self.unsynced_bytes
        is_over = unsynced > 0 and unsynced + size > self.options.max_unsynced
        return is_over or len(self._debts.closing) >= _MOST_WAITING

    def size_of(self, value: bytes, key: Key) -> int:
        """What an `obstacle` is asked about for one message: with a budget, all that it takes on the disk."""
        if self._room is None:
            return len(value)
        return self.size_of_many([(key, value)], None)

    def size_of_many(self, batch: list[Any], key: Key) -> int:
        """The same for a batch that was `checked_many`."""
        if self._room is None:
            return self.door.size_of(batch)
        return room_size(self.door.room_of(batch, as_key(key, self.options.max_key_size)), len(batch))

    @alone
    def flush(self) -> None:
        """Write what was accepted and waits to be written, rows too. Raises DiskFullError, OSError."""
        self._flush()

    def _flush(self) -> None:
        self._check_usable()
        try:
            try:
                self.door.flush()
            finally:
                self._write_rows()
        except OSError as failure:
            self.append_failed(failure)

    def _write_rows(self) -> None:
        """Write the rows of what is written. Raises OSError; they then wait, and nothing comes after them."""
        self._owes_rows = True
        try:
            self.door.write_rows()
            self._owes_rows = False
        finally:
            for partition in self._partitions:
                partition.segment.rows_are_written()

    @property
    def is_flushed(self) -> bool:
        """Is every message that was accepted in the page cache, with its rows?"""
        return self.door.is_flushed

    def append_failed(self, failure: OSError) -> NoReturn:
        """The disk refused a write: cut back to whole records, and stay usable if that works."""
        for partition in self._partitions:
            try:
                partition.segment.cut_back()
            except OSError as second:
                self.fail(second)
        if failure.errno in FULL_DISK_ERRNOS:
            raise DiskFullError(self.path, f"the disk is full ({failure})") from failure
        raise failure

    def _make_way(self, only: _Partition | None = None) -> None:
        """Have segments open that take the next message, as go-diskq would choose them."""
        try:
            if self._owes_rows:
                self._write_rows()
            for partition in self._partitions if only is None else (only,):
                if not partition.segment.is_ready:
                    if partition.segment.is_full:
                        self._roll(partition)
                    partition.segment.prepare()
        except OSError as failure:
            self.append_failed(failure)

    @alone
    def _on_full(self, index: int) -> None:
        """The compiled door filled a segment. The message is in: a failure is for the next one."""
        try:
            self._roll(self._partitions[index])
        except OSError:
            self.gate.left = 0
        except DiskqError:
            pass  # `fail` has noted it

    def _roll(self, partition: _Partition) -> None:
        partition.log.roll(self._debts)
        if len(self._debts.closing) >= _MANY_WAITING:
            self._policy.force()
        if len(self._debts.closing) >= _MOST_WAITING:
            # So many in one batch: nobody else could give their handles back.
            try:
                self._debts.pay(
                    self._fs, self._outstanding.barrier if self._outstanding is not None else None
                )
            except OSError as failure:
                self.fail(failure)

    def _new_key(self) -> bytes:
        return new_key(self._fs)

    # --- syncing ----------------------------------------------------------------------------------

    @alone
    def sync(self) -> None:
        """Return when every message that was appended is on the platter.

        Raises DiskFullError where messages held in memory find no room; all others are then. Raises
        StorageFailedError, after which the stream is of no use but to be closed.
        """
        ticket = self.prepare(full=True)
        self._pay(ticket)
        self._tell_left_out(ticket)

    def _tell_left_out(self, ticket: StreamTicket) -> None:
        """Raise DiskFullError if messages found no room. Rows alone are made again from what is durable."""
        if ticket.left_out is not None:
            if self._waiting_bytes:
                raise ticket.left_out
            log.tell("disk_full", "rows of %s", ticket.left_out, path=ticket.left_out.path)

    @property
    def _waiting_bytes(self) -> int:
        """Accepted, and not yet written."""
        return sum(partition.buffer.end - partition.buffer.flushed for partition in self._partitions)

    def _pay(self, ticket: StreamTicket) -> bool:
        """As `Barrier.pay`. Raises StorageFailedError."""
        try:
            is_replaced = ticket.barrier.pay(self._fs)
        except OSError as failure:
            self.fail(failure)
        self.complete(ticket, is_replaced)
        return is_replaced

    def note(self) -> bool:
        """Tell the sync policy what passed the fast doors, and open them again. True: a barrier is due."""
        now = self._clock()
        total = self.door.records
        was_idle = not self._policy.pending
        self._policy.passed(total - self._counted, now)
        self._counted = total
        if self._keeps_time and was_idle and self._policy.pending:
            self.gate.restart()
        for partition in self._partitions:
            if partition.segment.append.failure is not None:
                self.fail(partition.segment.append.failure)
        is_due = self._policy.due(now)
        if is_due:
            left = UNBOUNDED  # whoever asked knows now, and need not be told of each message
        elif self._policy.pending:
            left = self._policy.left - 1  # the one with which a barrier is due comes to be counted
        else:
            left = 0  # so does the first after a barrier: it sets the clock running
        unsynced = self.unsynced_bytes
        self.is_half_unsynced = unsynced > self._policy.half
        self.door.room = self._policy.unasked(unsynced)
        if self._room is not None and self.share is not None:
            # Of which checksums take a part, and the key of the last one that fits.
            left = self._room.left(self.door)
            self.door.room = min(self.door.room, left - (left >> 7) - BLOCK)
        is_ready = self._failure is None and not self._is_closed and not self._owes_rows
        self.gate.left = left if is_ready and all(p.segment.is_ready for p in self._partitions) else 0
        return is_due

    def deadline(self) -> float:
        """When a barrier is due at the latest, on the clock; infinity while nothing is pending."""
        return self._policy.deadline()

    @alone
    def prepare(self, *, full: bool) -> StreamTicket:
        """A barrier for all that was accepted and can be written. Pay it; then `mark` it, or `fail`.

        It syncs the records and their checksums, from which all else can be made again. With metadata
        it syncs their rows too, and notes that recovery begins here; but only where that has become
        worth it, as it is five syncs more.
        """
        with_metadata = full
        self._check_usable()
        if with_metadata and not self._debts:
            with_metadata = self._is_closing or self.accepted_bytes - self._pointed_bytes >= _POINT_EVERY
            is_due = True
        else:
            is_due = with_metadata
        left_out = None
        try:
            self.flush()
        except DiskFullError as full:
            left_out = full
        except OSError as failure:
            self.fail(failure)
        data: list[int] = []
        rows: list[int] = []
        try:
            for partition in self._partitions:
                own_data, own_rows = partition.handles(with_rows=with_metadata)
                data += own_data
                rows += own_rows
        except OSError as failure:
            self.fail(failure)
        if is_due:
            self.note()
            self._policy.taken()
            self.note()
        if with_metadata:
            self._pointed_bytes = self.accepted_bytes
        replacements = (self._points(),) if with_metadata else ()
        return self._ticket((*data, *rows), replacements, left_out)

    def _ticket(
        self,
        active: tuple[int, ...],
        replacements: tuple[Replacement, ...],
        left_out: DiskFullError | None = None,
    ) -> StreamTicket:
        assert self._outstanding is None, "one barrier at a time"
        self._outstanding = StreamTicket(
            barrier=self._debts.freeze(active, replacements),
            written=self.accepted_bytes - self._waiting_bytes,
            has_metadata=bool(replacements),
            left_out=left_out,
        )
        return self._outstanding

    def _points(self) -> Replacement:
        points = {partition.files.index: partition.segment.point for partition in self._partitions}
        staged = () if self._is_closing else tuple(range(min(self._most_slates, len(self._partitions))))
        return Points(self._is_closing, points | self._others, staged=staged).replacing(self.files)

    @alone
    def complete(self, ticket: StreamTicket, is_replaced: bool) -> None:
        """The barrier is paid."""
        assert ticket is self._outstanding, "not the barrier that was taken"
        self._outstanding = None
        self._synced_bytes = ticket.written
        self._barriers += 1
        self.relieve()
        if ticket.has_metadata and not is_replaced:
            # The disk is full. Recovery will begin at an older point; the new one is still owed.
            log.tell(
                "disk_full",
                f"%s: {NO_ROOM}, it will be written later",
                self.files.points,
                path=self.files.points,
            )
            self._policy.passed(1, self._clock())

    def fail(self, failure: BaseException) -> NoReturn:
        """A promise of the disk was broken: nothing is promised from here on."""
        error = StorageFailedError(self.path)
        error.__cause__ = failure
        self._failure = error
        self._outstanding = None
        self.gate.left = 0
        raise error from failure

    # --- retention --------------------------------------------------------------------------------

    @alone
    def vacuum(self) -> RetentionReport:
        """Remove what the stream's settings and options say is too much or too old. Returns what went.

        Readers keep what they have open. Raises OSError, StorageFailedError, and ValueError behind `close`:
        the stream may be somebody else's by then.
        """
        self._check_usable()
        report = self.remove_old()
        self.forget_removed(report)
        return report

    def remove_old(self) -> RetentionReport:
        """`vacuum`, but for what is noted of what went: in any thread, while others append."""
        return retain(
            self._fs,
            self.files,
            now_ns=self._wall_clock_ns(),
            max_bytes=self.settings.retention_max_bytes,
            max_age_ns=self.settings.retention_max_age_ns,
            age_rule=self.options.age_rule,
            keep_from=self._keep_from(),
        )

    def _keep_from(self) -> dict[int, int] | None:
        """What groups have still to read, if that matters."""
        if not self.options.keep_for_groups:
            return None
        needed = {index: slowest(self._fs, self.files, index) for index in self.files.partitions()}
        return {index: offset for index, offset in needed.items() if offset is not None}

    @alone
    def forget_removed(self, report: RetentionReport) -> None:
        """Drop what is noted of segments that went. In the thread that appends."""
        for removed in report.partitions:
            # A hint that is too long costs a little time, and no more.
            with contextlib.suppress(OSError):
                forget_removed(self._fs, self.files.partition(removed.partition))
        if self._room is not None:
            self._room.forget((p.partition, base) for p in report.partitions for base in p.removed)
            self.relieve()

    # --- the budget that it shares ----------------------------------------------------------------

    def _join_budget(self) -> None:
        if self._room is not None:
            self.door.beside = BESIDE
            try:
                self.share = self._room.join(
                    self._partitions, len(self._slates or ()), self.options.on_full, self.door
                )
            except BaseException:
                self._release()
                raise
            self.note()

    @property
    def missing(self) -> int:
        """So many bytes are to be dropped, for this stream or because another member asks for it."""
        if self.share is None:
            return 0
        return max(self.share.asked, self.share.missing)

    def make_room(self, wanted: int) -> RetentionReport:
        """Remove what retention does not keep; and then, by `drop_oldest`, more, for so many bytes.

        In any thread, as `remove_old`.
        """
        kept: tuple[PartitionRetention, ...] = ()
        if self._room is not None and self._room.has_retention:
            report = self.remove_old()
            kept, wanted = report.partitions, wanted - report.removed_bytes
        if self.options.on_full == "drop_oldest" and wanted > 0:
            kept += remove_oldest(self._fs, self.files, wanted, keep_from=self._keep_from()).partitions
        return RetentionReport(partitions=kept)

    @alone
    def dropped(self, report: RetentionReport) -> None:
        """`make_room` has returned that. In the thread that appends."""
        if self.share is not None:
            self.share.asked = 0
        self._could_not_drop = not report.partitions
        self.forget_removed(report)

    @property
    def is_pressed(self) -> bool:
        """Do others want room that `make_room` might find here?"""
        if self._room is None or self.share is None:
            return False
        return self.share.asked > 0 or (self._room.has_retention and self.share.is_pressed)

    @alone
    def relieve(self) -> None:
        """Give back of the budget what is not needed."""
        if self._room is not None and self.share is not None:
            self._room.settle(self.door)

    def full_error(self, size: int) -> DiskFullError:
        """What `over_budget` and `others` mean to a caller that will not wait."""
        assert self._room is not None
        return self._room.full_error(size)

    def _wall_clock_ns(self) -> int:
        return int(self._fs.wall_clock() * 1_000_000_000)

    # --- where it is ------------------------------------------------------------------------------

    @property
    def gates(self) -> tuple[Gate]:
        return (self.gate,)

    @property
    def partition_count(self) -> int:
        """So many partitions are written to."""
        return len(self._partitions)

    def partition_of(self, key: bytes) -> int:
        """The partition that messages of that key go to."""
        return key_hash(key) % len(self._partitions)

    def live(self, partition: int) -> TripletSegment | None:
        """Where a partition is written, for readers of this thread; None where it is not written to."""
        return self._partitions[partition].segment if partition < len(self._partitions) else None

    @property
    def next_offsets(self) -> tuple[int, ...]:
        """Of each partition: the offset that its next message gets."""
        return tuple(partition.buffer.next_offset for partition in self._partitions)

    @property
    def accepted_bytes(self) -> int:
        """Bytes of records accepted since the open."""
        return self.door.accepted_bytes

    @property
    def unsynced_bytes(self) -> int:
        """Accepted, and not yet on the platter."""
        return self.accepted_bytes - self._synced_bytes

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """What was found wrong at the open, and what was done about it."""
        return tuple(self._repairs)


def new_key(fs: FileSystem) -> bytes:
    """What a message that has no key gets: a random UUID (version 4) in 32 hex digits."""
    high, low = divmod(fs.unique_number() << 63 | fs.unique_number(), 1 << 62)
    return b"%016x%016x" % (high & ~0xF000 | 0x4000, low | 1 << 63)
