# What lies in a directory. Law: names decide, and nothing is opened.

from __future__ import annotations

import re
from typing import Literal

from diskq.engine.streamfiles import StreamFiles
from diskq.storage.fs import FileSystem

__all__ = ["Layout", "layout_of", "queue_names"]

Layout = Literal["triplet", "nsq"]
"""A stream in go-diskq's files, or queues in those of NSQ."""

_OF_A_QUEUE = re.compile(r"(.+)\.diskqueue\.(?:meta|[0-9]{6,19})\.dat", re.DOTALL)


def layout_of(fs: FileSystem, path: str) -> Layout | None:
    """What the files in the directory `path` are; None: neither. Raises OSError."""
    if fs.size_of(StreamFiles(fs, path).parts) is not None:
        return "triplet"
    return "nsq" if queue_names(fs, path) else None


def queue_names(fs: FileSystem, path: str) -> list[str]:
    """The queues that have files in the directory `path`, sorted. Raises OSError."""
    matches = (_OF_A_QUEUE.fullmatch(name) for name in fs.list_directory(path))
    return sorted({match[1] for match in matches if match})
