# Continuous copying to a hub. Law: the hub's position is always asked of the hub, never kept here; so a copy
# continues at the right place after a kill of either side, and repeats at most messages that the hub skips.
#
# A journal is copied unchanged: offset by offset, so that the copy has the same bytes. From a queue or a
# stream messages are received: they get the next offsets of the hub's journal, and are removed, or committed,
# after the hub has synced them.

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, Unpack

import trio

from diskq._native.journal import codec as journal_codec
from diskq._native.journal.codec import JournalColumns
from diskq.channels.core.watch import listen
from diskq.engine.journal.reader import JournalReader
from diskq.errors import HubError, OffsetOutOfRangeError
from diskq.hub.client import HubClient
from diskq.hub.store import Range
from diskq.keywords import ReplicationKeywords
from diskq.messages import Message
from diskq.options import ReplicationOptions, chosen_options
from diskq.storage.backoff import backoff
from diskq.storage.callbacks import check_plain
from diskq.storage.closing import Closing
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path
from diskq.storage.log_events import Log

__all__ = ["Progress", "ReplicationStatistics", "Taking", "replicate"]

log = Log("hub")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationStatistics:
    """Figures of a copy at one moment."""

    delivered: int = 0
    """Messages that the hub has accepted from this copy and synced, without those that it already had."""
    delivered_bytes: int = 0
    """The bytes of their keys and values."""
    batches: int = 0
    next_offset: int | None = None
    """The offset that the hub expects next. None: it has not reported one."""
    source_next_offset: int | None = None
    """The offset after the last message of the source journal, at the last look."""
    failures: int = 0
    """Failures in a row up to now."""
    last_error: str | None = None
    """The text of the last failure. None: the last try succeeded, or there was none."""


class Taking(Protocol):
    """A disk queue, a stream's consumer, or anything with the same `receiving`."""

    def receiving(
        self, max_messages: int, *, max_bytes: int, linger: float
    ) -> AbstractAsyncContextManager[list[Any]]: ...


OnProgress = Callable[[ReplicationStatistics], object]


class Progress:
    """Keeps the latest figures of a copy, for any thread: `replicate(..., on_progress=Progress())`."""

    def __init__(self) -> None:
        self._statistics = ReplicationStatistics()

    def __call__(self, statistics: ReplicationStatistics) -> None:
        self._statistics = statistics

    def statistics(self) -> ReplicationStatistics:
        """Return the figures of the copy after its last batch or failure. Cheap."""
        return self._statistics


async def replicate(
    source: AnyPath | Taking,
    client: HubClient,
    journal: str,
    *,
    follow: bool = True,
    options: ReplicationOptions | None = None,
    on_progress: OnProgress | None = None,
    fs: FileSystem | None = None,
    **changes: Unpack[ReplicationKeywords],
) -> ReplicationStatistics:
    """Copy `source` into the hub's `journal`: without end, or, with `follow=False`, all present messages.

    `source` is the directory of a journal, which another process may be writing: it is copied byte by byte.
    Or it is an open `QueueChannel` or `StreamConsumer`, whose messages are received: after a kill the last
    batch may be in the hub's journal twice. Only one copy at a time may write to a journal. Options may be
    given as a `ReplicationOptions`, or one by one. `on_progress` is called after each batch, and each
    failure.

    While the hub is unreachable it is tried again and again. `Cancelled` means: the messages that the hub has
    accepted stay there, and the next call continues after them; a queue keeps the messages of a batch that
    was not completed. Raises OffsetOutOfRangeError if the hub expects messages that were removed from the
    source (see `from_oldest`), HubError if the hub refuses permanently, or has messages that the source does
    not have; NotFoundError, OSError.

    Options (`ReplicationOptions`). Sizes in bytes, durations in seconds.

    - `max_messages=10_000`: A batch, which the hub syncs, has at most this many messages.
    - `max_bytes=1024 * 1024`: A batch has at most this many bytes of messages; a single larger message is a
      batch of its own.
    - `backoff_initial=0.1`: The second try comes after this time; each later one waits twice as long as the
      one before.
    - `backoff_max=10.0`: No try waits longer than this.
    - `backoff_jitter=1.0`: A random time of up to this much is added, so that many processes do not retry at
      the same moment.
    - `linger=0.0`: From a queue or a stream: a batch that is not full waits this long for more messages.
    - `from_oldest=False`: Copy a journal whose oldest messages were removed from its first remaining one on,
      if the hub has nothing of it yet. Without this option that is an error, as removed messages cannot be
      copied.
    """
    settings = chosen_options(replicate, options, ReplicationOptions, changes)
    copy = _Copy(client, journal, settings, on_progress)
    if isinstance(source, (str, os.PathLike)):
        with JournalReader(source, fs=fs) as reader:
            await _JournalCopy(copy, reader, as_path(source), fs or OsFileSystem()).run(follow)
    else:
        await _take_all(copy, source, follow)
    return copy.statistics


class _Copy:
    """The common part for every source: putting, with retries, and reporting progress."""

    def __init__(
        self, client: HubClient, journal: str, options: ReplicationOptions, on_progress: OnProgress | None
    ) -> None:
        self.client = client
        self.journal = journal
        self.options = options
        self.statistics = ReplicationStatistics()
        self._on_progress = None if on_progress is None else check_plain("on_progress", on_progress)
        self._complaint: str | None = None  # what was logged last

    async def put(self, columns: JournalColumns | None, begin: int | None = None) -> Range | None:
        """Put messages, and return the range that the hub has then. Raises HubError that is not temporary."""
        there = await self.again(lambda: self.client.put_columns(self.journal, columns, first_offset=begin))
        if columns is not None:
            self._count(columns, there)
        return there

    async def again(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call `ask` until the hub answers, and return the answer. Raises HubError that is not temporary."""
        failures = 0
        while True:
            try:
                answer = await ask()
                break
            except HubError as failure:
                failures += 1
                self.report(failures=self.statistics.failures + 1, last_error=str(failure))
                if not failure.is_temporary:
                    raise
                self._complain(str(failure))
            await trio.sleep(backoff(failures, self.options))
        if self._complaint is not None:
            self._complaint = None
            address, failures = self.client.address, self.statistics.failures
            log.report("copy_resumed", "hub %s is reachable again", address, peer=address, failures=failures)
        return answer

    def _complain(self, complaint: str) -> None:
        """Log a failure if it differs from the one before."""
        if complaint != self._complaint:
            address = self.client.address
            log.report("copy_failed", "hub %s: %s", address, complaint, peer=address, reason=complaint)
        self._complaint = complaint

    def _count(self, columns: JournalColumns, there: Range | None) -> None:
        statistics = self.statistics
        self.report(
            delivered=statistics.delivered + columns.records,
            delivered_bytes=statistics.delivered_bytes + len(columns.keys) + len(columns.values),
            batches=statistics.batches + 1,
            next_offset=statistics.next_offset if there is None else there.next_offset,
            failures=0,
            last_error=None,
        )

    def report(self, **changes: Any) -> None:
        self.statistics = replace(self.statistics, **changes)
        if self._on_progress is not None:
            self._on_progress(self.statistics)


# --- a journal, unchanged -------------------------------------------------------------------------


class _JournalCopy:
    def __init__(self, copy: _Copy, reader: JournalReader, path: str, fs: FileSystem) -> None:
        self._copy = copy
        self._reader = reader
        self._path = path
        self._fs = fs

    async def run(self, follow: bool) -> None:
        with _Changes(self._fs, self._reader) as changed:
            while True:
                begin = await self._seek()
                try:
                    return await self._go_on(begin, follow, changed)
                except HubError as failure:
                    # Another copy has put messages, or the hub has lost some: it reports what it expects.
                    if failure.code != "FAILED_PRECONDITION" or failure.expected is None:
                        raise

    async def _go_on(self, begin: int | None, follow: bool, changed: _Changes) -> None:
        """Copy from the reader's position. Raises HubError if the hub expects another offset."""
        reader, options = self._reader, self._copy.options
        while True:
            await trio.lowlevel.checkpoint()
            changed.listen_to(reader.base)
            offset = reader.position
            if not reader.fill():
                if not follow:
                    return
                await changed.wait()
                continue
            columns = reader.ahead.take_columns(options.max_messages, options.max_bytes)
            if columns is None:
                continue
            if columns.first_offset != offset:
                raise HubError(
                    f"{self._path}: messages {offset} to {columns.first_offset - 1} are lost to damage and "
                    "cannot be copied; the hub expects them",
                    expected=offset,
                )
            reader.losses.clear()
            await self._copy.put(columns, begin)
            self._copy.report(source_next_offset=reader.position)
            begin = None

    async def _seek(self) -> int | None:
        """Move to the offset that the hub expects. Returns the first offset of a journal new to the hub."""
        reader, copy = self._reader, self._copy
        there = await copy.put(None)
        first, following = reader.first_offset(), reader.next_offset()
        copy.report(next_offset=None if there is None else there.next_offset, source_next_offset=following)
        expected = 0 if there is None else there.next_offset
        if expected > following:
            raise HubError(
                f"{self._path} ends at offset {following}, the hub's journal at {expected}: that journal is "
                "not a copy of this one, or this one has lost its end",
                expected=expected,
            )
        if there is None:
            # sej's hub reports no offset, and skips what it has.
            expected = first
        is_new = there is not None and there.next_offset == there.first_offset
        if expected < first and is_new and copy.options.from_oldest:
            reader.seek(first)
            return first
        if expected < first or (there is None and first and not copy.options.from_oldest):
            raise OffsetOutOfRangeError(self._path, None, 0 if there is None else expected, first, following)
        if there is not None:
            await self._compare(there, first)
        reader.seek(expected)
        return None

    async def _compare(self, there: Range, first: int) -> None:
        """Compare the hub's last message with the source's. Raises HubError if they differ."""
        last = there.next_offset - 1
        if not max(there.first_offset, first) <= last:
            return
        copy = self._copy
        found = await copy.again(lambda: copy.client.get(copy.journal, last))
        hub_message = next((message for message in found if message.offset == last), None)
        self._reader.seek(last)
        own_message = self._reader.read()
        self._reader.losses.clear()
        if (
            hub_message is not None
            and own_message is not None
            and own_message.offset == last
            and hub_message != own_message
        ):
            raise HubError(
                f"message {last} of {self._path} differs from the hub's: the hub's journal is not a copy of "
                "this one",
                expected=there.next_offset,
            )


class _Changes(Closing):
    """Wakes a copy that waits at the end of its journal."""

    def __init__(self, fs: FileSystem, reader: JournalReader) -> None:
        self._event = trio.Event()
        self._files = reader.files
        self._watched: str | None = None
        self._listener = listen(fs, self._notice)
        self._listener.add_directory(self._files.directory)

    def _notice(self, _: str | None) -> bool:
        self._event.set()
        return False

    def listen_to(self, base: int | None) -> None:
        """Watch this segment from now on, and forget earlier changes."""
        path = None if base is None else self._files.data(base)
        if path != self._watched:
            if self._watched is not None:
                self._listener.remove(self._watched)
            if path is not None:
                self._listener.add_file(path)
            self._watched = path
        self._event = trio.Event()

    async def wait(self) -> None:
        self._listener.begin_to_wait()
        try:
            await self._event.wait()
        finally:
            self._listener.end_waiting()

    def close(self) -> None:
        self._listener.close()


# --- a queue, or a stream -------------------------------------------------------------------------


async def _take_all(copy: _Copy, source: Taking, follow: bool) -> None:
    """Receive messages, and remove or commit them after the hub has synced them."""
    options = copy.options
    there = await copy.put(None)
    if there is None:
        raise HubError(f"hub {copy.client.address} does not report the next offset: it is not a diskq hub")
    following = there.next_offset
    copy.report(next_offset=following)
    while follow or not _is_empty(source):
        try:
            async with source.receiving(
                options.max_messages, max_bytes=options.max_bytes, linger=options.linger
            ) as messages:
                now = time.time_ns()
                data = journal_codec.encode([_converted(message, now) for message in messages], following)
                try:
                    there = await copy.put(journal_codec.columns(data, following))
                except HubError as failure:
                    if failure.code != "ALREADY_EXISTS":
                        raise
                    raise HubError(
                        f"another client writes to {copy.journal!r}: {failure.reason}",
                        code=failure.code,
                        expected=failure.expected,
                        first_offset=failure.first_offset,
                    ) from failure
                following += len(messages)
                if there is not None and there.next_offset != following:
                    raise HubError(
                        f"another client writes to {copy.journal!r}: it is at offset {there.next_offset}, "
                        f"not at {following}",
                        expected=there.next_offset,
                    )
        except trio.EndOfChannel:
            return


def _is_empty(source: Taking) -> bool:
    """True if a queue has no message now. A stream's consumer raises EndOfChannel instead."""
    return getattr(source, "depth", 1) == 0


def _converted(message: bytes | Message, now: int) -> tuple[bytes, int, int, bytes]:
    """Return a message's key, timestamp, type and value; a queue's message gets the time of the copy."""
    if isinstance(message, bytes):
        return b"", now, 0, message
    return message.key, message.timestamp_ns, 0, message.value
