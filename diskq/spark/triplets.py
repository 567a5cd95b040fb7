# Streams, read by the engine: every block is verified by its checksum, and what no checksum covers by
# its row in the index. Law: one bad message costs that message, or the block that it lies in, where
# nothing smaller can be told; never the batch.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from diskq.engine.partitionreader import PartitionReader
from diskq.engine.streamowner import stream_id
from diskq.engine.streamreader import StreamReader
from diskq.engine.timelookup import TimeLookup
from diskq.errors import OffsetOutOfRangeError, StreamNotFoundError
from diskq.spark.layouts import Losses, OffsetRange, Span

if TYPE_CHECKING:
    from diskq.spark.arrow import Piece

__all__ = ["TripletLayout"]

# So often is looked again where messages end before they should: rows are written after their records.
_LOOKS = 3


class TripletLayout:
    """A stream of go-diskq's format."""

    is_growing = True

    def __init__(self, path: str) -> None:
        """Raises StreamNotFoundError, UnsupportedFormatError, OSError."""
        self._stream = StreamReader(path)

    def identity(self) -> str | None:
        found = stream_id(self._stream.fs, self._stream.files)
        return None if found is None else found.hex()

    def spans(self) -> dict[int, Span]:
        return {number: self._span(number) for number in self._stream.partitions()}

    def _span(self, partition: int) -> Span:
        files = self._stream.files.partition(partition)
        with self._stream.open(partition) as reader:
            next_offset = reader.next_offset()
        bases = files.bases()
        size = sum(self._stream.fs.size_of(files.data(base)) or 0 for base in bases)
        # Retention may have come in between.
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

    def read(self, task: OffsetRange, max_bytes: int, losses: Losses) -> Iterator[tuple[int, Piece]]:
        where = f"{self._stream.path}[{task.partition}]"
        with self._stream.open(task.partition) as reader:
            yield from _Range(reader, where, task.start, task.end, losses).pieces(max_bytes)


class _Range:
    """Offsets start:end of one partition, on their way."""

    def __init__(self, reader: PartitionReader, where: str, start: int, end: int, losses: Losses) -> None:
        self._reader = reader
        self._where = where
        self._at = start  # what comes next, if nothing is missing
        self._end = end
        self._losses = losses

    def pieces(self, max_bytes: int) -> Iterator[tuple[int, Piece]]:
        looks = 0
        is_placed = False
        while self._at < self._end:
            try:
                if not is_placed:
                    self._reader.seek(self._at)
                    is_placed = True
                found = self._reader.columns(max_bytes)
            except OffsetOutOfRangeError as gone:
                self._reader.losses.clear()
                is_placed = False
                if gone.first <= self._at:
                    self._missing(self._end, f"the next offset is {gone.next}")
                else:
                    self._missing(
                        min(gone.first, self._end), f"the first that is there is {gone.first}: retention"
                    )
                continue
            except StreamNotFoundError as gone:
                self._missing(self._end, str(gone))
                continue
            self._tell_gaps()
            if found is not None:
                looks = 0
                first, columns = found
                if self._at < min(first, self._end):
                    self._missing(min(first, self._end), "nothing is left of them")
                if self._at < self._end:
                    yield first, columns
                self._at = first + columns.records
            elif (looks := looks + 1) == _LOOKS:
                self._missing(self._end, f"the messages end at {self._reader.position}")

    def _missing(self, behind: int, why: str) -> None:
        """The messages up to offset `behind` cannot be had."""
        self._losses.tell(
            "DISKQ_DATA_LOSS", f"{self._where}: offsets {self._at} to {behind - 1} are gone: {why}"
        )
        self._at = behind

    def _tell_gaps(self) -> None:
        gaps = self._reader.losses[:]
        self._reader.losses.clear()
        for gap in gaps:
            first, behind = max(gap.offset, self._at), min(gap.offset + gap.count, self._end)
            if first < behind:
                self._losses.tell(
                    "DISKQ_CORRUPT",
                    f"{self._where}: offsets {first} to {behind - 1} cannot be read: {gap.reason} "
                    f"({gap.path}, bytes {gap.start} to {gap.end})",
                )
                self._at = behind
