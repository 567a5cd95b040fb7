# Several workers on one disk queue: leases for the tasks of a run.
#
# A handle on the same `QueueLoop` as the queue's: waiting tasks stand in the same line, in order of arrival,
# and are woken with their leases; acknowledgements become durable with the same barriers. The life of a lease
# is defined in the engine (diskq.engine.queue.work).

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.core.leasing import LeasingHandle
from diskq.channels.queue.io_loop import QueueLoop
from diskq.engine.queue.work import Lease, QueueWork, QueueWorkStatistics
from diskq.errors import LeaseError
from diskq.storage.callbacks import check_plain

__all__ = ["QueueWorkChannel"]


class QueueWorkChannel(LeasingHandle[Lease]):
    """Gives a queue's messages as leases. Any number of tasks may take them, and acknowledge in any order.

    Made by `QueueChannel.working`. Messages come in order; those that were given back come before those that
    were never handed out. Every async method is a cancellation point, and a schedule point once per
    `checkpoint_slice`; if one raises `Cancelled`, nothing was taken, and no attempt is counted.
    """

    _closed_text = "the work is over"

    def __init__(self, loop: QueueLoop, engine: QueueWork) -> None:
        super().__init__(loop)
        self._loop = loop
        self._engine = engine

    # --- taking -----------------------------------------------------------------------------------

    @enable_ki_protection
    async def receive(self) -> Lease:
        """Return a lease on the next message; waits for one that `max_in_flight` and `max_ahead` allow.

        `Cancelled` means: nothing was taken. Raises OSError if the files cannot be read, and the errors of
        `exhausted`; nothing was taken then either. Raises trio.ClosedResourceError, trio.BrokenResourceError.
        """
        await self._begin()
        return (await self._take(1, sys.maxsize))[0]

    @enable_ki_protection
    def receive_nowait(self) -> Lease:
        """Do as `receive` without waiting; raises trio.WouldBlock if no message is available now."""
        self._check()
        return self._loop.do_work(lambda: self._loop.take_now(self._want(1, sys.maxsize)))[0]

    @enable_ki_protection
    async def receive_if(self, may_take: Callable[[], bool]) -> list[Lease]:
        """Return [lease] if `may_take()` is true when a message is there; else [], and the message stays.

        `select` receives this way. Waits and raises as `receive`; `Cancelled` means: nothing was taken.
        """
        check_plain("may_take", may_take)
        await self._begin()
        want = self._want(1, sys.maxsize)

        def take() -> list[Lease] | None:
            leases = want()  # first, as it may find none: once `may_take()` was true one must be given
            may = False
            try:
                may = bool(leases) and may_take()
            finally:
                if leases and not may:
                    self._engine.release(leases)
            return leases if may or leases is None else []

        return await self._waiting(self._loop.take(take))

    @asynccontextmanager
    @enable_ki_protection
    async def receiving(self) -> AsyncIterator[Lease]:
        """Receive the next message for a block: an async context manager that gives its lease.

        Leaving the block without an exception acknowledges the message. An exception gives it back, and
        counts as an attempt; `Cancelled` gives it back as if it had not been handed out. The block may end
        the lease itself, for example with a delay.
        """
        lease = await self.receive()
        try:
            yield lease
        except BaseException as failure:
            if self._engine._holds(lease):
                if _is_only(self._loop.event_loop.cancelled, failure):
                    self.release(lease)
                else:
                    self.nack(lease)
            raise
        if self._engine._holds(lease) or self._is_over:
            self.ack(lease)

    def _size_of(self, taken: Lease) -> int:
        return len(taken.body)

    def _return(self, taken: list[Lease]) -> None:
        self.release(taken)

    def _return_quietly(self, taken: list[Lease]) -> None:
        with contextlib.suppress(LeaseError):  # the work is over, and took them back
            self.release(taken)

    def _take(self, max_messages: int, max_bytes: int) -> Awaitable[list[Lease]]:
        return self._waiting(self._loop.take(self._want(max_messages, max_bytes)))

    def _want(self, max_messages: int, max_bytes: int) -> Callable[[], list[Lease] | None]:
        return lambda: self._engine._fetch(max_messages, max_bytes) or None

    # --- ending leases ----------------------------------------------------------------------------

    @enable_ki_protection
    def ack(self, leases: Lease | Iterable[Lease]) -> None:
        """Acknowledge messages: they are not handed out again.

        When this returns, the acknowledgement is in the page cache and survives a kill of the process. It
        survives a power cut after the next sync, which is due as the queue's options say (the queue's
        `sync()` waits for it). Raises LeaseError if one of the leases has ended, and nothing is done then;
        TypeError, trio.BrokenResourceError.
        """
        self._loop.do_work(lambda: self._engine._acknowledge(leases))

    @enable_ki_protection
    def nack(self, leases: Lease | Iterable[Lease], delay: float = 0.0) -> None:
        """Give messages back, to be handed out again after `delay` seconds. Each counts one attempt more.

        Messages that were handed out `max_attempts` times go to `exhausted` instead. Without a delay they
        come before all messages that were never handed out. Raises as `ack`; ValueError for a delay below 0
        or above 49 days; and the errors of `exhausted`, after which the messages are given back.
        """
        self._loop.do_work(lambda: self._engine._give_back(leases, delay))

    @enable_ki_protection
    def release(self, leases: Lease | Iterable[Lease]) -> None:
        """Give messages back as if they had not been handed out; they come before others. Raises as `ack`."""
        self._loop.do_work(lambda: self._engine.release(leases))

    # --- the work as a whole ----------------------------------------------------------------------

    def statistics(self) -> QueueWorkStatistics:
        """Return figures of the work, from any thread. `QueueChannel.statistics` has the waiting tasks."""
        return self._engine.statistics()

    def close(self) -> None:
        """End the work, as leaving its block does. Idempotent.

        Messages in flight return to the queue's head. Waiting tasks are woken with ClosedResourceError.
        """
        super().close()

    def _let_go(self) -> None:
        self._loop.end_work(self._engine)

    @property
    def _is_over(self) -> bool:
        return self._loop.work is not self._engine

    def _check(self) -> None:
        super()._check()
        if self._is_over:
            raise trio.ClosedResourceError(self._closed_text)


def _is_only(kind: type[BaseException], failure: BaseException) -> bool:
    if isinstance(failure, BaseExceptionGroup):
        return failure.split(kind)[1] is None
    return isinstance(failure, kind)
