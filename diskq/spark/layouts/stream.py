# Streams, read by the engine: every block is verified by its checksum, and bytes without a checksum by their
# index entry. Law: a damaged message costs that message, or its block if the extent is unknown; never the
# batch.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from diskq.engine.log.message_mark import message_mark
from diskq.engine.stream.owner import stream_id
from diskq.engine.stream.reader import ReadableStream
from diskq.engine.stream.time_lookup import TimeLookup
from diskq.spark.layouts.layout import Losses, OffsetRange, Span
from diskq.spark.layouts.origins import Origin, changed
from diskq.spark.ranges import RangeReading

if TYPE_CHECKING:
    from diskq.tables.columns import Columns

__all__ = ["TripletLayout"]


class TripletLayout:
    """A stream of go-diskq's format."""

    is_growing = True

    def __init__(self, path: str) -> None:
        """Raises NotFoundError, UnsupportedFormatError, OSError."""
        self._stream = ReadableStream(path)

    def identity(self) -> str | None:
        found = stream_id(self._stream.fs, self._stream.files)
        return None if found is None else found.hex()

    def origin(self, partition: int) -> Origin:
        with self._stream.open(partition) as reader:
            return Origin(self.identity(), message_mark(reader))

    def changed(self, partition: int, then: Origin) -> str | None:
        mark = None
        if then.mark is not None:
            with self._stream.open(partition) as reader:
                mark = message_mark(reader, then.mark[0])
        return changed(f"{self._stream.path}[{partition}]", then, self.identity(), mark)

    def spans(self) -> dict[int, Span]:
        return {number: self._span(number) for number in self._stream.partitions()}

    def _span(self, partition: int) -> Span:
        files = self._stream.files.partition(partition)
        with self._stream.open(partition) as reader:
            next_offset = reader.next_offset()
        bases = files.bases()
        size = sum(self._stream.fs.size_of(files.data(base)) or 0 for base in bases)
        # Retention may have run in between.
        first = bases[0] if bases else next_offset
        return Span(first, max(first, next_offset), size)

    def offset_at_or_after(self, partition: int, timestamp: int) -> int | None:
        with TimeLookup(self._stream.fs, self._stream.files.partition(partition)) as lookup:
            return lookup.offset_at_or_after(timestamp)

    # --- reading ----------------------------------------------------------------------------------

    def pin(self, parts: int | None) -> None:
        return None

    def tasks(self, whole: OffsetRange) -> Iterable[OffsetRange]:
        return (whole,)

    def read(self, task: OffsetRange, max_bytes: int, losses: Losses) -> Iterator[tuple[int, Columns]]:
        where = f"{self._stream.path}[{task.partition}]"
        with self._stream.open(task.partition) as reader:
            yield from RangeReading(reader, where, task.start, task.end, losses).pieces(max_bytes)
