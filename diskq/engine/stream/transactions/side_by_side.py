# Work on several staged files at the same time. Law: all of it has ended when the caller goes on.
#
# Of a large file a commit reads all bytes, computes checksums and counts records, without the interpreter's
# lock: two processors do it in half the time. On a file system that is not the system's own it is one file
# after the other: so a test's disk sees the same calls in each run.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from diskq.storage.fs import FileSystem

__all__ = ["each"]

T = TypeVar("T")
R = TypeVar("R")

_MOST_THREADS = 4


def each(fs: FileSystem, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return what `work` returns for each item, in order. Raises the error of the first that failed.

    The others have ended then, too; without threads those after it were not begun.
    """
    if len(items) < 2 or not fs.native:
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor  # most streams have no transactions

    with ThreadPoolExecutor(min(len(items), _MOST_THREADS)) as threads:
        return list(threads.map(work, items))
