# A journal, and the one who writes it, in sej's files. Law: offsets are dense and given once, a message is
# in whole or not at all, and what is acknowledged is what the word says.
#
# Synchronous, and complete in itself; a Trio channel drives the same object, takes its barriers inline and
# has them paid in a thread. Whoever reads needs no journal: see journalreader.py.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal, NoReturn

from diskq._native import sej
from diskq._native.gate import Gate
from diskq._native.sej import SejFraming
from diskq._native.sejbuffer import SejBuffer
from diskq._native.turn import Turn
from diskq.engine.alone import alone
from diskq.engine.contents import as_body, as_key
from diskq.engine.duebarrier import sync_if_due
from diskq.engine.journalfiles import JournalFiles
from diskq.engine.journaloffsets import set_back
from diskq.engine.journalrecovery import judge_the_middle, recover_journal
from diskq.engine.journalsegment import JournalSegment
from diskq.engine.segmentedlog import SegmentedLog
from diskq.engine.streampoints import Point, Points, leave_points, read_points
from diskq.engine.timestamps import as_timestamp
from diskq.errors import (
    BusyError,
    DiskFullError,
    DiskqError,
    LockedError,
    MessageSizeError,
    OffsetMismatchError,
    StorageFailedError,
)
from diskq.options import Durability, JournalOptions, checked_durability, checked_options
from diskq.storage.barrier import NO_ROOM, Barrier, Debts, Replacement, close_all, keep_path, write_over
from diskq.storage.callbacks import check_plain
from diskq.storage.closing import Closing
from diskq.storage.directories import make_directories
from diskq.storage.fs import FULL_DISK_ERRNOS, AnyPath, FileSystem, OsFileSystem, as_path
from diskq.storage.lock import Lock
from diskq.storage.logs import Log
from diskq.storage.numbers import UNBOUNDED
from diskq.storage.recovery import Repair
from diskq.storage.slates import Displaced, Slates
from diskq.storage.swap import finish_swap
from diskq.storage.syncpolicy import SyncPolicy

__all__ = ["Item", "Journal", "JournalTicket", "Key", "Value", "When"]

log = Log("journal")

Value = bytes | bytearray | memoryview
Key = str | bytes | None
When = datetime | int | None
Item = Value | tuple[Key, Value] | tuple[Key, Value, When] | tuple[Key, Value, When, int]

_A_DAY = 86_400.0
# So many handles of complete segments may wait to be synced and closed.
_MANY_WAITING = 64
_MOST_WAITING = 256
# So many bytes are looked at again after a power cut at most, beside whole segments.
_POINT_EVERY = 16 * 1024 * 1024
# So many bytes of encoded records go into one write.
_AT_ONCE = 256 * 1024
_LARGEST_TYPE = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalTicket:
    """A barrier taken and not yet paid, and what is true once it is."""

    barrier: Barrier
    written: int
    """Of all bytes ever accepted, this many are then durable,"""
    next_offset: int
    """and all messages before this offset."""
    has_metadata: bool
    left_out: DiskFullError | None
    """What was accepted and waits to be written found no room, and is not durable then."""


class Journal(Closing):
    """A journal open for writing: messages get offsets in the order in which they are appended.

    For one process at a time, sej's writers are kept out as well; and for one thread at a time: a call while
    another thread is inside raises BusyError, and does nothing.
    """

    def __init__(
        self,
        path: AnyPath,
        options: JournalOptions | None = None,
        *,
        fs: FileSystem | None = None,
        clock: Callable[[], float] | None = None,
        time_slice: float | None = None,
        uses_slate: bool = False,
        first_offset: int = 0,
    ) -> None:
        """Open the journal in the directory `path`, which is made, with those above it, if it is not there.

        Returns when it is whole and durable; `repairs` tells what was mended. `clock` (seconds, monotonic)
        is the sync policy's; `time_slice` (seconds) shuts the fast doors periodically; with `uses_slate`
        messages may be jotted down, to be written by `flush` soon after: all for a channel. A journal that
        has never had a message begins with `first_offset`: the copy of one whose oldest messages are gone.

        Raises LockedError where somebody writes to it, DiskFullError, OSError, and CorruptionError if
        `options.strict`.
        """
        self.options = checked_options(options, JournalOptions)
        self._fs: FileSystem = fs or OsFileSystem()
        self.path = as_path(path)
        self.name = self.path
        self.files = JournalFiles(self._fs, self.path)
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
        self._repairs: list[Repair] = []
        self._outstanding: JournalTicket | None = None
        self._failure: DiskqError | None = None
        self._is_closed = False
        self._is_closing = False
        self._counted = 0
        self._settled = -1  # so many records a barrier has been taken for
        self._synced_bytes = 0
        self._synced_offset = 0
        self._pointed_bytes = 0  # recovery begins behind them, of those accepted since the open
        self._slates: Slates | None = None
        self._first_offset = first_offset
        self._uses_slate = uses_slate
        self._segment = JournalSegment(
            self._fs,
            self.files,
            SejFraming(
                self.options.min_message_size, self.options.max_message_size, self.options.max_key_size
            ),
            self.gate,
            self.options.segment_size,
        )
        self.buffer: SejBuffer = self._segment.buffer
        """The compiled doors."""
        self._log = SegmentedLog(self._segment, [])
        try:
            self._open()
            self._open_slate()
        except OSError as failure:
            if failure.errno in FULL_DISK_ERRNOS:
                raise DiskFullError(self.path, f"the disk is full ({failure})") from failure
            raise

    def _open(self) -> None:
        fs, files = self._fs, self.files
        make_directories(fs, files.path)
        self._make_directories(files.path, files.private, files.private_data)
        self._lock = Lock(fs, files.lock, f"journal {self.path}")
        try:
            # Only now: a scanner of sej's is disturbed by what comes and goes there.
            self._make_directories(files.directory)
            finish_swap(fs, files.path, files.swap)
            files.move_old_data()
            points = read_points(fs, files)
            # A peer that has had the lock since, or tried to, has emptied its file, or removed it.
            was_ours = self._lock.previous is not None
            if not points.partitions and points.is_readable:
                keep_path(fs, self.path)  # once: where there is a point, it was done
            slates = self._slates = Slates(fs, self._lock, {0: files.staging}, points.staged)
            slates.put_back(in_place=was_ours)
            self._repairs += [*slates.untold, *slates.repairs]
            if not was_ours:
                self._find_a_peer(points)
            self._debts.removals += files.leftovers()
            was_restarted = was_ours and not points.was_left and slates.was_restarted
            found = recover_journal(
                fs,
                files,
                self._debts,
                point=points.partitions.get(0) or self._beginning(),
                was_closed=points.was_closed(0, was_killed=slates.was_killed and not was_restarted),
                was_restarted=was_restarted,
                was_ours=was_ours,
                strict=self.options.strict,
            )
            self._repairs += found.repairs
            self._repairs += set_back(fs, files, found.next_offset)
            self._segment.count_from(
                found.next_offset, None if fs.native else self._wall_clock_ns, self._on_full
            )
            self._log.bases[:] = found.bases
            self._segment.resume(found.bases[-1], found.end, found.rows, self._debts)
            self._lock.sign()
            self._debts.files.append(self._lock.handle)
            told = log.all_repaired(self._repairs)
            noted = self._point()
            if not self._pay(self._ticket((), (noted,))) and not write_over(fs, noted):
                raise DiskFullError(self.path, NO_ROOM)
            self.note()
            for displaced in slates.displaced:
                self._append_again(displaced)
            slates.clear()
        except BaseException:
            self._release()
            raise
        log.all_repaired(self._repairs, told)

    def _append_again(self, displaced: Displaced) -> None:
        """Another writer has taken the place of accepted messages: append them again, durably."""
        path, waiting = displaced.path, displaced.waiting
        messages = sej.scan(waiting.records).messages
        first, point = self.next_offset, self._segment.point
        is_in_place = (point.base, point.end) == (waiting.file, waiting.start)
        again = ((its.key, its.timestamp_ns, its.type, its.value) for its in messages)
        self.accept_encoded(sej.encode(again, first), is_held=False)
        self.sync()
        if is_in_place:
            return
        told = f"messages {first} to {self.next_offset - 1}" if len(messages) > 1 else f"message {first}"
        reason = f"its bytes from {waiting.start} on are another writer's: {len(messages)} accepted before "
        reason += f"are appended again as {told}"
        self._repairs.append(Repair(path=path, kept=waiting.start, dropped=0, reason=reason))

    def _beginning(self) -> Point | None:
        """Where a journal that is not there yet is to begin, if not at 0."""
        first = self._first_offset
        return Point(first, 0, first) if first and not self.files.bases() else None

    def _make_directories(self, *paths: str) -> None:
        for path in paths:
            self._fs.make_directory(path)
            self._debts.directories[path] = None

    def _find_a_peer(self, points: Points) -> None:
        """Before our name in the lock file says that nobody else has written since the point was noted."""
        if not points.is_readable or points.is_closed or points.was_left:
            return
        strict = self.options.strict
        self._repairs += judge_the_middle(self._fs, self.files, points.partitions[0], strict=strict)
        leave_points(self._fs, self.files, points)

    def _open_slate(self) -> None:
        """Only now, with what stood on the old one written and synced, may there be a new one."""
        assert self._slates is not None
        try:
            self._slates.open({0: self.buffer if self._uses_slate else None})
        except BaseException:
            self._release()
            raise

    @alone
    def close(self) -> None:
        """Sync everything, and let go of the lock, whose file stays. Idempotent.

        Raises as `sync`; the journal is closed all the same.
        """
        if self._is_closed:
            return
        try:
            if self._failure is None:
                self._is_closing = True
                if self._slates is not None:
                    self._slates.flush_to_the_end(self.flush)
                # What found no room stands on the slate for who opens it next.
                self._is_closing = not self._waiting_bytes
                ticket = self.take_ticket(with_metadata=True)
                self._pay(ticket)
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
            stack.callback(self._lock.release)
            stack.callback(close_all, self._fs, debts.closing)
            stack.callback(self._segment.abandon)
            if self._slates is not None:
                stack.callback(self._slates.close)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise ValueError(f"journal {self.path} is closed")

    # --- appending --------------------------------------------------------------------------------

    def append(
        self,
        value: Value,
        key: Key = None,
        timestamp: When = None,
        type: int = 0,
        durability: Durability | None = None,
        *,
        offset: int | None = None,
    ) -> int:
        """Add one message at the end. Returns its offset.

        Without a timestamp (an aware datetime, or nanoseconds since the Unix epoch) it gets the time it is;
        with NULL_TIMESTAMP it has none. `type` is a number of 0 to 255. `offset`: the one that it must get.
        Returns when it is as durable as `durability` (else the options) says. Raises TypeError, ValueError,
        MessageSizeError, KeySizeError, OffsetMismatchError, BusyError and DiskFullError, after which the
        message is not in the journal, and StorageFailedError, after which nobody knows.
        """
        word = self._word(durability)
        if not isinstance(value, bytes) or timestamp is not None:
            value, key, timestamp, type = self.checked(value, key, timestamp, type)
        try:
            self.turn.take()
            while self.obstacle(len(value)):
                self.sync()
            self.check_offset(offset)
            given = self.accept(value, key, timestamp, type, is_held=word == "memory")
            self._sync_if_due(word)
        finally:
            self.turn.give()
        return given

    def append_many(
        self, items: Iterable[Item], durability: Durability | None = None, *, offset: int | None = None
    ) -> range:
        """Add messages, with as few system calls as they allow. Returns their offsets.

        An item is a value, (key, value), (key, value, timestamp) or (key, value, timestamp, type). All are
        checked before the first is added. `offset`: the one that the first must get. Raises as `append`:
        where a disk is full midway, the first `DiskFullError.accepted` are in all the same.
        """
        word = self._word(durability)
        batch = self.checked_many(items)
        with self.turn:
            while self.obstacle(self.buffer.size_of(batch)):
                self.sync()
            self.check_offset(offset)
            offsets = self.accept_many(batch, is_held=word == "memory")
            self._sync_if_due(word)
        return offsets

    @alone
    def append_encoded(self, data: bytes | memoryview, durability: Durability | None = None) -> range:
        """Add records that are encoded, which begin with the next offset. Returns their offsets.

        Raises ValueError for bytes that are no whole records, OffsetMismatchError, and as `append_many`. All
        are checked before the first is added.
        """
        word = self._word(durability)
        self._check_usable()
        if len(data):
            self.check_offset(int.from_bytes(data[:8], "big"))
        first = self.next_offset
        told = sej.count(data, first)
        if told.stop != "END":
            raise ValueError(f"no whole record that comes next at byte {told.valid_end} of {len(data)}")
        self.accept_encoded(data, is_held=word == "memory")
        self._sync_if_due(word)
        return range(first, self.next_offset)

    def check_offset(self, offset: int | None) -> None:
        """Is it the next one, if it is told? Raises OffsetMismatchError."""
        if offset is not None and offset != self.next_offset:
            raise OffsetMismatchError(self.path, offset, self.next_offset)

    def _word(self, durability: Durability | None) -> Durability:
        return checked_durability(durability or self.options.durability)

    def _sync_if_due(self, word: Durability) -> None:
        sync_if_due(self, self._pay, word)

    # --- the same, for a channel that waits where this cannot -------------------------------------

    def accept(self, value: Value, key: Key, timestamp: When, type: int, *, is_held: bool) -> int:
        """Add one message that has no `obstacle`. Raises as `append`."""
        self._make_way()
        put = self.buffer.hold_message_now if is_held else self.buffer.put_message_now
        try:
            offset = put(value, key, timestamp, type)
            if offset is None:
                value, key, timestamp, type = self.checked(value, key, timestamp, type)
                offset = put(value, key, timestamp, type)
        except OSError as failure:
            self.write_failed(failure)
        assert offset is not None
        return offset

    def accept_many(self, batch: list[Any], *, is_held: bool) -> range:
        """Add messages that were `checked_many` and have no `obstacle`. Raises as `append_many`."""
        first = self.next_offset
        done = 0
        try:
            while done < len(batch):
                self._make_way()
                try:
                    done = self.buffer.put_items(batch, done, not is_held)
                except OSError as failure:
                    self.write_failed(failure)
        except DiskFullError as full:
            accepted = self.next_offset - first
            raise DiskFullError(full.path, full.reason, accepted, batch[accepted:]) from full.__cause__
        except OSError as failure:
            failure.add_note(f"{self.next_offset - first} messages of the batch were accepted")
            raise
        return range(first, self.next_offset)

    def accept_encoded(self, data: bytes | memoryview, *, is_held: bool) -> None:
        """Add records that are encoded; with barriers, where much is unsynced. After an error some are in."""
        first, at, end = self.next_offset, 0, len(data)
        try:
            while at < end:
                while self.obstacle(min(_AT_ONCE, end - at)):
                    self.sync()
                self._make_way()
                try:
                    at = self.buffer.put_encoded(data, at)
                except OSError as failure:
                    self.write_failed(failure)
            if not is_held:
                self.flush()
        except DiskFullError as full:
            raise DiskFullError(full.path, full.reason, self.next_offset - first) from full.__cause__

    def checked(self, value: Value, key: Key, timestamp: When, type: int) -> tuple[bytes, Key, When, int]:
        """Value, key, timestamp and type as the compiled doors take them.

        Raises TypeError, ValueError, MessageSizeError and KeySizeError before anything is written.
        """
        value = as_body(value, "a message's value")
        key = as_key(key, self.options.max_key_size)
        most = min(self.options.max_message_size, sej.MAX_RECORD - sej.RECORD_OVERHEAD - len(key or b""))
        if not self.options.min_message_size <= len(value) <= most:
            raise MessageSizeError(len(value), self.options.min_message_size, most)
        if isinstance(type, bool) or not isinstance(type, int):
            raise TypeError(f"a message's type is a whole number, not {type.__class__.__name__}")
        if not 0 <= type <= _LARGEST_TYPE:
            raise ValueError(f"a message's type is 0 to {_LARGEST_TYPE}, got {type}")
        return value, key, None if timestamp is None else as_timestamp(timestamp), int(type)

    def checked_many(self, items: Iterable[Item]) -> list[Any]:
        """The batch as the compiled doors take it. Raises as `checked`, before anything is written."""
        self._check_usable()
        batch: list[Any] = list(items)
        odd = self.buffer.first_odd(batch)
        while odd >= 0:
            item = batch[odd]
            if not isinstance(item, tuple):
                item = (None, item)
            if not 2 <= len(item) <= 4:
                raise TypeError(f"a message is (key, value, timestamp, type) or less, not {len(item)} things")
            key, value, timestamp, type = (*item, None, 0)[:4] if len(item) < 4 else item
            value, key, timestamp, type = self.checked(value, key, timestamp, 0 if type is None else type)
            batch[odd] = (key, value, timestamp, type)
            odd = self.buffer.first_odd(batch, odd + 1)
        return batch

    def obstacle(self, size: int) -> Literal["unsynced"] | None:
        """What keeps `size` more bytes from being accepted now: they have to wait for a barrier."""
        self._check_usable()
        unsynced = self.unsynced_bytes
        is_over = unsynced and unsynced + size > self.options.max_unsynced
        return "unsynced" if is_over or len(self._debts.closing) >= _MOST_WAITING else None

    @alone
    def flush(self) -> None:
        """Write what was accepted and waits to be written. Raises DiskFullError, OSError."""
        self._check_usable()
        try:
            self.buffer.flush()
        except OSError as failure:
            self.write_failed(failure)
        self.buffer.is_awake = False

    @property
    def is_flushed(self) -> bool:
        """Is every message that was accepted in the page cache?"""
        return self.buffer.is_flushed

    def write_failed(self, failure: OSError) -> NoReturn:
        """The disk refused a write: cut back to whole records, and stay usable if that works."""
        try:
            self._segment.cut_back()
        except OSError as second:
            self.fail(second)
        if failure.errno in FULL_DISK_ERRNOS:
            raise DiskFullError(self.path, f"the disk is full ({failure})") from failure
        raise failure

    def _make_way(self) -> None:
        """Have a segment open that takes the next message."""
        if self._segment.is_ready:
            return
        try:
            if self._segment.is_full:
                self._roll()
            self._segment.prepare()
        except OSError as failure:
            self.write_failed(failure)

    @alone
    def _on_full(self) -> None:
        """The compiled door filled a segment. The message is in: a failure is for the next one."""
        try:
            self._roll()
        except OSError:
            self.gate.left = 0
        except DiskqError:
            pass  # `fail` has noted it

    def _roll(self) -> None:
        self._log.roll(self._debts)
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

    # --- syncing ----------------------------------------------------------------------------------

    @alone
    def sync(self) -> None:
        """Return when every message that was appended is on the platter.

        Raises DiskFullError where messages held in memory find no room; all others are then. Raises
        StorageFailedError, after which the journal is of no use but to be closed.
        """
        ticket = self.take_ticket(with_metadata=True)
        self._pay(ticket)
        self._tell_left_out(ticket)

    def _tell_left_out(self, ticket: JournalTicket) -> None:
        if ticket.left_out is not None:
            raise ticket.left_out

    @property
    def _waiting_bytes(self) -> int:
        """Accepted, and not yet written."""
        return self.buffer.end - self.buffer.flushed

    def _pay(self, ticket: JournalTicket) -> bool:
        """As `Barrier.pay`. Raises StorageFailedError."""
        try:
            is_replaced = ticket.barrier.pay(self._fs)
        except OSError as failure:
            self.fail(failure)
        self.mark(ticket, is_replaced)
        return is_replaced

    def note(self) -> bool:
        """Tell the sync policy what passed the fast doors, and open them again. True: a barrier is due."""
        now = self._clock()
        total = self.buffer.records
        was_idle = not self._policy.pending
        self._policy.passed(total - self._counted, now)
        self._counted = total
        if self._keeps_time and was_idle and self._policy.pending:
            self.gate.restart()
        if self._segment.append.failure is not None:
            self.fail(self._segment.append.failure)
        is_due = self._policy.due(now)
        if is_due:
            left = UNBOUNDED  # whoever asked knows now, and need not be told of each message
        elif self._policy.pending:
            left = self._policy.left - 1  # the one with which a barrier is due comes to be counted
        else:
            left = 0  # so does the first after a barrier: it sets the clock running
        unsynced = self.unsynced_bytes
        self.is_half_unsynced = unsynced > self._policy.half
        self.buffer.room = self._policy.unasked(unsynced)
        is_ready = self._failure is None and not self._is_closed and self._segment.is_ready
        self.gate.left = left if is_ready else 0
        return is_due

    def deadline(self) -> float:
        """When a barrier is due at the latest, on the clock; infinity while nothing is pending."""
        return self._policy.deadline()

    @alone
    def take_ticket(self, *, with_metadata: bool) -> JournalTicket:
        """A barrier for all that was accepted and can be written. Pay it; then `mark` it, or `fail`.

        It syncs the records and their checksums. With metadata it notes that recovery begins here; but only
        where that has become worth it, as it is more syncs.
        """
        self._check_usable()
        is_due = with_metadata
        if with_metadata and not self._debts:
            with_metadata = self._is_closing or self.accepted_bytes - self._pointed_bytes >= _POINT_EVERY
        left_out = None
        try:
            self.flush()
        except DiskFullError as full:
            left_out = full
        except OSError as failure:
            self.fail(failure)
        active: tuple[int, ...] = ()
        try:
            if self.buffer.records_written != self._settled:
                active = self._segment.settle()
                self._settled = self.buffer.records_written
            if self._lock.keep():
                self._debts.files.append(self._lock.handle)
                self._debts.directories[self.path] = None
        except (LockedError, OSError) as failure:
            self.fail(failure)
        if is_due:
            self.note()
            self._policy.taken()
            self.note()
        if with_metadata:
            self._pointed_bytes = self.accepted_bytes
        return self._ticket(active, (self._point(),) if with_metadata else (), left_out)

    def _ticket(
        self,
        active: tuple[int, ...],
        replacements: tuple[Replacement, ...],
        left_out: DiskFullError | None = None,
    ) -> JournalTicket:
        assert self._outstanding is None, "one barrier at a time"
        self._outstanding = JournalTicket(
            barrier=self._debts.freeze(active, replacements),
            written=self.accepted_bytes - self._waiting_bytes,
            next_offset=self.buffer.written_offset,
            has_metadata=bool(replacements),
            left_out=left_out,
        )
        return self._outstanding

    def _point(self) -> Replacement:
        staged = (0,) if self._uses_slate and not self._is_closing else ()
        return Points(self._is_closing, {0: self._segment.point}, staged=staged).replacing(self.files)

    @alone
    def mark(self, ticket: JournalTicket, is_replaced: bool) -> None:
        """The barrier is paid."""
        assert ticket is self._outstanding, "not the barrier that was taken"
        self._outstanding = None
        self._synced_bytes = ticket.written
        self._synced_offset = ticket.next_offset
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

    def _wall_clock_ns(self) -> int:
        return int(self._fs.wall_clock() * 1_000_000_000)

    # --- where it is ------------------------------------------------------------------------------

    @property
    def gates(self) -> tuple[Gate]:
        return (self.gate,)

    @property
    def live(self) -> JournalSegment:
        """Where it is written, for readers of this thread."""
        return self._segment

    @property
    def next_offset(self) -> int:
        """The offset that the next message gets."""
        return self.buffer.next_offset

    @property
    def synced_offset(self) -> int:
        """All messages before this offset are on the platter."""
        return self._synced_offset

    @property
    def accepted_bytes(self) -> int:
        """Bytes of records accepted since the open."""
        return self.buffer.accepted_bytes

    @property
    def unsynced_bytes(self) -> int:
        """Accepted, and not yet on the platter."""
        return self.accepted_bytes - self._synced_bytes

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """What was found wrong at the open, and what was done about it."""
        return tuple(self._repairs)
