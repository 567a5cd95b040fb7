# What a replay of the redo log needs to know of a journal: for its open, and for those who only look.

from __future__ import annotations

from functools import partial

from diskq.engine.journal.files import JournalFiles
from diskq.engine.log.recovery_points import read_points
from diskq.storage.fs import FileSystem
from diskq.storage.lock import Holder
from diskq.storage.log.replay import RedoSource
from diskq.storage.redo_view import RedoLook, as_replayed, look_at_redo

__all__ = ["journal_as_replayed", "look_at_journal", "redo_source"]


def redo_source(fs: FileSystem, files: JournalFiles, holder: Holder | None) -> RedoSource:
    """Return it. `holder` is what the lock file says: a peer that has had the lock has emptied the file.

    Raises OSError.
    """
    points = read_points(fs, files)
    return RedoSource({0: files.staging}, in_place=holder is not None, is_covered=points.cover)


def look_at_journal(fs: FileSystem, files: JournalFiles) -> RedoLook | None:
    """Return what the next open will do with the redo log, as `look_at_redo`."""
    return look_at_redo(fs, files, partial(redo_source, fs, files))


def journal_as_replayed(fs: FileSystem, path: str) -> FileSystem:
    """Return the files of a journal with what is in its redo log alone, as `as_replayed`."""
    files = JournalFiles(fs, path)
    return as_replayed(fs, files, partial(redo_source, fs, files))
