# One queue of a priority store as a Trio channel: sending with a priority, receiving in its order.
#
# A handle on the store's loop. Waiting tasks stand in the queue's line, in order of arrival, and are woken
# with their records. The life of a record is defined in the engine.

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.core.gathering import FIRST
from diskq.channels.core.handle import SendingHandle, chosen_durability
from diskq.channels.core.leasing import LeasingHandle
from diskq.channels.priority.loop import PriorityLoop, QueueLines, Want
from diskq.engine.priority.steps import parted
from diskq.engine.priority.store import Body, PriorityQueueInfo, PriorityRecord
from diskq.errors import DiskqError, NotFoundError
from diskq.options import Durability
from diskq.storage.callbacks import check_plain

__all__ = ["PriorityQueueChannel", "PriorityQueueChannelStatistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityQueueChannelStatistics(PriorityQueueInfo):
    """`PriorityQueueInfo`, and the number of waiting tasks."""

    tasks_waiting_send: int
    """Tasks that wait for space. Those that wait for a sync are in the store's statistics."""
    tasks_waiting_receive: int


class PriorityQueueChannel(SendingHandle, LeasingHandle[PriorityRecord]):
    """A queue on disk that gives the message with the smallest priority first; among equals, the oldest.

    Made by a store's `queue` and `create_queue`. Any number of tasks may send and receive at once, through
    one handle or through several. A received message is in hand: no other task receives it until it is
    acknowledged or given back. Every async method is a cancellation point, and a schedule point once per
    `checkpoint_slice`; if one raises `Cancelled`, nothing was sent, taken or acknowledged.

    Every call raises NotFoundError if the queue was deleted; tasks that wait then get it as well.
    """

    _loop: PriorityLoop

    def __init__(self, loop: PriorityLoop, lines: QueueLines) -> None:
        super().__init__(loop)
        self._engine = loop.engine
        self._lines = lines
        self._queue = lines.queue
        calls = lines.calls
        self._gather_own = _refuse if loop.is_strict else calls.gather_own
        self._is_written = self._durability == "written"
        self._put = calls.put if self._is_written else _refuse
        self._put_now = calls.put_now if self._is_written else _refuse
        self._take_one = calls.take
        self._settle = calls.settle if self._is_written else _refuse

    @property
    def name(self) -> str:
        """The queue's name; empty for the default queue."""
        return self._queue.name

    # --- sending ----------------------------------------------------------------------------------

    @enable_ki_protection
    async def send(self, body: Body, priority: int = 0, *, durability: Durability | None = None) -> int:
        """Add a message; the smallest `priority` is received first. Returns its id in the queue.

        Returns when it is as durable as `durability` (by default the options') says. A `synced` message can
        be received only after it is on stable storage; any other may be received at once.

        Waits while the queue holds `max_messages` messages (`on_full="wait"`), or too much is unsynced.
        `Cancelled` means: the message is not in the queue. The wait for `synced` is not cancelled: the
        message is in by then.

        Raises TypeError, PriorityRangeError, MessageSizeError, FullError: the message is
        not in. Raises trio.BrokenResourceError after the disk failed: a reopen shows whether the message is
        in. Raises trio.ClosedResourceError.
        """
        is_synced = (durability or self._durability) == "synced"
        batch = self._gather_own(body, priority) if is_synced else None
        if batch is None:
            if self._needs_point():
                await self._first_point()
            if durability is None or durability == self._durability:
                try:
                    if (number := self._put(body, priority)) is not None:
                        return number
                except OSError as failure:
                    self._write_failed(failure)
            if is_synced and not self._is_closed:
                batch = self._doing(self._loop.gather_first, self._lines, body, priority)
        if batch is not None:
            number = len(batch) - 1
            if number == FIRST:
                await self._loop.barrier(with_metadata=False)
            else:
                await self._sleep  # it is woken with the first one
            return batch.id_of(number)
        await self._loop.schedule_point()
        self._check()
        level = chosen_durability(durability, self._durability) if durability else self._durability
        bodies, keys = self._engine.checked(self._queue, (body,), priority)
        sending = self._loop.sending(self._lines, bodies, keys, level)
        ids: range = await self._waiting(self._loop.deliver(sending))
        return ids[0]

    @enable_ki_protection
    async def send_many(
        self,
        messages: Iterable[Body | tuple[int, Body]],
        priority: int | Sequence[int] = 0,
        *,
        durability: Durability | None = None,
    ) -> range:
        """Add messages with one write, each a body, or (priority, body). Returns their ids.

        `priority` applies to bodies without a priority: one for all of them, or a sequence with one for each.
        All messages are checked before the first is added; `Cancelled` means that none is in. Waits until
        there is space for all messages; raises FullError if they can never fit, and otherwise as `send`. If
        the disk becomes full midway, `FullError.accepted` is the number of messages that are in.
        """
        bodies, keys = parted(messages, priority)
        await self._begin()
        level = chosen_durability(durability, self._durability)
        checked = self._engine.checked(self._queue, bodies, keys)
        ids: range = await self._waiting(self._loop.deliver(self._loop.sending(self._lines, *checked, level)))
        return ids

    @enable_ki_protection
    def send_nowait(self, body: Body, priority: int = 0) -> int:
        """Add a message without waiting for space or for a sync. Returns its id.

        The message is in the page cache (with `durability="memory"`: in memory). If the options say `synced`,
        a sync begins at once, and the message can be received after it. Raises trio.WouldBlock if `send`
        would wait for space; otherwise as `send`.
        """
        try:
            if (number := self._put_now(body, priority)) is not None:
                return number
        except OSError as failure:
            self._write_failed(failure)
        level = self._chosen_durability(None)
        batch, keys = self._engine.checked(self._queue, (body,), priority)
        ids: range = self._doing(self._loop.deliver_now, self._loop.sending(self._lines, batch, keys, level))
        return ids[0]

    # --- receiving --------------------------------------------------------------------------------

    @enable_ki_protection
    async def receive(self) -> PriorityRecord:
        """Return the next message; waits for one. Receivers are served in order of arrival.

        `ack` or `nack` it: until then it is in hand, counts for `max_messages`, and comes back after a crash
        or when the store is closed. `Cancelled` means: nothing was taken.
        """
        if self._needs_point():
            await self._first_point()
        if (record := self._take_one()) is not None:
            return record
        self._loop.own_thread.check()
        await self._loop.schedule_point()
        self._check()
        return (await self._take_what(self._want(1, sys.maxsize)))[0]

    @enable_ki_protection
    def receive_nowait(self) -> PriorityRecord:
        """Do as `receive` without waiting; raises trio.WouldBlock if no message is available now."""
        self._check()
        if self._queue.is_deleted:
            raise self._not_found()
        return self._doing(self._loop.take_now, self._lines, self._want(1, sys.maxsize))[0]

    @enable_ki_protection
    async def receive_if(self, may_take: Callable[[], bool]) -> list[PriorityRecord]:
        """Return [record] if `may_take()` is true when a message is there; else [], and the message stays.

        `select` receives this way. Waits and raises as `receive`; `Cancelled` means: nothing was taken.
        """
        check_plain("may_take", may_take)
        await self._begin()
        want = self._want(1, sys.maxsize)
        return await self._take_what(
            lambda: (want() if may_take() else []) if self._queue.table.ready else None
        )

    @enable_ki_protection
    async def peek(self) -> PriorityRecord:
        """Return the next message without taking it; waits for one. `Cancelled` changes nothing."""
        await self._begin()
        return (await self._take_what(lambda: self._engine.peek(self._queue) or None))[0]

    @asynccontextmanager
    @enable_ki_protection
    async def receiving(self, *, durability: Durability | None = None) -> AsyncIterator[PriorityRecord]:
        """Receive the next message for a block: an async context manager that gives its record.

        Leaving the block without an exception acknowledges the message. An exception, also `Cancelled`, puts
        it back in its place; so does a full disk, for which leaving the block raises DiskFullError. The block
        may settle the message itself.
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
            await self._acknowledge([record], self._chosen_durability(durability))
        except BaseException:
            self._return_quietly([record])
            raise

    def _want(self, max_messages: int, max_bytes: int) -> Want:
        return lambda: self._engine.get_many(self._queue, max_messages, max_bytes) or None

    def _take(self, max_messages: int, max_bytes: int) -> Awaitable[list[PriorityRecord]]:
        return self._take_what(self._want(max_messages, max_bytes))

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
        """Acknowledge messages: they never come back, as durably as `durability` says.

        Several messages take one write and one sync. `Cancelled` means: they are still in hand; the wait for
        `synced` is not cancelled. Raises LeaseError if one of them was settled before: nothing is done then.
        Raises DiskFullError, after which all but the first `accepted` are still in hand;
        trio.BrokenResourceError. Does nothing if the queue was deleted.
        """
        if self._needs_point():
            await self._first_point()
        if durability is None or durability == self._durability:
            try:
                if self._settle(records):
                    return
            except OSError as failure:
                self._write_failed(failure)
        self._loop.own_thread.check()
        await self._loop.schedule_point()
        self._check()
        level = chosen_durability(durability, self._durability) if durability else self._durability
        await self._acknowledge(_listed(records), level)

    @enable_ki_protection
    def ack_nowait(self, records: PriorityRecord | Iterable[PriorityRecord]) -> None:
        """Acknowledge messages without waiting for a sync, otherwise as `ack`.

        The acknowledgement is in the page cache (with `durability="memory"`: in memory). Raises
        trio.WouldBlock if too much is unsynced: the messages are still in hand.
        """
        level = self._chosen_durability(None)
        self._doing(self._loop.acknowledge_now, self._lines, _listed(records), level)

    @enable_ki_protection
    def nack(self, records: PriorityRecord | Iterable[PriorityRecord]) -> None:
        """Make messages ready again, each in its place: before later messages of the same priority.

        Nothing is written. Raises LeaseError if one of them was settled before: nothing is done then.
        """
        self._check()
        self._doing(self._loop.give_back, self._lines, _listed(records))

    def _acknowledge(self, records: list[PriorityRecord], level: Durability) -> Awaitable[None]:
        return self._waiting(self._loop.acknowledge(self._lines, records, level))

    def _size_of(self, taken: PriorityRecord) -> int:
        return len(taken.body)

    def _return(self, taken: list[PriorityRecord]) -> None:
        self._loop.give_back(self._lines, taken)

    def _return_quietly(self, taken: list[PriorityRecord]) -> None:
        """Give records back while an exception is raised: the store may be closed or broken."""
        held = [record for record in taken if not record.is_settled]
        with contextlib.suppress(DiskqError, trio.ClosedResourceError, trio.BrokenResourceError):
            self._loop.check()
            self._loop.give_back(self._lines, held)

    # --- the queue as a whole ---------------------------------------------------------------------

    def statistics(self) -> PriorityQueueChannelStatistics:
        """Return figures of the queue as it is now. Cheap; may be called from any thread."""
        return PriorityQueueChannelStatistics.of(
            self._queue,
            tasks_waiting_send=len(self._lines.senders),
            tasks_waiting_receive=len(self._lines.receivers),
        )

    def close(self) -> None:
        """Close this handle, and wake the tasks that wait on it with ClosedResourceError. Idempotent.

        Messages received through it can still be settled, through any handle on the queue. The queue itself
        stays open until the store's block is left.
        """
        super().close()

    def _another(self) -> Self:
        return type(self)(self._loop, self._lines)

    def _shut(self) -> None:
        super()._shut()
        self._gather_own = self._put = self._put_now = self._take_one = self._settle = _refuse

    def _not_found(self) -> NotFoundError:
        return NotFoundError("priority queue", self._engine.path, f"there is no queue {self._queue.name!r}")


def _refuse(*_: object) -> None:
    """Stand in for a compiled call: every call takes the slow path."""


def _listed(records: PriorityRecord | Iterable[PriorityRecord]) -> list[PriorityRecord]:
    return [records] if isinstance(records, PriorityRecord) else list(records)
