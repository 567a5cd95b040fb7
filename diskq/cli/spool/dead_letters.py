# `diskq spool dead`: messages that will not be delivered. Law: reading takes no lock; an act applies to the
# dead letters that are named, and prints their ids.

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Callable

from diskq.cli.core import units
from diskq.cli.core.opening import patient
from diskq.cli.core.parsing import CommandError, UsageError
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import note, preview, printable, show_table, shown
from diskq.cli.core.times import show_moment
from diskq.cli.spool.view import check_spool
from diskq.engine.spool.dead_letters import DeadLetter, DeadLetters, view_dead_letters

__all__ = ["purge", "replay", "show"]

# --- list -----------------------------------------------------------------------------------------


def show(args: argparse.Namespace) -> None:
    check_spool(args.path)
    dead_letters = view_dead_letters(args.path)
    if args.ids:
        _check_ids(args, dead_letters)
        dead_letters = [dead_letter for dead_letter in dead_letters if dead_letter.id in args.ids]
    if args.json:
        for dead_letter in dead_letters:
            stdout.print(_as_json(dead_letter))
    elif dead_letters:
        columns = ["id", "given up", "attempts", "size", "reason", "message"]
        show_table(columns, [_row(dead_letter) for dead_letter in dead_letters], numeric=columns[2:4])
    else:
        note(f"no dead letters in {args.path}")


def _as_json(dead_letter: DeadLetter) -> str:
    facts = {
        "id": dead_letter.id,
        "reason": dead_letter.reason,
        "timestamp": show_moment(dead_letter.timestamp_ns),
        "attempts": dead_letter.attempts,
        "size": len(dead_letter.body),
        "body": base64.b64encode(dead_letter.body).decode(),
    }
    return json.dumps(facts, separators=(",", ":"))


def _row(dead_letter: DeadLetter) -> tuple[str, ...]:
    return (
        printable(dead_letter.id.encode()),
        show_moment(dead_letter.timestamp_ns),
        str(dead_letter.attempts),
        units.show_size(len(dead_letter.body)),
        printable(dead_letter.reason.encode()),
        preview(dead_letter.body),
    )


# --- replay and purge ----------------------------------------------------------------------------


def replay(args: argparse.Namespace) -> None:
    _do(args, DeadLetters.replay, "replayed")


def purge(args: argparse.Namespace) -> None:
    _do(args, DeadLetters.purge, "purged")


def _do(args: argparse.Namespace, act: Callable[[DeadLetters, list[str]], int], word: str) -> None:
    if args.all == bool(args.ids):
        raise UsageError("name ids (`diskq spool dead list` shows them), or say --all")
    check_spool(args.path)

    def done() -> list[str]:
        if not view_dead_letters(args.path) and args.all:
            return []
        with DeadLetters(args.path) as dead_letters:
            found = dead_letters.list()
            if args.ids:
                _check_ids(args, found)
            ids = [dead_letter.id for dead_letter in found if args.all or dead_letter.id in args.ids]
            act(dead_letters, ids)
            return ids

    ids = patient(done, args.wait)
    try:
        if args.json:
            stdout.print(json.dumps({word: ids}, separators=(",", ":")))
        else:
            for each in ids:
                stdout.print(printable(each.encode()))
    finally:
        note(f"{len(ids)} {word}")


def _check_ids(args: argparse.Namespace, dead_letters: list[DeadLetter]) -> None:
    known = {dead_letter.id for dead_letter in dead_letters}
    if missing := [each for each in args.ids if each not in known]:
        names = ", ".join(map(shown, missing))
        raise CommandError(f"no dead letter {names} in {args.path}: see `diskq spool dead list`")
