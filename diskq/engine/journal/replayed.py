# A journal as the next open will find it once its redo log is replayed, for those who only look.

from __future__ import annotations

from functools import partial

from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.recovery import redo_source
from diskq.storage.fs import FileSystem
from diskq.storage.redo_view import RedoLook, as_replayed, look_at_redo

__all__ = ["journal_as_replayed", "look_at_journal"]


def look_at_journal(fs: FileSystem, files: JournalFiles) -> RedoLook | None:
    """Return what the next open will do with the redo log, as `look_at_redo`."""
    return look_at_redo(fs, files, partial(redo_source, fs, files))


def journal_as_replayed(fs: FileSystem, path: str) -> FileSystem:
    """Return the files of a journal with what is in its redo log alone, as `as_replayed`."""
    files = JournalFiles(fs, path)
    return as_replayed(fs, files, partial(redo_source, fs, files))
