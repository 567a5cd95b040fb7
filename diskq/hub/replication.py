# Copying to a hub, for ever. Law: what the hub has is asked of the hub, never remembered here; so a copy goes
# on where it is, whoever was killed, and sends nothing twice that matters.
#
# A journal is copied as it is: offset by offset, so that the copy's bytes are its own. From a queue or a
# stream messages are taken: they get offsets behind what the hub has, and are taken out, or committed, when
# the hub has synced them.

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import trio

from diskq._native.journal import codec as sej
from diskq._native.journal.codec import JournalColumns
from diskq.channels.core.retrying import Again, tries
from diskq.channels.core.watch import listen
from diskq.engine.journal.reader import JournalReader
from diskq.errors import HubError, OffsetOutOfRangeError
from diskq.hub.client import HubClient
from diskq.hub.store import Range
from diskq.messages import Message
from diskq.options import ReplicationOptions
from diskq.storage.callbacks import check_plain
from diskq.storage.closing import Closing
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path
from diskq.storage.log_events import Log

__all__ = ["Progress", "ReplicationStatistics", "Taking", "replicate"]

log = Log("hub")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationStatistics:
    """A copy at one moment."""

    messages: int = 0
    """That the hub has taken from us, and synced; what it had already is not among them."""
    bytes: int = 0
    """Of their keys and values."""
    batches: int = 0
    next_offset: int | None = None
    """What the hub expects next. None: it has not told."""
    source_next: int | None = None
    """The offset behind the last message of the journal that is copied, when it was last looked at."""
    failures: int = 0
    """In a row, to this moment."""
    last_error: str | None = None
    """What the last failure said. None: the last try was a success, or there was none."""


class Taking(Protocol):
    """A disk queue, a stream's consumer, or what hands out blocks of messages as they do."""

    def receiving(
        self, max_items: int, *, max_bytes: int, linger: float
    ) -> AbstractAsyncContextManager[list[Any]]: ...


OnProgress = Callable[[ReplicationStatistics], object]


class Progress:
    """Keeps how a copy goes, for whoever asks, in any thread: `replicate(..., on_progress=Progress())`."""

    def __init__(self) -> None:
        self._told = ReplicationStatistics()

    def __call__(self, told: ReplicationStatistics) -> None:
        self._told = told

    def statistics(self) -> ReplicationStatistics:
        """The copy as it was after its last batch, or failure. Cheap."""
        return self._told


async def replicate(
    source: AnyPath | Taking,
    client: HubClient,
    journal: str,
    *,
    follow: bool = True,
    options: ReplicationOptions | None = None,
    on_progress: OnProgress | None = None,
    fs: FileSystem | None = None,
    **changes: Any,
) -> ReplicationStatistics:
    """Copy `source` into the hub's `journal`: for ever; or, not to `follow`, until the hub has what is there.

    `source` is the directory of a journal, which another process may be writing, and is copied byte by byte;
    or an open `DiskQueue` or `StreamConsumer`, whose messages are taken: after a kill the last batch may be
    in the hub's journal twice. One at a time may copy into a journal. Options may be given as a
    `ReplicationOptions`, or one by one. `on_progress` is called after each batch, and each failure.

    While the hub is away it is tried again and again. `Cancelled` means: what the hub has is there, and the
    next call goes on behind it; nothing was taken from a queue that is not. Raises OffsetOutOfRangeError
    where the hub expects messages that were removed from the source (see `from_oldest`), HubError where the
    hub refuses for good, or has what the source does not have; JournalNotFoundError, OSError.
    """
    settings = replace(options or ReplicationOptions(), **changes)
    copy = _Copy(client, journal, settings, on_progress)
    if isinstance(source, (str, os.PathLike)):
        with JournalReader(source, fs=fs) as reader:
            await _JournalCopy(copy, reader, as_path(source), fs or OsFileSystem()).run(follow)
    else:
        await _take_all(copy, source, follow)
    return copy.told


class _Copy:
    """What is done for every source: putting, again and again, and telling how it goes."""

    def __init__(
        self, client: HubClient, journal: str, options: ReplicationOptions, on_progress: OnProgress | None
    ) -> None:
        self.client = client
        self.journal = journal
        self.options = options
        self.told = ReplicationStatistics()
        self._on_progress = None if on_progress is None else check_plain("on_progress", on_progress)
        self._complaint: str | None = None  # what was logged last

    async def put(self, columns: JournalColumns | None, begin: int | None = None) -> Range | None:
        """What the hub has when it has these. Raises HubError, that is not temporary."""
        there = await self.again(lambda: self.client.put_columns(self.journal, columns, begin=begin))
        if columns is not None:
            self._count(columns, there)
        return there

    async def again(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What the hub answers, as soon as it does. Raises HubError that is not temporary."""
        try:
            answer = await self._try(ask)
        except Again as again:  # stamina is switched off
            raise again.__cause__ or again from None
        if self._complaint is not None:
            self._complaint = None
            address, failures = self.client.address, self.told.failures
            log.report("copy_resumed", "hub %s is there again", address, peer=address, failures=failures)
        return answer

    async def _try(self, ask: Callable[[], Awaitable[T]]) -> T:
        async for attempt in tries(Again, self.options):
            with attempt:
                try:
                    return await ask()
                except HubError as failure:
                    self.tell(failures=self.told.failures + 1, last_error=str(failure))
                    if not failure.is_temporary:
                        raise
                    self._complain(str(failure))
                    raise Again from failure
        raise AssertionError("it is tried for ever")

    def _complain(self, complaint: str) -> None:
        """Log it, if it is something else than before."""
        if complaint != self._complaint:
            address = self.client.address
            log.report("copy_failed", "hub %s: %s", address, complaint, peer=address, reason=complaint)
        self._complaint = complaint

    def _count(self, columns: JournalColumns, there: Range | None) -> None:
        told = self.told
        self.tell(
            messages=told.messages + columns.records,
            bytes=told.bytes + len(columns.keys) + len(columns.values),
            batches=told.batches + 1,
            next_offset=told.next_offset if there is None else there.next,
            failures=0,
            last_error=None,
        )

    def tell(self, **changes: Any) -> None:
        self.told = replace(self.told, **changes)
        if self._on_progress is not None:
            self._on_progress(self.told)


# --- a journal, as it is --------------------------------------------------------------------------


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
                    # Somebody else has put something, or the hub has lost something: it says where it is.
                    if failure.code != "FAILED_PRECONDITION" or failure.expected is None:
                        raise

    async def _go_on(self, begin: int | None, follow: bool, changed: _Changes) -> None:
        """Copy from where the reader is. Raises HubError where the hub expects something else."""
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
            columns = reader.ahead.take_columns(options.max_items, options.max_bytes)
            if columns is None:
                continue
            if columns.first_offset != offset:
                raise HubError(
                    f"{self._path}: messages {offset} to {columns.first_offset - 1} are lost to damage, and "
                    "cannot be copied; the hub expects them",
                    expected=offset,
                )
            reader.losses.clear()
            await self._copy.put(columns, begin)
            self._copy.tell(source_next=reader.position)
            begin = None

    async def _seek(self) -> int | None:
        """Be where the hub expects us. Returns where a journal is to begin that it does not have."""
        reader, copy = self._reader, self._copy
        there = await copy.put(None)
        first, following = reader.first_offset(), reader.next_offset()
        copy.tell(next_offset=None if there is None else there.next, source_next=following)
        expected = 0 if there is None else there.next
        if expected > following:
            raise HubError(
                f"{self._path} ends at offset {following}, the hub's journal at {expected}: it is no copy of "
                "this one, or this one has lost its end",
                expected=expected,
            )
        if there is None:
            # sej's hub does not tell, and passes over what it has.
            expected = first
        is_new = there is not None and there.next == there.first
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
        """Is the hub's last message ours? Raises HubError where it is another one."""
        last = there.next - 1
        if not max(there.first, first) <= last:
            return
        copy = self._copy
        found = await copy.again(lambda: copy.client.get(copy.journal, last))
        theirs = next((message for message in found if message.offset == last), None)
        self._reader.seek(last)
        ours = self._reader.read()
        self._reader.losses.clear()
        if theirs is not None and ours is not None and ours.offset == last and theirs != ours:
            raise HubError(
                f"message {last} of {self._path} is not the hub's: its journal is no copy of this one",
                expected=there.next,
            )


class _Changes(Closing):
    """Wakes who has come to the end of a journal."""

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
        """From now on, of this segment; and what has happened before is known."""
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
    """Take messages, and let them be taken out, or committed, when the hub has them."""
    options = copy.options
    there = await copy.put(None)
    if there is None:
        raise HubError(f"{copy.client.address} does not tell which offset it expects: it is not diskq's")
    following = there.next
    copy.tell(next_offset=following)
    while follow or not _is_empty(source):
        try:
            async with source.receiving(
                options.max_items, max_bytes=options.max_bytes, linger=options.linger
            ) as messages:
                now = time.time_ns()
                data = sej.encode([_converted(message, now) for message in messages], following)
                try:
                    there = await copy.put(sej.columns(data, following))
                except HubError as failure:
                    if failure.code != "ALREADY_EXISTS":
                        raise
                    raise HubError(
                        f"somebody else puts into {copy.journal!r}: {failure.reason}",
                        code=failure.code,
                        expected=failure.expected,
                        first=failure.first,
                    ) from failure
                following += len(messages)
                if there is not None and there.next != following:
                    raise HubError(
                        f"somebody else puts into {copy.journal!r}: it is at offset {there.next}, "
                        f"not at {following}",
                        expected=there.next,
                    )
        except trio.EndOfChannel:
            return


def _is_empty(source: Taking) -> bool:
    """Is there nothing to be received now? A stream's consumer tells by its end."""
    return getattr(source, "depth", 1) == 0


def _converted(message: bytes | Message, now: int) -> tuple[bytes, int, int, bytes]:
    """As the hub's journal is to have it: a queue's messages have the time at which they are copied."""
    if isinstance(message, bytes):
        return b"", now, 0, message
    return message.key, message.timestamp_ns, 0, message.value
