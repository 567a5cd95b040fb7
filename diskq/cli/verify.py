# `diskq verify`: checks of all files at a path. Law: it locks and changes nothing, and may run while other
# processes use the files; the exit code is the verdict.

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from diskq.cli.core import units
from diskq.cli.core.parsing import Commands, add_command, add_json
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import note, printable, progress, sentence, show_table, shown, warnings_left_out
from diskq.errors import DiskqError
from diskq.tools.findings import Finding, Verification
from diskq.tools.stores import Store, disk_for_many, stores_found
from diskq.tools.verify.verification import verify

__all__ = ["add_parser"]

ABOUT = """
Check all of what is at a path: a queue, a spool, a stream, a journal, a store of priority queues, one of
their files, or a directory of such stores. It reads every checksum and record, and compares the files with
each other. Takes no lock and changes nothing; other processes go on, and their writes raise no alarm.

clean     all of it is as it was written
torn      a crash cut off the end of a write: the next open removes the rest, and keeps a copy
damaged   messages, or the files that locate them, are lost, altered or cannot be reached

The exit code is 0 for clean, 1 for torn or damaged, 2 if something could not be read.
"""

EXAMPLES = """
  diskq verify data
  diskq verify streams/* journals/web jobs
  diskq verify data --json | jq '.things[].findings'
  diskq verify --quiet data || mail -s 'data is damaged' root
"""

_WORDS = {"damage": "damaged", "torn": "torn", "note": "note"}


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, "verify", "check all files at a path", ABOUT, EXAMPLES)
    parser.add_argument("paths", metavar="PATH", nargs="+", help="directories, or files in them")
    output = parser.add_mutually_exclusive_group()
    add_json(output)
    output.add_argument(
        "--quiet", "-q", action="store_true", help="print nothing, for the exit code alone (default: a table)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    found: list[Verification] = []
    unseen: list[tuple[str, str]] = []
    disk = disk_for_many()
    look = partial(verify, fs=disk)
    with warnings_left_out():
        for path in args.paths:
            try:
                for store in stores_found(path, fs=disk):
                    found.append(_look(store, args, look))
            except (DiskqError, OSError) as failure:
                unseen.append((path, sentence(failure)))
                if not args.quiet and not args.json:
                    note(f"error: {unseen[-1][1]}")
    if args.json:
        stdout.print(json.dumps(_as_json(found, unseen), indent=2))
    elif not args.quiet and found:
        _show(found)
    return 2 if unseen else int(any(each.verdict != "clean" for each in found))


def _look(store: Store, args: argparse.Namespace, look: Callable[..., Verification]) -> Verification:
    began, seen = time.monotonic(), 0
    with progress(_named(store), None, is_wanted=not args.quiet, of_bytes=True) as advance:

        def saw(size: int) -> None:
            nonlocal seen
            seen += size
            advance(size)

        try:
            return look(store, progress=saw)
        except KeyboardInterrupt:
            rate = units.show_size(int(seen / max(time.monotonic() - began, 1e-9)))
            note(f"{_named(store)}: interrupted after {units.show_size(seen)} ({rate}/s)")
            raise


def _named(store: Store) -> str:
    return shown(f"{store.path} {store.name}".rstrip())


def _show(found: list[Verification]) -> None:
    columns = ["verdict", "what", "where", "messages", "lost", "size", "checksums"]
    show_table(columns, [_row(each) for each in found], numeric=columns[3:])
    for each in found:
        findings = sorted(each.findings, key=lambda finding: list(_WORDS).index(finding.severity))
        for finding in findings:
            stdout.print(_line_of(finding))
    stdout.flush()  # before the notes
    for path in dict.fromkeys(each.store.path for each in found if each.verdict == "damaged"):
        where = shown(shlex.quote(path))
        note(f"`diskq repair {where}` shows what would repair it, and saves what can be read: --salvage OUT")


def _row(each: Verification) -> tuple[str, ...]:
    share = f"{100 * each.checksummed // each.size}%" if each.size else "-"
    return (
        each.verdict,
        each.store.kind,
        _named(each.store),
        str(each.messages),
        str(each.lost) if each.lost else "-",
        units.show_size(each.size),
        share,
    )


def _line_of(finding: Finding) -> str:
    at = "" if finding.at is None else f", byte {finding.at}"
    lost = f" ({finding.lost} messages lost)" if finding.lost else ""
    return f"{_WORDS[finding.severity]}: {shown(finding.path)}{at}: {printable(finding.what.encode())}{lost}"


def _as_json(found: list[Verification], unseen: list[tuple[str, str]]) -> dict[str, Any]:
    verdicts = [each.verdict for each in found]
    worst = next((word for word in ("damaged", "torn", "clean") if word in verdicts), None)
    return {
        "verdict": worst,
        "things": [
            {
                "kind": each.store.kind,
                "path": each.store.path,
                "name": each.store.name or None,
                "verdict": each.verdict,
                "messages": each.messages,
                "lost": each.lost,
                "size": each.size,
                "checksummed": each.checksummed,
                "findings": [dataclasses.asdict(finding) for finding in each.findings],
            }
            for each in found
        ],
        "unseen": [{"path": path, "error": error} for path, error in unseen],
    }
