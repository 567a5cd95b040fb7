# A range of offsets, read by the engine. Law: a damaged message costs that message, or its block if the
# extent is unknown; never the batch. What is missing is reported once.

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from diskq.engine.log.reader import LogReader
from diskq.errors import NotFoundError, OffsetOutOfRangeError
from diskq.spark.layouts.layout import Losses

if TYPE_CHECKING:
    from diskq.tables.columns import Columns

__all__ = ["RangeReading"]

Reader = LogReader[Any, Any, Any]

# Number of looks if messages end too early: index entries are written after their records.
_LOOKS = 3


class RangeReading:
    """Reads offsets start:end of one partition, or journal."""

    def __init__(self, reader: Reader, where: str, start: int, end: int, losses: Losses) -> None:
        self._reader = reader
        self._where = where
        self._at = start  # the next offset, if nothing is missing
        self._end = end
        self._losses = losses

    def pieces(self, max_bytes: int) -> Iterator[tuple[int, Columns]]:
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
                if gone.first_offset <= self._at:
                    self._missing(self._end, f"the next offset is {gone.next_offset}")
                else:
                    self._missing(
                        min(gone.first_offset, self._end), f"the first one is {gone.first_offset}: retention"
                    )
                continue
            except NotFoundError as gone:
                self._missing(self._end, str(gone))
                continue
            self._report_gaps()
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

    def _missing(self, until: int, why: str) -> None:
        """Report the messages up to offset `until`, not included, as missing."""
        self._losses.report(
            "DISKQ_DATA_LOSS", f"{self._where}: offsets {self._at} to {until - 1} are gone: {why}"
        )
        self._at = until

    def _report_gaps(self) -> None:
        gaps = self._reader.losses[:]
        self._reader.losses.clear()
        for gap in gaps:
            first, until = max(gap.offset, self._at), min(gap.offset + gap.count, self._end)
            if first < until:
                self._losses.report(
                    "DISKQ_CORRUPT",
                    f"{self._where}: offsets {first} to {until - 1} cannot be read: {gap.reason} "
                    f"({gap.path}, bytes {gap.start} to {gap.end})",
                )
                self._at = until
