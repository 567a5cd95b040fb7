# An update of a table. Law: a file gets its name when all of it is durable, in the order of offsets; so after
# a kill or a power cut the names are an exact table, which the next update continues.

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow.compute as pc

from diskq.errors import CorruptionError, ForeignFilesError, TableGapError, TableMismatchError
from diskq.storage.barrier import Barrier, opened
from diskq.storage.directories import make_directories
from diskq.storage.fs import base_name
from diskq.tables.arrow import NANOS, batches, schema_of
from diskq.tables.locking import full_disk_reported, locked
from diskq.tables.names import Listing, TableFile
from diskq.tables.parquet import Footer, ParquetTarget, read_footer
from diskq.tables.sources import GONE, LogSource, Reader, Segment, open_source, pieces
from diskq.tables.state import TableState, TableUpdate

__all__ = ["Updating", "check_source", "check_whole", "expired", "install", "new_file"]

_MAGIC = b"PAR1"
# How often a partition is begun again if retention removes segments while they are read.
_TRIES = 3


class Updating:
    """One update of a table."""

    def __init__(
        self, table: TableState, until: int | None, each: Callable[[TableFile], object] | None
    ) -> None:
        """Raises NotFoundError, UnsupportedFormatError, OSError."""
        self._table = table
        self._fs = table.fs
        self._names = table.names
        self._until = until
        self._each = each
        self._source = open_source(table.source_fs, table.path)
        self._identity = self._source.identity()
        self._made: list[TableFile] = []
        self._removed: list[TableFile] = []
        self._messages = self._size = self._missing = 0

    def run(self) -> TableUpdate:
        """Do all of it. Raises as `Table.update`."""
        with locked(self._table):
            for partition in self._source.partitions():
                for attempt in range(1, _TRIES + 1):
                    try:
                        self._update(partition)
                        break
                    except GONE:
                        if attempt == _TRIES:
                            raise
        return TableUpdate(
            made=tuple(self._made),
            messages=self._messages,
            written_bytes=self._size,
            removed=tuple(self._removed),
            missing=self._missing,
        )

    def _update(self, partition: int) -> None:
        source = self._source
        listing = self._names.listing(partition)
        check_whole(self._table, listing)
        check_source(self._table, source, partition, listing)
        files = self._clean(partition, listing)
        end = files[-1].next_offset if files else None
        with source.open(partition) as reader:
            for segment in source.sealed(partition):
                if end is not None and segment.next <= end:
                    continue
                if not source.make_durable(partition, segment):
                    return
                start = segment.first if end is None else end
                if start < segment.first and not self._table.options.allow_gaps:
                    reason = "retention removed them before they came into the table"
                    raise TableGapError(self._names.directory, partition, start, segment.first, reason)
                if not self._write(reader, partition, start, segment):
                    return
                end = segment.next

    def _clean(self, partition: int, listing: Listing) -> list[TableFile]:
        """Remove files that are superseded, or whose segments are gone. Returns the others."""
        gone = expired(self._table, listing)
        files = listing.files
        if self._table.options.keep == "segments":
            first = self._source.first_offset(partition)
            rest = [file for file in files if file.next_offset > first]
            if len(rest) < len(files):
                # Where the larger file is gone, those that it superseded would be the table again, or a part
                # of them: they go first.
                gone += [
                    file for file in listing.superseded if file.next_offset <= first and file not in gone
                ]
                self._remove(partition, gone)
                gone = files[: len(files) - len(rest)]
            files = rest
        self._remove(partition, gone)
        return files

    def _remove(self, partition: int, files: list[TableFile]) -> None:
        """Remove files, durably: no power cut brings one back after what goes next."""
        if files:
            Barrier(removals=tuple(file.path for file in files)).execute(self._fs)
            if self._table.remote is None:
                Barrier(directories=(self._names.partition(partition),)).execute(self._fs)
            self._removed += files

    def _write(self, reader: Reader, partition: int, start: int, segment: Segment) -> bool:
        """Make the file of a segment, from offset `start` on. False if it is too late for `until`."""
        reader.losses.clear()
        footer = Footer(
            kind=self._source.kind,
            stream=self._identity,
            topic=self._names.topic,
            partition=partition,
            first=start,
            next=segment.next,
        )
        with full_disk_reported(self._table), new_file(self._table, footer) as target:
            if not self._fill(target, reader, max(start, segment.first), segment.next):
                return False
            footer = target.finish()
            if footer.missing and not self._table.options.allow_gaps:
                raise _gap(self._names.directory, footer, reader)
            file, size = install(self._table, target)
        self._made.append(file)
        self._messages += target.rows
        self._size += size
        self._missing += sum(end - begin for begin, end in footer.missing)
        if self._each is not None:
            self._each(file)
        return True

    def _fill(self, target: ParquetTarget, reader: Reader, start: int, end: int) -> bool:
        """Add the messages of a segment. False if one of them is too late for `until`."""
        schema = schema_of(target.footer.kind)
        for batch in batches(pieces(reader, start, end), start, end, schema):
            if self._until is not None and _is_late(batch, self._until):
                return False
            target.add(batch)
        return True


def _is_late(batch: Any, until: int) -> bool:
    greatest = pc.max(batch.column(NANOS)).as_py()
    return greatest is not None and greatest >= until


def _gap(directory: str, footer: Footer, reader: Reader) -> TableGapError:
    (first, end), *_ = footer.missing
    reason = next((loss.reason for loss in reader.losses if loss.count), "nothing is left of them")
    return TableGapError(directory, footer.partition, first, end, f"{reason}; `allow_gaps` leaves them out")


@contextmanager
def new_file(table: TableState, footer: Footer) -> Iterator[ParquetTarget]:
    """Make a file for a `with` block. What is left of it at the end, without its name, is removed."""
    path = table.names.temporary()
    try:
        target = ParquetTarget(table.fs, path, footer, table.options.compression)
        try:
            yield target
        finally:
            target.abandon()
    finally:
        with suppress(OSError):  # then the next holder of the lock removes it
            Barrier(removals=(path,)).execute(table.fs)


def install(table: TableState, target: ParquetTarget) -> tuple[TableFile, int]:
    """Give a finished file its name, durably. Returns it, with its size in bytes. Raises OSError.

    If that fails, the file is removed, under whichever name it has.
    """
    fs, footer = table.fs, target.footer
    file = table.names.file(footer.partition, footer.first, footer.next)
    if table.remote is None:
        make_directories(fs, table.names.partition(footer.partition))
    handle, target.handle = target.handle, -1
    size = fs.size(handle)
    barrier = Barrier(files=(handle,), installs=((target.path, file.path),), closing=(handle,))
    try:
        barrier.execute(fs)
    except OSError:
        # A name in an object store may be what another updater has put there.
        removals = (target.path, file.path) if table.remote is None else (target.path,)
        with suppress(OSError):
            Barrier(removals=removals).execute(fs)
        raise
    table.known.add(file.path)
    return file, size


def expired(table: TableState, listing: Listing) -> list[TableFile]:
    """Return the superseded files that have stayed for `keep_replaced` seconds. Raises OSError."""
    kept = table.options.keep_replaced
    if not kept:
        return list(listing.superseded)
    until = int((table.source_fs.wall_clock() - kept) * 1e9)
    there = [*listing.files, *listing.superseded]
    stamps = {file: table.fs.stamp_of(file.path) for file in there} if listing.superseded else {}
    return [
        file
        for file in listing.superseded
        # It was replaced by the first of the files that have its messages, too.
        if any(
            (stamp := stamps[other]) is not None and stamp.modified_ns <= until
            for other in there
            if other != file
            and other.first_offset <= file.first_offset
            and file.next_offset <= other.next_offset
        )
    ]


# --- what is there already ------------------------------------------------------------------------


def check_whole(table: TableState, listing: Listing) -> None:
    """Check that each file of the listing ends as a Parquet file does, once. Raises CorruptionError."""
    fs = table.fs
    for file in listing.files:
        if file.path in table.known:
            continue
        with opened(fs, file.path) as handle:
            size = fs.size(handle)
            tail = fs.pread(handle, 8, max(0, size - 8))
        if tail[4:] != _MAGIC or int.from_bytes(tail[:4], "little") > size - 12:
            raise CorruptionError(file.path, size, "the end of the Parquet file is missing")
        table.known.add(file.path)


def check_source(table: TableState, source: LogSource, partition: int, listing: Listing) -> None:
    """Check that the files of the listing are the table of this stream. Raises TableMismatchError.

    Raises ForeignFilesError for a file that is not what its name says; and as `read_footer`.
    """
    if not listing.files:
        return
    last = listing.files[-1]
    footer = read_footer(table.fs, last)

    def mismatch(reason: str) -> TableMismatchError:
        return TableMismatchError(table.names.directory, source.path, reason)

    if (footer.partition, footer.first, footer.next) != (last.partition, last.first_offset, last.next_offset):
        its = f"offsets {footer.first} to {footer.next - 1} of partition {footer.partition}"
        reason = f"says that it has {its}"
        raise ForeignFilesError(table.names.partition(partition), [base_name(last.path)], reason)
    if footer.kind != source.kind:
        raise mismatch(f"its files are of a {footer.kind}, and there is a {source.kind}")
    identity = source.identity()
    if footer.stream and footer.stream != identity:
        here = f"stream {identity}" if identity else "one without an id"
        raise mismatch(f"its files are of stream {footer.stream}, and there is {here}")
    if footer.mark is not None and source.mark(partition, footer.mark[0]) not in (None, footer.mark):
        raise mismatch(f"message {footer.mark[0]} of partition {partition} is another one")
    if last.next_offset > (end := source.next_offset(partition)):
        reason = f"it has messages up to {last.next_offset - 1} of partition {partition}, which ends at {end}"
        raise mismatch(reason)
