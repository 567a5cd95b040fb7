# `diskq info`: what is at a path. Law: it locks and changes nothing, reads few bytes, and may run while other
# processes use the files.

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from typing import Any

from diskq.cli.core import units
from diskq.cli.core.parsing import CommandParser, Commands, add_command
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import note, printable, say, sentence, show_table, shown, warnings_left_out
from diskq.cli.core.times import show_moment
from diskq.errors import DiskqError
from diskq.tools.info import Info, info
from diskq.tools.stores import Kind, Store, disk_for_many, stores_found

__all__ = ["add_info", "add_parser"]

ABOUT = """
Show what is at a path: a queue, a spool, a stream, a journal, a store of priority queues, one of their files,
or a directory of such stores. How many messages, how many bytes, how old, which process has it open, its
readers, what an earlier repair kept aside, and what the next open would repair.

Takes no lock, changes nothing, and reads few bytes. If messages have no times, the times of the files are
shown, marked (file). `diskq verify` checks whether all of it is intact.
"""

EXAMPLES = """
  diskq info data
  diskq info streams/* journals/web
  diskq info streams/clicks --json | jq '.things[0].facts.groups'
"""


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, "info", "show what is at a path", ABOUT, EXAMPLES)
    parser.add_argument("paths", metavar="PATH", nargs="+", help="directories, or files in them")
    parser.add_json()
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    found: list[Info] = []
    unseen: list[tuple[str, str]] = []
    disk = disk_for_many()
    with warnings_left_out():
        for path in args.paths:
            try:
                found += [info(store, fs=disk) for store in stores_found(path, fs=disk)]
            except (DiskqError, OSError) as failure:
                unseen.append((path, sentence(failure)))
                if not args.json:
                    note(f"error: {unseen[-1][1]}")
    if args.json:
        stdout.print(json.dumps(_as_json(found, unseen), indent=2))
    elif len(found) == 1:
        _show_one(found[0])
    elif found:
        _show_all(found)
    return 2 if unseen else 0


# --- as the verb of a noun ------------------------------------------------------------------------

ABOUT_ONE = """
Show what is in a {what} and which process has it open: how many messages, how many bytes,
how old, its readers, what an earlier repair kept aside, and what the next open would repair. Takes no lock
and changes nothing.

`diskq info` shows the same for any path.
"""

EXAMPLES_ONE = """
  diskq {noun} info {path}
  diskq {noun} info {path} --json | jq .messages
"""

_KINDS: dict[str, Kind] = {"stream": "stream", "journal": "journal", "priority": "jobs", "spool": "spool"}
_WHAT = {"priority": "store of priority queues"}


def add_info(
    verbs: Commands, noun: str, path: str, metavar: str, check: Callable[[str], object]
) -> CommandParser:
    """Add the verb `info` to a noun, with examples about `path`. Returns its parser.

    `check` raises CommandError unless there is a store of this kind at the path that is given.
    """
    what = _WHAT.get(noun, noun)
    parser = add_command(
        verbs,
        "info",
        "what is in there, and which process has it",
        ABOUT_ONE.format(what=what),
        EXAMPLES_ONE.format(noun=noun, path=path),
    )
    parser.add_path(what, metavar)
    parser.add_json("one object; bytes, nanoseconds")
    parser.set_defaults(run=run_one, kind=_KINDS[noun], check=check)
    return parser


def run_one(args: argparse.Namespace) -> None:
    args.check(args.path)
    with warnings_left_out():
        found = info(Store(args.kind, args.path))
    if args.json:
        stdout.print(json.dumps(_one_as_json(found), indent=2))
    else:
        _show_one(found)


# --- in words, and as JSON ------------------------------------------------------------------------


def _show_all(found: list[Info]) -> None:
    columns = ["what", "where", "format", "messages", "size", "files", "newest", "open in"]
    rows = [
        (
            each.store.kind,
            shown(f"{each.store.path} {each.store.name}".rstrip()),
            each.format,
            _messages(each),
            units.show_size(each.bytes),
            str(each.files),
            _time(each.newest_ns, each),
            each.holder or "-",
        )
        for each in found
    ]
    show_table(columns, rows, numeric=columns[3:6])
    for each in found:
        for what in each.next_open:
            note(f"{shown(each.store.path)}: the next open: {printable(what.encode())}")


def _show_one(each: Info) -> None:
    stdout.print(f"{each.store.kind:14}{shown(each.store.path)} {shown(each.store.name)}".rstrip())
    facts: dict[str, Any] = {
        "format": each.format,
        "messages": _messages(each),
        "size": f"{units.show_size(each.bytes)} in {each.files} files, {each.segments} with messages",
        "oldest": _time(each.oldest_ns, each),
        "newest": _time(each.newest_ns, each),
        "open in": each.holder or "-",
        **each.facts,
    }
    for what, value in facts.items():
        for line in _lines(value):
            say(f"{what.replace('_', ' '):14}{line}")
            what = ""
    for log in each.redo_logs:
        stdout.print(f"{'redo log':14}{shown(str(log))}")
    for path in each.leftovers:
        stdout.print(f"{'kept aside':14}{shown(path)}")
    for text in each.next_open:
        stdout.print(f"{'to repair':14}{printable(text.encode())}")


def _lines(value: Any) -> list[str]:
    """Return a fact as lines: one for each part of it."""
    if isinstance(value, dict):
        return [f"{shown(name) or repr('')}: {_in_line(part)}" for name, part in value.items()] or ["-"]
    return [_in_line(value)]


def _in_line(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " to ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {_in_line(part)}" for name, part in value.items()) or "-"
    return printable(str(value).encode(errors="surrogateescape"))


def _messages(each: Info) -> str:
    if each.messages is None:
        return "unknown"
    return str(each.messages) if each.is_exact else f"at least {each.messages}"


def _time(nanoseconds: int | None, each: Info) -> str:
    if nanoseconds is None:
        return "-"
    return show_moment(nanoseconds) + (" (file)" if each.times_of == "files" else "")


def _as_json(found: list[Info], unseen: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "things": [_one_as_json(each) for each in found],
        "unseen": [{"path": path, "error": error} for path, error in unseen],
    }


def _one_as_json(each: Info) -> dict[str, Any]:
    return {
        "kind": each.store.kind,
        "path": each.store.path,
        "name": each.store.name or None,
        **{name: value for name, value in dataclasses.asdict(each).items() if name != "store"},
    }
