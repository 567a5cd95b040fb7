# `diskq stream lookup` and `stats`: offsets of a moment, and what a stream holds.

from __future__ import annotations

import argparse
import json

from diskq.cli.core import units
from diskq.cli.core.parsing import CommandError
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import say, show_table, shown
from diskq.cli.core.times import show_moment
from diskq.cli.stream.view import StreamView
from diskq.engine.stream.statistics import PartitionStatistics, as_go, stream_statistics

__all__ = ["lookup", "stats"]

# --- lookup ---------------------------------------------------------------------------------------


def lookup(args: argparse.Namespace) -> None:
    view = StreamView(args.path)
    partitions = view.partitions(args.partitions)
    found = {p: view.offset_at(p, args.at, or_at=args.at_or_after) for p in partitions}
    if all(offset is None for offset in found.values()):
        late = "at or after" if args.at_or_after else "later than"
        where = "" if args.partitions is None else f" in {', '.join(map(str, partitions))}"
        raise CommandError(
            f"no message of {args.path}{where} is {late} {show_moment(args.at)}: "
            f"`diskq stream stats {args.path}` shows the times that are there"
        )
    times = {p: None if offset is None else view.time_at(p, offset) for p, offset in found.items()}
    if args.json:
        for partition, offset in found.items():
            facts = {"PartitionIndex": partition, "Offset": offset, "TimestampUTC": times[partition]}
            stdout.print(json.dumps(facts, separators=(",", ":")))
        return
    rows = [
        (str(partition), "none" if offset is None else str(offset), times[partition] or "-")
        for partition, offset in found.items()
    ]
    columns = ["partition", "offset", "time"]
    show_table(columns, rows, numeric=columns[:2])


# --- stats ----------------------------------------------------------------------------------------


def stats(args: argparse.Namespace) -> None:
    view = StreamView(args.path)
    found = stream_statistics(view.fs, view.files)
    if args.json:
        stdout.print(json.dumps(as_go(found), separators=(",", ":")))
        return
    facts = {
        "stream": shown(found.path),
        "messages": str(found.messages),
        "bytes": f"{found.size_bytes} ({units.show_size(found.size_bytes)})",
        "age": units.show_duration(found.age_ns),
        "written by": view.writer or "-",
    }
    for what, value in facts.items():
        say(f"{what:14}{value}")
    stdout.print()
    columns = ["partition", "messages", "oldest", "newest", "from", "to", "segments", "size"]
    show_table(columns, [_row(partition) for partition in found.partitions], numeric=_NUMERIC)


_NUMERIC = ["partition", "messages", "oldest", "newest", "segments", "size"]


def _row(partition: PartitionStatistics) -> tuple[str, ...]:
    is_empty = partition.newest_offset is None
    return (
        str(partition.partition),
        str(partition.messages),
        "-" if is_empty else str(partition.oldest_offset),
        "-" if is_empty else str(partition.newest_offset),
        _time(partition.oldest_timestamp_ns),
        _time(partition.newest_timestamp_ns),
        str(partition.segments),
        units.show_size(partition.size_bytes),
    )


def _time(timestamp: int | None) -> str:
    return "-" if timestamp is None else show_moment(timestamp)
