# What there is of a partition now, in the table and in the log together. Law: the end of the log is looked up
# before the files of the table, and the beginning of the log after them; so whatever is appended, made into
# files and removed meanwhile, no message between the two ends is missing without an error.

from __future__ import annotations

from typing import NamedTuple

from diskq.errors import TableGapError
from diskq.tables.names import Listing, TableFile
from diskq.tables.sources import LogSource
from diskq.tables.state import TableState
from diskq.tables.updating import check_source

__all__ = ["PartitionExtent", "extent_of"]

# How often the ends of a table and of a log are looked up if retention removes segments meanwhile.
_TRIES = 3


class PartitionExtent(NamedTuple):
    """The messages of a partition: offsets `start` to `end` - 1."""

    partition: int
    start: int
    end: int
    files: list[TableFile]
    """The files of the table, which have them from `start` on; none without a table."""
    tail: int
    """The first offset that no file has: from here on the log has them, or nothing does."""


def extent_of(
    source: LogSource, table: TableState | None, partition: int, *, allow_gaps: bool
) -> PartitionExtent:
    """Return what there is of a partition, in the table and in the log.

    Raises TableMismatchError if the table is another stream's; TableGapError if retention has removed
    messages before they came into the table, unless `allow_gaps`; and as `TableFiles.listing`.
    """
    gap = (0, 0)
    for _ in range(_TRIES):
        end = source.next_offset(partition)
        listing = Listing([], []) if table is None else table.names.listing(partition)
        first = source.first_offset(partition)
        if table is None or listing.end is None:
            return PartitionExtent(partition, first, max(first, end), [], first)
        check_source(table, source, partition, listing)
        if first <= listing.end or allow_gaps:
            tail = max(listing.end, first)
            return PartitionExtent(
                partition, listing.files[0].first_offset, max(listing.end, end), listing.files, tail
            )
        gap = (listing.end, first)
    assert table is not None
    reason = "retention removed them before they came into the table"
    raise TableGapError(table.names.directory, partition, *gap, reason)
