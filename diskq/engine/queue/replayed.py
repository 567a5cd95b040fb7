# A queue as the next open will find it once its redo log is replayed, for those who only look.

from __future__ import annotations

from diskq.engine.queue.files import QueueFiles
from diskq.engine.queue.recovery import redo_source
from diskq.storage.fs import FileSystem
from diskq.storage.redo_view import RedoLook, as_replayed, look_at_redo

__all__ = ["look_at_queue", "queue_as_replayed"]


def look_at_queue(fs: FileSystem, files: QueueFiles) -> RedoLook | None:
    """Return what the next open will do with the redo log, as `look_at_redo`."""
    return look_at_redo(fs, files, lambda _: redo_source(files))


def queue_as_replayed(fs: FileSystem, directory: str, name: str) -> FileSystem:
    """Return the files of a queue with what is in its redo log alone, as `as_replayed`."""
    files = QueueFiles(fs, directory, name)
    return as_replayed(fs, files, lambda _: redo_source(files))
