# What a replay of the redo log needs to know of a queue: for its open, and for those who only look.

from __future__ import annotations

from diskq.engine.queue.files import QueueFiles, QueueMetadata
from diskq.storage.fs import FileSystem
from diskq.storage.log.replay import RedoSource
from diskq.storage.redo_view import RedoLook, as_replayed, look_at_redo

__all__ = ["look_at_queue", "queue_as_replayed", "redo_source"]


def redo_source(files: QueueFiles) -> RedoSource:
    """Return it. Everything up to the written position of diskq's metadata is durable. Raises OSError."""
    metadata = QueueMetadata.parse(files.read_metadata() or b"")
    return RedoSource(
        {0: files.staging},
        in_place=metadata is None or metadata.is_ours,
        is_covered=lambda _, file, end: metadata is not None and (file, end) <= metadata.write,
    )


def look_at_queue(fs: FileSystem, files: QueueFiles) -> RedoLook | None:
    """Return what the next open will do with the redo log, as `look_at_redo`."""
    return look_at_redo(fs, files, lambda _: redo_source(files))


def queue_as_replayed(fs: FileSystem, directory: str, name: str) -> FileSystem:
    """Return the files of a queue with what is in its redo log alone, as `as_replayed`."""
    files = QueueFiles(fs, directory, name)
    return as_replayed(fs, files, lambda _: redo_source(files))
