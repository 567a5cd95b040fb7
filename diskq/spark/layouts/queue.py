# Queues in NSQ's files, as they are now: nothing is consumed. A message's offset is counted from the read
# position, so it is meaningful within one load only. The format has no keys and no times.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from diskq.engine.layouts import layout_of
from diskq.engine.layouts import queue_names as names_in
from diskq.engine.queue.snapshot import OtherQueueError, QueueSnapshot, SnapshotRange, SnapshotReader
from diskq.errors import QueueMovedError
from diskq.options import MIB
from diskq.spark.errors import DiskqSparkError
from diskq.spark.layouts.layout import Losses, OffsetRange, Span
from diskq.spark.layouts.origins import OTHER_STREAM, Origin
from diskq.storage.fs import OsFileSystem

if TYPE_CHECKING:
    from diskq.tables.columns import Columns

__all__ = ["QueueLayout", "log_at", "queue_at", "queue_names"]

_BYTES_IN_A_PART = 64 * MIB
_MOST_PARTS = 1000

Parts = tuple[tuple[SnapshotRange, ...], ...]


def queue_names(directory: str) -> list[str]:
    """Return the queues in a directory; none if it does not exist. Raises OSError."""
    try:
        return names_in(OsFileSystem(), directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def log_at(path: str) -> str | None:
    """Return the layout (of options.LAYOUTS) of the stream, journal or store in this directory; None if none.

    Raises OSError.
    """
    try:
        found = layout_of(OsFileSystem(), path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return None if found == "nsq" else found


def queue_at(path: str) -> tuple[str, str] | None:
    """Return the directory and the name of the queue at `path`, which is both, or a directory with one queue.

    Raises DISKQ_OPTION if there are several, OSError.
    """
    there = queue_names(path)
    if len(there) > 1:
        raise DiskqSparkError(
            "DISKQ_OPTION",
            f"path is {path!r}: there are {len(there)} queues, as {there[0]!r}; "
            f"say subscribe={there[0]}, or load {path.rstrip('/')}/{there[0]}",
        )
    if there:
        return path, there[0]
    above, _, name = path.rstrip("/").rpartition("/")
    return (above or "/", name) if name in queue_names(above or "/") else None


@dataclass(frozen=True, slots=True)
class _Bodies:
    """Messages that are only bodies, as a piece for Arrow."""

    records: int
    values: Any
    value_offsets: Any
    offset_width: int
    keys: None = None
    key_offsets: None = None
    timestamps: None = None


class QueueLayout:
    """A queue as it was at one moment: later plans read the same."""

    is_growing = False

    def __init__(self, path: str, pinned: Parts | None, parts: int | None) -> None:
        """Plan about `parts` parts now, unless they are given as `pinned`. Raises DiskqError, OSError."""
        found = queue_at(path)
        if found is None:
            raise DiskqSparkError("DISKQ_NOT_FOUND", f"{path}: there is no queue here")
        self._path = path
        self._directory, self._name = found
        self._parts = self._looked(parts) if pinned is None else pinned

    def _looked(self, parts: int | None) -> Parts:
        snapshot = QueueSnapshot(self._directory, self._name)
        size = snapshot.size
        at_least = min(-(-size // _BYTES_IN_A_PART), _MOST_PARTS)
        return tuple(snapshot.plan(max(1, parts or 0, at_least)))

    def identity(self) -> None:
        return None

    def origin(self, partition: int) -> Origin:
        return Origin(None)

    def changed(self, partition: int, then: Origin) -> None:
        """Return None: each range has a checksum of its own, which its reader compares."""
        return None

    def spans(self) -> dict[int, Span]:
        ranges = [each for part in self._parts for each in part]
        end = max((each.first + each.records for each in ranges), default=0)
        return {0: Span(0, end, sum(each.end - each.start for each in ranges))}

    def offset_at_or_after(self, partition: int, timestamp: int) -> int | None:
        raise DiskqSparkError("DISKQ_OPTION", f"{self._path}: a queue keeps no times; use offsets")

    # --- reading ----------------------------------------------------------------------------------

    def pin(self, parts: int | None) -> Parts:
        return self._parts

    def tasks(self, whole: OffsetRange) -> Iterable[OffsetRange]:
        for part in self._parts:
            first, after = part[0].first, part[-1].first + part[-1].records
            start, end = max(whole.start, first), min(whole.end, after)
            if start < end:
                size = sum(each.end - each.start for each in part)
                yield replace(whole, start=start, end=end, size=size, detail=part)

    def read(self, task: OffsetRange, max_bytes: int, losses: Losses) -> Iterator[tuple[int, Columns]]:
        with SnapshotReader(self._directory, self._name, task.detail) as reader:
            while True:
                try:
                    found = reader.columns(max_bytes)
                except OtherQueueError as other:
                    losses.report("DISKQ_STREAM_CHANGED", f"{other}: {OTHER_STREAM}")
                    continue
                except QueueMovedError as gone:
                    # The reader continues with the next file.
                    losses.report("DISKQ_DATA_LOSS", f"{gone}, since the read was loaded; or {OTHER_STREAM}")
                    continue
                self._report_losses(reader, task, losses)
                if found is None:
                    return
                first, columns = found
                yield (
                    first,
                    _Bodies(columns.records, columns.values, columns.value_offsets, columns.offset_width),
                )

    def _report_losses(self, reader: SnapshotReader, task: OffsetRange, losses: Losses) -> None:
        gaps = reader.losses[:]
        reader.losses.clear()
        for gap in gaps:
            if task.start < gap.offset + max(1, gap.count) and gap.offset < task.end:
                losses.report(
                    "DISKQ_CORRUPT",
                    f"{gap.path}: bytes {gap.start} to {gap.end} cannot be read: {gap.reason} "
                    f"({gap.count or 'some'} messages from {gap.offset} on)",
                )
