# Reading a stream or a journal as Arrow's record batches, as programs call it. pyarrow is imported when it is
# first needed.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from diskq.engine.log.timestamps import as_timestamp
from diskq.storage.arguments import check_is, whole_number
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path
from diskq.tables.extras import needs_pyarrow
from diskq.tables.table import Table, open_table

__all__ = ["read_arrow"]


def read_arrow(
    path: AnyPath,
    *,
    columns: Sequence[str] | None = None,
    since: datetime | int | None = None,
    until: datetime | int | None = None,
    partitions: Iterable[int] | None = None,
    where: Any = None,
    table: Table | AnyPath | None = None,
    host: str | None = None,
    allow_gaps: bool = False,
    fs: FileSystem | None = None,
) -> Any:
    """Return the messages of a stream or a journal as a `pyarrow.RecordBatchReader`.

    They are those that there are now, each once, by partition in the order of offsets. With a `table` (or the
    directory `into` of one) its files are read first, also those whose segments are gone, and then the tail
    from the stream: while others write, update, compact and remove. What is read is what is consumed: no more
    than a few batches are in memory. `host` is that of the table, as in `open_table`, if `table` is the
    directory of one that has the streams of several machines.

    `columns` names those that are wanted, in this order; None: all. `since` and `until` (aware datetimes, or
    nanoseconds since 1970) choose messages from the one moment to before the other; without a time a message
    is in no such range. `partitions`: only these. `where` chooses rows by any columns, also by those that
    are not returned, as an expression of pyarrow's: `pyarrow.compute.field("key") == b"ada"`. Files, groups
    of rows and segments that are known to have no wanted row are not read. With `allow_gaps` what cannot be
    read is left out.

    Raises TypeError and ValueError, NotFoundError, TableMismatchError if the table is another stream's,
    TableGapError if messages are gone between the table and the stream; and, while it is read,
    CorruptionError, OffsetOutOfRangeError if retention has overtaken it, OSError.
    """
    text = as_path(path)
    if isinstance(columns, str):
        raise TypeError("columns is a list of names, got str")
    if host is not None and (table is None or isinstance(table, Table)):
        reason = "an opened table has its own" if table is not None else "is that of a table: name it, too"
        raise ValueError(f"host is {host!r}: {reason}")
    if table is not None and not isinstance(table, Table):
        table = open_table(text, table, host=host, fs=fs)
    chosen = None if partitions is None else [whole_number("partition", number) for number in partitions]
    check_is("allow_gaps", allow_gaps, bool, "True or False")
    bounds = tuple(None if moment is None else as_timestamp(moment) for moment in (since, until))
    with needs_pyarrow():
        from diskq.tables.scan import TableScan
    scan = TableScan(
        fs or OsFileSystem(),
        text,
        None if table is None else table.state,
        columns=None if columns is None else list(columns),
        since=bounds[0],
        until=bounds[1],
        partitions=chosen,
        where=where,
        allow_gaps=allow_gaps,
    )
    return scan.reader()
