# `diskq journal send` and `reset`. Law: a message is counted only when the journal has accepted it, and a
# reader is moved only while no process reads by its name.

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable

import trio

from diskq.cli.core.directories import make_room
from diskq.cli.core.framing import batches
from diskq.cli.core.interrupts import run_async
from diskq.cli.core.opening import opened_engine, patient
from diskq.cli.core.parsing import CommandError, UsageError, check_source
from diskq.cli.core.pipes import CHUNK, Sent, read_source
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import note
from diskq.cli.journal.view import JOURNALS_OWN, check_journal, is_a_journal, offset_at
from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader_offset import JournalCommittedOffset
from diskq.options import JournalOptions

__all__ = ["reset", "send"]


def send(args: argparse.Namespace) -> None:
    check_source(args)
    if args.type > 255:
        raise UsageError(f"--type is 0 to 255, not {args.type}")
    if args.create and not is_a_journal(args.path):
        make_room(args.path, "journal", JOURNALS_OWN)
    elif not args.create:
        check_journal(args.path, "; let --create make it")
    run_async(_send_all, args)


async def _send_all(args: argparse.Namespace) -> None:
    options = JournalOptions(sync_to=args.sync_to)
    key = None if args.key is None else os.fsencode(args.key)
    sent = Sent()

    async def send(values: Iterable[bytes]) -> None:
        for batch in batches(values, args.batch, CHUNK):
            items = [(key, value, args.timestamp, args.type) for value in batch]
            with sent.adding(len(batch)):
                journal.append_many(items, durability=args.durability)
            await trio.lowlevel.checkpoint_if_cancelled()  # for interrupts: nothing else waits here

    try:
        async with opened_engine(lambda: Journal(args.path, options=options), args.wait) as journal:
            await read_source(args, options.max_message_size, send)
    finally:
        note(f"{sent.count} sent")


def reset(args: argparse.Namespace) -> None:
    check_journal(args.path)
    to, first, following = (offset_at(args.path, place) for place in (args.to, "oldest", "newest"))
    if not first <= to <= following:
        raise CommandError(f"{args.path}: no offset {to}: the journal has {first} to {following}")
    with patient(lambda: JournalCommittedOffset(args.path, args.reader), args.wait) as reader:
        reader.commit_to(to, seek=True)
        reader.sync()
    stdout.print(f"{args.reader} {to}")
