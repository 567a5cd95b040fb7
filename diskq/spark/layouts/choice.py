# Which layout the files at a path have, and the class that reads them. Law: only this module knows all
# layouts; their interface is in layout.py, which knows none of them.
#
# The engine is imported when a layout is opened: a task needs that of one layout only.

from __future__ import annotations

from typing import Any

from diskq.spark.errors import DiskqSparkError
from diskq.spark.layouts.layout import Layout

__all__ = ["find_layout", "open_layout"]


def find_layout(path: str) -> str:
    """Return the layout of the files, of options.LAYOUTS. Raises DISKQ_NOT_FOUND, OSError."""
    from diskq.spark.layouts.queue import log_at, queue_at

    if (found := log_at(path)) is not None:
        return found
    if queue_at(path) is not None:
        return "nsq"
    raise DiskqSparkError(
        "DISKQ_NOT_FOUND",
        f"{path}: there is no stream, journal, store or queue here; on a cluster each machine must see it at "
        "this path",
    )


def open_layout(kind: str, path: str, pinned: Any = None, parts: int | None = None) -> Layout:
    """Open the layout `kind`, of options.LAYOUTS; `pinned` is what its `pin` returned.

    Raises DiskqError, OSError.
    """
    if kind == "nsq":
        from diskq.spark.layouts.queue import QueueLayout

        return QueueLayout(path, pinned, parts)
    if kind == "taskflux":
        from diskq.spark.layouts.priority import StoreLayout

        return StoreLayout(path, pinned)
    if kind == "sej":
        from diskq.spark.layouts.journal import JournalLayout

        return JournalLayout(path)
    from diskq.spark.layouts.stream import TripletLayout

    return TripletLayout(path)
