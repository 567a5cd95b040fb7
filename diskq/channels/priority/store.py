# A store of priority queues, open in Trio.
#
# Handles on one `PriorityLoop`: the store's, and those of its queues (diskq.channels.priority.queue).

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from trio.lowlevel import enable_ki_protection

from diskq.channels.core.barrier_thread import BarrierThread
from diskq.channels.core.handle import Calls, checked_word
from diskq.channels.core.opening import OpeningEngine
from diskq.channels.priority.loop import PriorityLoop
from diskq.channels.priority.queue import DiskPriorityQueue
from diskq.engine.priority.state import DEFAULT, KeyRange, StoredQueue
from diskq.engine.priority.store import Implementation, PriorityStore, QueueInfo, StoreStatistics
from diskq.options import Durability, PriorityOptions
from diskq.storage.durations import Durations
from diskq.storage.fs import AnyPath, FileSystem
from diskq.storage.repairs import Repair

__all__ = ["DiskPriorityStore", "PriorityStoreStatistics", "open_priority_store"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityStoreStatistics(StoreStatistics):
    """As `StoreStatistics`, how long barriers took, and who waits."""

    barrier_seconds: Durations
    """How long barriers took on the disk: a sync of files and directories, or several."""
    tasks_waiting_send: int
    """For room, or for a sync."""
    tasks_waiting_receive: int
    is_taking_snapshot: bool


class DiskPriorityStore(Calls):
    """Priority queues on disk, in TaskFlux's files, for the tasks of one Trio program.

    Made by `open_priority_store`. Every async method is a cancellation point; where one raises `Cancelled`,
    nothing happened.
    """

    def __init__(self, loop: PriorityLoop) -> None:
        super().__init__(loop)
        self._loop = loop
        self._engine = loop.engine

    # --- queues -----------------------------------------------------------------------------------

    def queue(self, name: str = DEFAULT) -> DiskPriorityQueue:
        """A handle on the queue of this name, by default on the one that is always there.

        Raises QueueNotFoundError.
        """
        self._loop.check()
        return self._handle(self._engine.queue(name))

    def queues(self) -> list[QueueInfo]:
        """What queues there are, by name, and what is in them."""
        self._loop.check()
        return self._engine.queues()

    @enable_ki_protection
    async def create_queue(
        self,
        name: str,
        *,
        implementation: Implementation = "H4",
        max_size: int | None = None,
        max_message_size: int | None = None,
        key_range: KeyRange | None = None,
        durability: Durability | None = None,
    ) -> DiskPriorityQueue:
        """Add a queue, which is there when this returns, as durably as `durability` (else the options) says.

        Bounds and names are as `PriorityStore.create_queue` has them. `Cancelled` means: it was not added.

        Raises QueueNameError, QueueExistsError, ValueError, DiskFullError, trio.BrokenResourceError,
        trio.ClosedResourceError.
        """
        await self._begin()
        word = checked_word(durability, self._loop.options.durability)
        queue = await self._loop.alter(
            lambda: self._engine.add_queue(name, implementation, max_size, max_message_size, key_range, word),
            word,
        )
        return self._handle(queue)

    @enable_ki_protection
    async def delete_queue(self, name: str, *, durability: Durability | None = None) -> None:
        """Remove a queue and all it holds. Who waits for it gets a QueueNotFoundError.

        What is in hand of it may still be settled: nothing happens then. `Cancelled` means: it is there.
        Raises QueueNotFoundError, QueueNameError for the default queue; otherwise as `create_queue`.
        """
        await self._begin()
        word = checked_word(durability, self._loop.options.durability)

        def remove() -> None:
            self._loop.drop_lines(self._engine.remove_queue(name, word))

        await self._loop.alter(remove, word)

    def _handle(self, queue: StoredQueue) -> DiskPriorityQueue:
        return DiskPriorityQueue(self._loop, self._loop.lines_of(queue))

    # --- the store as a whole ---------------------------------------------------------------------

    @enable_ki_protection
    async def sync(self) -> None:
        """Return when all that was sent, acknowledged, created and deleted is on stable storage."""
        await self._begin()
        await self._loop.barrier(with_metadata=True)

    @enable_ki_protection
    async def snapshot(self) -> bool:
        """Write the state down, and remove the log before it. False: nothing was new.

        It is taken by itself when the log has grown (`snapshot_segments`); a thread writes it, while the
        store goes on being used. `Cancelled` means that nobody waits for it: it may be taken all the same.
        Raises DiskFullError, UnsupportedFormatError (a state beyond 2 GiB) and OSError: the log stays as
        it was. Raises trio.BrokenResourceError, trio.ClosedResourceError.
        """
        await self._begin()
        return await self._loop.snapshots.take()

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """What was found torn at the open, and what was done about it."""
        return self._engine.repairs

    @property
    def warnings(self) -> Mapping[str, int]:
        """What was met at the open that should not be there, by name, and how often."""
        return self._engine.warnings

    def statistics(self) -> PriorityStoreStatistics:
        """The store as it is now. Cheap, and from any thread."""
        return self._engine.statistics_as(
            PriorityStoreStatistics,
            barrier_seconds=self._loop.barrier_seconds,
            tasks_waiting_send=self._loop.tasks_waiting_send,
            tasks_waiting_receive=self._loop.tasks_waiting_receive,
            is_taking_snapshot=self._loop.snapshots.is_busy,
        )

    def close(self) -> None:
        """End the store's use, as leaving its block does, which waits for the files. Idempotent.

        Whoever waits is woken with ClosedResourceError; what is in hand is in its place at the next open.
        """
        self._loop.own_thread.check()
        self._loop.begin_to_close()


class open_priority_store(OpeningEngine[DiskPriorityStore, PriorityStore]):  # noqa: N801 (it is used as a function)
    """Open the priority store at `path`: an async context manager that gives a `DiskPriorityStore`.

    The directory and the store are made where they are not there. Options may be given as a
    `PriorityOptions`, or one by one: `open_priority_store("jobs", durability="synced")`.

    Leaving the block syncs everything and closes the files, also when the block was cancelled; what is in
    hand then is in its place at the next open. Entering it raises LockedError where somebody has the store,
    TaskFlux among others, DamagedStoreError, UnsupportedFormatError, OSError, and CorruptionError for
    settings that are none; leaving it raises trio.BrokenResourceError where the storage has failed, and
    DiskFullError where `memory` messages found no room until the end. What the block itself raises goes
    before both.
    """

    def __init__(
        self,
        path: AnyPath,
        options: PriorityOptions | None = None,
        *,
        fs: FileSystem | None = None,
        **changes: Any,
    ) -> None:
        checked = dataclasses.replace(options or PriorityOptions(), **changes)
        engine = partial(PriorityStore, path, checked, takes_snapshots=False)
        super().__init__(engine, checked.checkpoint_slice, fs)

    def _handle_on(self, engine: PriorityStore) -> tuple[PriorityLoop, DiskPriorityStore]:
        thread = BarrierThread(self._fs, engine.name, engine.files.status)
        loop = PriorityLoop(engine.steps, thread, self._fs)
        return loop, DiskPriorityStore(loop)
