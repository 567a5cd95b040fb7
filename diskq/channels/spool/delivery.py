# The task that delivers. Law: one batch at a time, in order; a batch leaves the queue after `deliver`
# returned, or after its undeliverable messages are durable as dead letters; in all other cases it stays.
#
# The first try of a batch costs no more than the call. After a failure the back-off decides how long to wait,
# unless the failure says so itself, until the batch is done: engine/spool/trial.py.

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable

import trio
from trio.lowlevel import disable_ki_protection, enable_ki_protection

from diskq.channels.core.event_loops.seam import Task
from diskq.channels.queue.io_loop import QueueLoop
from diskq.channels.spool.dead_letters import SpoolDeadLetters
from diskq.channels.spool.pacing import Pacing
from diskq.engine.spool.delivery_cursor import DeliveryCursor
from diskq.engine.spool.trial import FailedTry, Trial, single_error
from diskq.errors import FullError, StorageFailedError
from diskq.messages import Batch
from diskq.options import SpoolOptions
from diskq.storage.backoff import backoff
from diskq.storage.callbacks import check_awaitable

__all__ = ["Deliver", "Delivery"]

Deliver = Callable[[Batch], Awaitable[object]]
"""Returns when the destination has the batch. May raise `Retry` and `Permanent`."""

# Seconds until the next attempt after a failed read.
_READ_AGAIN = 1.0


class Again(Exception):
    """The batch is to be tried again `after` that many seconds; None: as the back-off says."""

    def __init__(self, after: float | None = None) -> None:
        super().__init__("diskq tries again")
        self.after = after


class Misuse(Exception):
    """`deliver` is not a usable function: no other try would help, whatever `retry_on` says."""

    def __init__(self, mistake: Exception) -> None:
        super().__init__(mistake)
        self.mistake = mistake


class Delivery:
    """Delivers the messages of one queue, until it is cancelled."""

    def __init__(
        self,
        loop: QueueLoop,
        cursor: DeliveryCursor,
        dead_letters: SpoolDeadLetters,
        deliver: Deliver,
        options: SpoolOptions,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called when the status changes."""
        self._loop = loop
        self._cursor = cursor
        self._dead_letters = dead_letters
        self._deliver = deliver
        self._options = options
        self._on_change = on_change
        self._name = f"spool {cursor.path!r}"
        self.pacing = Pacing(options)
        self.trial = Trial(cursor, options, self.pacing, trio.TooSlowError)
        self.is_trying = False
        """True from the call of `deliver` until its batch has left the queue, or the try has failed."""
        self._task: Task | None = None
        self._mistake: RuntimeError | None = None  # raised in `deliver` by `refuse_inside`

    @enable_ki_protection
    async def run(self) -> None:
        """Deliver until cancelled. Raises an error of `deliver` that is not to be tried again.

        `Cancelled` means: the batch stays in the queue, and its interrupted try is not counted.
        """
        loop, cursor, options = self._loop, self._cursor, self._options
        event_loop = loop.event_loop
        self._task = event_loop.current_task()
        point = event_loop.checkpoint if loop.is_strict else event_loop.checkpoint_if_cancelled
        while True:
            await point()
            await loop.schedule_point()
            try:
                await self._wait_for_messages()
                bodies = loop.lease(*cursor.limits(options.max_messages, options.max_bytes))
            except StorageFailedError as failure:
                loop.broke(failure)
            except OSError as failure:
                # For example, too many open files: the messages are still there.
                self.trial.complain(failure)
                await self.pacing.sleep(_READ_AGAIN)
                continue
            if not bodies:
                loop.release(0)  # the messages were given up meanwhile, to free space
                continue
            cursor.take_batch(bodies)
            is_done = False
            try:
                await self._see_through()
                is_done = True
            finally:
                self._release(is_done)
                self.is_trying = False
            if options.commit == "synced":
                # The queue reports a full disk; deliveries go on.
                with contextlib.suppress(FullError):
                    await loop.barrier(with_metadata=True)
            self._on_change()

    def refuse_inside(self, call: str) -> None:
        """Raise RuntimeError inside `deliver`, and in its child tasks: `call` would wait for it to end."""
        if self._loop.event_loop.is_inside(self._task):
            self._mistake = RuntimeError(
                f"deliver of {self._name} called {call}, which waits until deliver has returned: "
                "call it in another task"
            )
            raise self._mistake

    async def _wait_for_messages(self) -> None:
        """Return when there is a message; with `linger`, when there is a full batch or time is up."""
        loop, options = self._loop, self._options
        was_idle = not loop.engine.head.depth
        await loop.take(lambda: True)  # no other task takes, so the message stays there
        if was_idle:
            self._cursor.note_arrival()
            self._on_change()
        if options.linger and not self._cursor.is_tried:
            await loop.linger(options.max_messages, options.linger)

    def _release(self, is_done: bool) -> None:
        loop, cursor = self._loop, self._cursor
        if loop.is_broken:
            return
        try:
            loop.release(cursor.count if is_done else 0)
            if is_done:
                cursor.commit()
        except StorageFailedError as failure:
            loop.broke(failure)

    # --- one batch --------------------------------------------------------------------------------

    async def _see_through(self) -> None:
        """Deliver the batch at the head, or make dead letters of it: return when nothing of it is left."""
        failures = 0
        while True:
            try:
                await self._try()
                return
            except Again as again:
                self.is_trying = False
                failures += 1
                after = backoff(failures, self._options) if again.after is None else again.after
            self.pacing.next_try_at = self._loop.event_loop.clock() + after
            self._on_change()
            await self.pacing.sleep(after)

    # --- one try ----------------------------------------------------------------------------------

    async def _try(self) -> None:
        """Return when nothing is left of the batch. Raises Again."""
        cursor = self._cursor
        while cursor.live:
            await self.pacing.turn(cursor.live)
            if self.trial.is_tried_enough:
                await self._bury(self.trial.gives_up())
                return
            batch = cursor.begin_try()
            self.is_trying = True
            try:
                with self._loop.event_loop.move_on_after(self._options.deliver_timeout or math.inf) as limit:
                    await self._call(batch)
                if limit.cancelled_caught:
                    raise trio.TooSlowError(f"not delivered within {self._options.deliver_timeout} seconds")
            except Exception as raised:
                await self._judge(batch, single_error(raised))
            except BaseException:
                cursor.do_not_count_try()  # its outcome is unknown
                raise
            else:
                self.trial.succeeded()
                self.trial.delivered += len(batch)
                return

    @disable_ki_protection
    async def _call(self, batch: Batch) -> None:
        """Call `deliver` so that a ^C can end it, but none of diskq's own code."""
        result = self._deliver(batch)
        try:
            awaitable = check_awaitable("deliver", self._deliver, result)
        except TypeError as mistake:
            raise Misuse(mistake) from None
        await awaitable

    async def _judge(self, batch: Batch, raised: Exception) -> None:
        """Handle a failed try. Returns if the rest may be tried at once; raises Again to wait first."""
        if isinstance(raised, Misuse):
            raise raised.mistake
        if raised is self._mistake:
            raise raised
        failed = self.trial.failed(batch, raised)
        if not failed.given_up:
            raise Again(failed.after)
        await self._bury(failed)

    async def _bury(self, failed: FailedTry) -> None:
        """Make dead letters of what is given up. Raises Again if there is no space for dead letters."""
        letters = self._cursor.dead_letters(self._cursor.batch(), failed.given_up, failed.reason)
        try:
            # Short, and must not be left half done.
            await self._loop.event_loop.shielded(self._dead_letters.add, letters)
        except FullError as full:
            self.trial.complain(full)
            raise Again(self.pacing.failed()) from full
        self.trial.bury(failed)
