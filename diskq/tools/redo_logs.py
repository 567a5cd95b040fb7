# The redo logs of a store of any kind. Law: nothing is changed; what is in a redo log alone after a power cut
# is part of the store.

from __future__ import annotations

from dataclasses import dataclass

from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.replayed import journal_replay
from diskq.engine.layouts import queue_names
from diskq.engine.log.engine import LogEngine
from diskq.engine.queue.files import QueueFiles
from diskq.engine.queue.replayed import queue_replay
from diskq.engine.spool.files import DEAD, SPOOL
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.replayed import stream_replay
from diskq.errors import DiskFullError
from diskq.storage.fs import FileSystem
from diskq.storage.log.reader_replay import LoggedFiles, RedoLook
from diskq.storage.log.replay import FromLog
from diskq.storage.repairs import Repair
from diskq.storage.state import read_state, redo_named_by
from diskq.tools.stores import Store

__all__ = ["RedoLogInfo", "RedoLogs", "check_log_empty", "found_in_redo_log", "is_log_empty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RedoLogInfo:
    """A redo log. Sizes in bytes."""

    path: str
    size: int
    waiting: int
    """Bytes of messages that are in the log alone, after a power cut: the next open puts them into files."""

    def __str__(self) -> str:
        where = f"{self.size} bytes in {self.path}"
        if not self.waiting:
            return where
        return f"{where}; {self.waiting} bytes of messages are in the redo log, not yet in the files"


class RedoLogs:
    """The redo logs of a store as they are now: a spool has one for each of its queues."""

    def __init__(self, fs: FileSystem, store: Store) -> None:
        """Raises UnsupportedFormatError for a log of another format version; OSError."""
        self.fs = fs
        """The files of the store as they are once the logs are replayed."""
        self.found: list[RedoLogInfo] = []
        self.repairs: list[Repair] = []
        """What the next open reports of them."""
        if store.kind == "stream":
            self._take(StreamFiles(fs, store.path).redo, stream_replay(fs, store.path).look())
        elif store.kind == "journal":
            self._take(JournalFiles(fs, store.path).redo, journal_replay(fs, store.path).look())
        elif store.kind != "jobs":
            names = [store.name]
            if store.kind == "spool":
                there = queue_names(fs, store.path)
                names = [name for name in (SPOOL, DEAD) if name in there]
            for name in names:
                replay = queue_replay(self.fs, store.path, name)
                self._take(QueueFiles(self.fs, store.path, name).redo, replay.look())

    def _take(self, path: str, look: RedoLook | None) -> None:
        size = self.fs.size_of(path)
        if size:
            waiting = 0 if look is None else sum(its.size for its in look.redone.found)
            self.found.append(RedoLogInfo(path=path, size=size, waiting=waiting))
        if look is not None:
            self.fs = look.fs
            self.repairs += look.redone.repairs


def found_in_redo_log(engine: LogEngine | None) -> tuple[FromLog, ...]:
    """Return what the open of `engine` has found in the redo log of the writer before it."""
    redo = None if engine is None else engine.log.redo
    return () if redo is None else redo.found


def is_log_empty(fs: FileSystem, files: LoggedFiles) -> bool:
    """True if no redo log is left that the next open would replay. Raises OSError."""
    named = redo_named_by(read_state(fs, files))
    return not named or (named < 0 and not fs.size_of(files.redo))


def check_log_empty(fs: FileSystem, files: LoggedFiles) -> None:
    """Check that the open before a repair has emptied the redo log: a later one must not replay it over
    repaired files. Raises DiskFullError if there was no space for that, OSError.
    """
    if not is_log_empty(fs, files):
        raise DiskFullError(files.redo, "the redo log is in the files, but could not be emptied")
