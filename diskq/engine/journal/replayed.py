# The redo log of a journal, for who opens it without its lock.

from __future__ import annotations

from functools import partial

from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.recovery import redo_source
from diskq.storage.fs import FileSystem
from diskq.storage.log.reader_replay import ReaderReplay

__all__ = ["journal_replay"]


def journal_replay(fs: FileSystem, path: str) -> ReaderReplay:
    """Return the replay of a journal's redo log."""
    files = JournalFiles(fs, path)
    return ReaderReplay(fs, files, partial(redo_source, fs, files))
