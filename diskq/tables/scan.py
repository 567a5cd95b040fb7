# A stream or a journal as Arrow's record batches: the table's files first, then the tail from the log. Law:
# each message of the range that there is when reading begins is handed out once, in the order of offsets,
# whatever is appended, made into files, compacted or removed meanwhile.
#
# So each place is looked up when it is reached: a file of the table that has the offset, or else the log.

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from diskq.errors import CorruptionError, NotFoundError, OffsetOutOfRangeError
from diskq.storage.fs import FileSystem
from diskq.tables.arrow import NANOS, batches, schema_of, with_place
from diskq.tables.extents import extent_of
from diskq.tables.names import Listing, TableFile, TableFiles
from diskq.tables.parquet import batches_of, footer_of, open_file, source_of
from diskq.tables.sources import Reader, open_source, pieces
from diskq.tables.state import TableState
from diskq.tables.where import Where

__all__ = ["TableScan", "dataset"]


class _Range(NamedTuple):
    """Messages of a partition: offsets `start` to `end` - 1."""

    partition: int
    start: int
    end: int


class TableScan:
    """One reading of a stream or a journal, with or without its table."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        table: TableState | None,
        *,
        columns: list[str] | None,
        since: int | None,
        until: int | None,
        partitions: list[int] | None,
        where: Any,
        allow_gaps: bool,
    ) -> None:
        """Decide what is read. Raises as `read_arrow`."""
        self._table = table
        self._files = fs if table is None else table.fs
        self._source = open_source(fs, path)
        self._topic = table.names.topic if table is not None else path.rstrip("/").rpartition("/")[2]
        self._since, self._until = since, until
        self._allow_gaps = allow_gaps
        self._files_schema = schema_of(self._source.kind)
        full = with_place(self._files_schema)
        names = full.names if columns is None else columns
        if unknown := [name for name in names if name not in full.names]:
            raise ValueError(f"no column {unknown[0]!r}: there are {', '.join(full.names)}")
        if not names:
            raise ValueError("at least one column is read: without any, no rows could be counted")
        self._schema = pa.schema([full.field(name) for name in names])
        self._where = None if where is None else Where(where, full)
        # What has to be read besides, to choose rows.
        asked = [] if self._where is None else self._where.columns
        self._made_schema = pa.schema([full.field(name) for name in dict.fromkeys([*names, *asked])])
        needed = {*self._made_schema.names, *([NANOS] if self._is_timed else [])}
        kept = [field for field in self._files_schema if field.name in needed or field.name == "offset"]
        self._read_schema = pa.schema(kept)
        if table is not None:
            table.names.partitions()  # raises for what does not belong there
        there = self._source.partitions()
        if partitions is not None and (missing := sorted(set(partitions) - set(there))):
            raise NotFoundError("partition", path, f"there is no partition {missing[0]}: there are {there}")
        extents = [
            extent_of(self._source, table, partition, allow_gaps=allow_gaps)
            for partition in there
            if partitions is None or partition in partitions
        ]
        self._ranges = [_Range(each.partition, each.start, each.end) for each in extents]

    @property
    def _is_timed(self) -> bool:
        return self._since is not None or self._until is not None

    def reader(self) -> Any:
        """Return the `pyarrow.RecordBatchReader`."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches())

    def _listing(self, partition: int) -> Listing:
        return Listing([], []) if self._table is None else self._table.names.listing(partition)

    # --- reading ----------------------------------------------------------------------------------

    def _batches(self) -> Iterator[Any]:
        for its in self._ranges:
            at = its.start
            while at < its.end:
                # A list of the files serves until it ends, or one of them is gone.
                for file in self._files_from(its.partition, at):
                    if at >= its.end:
                        break
                    rest = its._replace(start=at, end=min(file.next_offset, its.end))
                    try:
                        if self._may_be_wanted(rest):
                            yield from self._from_file(file, rest)
                    except FileNotFoundError:
                        break  # a compaction has removed it for a larger one, or retention for good
                    at = rest.end
                else:
                    if at < its.end:
                        rest = self._of_log(its._replace(start=at))
                        at = rest.start
                        if at < rest.end:
                            at = yield from self._from_log(rest)

    def _files_from(self, partition: int, offset: int) -> list[TableFile]:
        """Return the files that have this offset, and later ones; none if the log has to have it."""
        files = [file for file in self._listing(partition).files if file.next_offset > offset]
        return files if files and files[0].first_offset <= offset else []

    def _of_log(self, its: _Range) -> _Range:
        """Return the first segments in a row that may have wanted rows; empty, at the end, if none has."""
        if self._where is None:
            return its
        edges = [base for base in self._source.bases(its.partition) if its.start < base < its.end]
        found: _Range | None = None
        for start, end in pairwise([its.start, *edges, its.end]):
            segment = its._replace(start=start, end=end)
            if self._may_be_wanted(segment):
                found = segment if found is None else found._replace(end=end)
            elif found is not None:
                break
        return found or its._replace(start=its.end)

    def _may_be_wanted(self, its: _Range) -> bool:
        return self._where is None or self._where.may_have(self._topic, its.partition, its.start, its.end)

    def _from_file(self, file: TableFile, its: _Range) -> Iterator[Any]:
        """Yield rows of a file. Raises FileNotFoundError before the first one, CorruptionError."""
        with open_file(self._files, file.path) as opened:
            missing = [gap for gap in footer_of(file.path, opened).missing if gap[1] > its.start]
            if missing and not self._allow_gaps:
                reason = f"offsets {missing[0][0]} to {missing[0][1] - 1} were left out of this file"
                raise CorruptionError(file.path, 0, reason)
            groups = set(range(opened.num_row_groups))
            if self._where is not None:
                with source_of(self._files, file.path) as source:
                    groups &= self._where.groups(source, self._topic, its.partition)
            for number in sorted(groups):
                if self._may_have(opened.metadata.row_group(number), its):
                    for batch in batches_of(opened, number, self._read_schema.names):
                        yield from self._chosen(batch, its)

    def _may_have(self, group: Any, its: _Range) -> bool:
        """True unless the statistics of a group of rows show that no row of it is wanted."""
        bounds = {"offset": (its.start, its.end), NANOS: (self._since, self._until)}
        columns = map(group.column, range(group.num_columns))
        found = {column.path_in_schema: column.statistics for column in columns}
        for name, (start, end) in bounds.items():
            statistics = found.get(name)
            if statistics is not None and statistics.has_min_max:
                is_before = start is not None and statistics.max < start
                if is_before or (end is not None and statistics.min >= end):
                    return False
        return True

    def _from_log(self, its: _Range) -> Generator[Any, None, int]:
        """Yield rows from the log. Returns the offset to go on with: `its.end`, if retention was slower.

        Raises CorruptionError, OffsetOutOfRangeError, OSError.
        """
        at = its.start
        with self._source.open(its.partition) as reader:
            try:
                for batch in batches(pieces(reader, at, its.end), at, its.end, self._read_schema):
                    offsets = batch.column("offset")
                    self._check(reader, at, offsets[0].as_py())
                    yield from self._chosen(batch, its)
                    at = offsets[-1].as_py() + 1
            except OffsetOutOfRangeError as gone:
                if self._files_from(its.partition, at):
                    return at  # they came into the table before they were removed
                if not self._allow_gaps or gone.first_offset <= at:
                    raise
                return min(gone.first_offset, its.end)
            self._check(reader, at, its.end)
        return its.end

    def _check(self, reader: Reader, at: int, offset: int) -> None:
        """Raise CorruptionError if messages from `at` to before `offset` are missing, and may not be."""
        if at == offset or self._allow_gaps:
            return
        loss = next((loss for loss in reader.losses if loss.count), None)
        what = f"offsets {at} to {offset - 1} cannot be read"
        if loss is None:
            raise CorruptionError(self._source.path, 0, what)
        raise CorruptionError(loss.path, loss.start, f"{loss.reason}: {what}")

    def _chosen(self, batch: Any, its: _Range) -> Iterator[Any]:
        """Yield the rows of the batch that are wanted, with the columns that are wanted."""
        offsets = batch.column("offset")
        if len(offsets) and (offsets[0].as_py() < its.start or offsets[-1].as_py() >= its.end):
            in_range = pc.and_(pc.greater_equal(offsets, its.start), pc.less(offsets, its.end))
            batch = batch.filter(in_range)
        if self._since is not None:
            batch = batch.filter(pc.greater_equal(batch.column(NANOS), self._since))
        if self._until is not None:
            batch = batch.filter(pc.less(batch.column(NANOS), self._until))
        if not batch.num_rows:
            return
        place = {"topic": pa.scalar(self._topic), "partition": pa.scalar(its.partition, pa.int32())}
        columns = [
            pa.repeat(place[name], batch.num_rows) if name in place else batch.column(name)
            for name in self._made_schema.names
        ]
        made = pa.RecordBatch.from_arrays(columns, schema=self._made_schema)
        if self._where is None:
            yield made
        else:
            yield from self._where.choose(made).select(self._schema.names).to_batches()


def dataset(names: TableFiles, schema: Any, filesystem: Any) -> Any:
    """As `Table.dataset`. `schema` is that of the table; `filesystem` None: this machine's."""
    places = pa.schema([("topic", pa.string()), ("partition", pa.int32())])
    return pyarrow.dataset.dataset(
        [file.path for file in names.files()],
        schema=schema,
        format="parquet",
        filesystem=filesystem,
        partitioning=pyarrow.dataset.partitioning(places, flavor="hive"),
    )
