# The priority store: queues of which the smallest key comes first, in TaskFlux's files, written by one
# process. Law: a command is in the log before it changes the state; a record is seen by nobody before it
# is as durable as its sender asked; what is in hand is in the log until it is acknowledged there.
#
# Synchronous, and complete in itself: threads, Spark and the command line use it as it is. A Trio channel
# drives the same object, takes its barriers inline and has them paid in a thread; the same with snapshots.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NoReturn, Self, TypeVar

from diskq._native import taskflux
from diskq._native.gate import Gate
from diskq._native.recordtable import PriorityRecord, RecordTable
from diskq._native.turn import Turn
from diskq.engine.alone import alone
from diskq.engine.commandsegment import CommandSegment
from diskq.engine.contents import as_body
from diskq.engine.duebarrier import sync_if_due
from diskq.engine.segmentedlog import SegmentedLog
from diskq.engine.storedqueue import DEFAULT, IMPLEMENTATIONS, KeyRange, StoredQueue, check_queue_name
from diskq.engine.storemetadata import MetadataFile
from diskq.engine.storerecovery import Found, recover_store
from diskq.engine.storesnapshot import StateSnapshot
from diskq.engine.taskfluxfiles import Point, StoreFiles, read_settings
from diskq.errors import (
    BusyError,
    DiskFullError,
    DiskqError,
    LeaseError,
    MessageSizeError,
    QueueExistsError,
    QueueNameError,
    QueueNotFoundError,
    StorageFailedError,
    UnsupportedFormatError,
)
from diskq.options import Durability, PriorityOptions, checked_durability, checked_options
from diskq.storage.barrier import NO_ROOM, Barrier, Debts, close_all
from diskq.storage.callbacks import check_plain
from diskq.storage.closing import Closing
from diskq.storage.directories import make_directories
from diskq.storage.fs import FULL_DISK_ERRNOS, AnyPath, FileSystem, OsFileSystem, as_path
from diskq.storage.lock import Lock
from diskq.storage.logs import Log
from diskq.storage.numbers import UNBOUNDED
from diskq.storage.recovery import Repair
from diskq.storage.syncpolicy import SyncPolicy

__all__ = [
    "Implementation",
    "Payload",
    "PriorityRecord",
    "PriorityStore",
    "PriorityTicket",
    "QueueInfo",
    "StoreStatistics",
]

log = Log("priority")

Payload = bytes | bytearray | memoryview
Implementation = Literal["H4", "QA"]

_A_DAY = 86_400.0
_LARGEST_LIMIT = 2**31 - 1
# In the document's layout a term and a record's number have 4 bytes.
_LARGEST_NARROW = 2**31 - 1
# So many handles of complete segments may wait to be synced and closed.
_MANY_WAITING = 32
_MOST_WAITING = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """One queue of a store at one moment."""

    name: str
    implementation: str
    ready: int
    """Messages that can be received."""
    in_flight: int
    """Messages in somebody's hand."""
    stored: int
    """Both, and those that are written and wait to be durable."""
    bytes: int
    """Of the stored messages."""
    last_id: int
    max_size: int | None
    max_message_size: int | None
    key_range: KeyRange | None

    @classmethod
    def of(cls, queue: StoredQueue, **more: Any) -> Self:
        """The queue as it is now; `more` are the fields that a class has beyond these."""
        table = queue.table
        return cls(
            name=queue.name,
            implementation=queue.kind,
            ready=table.ready,
            in_flight=table.taken,
            stored=table.stored,
            bytes=table.payload_bytes,
            last_id=table.last_id,
            max_size=queue.max_size,
            max_message_size=queue.max_message_size,
            key_range=queue.key_range,
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """A store at one moment. What follows `unsynced_bytes` counts since the open."""

    queues: int
    stored: int
    """Messages in all queues."""
    segments: int
    next_lsn: int
    """The number that the next command gets."""
    snapshot_lsn: int
    """The last command that the snapshot covers; -1: there is none."""
    unsynced_bytes: int
    """Accepted, and not yet on the platter."""
    written_bytes: int
    """Of commands."""
    barriers: int
    snapshots: int
    commands: int
    repairs: tuple[Repair, ...]
    warnings: Mapping[str, int]
    """What was met at the open that should not be there, by name, and how often."""


Statistics = TypeVar("Statistics", bound=StoreStatistics)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityTicket:
    """A barrier taken and not yet paid, and what is true once it is."""

    barrier: Barrier
    written: int
    """Of all bytes ever accepted, this many are then durable."""
    lsn: int
    """So are all commands up to this one."""
    reveals: tuple[tuple[RecordTable, int], ...]
    """Up to these ids records may then be seen."""
    point: Point | None
    left_out: DiskFullError | None
    """What was accepted and waits to be written found no room, and is not durable then."""


@dataclass(slots=True)
class _Held:
    """Records in memory, which wait to be written."""

    data: list[bytes]
    size: int = 0
    records: int = 0


class PriorityStore(Closing):
    """Priority queues in TaskFlux's files.

    For one thread at a time: a call while another thread is inside raises BusyError, and does nothing.
    Reading is at least once: what is in hand comes back where it was after a crash, and after `close`.
    """

    def __init__(
        self,
        path: AnyPath,
        options: PriorityOptions | None = None,
        *,
        fs: FileSystem | None = None,
        clock: Callable[[], float] | None = None,
        time_slice: float | None = None,
        takes_snapshots: bool = True,
        repairs_damage: bool = False,
    ) -> None:
        """Open the store in the directory `path`, which is made, with those above it, where it is not there.

        Its files are in `path` itself where they are there, or else where TaskFlux has them when its
        `DataDirectory` is `path`. Returns when it is whole and durable; `repairs` and `warnings` tell what
        was met. `clock` (seconds, monotonic) is the sync policy's; `time_slice` (seconds) is for the gate of
        a channel; and if not `takes_snapshots`, the owner takes them, when `wants_snapshot`. `repairs_damage`
        is the last resort: where the store would be refused as damaged, the log ends at the damage, and
        everything behind it, or that cannot be read, is kept aside; `repairs` tells what.

        Raises LockedError where somebody has it, TaskFlux among others; DamagedStoreError, DiskFullError,
        UnsupportedFormatError, OSError, and CorruptionError for settings that are none or, if
        `options.strict`, for a torn tail.
        """
        self.options = checked_options(options, PriorityOptions)
        self._fs: FileSystem = fs or OsFileSystem()
        self.path = self.name = as_path(path)
        self.settings = read_settings(self._fs, self.path)
        self.files = StoreFiles.found(self._fs, self.path, self.settings.data_directory)
        self._clock = check_plain("clock", clock or self._fs.monotonic)
        self.turn = Turn(partial(BusyError, self.path))
        """Of the thread that is inside."""
        time_slice = min(self.options.sync_timeout, _A_DAY) if time_slice is None else time_slice
        self.gate = Gate(time_slice, self.turn)
        self.gates = (self.gate,)
        self._takes_snapshots = takes_snapshots
        self._repairs_damage = repairs_damage
        self._policy = SyncPolicy(
            self.options.sync_every, self.options.sync_timeout, self.options.max_unsynced
        )
        self.is_half_unsynced = False
        self._debts = Debts()
        self._queues: dict[str, StoredQueue] = {}
        self._hiding: dict[RecordTable, None] = {}  # they have records that nobody may see yet
        self._held = _Held([])
        self._lock: Lock | None = None
        self._told_newest = -1
        self._metadata: MetadataFile | None = None
        self._outstanding: PriorityTicket | None = None
        self._failure: DiskqError | None = None
        self._is_closed = False
        self._is_closing = False
        self._commands = self._counted = 0  # since the open; and those that the policy knows of
        self._accepted_bytes = self._synced_bytes = 0
        self._point: Point | None = None  # what the file says
        self._barriers = self._snapshots = 0
        self._snapshot: StateSnapshot | None = None
        self._no_snapshot_before = 0  # so many complete segments: the last attempt failed
        self._term = 1
        self._document = False
        try:
            self._open()
        except OSError as failure:
            if failure.errno in FULL_DISK_ERRNOS:
                raise DiskFullError(self.path, f"the disk is full ({failure})") from failure
            raise

    # --- from open to close -----------------------------------------------------------------------

    def _open(self) -> None:
        fs, files = self._fs, self.files
        make_directories(fs, files.root)
        # Made durably: recovery keeps there what it cuts, before any barrier.
        made = [fs.make_directory(path) for path in (files.private, files.temporary, files.log)]
        if any(made):
            Barrier(directories=(files.root,)).pay(fs)
        for path in (files.root, files.private, files.temporary, files.log):
            self._debts.directories[path] = None
        try:
            what = f"the store in {self.path}"
            self._lock = Lock(fs, files.lock, what)
            point = Point.read(fs, files)
            self._metadata = MetadataFile(
                fs,
                files,
                self._debts,
                what,
                as_document=self.options.layout == "document",
                # A server of TaskFlux's has its vote there, of which nobody else knows. We have none.
                begins_anew=self._repairs_damage or (point is not None and not self.options.strict),
            )
            # Nobody else has it now: what is left over is nobody's.
            self._debts.removals += files.leftovers()
            previous = self._lock.previous
            found = recover_store(
                fs,
                files,
                point,
                self._debts,
                strict=self.options.strict,
                was_restarted=previous is None or self._lock.was_restarted,
                newest=-1 if previous is None else previous.newest,
                repairs_damage=self._repairs_damage,
            )
            if found.is_mended:
                self._keep_state(found)
            self._go_on(found, self._metadata)
            self._lock.sign()
            self._debts.files.append(self._lock.handle)
            told = log.all_repaired(self.repairs)
            self.sync()
            self._lock.note_newest(-1)  # from here on the point tells
        except BaseException:
            self._release()
            raise
        log.all_repaired(self.repairs, told)

    def _keep_state(self, found: Found) -> None:
        """Damage was passed over: have the state durable before anything of the log goes."""
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
            snapshot.installing(()).pay(self._fs)
            found.old.pay(self._fs)
        except OSError as failure:
            snapshot.drop()
            if failure.errno in FULL_DISK_ERRNOS:
                what = f"it is damaged, and there is no room to write down what is whole ({failure})"
                raise DiskFullError(self.path, what) from failure
            raise
        found.snapshot_lsn, found.is_snapshot_damaged = lsn, False

    def _go_on(self, found: Found, file: MetadataFile) -> None:
        fs, options, settings, metadata = self._fs, self.options, self.settings, file.content
        is_narrow = metadata.is_document if found.is_narrow is None else found.is_narrow
        if options.layout is not None and (options.layout == "document") != is_narrow:
            there = "document" if is_narrow else "aligned"
            raise UnsupportedFormatError(self.path, f"a store whose layout is {there!r}", f"layout={there!r}")
        self._document = is_narrow
        self._term = min(metadata.term, _LARGEST_NARROW) if is_narrow else metadata.term
        if file.repairs:
            self._term = max(self._term, found.term)  # it began anew: the log knows
        self._last_term = found.term or self._term
        if metadata.is_document:
            found.warnings["document_layout"] = max(1, found.warnings["document_layout"])
        self._queues = found.queues
        self._snapshot_lsn = found.snapshot_lsn
        self._is_snapshot_damaged = found.is_snapshot_damaged
        self.repairs: tuple[Repair, ...] = (*file.repairs, *found.repairs)
        """What was found torn at the open, and what was done about it."""
        self.warnings: Mapping[str, int] = dict(+found.warnings)
        """What was met at the open that should not be there, by name, and how often."""
        self._segment = CommandSegment(
            fs,
            self.files,
            soft_limit=settings.soft_limit if options.soft_limit is None else options.soft_limit,
            hard_limit=settings.hard_limit if options.hard_limit is None else options.hard_limit,
            preallocate=options.preallocate,
        )
        self._snapshot_segments = options.snapshot_segments or max(1, settings.snapshot_segments)
        self._log = SegmentedLog(self._segment, found.bases)
        base = found.bases[-1]
        if found.handle >= 0:
            self._segment.resume(base, found.end, found.records, found.handle)
        else:
            self._segment.begin(base, self._debts)
        self._synced_lsn = self._segment.next_offset - 1

    @alone
    def close(self) -> None:
        """Sync everything, and let go of the files. Idempotent.

        Raises as `sync`; the store is closed all the same. What is in hand comes back at the next open.
        """
        if self._is_closed:
            return
        try:
            if self._failure is None:
                self._is_closing = True
                self.sync()
        finally:
            self._release()

    def _release(self) -> None:
        self._is_closed = True
        self.gate.left = 0
        debts, self._debts = self._debts, Debts()
        segment = getattr(self, "_segment", None)
        with contextlib.ExitStack() as stack:  # all of it, whatever a part of it says
            if self._lock is not None:
                stack.callback(self._lock.release)
            if self._metadata is not None:
                stack.callback(self._metadata.release)
            stack.callback(close_all, self._fs, debts.closing)
            if segment is not None:
                stack.callback(segment.abandon)
            if self._snapshot is not None:
                stack.callback(self._snapshot.give_up)

    @property
    def log(self) -> Self:
        return self

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise ValueError(f"the store in {self.path} is closed")

    # --- queues -----------------------------------------------------------------------------------

    def queue(self, name: str = DEFAULT) -> StoredQueue:
        """The queue of this name, by default the one that is always there. Raises QueueNotFoundError."""
        self._check_usable()
        try:
            return self._queues[name]
        except KeyError:
            raise QueueNotFoundError(self.path, name) from None

    def queues(self) -> list[QueueInfo]:
        """What queues there are, by name."""
        self._check_usable()
        return [self.info(queue) for _, queue in sorted(self._queues.items())]

    def info(self, queue: StoredQueue) -> QueueInfo:
        """The queue as it is now."""
        return QueueInfo.of(queue)

    @alone
    def create_queue(
        self,
        name: str,
        *,
        implementation: Implementation = "H4",
        max_size: int | None = None,
        max_message_size: int | None = None,
        key_range: KeyRange | None = None,
        durability: Durability | None = None,
    ) -> StoredQueue:
        """Add a queue, which is there when this returns, as durably as `durability` (else the options) says.

        `max_size` bounds how many messages it holds, those in hand included, `max_message_size` (bytes) each
        of them, and `key_range` (lowest, highest) their priorities. "QA" is for few priorities, and needs a
        range. Raises QueueNameError, QueueExistsError, ValueError, and as `enqueue`.
        """
        queue = self.add_queue(name, implementation, max_size, max_message_size, key_range, durability)
        self._sync_if_due(durability or self.options.durability)
        return queue

    @alone
    def add_queue(
        self,
        name: str,
        implementation: Implementation,
        max_size: int | None,
        max_message_size: int | None,
        key_range: KeyRange | None,
        durability: Durability | None,
    ) -> StoredQueue:
        """As `create_queue`, without any sync: for a channel."""
        self._check_usable()
        if check_queue_name(name) in self._queues:
            raise QueueExistsError(self.path, name)
        if implementation not in IMPLEMENTATIONS:
            raise ValueError(f"implementation is one of {', '.join(IMPLEMENTATIONS)}, got {implementation!r}")
        for what, limit in (("max_size", max_size), ("max_message_size", max_message_size)):
            if limit is not None and not 0 <= limit <= _LARGEST_LIMIT:
                raise ValueError(f"{what} is 0 to {_LARGEST_LIMIT}, got {limit}")
        if key_range is not None and not -(2**63) <= key_range[0] <= key_range[1] < 2**63:
            raise ValueError(f"key_range is two numbers of 64 bits, in order, got {key_range}")
        if implementation == "QA" and key_range is None:
            raise ValueError("a queue of kind QA needs a key_range")
        queue = StoredQueue(name, IMPLEMENTATIONS[implementation], max_size, max_message_size, key_range)
        limits = (queue.implementation, max_size, max_message_size, key_range)
        command = taskflux.create_command(queue.encoded_name, *limits)

        def apply(start: int, stop: int) -> None:
            self._queues[name] = queue

        self._append_one(command, apply, durability)
        return queue

    @alone
    def delete_queue(self, name: str, durability: Durability | None = None) -> None:
        """Remove a queue and all it holds. What is in hand of it may still be settled: nothing happens then.

        Raises QueueNotFoundError, QueueNameError for the default queue, and as `enqueue`.
        """
        self.remove_queue(name, durability)
        self._sync_if_due(durability or self.options.durability)

    @alone
    def remove_queue(self, name: str, durability: Durability | None = None) -> StoredQueue:
        """As `delete_queue`, without any sync: for a channel. Returns what was the queue."""
        queue = self.queue(name)
        if name == DEFAULT:
            raise QueueNameError(name, "the default queue is always there")

        def apply(start: int, stop: int) -> None:
            queue.is_deleted = True
            del self._queues[name]
            self._hiding.pop(queue.table, None)

        self._append_one(taskflux.delete_command(queue.encoded_name), apply, durability)
        return queue

    # --- sending ----------------------------------------------------------------------------------

    def enqueue(
        self, queue: StoredQueue, payload: Payload, priority: int = 0, durability: Durability | None = None
    ) -> int:
        """Add one message; the smallest `priority` is received first. Returns its id.

        Returns when it is as durable as `durability` (else the options) says, and can be received by then.
        Raises TypeError, QueueFullError, PriorityRangeError, MessageSizeError, QueueNotFoundError, BusyError
        and DiskFullError, after which it is not in the queue; and StorageFailedError, after which nobody
        knows.
        """
        return self.enqueue_many(queue, [payload], priority, durability)[0]

    def enqueue_many(
        self,
        queue: StoredQueue,
        payloads: Iterable[Payload],
        priorities: int | Sequence[int] = 0,
        durability: Durability | None = None,
    ) -> range:
        """Add messages, of one priority or each with its own, with one write. Returns their ids.

        All are checked before the first is added. Raises as `enqueue`; `DiskFullError.accepted` tells how
        many of them are in the queue all the same.
        """
        payloads = list(payloads)
        word = durability or self.options.durability
        try:
            self.turn.take()
            self._check_there(queue)
            queue.check_room(len(payloads))
            batch, keys = self.checked(queue, payloads, priorities)
            while self.obstacle(sum(map(len, batch))):
                self.sync()
            ids = self.add(queue, batch, keys, word)
            self._sync_if_due(word)
        finally:
            self.turn.give()
        return ids

    def checked(
        self, queue: StoredQueue, payloads: Iterable[Payload], priorities: int | Sequence[int] = 0
    ) -> tuple[list[bytes], int | list[int]]:
        """The messages as `add` takes them. Raises what `enqueue` does before anything is written.

        Whether the queue has room for them, which may come, is not asked.
        """
        self._check_there(queue)
        batch = [payload if type(payload) is bytes else as_body(payload) for payload in payloads]
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
            largest = max(map(len, batch))
            most = self.options.max_message_size
            if queue.max_message_size is not None:
                most = min(most, queue.max_message_size)
            if largest > most:
                raise MessageSizeError(largest, 0, most)
        return batch, keys

    def add(
        self, queue: StoredQueue, batch: list[bytes], keys: int | list[int], durability: Durability
    ) -> range:
        """As `enqueue_many` what is `checked`, without any sync: for a channel.

        With the word `synced` nobody sees them before the barrier is marked that a ticket taken after this
        covers them with.
        """
        self._check_there(queue)
        table, name = queue.table, queue.encoded_name
        first = table.last_id + 1
        is_hidden = durability == "synced"

        def encode(start: int, room: int) -> tuple[bytes, int]:
            return taskflux.encode_adds(name, batch, keys, start, room, self._term, self._document)

        def apply(start: int, stop: int) -> None:
            table.add(batch, keys, start, stop, is_hidden)
            if is_hidden:
                self._hiding[table] = None

        self._append(encode, len(batch), apply, durability)
        return range(first, first + len(batch))

    def _check_there(self, queue: StoredQueue) -> None:
        self._check_usable()
        if queue.is_deleted:
            raise QueueNotFoundError(self.path, queue.name)

    def obstacle(self, size: int) -> Literal["unsynced"] | None:
        """What keeps `size` more bytes from being accepted now: they have to wait for a barrier."""
        self._check_usable()
        unsynced = self.unsynced_bytes
        is_over = unsynced and unsynced + size > self.options.max_unsynced
        return "unsynced" if is_over or len(self._debts.closing) >= _MOST_WAITING else None

    # --- receiving --------------------------------------------------------------------------------

    def dequeue(self, queue: StoredQueue) -> PriorityRecord | None:
        """The next message, to be acknowledged or given back; None: nothing is ready."""
        found = self.dequeue_many(queue, 1)
        return found[0] if found else None

    def dequeue_many(
        self, queue: StoredQueue, max_items: int, max_bytes: int | None = None
    ) -> list[PriorityRecord]:
        """The next messages, at most so many, of so many bytes in all but for the first.

        They are in the log, and in every snapshot, until they are acknowledged. Raises QueueNotFoundError.
        """
        try:
            self.turn.take()
            self._check_there(queue)
            return queue.table.take(max_items, -1 if max_bytes is None else max_bytes)
        finally:
            self.turn.give()

    @alone
    def peek(self, queue: StoredQueue, max_items: int = 1) -> list[PriorityRecord]:
        """As `dequeue_many`, and they stay where they are."""
        self._check_there(queue)
        return queue.table.peek(max_items)

    def ack(self, queue: StoredQueue, record: PriorityRecord, durability: Durability | None = None) -> None:
        """The message is done with, and never comes back: as durably as `durability` (else the options) says.

        Raises LeaseError where it was settled before, DiskFullError, after which it is in hand as it was,
        and StorageFailedError.
        """
        self.ack_many(queue, [record], durability)

    def ack_many(
        self, queue: StoredQueue, records: Iterable[PriorityRecord], durability: Durability | None = None
    ) -> None:
        """As `ack`, with one write. `DiskFullError.accepted` tells how many of them are done with."""
        word = durability or self.options.durability
        batch = list(records)
        try:
            self.turn.take()
            self.remove(queue, batch, word)
            self._sync_if_due(word)
        finally:
            self.turn.give()

    def remove(self, queue: StoredQueue, records: list[PriorityRecord], durability: Durability) -> None:
        """As `ack_many`, without any sync: for a channel."""
        self._check_usable()
        table, name = queue.table, queue.encoded_name
        self._claim(queue, records)
        if queue.is_deleted:
            table.forget(records, 0, len(records))  # the log knows: nothing more is to be said
            return
        ids = [record.id for record in records]
        done = 0

        def encode(start: int, room: int) -> tuple[bytes, int]:
            return taskflux.encode_removes(name, ids, start, room, self._term, self._document)

        def apply(start: int, stop: int) -> None:
            nonlocal done
            table.forget(records, start, stop)
            done = stop

        try:
            self._append(encode, len(records), apply, durability)
        except BaseException:
            table.unclaim(records, done, len(records))
            raise

    def nack(self, queue: StoredQueue, record: PriorityRecord) -> None:
        """The message is ready again, in its place: before those that came later with its priority.

        Nothing is written. Raises LeaseError where it was settled before.
        """
        self.nack_many(queue, [record])

    def nack_many(self, queue: StoredQueue, records: Iterable[PriorityRecord]) -> None:
        """As `nack`."""
        batch = list(records)
        with self.turn:
            self._check_usable()
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
            return taskflux.encode(command, self._term, self._document), 1

        self._append(encode, 1, apply, durability or self.options.durability)

    def _append(
        self,
        encode: Callable[[int, int], tuple[bytes, int]],
        count: int,
        apply: Callable[[int, int], None],
        durability: Durability,
    ) -> None:
        """Log `count` commands, and carry each out when it is.

        `encode(start, room)` gives the records of those from `start` on that fit into so many bytes, and the
        number of the first that does not. Raises DiskFullError, with how many were carried out.
        """
        is_held = checked_durability(durability) == "memory"
        done = 0
        while done < count:
            try:
                self._make_way(is_held)
                data, stop = encode(done, max(0, self._segment.room - self._held.size))
                size = len(data) - len(taskflux.END_MARKER)
                if self._document and self.next_lsn + stop - done > _LARGEST_NARROW:
                    raise UnsupportedFormatError(
                        self.path, f"record {_LARGEST_NARROW + 1}", "what 4 bytes can tell"
                    )
                if is_held:
                    self._held.data.append(data[:size])
                    self._held.size += size
                    self._held.records += stop - done
                else:
                    self._write(data, stop - done)
            except DiskFullError as full:
                full.accepted += done
                raise
            self._accepted_bytes += size
            self._commands += stop - done
            self._last_term = self._term
            try:
                apply(done, stop)
            except MemoryError as failure:
                self.fail(failure)  # the log is ahead of the state
            done = stop

    def _make_way(self, is_held: bool) -> None:
        """Have a segment open that takes the next record, and nothing that has to be written before it."""
        segment, held = self._segment, self._held
        if held.records and (not is_held or segment.is_full_with(held.size)):
            self._flush()
        if not segment.is_open or segment.is_full:
            self._roll()

    def _roll(self) -> None:
        try:
            self._log.roll(self._debts)
        except OSError as failure:
            self.append_failed(failure)
        if len(self._debts.closing) >= _MANY_WAITING:
            self._policy.force()

    def _write(self, data: bytes, records: int) -> None:
        try:
            self._segment.write(data, records)
        except OSError as failure:
            self.append_failed(failure)
        if self._segment.base != self._told_newest:
            # After a kill nothing else tells that there was one, before a barrier has noted it.
            self._told_newest = self._segment.base
            assert self._lock is not None
            with contextlib.suppress(OSError):
                self._lock.note_newest(self._told_newest)

    def append_failed(self, failure: OSError) -> NoReturn:
        """The disk refused a write: cut back to whole records, and stay usable if that works."""
        try:
            self._segment.cut_back()
        except OSError as second:
            self.fail(second)
        if failure.errno in FULL_DISK_ERRNOS:
            raise DiskFullError(self.path, f"the disk is full ({failure})") from failure
        raise failure

    @property
    def is_flushed(self) -> bool:
        """Is everything that was accepted in the page cache?"""
        return not self._held.records

    @alone
    def flush(self) -> None:
        """Write what was accepted and waits to be written. Raises DiskFullError, OSError."""
        self._check_usable()
        if self._held.records:
            self._flush()

    def _flush(self) -> None:
        held = self._held
        if not self._segment.is_open:
            self._roll()
        self._write(b"".join((*held.data, taskflux.END_MARKER)), held.records)
        self._held = _Held([])

    # --- syncing ----------------------------------------------------------------------------------

    @alone
    def sync(self) -> None:
        """Return when everything that was accepted is on the platter.

        Raises DiskFullError where what is held in memory finds no room; all else is then. Raises
        StorageFailedError, after which the store is of no use but to be closed.
        """
        ticket = self.prepare(full=True)
        self._pay(ticket)
        if ticket.left_out is not None:
            raise ticket.left_out

    def _sync_if_due(self, word: Durability) -> None:
        sync_if_due(self, self._pay, word)
        if self._takes_snapshots and self.wants_snapshot:
            self._try_snapshot()

    def _pay(self, ticket: PriorityTicket) -> None:
        try:
            is_replaced = ticket.barrier.pay(self._fs)
        except OSError as failure:
            self.fail(failure)
        self.complete(ticket, is_replaced)

    def note(self) -> bool:
        """Count what was accepted. True: a barrier is due."""
        now = self._clock()
        self._policy.passed(self._commands - self._counted, now)
        self._counted = self._commands
        self.is_half_unsynced = self._accepted_bytes - self._synced_bytes > self._policy.half
        self.gate.left = 0 if self._failure is not None or self._is_closed else UNBOUNDED
        return self._policy.due(now)

    def deadline(self) -> float:
        """When a barrier is due at the latest, on the clock; infinity while nothing is pending."""
        return self._policy.deadline()

    @alone
    def prepare(self, *, full: bool) -> PriorityTicket:
        """A barrier for all that was accepted and can be written. Pay it; then `mark` it, or `fail`.

        It is one sync, and a few more after a roll.
        """
        with_metadata = full
        self._check_usable()
        assert self._outstanding is None, "one barrier at a time"
        left_out = None
        try:
            self.flush()
        except DiskFullError as full:
            left_out = full
        except OSError as failure:
            self.fail(failure)
        segment = self._segment
        try:
            if self._is_closing and segment.is_open:
                segment.trim()
        except OSError as failure:
            self.fail(failure)
        if with_metadata:
            self.note()
            self._policy.taken()
        point = self._next_point()
        replacements = () if point == self._point else (point.replacing(self.files),)
        self._outstanding = PriorityTicket(
            barrier=self._debts.freeze((segment.handle,) if segment.is_open else (), replacements),
            written=self._accepted_bytes - self._held.size,
            lsn=segment.next_offset - 1,
            reveals=tuple((table, table.last_id) for table in self._hiding),
            point=point,
            left_out=left_out,
        )
        return self._outstanding

    def _next_point(self) -> Point:
        """What may be believed of the log once everything that is written is on the platter."""
        segment = self._segment
        if self._is_closing and segment.is_open:
            stored = sum(queue.table.stored for queue in self._queues.values())
            return Point(segment.base, segment.end, segment.next_offset, stored)
        return Point(segment.base if segment.is_open else self._log.bases[-1])

    @alone
    def complete(self, ticket: PriorityTicket, is_replaced: bool) -> None:
        """The barrier is paid."""
        assert ticket is self._outstanding, "not the barrier that was taken"
        self._outstanding = None
        self._synced_bytes = ticket.written
        self._synced_lsn = ticket.lsn
        self._barriers += 1
        for table, last_id in ticket.reveals:
            table.reveal(last_id)
            if not table.hidden:
                self._hiding.pop(table, None)
        if is_replaced:
            self._point = ticket.point
        else:
            log.tell(
                "disk_full",
                f"%s: {NO_ROOM}, it will be written later",
                self.files.point,
                path=self.files.point,
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

    # --- snapshots --------------------------------------------------------------------------------

    @property
    def wants_snapshot(self) -> bool:
        """Are so many segments complete that a snapshot should be taken?"""
        sealed = len(self._log.bases) - 1
        is_free = self._snapshot is None and self._failure is None and not self._is_closed
        return is_free and sealed >= max(self._snapshot_segments, self._no_snapshot_before)

    @alone
    def snapshot(self) -> bool:
        """Write the state down, and remove the log before it. False: there is nothing new to write.

        Raises DiskFullError and UnsupportedFormatError (a state of more than 2**31 - 1 bytes), after which
        the log is as it was, and StorageFailedError.
        """
        snapshot = self.begin_snapshot()
        if snapshot is None:
            return False
        try:
            snapshot.write()
            self.sync()
            self.finish_snapshot(snapshot)
        except OSError as failure:
            self.drop_snapshot(snapshot)
            if failure.errno in FULL_DISK_ERRNOS:
                raise DiskFullError(self.path, f"no room for a snapshot ({failure})") from failure
            raise
        except BaseException:
            self.drop_snapshot(snapshot)
            raise
        return True

    def _try_snapshot(self) -> None:
        try:
            self.snapshot()
        except StorageFailedError:
            raise
        except (OSError, DiskqError) as failure:
            log.tell(
                "no_snapshot",
                "%s: no snapshot, the log stays: %s",
                self.path,
                failure,
                path=self.path,
                error=failure,
            )

    @alone
    def begin_snapshot(self) -> StateSnapshot | None:
        """Freeze the state as it is now: at once. None: it is as the last snapshot has it.

        Its `write` may be called in any thread, while the store goes on being used. Then, when
        `is_durable` up to its `lsn`, `finish_snapshot` it, in two steps where that may not wait; or drop it.
        Raises DiskFullError, UnsupportedFormatError.
        """
        assert self._snapshot is None, "one snapshot at a time"
        try:
            self.flush()
        except DiskFullError:
            self.put_off_snapshots()
            raise
        lsn = self.next_lsn - 1
        if lsn <= self._snapshot_lsn:
            return None
        try:
            self._snapshot = StateSnapshot(
                self._fs,
                self.files,
                self._queues.values(),
                lsn=lsn,
                term=min(self._last_term, _LARGEST_NARROW) if self._document else self._last_term,
                document=self._document,
                keeps_old=self._is_snapshot_damaged,
            )
        except UnsupportedFormatError:
            self.put_off_snapshots()
            raise
        return self._snapshot

    def is_durable(self, lsn: int) -> bool:
        """Is the command with this number, with all before it, on the platter?"""
        return lsn <= self._synced_lsn

    @alone
    def finish_snapshot(self, snapshot: StateSnapshot) -> None:
        """Give it its name, and remove what it covers. Raises StorageFailedError."""
        barrier = self.snapshot_barrier(snapshot)
        try:
            barrier.pay(self._fs)
        except OSError as failure:
            self.fail(failure)
        self.mark_snapshot(snapshot)

    def snapshot_barrier(self, snapshot: StateSnapshot) -> Barrier:
        """What has to be paid, anywhere, to finish a snapshot that is written. `mark_snapshot` it then."""
        assert self.is_durable(snapshot.lsn), "what a snapshot covers is durable before it has its name"
        return snapshot.installing(self._covered(snapshot.lsn))

    def _covered(self, lsn: int) -> list[int]:
        bases = self._log.bases
        return [base for base, following in pairwise(bases) if following <= lsn + 1]

    @alone
    def mark_snapshot(self, snapshot: StateSnapshot) -> None:
        """Its barrier is paid."""
        assert snapshot is self._snapshot
        self._log.bases = self._log.bases[len(self._covered(snapshot.lsn)) :]
        self._snapshot_lsn = snapshot.lsn
        self._is_snapshot_damaged = False
        self._snapshot = None
        self._no_snapshot_before = 0
        self._snapshots += 1

    @alone
    def drop_snapshot(self, snapshot: StateSnapshot) -> None:
        """It will not be finished; it is tried again when the next segment is complete."""
        snapshot.drop()
        if self._snapshot is snapshot:
            self._snapshot = None
            self.put_off_snapshots()

    @alone
    def put_off_snapshots(self) -> None:
        """None can be taken now: none is wanted before the next segment is complete."""
        self._no_snapshot_before = len(self._log.bases)

    # --- where it is ------------------------------------------------------------------------------

    @property
    def next_lsn(self) -> int:
        """The number that the next command gets."""
        return self._segment.next_offset + self._held.records

    @property
    def unsynced_bytes(self) -> int:
        """Accepted since the open, and not yet on the platter."""
        return self._accepted_bytes - self._synced_bytes

    @property
    def layout(self) -> str:
        """How records are laid down."""
        return "document" if self._document else "aligned"

    def statistics(self) -> StoreStatistics:
        """The store at this moment."""
        return self.statistics_as(StoreStatistics)

    def statistics_as(self, kind: type[Statistics], **more: Any) -> Statistics:
        """The same in a class that has `more` fields, in one step."""
        return kind(
            queues=len(self._queues),
            stored=sum(queue.table.stored for queue in tuple(self._queues.values())),
            segments=len(self._log.bases),
            next_lsn=self.next_lsn,
            snapshot_lsn=self._snapshot_lsn,
            unsynced_bytes=self.unsynced_bytes,
            written_bytes=self._accepted_bytes,
            barriers=self._barriers,
            snapshots=self._snapshots,
            commands=self._commands,
            repairs=self.repairs,
            warnings=self.warnings,
            **more,
        )
