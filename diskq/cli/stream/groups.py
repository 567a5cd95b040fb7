# `diskq stream groups`: positions of groups. Law: reading changes nothing; a group is moved in all its
# partitions or in none, and never while a process reads as this group.

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from dataclasses import dataclass

from diskq.cli.core.parsing import CommandError, UsageError
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import note, show_table, shown
from diskq.cli.stream.view import StreamView
from diskq.engine.stream.groups import ConsumerGroup, check_group_name
from diskq.engine.stream.groups import groups as groups_of
from diskq.errors import NotFoundError

__all__ = ["groups"]


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The position of a group in a partition."""

    group: str
    partition: int
    committed: int | None
    lag: int | None
    """Messages that it has not committed; None if the partition is gone."""


def groups(args: argparse.Namespace) -> None:
    view = StreamView(args.path)
    if args.reset is not None:
        _reset(args, view)
        return
    if args.to is not None:
        raise UsageError("--to goes with --reset GROUP")
    wanted = None if args.partitions is None else view.partitions(args.partitions)
    found = _progress(view, wanted)
    if args.json:
        for each in found:
            facts = {"Group": each.group, "PartitionIndex": each.partition}
            stdout.print(json.dumps({**facts, "Committed": each.committed, "Lag": each.lag}))
    elif found:
        columns = ["group", "partition", "committed", "lag"]
        rows = [_row(each) for each in found]
        show_table(columns, rows, numeric=columns[1:])
    else:
        note(f"no group has read {args.path}")


def _row(found: GroupProgress) -> tuple[str, ...]:
    return shown(found.group), str(found.partition), _number(found.committed), _number(found.lag)


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _progress(view: StreamView, wanted: list[int] | None) -> list[GroupProgress]:
    found = []
    for group in groups_of(view.fs, view.files):
        for repair in group.repairs:
            note(f"warning: {repair}")
        for partition, committed in group.offsets.items():
            if wanted is None or partition in wanted:
                lag = _lag(view, partition, committed)
                found.append(GroupProgress(group.name, partition, committed, lag))
    return found


def _lag(view: StreamView, partition: int, committed: int | None) -> int | None:
    try:
        with view.reader(partition) as reader:
            first = reader.first_offset()
            return max(0, reader.next_offset() - max(first, 0 if committed is None else committed + 1))
    except NotFoundError:
        return None


# --- reset ----------------------------------------------------------------------------------------


def _reset(args: argparse.Namespace, view: StreamView) -> None:
    if args.to is None or args.to == "at-offset":
        raise UsageError("--reset needs --to: oldest, newest, an offset or a time")
    if args.json:
        raise UsageError("--json and --reset exclude each other")
    check_group_name(args.reset)
    known = {group.name: group.offsets for group in groups_of(view.fs, view.files)}
    if args.reset not in known:
        names = f"there are {', '.join(known)}" if known else "there are none"
        raise CommandError(f"no group {args.reset!r} has read {args.path}: {names}")
    partitions = view.partitions(known[args.reset] if args.partitions is None else args.partitions)
    group = ConsumerGroup(view.fs, view.files, args.reset)
    with ExitStack() as stack:
        for partition in partitions:
            claim = group.claim(partition)
            if claim is None:
                where = f"partition {partition} of {args.path}"
                raise CommandError(f"{where} is being read as group {args.reset!r}: stop that first")
            stack.callback(claim.release)
        offsets = {partition: view.offset_of(partition, args.to) for partition in partitions}
        for partition, offset in offsets.items():
            with group.committed_offset(partition) as committed_offset:
                committed_offset.commit(offset - 1 if offset else None, seek=True)
            stdout.print(f"partition={partition} offset={offset}")
