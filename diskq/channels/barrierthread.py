# Where barriers are paid: a thread that waits for the platter, so that the event loop never does.
#
# One thread for the life of a queue or stream: handing over to it costs a third of what a thread from a
# pool does, and a single producer's durable latency is mostly such hand-overs.

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Protocol

import outcome
import trio

from diskq.storage.barrier import Barrier
from diskq.storage.fs import FileSystem

__all__ = ["BarrierThread", "Payable"]


class Payable(Protocol):
    """An engine's ticket, as far as this thread is concerned."""

    @property
    def barrier(self) -> Barrier: ...


class BarrierThread:
    """Pays tickets, one at a time. Made and used in one Trio task."""

    def __init__(self, fs: FileSystem, name: str) -> None:
        self._fs = fs
        self._token = trio.lowlevel.current_trio_token()
        self._task: trio.lowlevel.Task | None = None
        self._work: SimpleQueue[Payable | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"diskq barriers of {name}", daemon=True)
        self._thread.start()

    async def pay(self, ticket: Payable) -> bool:
        """What `Barrier.pay` returns or raises. Not cancellable: a barrier begun is seen through."""
        self._task = trio.lowlevel.current_task()
        self._work.put(ticket)
        is_replaced: bool = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return is_replaced

    def stop(self) -> None:
        """End the thread, which must have nothing to pay any more."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (ticket := self._work.get()) is not None:
            self._token.run_sync_soon(self._hand_back, outcome.capture(ticket.barrier.pay, self._fs))

    def _hand_back(self, paid: outcome.Outcome[bool]) -> None:
        assert self._task is not None
        trio.lowlevel.reschedule(self._task, paid)
