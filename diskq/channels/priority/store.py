# A store of priority queues, open in Trio.
#
# Handles on one `PriorityLoop`: the store's, and those of its queues (diskq.channels.priority.queue).

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Unpack

from trio.lowlevel import enable_ki_protection

from diskq.channels.core.handle import Calls, chosen_durability
from diskq.channels.core.opening import OpeningEngine
from diskq.channels.core.sync_executor import SyncExecutor
from diskq.channels.priority.loop import PriorityLoop
from diskq.channels.priority.queue import PriorityQueueChannel
from diskq.engine.priority.state import DEFAULT, KeyRange, StoredQueue
from diskq.engine.priority.store import (
    Implementation,
    PriorityQueueInfo,
    PriorityStore,
    PriorityStoreStatistics,
)
from diskq.keywords import PriorityKeywords
from diskq.options import Durability, PriorityOptions, chosen_options
from diskq.storage.fs import AnyPath, FileSystem
from diskq.storage.repairs import Repair
from diskq.storage.sync_times import Durations

__all__ = ["PriorityStoreChannel", "PriorityStoreChannelStatistics", "open_priority_store"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityStoreChannelStatistics(PriorityStoreStatistics):
    """`PriorityStoreStatistics`, and the duration of barriers and the number of waiting tasks."""

    barrier_seconds: Durations
    """How long barriers took on the disk: each is one or several syncs of files and directories."""
    tasks_waiting_send: int
    """Tasks that wait for space or for a sync."""
    tasks_waiting_receive: int
    is_taking_snapshot: bool


class PriorityStoreChannel(Calls):
    """Priority queues on disk, in TaskFlux's files, for the tasks of one Trio program.

    Made by `open_priority_store`. Every async method is a cancellation point; if one raises `Cancelled`,
    nothing happened, except as `snapshot` says.
    """

    def __init__(self, loop: PriorityLoop) -> None:
        super().__init__(loop)
        self._loop = loop
        self._engine = loop.engine

    # --- queues -----------------------------------------------------------------------------------

    def queue(self, name: str = DEFAULT) -> PriorityQueueChannel:
        """Return a handle on the queue of this name, by default on the queue that always exists.

        Raises NotFoundError.
        """
        self._loop.check()
        return self._handle(self._engine.queue(name))

    def queues(self) -> list[PriorityQueueInfo]:
        """Return the existing queues, by name, and their figures."""
        self._loop.check()
        return self._engine.queues()

    @enable_ki_protection
    async def create_queue(
        self,
        name: str,
        *,
        implementation: Implementation = "H4",
        max_messages: int | None = None,
        max_message_size: int | None = None,
        priority_range: KeyRange | None = None,
        durability: Durability | None = None,
    ) -> PriorityQueueChannel:
        """Add a queue. Returns a handle on it when it is as durable as `durability` (or the options) says.

        Bounds and names are as in `PriorityStore.create_queue`. `Cancelled` means: it was not added.

        Raises QueueNameError, ExistsError, ValueError, DiskFullError, trio.BrokenResourceError,
        trio.ClosedResourceError.
        """
        await self._begin()
        level = chosen_durability(durability, self._loop.options.durability)
        queue = await self._loop.alter(
            lambda: self._engine.add_queue(
                name, implementation, max_messages, max_message_size, priority_range, level
            ),
            level,
        )
        return self._handle(queue)

    @enable_ki_protection
    async def delete_queue(self, name: str, *, durability: Durability | None = None) -> None:
        """Remove a queue and all it holds. Tasks that wait for it get a NotFoundError.

        Settling its messages in hand does nothing afterwards. `Cancelled` means: the queue was not removed.
        Raises NotFoundError, QueueNameError for the default queue; otherwise as `create_queue`.
        """
        await self._begin()
        level = chosen_durability(durability, self._loop.options.durability)

        def remove() -> None:
            self._loop.drop_lines(self._engine.remove_queue(name, level))

        await self._loop.alter(remove, level)

    def _handle(self, queue: StoredQueue) -> PriorityQueueChannel:
        return PriorityQueueChannel(self._loop, self._loop.lines_of(queue))

    # --- the store as a whole ---------------------------------------------------------------------

    @enable_ki_protection
    async def sync(self) -> None:
        """Return when all that was sent, acknowledged, created and deleted is on stable storage.

        `Cancelled` is raised only before the sync begins, and changes nothing.
        """
        await self._begin()
        await self._loop.barrier(with_metadata=True)

    @enable_ki_protection
    async def snapshot(self) -> bool:
        """Write a snapshot of the state, and remove the log that it covers. False: nothing was new.

        Snapshots are also taken without this call when the log has grown (`snapshot_segments`). A thread
        writes it while the store stays usable. `Cancelled` ends only the wait: the snapshot may still be
        taken. Raises DiskFullError, UnsupportedFormatError (a state above 2 GiB) and OSError: the log stays
        as it was. Raises trio.BrokenResourceError, trio.ClosedResourceError.
        """
        await self._begin()
        return await self._loop.snapshots.take()

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """The torn ends found at the open, and what was done about them."""
        return self._engine.repairs

    @property
    def warnings(self) -> Mapping[str, int]:
        """The number of unexpected records found at the open, by name."""
        return self._engine.warnings

    def statistics(self) -> PriorityStoreChannelStatistics:
        """Return figures of the store as it is now. Cheap; may be called from any thread."""
        return self._engine.statistics_as(
            PriorityStoreChannelStatistics,
            barrier_seconds=self._loop.barrier_seconds,
            tasks_waiting_send=self._loop.tasks_waiting_send,
            tasks_waiting_receive=self._loop.tasks_waiting_receive,
            is_taking_snapshot=self._loop.snapshots.is_busy,
        )

    def close(self) -> None:
        """Close the store; leaving its block then waits for the files. Idempotent.

        Waiting tasks are woken with ClosedResourceError; messages in hand are in their place at the next
        open.
        """
        self._loop.own_thread.check()
        self._loop.begin_to_close()


class open_priority_store(OpeningEngine[PriorityStoreChannel, PriorityStore]):  # noqa: N801 (it is used as a function)
    """Open the priority store at `path`: an async context manager that gives a `PriorityStoreChannel`.

    The directory and the store are made if they do not exist; `create=False`: that is a NotFoundError.
    Options may be given as a `PriorityOptions`, or one by one:
    `open_priority_store("jobs", durability="synced")`.

    Leaving the block syncs everything and closes the files, also when the block was cancelled; messages in
    hand are in their place at the next open. Entering it raises LockedError if after `wait` seconds another
    process, for example TaskFlux, has the store, DamagedStoreError, UnsupportedFormatError, OSError, and
    CorruptionError for unreadable settings; leaving it raises trio.BrokenResourceError if the storage failed,
    and DiskFullError if there was no space for `memory` messages until the end. An exception of the block
    itself is raised instead.

    Options (`PriorityOptions`). Sizes in bytes, durations in seconds. `soft_limit`, `hard_limit` and
    `snapshot_segments` are TaskFlux's settings; None means the value in `taskflux.settings.json`, or
    TaskFlux's default. Only `layout` is part of the format.

    - `sync_every=2500`: Sync after this many messages were written, consumed, or (of one partition)
      committed; in a priority store, after this many commands. 1: each time. (nsqd's default.)
    - `sync_timeout=2.0`: Sync this many seconds after the first unsynced message, commit or command at the
      latest (nsqd's default).
    - `checkpoint_slice=100e-6`: A task whose calls never have to wait yields to others after this many
      seconds; 0: in every call.
    - `durability="written"`: What a call that writes (`send`, `put`, `append`, `ack` of a priority store)
      waits for: the process's memory, the page cache, or the disk.
    - `max_unsynced=64 * 1024 * 1024`: Senders wait while this many bytes are not synced. A channel begins a
      sync at half of it.
    - `memory_flush=0.01`: `memory` messages are written to the page cache after this many seconds at the
      latest; in a queue only if it has no `memory_size`.
    - `soft_limit=None`: A new segment of the log starts after one that is larger than this (16 MiB).
    - `hard_limit=None`: A new segment also starts in the middle of a batch when the current one reaches this
      (32 MiB).
    - `snapshot_segments=None`: When this many segments are complete, a snapshot is taken and the log before
      it is removed (5).
    - `layout=None`: How records are laid out: "aligned", as TaskFlux reads them, or as in its "document".
      None: as the store has them, and "aligned" in a new store.
    - `preallocate=True`: Write zeros ahead of the log, which makes a sync cheaper.
    - `max_message_size=16 * 1024 * 1024`: Larger messages are refused, whatever their queue allows.
    - `on_full="wait"`: In a channel, while a queue holds `max_messages`: let senders wait, or refuse
      (`FullError`), as the engine and TaskFlux do.
    - `strict=False`: Raise `CorruptionError` also at a torn tail, instead of cutting it and reporting.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        create: bool = True,
        wait: float = 0.0,
        options: PriorityOptions | None = None,
        fs: FileSystem | None = None,
        **changes: Unpack[PriorityKeywords],
    ) -> None:
        checked = chosen_options(open_priority_store, options, PriorityOptions, changes)
        engine = partial(PriorityStore, path, create=create, options=checked, takes_snapshots=False)
        super().__init__(engine, checked.checkpoint_slice, fs, wait)

    def _handle_on(self, engine: PriorityStore) -> tuple[PriorityLoop, PriorityStoreChannel]:
        executor = SyncExecutor(self._fs, engine.path, engine.files.status)
        loop = PriorityLoop(engine.steps, executor, self._fs)
        return loop, PriorityStoreChannel(loop)
