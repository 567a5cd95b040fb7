# `diskq stream vacuum`. Law: the options decide, and what was removed is printed.

from __future__ import annotations

import argparse
import time

from diskq.cli.core import units
from diskq.cli.core.parsing import CommandError
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import note
from diskq.cli.stream.view import StreamView
from diskq.cli.table import pyarrow_explained
from diskq.engine.stream.groups import slowest
from diskq.engine.stream.retention import retain
from diskq.tables.table import open_table

__all__ = ["vacuum"]

_SECOND = 1_000_000_000


def vacuum(args: argparse.Namespace) -> None:
    view = StreamView(args.path)
    settings = view.settings
    max_bytes = settings.retention_max_bytes if args.max_bytes is None else args.max_bytes
    max_age_ns = settings.retention_max_age_ns if args.max_age is None else round(args.max_age * _SECOND)
    if max_bytes is None and max_age_ns is None:
        raise CommandError(
            f"{args.path} keeps everything: add --max-age or --max-bytes, "
            f"or change its settings (`diskq stream create {args.path} --retention-max-age 7d`)"
        )
    report = retain(
        view.fs,
        view.files,
        now_ns=time.time_ns(),
        max_bytes=max_bytes,
        max_age_ns=max_age_ns,
        keep_from=_keep_from(view, args),
        dry_run=args.dry_run,
    )
    for each in report.partitions:
        stdout.print(
            f"partition={each.partition} segments={len(each.removed)} bytes={each.removed_bytes} "
            f"oldest={each.first_offset}"
        )
    for segment in report.from_future:
        note(str(segment))
    segments = "1 segment" if report.segments == 1 else f"{report.segments} segments"
    would_be = "would be " if args.dry_run else ""
    note(f"{segments} {would_be}removed, {units.show_size(report.removed_bytes)}")


def _keep_from(view: StreamView, args: argparse.Namespace) -> dict[int, int]:
    """Return the offset of the first message that somebody needs, by partition."""
    needed = _needed(view) if args.keep_for_groups else {}
    if args.keep_for_table is not None:
        lacked = _lacked(view, args.keep_for_table, is_updated=not args.dry_run)
        needed = {index: min(offset, needed.get(index, offset)) for index, offset in lacked.items()}
    return needed


def _lacked(view: StreamView, into: str, *, is_updated: bool) -> dict[int, int]:
    """Return the offset of the first message that the table in `into` does not have, by partition.

    An update checks that the table is of this stream, and makes its names durable. Raises as `Table.update`.
    """
    with pyarrow_explained():
        table = open_table(view.path, into)
        if is_updated:
            table.update()
        ends = table.ends()
    return {partition: ends.get(partition, 0) for partition in view.partitions()}


def _needed(view: StreamView) -> dict[int, int]:
    """Return the offset of the first message that some group has yet to commit, by partition."""
    found = {partition: slowest(view.fs, view.files, partition) for partition in view.partitions()}
    return {partition: offset for partition, offset in found.items() if offset is not None}
