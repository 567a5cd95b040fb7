# The kind of a directory's files. Law: names decide, and nothing is opened.

from __future__ import annotations

import re
from typing import Literal

from diskq.engine.journal.files import JournalFiles
from diskq.engine.priority.files import StoreFiles
from diskq.engine.stream.files import StreamFiles
from diskq.errors import NotFoundError
from diskq.storage.fs import FileSystem

__all__ = ["Layout", "is_journal", "layout_of", "queue_names"]

Layout = Literal["triplet", "sej", "taskflux", "nsq"]
"""A stream in go-diskq's files, a journal in sej's, a store of priority queues in TaskFlux's, or queues in
those of NSQ."""

_OF_A_QUEUE = re.compile(r"(.+)\.diskqueue\.(?:meta|[0-9]{6,19})\.dat", re.DOTALL)


def layout_of(fs: FileSystem, path: str) -> Layout | None:
    """Return what the files in the directory `path` are; None if they are none of these. Raises OSError."""
    if fs.size_of(StreamFiles(fs, path).parts) is not None:
        return "triplet"
    names = queue_names(fs, path)  # first: it raises if there is no directory
    if is_journal(fs, path):
        return "sej"
    if StoreFiles.found(fs, path).are_there:
        return "taskflux"
    return "nsq" if names else None


def is_journal(fs: FileSystem, path: str) -> bool:
    """True if the directory `path` has a segment of a journal. Raises OSError."""
    try:
        return bool(JournalFiles(fs, path).bases())
    except NotFoundError:
        return False


def queue_names(fs: FileSystem, path: str) -> list[str]:
    """Return the queues that have files in the directory `path`, sorted. Raises OSError."""
    matches = (_OF_A_QUEUE.fullmatch(name) for name in fs.list_directory(path))
    return sorted({match[1] for match in matches if match})
