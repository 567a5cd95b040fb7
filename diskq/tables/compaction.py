# Many small files into one. Law: the large file is durable under its name before a file that it replaces
# goes; and of two files that have a message, the larger one counts. So those that it replaces may stay for a
# while (`keep_replaced`), for whoever has listed them.

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from diskq.errors import CorruptionError
from diskq.storage.barrier import Barrier
from diskq.tables.locking import full_disk_reported, locked
from diskq.tables.names import TableFile
from diskq.tables.parquet import Footer, ParquetTarget, batches_of, footer_of, open_file, read_footer
from diskq.tables.state import TableState, TableUpdate
from diskq.tables.updating import check_whole, expired, install, new_file

__all__ = ["compact"]


def compact(table: TableState, target_size: int, each: Callable[[TableFile], object] | None) -> TableUpdate:
    """As `Table.compact`."""
    fs = table.fs
    made: list[TableFile] = []
    removed: list[TableFile] = []
    messages = size = 0
    with locked(table):
        for partition in table.names.partitions():
            listing = table.names.listing(partition)
            check_whole(table, listing)
            removed += _remove(table, expired(table, listing))
            sized = [(file, fs.size_of(file.path) or 0) for file in listing.files]
            for run in runs(sized, target_size):
                with full_disk_reported(table), new_file(table, _footer(table, run)) as target:
                    _fill(table, target, run)
                    file, its_size = install(table, target)
                made.append(file)
                if not table.options.keep_replaced:
                    removed += _remove(table, run)
                messages += target.rows
                size += its_size
                if each is not None:
                    each(file)
    return TableUpdate(made=tuple(made), messages=messages, written_bytes=size, removed=tuple(removed))


def _remove(table: TableState, files: list[TableFile]) -> list[TableFile]:
    Barrier(removals=tuple(file.path for file in files)).execute(table.fs)
    return files


def runs(sized: list[tuple[TableFile, int]], target_size: int) -> Iterator[list[TableFile]]:
    """Yield the files to be joined: in a row, together not larger than `target_size`, and more than one."""
    run: list[TableFile] = []
    total = 0
    for file, size in sized:
        is_large = 2 * size >= target_size
        if is_large or total + size > target_size:
            if len(run) > 1:
                yield run
            run, total = [], 0
        if not is_large:
            run.append(file)
            total += size
    if len(run) > 1:
        yield run


def _footer(table: TableState, run: list[TableFile]) -> Footer:
    """Return what a file with all of these says of itself."""
    return replace(read_footer(table.fs, run[-1]), first=run[0].first_offset, missing=())


def _fill(table: TableState, target: ParquetTarget, run: list[TableFile]) -> None:
    """Add the rows of these files. Raises CorruptionError if they are not all there."""
    expected = 0
    for file in run:
        with open_file(table.fs, file.path) as opened:
            expected += footer_of(file.path, opened).rows
            for number in range(opened.num_row_groups):
                for batch in batches_of(opened, number):
                    target.add(batch)
    target.finish()
    if target.rows != expected:
        raise CorruptionError(run[0].path, 0, f"{expected} rows are due up to {run[-1].path}")
