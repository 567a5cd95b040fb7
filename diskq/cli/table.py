# `diskq stream table` and `diskq journal table`: complete segments as Parquet files. Law: what is printed on
# stdout has its name, durably; after any interruption the same command goes on.

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial

from diskq.cli.core import units
from diskq.cli.core.following import FileSystem, until
from diskq.cli.core.interrupts import run_async
from diskq.cli.core.opening import patient
from diskq.cli.core.parsing import (
    CommandError,
    CommandParser,
    Commands,
    UsageError,
    add_command,
    usage_errors,
)
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import note, say
from diskq.cli.core.times import MOMENTS, moment
from diskq.distribution import install_command
from diskq.options import COMPRESSIONS, KEEPS, TableOptions
from diskq.tables.names import TableFile
from diskq.tables.sources import LogSource, open_source
from diskq.tables.state import TableUpdate
from diskq.tables.table import Table, open_table

__all__ = ["add_table", "pyarrow_explained"]

ABOUT = """
Keep a {noun} as a table of Parquet files, which DuckDB, Polars, pandas and Spark read without diskq. Each
complete segment becomes one file, DIR/topic=NAME/partition=P/FIRST-NEXT.parquet, named by its offsets from
FIRST to before NEXT. A line is printed for each new one. A second run does nothing twice; after a kill or a
power cut the next one goes on. The segment that is being written to is not in the table yet, and neither is
one that its producer has not synced.

One process at a time updates a table, any number read it. Needs `{install}`.
"""

EXAMPLES = """
  diskq {noun} table {path} --into /lake
  diskq {noun} table {path} --into /lake --follow
  diskq {noun} table {path} --into /lake --keep segments --compact 256MiB
  diskq {noun} table {path} --into /lake --until '2013-07-05 00:00 America/New_York'
"""


def add_table(verbs: Commands, noun: str, path: str, metavar: str) -> CommandParser:
    """Add the verb `table` to a noun, with examples about `path`. Returns its parser."""
    about, examples = (
        ABOUT.format(noun=noun, install=install_command("arrow")),
        EXAMPLES.format(noun=noun, path=path),
    )
    parser = add_command(verbs, "table", "keep it as Parquet files", about, examples)
    parser.add_path(noun, metavar)
    parser.add_argument(
        "--into",
        required=True,
        metavar="DIR",
        help="the directory of tables; it is made. Or where pyarrow puts it: s3://bucket/lake, gs://, hdfs://",
    )
    parser.add_argument(
        "--host",
        metavar="NAME",
        help="keep it in host=NAME below DIR, which other machines share (default: no)",
    )
    parser.add_argument(
        "--topic", metavar="NAME", help=f"its name there (default: that of the {noun}'s directory)"
    )
    parser.add_flag("--follow", help="go on with new segments until interrupted (default: stop)")
    parser.add_argument(
        "--compression",
        choices=COMPRESSIONS,
        default="zstd",
        help="how pages of new files are compressed (default: zstd)",
    )
    parser.add_argument(
        "--keep",
        choices=KEEPS,
        default="all",
        help=f"`all`: files stay when their messages are gone from the {noun}; `segments`: they go, too "
        "(default: all)",
    )
    parser.add_argument(
        "--until",
        type=moment,
        metavar="TIME",
        help="in each partition end before the first segment with a message at this moment or later: "
        f"{MOMENTS} (default: all)",
    )
    parser.add_size("--compact", help="then join files in a row up to this size (default: do not)")
    parser.add_duration(
        "--keep-replaced",
        default=0.0,
        help="how long files that were joined stay, for queries that have listed them (default: 0s)",
    )
    parser.add_flag(
        "--allow-gaps",
        help="leave out messages that cannot be read, or that retention has removed before; their file says "
        "so (default: refuse)",
    )
    parser.add_wait("table")
    parser.add_json("a line for each new file")
    parser.set_defaults(run=run_table)
    return parser


def run_table(args: argparse.Namespace) -> None:
    if args.follow and args.until is not None:
        raise UsageError("--until ends the table, and --follow goes on: leave one of them out")
    with pyarrow_explained():
        table = _opened(args)
        while True:
            before = _source(table).progress()
            patient(lambda: _update(table, args), args.wait)
            if not args.follow:
                return
            run_async(until, partial(_has_changed, table, before), _watched(table))


def _source(table: Table) -> LogSource:
    """Return the stream or journal as it is now: what its redo log alone has is seen until it is opened."""
    return open_source(table.state.source_fs, table.path)


def _has_changed(table: Table, before: object) -> bool:
    return _source(table).progress() != before


@usage_errors()
def _opened(args: argparse.Namespace) -> Table:
    options = TableOptions(
        compression=args.compression,
        keep=args.keep,
        allow_gaps=args.allow_gaps,
        keep_replaced=args.keep_replaced,
    )
    return open_table(args.path, args.into, options=options, topic=args.topic, host=args.host)


def _watched(table: Table) -> Callable[[FileSystem], tuple[list[str], list[str]]]:
    return lambda _: (_source(table).watched(), [])


def _update(table: Table, args: argparse.Namespace) -> None:
    def show(file: TableFile) -> None:
        if args.json:
            stdout.print(json.dumps(asdict(file)))
        else:
            offsets = f"{file.first_offset}..{file.next_offset - 1}"
            say(f"partition={file.partition} offset={offsets} file={file.path}")
        stdout.flush()

    done = table.update(until=args.until, each=show)
    joined = table.compact(args.compact, each=show) if args.compact is not None else TableUpdate()
    if done.made or joined.made or not args.follow:
        note(_summary(table, done, joined))


def _summary(table: Table, done: TableUpdate, joined: TableUpdate) -> str:
    if not done.made and not done.removed and not joined.made:
        return f"nothing new: the table has {table.statistics().offsets} messages"
    parts = [f"{_files(len(done.made))}, {done.messages} messages, {units.show_size(done.written_bytes)}"]
    if done.missing:
        parts.append(f"{done.missing} are missing")
    if done.removed:
        parts.append(f"{_files(len(done.removed))} removed")
    if joined.made:
        parts.append(f"{_files(len(joined.removed))} joined into {len(joined.made)}")
    return "; ".join(parts)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


@contextmanager
def pyarrow_explained() -> Iterator[None]:
    """Say what to install if the block needs pyarrow and finds none."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name != "pyarrow":
            raise
        raise CommandError(f"tables need pyarrow: {install_command('arrow')}") from None
