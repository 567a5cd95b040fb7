# The FIFO queue: NSQ's files, read and written by one process. Law: what is handed out has left
# the queue, what is peeked at has not, and no recorded position runs ahead of synced bytes.
#
# Synchronous, and complete in itself: threads, Spark and the command line use it as it is. A Trio channel
# drives its steps (steps.py) and its log (log/writer.py), and has its syncs executed in a thread.

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Unpack

from diskq.engine.log.engine import LogEngine
from diskq.engine.log.shared_sync import SharedCall
from diskq.engine.log.sync import exclusive
from diskq.engine.queue.files import QueuePosition, directory_and_name
from diskq.engine.queue.queue_errors import QueueEmptyError, QueueFullError
from diskq.engine.queue.steps import QueueStatistics, QueueSteps
from diskq.engine.queue.tail import Body
from diskq.errors import FullError
from diskq.keywords import QueueKeywords
from diskq.options import Durability, QueueOptions, chosen_options
from diskq.storage.fs import AnyPath, FileSystem
from diskq.storage.lock import checked_wait
from diskq.storage.numbers import UNBOUNDED

__all__ = ["Body", "Queue", "QueueStatistics"]


class Queue(LogEngine):
    """Messages in the order in which they were put, in NSQ's files.

    Threads may share it: a call waits while another thread is inside one. Calls that belong together, as
    `peek` and `advance`, need a lock of the caller.
    Reading is at least once: the read position is durable with the next sync, so a crash may deliver again,
    and never skips. What is on the write-ahead log at the end, and does not fit on the disk, is written by
    the next open.
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
        clock: Callable[[], float] | None = None,
        time_slice: float | None = None,
        uses_wal: bool = False,
        never_empty: bool = False,
        **changes: Unpack[QueueKeywords],
    ) -> None:
        """Open the queue at `path`, whose last part is its name; or the queue `name` in the directory `path`.

        A missing queue is made, empty, and so is its directory, with its parents. `create=False`: a missing
        queue is a NotFoundError, and nothing is made.

        Returns when the queue is whole and its metadata durable; `repairs` lists what was repaired.
        `clock` (seconds, monotonic) is the sync policy's, by default the file system's; `time_slice`
        (seconds) shuts the fast paths periodically, and without it they shut when a sync is due; with
        `uses_wal` messages may be staged, to be written by `flush` soon after: all for a channel.
        `never_empty`: no message is empty, so zeros after the last one are not messages.

        `wait`: seconds for which the lock is tried while another process has it.

        Raises QueueNameError, NotFoundError, LockedError if another process has it, DiskFullError, OSError,
        and CorruptionError if `options.strict`.

        Options (`QueueOptions`). Sizes in bytes, durations in seconds. No option is part of the format: a
        queue may be reopened with other options at any time.

        - `sync_every=2500`: Sync after this many messages were written, consumed, or (of one partition)
          committed; in a priority store, after this many commands. 1: each time. (nsqd's default.)
        - `sync_timeout=2.0`: Sync this many seconds after the first unsynced message, commit or command at
          the latest (nsqd's default).
        - `checkpoint_slice=100e-6`: A task whose calls never have to wait yields to others after this many
          seconds; 0: in every call.
        - `durability="written"`: What a call that writes (`send`, `put`, `append`, `ack` of a priority store)
          waits for: the process's memory, the page cache, or the disk.
        - `max_unsynced=64 * 1024 * 1024`: Senders wait while this many bytes are not synced. A channel begins
          a sync at half of it.
        - `memory_flush=0.01`: `memory` messages are written to the page cache after this many seconds at the
          latest; in a queue only if it has no `memory_size`.
        - `sync_to="log"`: Where `synced` messages are on stable storage when the call returns: in the redo
          `log`, by one sync, and in their files by the sync policy; or in their `files`, by two. After a
          power cut another program finds what is in the log alone only after diskq has opened the store.
        - `redo_log_size=4 * 1024 * 1024`: The redo log grows up to this size; it begins with 64 KiB.
        - `segment_size=100 * 1024 * 1024`: The queue starts a new file before the current one would grow past
          this (nsqd's default).
        - `min_message_size=0`: Smaller messages are refused; set 1 to forbid empty ones.
        - `max_message_size=16 * 1024 * 1024`: Larger messages are refused. Larger ones that are already in
          the files are delivered.
        - `max_bytes=None`: The queue's bound on disk, checksums and its logs included. None: only the disk's
          size bounds it.
        - `on_full="wait"`: At the bound: let senders wait, refuse (`FullError`), or drop the oldest file.
        - `budget=None`: A `DiskBudget`: a bound that this queue shares with others, in addition to its own.
        - `memory_size=0`: With `durability="memory"`: up to this many bytes of messages stay in memory, and
          those received while they are there are never written. 0: `memory` messages are written soon.
        - `strict=False`: Raise `CorruptionError` at damage, at open and when reading, instead of reporting it
          and going on.
        """
        checked = chosen_options(Queue, options, QueueOptions, changes)
        directory, name = directory_and_name(path, name)
        self.steps: QueueSteps = QueueSteps(
            directory, name, checked, fs, clock, time_slice, uses_wal, never_empty
        )
        super().__init__(self.steps)
        self.options: QueueOptions = self.steps.options
        self.name = name
        # The fast paths: gets, and puts of this durability, which are written at once if no flush follows.
        has_tier = self.steps.has_tier
        self._simple_word: Durability = "memory" if has_tier else "written"
        self._put_simply = self.steps.tail.appender("memory" if has_tier else "synced").append
        self._get_simply = self.steps.tier.take if has_tier else self.steps.ahead.take
        self.log.patience = checked_wait(wait)
        with self.log.opening():
            self.steps.open(creates=create)

    def delete(self) -> None:
        """Close the queue and remove its files, but for the lock file and what was set aside as `.bad`."""
        self.steps.delete()

    # --- putting ----------------------------------------------------------------------------------

    def put(
        self,
        body: Body,
        block: bool = True,
        timeout: float | None = None,
        *,
        durability: Durability | None = None,
    ) -> None:
        """Add one message at the end.

        Returns when it is as durable as `durability` (else the options) says. At `max_bytes`, with
        `on_full="wait"`, it waits until another thread has taken messages: up to `timeout` seconds (None:
        without limit), and not at all without `block`. Raises QueueFullError, which is a `queue.Full`, if
        there is no space then, or with another `on_full`, or in a budget; TypeError, MessageSizeError and
        DiskFullError, after which the message is not in the queue; and StorageFailedError, after which it may
        or may not be.
        """
        word = durability or self.options.durability
        if block is not True:
            block = _checked_block(block)
        try:
            if word == self._simple_word and self._put_simply(body):
                if self.log.lines is not None:
                    self.log.lines.for_messages.wake()
                return
        except OSError as failure:
            with self.guard:
                self.log.append_failed(failure)
        if not self._put(body, word, may_wait=block):
            line = self.log.thread_lines.for_space
            if not line.wait(lambda: self._put(body, word, may_wait=True) or None, timeout):
                self._put(body, word, may_wait=False)  # raises what keeps it out
        if self.log.lines is not None:
            self.log.lines.for_messages.wake()

    def put_nowait(self, body: Body, *, durability: Durability | None = None) -> None:
        """Add one message as `put`, without waiting for space."""
        self.put(body, False, durability=durability)

    def _put(self, body: Body, word: Durability, *, may_wait: bool) -> bool:
        """Add one message. False: there is no space now, and it `may_wait` for some."""
        call, is_in, is_due = None, False, False
        try:
            self.guard.take()
            if word == "synced" and not self.steps.has_tier:
                try:
                    is_in = self._put_simply(body)
                except OSError as failure:
                    self.log.append_failed(failure)
            if not is_in:
                self.log.check_usable()
                body = self.steps.tail.checked(body)
                is_held = self.log.durability(word) == "memory"
                # A call within a call holds the guard: no other thread could take messages meanwhile.
                may_wait = may_wait and self._may_wait_for_space and self.guard.depth == 1
                try:
                    while self._remove_obstacle(len(body) + self.steps.tail.overhead_of(is_held), is_held):
                        pass
                except QueueFullError:
                    if may_wait:
                        return False
                    raise
                self.steps.tail.accept(body, is_held=is_held)
                is_due = self.steps.sync_if_due()
            if word == "synced" and not is_due:
                call = self.log.join_sync()
        finally:
            self.guard.give()
        self.log.end_sync(call)
        return True

    def put_many(self, messages: Iterable[Body], *, durability: Durability | None = None) -> None:
        """Add messages at the end, in order, with as few system calls as they allow.

        All are checked before the first is added. Raises as `put`, and does not wait for space;
        `FullError.accepted` is the number of messages that are in the queue all the same.
        """
        self.log.check_usable()
        batch = [self.steps.tail.checked(body) for body in messages]
        try:
            self.log.end_sync(self._put_all(batch, self.log.durability(durability)))
        finally:
            if self.log.lines is not None:
                self.log.lines.for_messages.wake(len(batch))

    @exclusive
    def _put_all(self, batch: list[bytes], word: Durability) -> SharedCall | None:
        self.log.check_usable()
        is_held = word == "memory"
        overhead = self.steps.tail.overhead_of(is_held)
        done = 0
        while done < len(batch):
            try:
                while self._remove_obstacle(len(batch[done]) + overhead, is_held):
                    pass
                done = self.steps.tail.accept_many(batch, done, is_held=is_held)
            except FullError as full:
                full.accepted += done
                raise
        if not self.steps.sync_if_due() and word == "synced":
            return self.log.join_sync()
        return None

    def _remove_obstacle(self, size: int, is_held: bool) -> bool:
        """Remove what keeps `size` bytes from being accepted. True if something was: look again.

        Raises QueueFullError if only a reader of the queue, or another member of the budget, could.
        """
        obstacle = self.steps.tail.obstacle(size, is_held=is_held)
        if obstacle == "unsynced":
            self.steps.sync_without_memory()
        elif obstacle is not None:
            full = self.steps.quota.full_error(size, obstacle)
            raise QueueFullError(full.path, full.reason)
        return obstacle is not None

    # --- getting ----------------------------------------------------------------------------------

    def get(self, block: bool = True, timeout: float | None = None) -> bytes:
        """Remove and return the first message; if there is none, wait until another thread puts one.

        Waits up to `timeout` seconds (None: without limit), and not at all without `block`. Raises
        QueueEmptyError, which is a `queue.Empty`, if there is none then, and as `get_many`.
        """
        body = self._get_simply()
        if body is None:
            body = self._get_one()
            if body is None and block:
                body = self.log.thread_lines.for_messages.wait(self._get_one, timeout)
            if body is None:
                raise QueueEmptyError(self.name)
        if self.log.lines is not None:
            self.log.lines.note_taken(1)
        return body

    def get_nowait(self) -> bytes:
        """Remove and return the first message. Raises QueueEmptyError if there is none, and as `get_many`."""
        return self.get(False)

    def _get_one(self) -> bytes | None:
        with self.guard:
            bodies = self._take(1)
            if not bodies and self.guard.depth > 1:
                raise QueueEmptyError(self.name)  # a call within a call: no other thread could put meanwhile
        return bodies[0] if bodies else None

    def get_many(self, max_messages: int, *, max_bytes: int = UNBOUNDED) -> list[bytes]:
        """Remove and return the first messages: up to `max_messages`, of up to `max_bytes` together.

        The first one may be larger. Does not wait: the list is empty if there are none. Raises OSError if the
        files cannot be read, and StorageFailedError if a due sync fails; in both cases nothing is removed.
        """
        bodies = self._take(max_messages, max_bytes)
        if self.log.lines is not None:
            self.log.lines.note_taken(len(bodies))
        return bodies

    @exclusive
    def _take(self, max_messages: int, max_bytes: int = UNBOUNDED) -> list[bytes]:
        self.log.check_usable()
        self.steps.sync_if_due()
        return self.steps.head.fetch(max_messages, max_bytes)

    def peek(self) -> bytes | None:
        """Return the first message, which stays; None if the queue is empty."""
        bodies = self.peek_many(1)
        return bodies[0] if bodies else None

    def peek_many(self, max_messages: int, *, max_bytes: int = UNBOUNDED) -> list[bytes]:
        """Return the first messages as `get_many` does, but leave them. `advance` removes them."""
        return self.steps.head.peek_many(max_messages, max_bytes)

    def advance(self, count: int) -> None:
        """Remove the first `count` messages that were peeked at. Raises ValueError for more than that."""
        self.steps.head.advance(count)
        if self.log.lines is not None:
            self.log.lines.note_taken(count)

    def clear(self) -> None:
        """Remove all messages, durably: metadata that says so first, then the files."""
        self.steps.clear()
        if self.log.lines is not None:
            self.log.lines.note_taken(len(self.log.lines.for_space))

    # --- syncing ----------------------------------------------------------------------------------

    def sync(self) -> None:
        """Return when every message accepted and the read position are on stable storage.

        Raises DiskFullError if there is no space for messages held in memory; all others are durable then.
        Raises StorageFailedError, after which only `close` is allowed.
        """
        self.steps.share_sync()

    # --- where it is ------------------------------------------------------------------------------

    def qsize(self) -> int:
        """Return the number of messages that can be taken, as `depth`."""
        return self.steps.head.depth

    def __len__(self) -> int:
        return self.steps.head.depth

    def __bool__(self) -> bool:
        return True  # an open queue is not nothing, however many messages it has

    def full(self) -> bool:
        """True if not even the smallest message fits into `max_bytes` before others are taken.

        A budget is not asked.
        """
        return self.steps.quota.is_full(self.options.min_message_size + self.steps.overhead)

    def empty(self) -> bool:
        """True if the queue has no message, as `queue.Queue.empty` has it; `clear` removes them.

        Reads ahead to find out, and so is right where `depth` is not yet, after damage. Messages that work
        has handed out and that are not acknowledged count. Raises as `get_many`.
        """
        return self.steps.head.is_empty()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the queue has no message, also none that work has handed out and is not acknowledged.

        False if it has some after `timeout` seconds (None: without limit). What `get` returned has left the
        queue: for messages that count until they are done use `QueueWork`. Raises as `get_many`.
        """
        return bool(self.log.thread_lines.for_end.wait(lambda: self.empty() or None, timeout))

    @property
    def head(self) -> QueuePosition:
        """The place after the last message that has left the queue."""
        return self.steps.head.position

    @property
    def tail(self) -> QueuePosition:
        """The place after the last message that was accepted."""
        return self.steps.tail.position

    @property
    def depth(self) -> int:
        """The number of messages that can be taken."""
        return self.steps.head.depth

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of data and checksums. Consumed files count until a sync has removed them."""
        return self.steps.quota.on_disk

    @property
    def _may_wait_for_space(self) -> bool:
        return self.options.on_full == "wait" and self.options.budget is None

    def statistics(self) -> QueueStatistics:
        return self.steps.statistics_as(QueueStatistics)


def _checked_block(block: bool) -> bool:
    """Raises TypeError for what is no bool: `put(body, "synced")` would not be synced."""
    if not isinstance(block, bool | int):
        raise TypeError(f"block is a bool, got {block!r}; durability is a keyword")
    return bool(block)
