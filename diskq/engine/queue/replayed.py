# The redo log of a queue, for who opens it without its lock.

from __future__ import annotations

from diskq.engine.queue.files import QueueFiles
from diskq.engine.queue.recovery import redo_source
from diskq.storage.fs import FileSystem
from diskq.storage.log.reader_replay import ReaderReplay

__all__ = ["queue_replay"]


def queue_replay(fs: FileSystem, directory: str, name: str) -> ReaderReplay:
    """Return the replay of a queue's redo log."""
    files = QueueFiles(fs, directory, name)
    return ReaderReplay(fs, files, lambda _: redo_source(files))
