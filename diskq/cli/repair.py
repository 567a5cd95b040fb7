# `diskq repair`: repairs of damaged stores. Law: without --apply nothing is changed, and the report is what
# --apply does; what cannot be read is kept in a file that is named.

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
from typing import Any

from diskq.cli.core.opening import patient
from diskq.cli.core.parsing import CommandError, Commands, UsageError, add_command
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import note, printable, say, sentence, shown, warnings_left_out
from diskq.engine.priority.view import Repair
from diskq.errors import DiskqError, LockedError
from diskq.tools.findings import Finding
from diskq.tools.repair.repair import Repairs, repair
from diskq.tools.salvage.salvage import Salvaged, new_file, salvage
from diskq.tools.stores import Store, stores_below
from diskq.tools.verify.verification import verify

__all__ = ["add_parser", "line_of"]

ABOUT = """
Repair what is at a path: a queue, a spool, a stream, a journal, a store of priority queues, or one of their
files. Without --apply nothing is changed: it shows what would be done.

It repairs what the next open would repair. Besides, it takes out what cannot be read, so that every other
message can be read and `diskq verify` finds nothing:

queue, spool     a damaged file is written anew without what cannot be read
stream, journal  a segment ends before the damage, and another one begins after it; offsets stay
jobs             the log of a priority store ends at the damage: commands after it are not executed

Before anything is cut, replaced or removed, a copy of it is on stable storage, in a file whose name ends in
.bad. If it is killed half way, the next open completes it, or finds it not begun.

--salvage writes every message that can still be read as lines of JSON, also from damaged files and .bad
files, each once. It changes nothing.

The exit code is 0 if nothing has to be done, or all was done; 1 if something has to be repaired, or is left;
2 if a repair was not possible.
"""

EXAMPLES = """
  diskq repair streams/clicks
  diskq repair streams/clicks --apply
  diskq repair jobs --salvage saved.jsonl
  diskq convert saved.jsonl jobs.new --to taskflux
  diskq repair data --json | jq '.things[].repairs'
"""


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, "repair", "repair what is damaged", ABOUT, EXAMPLES)
    parser.add_argument("path", metavar="PATH", help="a directory, or a file in it")
    act = parser.add_mutually_exclusive_group()
    act.add_argument("--apply", action="store_true", help="do it (default: show what would be done)")
    act.add_argument(
        "--salvage",
        metavar="OUT",
        help="write what can be read to this file, which must not be there yet (-: stdout); change nothing "
        "(default: do not)",
    )
    parser.add_flag(
        "--take-over",
        help="also a stream of a crashed go-diskq producer; make sure that none runs (default: refuse)",
    )
    parser.add_json()
    parser.add_wait("store")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.salvage == "-" and args.json:
        raise UsageError("--json and the messages cannot both go to stdout")
    try:
        with warnings_left_out():
            stores = stores_below(args.path)
            if not stores:
                path = printable(args.path.encode(errors="surrogateescape"))
                raise DiskqError(f"{path}: there is nothing here that diskq knows")
            return _salvage(args, stores) if args.salvage else _repair(args, stores)
    except (DiskqError, OSError) as failure:
        text = sentence(failure)
        if isinstance(failure, LockedError) and "close it" not in text:
            text += "; close it there first, or wait for it: --wait 30s"
        raise CommandError(text, exit_code=2) from failure


# --- repairing ------------------------------------------------------------------------------------


def _repair(args: argparse.Namespace, stores: list[Store]) -> int:
    done: list[tuple[Repairs, tuple[Finding, ...]]] = []
    for store in stores:
        act = lambda store=store: repair(store, apply=args.apply, take_over=args.take_over)  # noqa: E731
        repairs: Repairs = patient(act, args.wait)
        left: tuple[Finding, ...] = ()
        if args.apply or not repairs.repairs:
            found = verify(store).findings
            left = tuple(each for each in found if each.severity != "note")
        done.append((repairs, left))
    if args.json:
        stdout.print(
            json.dumps({"is_applied": args.apply, "things": [_as_json(*each) for each in done]}, indent=2)
        )
    else:
        for each in done:
            _show(*each)
    is_whole = all(not left and (args.apply or not repairs.repairs) for repairs, left in done)
    return 0 if is_whole else 1


def _show(done: Repairs, left: tuple[Finding, ...]) -> None:
    for each in done.repairs:
        say(line_of(each, is_done=done.is_applied))
    for finding in left:
        at = "" if finding.at is None else f", byte {finding.at}"
        say(f"{'left' if done.is_applied else 'an open repairs'}: {shown(finding.path)}{at}: {finding.what}")
    what = str(done.store)
    if not done.repairs and not left:
        note(f"{what}: nothing has to be repaired")
    elif not done.is_applied:
        note(f"{what}: nothing was changed; --apply does it; save what can be read first: --salvage OUT")
    elif left:
        note(f"{what}: repaired, {len(left)} problems are left; --salvage saves what can be read")
    else:
        note(f"{what}: repaired")


def line_of(each: Repair, *, is_done: bool) -> str:
    """Return a repair as a line."""
    is_are, was = ("is", "are") if is_done else ("would be", "would be")
    aside = "" if each.saved_as is None else printable(each.saved_as.encode(errors="surrogateescape"))
    parts = []
    if each.dropped:
        parts.append(f"{each.kept} bytes stay" if each.kept else "nothing of it stays")
        parts.append(f"{each.dropped} bytes {was} cut" + (f", and kept in {aside}" if aside else ""))
    elif aside:
        parts.append(f"a copy {is_are} kept in {aside}")
    if each.records:
        parts.append(f"{each.records} messages {was} missing")
    elif each.records is None:
        parts.append("an unknown number of messages is missing")
    what = f"{printable(each.path.encode(errors='surrogateescape'))}: {each.reason}"
    return f"{what}: {', '.join(parts)}" if parts else what


def _as_json(done: Repairs, left: tuple[Finding, ...]) -> dict[str, Any]:
    return {
        "kind": done.store.kind,
        "path": done.store.path,
        "name": done.store.name or None,
        "repairs": [dataclasses.asdict(each) for each in done.repairs],
        "lost": done.lost,
        "left": [dataclasses.asdict(finding) for finding in left],
    }


# --- salvaging ------------------------------------------------------------------------------------


def _salvage(args: argparse.Namespace, stores: list[Store]) -> int:
    found = []
    with contextlib.nullcontext(stdout.write) if args.salvage == "-" else new_file(args.salvage) as write:
        for store in stores:
            act = lambda store=store: salvage(store, write, take_over=args.take_over)  # noqa: E731
            found.append(patient(act, args.wait))
    if args.json:
        stdout.print(json.dumps({"things": [_salvaged_as_json(each) for each in found]}, indent=2))
        return 0
    for each in found:
        fragments = f", and {each.fragments} that no reader returns any more" if each.fragments else ""
        note(f"{each.store}: {each.messages} messages written{fragments}")
        for unread in each.unread:
            note(f"  {unread}")
    return 0


def _salvaged_as_json(each: Salvaged) -> dict[str, Any]:
    return {
        "kind": each.store.kind,
        "path": each.store.path,
        "name": each.store.name or None,
        "messages": each.messages,
        "scraps": each.fragments,
        "unread": [dataclasses.asdict(unread) for unread in each.unread],
    }
