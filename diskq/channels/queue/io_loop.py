# The loop of a disk queue: go-diskqueue's select loop, arm by arm, for Trio.
#
#   Go's arm                          here
#   writeChan                         `deliver` (core/sender_line.py): the caller's own task writes, no hop
#   readChan, then moveForward        `take`: the caller's own task takes; or `_hand_out`, for one that waits
#   peekChan                          `take`, with a peek
#   depthChan                         a property: one thread owns the state
#   emptyChan                         `discard_all`, then a barrier
#   the others                        see core/commit_loop.py
#
# Law: waiting tasks are woken in order of arrival, each with its result.

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import outcome
import trio

from diskq.channels.core.budget_place import shared_bound
from diskq.channels.core.event_loops.seam import running_event_loop
from diskq.channels.core.gathering import LARGEST_GATHERED, MOST_GATHERED, Gathered
from diskq.channels.core.sender_line import AdmittingLoop, Sending
from diskq.channels.core.sync_executor import SyncExecutor
from diskq.channels.core.waiting_line import Line
from diskq.engine.queue.steps import QueueSteps
from diskq.engine.queue.work import QueueWork
from diskq.errors import DiskqError, FullError, StorageFailedError
from diskq.options import Durability, QueueOptions
from diskq.storage.status_file import DiskBound

__all__ = ["Fetch", "QueueLoop"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fetch:
    """A receiver's request, which is called when it is the receiver's turn."""

    engine: QueueSteps
    max_messages: int
    max_bytes: int

    def __call__(self) -> list[bytes]:
        return self.engine.head.fetch(self.max_messages, self.max_bytes)


class GatheredBodies(Gathered[bool]):
    """Messages of a queue that wait to be written. Each gets True: it has no position."""

    __slots__ = ("_engine",)

    def __init__(self, engine: QueueSteps) -> None:
        super().__init__(min(engine.buffer.limit - engine.buffer.end, MOST_GATHERED))
        self._engine = engine

    def write_all(self) -> None:
        engine, bodies, done = self._engine, self.messages, 0
        before = engine.buffer.records
        try:
            try:
                are_in = engine.tail.append_all(bodies)
            except OSError as failure:
                engine.log.append_failed(failure)
            while not are_in and done < len(bodies):
                done = engine.tail.accept_many(bodies, done, is_held=False)
        finally:
            count = engine.buffer.records - before
            self.places = [True] * count + [None] * (len(bodies) - count)

    def _write_one(self, number: int) -> bool:
        self._engine.tail.accept(self.messages[number], is_held=False)
        return True


class QueueLoop(AdmittingLoop[QueueSteps, Sending]):
    """One open queue: the engine, the waiting tasks, and the task that writes and syncs."""

    __slots__ = (
        "_has_executed_again",
        "_is_leased",
        "_lingering",
        "_receivers",
        "_senders",
        "on_empty",
        "take_one",
        "work",
    )

    kind = "queue"
    subject = "queue"
    options: QueueOptions

    def __init__(self, engine: QueueSteps, executor: SyncExecutor) -> None:
        self.options = engine.options
        self._senders: Line[Sending] = Line()
        self._receivers: Line[Callable[[], Any]] = Line()  # each is handed what this returns
        self._lingering: Line[int] = Line()  # each waits until this number of messages is there
        self.work: QueueWork | None = None  # it hands out messages to be acknowledged: only it reads
        self._is_leased = False  # a task holds the messages at the head, and may commit them
        self._has_executed_again = False
        self.take_one = Fetch(engine, 1, sys.maxsize)
        self.on_empty: Callable[[], None] | None = None
        """Called when a task looked for a message and found none."""
        self.gathering = engine.tail.gathering(running_event_loop().current_task, LARGEST_GATHERED)
        others = self._receivers, self._lingering
        super().__init__(engine, executor, (self._senders,), others, engine.quota.share)

    # --- the writing arm --------------------------------------------------------------------------

    def sending(self, bodies: list[bytes], level: Durability) -> Sending:
        """Return a `Sending` of checked messages, for `deliver`."""
        is_held = level == "memory"
        size = self.size_of(bodies, is_held)
        return Sending(self._senders, size, lambda: self._put_in(bodies, is_held), level)

    def send_simply(self, bodies: list[Any]) -> bool:
        """Send messages that the fast path refused, if it is one of the two simple cases.

        False: it is not; `deliver` them. Raises OSError; none of the messages is in then.
        """
        self.own_thread.check()
        if self.gathering.batch is not None:
            self._after()  # it writes them
        if self._receivers:
            return self._pass_on(bodies)
        if len(bodies) != 1 or self.engine.has_tier or not self.engine.tail.stage(bodies[0]):
            return False
        # The fast path has written the first message of this slice; this one waits on the write-ahead log, as
        # the next ones will. All are written together when the running task lets others run, the loop among
        # them.
        self._ask_for_flush()
        return True

    def _pass_on(self, bodies: list[Any]) -> bool:
        """Hand messages straight to the first waiting receiver, if it takes them all."""
        first = self._receivers.first
        if (
            not isinstance(first, Fetch)
            or not 0 < len(bodies) <= first.max_messages
            or (len(bodies) > 1 and self.size_of(bodies) > first.max_bytes)
            or self._is_leased
            or self._senders
            or self._lingering
            or not self.engine.tail.pass_on(bodies)
        ):
            return False
        self._receivers.wake_first(outcome.Value(bodies))
        self._open_gates()
        return True

    def size_of(self, bodies: list[bytes], is_held: bool = False) -> int:
        return sum(map(len, bodies)) + self.engine.tail.overhead_of(is_held) * len(bodies)

    def _begin_gathering(self) -> GatheredBodies | None:
        if self.engine.has_tier or self.engine.gate_in.left <= 0:
            return None  # with a memory tier older messages have to be written first
        return GatheredBodies(self.engine)

    def _written(self) -> None:
        self._hand_out()
        if self._lingering:
            self._wake_lingering()

    def _obstacle(self, sending: Sending) -> bool:
        obstacle = self.engine.tail.obstacle(sending.size, is_held=sending.durability == "memory")
        if self._place is not None:
            self._place.note(obstacle)
        if obstacle in ("full", "over_budget") and self.options.on_full != "wait":
            raise self.engine.quota.full_error(sending.size, obstacle)
        if obstacle == "unsynced":
            # Room comes with a barrier: what is synced need not wait, what is consumed is removed.
            self._ask_for_barrier()
        return obstacle is not None

    def _put_in(self, bodies: list[bytes], is_held: bool) -> None:
        try:
            done = 0
            while done < len(bodies):
                try:
                    done = self.engine.tail.accept_many(bodies, done, is_held=is_held)
                except FullError as full:
                    full.accepted += done
                    raise
        finally:
            if is_held:
                self._note_held(self.options.memory_flush)

    # --- the reading arm --------------------------------------------------------------------------

    async def take(self, want: Callable[[], T | None]) -> T:
        """Return what `want` takes from the queue's head; waits for a message and for the caller's turn.

        If `want` returns None there was no message after all, and the task waits again.

        `Cancelled` means: nothing was taken. The caller has passed a schedule point.
        """
        if self._is_head_free():
            try:
                taken = want()
            finally:
                self._after()
            if taken is not None:
                return taken
        result: T = await self._receivers.wait(want, on_arrival=self._narrow_gates)
        self.new_slice()
        return result

    def load_from_memory(self) -> None:
        """Give the fast path the messages accepted a moment ago, if it is the caller's turn to take."""
        self.own_thread.check()
        if not self._receivers and not self._is_leased:
            self.engine.head.load_from_memory()

    def take_now(self, want: Callable[[], T | None]) -> T:
        """Do as `take` without waiting. Raises WouldBlock."""
        if not self._is_head_free():
            raise trio.WouldBlock
        try:
            taken = want()
        finally:
            self._after()
        if taken is None:
            raise trio.WouldBlock
        return taken

    def _is_head_free(self) -> bool:
        return not self._receivers and not self._is_leased and self._has_message()

    def _has_message(self) -> bool:
        if self.work is not None:
            return self.work._has_message()
        has_message = self.engine.head.has_message()
        if not has_message and self.on_empty is not None:
            self.on_empty()
        return has_message

    def lease(self, max_messages: int, max_bytes: int) -> list[bytes]:
        """Peek at the head, and keep all other receivers from it until `release`."""
        bodies = self.engine.head.peek_many(max_messages, max_bytes)
        self._is_leased = True
        return bodies

    def release(self, count: int) -> None:
        """End the lease; the first `count` messages leave the queue."""
        self._is_leased = False
        try:
            if count:
                self.engine.head.advance(count)
            self.engine.head.settle_in_hand()
        finally:
            self._after()

    async def linger(self, items: int, seconds: float) -> None:
        """Return when `items` messages are there, or after `seconds`. `Cancelled` changes nothing."""
        if self.engine.head.depth < items:
            with self.event_loop.move_on_after(seconds):
                await self._lingering.wait(items, on_arrival=self._narrow_gates)
            self.new_slice()

    def _hand_out(self) -> None:
        """Serve the waiting receivers in order, as far as there are messages."""
        while self._receivers and not self._is_leased:
            served = outcome.capture(self._serve, self._receivers.first)
            if served == outcome.Value(None):
                return
            self._receivers.wake_first(served)

    def _serve(self, want: Callable[[], T | None]) -> T | None:
        return want() if self._has_message() else None

    def _wake_lingering(self) -> None:
        depth = self.engine.head.depth
        for task in [task for task, items in self._lingering.items() if items <= depth]:
            self._lingering.wake(task, outcome.Value(None))

    # --- work -------------------------------------------------------------------------------------

    def check_unworked(self) -> None:
        """Raise BusyResourceError if the queue is being worked on."""
        if self.work is not None:
            raise trio.BusyResourceError("the queue is being worked on: receive from the work")

    def begin_work(self, begin: Callable[[QueueSteps], QueueWork]) -> QueueWork:
        """Begin work, which alone reads from now on. Raises BusyResourceError if another task reads."""
        self.check_unworked()
        if self._receivers or self._is_leased:
            raise trio.BusyResourceError("another task receives from the queue")
        self.work = begin(self.engine)
        self._open_gates()
        return self.work

    def do_work(self, act: Callable[[], T]) -> T:
        """Call `act` on the work, then serve the waiting tasks. Raises what `act` raises."""
        self.own_thread.check()
        try:
            return act()
        except StorageFailedError as failure:
            self.broke(failure)
        finally:
            self._after()

    def end_work(self, work: QueueWork) -> None:
        """End the work: messages in flight return to the head."""
        if self.work is not work:
            return
        try:
            work.close()
        except (DiskqError, OSError) as failure:
            self._break(failure)
        self.work = None
        self._set_alarm(math.inf)
        self._after()

    # --- the queue as a whole ---------------------------------------------------------------------

    async def sync(self) -> None:
        """Return when everything, also messages in memory, is on stable storage. Not cancellable."""
        self.engine.include_memory()
        await self.barrier(with_metadata=True)

    def _syncs_again(self, is_replaced: bool) -> bool:
        is_first, self._has_executed_again = not self._has_executed_again, False
        if not is_replaced and is_first and self.engine.tail.can_end_consumed_file:
            self._has_executed_again = True
        return self._has_executed_again

    async def clear(self) -> None:
        """Remove all messages, and return when that is durable. Not cancellable: they are removed at once."""
        self._write_before()
        self.engine.tail.discard_all()
        self._after()
        await self.barrier(with_metadata=True)

    # --- after each act ---------------------------------------------------------------------------

    def _after(self) -> None:
        if self._failure is None and not self.is_closing:
            self._write_gathered()
            self._hand_out()
            while self._senders and self._admit(self._senders):
                self._hand_out()
            if self._lingering:
                self._wake_lingering()
            if self._place is not None and self._place.is_contended:
                self._relieve()
            self._open_gates()

    def _relieve(self) -> None:
        try:
            with contextlib.suppress(FullError):
                self.engine.tail.relieve()
        except (DiskqError, OSError) as failure:
            self._break(failure)

    def _narrow_gates(self) -> None:
        engine = self.engine
        if self._senders or self.is_closing:
            self._shut_gates()
        if self._place is not None:
            self._place.stand_for(self._senders, is_closing=self.is_closing)
            if self._place.is_contended:
                engine.gate_out.left = 0  # each message taken frees space for others, which must be notified
        if self._receivers:
            engine.gate_out.left = 0
            if not self._is_leased:
                engine.gate_in.left = 0
        if self._is_leased:
            engine.gate_out.left = 0
        if self.work is not None:
            self._set_alarm(self.work._next_due() if self._receivers else math.inf)
        if self.gathering.batch is not None:
            engine.gate_in.left = 0  # these go first
        if self._is_full and not self._writer.is_flushed:
            engine.gate_in.left = 0  # the pending write failed: the next sender must get the error
        for items in self._lingering.values():
            engine.gate_in.left = min(engine.gate_in.left, max(0, items - engine.head.depth - 1))

    def begin_to_close(self) -> None:
        self._write_gathered()
        super().begin_to_close()
        if self.work is not None:
            self.end_work(self.work)

    # --- for statistics ---------------------------------------------------------------------------

    def _bound(self) -> DiskBound:
        if self.options.max_bytes is not None:
            return DiskBound(self.options.max_bytes, self.engine.quota.counted)
        return shared_bound(self.engine.quota.share)

    @property
    def tasks_waiting_receive(self) -> int:
        return len(self._receivers) + len(self._lingering)
