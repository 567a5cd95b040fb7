# The disk queue as a Trio channel.
#
# Handles on one `QueueLoop`. The two calls that every message passes, `send` and `receive`, try the
# compiled fast path first: a cancellation point, then one call. If the fast path refuses (the slice is
# over, a sync is due, a task waits, there is no message) the loop decides.

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.core.gathering import FIRST, NOT_GATHERED
from diskq.channels.core.handle import MANY_BYTES, Iterated, SendingHandle
from diskq.channels.core.opening import OpeningEngine
from diskq.channels.core.sync_executor import SyncExecutor
from diskq.channels.queue.fast_path import CLOSED, FastPath, fast_path
from diskq.channels.queue.io_loop import Fetch, QueueLoop
from diskq.channels.queue.work import QueueWorkChannel
from diskq.engine.queue.fifo_queue import Body, Queue, QueueStatistics
from diskq.engine.queue.work import Exhausted, QueueWork
from diskq.keywords import QueueKeywords, QueueWorkKeywords
from diskq.options import Durability, QueueOptions, QueueWorkOptions, chosen_options
from diskq.storage.callbacks import check_plain
from diskq.storage.fs import AnyPath, FileSystem
from diskq.storage.repairs import Repair
from diskq.storage.sync_times import Durations

__all__ = ["QueueChannel", "QueueChannelStatistics", "open_queue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChannelStatistics(QueueStatistics):
    """`QueueStatistics`, and the duration of barriers and the number of waiting tasks."""

    barrier_seconds: Durations
    """How long barriers took on the disk: each is one or several syncs of files and directories."""
    tasks_waiting_send: int
    """Tasks that wait for space or for a sync."""
    tasks_waiting_receive: int
    open_handles: int


class QueueChannel(SendingHandle, Iterated[bytes], trio.abc.Channel[bytes]):
    """A channel that keeps its messages on disk, in the order in which they were sent.

    Made by `open_queue`. Any number of tasks may send and receive at once, through one handle or
    through clones; each message is received once. Every async method is a cancellation point, and a
    schedule point once per `checkpoint_slice`; if one raises `Cancelled`, nothing was sent or taken.
    """

    __slots__ = (
        "_engine",
        "_gather",
        "_passes_on",
        "_put",
        "_put_all",
        "_put_now",
        "_put_through",
        "_take",
        "_take_now",
        "_take_some",
    )

    _loop: QueueLoop

    def __init__(self, loop: QueueLoop) -> None:
        super().__init__(loop)
        self._engine = loop.engine
        self._follow(fast_path(loop.engine, loop.gathering.add))

    def _follow(self, path: FastPath) -> None:
        # Attributes of the handle itself: `send` and `receive` look up no more than they need.
        self._put, self._put_now, self._put_all = path.put, path.put_now, path.put_all
        self._put_through, self._gather = path.put_through, path.gather
        self._take, self._take_now, self._take_some = path.take, path.take_now, path.take_some
        self._passes_on = path.passes_on

    # --- sending ----------------------------------------------------------------------------------

    @enable_ki_protection
    async def send(self, body: Body, *, durability: Durability | None = None) -> None:
        """Add a message. Returns when it is as durable as `durability` (by default the options') says.

        Waits while the queue is full (`on_full="wait"`) or too much is unsynced. `Cancelled` means:
        the message is not in the queue. The wait for `synced` is not cancelled: the message is in by then.

        Raises TypeError if `body` is not bytes, MessageSizeError, FullError: the message is not in.
        Raises trio.BrokenResourceError after the disk failed: a reopen shows whether the message is in.
        Raises trio.ClosedResourceError.
        """
        # Most messages pass `_put`: one compiled call. core/commit_loop.py tells the way of a synced one: it
        # joins a batch, is written alone, or is admitted; each is tried before the next, dearer one.
        if self._needs_point():
            await self._first_point()
        number = NOT_GATHERED
        try:
            if (durability is None or durability == self._durability) and self._put(body):
                return
            is_synced = (durability or self._durability) == "synced"
            if is_synced and (number := self._gather(body)) == NOT_GATHERED and not self._is_closed:
                number = self._loop.gather(body)
            if number == NOT_GATHERED:
                await self._loop.schedule_point()
                if (durability is None or durability == self._durability) and (
                    self._put(body) or (self._passes_on and self._loop.send_simply([body]))
                ):
                    return
                if is_synced and not self._is_closed:
                    number = self._loop.gather(body)  # another task may have begun a batch
                    if number == NOT_GATHERED and self._put_through(body):
                        number = FIRST  # and the only one
        except OSError as failure:
            self._write_failed(failure)
        if number == NOT_GATHERED:
            await self._send([body], durability)
        elif number == FIRST:
            await self._loop.barrier(with_metadata=False)
        else:
            await self._sleep

    @enable_ki_protection
    async def send_many(self, messages: Iterable[Body], *, durability: Durability | None = None) -> None:
        """Add messages next to each other, in order, with one system call if one file takes them all.

        Waits and raises as `send`. All messages are checked before the first is added; `Cancelled` means
        that none is in. If the disk becomes full midway, `FullError.accepted` is the number of messages
        that are in.
        """
        batch = list(messages)
        if self._needs_point():
            await self._first_point()
        try:
            if (durability is None or durability == self._durability) and self._put_all(batch):
                return
            await self._loop.schedule_point()
            if (durability is None or durability == self._durability) and (
                self._put_all(batch) or (self._passes_on and self._loop.send_simply(batch))
            ):
                return
        except OSError as failure:
            self._write_failed(failure)
        await self._send(batch, durability)

    @enable_ki_protection
    def send_nowait(self, body: Body) -> None:
        """Add a message without waiting for space or for a sync.

        The message is in the page cache (with `durability="memory"`: in memory). Raises
        trio.WouldBlock if `send` would wait for space; otherwise as `send`.
        """
        try:
            if self._put_now(body) or (self._passes_on and self._loop.send_simply([body])):
                return
        except OSError as failure:
            self._write_failed(failure)
        self._check()
        sending = self._loop.sending([self._engine.tail.checked(body)], self._durability)
        self._doing(self._loop.deliver_now, sending)

    async def _send(self, bodies: list[Body], durability: Durability | None) -> None:
        level = self._chosen_durability(durability)
        checked = [self._engine.tail.checked(body) for body in bodies]
        await self._waiting(self._loop.deliver(self._loop.sending(checked, level)))

    # --- receiving --------------------------------------------------------------------------------

    @enable_ki_protection
    async def receive(self) -> bytes:
        """Remove and return the first message; waits for one. Receivers are served in order of arrival.

        `Cancelled` means: nothing was taken. Raises OSError if the files cannot be read (for example, with
        too many open files): nothing was taken then either.
        """
        if self._needs_point():
            await self._first_point()
        if (body := self._take()) is not None:
            return body
        await self._loop.schedule_point()
        self._loop.load_from_memory()
        if (body := self._take()) is not None:
            return body
        return (await self._receive(self._loop.take_one))[0]

    @enable_ki_protection
    async def receive_many(
        self, max_messages: int, *, max_bytes: int = MANY_BYTES, linger: float = 0.0
    ) -> list[bytes]:
        """Remove and return the first messages; waits for at least one.

        At most `max_messages` messages with at most `max_bytes` in all; one message of any size is always
        returned. It first waits up to `linger` seconds until `max_messages` are there. `Cancelled` means:
        nothing was taken.
        """
        if linger == 0 and max_messages > 0:
            if self._needs_point():
                await self._first_point()
            if (bodies := self._take_some(max_messages, max_bytes)) is not None:
                return bodies
            await self._loop.schedule_point()
            self._loop.load_from_memory()
            if (bodies := self._take_some(max_messages, max_bytes)) is not None:
                return bodies
        else:
            await self._begin()
        await self._linger(max_messages, linger)
        return await self._receive(Fetch(self._engine, max_messages, max_bytes))

    @enable_ki_protection
    def receive_nowait(self) -> bytes:
        """Do as `receive` without waiting; raises trio.WouldBlock if no message is available now."""
        if (body := self._take_now()) is not None:
            return body
        self._check()
        self._loop.check_unworked()
        bodies: list[bytes] = self._doing(self._loop.take_now, self._loop.take_one)
        return bodies[0]

    @enable_ki_protection
    async def receive_if(self, may_take: Callable[[], bool]) -> list[bytes]:
        """Return [message] if `may_take()` is true when a message is there; else [], and the message stays.

        `select` receives this way. Waits and raises as `receive`; `Cancelled` means: nothing was taken.
        """
        check_plain("may_take", may_take)
        await self._begin()
        return await self._receive(lambda: self._loop.take_one() if may_take() else [])

    @enable_ki_protection
    async def peek(self) -> bytes:
        """Return the first message without taking it; waits for one. `Cancelled` changes nothing."""
        await self._begin()
        return (await self._receive(lambda: self._engine.head.peek_many(1)))[0]

    @asynccontextmanager
    @enable_ki_protection
    async def receiving(
        self, max_messages: int, *, max_bytes: int = MANY_BYTES, linger: float = 0.0
    ) -> AsyncIterator[list[bytes]]:
        """Receive the first messages for a block: an async context manager that gives a list of them.

        The messages are as from `receive_many`. Leaving the block without an exception removes them, in one
        commit. An exception, also `Cancelled`, leaves them all at the head, to be received again. Other
        receivers wait meanwhile.
        """
        await self._begin()
        await self._linger(max_messages, linger)
        bodies = await self._receive(lambda: self._loop.lease(max_messages, max_bytes))
        done = 0
        try:
            yield bodies
            done = len(bodies)
        finally:
            self._release(done)

    @asynccontextmanager
    @enable_ki_protection
    async def working(
        self,
        *,
        exhausted: Exhausted | None = None,
        options: QueueWorkOptions | None = None,
        **changes: Unpack[QueueWorkKeywords],
    ) -> AsyncIterator[QueueWorkChannel]:
        """Let several tasks take messages and acknowledge them in any order: gives a `QueueWorkChannel`.

        Options may be given as a `QueueWorkOptions`, or one by one. `exhausted` is called with the lease of a
        message that was handed out `max_attempts` times and not acknowledged; when it returns, the message is
        acknowledged. Leaving the block, also by `Cancelled`, puts the messages in flight back at the head, as
        if they had not been handed out.

        Other receivers get trio.BusyResourceError meanwhile; it is also raised here if another task already
        receives. Raises ValueError with `memory_size`: a message in memory has no position in the files.

        Options (`QueueWorkOptions`). Sizes in bytes.

        - `max_in_flight=1000`: Up to this many messages are leased and not yet acknowledged; then workers
          wait for the next one.
        - `max_attempts=None`: After this many attempts a message is not delivered again, but given to
          `exhausted`; without an `exhausted`, and with None, it is delivered again without limit.
        - `max_ahead=100_000`: Up to this many messages after the oldest unacknowledged one are read,
          acknowledged or not.
        - `max_ahead_bytes=64 * 1024 * 1024`: The same in bytes, plus one message: the most that is held in
          memory.
        """
        await self._begin()
        chosen = chosen_options(QueueChannel.working, options, QueueWorkOptions, changes)
        engine = self._loop.begin_work(lambda queue: QueueWork(queue, options=chosen, exhausted=exhausted))
        work = QueueWorkChannel(self._loop, engine)
        try:
            yield work
        finally:
            work.close()

    def _release(self, count: int) -> None:
        if self._loop.is_closing:
            if count:
                raise trio.ClosedResourceError("the queue was closed, and keeps the messages of this block")
            return
        self._doing(self._loop.release, count)

    async def _receive(self, want: Any) -> list[bytes]:
        self._check()
        self._loop.check_unworked()
        return await self._waiting(self._loop.take(want))

    async def _linger(self, max_messages: int, linger: float) -> None:
        if max_messages < 1:
            raise ValueError(f"max_messages is at least 1, got {max_messages}")
        if linger:
            await self.peek()
            self._check()
            await self._waiting(self._loop.linger(max_messages, linger))

    # --- the queue as a whole ---------------------------------------------------------------------

    @enable_ki_protection
    async def clear(self) -> None:
        """Remove all messages. Durable when this returns; `Cancelled` means: nothing was removed."""
        await self._begin()
        await self._waiting(self._loop.clear())

    @enable_ki_protection
    async def sync(self) -> None:
        """Return when all messages sent, all receives, and the metadata are on stable storage.

        `Cancelled` is raised only before the sync begins, and changes nothing.
        """
        await self._begin()
        await self._loop.sync()

    @enable_ki_protection
    def empty(self) -> bool:
        """True if the queue has no message, as `queue.Queue.empty` has it; `clear` removes them.

        Messages in the hands of a `receiving` or `working` block are still in the queue. Reads ahead to find
        out, and so is right where `depth` is not yet, after damage. Raises OSError if the files cannot be
        read, trio.ClosedResourceError, trio.BrokenResourceError.
        """
        self._check()
        return self._doing(self._engine.head.is_empty)

    @property
    def depth(self) -> int:
        """The number of messages that can be received."""
        return self._engine.head.depth

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """The damage found in the files, at the open and since, and what was done about it."""
        return self._engine.repairs

    def statistics(self) -> QueueChannelStatistics:
        """Return figures of the queue as it is now. Cheap; may be called from any thread."""
        return self._engine.statistics_as(
            QueueChannelStatistics,
            barrier_seconds=self._loop.barrier_seconds,
            tasks_waiting_send=self._loop.tasks_waiting_send,
            tasks_waiting_receive=self._loop.tasks_waiting_receive,
            open_handles=self._loop.open_handles,
        )

    def close(self) -> None:
        """Close this handle, and wake the tasks that wait on it with ClosedResourceError. Idempotent.

        The queue itself stays open until its `open_queue` block is left.
        """
        super().close()

    def _shut(self) -> None:
        super()._shut()
        self._follow(CLOSED)


class open_queue(OpeningEngine[QueueChannel, Queue]):  # noqa: N801 (it is used as a function)
    """Open the queue at `path`: an async context manager that gives a `QueueChannel`.

    The last part of the path is the queue's name; or the path is of its directory, and `name` is given:
    `open_queue("data/events")`, `open_queue("data", "events")`. A missing queue is made, empty, and so is its
    directory; `create=False`: a missing queue is a NotFoundError, and nothing is made. Options may be given
    as a `QueueOptions`, or one by one: `open_queue("data/events", durability="synced")`.

    Leaving the block syncs everything and closes the files, also when the block was cancelled.
    Entering it raises LockedError if another process still has the queue after `wait` seconds, QueueNameError
    and OSError;
    leaving it raises trio.BrokenResourceError if the queue's storage failed, and DiskFullError if there
    was no space for `memory` messages until the end. An exception of the block itself is raised instead.

    Options (`QueueOptions`). Sizes in bytes, durations in seconds. No option is part of the format: a queue
    may be reopened with other options at any time.

    - `sync_every=2500`: Sync after this many messages were written, consumed, or (of one partition)
      committed; in a priority store, after this many commands. 1: each time. (nsqd's default.)
    - `sync_timeout=2.0`: Sync this many seconds after the first unsynced message, commit or command at the
      latest (nsqd's default).
    - `checkpoint_slice=100e-6`: A task whose calls never have to wait yields to others after this many
      seconds; 0: in every call.
    - `durability="written"`: What a call that writes (`send`, `put`, `append`, `ack` of a priority store)
      waits for: the process's memory, the page cache, or the disk.
    - `max_unsynced=64 * 1024 * 1024`: Senders wait while this many bytes are not synced. A channel begins a
      sync at half of it.
    - `memory_flush=0.01`: `memory` messages are written to the page cache after this many seconds at the
      latest; in a queue only if it has no `memory_size`.
    - `sync_to="log"`: Where `synced` messages are on stable storage when the call returns: in the redo `log`,
      by one sync, and in their files by the sync policy; or in their `files`, by two. After a power cut
      another program finds what is in the log alone only after diskq has opened the store.
    - `redo_log_size=4 * 1024 * 1024`: The redo log grows up to this size; it begins with 64 KiB.
    - `segment_size=100 * 1024 * 1024`: The queue starts a new file before the current one would grow past
      this (nsqd's default).
    - `min_message_size=0`: Smaller messages are refused; set 1 to forbid empty ones.
    - `max_message_size=16 * 1024 * 1024`: Larger messages are refused. Larger ones that are already in the
      files are delivered.
    - `max_bytes=None`: The queue's bound on disk, checksums and its logs included. None: only the disk's size
      bounds it.
    - `on_full="wait"`: At the bound: let senders wait, refuse (`FullError`), or drop the oldest file.
    - `budget=None`: A `DiskBudget`: a bound that this queue shares with others, in addition to its own.
    - `memory_size=0`: With `durability="memory"`: up to this many bytes of messages stay in memory, and those
      received while they are there are never written. 0: `memory` messages are written soon.
    - `strict=False`: Raise `CorruptionError` at damage, at open and when reading, instead of reporting it and
      going on.
    """

    def __init__(
        self,
        path: AnyPath,
        name: str | None = None,
        *,
        create: bool = True,
        wait: float = 0.0,
        options: QueueOptions | None = None,
        fs: FileSystem | None = None,
        **changes: Unpack[QueueKeywords],
    ) -> None:
        checked = chosen_options(open_queue, options, QueueOptions, changes)
        engine = partial(_open_engine, path, name, create, checked)  # without keywords: they would be kept
        super().__init__(engine, checked.checkpoint_slice, fs, wait)

    def _handle_on(self, engine: Queue) -> tuple[QueueLoop, QueueChannel]:
        loop = QueueLoop(
            engine.steps, SyncExecutor(self._fs, engine.steps.log.path, engine.steps.status_path)
        )
        return loop, QueueChannel(loop)


def _open_engine(
    path: AnyPath, name: str | None, create: bool, options: QueueOptions, **opened_with: Any
) -> Queue:
    uses_wal = options.checkpoint_slice > 0 and not options.memory_size
    return Queue(path, name, create=create, options=options, uses_wal=uses_wal, **opened_with)
