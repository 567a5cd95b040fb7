# Several workers on one disk queue: leases as Trio hands them out.
#
# A handle on the same `QueueLoop` as the queue's: whoever waits stands in the same line, in order of
# arrival, and is woken with leases in his hands; acknowledgements become durable with the same barriers.
# What a lease is, and what becomes of it, is the engine's business (diskq.engine.queue.work).

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.core.leasing import LeasingHandle
from diskq.channels.queue.io_loop import QueueLoop
from diskq.engine.queue.work import FifoWork, Lease, WorkStatistics
from diskq.errors import LeaseError
from diskq.storage.callbacks import check_plain

__all__ = ["DiskWork"]


class DiskWork(LeasingHandle[Lease]):
    """A queue's messages as leases, which any number of tasks take, and acknowledge in any order.

    Made by `DiskQueue.working`. Messages come in order, those that are given back before those that
    nobody has had. Every async method is a cancellation point, and a schedule point once per
    `checkpoint_slice`; where one raises `Cancelled`, nothing was taken, and no attempt is counted.
    """

    _told = "the work is over"

    def __init__(self, loop: QueueLoop, engine: FifoWork) -> None:
        super().__init__(loop)
        self._loop = loop
        self._engine = engine

    # --- taking -----------------------------------------------------------------------------------

    @enable_ki_protection
    async def receive(self) -> Lease:
        """The next message; waits for one, and until `max_in_flight` and `max_ahead` allow for it.

        `Cancelled` means: nothing was taken. Raises OSError where the files cannot be read, and what
        `exhausted` raises; nothing was taken then, either. Raises trio.ClosedResourceError,
        trio.BrokenResourceError.
        """
        await self._begin()
        return (await self._take(1, sys.maxsize))[0]

    @enable_ki_protection
    def receive_nowait(self) -> Lease:
        """As `receive`; raises trio.WouldBlock where there is no message for us now."""
        self._check()
        return self._loop.do_work(lambda: self._loop.take_now(self._want(1, sys.maxsize)))[0]

    @enable_ki_protection
    async def receive_if(self, may_take: Callable[[], bool]) -> list[Lease]:
        """The next message, alone in a list, if `may_take()` says so when it is our turn; else [].

        So `select` asks. Waits and raises as `receive`; `Cancelled` means: nothing was taken.
        """
        check_plain("may_take", may_take)
        await self._begin()
        want = self._want(1, sys.maxsize)

        def take() -> list[Lease] | None:
            leases = want()  # there may be none after all, and who was told yes has to give one
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
        """The next message, for the length of a block: leaving it cleanly acknowledges it.

        An exception gives it back, with one attempt more; `Cancelled` as if it had not been handed out.
        A block may end its lease by itself, with a delay for instance.
        """
        lease = await self.receive()
        try:
            yield lease
        except BaseException as failure:
            if self._engine.holds(lease):
                if _is_only_cancelled(failure):
                    self.release(lease)
                else:
                    self.nack(lease)
            raise
        if self._engine.holds(lease) or self._is_over:
            self.ack(lease)

    def _size_of(self, taken: Lease) -> int:
        return len(taken.body)

    def _return(self, taken: list[Lease]) -> None:
        self.release(taken)

    def _return_quietly(self, taken: list[Lease]) -> None:
        with contextlib.suppress(LeaseError):  # the work is over, and had them back
            self.release(taken)

    def _take(self, max_items: int, max_bytes: int) -> Awaitable[list[Lease]]:
        return self._waiting(self._loop.take(self._want(max_items, max_bytes)))

    def _want(self, max_items: int, max_bytes: int) -> Callable[[], list[Lease] | None]:
        return lambda: self._engine.fetch(max_items, max_bytes) or None

    # --- ending leases ----------------------------------------------------------------------------

    @enable_ki_protection
    def ack(self, leases: Lease | Iterable[Lease]) -> None:
        """The messages are dealt with: they are not handed out again.

        When it returns that is in the page cache, and survives a kill; a power cut from the next sync on,
        which is due as the queue's options say (`sync()` of the queue waits for it). Raises LeaseError
        where one of the leases has ended, and nothing is done then; TypeError, trio.BrokenResourceError.
        """
        self._loop.do_work(lambda: self._engine.acknowledge(leases))

    @enable_ki_protection
    def nack(self, leases: Lease | Iterable[Lease], delay: float = 0.0) -> None:
        """The messages are to be handed out again, with one attempt more, in `delay` seconds or later.

        Those that were handed out `max_attempts` times go to `exhausted` instead. Without a delay they come
        before all that nobody has had. Raises as `ack`, and what `exhausted` raises: the messages are given
        back then. ValueError for a delay below 0 or beyond 49 days.
        """
        self._loop.do_work(lambda: self._engine.give_back(leases, delay))

    @enable_ki_protection
    def release(self, leases: Lease | Iterable[Lease]) -> None:
        """As if the messages had not been handed out: they are again, before others. Raises as `ack`."""
        self._loop.do_work(lambda: self._engine.release(leases))

    # --- the work as a whole ----------------------------------------------------------------------

    def statistics(self) -> WorkStatistics:
        """The work as it is now. From any thread. `DiskQueue.statistics` tells who waits."""
        return self._engine.statistics()

    def close(self) -> None:
        """End the work, as leaving its block does: what is in flight is at the head again. Idempotent.

        Whoever waits is woken with ClosedResourceError.
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
            raise trio.ClosedResourceError(self._told)


def _is_only_cancelled(failure: BaseException) -> bool:
    if isinstance(failure, BaseExceptionGroup):
        return failure.split(trio.Cancelled)[1] is None
    return isinstance(failure, trio.Cancelled)
