# The reading side of journals as a Trio channel.
#
# Messages are taken in core/receiving.py, and waited for in core/tail.py. A named reader's commits are made
# in its loop. A scanner without a name makes no file in a journal.

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, Unpack

from trio.lowlevel import enable_ki_protection

from diskq.channels.core.committing import CommittingReceiver
from diskq.channels.core.notifier import notifier_of
from diskq.channels.core.offset_loop import OffsetLoop
from diskq.channels.core.receiving import End, OpeningReceiver, checked_end
from diskq.channels.core.sync_executor import SyncExecutor
from diskq.channels.core.tail import Tail, TailPart
from diskq.engine.journal.files import checked_offset_name
from diskq.engine.journal.reader import JournalReader
from diskq.engine.journal.reader_offsets import ReaderOffsets
from diskq.engine.journal.starts import JournalStart, checked_journal_start, open_reader, seek_start
from diskq.keywords import JournalScannerKeywords
from diskq.messages import JournalMessage
from diskq.options import JournalScannerOptions, chosen_options
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem
from diskq.storage.lock import checked_wait
from diskq.storage.repairs import Repair

__all__ = [
    "End",
    "JournalScanner",
    "JournalScannerStatistics",
    "OpeningScanner",
    "Scanner",
    "ScannerLoop",
    "open_scanner",
    "part_of",
]

S = TypeVar("S", bound="Scanner")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalScannerStatistics:
    """Figures of a scanner at one moment."""

    position: int
    """The offset of the next message."""
    lag: int | None
    """The number of messages not received yet: now, if the writer is in this Trio run; else at the last
    `look`. None before the first `look`."""
    committed: int | None
    """The offset that the named reader has committed to read next; None: none, or it has no name."""
    lost: int
    """Messages known to be lost to damage since the open; `losses` has the places."""
    tasks_waiting_receive: int


class ScannerLoop(OffsetLoop[ReaderOffsets]):
    """A named reader's offsets, and the task that syncs them."""

    kind = "reader"
    subject = "offsets"


class Scanner(CommittingReceiver[JournalMessage]):
    """Receives messages of journals: what the scanners of one journal and of shards have in common."""

    _closed_text = "this scanner was closed"
    _no_commits = "this scanner has no name: open it with reader=..."

    def __init__(self, tail: Tail, options: JournalScannerOptions, loop: ScannerLoop | None) -> None:
        super().__init__(tail, loop, autocommit=options.autocommit)

    def _value_to_commit(self, next_offset: int) -> int:
        return next_offset

    def _not_here(self, index: int) -> str:
        return f"journal {index} is not one that this scanner reads"

    # --- seeking ----------------------------------------------------------------------------------

    async def _seek(self, parts: Iterable[TailPart], start: JournalStart) -> None:
        await self._begin()
        checked_journal_start(start)
        for part in list(parts):
            reader = part.reader
            assert isinstance(reader, JournalReader)
            await self._go(part, start, partial(_offset_of, reader.another(), start))
        self._tail.look()

    def _statistics_of(self, part: TailPart) -> JournalScannerStatistics:
        return JournalScannerStatistics(
            position=part.position,
            lag=part.lag,
            committed=self._committed(part.index),
            lost=part.lost,
            tasks_waiting_receive=self._tail.tasks_waiting_receive,
        )

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """The damage found in the named reader's offsets at the open, and what was done about it."""
        return () if self._commits is None else self._commits.engine.repairs


class JournalScanner(Scanner):
    """Receives the messages of a journal, in the order of their offsets.

    Made by `open_scanner`, and `JournalWriter.open_scanner`. Any number of tasks may receive at once; each
    message is handed to one of them. Every async method is a cancellation point, and a schedule point once
    per `checkpoint_slice`; if one raises `Cancelled`, nothing was received.
    """

    @property
    def _part(self) -> TailPart:
        return self._tail.parts[0]

    @enable_ki_protection
    async def seek(self, start: JournalStart) -> None:
        """Continue at `start`, which is as in `open_scanner`. A named reader's committed offset moves there.

        Raises OffsetOutOfRangeError. After that, and after `Cancelled`, nothing has moved.
        """
        await self._seek([self._part], start)

    @property
    def position(self) -> int:
        """The offset of the next message."""
        return self._part.position

    def statistics(self) -> JournalScannerStatistics:
        """Return figures of the scanner. Cheap, and from any thread: looks at no file, see `lag`."""
        return self._statistics_of(self._part)

    def look(self) -> JournalScannerStatistics:
        """Look at the files, then do as `statistics`. From any thread. Raises DiskqError, OSError."""
        self._part.look()
        return self.statistics()


def _offset_of(reader: JournalReader, start: JournalStart) -> int:
    with reader:
        seek_start(reader, start)
        return reader.position


# --- opening --------------------------------------------------------------------------------------


def part_of(reader: JournalReader, number: int, limit: float) -> TailPart:
    """Return the journal as a part of a tail."""
    return TailPart(number, reader.files.directory, reader.files.data, reader, limit)


class OpeningScanner(OpeningReceiver[S]):
    """Opens a scanner of one journal, or of several."""

    def __init__(
        self,
        start: JournalStart,
        end: End,
        reader: str | None,
        options: JournalScannerOptions | None,
        fs: FileSystem | None,
        changes: JournalScannerKeywords,
        wait: float = 0.0,
    ) -> None:
        self._wait = checked_wait(wait)
        self._start = checked_journal_start(start)
        self._end = checked_end(end)
        self._reader = None if reader is None else checked_offset_name(reader)
        self._options = chosen_options(type(self), options, JournalScannerOptions, changes)
        if reader is None and self._options.autocommit:
            raise ValueError("autocommit is for a named reader: open it with reader=...")
        if reader is not None and start not in ("oldest", "newest"):
            raise ValueError('a named reader continues at its commit; its start is "oldest" or "newest"')
        self._fs = fs or OsFileSystem()
        self._offsets: ReaderOffsets | None = None

    def _open_offsets(self, clock: Callable[[], float]) -> None:
        """Open the named reader's offsets, if there is a name."""
        if self._reader is not None:
            self._offsets = ReaderOffsets(self._reader, self._options, clock)

    def _close_offsets(self) -> None:
        if self._offsets is not None:
            self._offsets.close()

    def _find_place(self, reader: JournalReader, number: int, start: JournalStart) -> float:
        """Move to the named reader's offset, or to `start`. Returns the offset after the last to deliver."""
        if self._offsets is not None:
            start = self._offsets.claim(number, reader.path, start == "newest", self._fs).offset
        seek_start(reader, start)
        if isinstance(self._end, int):
            return self._end + 1
        return reader.next_offset() if self._end == "close" else math.inf

    def _loop_below(self, path: str) -> ScannerLoop | None:
        """Return the loop of the named reader; None: it has no name."""
        if self._offsets is None:
            return None
        return ScannerLoop(self._offsets, SyncExecutor(self._fs, path), path)


class open_scanner(OpeningScanner[JournalScanner]):  # noqa: N801 (it is used as a function)
    """Open the journal at `path` for reading: an async context manager that gives a `JournalScanner`.

    `start` is "oldest", "newest" (after the last message: only later ones), an offset, or a moment (an aware
    datetime: the first message that is not earlier). `end` is "wait" for more, "close" after the present
    messages, or the last offset to deliver.

    `reader` is a name: the reader continues at its committed offset; if there is none, at `start`, which is
    "oldest" or "newest". Its offset is in sej's own file, which is locked: one process reads under a name at
    a time. With `autocommit` received messages are committed by the next receive.

    Options may be given as a `JournalScannerOptions`, or one by one. Entering the block raises
    NotFoundError, OffsetOutOfRangeError for an offset that does not exist, ReaderNameError,
    LockedError if another reader has that name (after `wait` seconds), TypeError or ValueError (a naive
    datetime), OSError. Only a `reader` makes files. Leaving it syncs what was committed, and raises
    trio.BrokenResourceError or DiskFullError if that fails; an exception of the block is raised instead.

    Options (`JournalScannerOptions`). Durations in seconds.

    - `sync_every=2500`: Sync after this many messages were written, consumed, or (of one partition)
      committed; in a priority store, after this many commands. 1: each time. (nsqd's default.)
    - `sync_timeout=2.0`: Sync this many seconds after the first unsynced message, commit or command at the
      latest (nsqd's default).
    - `checkpoint_slice=100e-6`: A task whose calls never have to wait yields to others after this many
      seconds; 0: in every call.
    - `autocommit=False`: A named reader: the next receive, and the end of the block, commit what was received
      before.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        start: JournalStart = "oldest",
        end: End = "wait",
        reader: str | None = None,
        wait: float = 0.0,
        options: JournalScannerOptions | None = None,
        fs: FileSystem | None = None,
        **changes: Unpack[JournalScannerKeywords],
    ) -> None:
        super().__init__(start, end, reader, options, fs, changes, wait)
        self._path = path

    async def _open(self) -> tuple[ScannerLoop | None, JournalScanner]:
        reader, limit = await self._event_loop.run_in_thread(self._open_files, self._event_loop.clock)
        with contextlib.ExitStack() as opened:  # everything is closed again if a step fails
            opened.callback(self._close_offsets)
            opened.callback(reader.close)
            tail = Tail(
                self._fs,
                reader.gate,
                notifier_of(self._fs, reader.path),
                "scanner",
                self._options.checkpoint_slice,
            )
            opened.callback(tail.close)
            tail.add(part_of(reader, 0, limit))
            tail.is_open_ended = self._end == "wait"
            tail.ends_at_limits = self._end == "close"
            loop = self._loop_below(reader.path)
            opened.pop_all()
        return loop, JournalScanner(tail, self._options, loop)

    def _open_files(self, clock: Callable[[], float]) -> tuple[JournalReader, float]:
        with contextlib.ExitStack() as opened:
            reader = open_reader(self._path, self._fs, self._options.checkpoint_slice)
            opened.callback(reader.close)
            opened.callback(self._close_offsets)
            self._open_offsets(clock)
            limit = self._find_place(reader, 0, self._start)
            opened.pop_all()
        return reader, limit
