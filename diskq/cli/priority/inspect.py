# `diskq priority queues`, `peek`, `inspect` and `repair`: what is in a store, and the state of its files.
# Law: reading takes no lock and changes nothing; what would be cut is shown before anything is cut.

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from diskq.cli.core import units
from diskq.cli.core.interrupts import run_async
from diskq.cli.core.opening import patient
from diskq.cli.core.parsing import CommandError
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import note, preview, say, show_table, shown, warnings_left_out
from diskq.cli.priority.verbs import PriorityOutput
from diskq.cli.priority.view import check_store
from diskq.cli.repair import line_of
from diskq.engine.priority.audit import (
    LoggedCommand,
    SegmentReport,
    StoreReport,
    inspect_store,
    read_commands,
)
from diskq.engine.priority.store import PriorityQueueInfo
from diskq.engine.priority.view import StoreOpening, look_at_store, repair_store, try_opening
from diskq.errors import DamagedStoreError, NotFoundError
from diskq.tools.holders import StoreOwner, owner_of

__all__ = ["inspect", "peek", "queues", "repair"]

# --- queues, and what is in them ------------------------------------------------------------------


def queues(args: argparse.Namespace) -> None:
    check_store(args.path)
    infos = look_at_store(args.path).infos()
    if args.json:
        stdout.print(json.dumps([_queue_as_json(info) for info in infos], indent=2))
        return
    columns = ["queue", "messages", "size", "last id", "allows", "of at most", "priorities", "kind"]
    show_table(columns, [_queue_row(info) for info in infos], numeric=columns[1:6])
    owner = owner_of(args.path)
    if owner.is_open is not False:
        note(f"open in {owner}")


def _queue_as_json(info: PriorityQueueInfo) -> dict[str, Any]:
    # The files do not show which messages are in flight.
    facts = dataclasses.asdict(info)
    facts["bytes"] = facts.pop("body_bytes")
    del facts["ready"], facts["in_flight"]
    return facts


def _queue_row(info: PriorityQueueInfo) -> tuple[str, ...]:
    return (
        info.name or "''",
        str(info.stored),
        units.show_size(info.body_bytes),
        str(info.last_id),
        "-" if info.max_messages is None else str(info.max_messages),
        "-" if info.max_message_size is None else units.show_size(info.max_message_size),
        "-" if info.priority_range is None else "{}..{}".format(*info.priority_range),
        info.implementation,
    )


def peek(args: argparse.Namespace) -> None:
    check_store(args.path)
    name = args.queue or ""
    queue = look_at_store(args.path).queues.get(name)
    if queue is None:
        raise NotFoundError("priority queue", args.path, f"there is no queue {name!r}")
    records = queue.table.peek(args.max_messages)
    if not stdout.is_terminal() or args.framing:
        run_async(PriorityOutput(args.framing).write, records)
        return
    rows = [
        (str(each.id), str(each.priority), units.show_size(len(each.body)), preview(each.body))
        for each in records
    ]
    columns = ["id", "priority", "size", "message"]
    show_table(columns, rows, numeric=columns[:3])
    if queue.table.stored > len(records):
        note(f"and {queue.table.stored - len(records)} more")


# --- inspect --------------------------------------------------------------------------------------


def inspect(args: argparse.Namespace) -> None:
    check_store(args.path)
    report = inspect_store(args.path)
    with warnings_left_out():
        opening = try_opening(args.path)
    owner = owner_of(args.path)
    if args.json:
        stdout.print(json.dumps(_as_json(args, report, opening, owner), indent=2))
    else:
        _show(args, report, opening, owner)
    if opening.refusal is not None:
        is_damaged = isinstance(opening.refusal, DamagedStoreError)
        raise CommandError(str(opening.refusal) if is_damaged else f"it cannot be opened: {opening.refusal}")


def _show(args: argparse.Namespace, report: StoreReport, opening: StoreOpening, owner: StoreOwner) -> None:
    snapshot = report.snapshot
    facts = {
        "files in": shown(report.root),
        "open in": str(owner),
        "layout": opening.layout,
        "metadata": report.metadata_trouble or f"term {report.term}",
        "snapshot": "-",
        "next command": "" if opening.refusal is not None else str(opening.next_lsn),
    }
    if snapshot is not None:
        held = sum(snapshot.queues.values())
        size = units.show_size(snapshot.size)
        facts["snapshot"] = snapshot.trouble or (
            f"up to command {snapshot.lsn}: {len(snapshot.queues)} queues, {held} messages, {size}"
        )
    for what, value in facts.items():
        if value:
            say(f"{what:14}{value}")
    stdout.print()
    columns = ["segment", "commands", "up to", "end", "size", "layout", "state"]
    show_table(columns, [_segment_row(each) for each in report.segments], numeric=columns[1:5])
    for gap in report.gaps:
        stdout.print(f"command {gap} is in no segment")
    if args.commands:
        stdout.print()
        columns = ["command", "byte", "term", "kind", "queue", "priority", "id", "size", "message"]
        rows = [_command_row(each) for each in _commands(args, report)]
        show_table(columns, rows, numeric=["command", "byte", "term", "priority", "id", "size"])
    stdout.print()
    say(f"{'next open':14}{opening.outcome}")
    for name, times in opening.warnings.items():
        say(f"{'warnings':14}{name}: {times}")
    for repair in opening.repairs:
        say(f"{'to be cut':14}{repair}")


def _segment_row(each: SegmentReport) -> tuple[str, ...]:
    state = each.trouble or ("covered" if each.is_covered else "whole")
    if each.trouble is not None:
        more = ", and whole records after it" if each.has_more else ""
        state = f"{each.trouble}, at byte {each.end}, command {each.next_lsn}{more}"
    return (
        each.path.rpartition("/")[2],
        str(each.records),
        "-" if not each.records else str(each.next_lsn - 1),
        str(each.end),
        str(each.size),
        each.layout,
        state,
    )


def _commands(args: argparse.Namespace, report: StoreReport) -> list[LoggedCommand]:
    return [command for each in report.segments for command in read_commands(args.path, each.lsn)]


def _command_row(each: LoggedCommand) -> tuple[str, ...]:
    body = each.body
    return (
        str(each.lsn),
        str(each.offset),
        str(each.term),
        each.kind,
        each.queue or "''",
        "" if each.priority is None else str(each.priority),
        "" if each.id is None else str(each.id),
        "" if body is None else str(len(body)),
        "" if body is None else preview(body),
    )


def _as_json(
    args: argparse.Namespace, report: StoreReport, opening: StoreOpening, owner: StoreOwner
) -> dict[str, Any]:
    facts = dataclasses.asdict(report)
    facts["segments"] = [dataclasses.asdict(each) | {"records": each.records} for each in report.segments]
    facts["is_sound"] = report.is_sound
    facts["is_open"] = owner.is_open
    facts["holder"] = owner.holder and dataclasses.asdict(owner.holder)
    facts["opening"] = _opening_as_json(opening)
    if args.commands:
        facts["commands"] = [_command_as_json(each) for each in _commands(args, report)]
    return facts


def _command_as_json(each: LoggedCommand) -> dict[str, Any]:
    facts = dataclasses.asdict(each)
    body = facts.pop("body")
    facts["size"] = None if body is None else len(body)
    facts["start"] = None if body is None else preview(body)
    return facts


def _opening_as_json(opening: StoreOpening) -> dict[str, Any]:
    refusal = opening.refusal
    return {
        "outcome": opening.outcome,
        "error": None if refusal is None else str(refusal),
        "kind": refusal.kind if isinstance(refusal, DamagedStoreError) else None,
        "layout": opening.layout or None,
        "next_lsn": None if refusal is not None else opening.next_lsn,
        "queues": [_queue_as_json(info) for info in opening.queues],
        "warnings": dict(opening.warnings),
        "repairs": [dataclasses.asdict(repair) for repair in opening.repairs],
    }


# --- repair ---------------------------------------------------------------------------------------


def repair(args: argparse.Namespace) -> None:
    check_store(args.path)
    with warnings_left_out():
        done = patient(lambda: repair_store(args.path, dry_run=not args.apply), args.wait)
    if args.json:
        stdout.print(json.dumps({"is_applied": args.apply} | _opening_as_json(done), indent=2))
    else:
        for each in done.repairs:
            say(line_of(each, is_done=args.apply))
    stored = sum(info.stored for info in done.queues)
    held = f"{len(done.queues)} queues, {stored} messages"
    if not done.repairs:
        note(f"nothing has to be repaired: {held}")
    elif args.apply:
        note(f"repaired: {held}")
    else:
        note(f"nothing was changed; --apply does it, which leaves {held}")
