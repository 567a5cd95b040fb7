# The spool: accept now, deliver when the destination is reachable.
#
# A queue's loop, and two tasks of the block's own: one delivers, one writes the status. An error with which
# delivery cannot go on ends the block. Law: the files are closed before the block is left, also if it is
# cancelled; messages that were accepted and not delivered are still there at the next open.

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Unpack

import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.core.closing import in_a_thread
from diskq.channels.core.leaving import Leaving
from diskq.channels.core.opening import Opening
from diskq.channels.core.sync_executor import SyncExecutor
from diskq.channels.queue.io_loop import QueueLoop
from diskq.channels.queue.queue import QueueChannel
from diskq.channels.spool.dead_letters import SpoolDeadLetters
from diskq.channels.spool.delivery import Deliver, Delivery
from diskq.engine.queue.fifo_queue import Body, Queue
from diskq.engine.queue.files import QueuePosition
from diskq.engine.spool.dead_letters import DeadLetters
from diskq.engine.spool.delivery_cursor import DeliveryCursor
from diskq.engine.spool.figures import TICK, SpoolFigures, SpoolStatistics
from diskq.engine.spool.files import ADOPTING, SPOOL, SpoolStatus, is_left_behind, make_or_find
from diskq.engine.spool.trial import report_end
from diskq.errors import LockedError, StorageFailedError
from diskq.keywords import SpoolKeywords
from diskq.options import Durability, SpoolOptions, chosen_options
from diskq.storage.callbacks import check_async
from diskq.storage.closing import Closing
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path
from diskq.storage.lock import checked_wait
from diskq.storage.log_events import Log
from diskq.storage.repairs import Repair
from diskq.storage.slots import open_slot, slots_in

__all__ = ["SpoolChannel", "SpoolStatistics", "open_spool"]

log = Log("spool")

# Seconds between two looks at a slot that is adopted.
_LOOK = 0.2


class SpoolChannel(Leaving, trio.abc.SendChannel[bytes]):
    """Accepts messages, and delivers them to a destination that may be away. Made by `open_spool`.

    Any number of tasks may send at once. Every async method is a cancellation point, and a schedule
    point once per `checkpoint_slice`; if one raises `Cancelled`, nothing was sent.
    """

    def __init__(
        self,
        loop: QueueLoop,
        cursor: DeliveryCursor,
        dead_letters: DeadLetters,
        deliver: Deliver,
        options: SpoolOptions,
        fs: FileSystem,
    ) -> None:
        self._queue = QueueChannel(loop)
        self._loop = loop
        self._engine = loop.engine
        self._cursor = cursor
        self._fs = fs
        self._is_over = False  # delivery has ended
        self._draining = 0  # tasks that wait in `drained`
        self._event_loop = loop.event_loop
        self._progress = self._event_loop.event()
        self._news = self._event_loop.event()
        self._news.set()
        self._dead_letters = SpoolDeadLetters(dead_letters, self._put_back)
        self._delivery = Delivery(loop, cursor, self._dead_letters, deliver, options, self._notify)
        delivery = self._delivery
        self._figures = SpoolFigures(self._engine, cursor, dead_letters, delivery.trial, delivery.pacing, fs)
        loop.on_empty = self._note_empty

    def __repr__(self) -> str:
        state = "closed" if self._is_over else "open"
        return f"<SpoolChannel {self._cursor.path!r}: {self.depth} messages, {state}>"

    # --- sending ----------------------------------------------------------------------------------
    # No coroutines of their own: one layer between the user and the queue is enough.

    def send(self, body: Body, *, durability: Durability | None = None) -> Coroutine[Any, Any, None]:
        """Accept a message, to be delivered after all earlier ones. As `QueueChannel.send`.

        Returns when it is as durable as `durability` (by default the queue options') says. `Cancelled`
        means: it was not accepted. Raises trio.BrokenResourceError after the disk failed.
        """
        return self._queue.send(body, durability=durability)

    def send_many(
        self, messages: Iterable[Body], *, durability: Durability | None = None
    ) -> Coroutine[Any, Any, None]:
        """Accept messages next to each other, in order. As `QueueChannel.send_many`."""
        return self._queue.send_many(messages, durability=durability)

    def send_nowait(self, body: Body) -> None:
        """Accept a message without waiting, or raise trio.WouldBlock. As `QueueChannel.send_nowait`."""
        self._queue.send_nowait(body)

    async def sync(self) -> None:
        """Return when all accepted messages, and all deliveries, are on stable storage.

        `Cancelled` is raised only before the sync begins, and changes nothing.
        """
        await self._queue.sync()

    def close(self) -> None:
        """Accept no more messages. Delivery goes on until the block ends."""
        self._queue.close()

    async def aclose(self) -> None:
        """Do what `close` does, then pass a checkpoint. `Cancelled` means: it is closed."""
        await self._queue.aclose()

    # --- delivering -------------------------------------------------------------------------------

    async def drained(self) -> None:
        """Return when all messages accepted by now are delivered or are dead letters.

        `Cancelled` changes nothing. Raises trio.BrokenResourceError or trio.ClosedResourceError if that
        cannot happen any more, and RuntimeError inside `deliver`, because it waits for `deliver` to end.
        """
        self._loop.own_thread.check()
        await self._event_loop.checkpoint()
        self._delivery.refuse_inside("drained()")
        tail = self._engine.tail.position
        while self._engine.head.depth and self._engine.head.position < tail:
            self._loop.check()
            if self._is_over:
                raise trio.ClosedResourceError("the spool was closed")
            self._draining += 1
            try:
                await self._progress.wait()
            finally:
                self._draining -= 1

    def pause(self) -> None:
        """Begin no further try until `resume`. A try under way is completed."""
        self._loop.own_thread.check()
        self._delivery.pacing.pause()
        self._notify()

    def resume(self) -> None:
        """Try now, even during a back-off, a pause after failures or a wait for the rate."""
        self._loop.own_thread.check()
        self._delivery.pacing.resume()
        self._notify()

    @property
    def depth(self) -> int:
        """The number of messages that wait to be delivered, including the batch that is being tried."""
        return self._engine.head.depth

    @property
    def dead_letters(self) -> SpoolDeadLetters:
        """The messages that could not be delivered, to be listed, replayed or removed."""
        return self._dead_letters

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """The damage found in the files of the queue and of the dead letters, at the open and since."""
        return self._engine.repairs + self._dead_letters.repairs

    def statistics(self) -> SpoolStatistics:
        """Return figures of the spool as it is now. Cheap; may be called from any thread."""
        return self._figures.statistics(self.repairs, self._loop.barrier_seconds)

    def _status(self) -> SpoolStatus:
        return self._figures.status()

    # --- the status file --------------------------------------------------------------------------

    def _notify(self) -> None:
        """Wake the tasks that wait for a change."""
        self._progress.set()
        self._progress = self._event_loop.event()
        self._news.set()

    def _note_empty(self) -> None:
        """Note that nothing is left to deliver: delivered, or damaged and given up."""
        if self._draining:
            self._notify()

    def _end(self) -> None:
        """Note that delivery has ended."""
        self._is_over = True
        self._notify()

    async def _put_back(self, bodies: list[bytes]) -> None:
        await self._queue.send_many(bodies, durability="synced")

    @enable_ki_protection  # an interrupt comes to the main task: here it would end the deliveries
    async def _keep_status(self) -> None:
        """Write the status after changes and while there are messages, at most once per tick."""
        written: tuple[SpoolStatus, QueuePosition] | None = None
        while True:
            if not self._engine.head.depth:
                await self._news.wait()
            self._news = self._event_loop.event()
            self._cursor.ages.add(self._engine.tail.position, self._fs.wall_clock())
            self._figures.sample()
            status = self._status()
            current = dataclasses.replace(status, written_at=0.0), self._engine.tail.position
            if current != written:
                written = current if await self._write(status) else None
            await self._event_loop.sleep_for(TICK)

    async def _write(self, status: SpoolStatus, *, is_open: bool = True) -> bool:
        """Write the status to stable storage. False: the disk is full, and the old status stays."""
        barrier = self._cursor.barrier(status, is_open=is_open)
        try:
            return await in_a_thread(barrier.execute, self._fs)
        except OSError as failure:
            try:
                self._engine.log.fail(failure)
            except StorageFailedError as fatal:
                self._loop.broke(fatal)


# --- opening and closing it -----------------------------------------------------------------------


class open_spool(Opening[SpoolChannel]):  # noqa: N801 (it is used as a function)
    """Open the spool at `path`: an async context manager that gives a `SpoolChannel`.

    It delivers during the block.

    `path` is a directory of its own, made if it is missing (`create=False`: that is a NotFoundError).
    `deliver(batch)` is called with a `Batch`, in order, one at a time; when it returns, the batch is
    delivered. It may raise `Retry` and `Permanent`. Options may be given as a `SpoolOptions`, or one by one:
    `max_messages=500`.

    With `slots`, any number of processes may open it: each has the first free slot below `path`, a spool of
    its own. The slot of a dead process is taken by the next one that opens; and a living one that has no
    messages of its own delivers those of dead ones, with `deliver` called for both at once.

    Leaving the block without an exception waits up to `drain_timeout` for the remaining messages. It then
    cancels `deliver`, whose batch stays; syncs, and closes the files. Messages that were not delivered are
    delivered after the next open.

    Entering it raises LockedError if another process still has the spool after `wait` seconds, and OSError.
    If `deliver` raises an error that is not to be tried again (`retry_on`), the block is cancelled, and
    leaving it raises that error; it raises trio.BrokenResourceError if storage failed. An exception of the
    block itself is raised instead.

    Options (`SpoolOptions`). Sizes in bytes, durations in seconds. No option is part of the format: a spool
    may be reopened with other options at any time.

    - `max_messages=100`: A batch has at most this many messages.
    - `max_bytes=1024 * 1024`: A batch has at most this many bytes of messages; a single larger message is a
      batch of its own.
    - `backoff_initial=0.1`: The second try comes after this time; each later one waits twice as long as the
      one before.
    - `backoff_max=60.0`: No try waits longer than this.
    - `backoff_jitter=1.0`: A random time of up to this much is added, so that many processes do not retry at
      the same moment.
    - `linger=0.0`: A batch that is not full waits this long for more messages.
    - `max_attempts=None`: After this many tries a batch's messages become dead letters. None: it is tried
      without limit.
    - `deliver_timeout=None`: A try that takes longer is cancelled, and has failed. None: no limit.
    - `retry_on=Exception`: Exceptions of `deliver` after which the batch is tried again; any other one ends
      the spool's block.
    - `pause_after=None`: After this many failures in a row delivery stops for `pause`, then tries once. None:
      it never stops.
    - `pause=60.0`: The length of that pause, to which up to a tenth is added at random.
    - `rate=None`: At most this many messages a second on average, each batch at once. None: as fast as
      possible.
    - `drain_timeout=0.0`: Leaving the block without an error waits up to this long for the remaining
      messages' delivery.
    - `commit="written"`: How durably a delivered batch is recorded before the next one is tried: `written`,
      it is not delivered again after a kill; `synced`, also not after a power cut, at the price of one sync
      for each batch.
    - `queue=QueueOptions()`: How the spool keeps its messages: durability, bounds, and what happens when it
      is full.
    """

    def __init__(
        self,
        path: AnyPath,
        deliver: Deliver,
        *,
        create: bool = True,
        slots: bool = False,
        wait: float = 0.0,
        options: SpoolOptions | None = None,
        fs: FileSystem | None = None,
        **changes: Unpack[SpoolKeywords],
    ) -> None:
        self._root = self._path = as_path(path)
        self._create = create
        self._has_slots = slots
        self._wait = checked_wait(wait)
        check_async("deliver", deliver)
        self._deliver = deliver
        self._options = chosen_options(open_spool, options, SpoolOptions, changes)
        self._fs = fs or OsFileSystem()

    async def _open(self) -> tuple[QueueLoop, SpoolChannel]:
        clock = self._event_loop.clock
        parts = await self._event_loop.run_in_thread(self._open_slot, clock)
        engine, self._dead_letter_files, self._cursor = parts
        with ExitStack() as opened:  # everything is closed again if a step fails
            for part in parts:
                opened.callback(part.close)
            loop = QueueLoop(
                engine.steps, SyncExecutor(self._fs, engine.steps.log.path, engine.steps.status_path)
            )
            opened.pop_all()
        return loop, SpoolChannel(
            loop, self._cursor, self._dead_letter_files, self._deliver, self._options, self._fs
        )

    def _open_slot(self, clock: Callable[[], float]) -> tuple[Queue, DeadLetters, DeliveryCursor]:
        def opened(path: str) -> tuple[Queue, DeadLetters, DeliveryCursor]:
            parts = _open_files(self._fs, path, self._options, clock, self._create or self._has_slots)
            self._path = path
            return parts

        if not self._has_slots:
            return opened(self._root)
        make_or_find(self._fs, self._root, create=self._create, slots=True)
        return open_slot(self._root, opened)

    @enable_ki_protection  # an interrupt comes to the main task: here it would end the deliveries
    async def _adopt(self, spool: SpoolChannel) -> None:
        """Deliver what dead processes have left in their slots, while there are no messages of its own."""
        event_loop, run = self._event_loop, self._event_loop.run_in_thread
        options = dataclasses.replace(self._options, drain_timeout=0.0)
        while True:
            for path in await run(slots_in, self._fs, self._root):
                if path == self._path or spool.depth or not await run(is_left_behind, self._fs, path):
                    continue
                with suppress(LockedError):  # a process has it
                    async with open_spool(path, self._deliver, options=options, fs=self._fs) as other:
                        while other.depth and not spool.depth:
                            await event_loop.sleep_for(_LOOK)
                        # Leaving the block cancels a try, and the destination would have its batch twice.
                        other.pause()
                        while other._delivery.is_trying:
                            await event_loop.sleep_for(_LOOK)
            await event_loop.sleep_for(ADOPTING)

    @enable_ki_protection
    async def __aenter__(self) -> SpoolChannel:
        spool = await super().__aenter__()
        self._work = self._event_loop.scope(shield=True)  # it ends when the block does, and not before
        self._is_idle = self._event_loop.event()
        self._failure: BaseException | None = None
        self._block = self._event_loop.scope()
        await self._open_nursery()
        self._nursery.start_soon(self._run, spool, name=f"delivery of spool {self._path}")
        self._block.__enter__()
        return spool

    @enable_ki_protection
    async def _run(self, spool: SpoolChannel) -> None:
        """Deliver until the block ends; if delivery fails for good, end the block."""
        try:
            with self._work:
                async with self._event_loop.open_nursery() as nursery:
                    nursery.start_soon(spool._keep_status)
                    nursery.start_soon(spool._delivery.run)
                    if self._has_slots:
                        nursery.start_soon(self._adopt, spool)
        except BaseException as failure:
            failure = _one_of(failure)
            report_end(self._path, failure)
            self._failure = failure
            self._block.cancel()
        finally:
            self._is_idle.set()
            spool._end()

    @enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool:
        own = value
        try:
            if self._block.__exit__(kind, value, trace):
                own = None
        except BaseException as rest:  # a group, without this scope's own cancellations
            own = rest
        try:
            if own is None and self._failure is None and self._options.drain_timeout:
                with self._event_loop.move_on_after(self._options.drain_timeout):
                    await self._handle.drained()
        except BaseException as interruption:
            own = interruption
        try:
            await self._event_loop.shielded(self._finish)
        except BaseException as failure:
            own = own or self._failure or failure
        error = own or self._failure
        await super().__aexit__(type(error) if error else None, error, None)
        if error is not None and error is not value:
            raise error
        return error is None

    async def _finish(self) -> None:
        """End delivery, write the last status, and close all files but the queue's."""
        self._work.cancel()
        await self._is_idle.wait()
        try:
            if not self._loop_is_broken:
                await self._handle._write(self._handle._status(), is_open=False)
        finally:
            await in_a_thread(_close, self._cursor, self._dead_letter_files)

    @property
    def _loop_is_broken(self) -> bool:
        return self._loop is not None and self._loop.is_broken


def _open_files(
    fs: FileSystem, path: str, options: SpoolOptions, clock: Callable[[], float], create: bool
) -> tuple[Queue, DeadLetters, DeliveryCursor]:
    make_or_find(fs, path, create=create)
    with ExitStack() as opened:
        queue = opened.enter_context(
            Queue(
                path,
                SPOOL,
                options=options.queue,
                fs=fs,
                clock=clock,
                time_slice=options.queue.checkpoint_slice,
                uses_wal=options.queue.checkpoint_slice > 0,
            )
        )
        dead_letters = opened.enter_context(DeadLetters(path, fs=fs))
        cursor = opened.enter_context(DeliveryCursor(fs, path, queue.steps))
        opened.pop_all()
    return queue, dead_letters, cursor


def _close(*stores: Closing) -> None:
    with ExitStack() as closing:
        for store in stores:
            closing.callback(store.close)


def _one_of(failure: BaseException) -> BaseException:
    """Return the one error of a group with one cause, as when both tasks meet the broken storage."""
    while isinstance(failure, BaseExceptionGroup) and (
        len(failure.exceptions) == 1
        or all(isinstance(each, trio.BrokenResourceError) for each in failure.exceptions)
    ):
        failure = failure.exceptions[0]
    return failure
