# `diskq convert`: messages of one format into another. Law: what would be lost is told first, and refused
# unless it may be; what is read stays as it is; and whoever interrupts leaves nothing half there.

from __future__ import annotations

import argparse
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from diskq.cli.core import units
from diskq.cli.core.parsing import (
    CommandError,
    Commands,
    UsageError,
    add_command,
    count,
    number,
    usage_errors,
)
from diskq.cli.core.terminal import note, printable, progress, warnings_left_out
from diskq.cli.core.times import MOMENTS, moment
from diskq.errors import ConversionLossError, QueueNameError
from diskq.tools.convert.conversion import Conversion, convert, tell_losses
from diskq.tools.convert.field_mapping import FORMATS, ConvertOptions, Format
from diskq.tools.convert.sources import LinesFile, Selection, Source
from diskq.tools.stores import stores_at

__all__ = ["add_parser"]

ABOUT = """
Carry messages from one format to another. SOURCE is a directory, of which all that is there is read (or the
queues that --queue names), a file of lines of JSON, or - for stdin; nothing of it changes, and whoever is at
work there goes on. TARGET is new, and appears when it is whole; or, with --append, what is there.

nsq       a directory of queues          triplet   a stream           sej   a journal
taskflux  a store of priority queues     jsonl     lines of JSON, in a file, or - for stdout

What the target has no place for is counted first, and nothing is written unless --lossy allows it. What it
needs and the source does not have is made up as the options say, and told: see docs/convert.md.
"""

EXAMPLES = """
  diskq convert data journals/events --to sej --queue events     a queue into a journal
  diskq convert journals/web clicks --to triplet --partitions 8  a journal into a stream, by the keys
  diskq convert clicks - --since -1h --text                      an hour of a stream, as lines of JSON
  diskq convert dump.jsonl jobs --to taskflux --priority json:prio
  diskq convert clicks data --to nsq --dry-run                   what would be lost, and how much there is
  diskq convert more.jsonl journals/web --to sej --append
"""

_ADVICE: dict[type[Exception], str] = {
    ConversionLossError: "add --lossy to leave it out",
    FileExistsError: "see --append",
    QueueNameError: "--into says what it is to be called",
}


def add_parser(commands: Commands) -> None:
    help = "messages of one format into another"
    parser = add_command(commands, "convert", help, ABOUT, EXAMPLES)
    parser.add_argument("source", metavar="SOURCE", help="a directory, a file in it, lines of JSON, or -")
    parser.add_argument("target", metavar="TARGET", help="where it is to be: new, unless --append")
    parser.add_argument(
        "--to",
        choices=FORMATS,
        metavar="FORMAT",
        help=f"one of {', '.join(FORMATS)} (default: jsonl, where TARGET is -)",
    )
    _add_choice(parser)
    _add_making(parser)
    parser.add_flag("--append", help="to what is at TARGET, under its lock (default: refuse)")
    text = "what the target has no place for is left out (default: refuse)"
    parser.add_flag("--lossy", help=text)
    text = "count, tell what is lost, and write nothing (default: write)"
    parser.add_flag("--dry-run", help=text)
    parser.add_json("the counts, as one object")
    parser.set_defaults(run=run, advice=_ADVICE)


def _add_choice(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which messages")
    text = "of this queue; again for another (default: all)"
    group.add_argument("--queue", action="append", default=[], metavar="NAME", help=text)
    group.add_argument("--since", type=moment, metavar="TIME", help=f"not earlier: {MOMENTS} (default: all)")
    group.add_argument("--until", type=moment, metavar="TIME", help="earlier than this (default: all)")
    text = "from this offset on, in each partition (default: all)"
    group.add_argument("--start-offset", type=number, metavar="OFFSET", help=text)
    group.add_argument(
        "--end-offset", type=number, metavar="OFFSET", help="before this offset (default: all)"
    )
    group.add_argument(
        "--limit", type=number, metavar="N", help="at most so many, the first ones (default: all)"
    )


def _add_making(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what the target needs (json:FIELD is of the value, a JSON object)")
    text = "where there is none: json:FIELD, or random, also where it is empty (default: random for streams)"
    group.add_argument("--key", metavar="RULE", help=text)
    text = "where there is none: now, none or json:FIELD (default: now for streams, none for the others)"
    group.add_argument("--timestamp", metavar="RULE", help=text)
    text = "where there is none: a number, key or json:FIELD (default: 0)"
    group.add_argument("--priority", type=_priority, metavar="RULE", help=text)
    text = "by the hash of the key, as producers do (default: as they were, or 3)"
    group.add_argument("--partitions", type=count, metavar="N", help=text)
    text = "the queue that all messages come into (default: each its own, or TARGET's last name)"
    group.add_argument("--into", metavar="NAME", help=text)
    text = "jsonl: what is UTF-8 as it reads, else base64 (default: all in base64)"
    group.add_argument("--text", action="store_true", help=text)
    text = "refuse smaller values: Go programs cannot read empty ones (default: 0)"
    group.add_argument("--min-size", type=units.size, default=0, metavar="SIZE", help=text)
    text = "refuse larger values (default: what the format holds)"
    group.add_argument("--max-size", type=units.size, metavar="SIZE", help=text)


def _priority(text: str) -> int | str:
    """An argparse type."""
    return int(text) if text.removeprefix("-").isdecimal() and text.isascii() else text


def run(args: argparse.Namespace) -> None:
    to: Format | None = args.to or ("jsonl" if args.target == "-" else None)
    if to is None:
        raise UsageError(f"--to says what it is to be: {', '.join(FORMATS)}")
    if args.target == "-" and (args.json or to != "jsonl"):
        raise UsageError("on stdout there are lines of JSON, and nothing else: leave --to and --json out")
    with ExitStack() as stack:
        if not args.append:  # what was mended there is told
            stack.enter_context(warnings_left_out())
        with usage_errors():
            found = convert(
                stack.enter_context(_sources(args.source)),
                sys.stdout.buffer.write if args.target == "-" else args.target,
                to,
                _options(args),
                progress=stack.enter_context(_progress(is_wanted=args.target != "-" or not _is_shown())),
                warn=_warn,
            )
    if args.json:
        print(json.dumps(found.told(), separators=(",", ":")))
    else:
        _tell(found)


def _options(args: argparse.Namespace) -> ConvertOptions:
    return ConvertOptions(
        selection=Selection(
            since=args.since,
            until=args.until,
            start=args.start_offset,
            end=args.end_offset,
            limit=args.limit,
            queues=tuple(args.queue),
        ),
        append=args.append,
        lossy=args.lossy,
        dry_run=args.dry_run,
        into=args.into,
        key=args.key,
        timestamp=args.timestamp,
        priority=args.priority,
        partitions=args.partitions,
        text=args.text,
        min_message_size=args.min_size,
        max_message_size=args.max_size,
    )


# --- what is read ---------------------------------------------------------------------------------


@contextmanager
def _sources(path: str) -> Iterator[list[Source]]:
    """What is at `path`. What can be read only once is kept in a temporary file meanwhile."""
    if path == "-":
        with tempfile.NamedTemporaryFile(prefix="diskq-") as kept:
            shutil.copyfileobj(sys.stdin.buffer, kept)
            kept.flush()
            yield [LinesFile(kept.name, "stdin")]
        return
    if not os.path.exists(path):
        raise CommandError(f"{path}: no such file or directory")
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
        found: list[Source] = [*stores_at(path)]
        if stat.S_ISDIR(mode) and not found:
            raise CommandError(f"{path}: nothing known is here")
        yield found or [LinesFile(os.path.realpath(path), path)]
        return
    with open(path, "rb") as pipe, tempfile.NamedTemporaryFile(prefix="diskq-") as kept:
        shutil.copyfileobj(pipe, kept)
        kept.flush()
        yield [LinesFile(kept.name, path)]


# --- what is told ---------------------------------------------------------------------------------


def _is_shown() -> bool:
    return sys.stdout.isatty()


@contextmanager
def _progress(*, is_wanted: bool) -> Iterator[Callable[[int, int | None], None]]:
    with ExitStack() as stack:
        advance: Callable[[int], None] | None = None
        before = 0

        def tell(done: int, total: int | None) -> None:
            nonlocal advance, before
            if advance is None:
                advance = stack.enter_context(progress("converting", total, is_wanted=is_wanted))
            advance(done - before)
            before = done

        yield tell


def _warn(losses: Mapping[str, int]) -> None:
    note(f"warning: this loses: {tell_losses(losses)}")


def _tell(found: Conversion) -> None:
    what = "would be converted" if found.is_dry else "converted"
    size = units.show_size(found.bytes)
    messages = f"{found.messages:,} message{'' if found.messages == 1 else 's'}"
    note(f"{messages} ({size}) {what} to {found.to} {printable(os.fsencode(found.target))}")
    for name, many in found.invented.items():
        note(f"made up: {name} of {many:,} messages")
    if found.is_dry and found.lost:
        note(f"this loses: {tell_losses(found.lost)}")
    for gap in found.unreadable:
        note(f"warning: {gap}")
