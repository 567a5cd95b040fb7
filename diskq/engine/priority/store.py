# The priority store: queues whose smallest key comes first, in TaskFlux's files, written by one process. Law:
# a command is in the log before it changes the state; a message is not received before it is as durable as
# its sender asked; a message in flight is in the log until it is acknowledged there.
#
# Synchronous, and complete in itself: threads, Spark and the command line use it directly. A Trio channel
# drives its steps (steps.py) and its log (log/writer.py), and has its syncs and its snapshots
# executed in a thread.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Unpack

from diskq._native.priority.record_table import PriorityRecord
from diskq.engine.log.engine import LogEngine
from diskq.engine.log.shared_sync import SharedCall
from diskq.engine.log.sync import exclusive
from diskq.engine.priority.files import StoreFiles
from diskq.engine.priority.state import DEFAULT, KeyRange, StoredQueue
from diskq.engine.priority.steps import (
    Body,
    Implementation,
    PriorityQueueInfo,
    PrioritySteps,
    PriorityStoreStatistics,
    parted,
)
from diskq.errors import DiskFullError, DiskqError, NotFoundError, StorageFailedError
from diskq.keywords import PriorityKeywords
from diskq.options import Durability, PriorityOptions, chosen_options
from diskq.storage.fs import FULL_DISK_ERRNOS, AnyPath, FileSystem, OsFileSystem
from diskq.storage.lock import checked_wait
from diskq.storage.log_events import Log

__all__ = [
    "Body",
    "Implementation",
    "PriorityQueueInfo",
    "PriorityRecord",
    "PriorityStore",
    "PriorityStoreStatistics",
]

log = Log("priority")


def _no_queue(given: object) -> TypeError:
    return TypeError(f"queue is what `store.queue()` or `create_queue` returns, got {type(given).__name__}")


class PriorityStore(LogEngine):
    """Priority queues in TaskFlux's files.

    Threads may share it: a call waits while another thread is inside one.
    Delivery is at least once: messages in flight are back in their places after a crash, and after `close`.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        create: bool = True,
        wait: float = 0.0,
        options: PriorityOptions | None = None,
        fs: FileSystem | None = None,
        clock: Callable[[], float] | None = None,
        time_slice: float | None = None,
        takes_snapshots: bool = True,
        repairs_damage: bool = False,
        **changes: Unpack[PriorityKeywords],
    ) -> None:
        """Open the store in the directory `path`, which is made, with its parents, if it does not exist.

        `create=False`: a missing priority store is a NotFoundError, and nothing is made.

        Its files are in `path` itself if they exist there, or else where TaskFlux has them when its
        `DataDirectory` is `path`. Returns when it is whole and durable; `repairs` and `warnings` list what
        was found. `clock` (seconds, monotonic) is the sync policy's; `time_slice` (seconds) is for the gate
        of a channel; and if not `takes_snapshots`, the owner takes them, when `wants_snapshot`.
        `repairs_damage` is the last resort: if the store would be refused as damaged, the log ends at the
        damage, and all after it, or unreadable, is kept aside; `repairs` lists it.

        `wait`: seconds for which the lock is tried while another process has it.

        Raises LockedError if another process, TaskFlux among others, has it; DamagedStoreError,
        DiskFullError, UnsupportedFormatError, OSError, and CorruptionError for invalid settings or, if
        `options.strict`, for a torn tail.

        Options (`PriorityOptions`). Sizes in bytes, durations in seconds. `soft_limit`, `hard_limit` and
        `snapshot_segments` are TaskFlux's settings; None means the value in `taskflux.settings.json`, or
        TaskFlux's default. Only `layout` is part of the format.

        - `sync_every=2500`: Sync after this many messages were written, consumed, or (of one partition)
          committed; in a priority store, after this many commands. 1: each time. (nsqd's default.)
        - `sync_timeout=2.0`: Sync this many seconds after the first unsynced message, commit or command at
          the latest (nsqd's default).
        - `checkpoint_slice=100e-6`: A task whose calls never have to wait yields to others after this many
          seconds; 0: in every call.
        - `durability="written"`: What a call that writes (`send`, `put`, `append`, `ack` of a priority store)
          waits for: the process's memory, the page cache, or the disk.
        - `max_unsynced=64 * 1024 * 1024`: Senders wait while this many bytes are not synced. A channel begins
          a sync at half of it.
        - `memory_flush=0.01`: `memory` messages are written to the page cache after this many seconds at the
          latest; in a queue only if it has no `memory_size`.
        - `soft_limit=None`: A new segment of the log starts after one that is larger than this (16 MiB).
        - `hard_limit=None`: A new segment also starts in the middle of a batch when the current one reaches
          this (32 MiB).
        - `snapshot_segments=None`: When this many segments are complete, a snapshot is taken and the log
          before it is removed (5).
        - `layout=None`: How records are laid out: "aligned", as TaskFlux reads them, or as in its "document".
          None: as the store has them, and "aligned" in a new store.
        - `preallocate=True`: Write zeros ahead of the log, which makes a sync cheaper.
        - `max_message_size=16 * 1024 * 1024`: Larger messages are refused, whatever their queue allows.
        - `on_full="wait"`: In a channel, while a queue holds `max_messages`: let senders wait, or refuse
          (`FullError`), as the engine and TaskFlux do.
        - `strict=False`: Raise `CorruptionError` also at a torn tail, instead of cutting it and reporting.
        """
        self._fs = fs or OsFileSystem()
        checked = chosen_options(PriorityStore, options, PriorityOptions, changes)
        self.steps: PrioritySteps = PrioritySteps(path, checked, self._fs, clock, time_slice, repairs_damage)
        super().__init__(self.steps)
        self.options: PriorityOptions = self.steps.options
        self.path: str = self.steps.path
        self.name: str = self.path
        self.files: StoreFiles = self.steps.files
        self._takes_snapshots = takes_snapshots
        self.log.patience = checked_wait(wait)
        with self.log.opening():
            if not create and not self.files.are_there:
                raise NotFoundError.with_create_false("priority store", self.path)
            self.steps.open()

    # --- queues -----------------------------------------------------------------------------------

    def queue(self, name: str = DEFAULT) -> StoredQueue:
        """Return the queue of this name, by default the default queue. Raises NotFoundError."""
        return self.steps.queue(name)

    def queues(self) -> list[PriorityQueueInfo]:
        """Return the queues, by name."""
        return self.steps.queues()

    def info(self, queue: StoredQueue) -> PriorityQueueInfo:
        """Return the queue as it is now."""
        if type(queue) is not StoredQueue:
            raise _no_queue(queue)
        return PriorityQueueInfo.of(queue)

    @exclusive
    def create_queue(
        self,
        name: str,
        *,
        implementation: Implementation = "H4",
        max_messages: int | None = None,
        max_message_size: int | None = None,
        priority_range: KeyRange | None = None,
        durability: Durability | None = None,
    ) -> StoredQueue:
        """Create a queue, which exists when this returns, as durably as `durability` (else the options) says.

        `max_messages` bounds how many messages it holds, those in flight included, `max_message_size` (bytes)
        each of them, and `priority_range` (lowest, highest) their priorities. "QA" is for few priorities, and
        needs a range. Raises QueueNameError (a name is up to 255 visible characters of ASCII),
        ExistsError, ValueError, and as `put`.
        """
        queue = self.steps.add_queue(
            name, implementation, max_messages, max_message_size, priority_range, durability
        )
        self._sync_if_due(self.log.durability(durability))
        return queue

    @exclusive
    def delete_queue(self, name: str, *, durability: Durability | None = None) -> None:
        """Remove a queue and all its messages. Settling a message in flight then has no effect.

        Raises NotFoundError, QueueNameError for the default queue, and as `put`.
        """
        self.steps.remove_queue(name, durability)
        self._sync_if_due(self.log.durability(durability))

    # --- putting ----------------------------------------------------------------------------------

    def put(
        self, queue: StoredQueue, body: Body, priority: int = 0, *, durability: Durability | None = None
    ) -> int:
        """Add one message; the smallest `priority` is received first. Returns its id.

        Returns when it is as durable as `durability` (else the options) says, and can be received by then.
        Raises TypeError, FullError, PriorityRangeError, MessageSizeError, NotFoundError
        and DiskFullError, after which it is not in the queue; and StorageFailedError, after which it may or
        may not be.
        """
        return self.put_many(queue, [body], priority, durability=durability)[0]

    def put_many(
        self,
        queue: StoredQueue,
        messages: Iterable[Body | tuple[int, Body]],
        priority: int | Sequence[int] = 0,
        *,
        durability: Durability | None = None,
    ) -> range:
        """Add messages with one write, each a body, or (priority, body). Returns their ids.

        `priority` applies to bodies without a priority: one for all of them, or a sequence with one for each.
        All messages are checked before the first is added. Raises as `put`; `FullError.accepted` is the
        number of messages that are in the queue all the same.
        """
        if type(queue) is not StoredQueue:
            raise _no_queue(queue)
        bodies, keys = parted(messages, priority)
        word = self.log.durability(durability)
        call = None
        try:
            self.guard.take()
            self.steps.check_there(queue)
            queue.check_room(len(bodies))
            batch, keys = self.steps.checked(queue, bodies, keys)
            while self.steps.obstacle(sum(map(len, batch))):
                self.log.sync()
            ids = self.steps.add(queue, batch, keys, word)
            call = self._join_sync(word)
        finally:
            self.guard.give()
        self.log.end_sync(call)
        return ids

    # --- getting ----------------------------------------------------------------------------------

    def get(self, queue: StoredQueue) -> PriorityRecord | None:
        """Return the next message, to be acknowledged or given back; None if nothing is ready."""
        if type(queue) is not StoredQueue:
            raise _no_queue(queue)
        found = self.steps.get_many(queue, 1)
        return found[0] if found else None

    def get_many(
        self, queue: StoredQueue, max_messages: int, *, max_bytes: int | None = None
    ) -> list[PriorityRecord]:
        """Return the next messages: up to `max_messages`, of up to `max_bytes` together.

        The first one may be larger. They are in the log, and in every snapshot, until they are acknowledged.
        Raises NotFoundError.
        """
        if type(queue) is not StoredQueue:
            raise _no_queue(queue)
        return self.steps.get_many(queue, max_messages, max_bytes)

    def peek(self, queue: StoredQueue, max_messages: int = 1) -> list[PriorityRecord]:
        """Return messages as `get_many`, but leave them in the queue."""
        if type(queue) is not StoredQueue:
            raise _no_queue(queue)
        return self.steps.peek(queue, max_messages)

    def ack(
        self, queue: StoredQueue, record: PriorityRecord, *, durability: Durability | None = None
    ) -> None:
        """Acknowledge the message, which is then never redelivered, as durably as `durability` says.

        Without `durability` the options say it. Raises LeaseError if it was settled before, DiskFullError,
        after which it is in flight as it was, and StorageFailedError.
        """
        self.ack_many(queue, [record], durability=durability)

    def ack_many(
        self, queue: StoredQueue, records: Iterable[PriorityRecord], *, durability: Durability | None = None
    ) -> None:
        """Acknowledge messages as `ack`, with one write. `FullError.accepted` is the number that are."""
        if type(queue) is not StoredQueue:
            raise _no_queue(queue)
        word = self.log.durability(durability)
        batch = list(records)
        call = None
        try:
            self.guard.take()
            self.steps.remove(queue, batch, word)
            call = self._join_sync(word)
        finally:
            self.guard.give()
        self.log.end_sync(call)

    def nack(self, queue: StoredQueue, record: PriorityRecord) -> None:
        """Make the message ready again, in its place: before later messages of its priority.

        Nothing is written. Raises LeaseError if it was settled before.
        """
        self.nack_many(queue, [record])

    def nack_many(self, queue: StoredQueue, records: Iterable[PriorityRecord]) -> None:
        """Make messages ready again, as `nack`."""
        if type(queue) is not StoredQueue:
            raise _no_queue(queue)
        self.steps.nack_many(queue, records)

    # --- syncing ----------------------------------------------------------------------------------

    def _join_sync(self, word: Durability) -> SharedCall | None:
        """Sync if that is due; else begin what `word` wants, to be ended outside the guard."""
        is_due = self.log.after_append()
        if self._takes_snapshots and self.steps.wants_snapshot:
            self._try_snapshot()
        return self.log.join_sync() if word == "synced" and not is_due else None

    def _sync_if_due(self, word: Durability) -> None:
        self.log.after_append(word)
        if self._takes_snapshots and self.steps.wants_snapshot:
            self._try_snapshot()

    # --- snapshots --------------------------------------------------------------------------------

    @exclusive
    def snapshot(self) -> bool:
        """Write a snapshot, and remove the log before it. False if there is nothing new to write.

        Raises DiskFullError and UnsupportedFormatError (a state of more than 2**31 - 1 bytes), after which
        the log is as it was, and StorageFailedError.
        """
        steps = self.steps
        snapshot = steps.begin_snapshot()
        if snapshot is None:
            return False
        try:
            snapshot.write()
            self.log.sync()
            steps.finish_snapshot(snapshot)
        except OSError as failure:
            steps.drop_snapshot(snapshot)
            if failure.errno in FULL_DISK_ERRNOS:
                raise DiskFullError(self.path, f"no room for a snapshot ({failure})") from failure
            raise
        except BaseException:
            steps.drop_snapshot(snapshot)
            raise
        return True

    def _try_snapshot(self) -> None:
        try:
            self.snapshot()
        except StorageFailedError:
            raise
        except (OSError, DiskqError) as failure:
            log.report(
                "no_snapshot",
                "%s: no snapshot, the log stays: %s",
                self.path,
                failure,
                path=self.path,
                error=failure,
            )

    # --- where it is ------------------------------------------------------------------------------

    @property
    def next_lsn(self) -> int:
        """The number that the next command gets."""
        return self.steps.next_lsn

    @property
    def layout(self) -> str:
        """The layout of records: "document" or "aligned"."""
        return self.steps.layout

    @property
    def warnings(self) -> Mapping[str, int]:
        """Anomalies that were found at the open, by name, and how often."""
        return self.steps.warnings

    def statistics(self) -> PriorityStoreStatistics:
        """Return the statistics of the store at this moment."""
        return self.steps.statistics_as(PriorityStoreStatistics)
