# `diskq convert`: messages of one format into another. Law: losses are reported first, and refused unless
# --lossy allows them; the source does not change; an interrupt leaves no partial target.

from __future__ import annotations

import argparse
import json
import os
import shutil
import stat
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
from diskq.cli.core.pipes import CHUNK
from diskq.cli.core.stdio import stdin, stdout
from diskq.cli.core.terminal import as_one_is_missing, note, printable, progress, warnings_left_out
from diskq.cli.core.times import MOMENTS, moment
from diskq.errors import ConversionLossError, QueueNameError
from diskq.tools.convert.conversion import Conversion, convert, losses_in_words
from diskq.tools.convert.field_mapping import FORMATS, ConvertOptions, Format
from diskq.tools.convert.sources import LinesFile, Selection, Source
from diskq.tools.stores import stores_at

__all__ = ["add_parser"]

ABOUT = """
Convert messages from one format to another. SOURCE is a directory, in which everything is read (or the queues
that --queue names), a file of lines of JSON, or - for stdin. It does not change, and programs that use it go
on. TARGET is new, and appears when it is complete; with --append it is what is there already.

nsq       a directory of queues          triplet   a stream           sej   a journal
taskflux  a store of priority queues     jsonl     lines of JSON, in a file, or - for stdout

What the target has no place for is counted first, and nothing is written unless --lossy allows it. What it
needs and the source does not have is made up as the options say, and reported: see docs/convert.md.
"""

EXAMPLES = """
  diskq convert data journals/events --to sej --queue events         a queue into a journal
  diskq convert journals/web clicks --to triplet --partition-count 8 a journal into a stream, by the keys
  diskq convert clicks - --since -1h --text                          a stream's last hour, as lines of JSON
  diskq convert dump.jsonl jobs --to taskflux --priority json:prio
  diskq convert clicks data --to nsq --dry-run                       what would be lost, and what there is
  diskq convert more.jsonl journals/web --to sej --append
"""

_ADVICE: dict[type[Exception], str] = {
    ConversionLossError: "add --lossy to leave it out",
    FileExistsError: "see --append",
    QueueNameError: "--into gives the queue another name",
}


def add_parser(commands: Commands) -> None:
    help = "messages of one format into another"
    parser = add_command(commands, "convert", help, ABOUT, EXAMPLES)
    parser.add_argument("source", metavar="SOURCE", help="a directory, a file in it, lines of JSON, or -")
    parser.add_argument("target", metavar="TARGET", help="where to write: new, unless --append")
    parser.add_argument(
        "--to",
        choices=FORMATS,
        metavar="FORMAT",
        help=f"one of {', '.join(FORMATS)} (default: jsonl, where TARGET is -)",
    )
    _add_choice(parser)
    _add_making(parser)
    parser.add_flag("--append", help="add to what is at TARGET, under its lock (default: refuse)")
    text = "leave out what the target has no place for (default: refuse)"
    parser.add_flag("--lossy", help=text)
    text = "count, report what is lost, and write nothing (default: write)"
    parser.add_flag("--dry-run", help=text)
    parser.add_json("the counts, as one object")
    parser.set_defaults(run=run, advice=_ADVICE)


def _add_choice(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which messages")
    text = "only this queue; may be given several times (default: all)"
    group.add_argument("--queue", action="append", default=[], metavar="NAME", help=text)
    group.add_argument("--since", type=moment, metavar="TIME", help=f"not earlier: {MOMENTS} (default: all)")
    group.add_argument("--until", type=moment, metavar="TIME", help="earlier than this (default: all)")
    text = "from this offset on, in each partition (default: all)"
    group.add_argument("--start-offset", type=number, metavar="OFFSET", help=text)
    group.add_argument(
        "--end-offset", type=number, metavar="OFFSET", help="stop after this offset (default: all)"
    )
    group.add_argument(
        "-n", "--max-messages", type=number, metavar="N", help="the first N messages at most (default: all)"
    )


def _add_making(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what the target needs (json:FIELD: of the value, a JSON object)")
    text = "for messages without one: json:FIELD, or random, also if empty (default: random for streams)"
    group.add_argument("--key", metavar="RULE", help=text)
    text = "for messages without one: now, none or json:FIELD (default: now for streams, none for others)"
    group.add_argument("--timestamp", metavar="RULE", help=text)
    text = "for messages without one: a number, key or json:FIELD (default: 0)"
    group.add_argument("--priority", type=_priority, metavar="RULE", help=text)
    text = "distribute by the hash of the key, as producers do (default: as they were, or 3)"
    group.add_argument("--partition-count", type=count, metavar="N", help=text)
    text = "the queue that all messages go into (default: each its own, or the last part of TARGET)"
    group.add_argument("--into", metavar="NAME", help=text)
    text = "jsonl: UTF-8 as text, all else in base64 (default: all in base64)"
    group.add_argument("--text", action="store_true", help=text)
    text = "refuse smaller values: Go programs cannot read empty ones (default: 0)"
    group.add_argument("--min-message-size", type=units.size, default=0, metavar="SIZE", help=text)
    text = "refuse larger values (default: what the format holds)"
    group.add_argument("--max-message-size", type=units.size, metavar="SIZE", help=text)


def _priority(text: str) -> int | str:
    """An argparse type."""
    return int(text) if text.removeprefix("-").isdecimal() and text.isascii() else text


def run(args: argparse.Namespace) -> None:
    to: Format | None = args.to or ("jsonl" if args.target == "-" else None)
    if to is None:
        raise UsageError(f"--to is needed, one of: {', '.join(FORMATS)}")
    if args.target == "-" and (args.json or to != "jsonl"):
        raise UsageError("TARGET - is for lines of JSON alone: leave --to and --json out")
    with ExitStack() as stack:
        if not args.append:  # repairs of the target are reported
            stack.enter_context(warnings_left_out())
        with usage_errors():
            found = convert(
                stack.enter_context(_sources(args.source)),
                stdout.write if args.target == "-" else args.target,
                to,
                _options(args),
                progress=stack.enter_context(_progress(is_wanted=args.target != "-" or not _is_shown())),
                warn=_warn,
            )
    if args.json:
        stdout.print(json.dumps(found.told(), separators=(",", ":")))
    else:
        _report(found)


def _options(args: argparse.Namespace) -> ConvertOptions:
    return ConvertOptions(
        selection=Selection(
            since=args.since,
            until=args.until,
            start=args.start_offset,
            end=args.end_offset,
            max_messages=args.max_messages,
            queues=tuple(args.queue),
        ),
        append=args.append,
        lossy=args.lossy,
        dry_run=args.dry_run,
        into=args.into,
        key=args.key,
        timestamp=args.timestamp,
        priority=args.priority,
        partition_count=args.partition_count,
        text=args.text,
        min_message_size=args.min_message_size,
        max_message_size=args.max_message_size,
    )


# --- what is read ---------------------------------------------------------------------------------


@contextmanager
def _sources(path: str) -> Iterator[list[Source]]:
    """Give the sources at `path`. Input that can be read only once is copied to a temporary file first."""
    if path == "-":
        with tempfile.NamedTemporaryFile(prefix="diskq-") as kept:
            while chunk := stdin.read(CHUNK):
                kept.write(chunk)
            kept.flush()
            yield [LinesFile(kept.name, "stdin")]
        return
    if not os.path.exists(path):
        raise CommandError(f"{path}: no such file or directory{as_one_is_missing(path)}")
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
        found: list[Source] = [*stores_at(path)]
        if stat.S_ISDIR(mode) and not found:
            raise CommandError(f"{path}: there is nothing here that diskq knows")
        yield found or [LinesFile(os.path.realpath(path), path)]
        return
    with open(path, "rb") as pipe, tempfile.NamedTemporaryFile(prefix="diskq-") as kept:
        shutil.copyfileobj(pipe, kept)
        kept.flush()
        yield [LinesFile(kept.name, path)]


# --- the report -----------------------------------------------------------------------------------


def _is_shown() -> bool:
    return stdout.is_terminal()


@contextmanager
def _progress(*, is_wanted: bool) -> Iterator[Callable[[int, int | None], None]]:
    with ExitStack() as stack:
        advance: Callable[[int], None] | None = None
        before = 0

        def report(done: int, total: int | None) -> None:
            nonlocal advance, before
            if advance is None:
                advance = stack.enter_context(progress("converting", total, is_wanted=is_wanted))
            advance(done - before)
            before = done

        yield report


def _warn(losses: Mapping[str, int]) -> None:
    note(f"warning: this loses: {losses_in_words(losses)}")


def _report(found: Conversion) -> None:
    what = "would be converted" if found.is_dry else "converted"
    size = units.show_size(found.bytes)
    messages = f"{found.messages:,} message{'' if found.messages == 1 else 's'}"
    note(f"{messages} ({size}) {what} to {found.to} {printable(os.fsencode(found.target))}")
    for name, many in found.invented.items():
        note(f"made up: {name} of {many:,} messages")
    if found.is_dry and found.lost:
        note(f"this loses: {losses_in_words(found.lost)}")
    for gap in found.unreadable:
        note(f"warning: {gap}")
