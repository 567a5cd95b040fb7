# How a store of any kind is opened. Law: what the last writer's logs hold is in its files before anybody
# looks at these; and nothing is appended before what was found is durable.
#
# `LogOpening.run` has the steps, in this order for every kind. A kind supplies what only it knows (`Opened`):
# what its small files say, and how its files are recovered. If it has logs beside its files, it supplies how
# a message is appended again, too (`OpenedWithLogs`). A priority store has none: its files are a log. The
# steps that it lacks are marked with a +.
#
#   prepare          Directories are made, and names checked.
#   lock             The store's lock is held. A swap that was interrupted is finished.
#   look             The kind's small files: what is durable, and whether another program may have written.
#   claim            The store is marked as diskq's, where another program would look.
#   replay        +  Messages that only a log holds are written to their files.
#   recover          The kind judges its files, by what the last writer left: recovery.py.
#   sign             The state of this process is planned, and the lock file names it.
#   report           The repairs are logged, before the next open finds none.
#   first barrier    All of that is durable, with the metadata: where the next recovery begins.
#   carry out     +  What was committed before, and not completed: a transaction.
#   append again  +  Accepted messages in whose place another program has written; then the old logs are
#                    cleared.
#   new logs         Only now that the old ones are clear. A priority store goes on with its own.
#
# If a process is killed before "sign", the next open finds the same. After "first barrier" it finds a store
# in order, and perhaps displaced messages, which stay in the logs until they are appended.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from diskq._native.core.append_buffer import AppendBuffer
from diskq.engine.log.format import LoggedOptions
from diskq.engine.log.redo import Redo
from diskq.engine.log.writer import LogWriter
from diskq.storage.append_file import AppendFile
from diskq.storage.fs import FileSystem
from diskq.storage.lock import Lock
from diskq.storage.log.entries import Displaced, Staging
from diskq.storage.log.replay import Redone, RedoSource, not_displaced
from diskq.storage.log_events import Log
from diskq.storage.numbered_files import private_path
from diskq.storage.repairs import Repair
from diskq.storage.state import StateFiles, StoreState
from diskq.storage.swap import finish_swap
from diskq.storage.write_ahead_log import WriteAheadLogs

__all__ = ["LeftBehind", "LogOpening", "NewLogs", "Opened", "OpenedWithLogs"]


class LeftBehind(NamedTuple):
    """The logs that the last writer left, as far as the kind's small files show."""

    kind: OpenedWithLogs
    """The kind, which has logs."""
    source: RedoSource
    """What a replay of the redo log needs to know."""
    in_place: bool = True
    """False if another program may have written since: then no write-ahead log is written to the files."""


class NewLogs(NamedTuple):
    """The write-ahead logs that a writer is to have."""

    stagings: Mapping[int, Staging]
    buffers: Mapping[int, AppendBuffer]
    is_for_rows: bool
    """True if no message waits in them."""


class _StoreFiles(StateFiles, Protocol):
    @property
    def swap(self) -> str | None:
        """The name of the plan by which files are exchanged; None: the kind exchanges none."""

    @property
    def redo(self) -> str | None:
        """The path of the redo log; None: the kind has none."""


class Opened(Protocol):
    """What only one kind knows of its open. Each method may raise OSError, and what the engine documents."""

    log: LogWriter

    def prepare(self) -> None:
        """Make the directories and check the names. The lock is not held yet."""

    def look(self, opening: LogOpening) -> LeftBehind | None:
        """Return what the last writer left; None if the kind has no logs beside its files.

        Nothing is changed that shows it.
        """

    def claim(self, opening: LogOpening) -> None:
        """Mark the store as diskq's, where another program would look."""

    def recover(self, opening: LogOpening) -> Sequence[Repair]:
        """Repair the files, and go on after the last message. Returns the repairs that are logged already."""

    def begin(self) -> None:
        """Execute the first barrier. Raises DiskFullError, StorageFailedError."""

    def new_logs(self) -> NewLogs | None:
        """Return the write-ahead logs that there are to be from now on; None if the kind has none."""

    def abandon(self) -> None:
        """Close the files that are written to, without a promise."""


class OpenedWithLogs(Opened, Protocol):
    """What only a kind with logs beside its files knows of its open."""

    options: Any
    """`LoggedOptions`."""

    @property
    def most_redo(self) -> int:
        """The most bytes that a redo log may have on the disk; 0: there is none."""

    def judge(self, redone: Redone) -> None:
        """Decide about displaced messages of the redo log, before checksums in a write-ahead log are used."""

    def carry_out(self) -> None:
        """Carry out what was committed before, and not completed."""

    def append_again(self, displaced: Displaced) -> None:
        """Append messages durably in whose place another program has written."""

    def appends(self) -> Iterable[AppendFile[Any]]:
        """Return the files that are written to."""

    def unlogged(self) -> Iterable[tuple[int, AppendFile[Any]]]:
        """Return those with bytes that are durable nowhere yet, each with its partition's number, or 0."""


class LogOpening:
    """One open of a writer's store, from its lock to its first message."""

    lock: Lock
    state: StoreState
    wals: WriteAheadLogs
    """The write-ahead logs, of a kind that has logs."""
    _redo: Redo

    def __init__(
        self, fs: FileSystem, kind: Opened, files: _StoreFiles, topic: Log, *, root: str, guarded: str
    ) -> None:
        """`root` is the directory of the store, `guarded` is what it is, for errors."""
        self._fs = fs
        self._kind = kind
        self._files = files
        self._topic = topic
        self._root = root
        self._guarded = guarded
        self._logged = 0
        self.displaced: list[Displaced] = []
        """Accepted messages, with other bytes in their place."""

    def run(self) -> None:
        """Open it. What was taken is released by the writer, also if this raises."""
        fs, kind, files, writer = self._fs, self._kind, self._files, self._kind.log
        kind.prepare()
        self.lock = writer.hold(Lock(fs, files.lock, self._guarded, wait=writer.patience, brief=files.redo))
        writer.on_release(kind.abandon)
        if files.swap is not None and fs.size_of(private_path(self._root, files.swap)) is not None:
            finish_swap(fs, self._root, files.swap)
        self.state = writer.use_state(StoreState(fs, files, lock=self.lock.found))
        left = kind.look(self)
        if left is not None:
            self._use_logs(left)
        kind.claim(self)
        if left is not None:
            self._replay(left)
        reported = kind.recover(self)
        if files.old_points is not None and fs.size_of(files.old_points) is not None:
            writer.pending.removals.append(files.old_points)
        writer.sign()
        self._report(reported)
        kind.begin()
        writer.note_signed()
        if left is not None:
            self._append_again(left.kind)
        self._report()
        logs = kind.new_logs()
        if left is not None and logs is not None:
            self.wals.open(logs.buffers, is_for_rows=logs.is_for_rows, stagings=logs.stagings)
            writer.catch_up_before(*left.kind.appends())

    # --- the logs beside the files ------------------------------------------------------------------

    def _use_logs(self, left: LeftBehind) -> None:
        kind, writer = left.kind, self._kind.log
        assert self._files.redo is not None
        options: LoggedOptions = kind.options
        self.wals = writer.use_wals(WriteAheadLogs(self._fs, self.state, left.source.stagings))
        self._redo = writer.use_redo(
            Redo(
                self._fs,
                self._files.redo,
                self.state,
                options,
                kind.unlogged,
                self._topic,
                writer.clock,
                most=kind.most_redo,
            )
        )

    def _replay(self, left: LeftBehind) -> None:
        """Write the messages that only a log holds to their files, and note those that are displaced."""
        redone = self._redo.replay(left.source)
        left.kind.judge(redone)
        self.wals.replay(in_place=left.in_place, voided=redone.voided)
        self.displaced = [*redone.displaced, *self.wals.displaced]
        self._kind.log.repairs += [*self.wals.unreported, *redone.repairs, *self.wals.repairs]

    def _append_again(self, kind: OpenedWithLogs) -> None:
        """Carry out what was committed, append the displaced messages, and clear the old logs."""
        kind.log.catch_up_before(*kind.appends())
        kind.carry_out()
        kind.log.note()
        for each in self.displaced:
            kind.append_again(each)
        self.displaced.clear()
        self.wals.clear()
        self._redo.clear_old()

    # --- the report ---------------------------------------------------------------------------------

    def note_found(
        self, repairs: Iterable[Repair], counted: Callable[[bytes], int], *, reported: Sequence[Repair] = ()
    ) -> None:
        """Note repairs of the kind, without the messages that are appended again. See `not_displaced`.

        Those that are `reported` already count none of them.
        """
        self._kind.log.repairs += not_displaced(repairs, self.displaced, counted, reported=reported)

    def _report(self, reported: Sequence[Repair] = ()) -> None:
        """Log the repairs that are not logged yet, but for those that the kind has `reported` itself."""
        repairs = self._kind.log.repairs
        if len(repairs) > self._logged:
            self._logged = self._topic.report_repairs(repairs, self._logged, reported=reported)
