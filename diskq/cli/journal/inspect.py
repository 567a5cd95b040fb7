# The verbs of `diskq journal` that show something. Law: reading takes no lock and changes nothing; damage is
# reported, and what is after it is read.

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

from diskq.channels.journal.scanner import open_scanner
from diskq.cli.core import units
from diskq.cli.core.interrupts import run_async
from diskq.cli.core.last_slice import note_last_slice
from diskq.cli.core.parsing import CommandError
from diskq.cli.core.pipes import MessageOutput
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import note, progress, say, show_table, shown
from diskq.cli.core.times import show_moment
from diskq.cli.journal.view import check_journal, file_at, offset_at
from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.reader import JournalReader
from diskq.engine.journal.reader_offset import read_journal_offsets
from diskq.messages import JournalMessage
from diskq.tools.json_lines import journal_line
from diskq.tools.stores import Store

__all__ = ["count", "dump", "file", "offset", "old", "read", "tail", "timestamp"]

_MANY = 1000
_BYTES = 1024 * 1024
_DAY = 86_400 * 10**9


# --- messages out ---------------------------------------------------------------------------------


def _stretch(reader: JournalReader, start: int, end: int, type: int | None) -> Iterator[list[JournalMessage]]:
    """Yield the messages start:end, only those of `type` unless it is None. Losses are reported."""
    reader.seek(max(start, reader.first_offset()))
    while reader.position < end:
        messages = reader.read_many(min(_MANY, end - reader.position), max_bytes=_BYTES)
        _report_losses(reader)
        if not messages:
            return
        wanted = [each for each in messages if each.offset < end and type in (None, each.type)]
        yield wanted


def _bounds(args: argparse.Namespace, reader: JournalReader) -> tuple[int, int]:
    start = reader.first_offset() if args.start is None else offset_at(args.path, args.start)
    end = reader.next_offset() if args.end is None else offset_at(args.path, args.end)
    return start, min(end, reader.next_offset())


def _progress(start: int, end: int, *, is_wanted: bool = True) -> AbstractContextManager[Any]:
    return progress("reading", max(0, end - start), is_wanted=is_wanted)


async def _write(args: argparse.Namespace, reader: JournalReader, start: int, end: int) -> None:
    output, left = MessageOutput(args.framing, journal_line), getattr(args, "max_messages", None)
    wanted = getattr(args, "type", None)
    with _progress(start, end, is_wanted=not stdout.is_terminal()) as advance:
        before = start
        for messages in _stretch(reader, start, end, wanted):
            await output.write(messages if left is None else messages[:left])
            advance(reader.position - before)
            before = reader.position
            left = None if left is None else max(0, left - len(messages))
            if left == 0:
                return


def read(args: argparse.Namespace) -> None:
    check_journal(args.path)
    note_last_slice(Store("journal", args.path))
    with JournalReader(args.path) as reader:
        run_async(_write, args, reader, *_bounds(args, reader))


def count(args: argparse.Namespace) -> None:
    check_journal(args.path)
    note_last_slice(Store("journal", args.path))
    with JournalReader(args.path) as reader:
        start, end = _bounds(args, reader)
        found, before = 0, start
        with _progress(start, end) as advance:
            for messages in _stretch(reader, start, end, args.type):
                found += len(messages)
                advance(reader.position - before)
                before = reader.position
    stdout.print(str(found))


def tail(args: argparse.Namespace) -> None:
    check_journal(args.path)
    note_last_slice(Store("journal", args.path))
    with JournalReader(args.path) as reader:
        end = reader.next_offset()
        reader.seek(end)
        last = reader.read_back(args.max_messages)[::-1] if args.max_messages else []
        _report_losses(reader)
    run_async(_tail, args, last, end)


async def _tail(args: argparse.Namespace, last: list[JournalMessage], end: int) -> None:
    output = MessageOutput(args.framing, journal_line)
    if last:
        await output.write(last)
    if args.follow:
        reported = 0
        async with open_scanner(args.path, start=end) as scanner:
            while True:
                messages = await scanner.receive_many(_MANY, max_bytes=_BYTES)
                for gap in scanner.losses[reported:]:
                    note(f"warning: {gap}")
                reported = len(scanner.losses)
                await output.write(messages)


def _report_losses(reader: JournalReader) -> None:
    for gap in reader.losses:
        note(f"warning: {gap}")
    reader.losses.clear()


def dump(args: argparse.Namespace) -> None:
    journal, base, following = file_at(args.path)
    note_last_slice(Store("journal", journal))
    with JournalReader(journal) as reader:
        run_async(_write, args, reader, base, reader.next_offset() if following is None else following)


# --- offsets and files ----------------------------------------------------------------------------


def offset(args: argparse.Namespace) -> None:
    check_journal(args.path)
    readers = read_journal_offsets(args.path)
    with JournalReader(args.path) as reader:
        first, following = reader.first_offset(), reader.next_offset()
    if args.json:
        facts = {
            "first_offset": first,
            "next_offset": following,
            "readers": {each.name: each.offset for each in readers},
        }
        stdout.print(json.dumps(facts, separators=(",", ":")))
        return
    stdout.print(f"{'first':14}{first}\n{'next':14}{following}")
    if readers:
        stdout.print()
        rows = [
            (
                shown(each.name),
                "-" if each.offset is None else str(each.offset),
                str(following - (first if each.offset is None else each.offset)),
            )
            for each in readers
        ]
        show_table(["reader", "offset", "lag"], rows, numeric=["offset", "lag"])
    for each in readers:
        if each.repair is not None:
            note(f"warning: {each.repair}")


def timestamp(args: argparse.Namespace) -> None:
    check_journal(args.path)
    with JournalReader(args.path) as reader:
        reader.seek(args.offset)
        message = reader.read()
        if message is None or message.offset != args.offset:
            raise CommandError(f"{args.path}: there is no message {args.offset}: see `diskq journal offset`")
        stdout.print(_time_of(message) or "none")


def _time_of(message: JournalMessage | None) -> str | None:
    """Return its time; None if it has none, or there is no message."""
    return None if message is None or message.timestamp_ns is None else show_moment(message.timestamp_ns)


def file(args: argparse.Namespace) -> None:
    journal, base, following = file_at(args.path)
    messages, first, last = 0, None, None
    with JournalReader(journal) as reader:
        end = reader.next_offset() if following is None else following
        with _progress(base, end) as advance:
            for some in _stretch(reader, base, end, None):
                first = first or (some[0] if some else None)
                last = some[-1] if some else last
                messages += len(some)
                advance(len(some))
    facts = {
        "journal": journal,
        "first_offset": base,
        "next_offset": end,
        "messages": messages,
        "bytes": os.path.getsize(args.path),
        "is_last": following is None,
        "from": _time_of(first),
        "to": _time_of(last),
    }
    if args.json:
        stdout.print(json.dumps(facts, separators=(",", ":")))
        return
    for what, value in (facts | {"bytes": units.show_size(facts["bytes"])}).items():  # type: ignore[arg-type]
        say(f"{what:14}{'-' if value is None else value}")


def old(args: argparse.Namespace) -> None:
    check_journal(args.path)
    # A reader that has not committed yet would begin at the first message.
    slowest = min((each.offset or 0 for each in read_journal_offsets(args.path)), default=None)
    now = time.time_ns()
    oldest = now - args.days * _DAY
    with JournalReader(args.path) as reader:
        bases = reader.files.bases()
        for base, following in pairwise(bases):
            reader.seek(following)
            last = reader.read_back(1)
            moment = last[0].timestamp_ns if last and last[0].offset >= base else None
            if moment is not None and moment > now:
                moment = _age_of_file(reader.files, base, moment)
            if moment is None or moment >= oldest or (slowest is not None and slowest < following):
                return
            say(reader.files.data(base))


def _age_of_file(files: JournalFiles, base: int, moment: int) -> int | None:
    """Return when a file was last written, which is its age: its last message is stamped in the future."""
    written = files.written_at(base)
    if written is not None:
        note(
            f"{files.data(base)}: its last message is stamped {show_moment(moment)}, in the future; "
            f"the file was last written {show_moment(written)}, and that is its age"
        )
    return written
