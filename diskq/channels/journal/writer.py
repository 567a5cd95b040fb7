# The writing side of a journal as a Trio channel.
#
# Handles on one `JournalLoop`. `send` tries the compiled fast path first; the rest is in core/sender.py and
# in the loop (core/sending_loop.py): a journal writes only checksums after a record.

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from trio.lowlevel import enable_ki_protection

from diskq.channels.core.gathering import FIRST
from diskq.channels.core.handle import chosen_durability
from diskq.channels.core.notifier import Notifier, notifier_of
from diskq.channels.core.opening import OpeningEngine
from diskq.channels.core.receiving import End
from diskq.channels.core.sender import Sender, SenderStatistics
from diskq.channels.core.sender_line import Sending
from diskq.channels.core.sending_loop import GatheredRecords, LogAppends, SendingLoop
from diskq.channels.core.sync_executor import SyncExecutor
from diskq.channels.journal.scanner import open_scanner
from diskq.engine.journal.journal import Item, Journal, Key, Value, When
from diskq.engine.journal.segment import JournalSegment
from diskq.engine.journal.starts import JournalStart
from diskq.engine.journal.steps import JournalSteps
from diskq.engine.log.engine import Admission, Mode
from diskq.keywords import JournalKeywords, JournalScannerKeywords
from diskq.options import Durability, JournalOptions, JournalScannerOptions, chosen_options
from diskq.storage.fs import AnyPath, FileSystem

__all__ = ["JournalWriter", "JournalWriterStatistics", "open_journal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalWriterStatistics(SenderStatistics):
    """Figures of a journal's writer at one moment. `sent`, `written_bytes`, barriers are since the open."""

    next_offset: int
    """The offset that the next message gets."""
    synced_offset: int
    """All messages before this one are on stable storage."""


class GatheredJournalMessages(GatheredRecords[int]):
    """Messages of a journal that wait to be written. Each gets an offset."""

    __slots__ = ("_engine",)

    def __init__(self, engine: JournalSteps) -> None:
        super().__init__(engine.buffer.room, engine.buffer)
        self._engine = engine

    def _append_all(self) -> None:
        first = self._engine.next_offset
        try:
            self._engine.accept_many(self.messages, is_held=False)
        finally:
            offsets = range(first, self._engine.next_offset)
            self.places = [*offsets, *[None] * (len(self.messages) - len(offsets))]

    def _append_one(self, number: int) -> int:
        key, value, timestamp, type = self.messages[number]
        return self._engine.accept(value, key, timestamp, type, is_held=False)


class JournalAppends(LogAppends[int]):
    """How a journal's loop appends."""

    def __init__(self, engine: JournalSteps) -> None:
        self._engine = engine
        self.fast = engine.buffer

    def new_batch(self) -> GatheredJournalMessages:
        return GatheredJournalMessages(self._engine)

    def write_rest(self) -> None:
        self.fast.flush()
        self.fast.is_awake = False  # from here on the loop need not write what is staged

    def live(self, partition: int) -> JournalSegment:
        return self._engine.live


class JournalLoop(SendingLoop[JournalSteps, int]):
    """One journal open for writing."""

    kind = "journal"
    subject = "journal"

    def __init__(
        self, engine: JournalSteps, executor: SyncExecutor, notifier: Notifier, fs: FileSystem
    ) -> None:
        super().__init__(engine, executor, notifier, fs, JournalAppends(engine))

    def _obstacle(self, sending: Sending) -> bool:
        if self.engine.obstacle(sending.size) is None:
            return False
        self._ask_for_barrier()  # it frees space
        return True


class JournalWriter(Sender[int]):
    """Sends messages to a journal. They get offsets in the order in which they are sent.

    Made by `open_journal`. Any number of tasks may send at once, through one handle or through
    clones. Every async method is a cancellation point, and a schedule point once per
    `checkpoint_slice`; if one raises `Cancelled`, nothing was sent.
    """

    _loop: JournalLoop

    def __init__(self, loop: JournalLoop) -> None:
        buffer = loop.engine.buffer
        timed = buffer.appender(Mode.STAGED, Admission.TIMED)
        super().__init__(loop, timed.append, buffer.appender(Mode.STAGED, Admission.COUNTED).append)
        self._engine = loop.engine

    # --- sending ----------------------------------------------------------------------------------

    @enable_ki_protection
    async def send(
        self,
        value: Value,
        key: Key = None,
        timestamp: When = None,
        type: int = 0,
        *,
        durability: Durability | None = None,
    ) -> int:
        """Add a message, and return its offset when it is as durable as `durability` says.

        `key` is a str or bytes, of 127 bytes at most. `timestamp` is an aware datetime or nanoseconds since
        the Unix epoch, by default now; with NULL_TIMESTAMP the message has none. `type` is a number of 0 to
        255. `durability` is by default the options'.

        Waits while too much is unsynced. `Cancelled` means: the message is not in the journal. The wait for
        `synced` is not cancelled: the message is in by then.

        Raises TypeError, ValueError (a naive datetime), MessageSizeError, KeySizeError, FullError:
        the message is not in. Raises trio.BrokenResourceError after the disk failed: a reopen shows whether
        the message is in. Raises trio.ClosedResourceError.
        """
        if self._needs_point():
            await self._first_point()
        if durability is None or durability == self._durability:
            try:
                if (offset := self._put(value, key, timestamp, type)) is not None:
                    if self._readers:
                        self._loop.notify_readers(0)
                    return offset
            except OSError as failure:
                self._write_failed(failure)
        if (durability or self._durability) == "synced" and (
            number := self._gather(value, key, timestamp, type)
        ) > FIRST:
            batch = self._gathering.batch
            await self._sleep  # it is woken with the first sender of the batch
            return batch.places[number]  # type: ignore[no-any-return]
        return await self._send((value, key, timestamp, type), durability)

    def _checked(self, message: tuple[Any, ...], level: Durability) -> tuple[int, Callable[[], int]]:
        checked = self._engine.checked(*message)
        return len(checked[0]), partial(self._engine.accept, *checked, is_held=level == "memory")

    @enable_ki_protection
    async def send_many(self, messages: Iterable[Item], *, durability: Durability | None = None) -> range:
        """Add messages in order, with few system calls. Returns their offsets.

        Each is a value, (key, value), (key, value, timestamp) or (key, value, timestamp, type). Waits and
        raises as `send`. All messages are checked before the first is added; `Cancelled` means that none is
        in. If the disk becomes full midway, `FullError.accepted` is the number of messages that are in.
        """
        await self._begin()
        level = chosen_durability(durability, self._durability)
        batch = self._engine.checked_many(messages)
        put_in = partial(self._engine.accept_many, batch, is_held=level == "memory")
        return await self._deliver(self._engine.buffer.size_of(batch), put_in, level)

    @enable_ki_protection
    def send_nowait(self, value: Value, key: Key = None, timestamp: When = None, type: int = 0) -> int:
        """Add a message without waiting for space or for a sync. Returns its offset.

        The message is in the page cache (with `durability="memory"`: in memory). Raises trio.WouldBlock if
        `send` would wait for space; otherwise as `send`.
        """
        return self._send_now((value, key, timestamp, type))

    # --- the journal as a whole -------------------------------------------------------------------

    def open_scanner(
        self,
        start: JournalStart = "oldest",
        end: End = "wait",
        *,
        reader: str | None = None,
        options: JournalScannerOptions | None = None,
        **changes: Unpack[JournalScannerKeywords],
    ) -> open_scanner:
        """Open a scanner of this journal, as `open_scanner`; this writer notifies it without the files.

        Options (`JournalScannerOptions`). Durations in seconds.

        - `sync_every=2500`: Sync after this many messages were written, consumed, or (of one partition)
          committed; in a priority store, after this many commands. 1: each time. (nsqd's default.)
        - `sync_timeout=2.0`: Sync this many seconds after the first unsynced message, commit or command at
          the latest (nsqd's default).
        - `checkpoint_slice=100e-6`: A task whose calls never have to wait yields to others after this many
          seconds; 0: in every call.
        - `autocommit=False`: A named reader: the next receive, and the end of the block, commit what was
          received before.
        """
        checked = chosen_options(JournalWriter.open_scanner, options, JournalScannerOptions, changes)
        return open_scanner(
            self._engine.path, start=start, end=end, reader=reader, options=checked, fs=self._loop.fs
        )

    @property
    def next_offset(self) -> int:
        """The offset that the next message gets."""
        return self._engine.next_offset

    def statistics(self) -> JournalWriterStatistics:
        """Return figures of the writer as it is now. Cheap; may be called from any thread."""
        engine = self._engine
        return self._statistics_as(
            JournalWriterStatistics, next_offset=engine.next_offset, synced_offset=engine.synced_offset
        )


class open_journal(OpeningEngine[JournalWriter, Journal]):  # noqa: N801 (it is used as a function)
    """Open the journal at `path` for writing: an async context manager that gives a `JournalWriter`.

    The directory and the journal are made if they do not exist (`create=False`: that is a NotFoundError); an
    existing journal, also one of sej, is continued. Options may be given as a `JournalOptions`, or one by
    one: `open_journal(path, segment_size=MIB)`.

    Leaving the block syncs everything and closes the files, also when the block was cancelled. Entering it
    raises LockedError if another writer, of diskq or sej, still has the journal after `wait` seconds;
    DiskFullError, OSError, and CorruptionError if `strict`. Leaving it raises trio.BrokenResourceError if the
    storage failed, and DiskFullError if there was no space for `memory` messages until the end. An exception
    of the block itself is raised instead.

    Options (`JournalOptions`). Sizes in bytes, durations in seconds. No option is part of the format: a
    journal may be reopened with other options at any time.

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
    - `segment_size=1024 * 1024 * 1024`: A new file starts after the message with which the current one
      reaches this size (sej's default).
    - `min_message_size=0`: Smaller values are refused.
    - `max_message_size=16 * 1024 * 1024`: Larger values are refused. Larger ones that are already in the
      files are delivered.
    - `max_key_size=127`: Longer keys are refused; the format allows up to 127 bytes.
    - `strict=False`: Raise `CorruptionError` at damage, at open, instead of reporting it and going on.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        create: bool = True,
        wait: float = 0.0,
        options: JournalOptions | None = None,
        fs: FileSystem | None = None,
        **changes: Unpack[JournalKeywords],
    ) -> None:
        checked = chosen_options(open_journal, options, JournalOptions, changes)
        time_slice = checked.checkpoint_slice
        super().__init__(
            partial(Journal, path, create=create, options=checked, uses_wal=time_slice > 0),
            time_slice,
            fs,
            wait,
        )

    def _handle_on(self, engine: Journal) -> tuple[JournalLoop, JournalWriter]:
        notifier = notifier_of(self._fs, engine.path)  # before there is a thread: it may fail
        executor = SyncExecutor(self._fs, engine.path, engine.files.status)
        loop = JournalLoop(engine.steps, executor, notifier, self._fs)
        return loop, JournalWriter(loop)
