# One queue of a priority store as a Trio channel: sent with a priority, received in its order.
#
# A handle on the store's loop. Whoever waits stands in the queue's line, in order of arrival, and is woken
# with records in his hands. What a record is, and what becomes of it, is the engine's business.

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import trio
from trio.lowlevel import current_task, enable_ki_protection

from diskq.channels.core.handle import SendingHandle, checked_word
from diskq.channels.core.leasing import LeasingHandle
from diskq.channels.priority.loop import PriorityLoop, QueueLines, Want
from diskq.engine.priority.store import Payload, PriorityRecord, QueueInfo
from diskq.errors import DiskqError, QueueNotFoundError
from diskq.options import Durability
from diskq.storage.callbacks import check_plain

__all__ = ["DiskPriorityQueue", "PriorityQueueStatistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityQueueStatistics(QueueInfo):
    """As `QueueInfo`, and who waits."""

    tasks_waiting_send: int
    """For room; who waits for a sync, the store's statistics tell."""
    tasks_waiting_receive: int


class DiskPriorityQueue(SendingHandle, LeasingHandle[PriorityRecord]):
    """Messages on disk, of which the one with the smallest priority comes first; of equals, the oldest.

    Made by a store's `queue` and `create_queue`. Any number of tasks may send and receive at once, through
    one handle or through several. What is received is in hand, and nobody else's, until it is acknowledged,
    or given back. Every async method is a cancellation point, and a schedule point once per
    `checkpoint_slice`; where one raises `Cancelled`, nothing was sent, taken or acknowledged.

    Raises QueueNotFoundError where the queue was deleted, in every call, also to who waits by then.
    """

    _loop: PriorityLoop

    def __init__(self, loop: PriorityLoop, lines: QueueLines) -> None:
        super().__init__(loop)
        self._engine = loop.engine
        self._lines = lines
        self._queue = lines.queue

    @property
    def name(self) -> str:
        """The queue's; the default queue's is empty."""
        return self._queue.name

    # --- sending ----------------------------------------------------------------------------------

    @enable_ki_protection
    async def send(self, payload: Payload, priority: int = 0, *, durability: Durability | None = None) -> int:
        """Add a message; the smallest `priority` is received first. Returns its id in the queue.

        Returns when it is as durable as `durability` (by default the options') says. Nobody receives a
        `synced` one before it is on stable storage; any other may be received at once.

        Waits while the queue holds `max_size` messages (`on_full="wait"`), or too much is unsynced.
        `Cancelled` means: the message is not in the queue; waiting for `synced` is not cancelled, as it
        is in by then.

        Raises TypeError, PriorityRangeError, MessageSizeError, QueueFullError, DiskFullError: the message is
        not in. Raises trio.BrokenResourceError after the disk failed (whether it is in, a reopen will tell),
        trio.ClosedResourceError.
        """
        task = current_task()
        if self._needs_point():
            await self._first_point()
        if (durability or self._word) == "synced" and not self._is_closed:
            self._loop.own_thread.check()
            gathered = self._lines.gathered or self._doing(self._loop.gather, self._lines)
            if gathered is not None and (number := gathered.add(payload, priority, task)) >= 0:
                await self._loop.barrier(with_metadata=False)
                return gathered.places[number]  # type: ignore[return-value]
        await self._loop.schedule_point()
        self._check()
        word = checked_word(durability, self._word) if durability else self._word
        batch, keys = self._engine.checked(self._queue, (payload,), priority)
        sending = self._loop.sending(self._lines, batch, keys, word)
        ids: range = await self._waiting(self._loop.deliver(sending))
        return ids[0]

    @enable_ki_protection
    async def send_many(
        self,
        messages: Iterable[Payload | tuple[int, Payload]],
        priority: int = 0,
        *,
        durability: Durability | None = None,
    ) -> range:
        """Add messages with one write, each a payload, or (priority, payload). Returns their ids.

        `priority` is for those that have none. As `send`: all are checked before the first is added, and
        `Cancelled` means that none is in. They wait for room for all of them, and QueueFullError is raised
        where there never is. `DiskFullError.accepted` tells how many are in all the same, where the disk
        gave out midway.
        """
        payloads, keys = _parted(messages, priority)
        await self._begin()
        word = checked_word(durability, self._word)
        checked = self._engine.checked(self._queue, payloads, keys)
        ids: range = await self._waiting(self._loop.deliver(self._loop.sending(self._lines, *checked, word)))
        return ids

    @enable_ki_protection
    def send_nowait(self, payload: Payload, priority: int = 0) -> int:
        """Add a message without waiting: not for room, and not for a sync. Returns its id.

        The message is in the page cache (with `durability="memory"`: in memory); where the options say
        `synced`, it is received when a sync is over, which begins at once. Raises trio.WouldBlock where
        `send` would wait for room; otherwise as `send`.
        """
        word = self._checked_word(None)
        batch, keys = self._engine.checked(self._queue, (payload,), priority)
        ids: range = self._doing(self._loop.deliver_now, self._loop.sending(self._lines, batch, keys, word))
        return ids[0]

    # --- receiving --------------------------------------------------------------------------------

    @enable_ki_protection
    async def receive(self) -> PriorityRecord:
        """The next message; waits for one. Receivers are served in order of arrival.

        `ack` it, or `nack` it: until then it is in hand, counts for `max_size`, and comes back after a
        crash, or when the store is closed. `Cancelled` means: nothing was taken.
        """
        await self._begin()
        return (await self._take_what(self._want(1, sys.maxsize)))[0]

    @enable_ki_protection
    def receive_nowait(self) -> PriorityRecord:
        """As `receive`; raises trio.WouldBlock where there is no message for us now."""
        self._check()
        if self._queue.is_deleted:
            raise self._not_found()
        return self._doing(self._loop.take_now, self._lines, self._want(1, sys.maxsize))[0]

    @enable_ki_protection
    async def receive_if(self, may_take: Callable[[], bool]) -> list[PriorityRecord]:
        """The next message, alone in a list, if `may_take()` says so when it is our turn; else [].

        So `select` asks. Waits and raises as `receive`; `Cancelled` means: nothing was taken.
        """
        check_plain("may_take", may_take)
        await self._begin()
        want = self._want(1, sys.maxsize)
        return await self._take_what(
            lambda: (want() if may_take() else []) if self._queue.table.ready else None
        )

    @enable_ki_protection
    async def peek(self) -> PriorityRecord:
        """The next message, which stays where it is, for anybody; waits for one."""
        await self._begin()
        return (await self._take_what(lambda: self._engine.peek(self._queue) or None))[0]

    @asynccontextmanager
    @enable_ki_protection
    async def receiving(self, *, durability: Durability | None = None) -> AsyncIterator[PriorityRecord]:
        """The next message, for the length of a block: leaving it cleanly acknowledges it.

        An exception, `Cancelled` among them, puts it back in its place; so does a full disk, which leaving
        the block then tells of. A block may settle it by itself.
        """
        record = await self.receive()
        try:
            yield record
        except BaseException:
            self._return_quietly([record])
            raise
        if record.is_settled:
            return
        try:
            await self._acknowledge([record], self._checked_word(durability))
        except BaseException:
            self._return_quietly([record])
            raise

    def _want(self, max_items: int, max_bytes: int) -> Want:
        return lambda: self._engine.dequeue_many(self._queue, max_items, max_bytes) or None

    def _take(self, max_items: int, max_bytes: int) -> Awaitable[list[PriorityRecord]]:
        return self._take_what(self._want(max_items, max_bytes))

    def _take_what(self, want: Want) -> Awaitable[list[PriorityRecord]]:
        if self._queue.is_deleted:
            raise self._not_found()
        return self._waiting(self._loop.take(self._lines, want))

    # --- settling ---------------------------------------------------------------------------------

    @enable_ki_protection
    async def ack(
        self,
        records: PriorityRecord | Iterable[PriorityRecord],
        *,
        durability: Durability | None = None,
    ) -> None:
        """The messages are dealt with: they never come back, as durably as `durability` says.

        Several take one write, and one sync. `Cancelled` means: they are in hand as they were; waiting for
        `synced` is not cancelled. Raises LeaseError where one of them was settled before: nothing is done
        then. Raises DiskFullError, after which they are in hand, but for the first `accepted`;
        trio.BrokenResourceError. Of a queue that was deleted: nothing is left to do.
        """
        await self._begin()
        word = checked_word(durability, self._word) if durability else self._word
        await self._acknowledge(_listed(records), word)

    @enable_ki_protection
    def ack_nowait(self, records: PriorityRecord | Iterable[PriorityRecord]) -> None:
        """As `ack`, and waits for no sync: it is in the page cache (with `durability="memory"`: in memory).

        Raises trio.WouldBlock where too much is unsynced: they are in hand as they were.
        """
        word = self._checked_word(None)
        self._doing(self._loop.acknowledge_now, self._lines, _listed(records), word)

    @enable_ki_protection
    def nack(self, records: PriorityRecord | Iterable[PriorityRecord]) -> None:
        """The messages are ready again, each in its place: before what came later with its priority.

        Nothing is written. Raises LeaseError where one of them was settled before: nothing is done then.
        """
        self._check()
        self._doing(self._loop.give_back, self._lines, _listed(records))

    def _acknowledge(self, records: list[PriorityRecord], word: Durability) -> Awaitable[None]:
        return self._waiting(self._loop.acknowledge(self._lines, records, word))

    def _size_of(self, taken: PriorityRecord) -> int:
        return len(taken.payload)

    def _return(self, taken: list[PriorityRecord]) -> None:
        self._loop.give_back(self._lines, taken)

    def _return_quietly(self, taken: list[PriorityRecord]) -> None:
        """At the end of a block that has something to say by itself: the store may be closed, or broken."""
        held = [record for record in taken if not record.is_settled]
        with contextlib.suppress(DiskqError, trio.ClosedResourceError, trio.BrokenResourceError):
            self._loop.check()
            self._loop.give_back(self._lines, held)

    # --- the queue as a whole ---------------------------------------------------------------------

    def statistics(self) -> PriorityQueueStatistics:
        """The queue as it is now. Cheap, and from any thread."""
        return PriorityQueueStatistics.of(
            self._queue,
            tasks_waiting_send=len(self._lines.senders),
            tasks_waiting_receive=len(self._lines.receivers),
        )

    def close(self) -> None:
        """Close this handle, and wake who waits on it with ClosedResourceError. Idempotent.

        What was received through it can still be settled, through any handle on the queue. The queue itself
        stays, and lives as long as the store's block.
        """
        super().close()

    def _another(self) -> Self:
        return type(self)(self._loop, self._lines)

    def _not_found(self) -> QueueNotFoundError:
        return QueueNotFoundError(self._engine.path, self._queue.name)


def _parted(messages: Iterable[Payload | tuple[int, Payload]], priority: int) -> tuple[list[Any], list[int]]:
    payloads: list[Any] = []
    keys: list[int] = []
    for message in messages:
        key, payload = message if isinstance(message, tuple) else (priority, message)
        payloads.append(payload)
        keys.append(key)
    return payloads, keys


def _listed(records: PriorityRecord | Iterable[PriorityRecord]) -> list[PriorityRecord]:
    return [records] if isinstance(records, PriorityRecord) else list(records)
