# The loop behind a disk queue: go-diskqueue's select loop, arm by arm, for Trio.
#
#   Go's arm                          here
#   writeChan                         `deliver`: the caller's own task writes, no hop
#   readChan, then moveForward        `take`: the caller's own task takes; or `_hand_out`, for one that waits
#   peekChan                          `take`, with a peek
#   depthChan                         a property: one thread owns the state
#   emptyChan                         `forget_all`, then a barrier
#   count == syncEvery, syncTicker    `engine.note()` and `engine.deadline()`, slept on in `run`
#   needSync, a file used up          the engine forces the next barrier
#   exitChan                          `begin_to_close`: `run` pays the last barrier, and ends
#
# Law: the state is touched by Trio's thread only; the loop takes barriers, and a thread pays them;
# whoever waits is woken in order of arrival, with what it waits for in its hands.

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import outcome
import trio

from diskq.channels.barrierthread import BarrierThread
from diskq.channels.parking import NOTHING, Line
from diskq.engine.fifo import FifoQueue
from diskq.errors import DiskFullError, DiskqError, StorageFailedError
from diskq.options import Durability

__all__ = ["Fetch", "QueueLoop"]

logger = logging.getLogger("diskq")

T = TypeVar("T")

# After the disk refused what no caller waits for, it is asked again so many seconds later.
_RETRY = 0.1


@dataclass(frozen=True, slots=True)
class Fetch:
    """What a receiver wants: to be called when it is his turn."""

    engine: FifoQueue
    max_items: int
    max_bytes: int

    def __call__(self) -> list[bytes]:
        return self.engine.fetch(self.max_items, self.max_bytes)


class QueueLoop:
    """One open queue: the engine, who waits for what, and the task that keeps its promises."""

    def __init__(self, engine: FifoQueue, thread: BarrierThread) -> None:
        self.engine = engine
        self.options = engine.options
        self.is_strict = self.options.checkpoint_slice == 0
        self.open_handles = 0
        self._thread = thread
        self._senders: Line[tuple[int, Callable[[], None]]] = Line()  # so many bytes, which this puts in
        self._receivers: Line[Callable[[], Any]] = Line()  # each is handed what this returns
        self._lingering: Line[int] = Line()  # each waits for so many messages
        self._unsynced: Line[int] = Line()  # each waits for the barrier of this number: its messages
        self._syncing: Line[int] = Line()  # the same: all messages there are
        self._is_leased = False  # somebody peeks at the head, and may commit it
        self._barriers_taken = 0
        self._wants_barrier = False
        self._wants_metadata = False
        self._wants_flush = False  # something stands on the slate
        self._is_full = False  # it could not be written
        self._has_written = False  # in the running slice
        self._has_deadline = True  # the loop runs, or sleeps no longer than to one
        self._flush_at = math.inf  # when `memory` messages are to be in the page cache
        self._bell = _Bell()
        self.is_closing = False
        self._is_over = False  # nobody takes barriers any more
        self._failure: BaseException | None = None
        self._missed: BaseException | None = None  # by the last barrier
        self.take_one = Fetch(engine, 1, sys.maxsize)
        self.new_slice()
        self._open_gates()

    # --- schedule points --------------------------------------------------------------------------

    def new_slice(self) -> None:
        self._has_written = False
        self.engine.gate_in.restart()
        self.engine.gate_out.restart()

    async def schedule_point(self) -> None:
        """Let others run if the running task's slice is over. Cancellable then, and only then.

        Every call has begun with a cancellation point of its own: without a yield in between there
        is nothing new to be found out.
        """
        if self.engine.gate_in.is_slice_over or self.engine.gate_out.is_slice_over:
            await trio.lowlevel.checkpoint()
            self.new_slice()

    # --- the writing arm --------------------------------------------------------------------------

    async def deliver(self, bodies: list[bytes], word: Durability) -> None:
        """Add checked messages, all together, after waiting until there is room for them.

        `Cancelled` means: none of them is in the queue. The caller has passed a schedule point.
        """
        size = self.size_of(bodies)
        if self._senders or self._obstacle(size):
            # Whoever makes room puts them in for us, or somebody who comes later would get before us.
            await self._senders.wait(
                (size, lambda: self._put_in(bodies, word)),
                on_arrival=self._narrow_gates,
                on_leave=self._after,
            )
            self.new_slice()
        else:
            self._accept(bodies, word)
        if word == "synced":
            await self.barrier(with_metadata=False)

    def deliver_now(self, bodies: list[bytes], word: Durability) -> None:
        """As `deliver`, for a caller that will not wait. Raises WouldBlock."""
        if self._senders or self._obstacle(self.size_of(bodies)):
            raise trio.WouldBlock
        self._accept(bodies, word)

    def send_simply(self, bodies: list[Any]) -> bool:
        """What the compiled door refused, where it is one of the two simple cases after all.

        False: it is not; `deliver` it. Raises OSError; none of the messages is then in.
        """
        if self._receivers:
            return self._pass_on(bodies)
        return len(bodies) == 1 and self._begin_slate(bodies[0])

    def _begin_slate(self, body: Any) -> bool:
        """The first message of a slice is written at once, the next ones wait on the slate for each other.

        They wait until the running task lets others run: the loop, whose bell is rung, is among them.
        """
        buffer = self.engine.buffer
        if not self._has_written:
            self._has_written = buffer.put_untimed(body)
            return self._has_written
        if not self.engine.is_flushed:
            buffer.flush()  # the slate is full, or what waits does not stand on it
        if not buffer.jot_first(body):
            return False
        self._wants_flush = True
        self._bell.ring()
        return True

    def _pass_on(self, bodies: list[Any]) -> bool:
        """Hand messages straight to the first in line, if he takes them all."""
        first = self._receivers.first
        if (
            not isinstance(first, Fetch)
            or not 0 < len(bodies) <= first.max_items
            or (len(bodies) > 1 and self.size_of(bodies) > first.max_bytes)
            or self._is_leased
            or self._senders
            or self._lingering
            or not self.engine.pass_on(bodies)
        ):
            return False
        self._receivers.wake_first(outcome.Value(bodies))
        self._open_gates()
        return True

    def size_of(self, bodies: list[bytes]) -> int:
        return sum(map(len, bodies)) + self.engine.overhead * len(bodies)

    def _obstacle(self, size: int) -> bool:
        """Must somebody who brings `size` bytes wait? Raises DiskFullError where that is the policy."""
        obstacle = self.engine.obstacle(size)
        if obstacle == "full" and self.options.on_full != "wait":
            raise self.engine.full_error(size)
        if obstacle == "unsynced":
            # Room comes with a barrier: what is synced need not wait, what is consumed is removed.
            self._ask_for_barrier()
        return obstacle is not None

    def _accept(self, bodies: list[bytes], word: Durability) -> None:
        try:
            self._put_in(bodies, word)
        finally:
            self._after()

    def _put_in(self, bodies: list[bytes], word: Durability) -> None:
        is_held = word == "memory"
        try:
            done = 0
            while done < len(bodies):
                try:
                    done = self.engine.accept_many(bodies, done, is_held=is_held)
                except DiskFullError as full:
                    full.accepted += done
                    raise
        finally:
            if is_held and not self.engine.is_flushed and self._flush_at == math.inf:
                self._flush_at = trio.current_time() + self.options.memory_flush
                self._bell.ring()

    def _admit_senders(self) -> bool:
        """Let in who waits, in order, as far as there is room. True: somebody is in."""
        is_somebody_in = False
        while self._senders:
            size, put_in = self._senders.first
            has_obstacle = outcome.capture(self._obstacle, size)
            if has_obstacle == outcome.Value(True):
                break
            if isinstance(has_obstacle, outcome.Error):
                self._senders.wake_first(has_obstacle)
            else:
                self._senders.wake_first(outcome.capture(put_in))
                is_somebody_in = True
        return is_somebody_in

    # --- the reading arm --------------------------------------------------------------------------

    async def take(self, want: Callable[[], T]) -> T:
        """What `want` takes from the head of the queue, when a message is there and it is our turn.

        `Cancelled` means: nothing was taken. The caller has passed a schedule point.
        """
        if self._is_head_free():
            try:
                return want()
            finally:
                self._after()
        result: T = await self._receivers.wait(want, on_arrival=self._narrow_gates)
        self.new_slice()
        return result

    def load_from_memory(self) -> None:
        """Let the compiled door have what was accepted a moment ago, where it is our turn to take."""
        if not self._receivers and not self._is_leased:
            self.engine.load_from_memory()

    def take_now(self, want: Callable[[], T]) -> T:
        """As `take`, for a caller that will not wait. Raises WouldBlock."""
        if not self._is_head_free():
            raise trio.WouldBlock
        try:
            return want()
        finally:
            self._after()

    def _is_head_free(self) -> bool:
        return not self._receivers and not self._is_leased and self.engine.has_message()

    def lease(self, max_items: int, max_bytes: int) -> list[bytes]:
        """Peek at the head and keep everybody else from it, until `release`."""
        bodies = self.engine.peek_many(max_items, max_bytes)
        self._is_leased = True
        return bodies

    def release(self, count: int) -> None:
        """End the lease; the first `count` messages leave the queue."""
        self._is_leased = False
        try:
            if count:
                self.engine.advance(count)
        finally:
            self._after()

    async def linger(self, items: int, seconds: float) -> None:
        """Return when so many messages are there, or so many seconds have passed."""
        if self.engine.depth < items:
            with trio.move_on_after(seconds):
                await self._lingering.wait(items, on_arrival=self._narrow_gates)
            self.new_slice()

    def _hand_out(self) -> None:
        """Give those who wait what they wait for, in order, as far as the messages go."""
        while self._receivers and not self._is_leased:
            served = outcome.capture(self._serve, self._receivers.first)
            if served == outcome.Value(None):
                return
            self._receivers.wake_first(served)

    def _serve(self, want: Callable[[], T]) -> T | None:
        return want() if self.engine.has_message() else None

    def _wake_lingering(self) -> None:
        depth = self.engine.depth
        for task in [task for task, items in self._lingering.items() if items <= depth]:
            self._lingering.wake(task, outcome.Value(None))

    # --- emptying, syncing ------------------------------------------------------------------------

    async def empty(self) -> None:
        self.engine.forget_all()
        self._after()
        await self.barrier(with_metadata=True)

    async def barrier(self, *, with_metadata: bool) -> None:
        """Return when all that is written by now is on the platter. Not cancellable: it is already in.

        With metadata: when all that is accepted by now is. Raises DiskFullError where it cannot be.
        """
        if self._failure is not None:
            raise self._broken()
        if self._is_over:
            raise trio.ClosedResourceError("the queue was closed")
        if with_metadata or not self._unsynced:  # else the loop is awake, and sees who came
            self._wants_metadata |= with_metadata
            self._bell.ring()
        line = self._syncing if with_metadata else self._unsynced
        await line.wait_to_the_end(self._barriers_taken + 1)
        self.new_slice()

    def _ask_for_barrier(self) -> None:
        self._wants_barrier = True
        self._bell.ring()

    # --- after each act ---------------------------------------------------------------------------

    def _after(self) -> None:
        """Serve who waits as far as it goes, let the policy count what happened, open the gates again."""
        if self._failure is None and not self.is_closing:
            self._hand_out()
            while self._senders and self._admit_senders():
                self._hand_out()
            if self._lingering:
                self._wake_lingering()
            self._open_gates()

    def _open_gates(self) -> None:
        """Messages may pass without asking, unless somebody waits to hear of them."""
        engine = self.engine
        try:
            if engine.note():
                self._ask_for_barrier()
            elif not self._has_deadline and engine.deadline() < math.inf:
                self._has_deadline = True
                self._bell.ring()  # the loop sleeps without a deadline, and has one now
        except DiskqError as failure:
            self._break(failure)
        else:
            self._narrow_gates()

    def _narrow_gates(self) -> None:
        """Shut the gates on what somebody waits for: after each opening, and when a task gets in line."""
        engine = self.engine
        if self._senders or self.is_closing:
            engine.gate_in.left = engine.gate_out.left = 0
        if self._receivers:
            engine.gate_out.left = 0
            if not self._is_leased:
                engine.gate_in.left = 0
        if self._is_leased:
            engine.gate_out.left = 0
        if self._is_full and not engine.is_flushed:
            engine.gate_in.left = 0  # what waits could not be written: who comes next is to be told
        for items in self._lingering.values():
            engine.gate_in.left = min(engine.gate_in.left, max(0, items - engine.depth - 1))

    # --- the loop ---------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Take barriers when they are due and have them paid, until `begin_to_close`; then close the engine.

        Never raises, whatever fails: it breaks the queue, and who uses it is told.
        """
        with trio.CancelScope(shield=True):
            try:
                while not self.is_closing or self._unsynced or self._syncing:
                    await self._turn()
            except BaseException as failure:
                self._break(failure)
            self._is_over = True
            while not self.is_closing:
                await self._bell.wait()
            self._thread.stop()
            try:
                await trio.to_thread.run_sync(self.engine.close)
            except StorageFailedError as failure:
                self._break(failure)
            except BaseException as failure:
                logger.error("queue %r could not be closed cleanly: %s", self.engine.name, failure)
                self._missed = failure

    async def _turn(self) -> None:
        """One turn of the loop: a barrier if one is wanted, else sleep until something is due."""
        if self._wants_flush or trio.current_time() >= self._flush_at:
            self._flush_held()
        if self.engine.note() or self._wants_barrier or self._unsynced or self._syncing:
            await self._pay_barrier()
            return
        self._open_gates()
        deadline = min(self.engine.deadline(), self._flush_at)
        self._has_deadline = deadline < math.inf
        with trio.move_on_at(deadline):
            await self._bell.wait()

    async def _pay_barrier(self) -> None:
        with_metadata = self.engine.note() or self._wants_metadata
        self._wants_barrier = self._wants_metadata = False
        ticket = self.engine.take_ticket(with_metadata=with_metadata)
        self._barriers_taken += 1
        number = self._barriers_taken
        self._tell_flushed(ticket.left_out)
        try:
            is_replaced = await self._thread.pay(ticket)
        except OSError as failure:
            self.engine.fail(failure)
        self.engine.mark(ticket, is_replaced)
        while self._unsynced and self._unsynced.first <= number:
            self._unsynced.wake_first()
        while self._syncing and self._syncing.first <= number:
            full = ticket.left_out
            told = outcome.Error(DiskFullError(full.path, full.reason)) if full else NOTHING
            self._syncing.wake_first(told)
        self._after()

    def _flush_held(self) -> None:
        """Write what waits to be written."""
        try:
            self.engine.flush()
        except DiskFullError as full:
            self._tell_flushed(full)
        else:
            self._tell_flushed(None)

    def _tell_flushed(self, full: DiskFullError | None) -> None:
        """What waited is written now, or it found no room: then it is kept, and tried again."""
        if full is not None and not self._is_full:
            logger.warning("%s", full)
        self._wants_flush = False
        self._is_full = full is not None
        self._flush_at = trio.current_time() + _RETRY if full is not None else math.inf

    # --- the end ----------------------------------------------------------------------------------

    def begin_to_close(self) -> None:
        """Wake whoever waits, and have `run` sync for the last time, let go of the files and end."""
        self.is_closing = True
        self._narrow_gates()
        for line in (self._senders, self._receivers, self._lingering):
            line.wake_all(lambda: outcome.Error(trio.ClosedResourceError("the queue was closed")))
        self._bell.ring()

    def dismiss(self, tasks: Iterable[trio.lowlevel.Task]) -> None:
        """Wake those of the tasks that wait: their handle was closed. What is in stays in."""
        for task in tasks:
            for line in (self._senders, self._receivers, self._lingering):
                if task in line:
                    line.wake(task, outcome.Error(trio.ClosedResourceError("this handle was closed")))
        self._after()

    def check(self) -> None:
        """Raises BrokenResourceError if the queue is broken, ClosedResourceError if it is being closed."""
        if self._failure is not None:
            raise self._broken()
        if self.is_closing:
            raise trio.ClosedResourceError("the queue was closed")

    def check_end(self) -> None:
        """After `run`: raises BrokenResourceError if the queue is broken, or what the last sync raised."""
        if self._failure is not None:
            raise self._broken()
        if self._missed is not None:
            raise self._missed

    def _broken(self) -> trio.BrokenResourceError:
        """One of its own for everybody who has to hear it."""
        error = trio.BrokenResourceError(f"queue {self.engine.name!r}: {self._failure}")
        error.__cause__ = self._failure
        return error

    def broke(self, failure: StorageFailedError) -> NoReturn:
        """A caller met a failure that concerns everybody."""
        self._break(failure)
        raise self._broken() from failure

    def _break(self, failure: BaseException) -> None:
        if self._failure is None:
            self._failure = failure
            logger.error("queue %r is broken: %s", self.engine.name, failure)
            if not isinstance(failure, DiskqError):
                # Nobody knows how far it got: nothing may be promised any more, at the end least of all.
                with contextlib.suppress(StorageFailedError):
                    self.engine.fail(failure)
        self.engine.gate_in.left = self.engine.gate_out.left = 0
        for line in (self._senders, self._receivers, self._lingering, self._unsynced, self._syncing):
            line.wake_all(lambda: outcome.Error(self._broken()))

    # --- for statistics ---------------------------------------------------------------------------

    @property
    def tasks_waiting_send(self) -> int:
        return len(self._senders) + len(self._unsynced) + len(self._syncing)

    @property
    def tasks_waiting_receive(self) -> int:
        return len(self._receivers) + len(self._lingering)


class _Bell:
    """Wakes one task; rung while nobody listens, it is heard later."""

    def __init__(self) -> None:
        self._was_rung = False
        self._listener: trio.lowlevel.Task | None = None

    def ring(self) -> None:
        if self._listener is not None:
            task, self._listener = self._listener, None
            trio.lowlevel.reschedule(task)
        else:
            self._was_rung = True

    async def wait(self) -> None:
        if self._was_rung:
            self._was_rung = False
            return
        self._listener = trio.lowlevel.current_task()

        def stop_listening(_: object) -> trio.lowlevel.Abort:
            self._listener = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(stop_listening)
