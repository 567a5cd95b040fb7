# The steps of a priority store: for a channel, which can wait between them, and for the store's writer, whose
# format it is. Law: a command is in the log before it changes the state; and a step never waits for a sync,
# unless it says so.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Self, TypeVar

from diskq._native.priority import codec as priority_codec
from diskq._native.priority.command_buffer import AddBatch, QueueCalls
from diskq._native.priority.record_table import PriorityRecord, RecordTable
from diskq.engine.log.engine import DirectorySteps
from diskq.engine.log.message_checks import as_body
from diskq.engine.log.opening import LogOpening
from diskq.engine.log.recovery import trust_of_store
from diskq.engine.log.segment import SegmentedLog
from diskq.engine.log.sync import exclusive
from diskq.engine.priority.command_segment import CommandSegment
from diskq.engine.priority.files import StoreFiles, StorePoint, read_settings
from diskq.engine.priority.metadata import MetadataFile
from diskq.engine.priority.recovery import FoundStore, recover_store
from diskq.engine.priority.snapshot import StateSnapshot
from diskq.engine.priority.state import DEFAULT, IMPLEMENTATIONS, KeyRange, StoredQueue, check_queue_name
from diskq.errors import (
    DiskFullError,
    ExistsError,
    FullError,
    LeaseError,
    MessageSizeError,
    NotFoundError,
    QueueNameError,
    UnsupportedFormatError,
)
from diskq.options import Durability, PriorityOptions
from diskq.storage.arguments import whole_number
from diskq.storage.barrier import Barrier, Replacement
from diskq.storage.directories import make_directories
from diskq.storage.fs import FULL_DISK_ERRNOS, AnyPath, FileSystem
from diskq.storage.log_events import Log
from diskq.storage.numbers import UNBOUNDED
from diskq.storage.repairs import Repair
from diskq.storage.write_ahead_log import was_restarted

__all__ = [
    "AddBatch",
    "Body",
    "Implementation",
    "PriorityQueueInfo",
    "PrioritySteps",
    "PriorityStoreStatistics",
    "QueueCalls",
    "Statistics",
    "parted",
]

log = Log("priority")

Body = bytes | bytearray | memoryview
Implementation = Literal["H4", "QA"]

# How many complete segments may wait to be synced and closed: each has one handle.
_MOST_WAITING = 128
_LARGEST_LIMIT = 2**31 - 1
# In the document's layout a term and a record's number have 4 bytes.
_LARGEST_NARROW = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityQueueInfo:
    """One queue of a store at one moment."""

    name: str
    implementation: str
    ready: int
    """Messages that can be received."""
    in_flight: int
    """Messages that were received and not settled."""
    stored: int
    """Both, and those that are written and wait to be durable."""
    body_bytes: int
    """Bytes of the stored messages."""
    last_id: int
    max_messages: int | None
    max_message_size: int | None
    priority_range: KeyRange | None

    @classmethod
    def of(cls, queue: StoredQueue, **more: Any) -> Self:
        """Return the queue as it is now; `more` are the additional fields of a subclass."""
        table = queue.table
        return cls(
            name=queue.name,
            implementation=queue.kind,
            ready=table.ready,
            in_flight=table.taken,
            stored=table.stored,
            body_bytes=table.payload_bytes,
            last_id=table.last_id,
            max_messages=queue.max_messages,
            max_message_size=queue.max_message_size,
            priority_range=queue.priority_range,
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityStoreStatistics:
    """A store at one moment. The fields after `unsynced_bytes` count since the open."""

    queues: int
    stored: int
    """Messages in all queues."""
    segments: int
    next_lsn: int
    """The number that the next command gets."""
    snapshot_lsn: int
    """The last command that the snapshot covers; -1 if there is no snapshot."""
    unsynced_bytes: int
    """Bytes that are accepted, and not yet on stable storage."""
    written_bytes: int
    """Bytes of commands."""
    barriers: int
    snapshots: int
    commands: int
    repairs: tuple[Repair, ...]
    warnings: Mapping[str, int]
    """Anomalies that were found at the open, by name, and how often."""


Statistics = TypeVar("Statistics", bound=PriorityStoreStatistics)


class _Durable(NamedTuple):
    """The state that is durable once a sync is complete."""

    lsn: int
    """All commands up to this one are durable."""
    reveals: list[tuple[RecordTable, int]]
    """Records up to these ids may then be received."""
    point: StorePoint


@dataclass(slots=True)
class _Held:
    """Records in memory that wait to be written."""

    data: list[bytes]
    size: int = 0
    records: int = 0


class PrioritySteps(DirectorySteps):
    """A store's commands on their way into its log, the state that they make, and the format of its writer.

    `PriorityStore` opens it; `log.close` closes it.
    """

    failure: OSError | None = None
    """Always None: there is no checksum file that can fail, as a record has its own checksum."""

    def __init__(
        self,
        path: AnyPath,
        options: PriorityOptions,
        fs: FileSystem,
        clock: Callable[[], float] | None,
        time_slice: float | None,
        repairs_damage: bool,
    ) -> None:
        self.options = options
        super().__init__(
            fs, path, self.options, log, "the store in", clock, time_slice, most_waiting=_MOST_WAITING
        )
        self.settings = read_settings(fs, self.path)
        self.files = StoreFiles.found(fs, self.path, self.settings.data_directory)
        self._gate, self._gate_out = self.log.new_gate(), self.log.new_gate()
        settings = self.settings
        self._segment = CommandSegment(
            fs,
            self.files,
            self._gate,
            self._gate_out,
            soft_limit=settings.soft_limit if self.options.soft_limit is None else self.options.soft_limit,
            hard_limit=settings.hard_limit if self.options.hard_limit is None else self.options.hard_limit,
            preallocate=self.options.preallocate,
        )
        self.buffer = self._segment.buffer
        self._repairs_damage = repairs_damage
        self._queues: dict[str, StoredQueue] = {}
        self._hiding: dict[RecordTable, None] = {}  # tables with records that may not be received yet
        self._held = _Held([])
        self._noted_newest = -1
        self._synced_lsn = -1
        self._found_point: StorePoint | None = None  # that of the last writer
        self._point: StorePoint | None = None  # the point on disk, of this writer
        self._next = StorePoint(-1)  # the point as it would be now
        self._snapshots = 0
        self._snapshot: StateSnapshot | None = None
        self._no_snapshot_before = 0  # complete segments needed first: the last attempt failed
        self._term = 1
        self._document = False

    # --- opening ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Lock the store, read the state, and continue after the last command. Raises as `PriorityStore`."""
        LogOpening(self._fs, self, self.files, log, root=self.files.root, guarded=self._what).run()

    def prepare(self) -> None:
        fs, files = self._fs, self.files
        make_directories(fs, files.root)
        # Made durably: recovery keeps cut bytes there, before any barrier.
        made = [fs.make_directory(path) for path in (files.private, files.temporary, files.log)]
        if any(made):
            Barrier(directories=(files.root,)).execute(fs)
        self.log.make_directories(files.root, files.private, files.temporary, files.log)

    def look(self, opening: LogOpening) -> None:
        """Read the recovery point. Returns None: the files are a log, and there is none beside them."""
        self._found_point = StorePoint.read(self._fs, self.files)

    def claim(self, opening: LogOpening) -> None:
        """Lock the metadata file, as TaskFlux does."""
        self._metadata = MetadataFile(
            self._fs,
            self.files,
            self.log.pending,
            self._what,
            as_document=self.options.layout == "document",
            # A TaskFlux server has its vote there, which is nowhere else. diskq has none.
            begins_anew=self._repairs_damage or (self._found_point is not None and not self.options.strict),
        )
        self.log.on_release(self._metadata.release)

    def recover(self, opening: LogOpening) -> Sequence[Repair]:
        fs, files, writer = self._fs, self.files, self.log
        point, previous = self._found_point, opening.state.previous
        # No other process has the store now, so temporary files belong to none.
        writer.pending.removals += files.leftovers()
        found = recover_store(
            fs,
            files,
            point,
            writer.pending,
            strict=self.options.strict,
            trust=trust_of_store(fs, point, previous),
            newest=-1 if previous is None or was_restarted(fs, previous) else previous.newest,
            repairs_damage=self._repairs_damage,
        )
        writer.on_release(self._segment.abandon)  # before TaskFlux can have the metadata file
        if found.handle >= 0:
            self._segment.resume(found.bases[-1], found.end, found.records, found.handle)
        reported: list[Repair] = []
        if found.has_passed_damage:
            # Before the state without it is durable: the next open would find nothing wrong.
            reported = [*found.repairs]
            log.report_repairs(reported)
            self._keep_state(found)
        self._go_on(found, self._metadata)
        return reported

    def begin(self) -> None:
        self.log.sync()

    def new_logs(self) -> None:
        """Go on with the store's own log: from here on the recovery point has its newest segment."""
        self.log.state.note_newest(-1, can_wait=True)
        if self.log.is_behind:
            self.log.shut()

    def abandon(self) -> None:
        """Give up a snapshot that is being written; the segment is closed by a call of its own."""
        if self._snapshot is not None:
            self._snapshot.give_up()

    def _keep_state(self, found: FoundStore) -> None:
        """Write the state durably, after damage was skipped, before anything of the log is removed."""
        lsn = found.bases[-1] - 1
        document = bool(found.is_narrow)
        snapshot = StateSnapshot(
            self._fs,
            self.files,
            found.queues.values(),
            lsn=lsn,
            term=found.term or 1,
            document=document,
            keeps_old=found.is_snapshot_damaged,
        )
        try:
            snapshot.write()
            snapshot.installing(()).execute(self._fs)
            found.old.execute(self._fs)
        except OSError as failure:
            snapshot.drop()
            if failure.errno in FULL_DISK_ERRNOS:
                what = f"it is damaged, and there is no room to write down what is whole ({failure})"
                raise DiskFullError(self.path, what) from failure
            raise
        found.snapshot_lsn, found.is_snapshot_damaged = lsn, False

    def _go_on(self, found: FoundStore, file: MetadataFile) -> None:
        options, settings, metadata = self.options, self.settings, file.content
        is_narrow = metadata.is_document if found.is_narrow is None else found.is_narrow
        if options.layout is not None and (options.layout == "document") != is_narrow:
            there = "document" if is_narrow else "aligned"
            raise UnsupportedFormatError(self.path, f"a store whose layout is {there!r}", f"layout={there!r}")
        self._document = is_narrow
        self._term = min(metadata.term, _LARGEST_NARROW) if is_narrow else metadata.term
        if file.repairs:
            self._term = max(self._term, found.term)  # it began anew: the log knows
        self.buffer.term = self._term
        self._found_term = found.term or self._term
        if metadata.is_document:
            found.warnings["document_layout"] = max(1, found.warnings["document_layout"])
        self._queues = found.queues
        self._snapshot_lsn = found.snapshot_lsn
        self._is_snapshot_damaged = found.is_snapshot_damaged
        self.log.repairs += [*file.repairs, *found.repairs]
        self.warnings: Mapping[str, int] = dict(+found.warnings)
        """Anomalies that were found at the open, by name, and how often."""
        self._snapshot_segments = options.snapshot_segments or max(1, settings.snapshot_segments)
        self._segments = SegmentedLog(self._segment, found.bases)
        if not self._segment.is_open:
            self._segment.begin(found.bases[-1], self.log.pending)
        self._synced_lsn = self._segment.next_offset - 1

    # --- queues -----------------------------------------------------------------------------------

    def queue(self, name: str = DEFAULT) -> StoredQueue:
        """Return the queue of this name, by default the default queue. Raises NotFoundError."""
        self.log.check_usable()
        try:
            return self._queues[name]
        except KeyError:
            raise NotFoundError("priority queue", self.path, f"there is no queue {name!r}") from None

    def queues(self) -> list[PriorityQueueInfo]:
        """Return the queues, by name."""
        self.log.check_usable()
        return [PriorityQueueInfo.of(queue) for _, queue in sorted(self._queues.items())]

    @exclusive
    def add_queue(
        self,
        name: str,
        implementation: Implementation,
        max_messages: int | None,
        max_message_size: int | None,
        priority_range: KeyRange | None,
        durability: Durability | None,
    ) -> StoredQueue:
        """Create a queue, as `PriorityStore.create_queue`, without any sync."""
        self.log.check_usable()
        if check_queue_name(name) in self._queues:
            raise ExistsError("priority queue", self.path, f"there is a queue {name!r} already")
        if implementation not in IMPLEMENTATIONS:
            raise ValueError(f"implementation is one of {', '.join(IMPLEMENTATIONS)}, got {implementation!r}")
        for what, limit in (("max_messages", max_messages), ("max_message_size", max_message_size)):
            if limit is not None and not 0 <= whole_number(what, limit) <= _LARGEST_LIMIT:
                raise ValueError(f"{what} is 0 to {_LARGEST_LIMIT}, got {limit}")
        if priority_range is not None:
            numbers = [whole_number("a key of priority_range", key) for key in priority_range]
            if len(numbers) != 2 or not -(2**63) <= numbers[0] <= numbers[1] < 2**63:
                raise ValueError(f"priority_range is two numbers of 64 bits, in order, got {priority_range}")
        if implementation == "QA" and priority_range is None:
            raise ValueError("a queue of kind QA needs a priority_range")
        queue = StoredQueue(
            name, IMPLEMENTATIONS[implementation], max_messages, max_message_size, priority_range
        )
        limits = (queue.implementation, max_messages, max_message_size, priority_range)
        command = priority_codec.create_command(queue.encoded_name, *limits)

        def apply(start: int, stop: int) -> None:
            self._queues[name] = queue

        self._append_one(command, apply, durability)
        return queue

    @exclusive
    def remove_queue(self, name: str, durability: Durability | None = None) -> StoredQueue:
        """Remove a queue, as `PriorityStore.delete_queue`, without any sync. Returns the removed queue."""
        queue = self.queue(name)
        if name == DEFAULT:
            raise QueueNameError(name, "the default queue is always there")

        def apply(start: int, stop: int) -> None:
            queue.is_deleted = True
            del self._queues[name]
            self._hiding.pop(queue.table, None)

        self._append_one(priority_codec.delete_command(queue.encoded_name), apply, durability)
        return queue

    # --- messages ---------------------------------------------------------------------------------

    def checked(
        self, queue: StoredQueue, bodies: Iterable[Body], priorities: int | Sequence[int] = 0
    ) -> tuple[list[bytes], int | list[int]]:
        """Return bodies and priorities in the form that `add` takes. Raises as `put`, before any write.

        Does not check whether the queue has space for the messages: space may come later.
        """
        self.check_there(queue)
        batch = [body if type(body) is bytes else as_body(body) for body in bodies]
        keys: int | list[int]
        if isinstance(priorities, int):
            keys, lowest, highest = priorities, priorities, priorities
        else:
            if isinstance(priorities, str | bytes) or not isinstance(priorities, Sequence):
                raise TypeError("a priority is a whole number")
            keys = list(priorities)
            if len(keys) != len(batch):
                raise ValueError(f"{len(batch)} messages and {len(keys)} priorities")
            if not all(isinstance(key, int) for key in keys):
                raise TypeError("a priority is a whole number")
            lowest, highest = (min(keys), max(keys)) if keys else (0, 0)
        if batch:
            queue.check_priorities(lowest, highest)
            largest, most = max(map(len, batch)), self._largest(queue)
            if largest > most:
                raise MessageSizeError(largest, 0, most)
        return batch, keys

    def _largest(self, queue: StoredQueue) -> int:
        """Return the most bytes that a message may have."""
        most = self.options.max_message_size
        return most if queue.max_message_size is None else min(most, queue.max_message_size)

    def add(
        self, queue: StoredQueue, batch: list[bytes], keys: int | list[int], durability: Durability
    ) -> range:
        """Add messages of `checked`, as `PriorityStore.put_many`, without any sync.

        With durability `synced` they are received only after a sync, prepared after this call, is complete.
        """
        self.check_there(queue)
        table, name = queue.table, queue.encoded_name
        first = table.last_id + 1
        is_hidden = durability == "synced"

        def encode(start: int, room: int) -> tuple[bytes, int]:
            return priority_codec.encode_adds(name, batch, keys, start, room, self._term, self._document)

        def write(start: int) -> int:
            return self.buffer.write_adds(name, batch, keys, start)

        def apply(start: int, stop: int) -> None:
            table.add(batch, keys, start, stop, is_hidden)
            if is_hidden:
                self._hiding[table] = None

        self._append(len(batch), encode, write, apply, durability)
        return range(first, first + len(batch))

    # --- messages of several senders ------------------------------------------------------------------

    @property
    def gathers(self) -> bool:
        """True if messages may be gathered: they have the layout of the compiled writer."""
        return not self._document

    def calls(self, queue: StoredQueue, most: int) -> QueueCalls:
        """Return the compiled calls for this queue, which gather messages of up to `most` bytes."""
        largest, keys = self._largest(queue), queue.keys
        calls = QueueCalls(self.buffer, queue, queue.table, queue.encoded_name, *keys, largest, most)
        calls.is_open = not queue.is_deleted
        calls.is_bounded = queue.max_messages is not None
        return calls

    def add_batch(self, batch: AddBatch) -> None:
        """Add gathered messages, as `add` does with durability `synced`, with one write for all queues.

        Raises as `add`; messages that have an id then are in all the same.
        """

        buffer, done, count = self.buffer, 0, len(batch)
        try:
            while done < count:
                try:
                    self._make_way(False)
                    done = buffer.write_batch(batch, done)
                    self._note_newest()
                except OSError as failure:
                    self.log.append_failed(failure, done)
                except MemoryError as failure:
                    if buffer.is_ahead:
                        self.log.fail(failure)  # the log is ahead of the state
                    raise
        finally:
            self._hiding.update(batch.tables())

    # --- messages ---------------------------------------------------------------------------------

    def check_there(self, queue: StoredQueue) -> None:
        """Raises NotFoundError if the queue was deleted."""
        self.log.check_usable()
        if queue.is_deleted:
            raise NotFoundError("priority queue", self.path, f"there is no queue {queue.name!r}")

    def get_many(
        self, queue: StoredQueue, max_messages: int, max_bytes: int | None = None
    ) -> list[PriorityRecord]:
        """Return the next messages: up to `max_messages`, of up to `max_bytes` together.

        The first one may be larger. They are in the log, and in every snapshot, until they are acknowledged.
        Raises NotFoundError.
        """
        try:
            self.guard.take()
            self.check_there(queue)
            return queue.table.take(max_messages, -1 if max_bytes is None else max_bytes)
        finally:
            self.guard.give()

    @exclusive
    def peek(self, queue: StoredQueue, max_messages: int = 1) -> list[PriorityRecord]:
        """Return messages as `get_many`, but leave them in the queue."""
        self.check_there(queue)
        return queue.table.peek(max_messages)

    def remove(self, queue: StoredQueue, records: list[PriorityRecord], durability: Durability) -> None:
        """Acknowledge messages, as `PriorityStore.ack_many`, without any sync."""
        self.log.check_usable()
        table, name = queue.table, queue.encoded_name
        self._claim(queue, records)
        if queue.is_deleted:
            table.forget(records, 0, len(records))  # the log has the deletion: no command is needed
            return
        ids = [record.id for record in records]
        done = 0

        def encode(start: int, room: int) -> tuple[bytes, int]:
            return priority_codec.encode_removes(name, ids, start, room, self._term, self._document)

        def write(start: int) -> int:
            return self.buffer.write_removes(name, ids, start)

        def apply(start: int, stop: int) -> None:
            nonlocal done
            table.forget(records, start, stop)
            done = stop

        try:
            self._append(len(records), encode, write, apply, durability)
        except BaseException:
            table.unclaim(records, done, len(records))
            raise

    def nack_many(self, queue: StoredQueue, records: Iterable[PriorityRecord]) -> None:
        """Make messages ready again, as `PriorityStore.nack`."""
        batch = list(records)
        with self.guard:
            self.log.check_usable()
            self._claim(queue, batch)
            queue.table.give_back(batch)

    def _claim(self, queue: StoredQueue, records: list[PriorityRecord]) -> None:
        bad = queue.table.begin_to_settle(records)
        if bad >= 0:
            raise LeaseError(queue.name, records[bad].id)

    # --- the log ----------------------------------------------------------------------------------

    def _append_one(
        self, command: bytes, apply: Callable[[int, int], None], durability: Durability | None
    ) -> None:
        def encode(start: int, room: int) -> tuple[bytes, int]:
            return priority_codec.encode(command, self._term, self._document), 1

        self._append(1, encode, None, apply, self.log.durability(durability))

    def _append(
        self,
        count: int,
        encode: Callable[[int, int], tuple[bytes, int]],
        write: Callable[[int], int] | None,
        apply: Callable[[int, int], None],
        durability: Durability,
    ) -> None:
        """Log `count` commands, and carry out each one that is logged.

        `write(start)` writes those from `start` on that fit into the segment, and returns the number of the
        first that does not. What it cannot write is encoded: `encode(start, room)` returns the records that
        fit into `room` bytes, and that number. Raises DiskFullError, with the number of those carried out.
        """
        is_held = durability == "memory"
        if is_held or self._document:
            write = None
        done = 0
        while done < count:
            try:
                self._make_way(is_held)
                if write is not None:
                    stop = write(done)
                    self._note_newest()
                else:
                    stop = self._append_encoded(done, encode, is_held=is_held)
            except OSError as failure:
                self.log.append_failed(failure, done)
            except FullError as full:
                full.accepted += done
                raise
            try:
                apply(done, stop)
            except MemoryError as failure:
                self.log.fail(failure)  # the log is ahead of the state
            done = stop

    def _append_encoded(
        self, done: int, encode: Callable[[int, int], tuple[bytes, int]], *, is_held: bool
    ) -> int:
        data, stop = encode(done, max(0, self._segment.room - self._held.size))
        size = len(data) - len(priority_codec.END_MARKER)
        if self._document and self.next_lsn + stop - done > _LARGEST_NARROW:
            raise UnsupportedFormatError(
                self.path, f"record {_LARGEST_NARROW + 1}", "record numbers of 4 bytes"
            )
        if is_held:
            self._gate.left = 0  # what is written goes after it
            self._held.data.append(data[:size])
            self._held.size += size
            self._held.records += stop - done
        else:
            self._write(data, stop - done)
        self.buffer.accepted_bytes += size
        self.buffer.passed += stop - done
        return stop

    def _make_way(self, is_held: bool) -> None:
        """Open a segment for the next record, after writing records that come before it."""
        if self.log.is_behind:
            self.log.catch_up()
        segment, held = self._segment, self._held
        if held.records and (not is_held or segment.is_full_with(held.size)):
            self.log.flush()
        if not segment.is_open or segment.is_full:
            self.log.roll(self._segments)

    def _write(self, data: bytes, records: int) -> None:
        self.buffer.write(data, records)
        self._note_newest()

    def _note_newest(self) -> None:
        """Note in the state that the segment exists: after a kill only that shows it until a sync."""
        base = self.buffer.base
        if base != self._noted_newest:
            self._noted_newest = base
            with contextlib.suppress(OSError):
                self.log.state.note_newest(base)
        self.buffer.is_noted = True

    # --- snapshots --------------------------------------------------------------------------------

    @property
    def wants_snapshot(self) -> bool:
        """True if enough segments are complete for a snapshot."""
        sealed = len(self._segments.bases) - 1
        is_free = self._snapshot is None and self.log.failure is None and not self.log.is_closed
        return is_free and sealed >= max(self._snapshot_segments, self._no_snapshot_before)

    @exclusive
    def begin_snapshot(self) -> StateSnapshot | None:
        """Freeze the present state as a snapshot. None if nothing has changed since the last snapshot.

        Call the snapshot's `write` in any thread, while the store is used. Then, when `is_durable` up to the
        snapshot's `lsn`, call `finish_snapshot`, or each of its two steps if the caller must not wait; or
        drop the snapshot. Raises DiskFullError, UnsupportedFormatError.
        """
        assert self._snapshot is None, "one snapshot at a time"
        try:
            self.log.flush()
        except FullError:
            self.put_off_snapshots()
            raise
        lsn = self.next_lsn - 1
        if lsn <= self._snapshot_lsn:
            return None
        term = self._term if self.passed else self._found_term  # that of the last command
        try:
            self._snapshot = StateSnapshot(
                self._fs,
                self.files,
                self._queues.values(),
                lsn=lsn,
                term=min(term, _LARGEST_NARROW) if self._document else term,
                document=self._document,
                keeps_old=self._is_snapshot_damaged,
            )
        except UnsupportedFormatError:
            self.put_off_snapshots()
            raise
        return self._snapshot

    def is_durable(self, lsn: int) -> bool:
        """True if the command with this number, and all before it, are on stable storage."""
        return lsn <= self._synced_lsn

    @exclusive
    def finish_snapshot(self, snapshot: StateSnapshot) -> None:
        """Give the snapshot its name, and remove the log that it covers. Raises StorageFailedError."""
        barrier = self.snapshot_barrier(snapshot)
        try:
            barrier.execute(self._fs)
        except OSError as failure:
            self.log.fail(failure)
        self.mark_snapshot(snapshot)

    def snapshot_barrier(self, snapshot: StateSnapshot) -> Barrier:
        """Return the barrier that finishes a written snapshot. Execute it, then call `mark_snapshot`."""
        assert self.is_durable(snapshot.lsn), "what a snapshot covers is durable before it has its name"
        return snapshot.installing(self._covered(snapshot.lsn))

    def _covered(self, lsn: int) -> list[int]:
        bases = self._segments.bases
        return [base for base, following in pairwise(bases) if following <= lsn + 1]

    @exclusive
    def mark_snapshot(self, snapshot: StateSnapshot) -> None:
        """Note that the snapshot's barrier was executed."""
        assert snapshot is self._snapshot
        self._segments.bases = self._segments.bases[len(self._covered(snapshot.lsn)) :]
        self._snapshot_lsn = snapshot.lsn
        self._is_snapshot_damaged = False
        self._snapshot = None
        self._no_snapshot_before = 0
        self._snapshots += 1

    @exclusive
    def drop_snapshot(self, snapshot: StateSnapshot) -> None:
        """Give up the snapshot; the next attempt is made when the next segment is complete."""
        snapshot.drop()
        if self._snapshot is snapshot:
            self._snapshot = None
            self.put_off_snapshots()

    @exclusive
    def put_off_snapshots(self) -> None:
        """Want no snapshot before the next segment is complete: none can be taken now."""
        self._no_snapshot_before = len(self._segments.bases)

    # --- where it is ------------------------------------------------------------------------------

    @property
    def next_lsn(self) -> int:
        """The number that the next command gets."""
        return self._segment.next_offset + self._held.records

    @property
    def layout(self) -> str:
        """The layout of records: "document" or "aligned"."""
        return "document" if self._document else "aligned"

    @property
    def content(self) -> str:
        return f"{sum(queue.table.stored for queue in tuple(self._queues.values()))} messages"

    def statistics_as(self, kind: type[Statistics], **more: Any) -> Statistics:
        """Return the statistics as a class that has `more` fields."""
        return kind(
            queues=len(self._queues),
            stored=sum(queue.table.stored for queue in tuple(self._queues.values())),
            segments=len(self._segments.bases),
            next_lsn=self.next_lsn,
            snapshot_lsn=self._snapshot_lsn,
            unsynced_bytes=self.log.unsynced_bytes,
            written_bytes=self.accepted_bytes,
            barriers=self.log.syncs,
            snapshots=self._snapshots,
            commands=self.passed,
            repairs=self.repairs,
            warnings=self.warnings,
            **more,
        )

    # --- the format of its writer: see format.py --------------------------------------------------

    @property
    def passed(self) -> int:
        return self.buffer.passed

    @property
    def accepted_bytes(self) -> int:
        return self.buffer.accepted_bytes

    @property
    def written_bytes(self) -> int:
        return self.buffer.accepted_bytes - self._held.size

    def open_gates(self, left: int, unsynced: int) -> None:
        self.buffer.most_bytes = self.buffer.accepted_bytes + self.log.policy.bytes_until_check(unsynced)
        is_ready = not (self._document or self._held.records or self.log.is_behind)
        self._gate.left = left if is_ready else 0
        self._gate_out.left = UNBOUNDED  # nothing is written for what is taken

    @property
    def is_flushed(self) -> bool:
        return not self._held.records

    def flush(self) -> None:
        held = self._held
        if held.records:
            if not self._segment.is_open:
                self.log.roll(self._segments)
            self._write(b"".join((*held.data, priority_codec.END_MARKER)), held.records)
            self._held = _Held([])

    def cut_back(self) -> None:
        self._segment.cut_back()

    def wants_metadata(self, full: bool) -> bool:
        point = self._next_point()
        return point is not self._point and point != self._point

    def settle(self, with_metadata: bool) -> tuple[int, ...]:
        segment = self._segment
        if self.log.is_closing and segment.is_open:
            segment.trim()
        return (segment.handle,) if segment.is_open else ()

    def metadata(self) -> tuple[Replacement, ...]:
        state = (self.log.state.replacing(),) if self.log.state.is_due else ()
        return (*state, self._next_point().replacing(self.files))

    def _next_point(self) -> StorePoint:
        """Return the recovery point for when everything that is written is on stable storage."""
        segment = self._segment
        if self.log.is_closing and segment.is_open:
            stored = sum(queue.table.stored for queue in self._queues.values())
            return StorePoint(segment.base, segment.end, segment.next_offset, stored)
        base = segment.base if segment.is_open else self._segments.bases[-1]
        if base != self._next.base:
            self._next = StorePoint(base)
        return self._next

    def state(self) -> _Durable:
        reveals = [(table, table.last_id) for table in self._hiding]
        return _Durable(self.buffer.next_offset - 1, reveals, self._next_point())

    is_log = True
    follows_log = True

    def logged(self, state: _Durable) -> None:
        self._reveal(state)

    def completed(self, state: _Durable, is_replaced: bool) -> None:
        self._reveal(state)
        if is_replaced:
            self._point = state.point

    def _reveal(self, state: _Durable) -> None:
        """Note what is durable."""
        self._synced_lsn = state.lsn
        for table, last_id in state.reveals:
            table.reveal(last_id)
            if not table.hidden:
                self._hiding.pop(table, None)

    def finish(self) -> None:
        self.log.sync()


def parted(
    messages: Iterable[Body | tuple[int, Body]], priority: int | Sequence[int]
) -> tuple[list[Any], int | Sequence[int]]:
    """Return the bodies, and their priorities, as `PrioritySteps.checked` takes them.

    Raises TypeError for a tuple that is no pair. The rest is checked there.
    """
    given: list[Any] = list(messages)
    if not isinstance(priority, int) or not any(isinstance(each, tuple) for each in given):
        return given, priority
    pairs = [each if isinstance(each, tuple) else (priority, each) for each in given]
    if any(len(each) != 2 for each in pairs):
        raise TypeError("a message is a body, or (priority, body)")
    return [body for _, body in pairs], [key for key, _ in pairs]
