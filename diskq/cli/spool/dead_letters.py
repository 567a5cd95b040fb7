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
from diskq.cli.core.terminal import note, preview, printable, show_table, shown
from diskq.cli.core.times import show_moment
from diskq.cli.spool.view import check_spool
from diskq.engine.spool.dead_letters import DeadLetter, DeadLetters, view_dead_letters

__all__ = ["purge", "replay", "show"]

# --- list -----------------------------------------------------------------------------------------


def show(args: argparse.Namespace) -> None:
    check_spool(args.path)
    letters = view_dead_letters(args.path)
    if args.ids:
        _check_ids(args, letters)
        letters = [letter for letter in letters if letter.id in args.ids]
    if args.json:
        for letter in letters:
            print(_as_json(letter))
    elif letters:
        columns = ["id", "given up", "attempts", "size", "reason", "message"]
        show_table(columns, [_row(letter) for letter in letters], numeric=columns[2:4])
    else:
        note(f"no dead letters in {args.path}")


def _as_json(letter: DeadLetter) -> str:
    facts = {
        "id": letter.id,
        "reason": letter.reason,
        "time": show_moment(letter.time),
        "attempts": letter.attempts,
        "size": len(letter.body),
        "data": base64.b64encode(letter.body).decode(),
    }
    return json.dumps(facts, separators=(",", ":"))


def _row(letter: DeadLetter) -> tuple[str, ...]:
    return (
        printable(letter.id.encode()),
        show_moment(letter.time),
        str(letter.attempts),
        units.show_size(len(letter.body)),
        printable(letter.reason.encode()),
        preview(letter.body),
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
        with DeadLetters(args.path) as letters:
            found = letters.list()
            if args.ids:
                _check_ids(args, found)
            ids = [letter.id for letter in found if args.all or letter.id in args.ids]
            act(letters, ids)
            return ids

    ids = patient(done, args.wait)
    if args.json:
        print(json.dumps({word: ids}, separators=(",", ":")))
    else:
        for each in ids:
            print(printable(each.encode()))
    note(f"{len(ids)} {word}")


def _check_ids(args: argparse.Namespace, letters: list[DeadLetter]) -> None:
    known = {letter.id for letter in letters}
    if missing := [each for each in args.ids if each not in known]:
        names = ", ".join(map(shown, missing))
        raise CommandError(f"no dead letter {names} in {args.path}: see `diskq spool dead list`")
