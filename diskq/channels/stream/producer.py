# The writing side of a stream as a Trio channel.
#
# Handles on one `StreamLoop`. `send` tries the compiled fast path first; the rest is in core/sender.py.

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from trio.lowlevel import enable_ki_protection

from diskq.channels.core.gathering import FIRST
from diskq.channels.core.handle import chosen_durability
from diskq.channels.core.notifier import notifier_of
from diskq.channels.core.opening import OpeningEngine
from diskq.channels.core.sender import Sender, SenderStatistics
from diskq.channels.core.sync_executor import SyncExecutor
from diskq.channels.stream.loop import StreamLoop
from diskq.engine.log.engine import Admission, Mode
from diskq.engine.stream.retention import RetentionReport
from diskq.engine.stream.stream import Item, Key, Stream, Value, When
from diskq.keywords import StreamKeywords
from diskq.messages import Position
from diskq.options import Durability, StreamOptions, chosen_options
from diskq.storage.fs import AnyPath, FileSystem

__all__ = ["StreamProducer", "StreamProducerStatistics", "open_producer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamProducerStatistics(SenderStatistics):
    """Figures of a producer at one moment. `sent`, `written_bytes` and the barriers count since the open."""

    next_offsets: dict[int, int]
    """By partition: the offset that its next message gets."""


class StreamProducer(Sender[Position]):
    """Sends messages to a stream, each to the partition that its key belongs to.

    Made by `open_producer`. Any number of tasks may send at once, through one handle or through
    clones. Every async method is a cancellation point, and a schedule point once per
    `checkpoint_slice`; if one raises `Cancelled`, nothing was sent.
    """

    _loop: StreamLoop

    def __init__(self, loop: StreamLoop) -> None:
        router = loop.engine.router
        timed = router.appender(Mode.STAGED, Admission.TIMED)
        super().__init__(loop, timed.append, router.appender(Mode.STAGED, Admission.COUNTED).append)
        self._engine = loop.engine

    # --- sending ----------------------------------------------------------------------------------

    @enable_ki_protection
    async def send(
        self,
        value: Value,
        key: Key = None,
        timestamp: When = None,
        *,
        durability: Durability | None = None,
    ) -> Position:
        """Add a message, and return its position when it is as durable as `durability` says.

        Messages of one `key` (a str, or bytes) go to one partition, in order; a message without a key gets 32
        random hex digits, as in go-diskq. `timestamp` is an aware datetime or nanoseconds since the Unix
        epoch, by default now. `durability` is by default the options'.

        Waits while too much is unsynced, or while the budget is full (`on_full="wait"`). `Cancelled` means:
        the message is not in the stream. The wait for `synced` is not cancelled: the message is in by then.

        Raises TypeError, ValueError (a naive datetime), MessageSizeError, KeySizeError, FullError:
        the message is not in. Raises trio.BrokenResourceError after the disk failed: a reopen shows whether
        the message is in. Raises trio.ClosedResourceError.
        """
        if self._needs_point():
            await self._first_point()
        if durability is None or durability == self._durability:
            try:
                if (position := self._put(value, key, timestamp)) is not None:
                    if self._readers:
                        self._loop.notify_readers(position.partition)
                    return position
            except OSError as failure:
                self._write_failed(failure)
        if (durability or self._durability) == "synced" and (
            number := self._gather(value, key, timestamp)
        ) > FIRST:
            batch = self._gathering.batch
            await self._sleep  # it is woken with the first sender of the batch
            return batch.places[number]  # type: ignore[no-any-return]
        return await self._send((value, key, timestamp), durability)

    def _checked(self, message: tuple[Any, ...], level: Durability) -> tuple[int, Callable[[], Position]]:
        own_key, body, when = self._engine.checked(*message)
        put_in = partial(self._engine.accept, body, own_key, when, is_held=level == "memory")
        return self._engine.size_of(body, own_key), put_in

    @enable_ki_protection
    async def send_many(
        self,
        messages: Iterable[Item],
        key: Key = None,
        timestamp: When = None,
        *,
        durability: Durability | None = None,
    ) -> dict[int, range]:
        """Add messages in order, with few system calls. Returns their offsets, by partition.

        Each is a value, (key, value) or (key, value, timestamp); `key` and `timestamp` are the defaults.
        Waits and raises as `send`. All messages are checked before the first is added; `Cancelled` means that
        none is in. If the disk becomes full midway, `FullError.accepted` is the number of messages that
        are in.
        """
        await self._begin()
        level = chosen_durability(durability, self._durability)
        batch = self._engine.checked_many(messages, key, timestamp)
        put_in = partial(self._engine.accept_many, batch, key, timestamp, is_held=level == "memory")
        size = self._engine.size_of_many(batch, key)
        return await self._deliver(size, put_in, level)

    @enable_ki_protection
    def send_nowait(self, value: Value, key: Key = None, timestamp: When = None) -> Position:
        """Add a message without waiting for space or for a sync. Returns its position.

        The message is in the page cache (with `durability="memory"`: in memory). Raises
        trio.WouldBlock if `send` would wait for space; otherwise as `send`.
        """
        return self._send_now((value, key, timestamp))

    # --- the stream as a whole --------------------------------------------------------------------

    @enable_ki_protection
    async def vacuum(self) -> RetentionReport:
        """Remove the segments that the stream's retention settings do not keep. Returns which were removed.

        A thread does it, and always completes it: `Cancelled` means that it has not begun. Readers that have
        a segment open read it to its end. Raises OSError.
        """
        await self._begin()
        report = await self._loop.event_loop.run_in_thread(self._engine.remove_old)
        self._engine.forget_removed(report)
        return report

    def statistics(self) -> StreamProducerStatistics:
        """Return figures of the producer as it is now. Cheap; may be called from any thread."""
        return self._statistics_as(
            StreamProducerStatistics, next_offsets=dict(enumerate(self._engine.next_offsets))
        )


class open_producer(OpeningEngine[StreamProducer, Stream]):  # noqa: N801 (it is used as a function)
    """Open the stream at `path` for writing: an async context manager that gives a `StreamProducer`.

    The directory and the stream are made if they do not exist; `create=False`: that is a NotFoundError.
    Options may be given as a `StreamOptions`, or one by one:
    `open_producer("streams/clicks", partition_count=8)`. `take_over` opens the stream although a go-diskq
    producer left its owner file; be sure that it does not run.

    Leaving the block syncs everything and closes the files, also when the block was cancelled.
    Entering it raises LockedError if another producer still writes to the stream after `wait` seconds,
    UnsupportedFormatError, ForeignFilesError and OSError; leaving it raises trio.BrokenResourceError if the
    storage failed, and DiskFullError if there was no space for `memory` messages until the end. An exception
    of the block itself is raised instead.

    Options (`StreamOptions`). Sizes in bytes, durations in seconds. `partition_count`, `segment_size`,
    `retention_max_bytes`, `retention_max_age` and `encoding` are the stream's settings, kept in its
    settings.json; None means the value there or the default in parentheses, and is not written down. The
    others are the producer's, and may differ at each open.

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
    - `partition_count=None`: Number of partitions that are written to (3). If the stream has more, it keeps
      them.
    - `segment_size=None`: A new segment starts after the one whose data has reached this many bytes (32 MiB).
    - `segment_age=None`: A segment is complete, and a new one starts, at the latest this long after its first
      message, so that tables get it. A stream that no program has open waits for the next open. None: only by
      its size.
    - `retention_max_bytes=None`: The oldest complete segments of a partition are removed while all of them
      are larger (no bound).
    - `retention_max_age=None`: Complete segments that are older are removed (no bound).
    - `encoding=None`: How records store their lengths: `fixed` as in go-diskq's code, `varuint` as in its
      README (fixed).
    - `min_message_size=0`: Smaller values are refused; set 1 where Go programs read: they cannot read empty
      ones.
    - `max_message_size=16 * 1024 * 1024`: Larger values are refused.
    - `max_key_size=64 * 1024`: Longer keys are refused.
    - `budget=None`: A `DiskBudget`: a bound on the disk that this stream shares with others.
    - `on_full="wait"`: When the budget is used up: let senders wait, refuse (`FullError`), or drop old
      segments.
    - `age_rule="newest"`: The message of a segment that must be older than `retention_max_age`: its `newest`,
      as go-diskq promises, or its `oldest`, as go-diskq does.
    - `keep_for_groups=False`: Retention, and `on_full="drop_oldest"`, keep what the slowest consumer group
      has not committed yet.
    - `strict=False`: Raise `CorruptionError` at damage, at open, instead of reporting it and going on.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        create: bool = True,
        take_over: bool = False,
        wait: float = 0.0,
        options: StreamOptions | None = None,
        fs: FileSystem | None = None,
        **changes: Unpack[StreamKeywords],
    ) -> None:
        checked = chosen_options(open_producer, options, StreamOptions, changes)
        time_slice = checked.checkpoint_slice
        engine = partial(
            Stream, path, create=create, options=checked, take_over=take_over, uses_wal=time_slice > 0
        )
        super().__init__(engine, time_slice, fs, wait)

    def _handle_on(self, engine: Stream) -> tuple[StreamLoop, StreamProducer]:
        notifier = notifier_of(self._fs, engine.path)  # before there is a thread: it may fail
        executor = SyncExecutor(self._fs, engine.path, engine.files.status)
        loop = StreamLoop(engine.steps, executor, notifier, self._fs)
        return loop, StreamProducer(loop)
