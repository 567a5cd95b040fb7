# `diskq checkpoint`: puts everything into the files that other programs read. Law: one store that cannot be
# opened does not keep it from the others; the exit code says whether all of them are done.

from __future__ import annotations

import argparse
import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from diskq.cli.core.directories import is_empty_directory
from diskq.cli.core.opening import patient
from diskq.cli.core.parsing import Commands, add_command
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import note, say, sentence, shown, warnings_left_out
from diskq.cli.repair import line_of
from diskq.errors import DiskqError, LockedError
from diskq.tools.checkpoint import Checkpoint, checkpoint
from diskq.tools.stores import Store, stores_found

__all__ = ["add_parser"]

ABOUT = """
Put everything of the stores at a path into the files that other programs read: queues, spools, streams,
journals, stores of priority queues, or a directory of such stores.

After a kill or a power cut, messages that diskq accepted may be in its own files alone: the write-ahead log,
or the redo log. The next open by diskq puts them into the store's files; this is such an open, with a close.
Run it before you start a Go or C# program on the files. A store that was closed is not touched.

A store that a process has open is refused: when that process closes it, everything is in the files.

The exit code is 0 if everything that can be read is in the files of all stores, also for an empty directory;
1 if a store was refused; 2 if a path could not be read, or has no store.
"""

EXAMPLES = """
  diskq checkpoint streams/clicks
  diskq checkpoint data journals/web --wait 10s
  diskq checkpoint data --json | jq '.things[] | select(.error)'
"""


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands, "checkpoint", "put everything into the files that other programs read", ABOUT, EXAMPLES
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="directories, or files in them")
    parser.add_flag(
        "--take-over",
        help="also a stream of a crashed go-diskq producer; make sure that none runs (default: refuse)",
    )
    parser.add_json()
    parser.add_wait("store")
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class _Outcome:
    store: Store
    result: Checkpoint | None = None
    error: str | None = None
    """Why there is no result."""


def run(args: argparse.Namespace) -> int:
    done: list[_Outcome] = []
    unseen: list[tuple[str, str]] = []
    with warnings_left_out():
        for path in args.paths:
            if is_empty_directory(path):
                note(f"{shown(path)}: it is empty")
                continue
            try:
                stores = stores_found(path)
            except OSError as failure:
                unseen.append((path, sentence(failure)))
                continue
            done += [_outcome(store, args) for store in stores]
    if args.json:
        stdout.print(json.dumps(_as_json(done, unseen), indent=2))
    else:
        for each in done:
            _show(each)
        for _, error in unseen:
            note(f"error: {error}")
    if unseen:
        return 2
    return int(any(each.result is None for each in done))


def _outcome(store: Store, args: argparse.Namespace) -> _Outcome:
    try:
        return _Outcome(store, patient(lambda: checkpoint(store, take_over=args.take_over), args.wait))
    except (DiskqError, OSError) as failure:
        text = sentence(failure).replace("open with take_over=True", "add --take-over")
        if isinstance(failure, LockedError):
            advice = "close it there first"
            text = f"{text.removesuffix(f'; {advice}')}; {advice}: that does the same, or wait: --wait 30s"
        return _Outcome(store, error=text)


def _show(each: _Outcome) -> None:
    what, result = shown(str(each.store)), each.result
    if result is None:
        note(f"error: {what}: {each.error}")
        return
    for repair in result.repairs:
        say(line_of(repair, is_done=True))
    if not result.was_needed:
        say(f"{what}: it was closed, everything is in its files")
    elif result.restored:
        say(f"{what}: everything is in its files now, {result.restored} bytes of it from the redo log")
    else:
        say(f"{what}: everything is in its files now")


def _as_json(done: list[_Outcome], unseen: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "things": [_one_as_json(each) for each in done],
        "unseen": [{"path": path, "error": error} for path, error in unseen],
    }


def _one_as_json(each: _Outcome) -> dict[str, Any]:
    result = each.result or Checkpoint(store=each.store, was_needed=True)
    return {
        "kind": each.store.kind,
        "path": each.store.path,
        "name": each.store.name or None,
        "was_needed": result.was_needed,
        "restored": result.restored,
        "repairs": [dataclasses.asdict(repair) for repair in result.repairs],
        "error": each.error,
    }
