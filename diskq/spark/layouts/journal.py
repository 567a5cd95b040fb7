# Journals, read by the engine. Law: see ranges.py. A journal is a topic with one partition, 0; each directory
# of shards, or of a hub's root, is one.
#
# sej's files have no checksums; files that diskq wrote have checksum files, which are verified. A journal is
# distinguished from one that was created again in its place by its first message only.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from diskq.engine.journal.reader import JournalReader
from diskq.engine.journal.time_lookup import JournalTimes
from diskq.engine.log.message_mark import message_mark
from diskq.errors import NotFoundError
from diskq.spark.layouts.layout import Losses, OffsetRange, Span
from diskq.spark.layouts.origins import Origin, changed
from diskq.spark.ranges import RangeReading

if TYPE_CHECKING:
    from diskq.tables.columns import Columns

__all__ = ["JournalLayout"]


class JournalLayout:
    """A journal of sej's format."""

    is_growing = True

    def __init__(self, path: str) -> None:
        """Raises NotFoundError, OSError."""
        self._path = path
        self._times: JournalTimes | None = None
        with JournalReader(path) as reader:
            self._files = reader.files
        if not self._files.bases():
            raise NotFoundError("journal", path)

    def identity(self) -> None:
        return None

    def origin(self, partition: int) -> Origin:
        with JournalReader(self._path) as reader:
            return Origin(None, message_mark(reader))

    def changed(self, partition: int, then: Origin) -> str | None:
        if then.mark is None:
            return None
        with JournalReader(self._path) as reader:
            return changed(f"{self._path}[{partition}]", then, None, message_mark(reader, then.mark[0]))

    def spans(self) -> dict[int, Span]:
        with JournalReader(self._path) as reader:
            next_offset = reader.next_offset()
            # After `next_offset`: segments may be removed meanwhile.
            first = reader.first_offset()
        return {0: Span(first, max(first, next_offset), self._files.data_size())}

    def offset_at_or_after(self, partition: int, timestamp: int) -> int | None:
        if self._times is None:
            self._times = JournalTimes(self._path)  # remembers what it has read, and keeps nothing open
        return self._times.offset_at_or_after(timestamp)

    # --- reading ----------------------------------------------------------------------------------

    def pin(self, parts: int | None) -> None:
        return None

    def tasks(self, whole: OffsetRange) -> Iterable[OffsetRange]:
        return (whole,)

    def read(self, task: OffsetRange, max_bytes: int, losses: Losses) -> Iterator[tuple[int, Columns]]:
        with JournalReader(self._path) as reader:
            reading = RangeReading(reader, f"{self._path}[0]", task.start, task.end, losses)
            yield from reading.pieces(max_bytes)
