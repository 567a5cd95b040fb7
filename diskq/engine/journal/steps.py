# The steps of a journal: for a channel, which can wait between them, and for the journal's writer, whose
# format it is. Law: the caller of a step holds the thread guard, and a step never waits for a sync, unless
# it says so.

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from diskq._native.journal import codec as journal_codec
from diskq._native.journal.append_buffer import SejBuffer
from diskq._native.journal.codec import SejFraming
from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.reader_offset import set_back
from diskq.engine.journal.recovery import judge_the_middle, recover_journal, redo_source
from diskq.engine.journal.segment import JournalSegment
from diskq.engine.log.engine import Admission, DirectorySteps, Mode
from diskq.engine.log.message_checks import as_body, as_key
from diskq.engine.log.opening import LeftBehind, LogOpening, NewLogs
from diskq.engine.log.recovery import trust_of_points
from diskq.engine.log.recovery_points import RecoveryPoint, RecoveryPoints, leave_points, read_points
from diskq.engine.log.segment import SegmentedLog
from diskq.engine.log.timestamps import as_timestamp
from diskq.errors import FullError, MessageSizeError, OffsetMismatchError
from diskq.options import JournalOptions
from diskq.storage.append_file import AppendFile
from diskq.storage.barrier import Replacement, keep_path
from diskq.storage.directories import make_directories
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem
from diskq.storage.log.entries import Displaced
from diskq.storage.log.replay import Redone
from diskq.storage.log_events import Log
from diskq.storage.repairs import Repair, RepairKind

__all__ = ["Item", "JournalSteps", "Key", "Value", "When"]

log = Log("journal")

Value = bytes | bytearray | memoryview
Key = str | bytes | None
When = datetime | int | None
Item = Value | tuple[Key, Value] | tuple[Key, Value, When] | tuple[Key, Value, When, int]

# Bytes of encoded records in one write.
_AT_ONCE = 256 * 1024
_LARGEST_TYPE = 255


class JournalSteps(DirectorySteps):
    """A journal's messages on their way into its files, and the format of its writer.

    `Journal` opens it; `log.close` closes it.
    """

    def __init__(
        self,
        path: AnyPath,
        options: JournalOptions,
        fs: FileSystem | None,
        clock: Callable[[], float] | None,
        time_slice: float | None,
        uses_wal: bool,
        first_offset: int,
    ) -> None:
        self.options = options
        fs = fs or OsFileSystem()
        super().__init__(fs, path, self.options, log, "journal", clock, time_slice)
        self.files = JournalFiles(fs, self.path)
        self._first_offset = first_offset
        self._uses_wal = uses_wal
        self._settled = -1  # how many records a sync has been prepared for
        self.synced_offset = 0
        """All messages before this offset are on stable storage."""
        framing = SejFraming(
            self.options.min_message_size, self.options.max_message_size, self.options.max_key_size
        )
        gate = self.log.new_gate()
        self._segment = JournalSegment(self._fs, self.files, framing, gate, self.options.segment_size)
        self.buffer: SejBuffer = self._segment.buffer
        """The compiled calls."""
        self._write = self.buffer.appender(Mode.WRITTEN, Admission.FORCED)
        self._hold = self.buffer.appender(Mode.HELD, Admission.FORCED)
        self._segments = SegmentedLog(self._segment, [])
        self._points = RecoveryPoints(True, {})  # those of the last writer
        self._was_ours = False

    def open(self) -> None:
        """Lock the journal, repair what a crash has left, and continue after the last message.

        Raises as `Journal`.
        """
        LogOpening(self._fs, self, self.files, log, root=self.path, guarded=self._what).run()

    def prepare(self) -> None:
        make_directories(self._fs, self.files.path)
        self.log.make_directories(self.files.path, self.files.private, self.files.private_data)

    def look(self, opening: LogOpening) -> LeftBehind:
        fs, files = self._fs, self.files
        # Only under the lock: changes in that directory disturb sej's scanners.
        self.log.make_directories(files.directory)
        files.move_old_data()
        points = self._points = read_points(fs, files)
        if not points.partitions and points.is_readable:
            keep_path(fs, self.path)  # once: if there is a point, it was done
        # A peer that has had the lock since, or tried to get it, has emptied the file, or removed it.
        self._was_ours = opening.lock.previous is not None
        source = redo_source(fs, files, opening.lock.previous)
        return LeftBehind(self, source, in_place=self._was_ours)

    def claim(self, opening: LogOpening) -> None:
        """Do nothing: the lock is the sign that sej looks for."""

    def judge(self, redone: Redone) -> None:
        """Decide nothing."""

    def recover(self, opening: LogOpening) -> Sequence[Repair]:
        fs, files, writer, wals = self._fs, self.files, self.log, opening.wals
        points = self._points
        if not self._was_ours:
            self._find_a_peer(points)
        writer.pending.removals += files.leftovers()
        found = recover_journal(
            fs,
            files,
            writer.pending,
            point=points.partitions.get(0) or self._beginning(),
            trust=trust_of_points(points, 0, wals, was_ours=self._was_ours),
            has_run_on=wals.has_run_on,
            staged=wals.restored.get(0),
            has_wal=not wals.was_unlogged,
            strict=self.options.strict,
        )
        opening.note_found(found.repairs, _count)
        writer.repairs += set_back(fs, files, found.next_offset)
        on_full = partial(writer.segment_filled, self._segments)
        self._segment.count_from(found.next_offset, None if fs.native else self._wall_clock_ns, on_full)
        self._segments.bases[:] = found.bases
        self._segment.resume(found.bases[-1], found.end, found.rows, writer.pending)
        return ()

    def begin(self) -> None:
        self.log.begin(self.metadata(), can_wait=True)

    def carry_out(self) -> None:
        """Do nothing: a message of a journal is a whole transaction."""

    def new_logs(self) -> NewLogs:
        return NewLogs({0: self.files.staging}, {0: self.buffer}, is_for_rows=not self._uses_wal)

    def appends(self) -> Iterable[AppendFile[SejBuffer]]:
        return (self._segment.append,)

    def unlogged(self) -> Iterable[tuple[int, AppendFile[SejBuffer]]]:
        return ((0, self._segment.append),)

    def abandon(self) -> None:
        self._segment.abandon()

    @property
    def most_redo(self) -> int:
        return self.options.redo_log_size

    def append_again(self, displaced: Displaced) -> None:
        """Append accepted messages again, durably, if another writer has written in their place."""
        path, part = displaced
        messages = journal_codec.scan(part.content).messages
        first, point = self.next_offset, self._segment.point
        is_in_place = (point.base, point.end) == (part.file, part.position)
        again = ((its.key, its.timestamp_ns, its.type, its.value) for its in messages)
        self.accept_encoded(journal_codec.encode(again, first), is_held=False)
        self.log.sync()
        if is_in_place:
            return
        last = self.next_offset - 1
        which = f"messages {first} to {last}" if len(messages) > 1 else f"message {first}"
        reason = f"its bytes from {part.position} on are another writer's: {len(messages)} accepted before "
        reason += f"are appended again as {which}"
        self.log.repairs.append(
            Repair(path=path, kind=RepairKind.DISPLACED, kept=part.position, dropped=0, reason=reason)
        )

    def _beginning(self) -> RecoveryPoint | None:
        """Return where a journal that does not exist yet begins, if not at 0."""
        first = self._first_offset
        return RecoveryPoint(first, 0, first) if first and not self.files.bases() else None

    def _find_a_peer(self, points: RecoveryPoints) -> None:
        """Note a peer's writes, before the lock file says that only diskq has written since the point."""
        if not points.is_left_open:
            return
        strict = self.options.strict
        self.log.repairs += judge_the_middle(self._fs, self.files, points.partitions[0], strict=strict)
        leave_points(self._fs, self.files, self.log.state, points)

    # --- messages ---------------------------------------------------------------------------------

    def accept(self, value: Value, key: Key, timestamp: When, type: int, *, is_held: bool) -> int:
        """Append one message that has no `obstacle`. Raises as `append`."""
        self._make_way()
        append = (self._hold if is_held else self._write).append
        try:
            offset = append(value, key, timestamp, type)
            if offset is None:
                value, key, timestamp, type = self.checked(value, key, timestamp, type)
                offset = append(value, key, timestamp, type)
        except OSError as failure:
            self.log.append_failed(failure)
        assert offset is not None
        return offset

    def accept_many(self, batch: list[Any], *, is_held: bool) -> range:
        """Append messages of `checked_many` that have no `obstacle`. Raises as `append_many`."""
        first = self.next_offset
        mode = Mode.HELD if is_held else Mode.STAGED
        done = 0
        try:
            while done < len(batch):
                self._make_way()
                try:
                    done = self.buffer.append_many(batch, done, mode)
                except OSError as failure:
                    self.log.append_failed(failure)
        except FullError as full:
            accepted = self.next_offset - first
            raise type(full)(full.path, full.reason, accepted, batch[accepted:]) from full.__cause__
        except OSError as failure:
            failure.add_note(f"{self.next_offset - first} messages of the batch were accepted")
            raise
        return range(first, self.next_offset)

    def accept_encoded(self, data: bytes | memoryview, *, is_held: bool) -> None:
        """Append encoded records; with barriers, if much is unsynced. After an error some may be appended."""
        first, at, end = self.next_offset, 0, len(data)
        try:
            while at < end:
                while self.obstacle(min(_AT_ONCE, end - at)):
                    self.log.sync()
                self._make_way()
                try:
                    at = self.buffer.append_encoded(data, at)
                except OSError as failure:
                    self.log.append_failed(failure)
            if not is_held:
                self.log.flush()
        except FullError as full:
            raise type(full)(full.path, full.reason, self.next_offset - first) from full.__cause__

    def checked(self, value: Value, key: Key, timestamp: When, type: int) -> tuple[bytes, Key, When, int]:
        """Return value, key, timestamp and type as the compiled calls take them.

        Raises TypeError, ValueError, MessageSizeError and KeySizeError before anything is written.
        """
        value = as_body(value, "a message's value")
        key = as_key(key, self.options.max_key_size)
        most = min(
            self.options.max_message_size,
            journal_codec.MAX_RECORD - journal_codec.RECORD_OVERHEAD - len(key or b""),
        )
        if not self.options.min_message_size <= len(value) <= most:
            raise MessageSizeError(len(value), self.options.min_message_size, most)
        if isinstance(type, bool) or not isinstance(type, int):
            raise TypeError(f"a message's type is a whole number, not {type.__class__.__name__}")
        if not 0 <= type <= _LARGEST_TYPE:
            raise ValueError(f"a message's type is 0 to {_LARGEST_TYPE}, got {type}")
        return value, key, None if timestamp is None else as_timestamp(timestamp), int(type)

    def checked_many(self, items: Iterable[Item]) -> list[Any]:
        """Return the batch as the compiled calls take it. Raises as `checked`, before anything is written."""
        self.log.check_usable()
        batch: list[Any] = list(items)
        odd = self.buffer.first_odd(batch)
        while odd >= 0:
            item = batch[odd]
            if not isinstance(item, tuple):
                item = (None, item)
            if not 2 <= len(item) <= 4:
                raise TypeError(f"a message is (key, value, timestamp, type) or less, not {len(item)} items")
            key, value, timestamp, type = (*item, None, 0)[:4] if len(item) < 4 else item
            value, key, timestamp, type = self.checked(value, key, timestamp, 0 if type is None else type)
            batch[odd] = (key, value, timestamp, type)
            odd = self.buffer.first_odd(batch, odd + 1)
        return batch

    def check_offset(self, offset: int | None) -> None:
        """Check that `offset`, if given, is the next one. Raises OffsetMismatchError."""
        if offset is not None and offset != self.next_offset:
            raise OffsetMismatchError(self.path, offset, self.next_offset)

    def _make_way(self) -> None:
        """Open a segment for the next message."""
        if self._segment.is_ready:
            return
        try:
            if self._segment.is_full:
                self.log.roll(self._segments)
            self._segment.prepare()
        except OSError as failure:
            self.log.append_failed(failure)

    # --- where it is ------------------------------------------------------------------------------

    @property
    def live(self) -> JournalSegment:
        """The active segment, for readers of this thread."""
        return self._segment

    @property
    def content(self) -> str:
        return f"next offset {self.next_offset}"

    @property
    def next_offset(self) -> int:
        """The offset that the next message gets."""
        return self.buffer.next_offset

    # --- the format of its writer: see format.py --------------------------------------------------

    @property
    def passed(self) -> int:
        return self.buffer.records

    @property
    def accepted_bytes(self) -> int:
        return self.buffer.accepted_bytes

    @property
    def written_bytes(self) -> int:
        return self.buffer.accepted_bytes - (self.buffer.end - self.buffer.flushed)

    def open_gates(self, left: int, unsynced: int) -> None:
        if (failure := self._segment.append.failure) is not None:
            raise failure
        self.buffer.room = self.log.policy.bytes_until_check(unsynced)
        self.log.gates[0].left = left if self._segment.is_ready else 0

    @property
    def is_flushed(self) -> bool:
        return self.buffer.is_flushed

    def flush(self) -> None:
        self.buffer.flush()
        self.buffer.is_awake = False

    def cut_back(self) -> None:
        self._segment.cut_back()

    def settle(self, with_metadata: bool) -> tuple[int, ...]:
        active: tuple[int, ...] = ()
        if self.buffer.records_written != self._settled:
            active = self._segment.settle()
            self._settled = self.buffer.records_written
        if self.log.lock.keep():
            self.log.pending.files.append(self.log.lock.handle)
            self.log.pending.directories[self.path] = None
        return active

    def metadata(self) -> tuple[Replacement, ...]:
        point = self._segment.point._replace(first=self._segments.bases[0])
        is_closing = self.log.is_closing
        points = RecoveryPoints(is_closing, {0: point})
        return (self.log.state.replacing(points.render(), is_last=is_closing),)

    def state(self) -> int:
        return self.buffer.written_offset

    follows_log = True

    def logged(self, state: int) -> None:
        self.synced_offset = max(self.synced_offset, state)

    def completed(self, state: int, is_replaced: bool) -> None:
        self.synced_offset = max(self.synced_offset, state)

    def finish(self) -> None:
        # Messages that could not be written stay in the write-ahead log for the next open.
        self.log.is_closing = self.buffer.end == self.buffer.flushed
        sync = self.log.prepare(full=True)
        self.log.run(sync)
        if self.log.wals is not None:
            self.log.wals.retire()
        self.log.raise_left_out(sync)


def _count(records: bytes) -> int:
    return journal_codec.count(records).records
