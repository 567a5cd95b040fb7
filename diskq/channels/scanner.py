# The reading side of journals as a Trio channel.
#
# How messages are taken is receiving.py's, and who is waited for the tail's. A named reader's commits are
# its loop's. Nothing is made in a journal by who only reads.

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.barrierthread import BarrierThread
from diskq.channels.markerloop import MarkerLoop
from diskq.channels.neighbours import neighbours_of
from diskq.channels.opening import Opening
from diskq.channels.receiving import End, TailReceiver, checked_end
from diskq.channels.tail import Part, Tail
from diskq.engine.journalreader import JournalReader
from diskq.engine.journalstarts import JournalStart, checked_journal_start, open_reader, seek_start
from diskq.engine.readeroffsets import ReaderOffsets
from diskq.errors import OffsetOutOfRangeError, StorageFailedError
from diskq.messages import JournalMessage
from diskq.options import ScannerOptions
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem
from diskq.storage.recovery import Repair

__all__ = ["End", "JournalScanner", "ScannerLoop", "ScannerStatistics", "limit_of", "open_scanner", "part_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannerStatistics:
    """A scanner at one moment."""

    position: int
    """The offset of the message that comes next."""
    lag: int | None
    """Messages that are there and were not received yet: now, where the writer is in this run of Trio;
    else at the last `look`. None: nobody has looked."""
    committed: int | None
    """The offset that the named reader has committed to read next; None: none, or it has no name."""
    lost: int
    """Messages known to be lost to damage since the open: `losses` tells where."""
    tasks_waiting_receive: int


class ScannerLoop(MarkerLoop[ReaderOffsets]):
    """A named reader's offsets, and the task that syncs them."""

    kind = "reader"
    subject = "offsets"


class Scanner(TailReceiver[JournalMessage]):
    """Receives messages of journals: what one of one journal and one of shards have in common."""

    _told = "this scanner was closed"

    def __init__(self, tail: Tail, options: ScannerOptions, loop: ScannerLoop | None) -> None:
        self._loop = loop
        super().__init__(tail, autocommit=options.autocommit)

    # --- a named reader's place -------------------------------------------------------------------

    @enable_ki_protection
    async def commit(self, *processed: JournalMessage) -> None:
        """All messages up to these, each in its journal, are processed by the named reader.

        With no argument: all that was received. It goes forward only. Durable within `sync_timeout`, when
        the block is left, or with `sync`. Raises ValueError where the reader has no name;
        trio.BrokenResourceError after the disk failed.
        """
        await self._begin()
        if not processed:
            self._commit_batch(self._tail.parts.values())
        for one in processed:
            self._move(one.partition, one.offset + 1)

    @enable_ki_protection
    async def sync(self) -> None:
        """Return when all commits are on the platter. Raises as `commit`, and DiskFullError."""
        await self._begin()
        await self._named().barrier(with_metadata=True)

    def _commit_received(self) -> None:
        self._commit_batch(self._unprocessed)
        self._unprocessed.clear()

    def _commit_batch(self, parts: Iterable[Part]) -> None:
        self._named()
        for part in parts:
            self._move(part.index, part.position)

    def _commit_block(self, parts: Iterable[Part]) -> None:
        if self._loop is not None:
            self._check()
            self._commit_batch(parts)

    def _check_commits(self) -> None:
        if self._loop is not None:
            self._loop.check()

    def _move(self, number: int, offset: int, *, seek: bool = False) -> None:
        loop = self._named()
        marker = loop.engine.marker(number)
        if marker is None:
            raise ValueError(f"journal {number} is not one that this scanner reads")
        try:
            loop.move(marker, offset, seek=seek)
        except StorageFailedError as failure:
            loop.broke(failure)

    def _named(self) -> ScannerLoop:
        if self._loop is None:
            raise ValueError("this scanner has no name: open it with reader=...")
        return self._loop

    # --- going elsewhere --------------------------------------------------------------------------

    async def _seek(self, parts: Iterable[Part], start: JournalStart) -> None:
        await self._begin()
        checked_journal_start(start)
        for part in list(parts):
            reader = part.reader
            assert isinstance(reader, JournalReader)
            while True:
                offset = await trio.to_thread.run_sync(_offset_of, reader.another(), start)
                self._check()
                try:
                    reader.seek(offset)
                except OffsetOutOfRangeError:
                    if isinstance(start, int):
                        raise
                    continue  # segments were removed meanwhile: what was meant is further on now
                break
            self._tail.moved(part)
            self._unprocessed.discard(part)
            if self._loop is not None:
                self._move(part.index, offset, seek=True)
        self._tail.look()

    def _statistics_of(self, part: Part) -> ScannerStatistics:
        marker = self._loop.engine.marker(part.index) if self._loop is not None else None
        return ScannerStatistics(
            position=part.position,
            lag=part.lag,
            committed=marker.committed if marker is not None else None,
            lost=part.lost,
            tasks_waiting_receive=self._tail.tasks_waiting_receive,
        )

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """What was found wrong with the named reader's offsets at the open."""
        return () if self._loop is None else self._loop.engine.repairs


class JournalScanner(Scanner):
    """Receives the messages of a journal, in the order of their offsets.

    Made by `open_scanner`, and `JournalWriter.scan`. Any number of tasks may receive at once; each message
    is handed to one of them. Every async method is a cancellation point, and a schedule point once per
    `checkpoint_slice`; where one raises `Cancelled`, nothing was received.
    """

    @property
    def _part(self) -> Part:
        return self._tail.parts[0]

    @enable_ki_protection
    async def seek(self, start: JournalStart) -> None:
        """Go on elsewhere: `start` is as `open_scanner` has it. It is a named reader's place that moves.

        Raises OffsetOutOfRangeError: nothing has moved then.
        """
        await self._seek([self._part], start)

    @property
    def position(self) -> int:
        """The offset of the message that comes next."""
        return self._part.position

    def statistics(self) -> ScannerStatistics:
        """The scanner as it is now. Cheap, and from any thread: looks at no file, see `lag`."""
        return self._statistics_of(self._part)

    def look(self) -> ScannerStatistics:
        """As `statistics`, after a look at the files, from any thread. Raises DiskqError, OSError."""
        self._part.look()
        return self.statistics()


def _offset_of(reader: JournalReader, start: JournalStart) -> int:
    with reader:
        seek_start(reader, start)
        return reader.position


# --- opening --------------------------------------------------------------------------------------


def part_of(reader: JournalReader, number: int, limit: float) -> Part:
    """The journal, as a tail has it."""
    return Part(number, reader.files.directory, reader.files.data, reader, limit)


def limit_of(reader: JournalReader, end: End) -> float:
    """The offset behind the last message that is to be delivered. Raises OSError."""
    if isinstance(end, int):
        return end + 1
    return reader.next_offset() if end == "close" else math.inf


class open_scanner(Opening[JournalScanner]):  # noqa: N801 (it is used as a function)
    """Open the journal at `path` for reading: an async context manager that gives a `JournalScanner`.

    `start` is "oldest", "newest" (behind the last message there is: what comes from now on), an offset, or a
    moment (an aware datetime: the first message that is not earlier). `end` is "wait" for more, "close"
    behind what is there now, or the last offset to be delivered.

    A `reader` has a name: it goes on where it has committed, or at `start`, "oldest" or "newest", where that
    is nothing. Its offset is the file that sej keeps, and is locked: one reads under that name at a time.
    With `autocommit` what was received is committed when more is asked for.

    Options may be given as a `ScannerOptions`, or one by one. Entering the block raises JournalNotFoundError,
    OffsetOutOfRangeError for an offset that is not there, OffsetNameError, LockedError where somebody reads
    under that name, TypeError or ValueError (a naive datetime), OSError. Nothing is made but by a `reader`.
    Leaving it syncs what was committed, and raises trio.BrokenResourceError or DiskFullError where that
    fails; what the block raises goes first.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        start: JournalStart = "oldest",
        end: End = "wait",
        reader: str | None = None,
        options: ScannerOptions | None = None,
        fs: FileSystem | None = None,
        **changes: Any,
    ) -> None:
        self._path = path
        self._start = checked_journal_start(start)
        self._end = checked_end(end)
        self._reader = reader
        self._options = dataclasses.replace(options or ScannerOptions(), **changes)
        check_name(reader, start, self._options)
        self._fs = fs or OsFileSystem()

    async def _open(self) -> tuple[ScannerLoop | None, JournalScanner]:
        clock = trio.lowlevel.current_clock()
        reader, limit, offsets = await trio.to_thread.run_sync(self._open_files, clock.current_time)
        loop = None
        with contextlib.ExitStack() as opened:  # all of it goes again where a step fails
            if offsets is not None:
                opened.callback(offsets.close)
            opened.callback(reader.close)
            tail = Tail(
                self._fs,
                reader.gate,
                neighbours_of(self._fs, reader.path),
                "scanner",
                self._options.checkpoint_slice,
            )
            opened.callback(tail.close)
            tail.add(part_of(reader, 0, limit))
            tail.is_open_ended = self._end == "wait"
            if offsets is not None:
                loop = ScannerLoop(offsets, BarrierThread(self._fs, f"reader {self._reader}"), reader.path)
            opened.pop_all()
        return loop, JournalScanner(tail, self._options, loop)

    @enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is None:
            self._handle.finish()
        await super().__aexit__(kind, value, trace)

    def _open_files(self, clock: Callable[[], float]) -> tuple[JournalReader, float, ReaderOffsets | None]:
        reader = open_reader(self._path, self._fs, self._options.checkpoint_slice)
        offsets = None
        try:
            start = self._start
            if self._reader is not None:
                offsets = ReaderOffsets(self._reader, self._options, clock)
                start = offsets.claim(0, reader.path, start == "newest", self._fs).offset
            seek_start(reader, start)
            return reader, limit_of(reader, self._end), offsets
        except BaseException:
            reader.close()
            if offsets is not None:
                offsets.close()
            raise


def check_name(reader: str | None, start: JournalStart, options: ScannerOptions) -> None:
    """Does what is asked for go together with a reader's name, or without? Raises ValueError."""
    if reader is None and options.autocommit:
        raise ValueError("autocommit is for a named reader: open it with reader=...")
    if reader is not None and start not in ("oldest", "newest"):
        raise ValueError('a named reader goes on where it was; otherwise at "oldest" or "newest"')
