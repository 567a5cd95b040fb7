# `diskq stream replay` and `diskq journal replay`: messages at their original pace. Law: it reports where it
# stopped, and what was not replayed by then comes when it goes on from there.

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence

import trio

from diskq.channels.replay import AnyMessage, Replay, open_replay
from diskq.cli.core.interrupts import run_async
from diskq.cli.core.parsing import OUT, CommandParser, Commands, UsageError, add_command, number
from diskq.cli.core.pipes import OUT_BYTES
from diskq.cli.core.places import Moment, Place
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import note, progress
from diskq.cli.core.times import MOMENTS, moment
from diskq.cli.journal.view import check_journal, offset_at
from diskq.cli.replay.sinks import Sink, check_sink, opened_sink
from diskq.cli.stream.view import StreamView
from diskq.engine.journal.reader import JournalReader
from diskq.tools.json_lines import JOURNAL, STREAM

__all__ = ["add_replay", "run_replay"]

ABOUT = """
Replay a {noun} at the pace at which its messages came, or faster: to stdout, into a queue, a stream or a
journal, or through a function of yours. The messages stay. It ends at the message that is the last one when
it begins.

{order}A message whose time is earlier than that of the one before it comes with that one; so does one without
a time. After a delay it catches up, unless --late keeps the gaps.

At the end, and at Ctrl-C, the options that go on from there are printed on stderr, if messages are left. In a
pipe the last few may come again then.

`diskq pipeline replay` does it with Spark, for streams, and for their tables of Parquet files.
"""

_ORDER = "Partitions come as one, by time; each keeps its order.\n"

EXAMPLES = """
  diskq {noun} replay {path} --speed 10 --since -1h
  diskq {noun} replay {path} --speed max --json > all.jsonl
  diskq {noun} replay {path} --max-gap 5s --into-queue data events --create
  diskq {noun} replay {path} --into again --create --keep-timestamps
  diskq {noun} replay {path} --call handlers:on_message --start-offset 4096
"""


def add_replay(verbs: Commands, noun: str, path: str, metavar: str) -> CommandParser:
    """Add the verb `replay` to a noun, with examples about `path`. Returns its parser."""
    has_partitions = noun == "stream"
    parser = add_command(
        verbs,
        "replay",
        "replay messages at their pace",
        ABOUT.format(noun=noun, order=_ORDER if has_partitions else ""),
        EXAMPLES.format(noun=noun, path=path),
    )
    parser.add_path(noun, metavar)
    if has_partitions:
        parser.add_partitions()
    _add_stretch(parser, has_partitions)
    _add_pace(parser)
    _add_places(parser, has_partitions)
    parser.set_defaults(run=run_replay, is_journal=not has_partitions)
    return parser


def _add_stretch(parser: CommandParser, has_partitions: bool) -> None:
    parser.add_argument(
        "--since", type=moment, metavar="TIME", help=f"begin at this moment: {MOMENTS} (default: oldest)"
    )
    parser.add_argument(
        "--until", type=moment, metavar="TIME", help="stop where --since would begin (default: at the end)"
    )
    of_one = "; of partition P alone, and may be given several times" if has_partitions else ""
    parser.add_argument(
        "--start-offset",
        type=_place_in_partition if has_partitions else _place_in_journal,
        action="append",
        metavar="[P:]OFFSET" if has_partitions else "OFFSET",
        help=f"begin at this offset{of_one} (default: see --since)",
    )
    parser.add_argument(
        "--end-offset", type=number, metavar="OFFSET", help="stop after this offset (default: see --until)"
    )
    parser.add_count("-n", "--max-messages", help="stop after N messages (default: all)")


def _add_pace(parser: CommandParser) -> None:
    parser.add_argument(
        "--speed",
        type=speed,
        default=1.0,
        metavar="N",
        help="N times as fast as they came: 1, 10, 0.5; or `max`, without gaps (default: 1)",
    )
    parser.add_duration("--max-gap", help="wait at most this long for a message (default: no limit)")
    parser.add_argument(
        "--late",
        choices=["catch-up", "keep-gaps"],
        default="catch-up",
        help="after a delay: catch up with the schedule, or shift the rest (default: catch-up)",
    )


def _add_places(parser: CommandParser, has_partitions: bool) -> None:
    parser.add_argument(
        "--into-queue",
        nargs=2,
        metavar=("DIR", "NAME"),
        help="send them to this queue (default: stdout)",
    )
    parser.add_argument(
        "--into", metavar="PATH", help="send them to this stream, with their keys (default: stdout)"
    )
    parser.add_argument(
        "--into-journal", metavar="DIR", help="send them to this journal, with their keys (default: stdout)"
    )
    parser.add_argument(
        "--call",
        metavar="MODULE:FUNCTION",
        help="call a Python function with each message, async or not (default: stdout)",
    )
    parser.add_create("the target")
    parser.add_flag(
        "--keep-timestamps",
        help="with --into and --into-journal: keep their times (default: the time of writing)",
    )
    parser.add_durability()
    parser.add_wait("queue, stream or journal")
    fields = (STREAM if has_partitions else JOURNAL).about
    parser.add_framing("to stdout", [*OUT, "raw"], json=fields)


def speed(text: str) -> float | None:
    """Return the factor; None for no gaps. An argparse type."""
    if text == "max":
        return None
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(
            f"a speed is a number above 0, such as 10 or 0.5, or max, not {text!r}"
        )
    return found


def _place_in_partition(text: str) -> tuple[int | None, int]:
    partition, colon, offset = text.rpartition(":")
    return number(partition) if colon else None, number(offset)


def _place_in_journal(text: str) -> tuple[int | None, int]:
    return None, number(text)


# --- from where to where --------------------------------------------------------------------------


def _stretch(args: argparse.Namespace) -> dict[int, range]:
    """Return the offsets to replay, by partition. Raises UsageError, OffsetOutOfRangeError."""
    if args.since is not None and args.start_offset is not None:
        raise UsageError("--since and --start-offset contradict each other: leave one of them out")
    if args.until is not None and args.end_offset is not None:
        raise UsageError("--until and --end-offset contradict each other: leave one of them out")
    return _in_journal(args) if args.is_journal else _in_stream(args)


def _in_stream(args: argparse.Namespace) -> dict[int, range]:
    view = StreamView(args.path)
    starts: dict[int | None, int] = dict(args.start_offset or [])
    view.partitions([partition for partition in starts if partition is not None])
    found = {}
    for partition in view.partitions(args.partitions):
        place: Place = "oldest" if args.since is None else Moment(args.since)
        place = starts.get(partition, starts.get(None, place))
        start = view.offset_of(partition, place)
        with view.reader(partition) as reader:
            end = reader.next_offset()
        if args.until is not None:
            end = view.offset_of(partition, Moment(args.until))
        elif args.end_offset is not None:
            end = min(end, args.end_offset + 1)
        found[partition] = range(start, end)
    return found


def _in_journal(args: argparse.Namespace) -> dict[int, range]:
    check_journal(args.path)
    place: Place = "oldest" if args.since is None else Moment(args.since)
    start = offset_at(args.path, place if args.start_offset is None else args.start_offset[-1][1])
    with JournalReader(args.path) as reader:
        end = reader.next_offset()
        reader.seek(start)  # raises if it is not there
    if args.until is not None:
        end = offset_at(args.path, Moment(args.until))
    elif args.end_offset is not None:
        end = min(end, args.end_offset + 1)
    return {0: range(start, end)}


# --- the replay -----------------------------------------------------------------------------------


def run_replay(args: argparse.Namespace) -> None:
    stretch = _stretch(args)
    check_sink(args)
    run = _Run(args, stretch)
    try:
        run_async(run.run)
    finally:
        note(run.summary())


class _Run:
    """One replay, and its position."""

    def __init__(self, args: argparse.Namespace, stretch: dict[int, range]) -> None:
        self._args = args
        self._stretch = stretch
        self._next = {partition: offsets.start for partition, offsets in stretch.items()}
        self._count = 0

    async def run(self) -> None:
        args = self._args
        wanted = {partition: offsets for partition, offsets in self._stretch.items() if offsets}
        replayed = open_replay(
            args.path,
            None if args.is_journal else wanted,
            start={partition: offsets[0] for partition, offsets in wanted.items()},
            end={partition: offsets[-1] for partition, offsets in wanted.items()},
            speed=args.speed,
            max_gap=args.max_gap,
            late="keep_gaps" if args.late == "keep-gaps" else "catch_up",
        )
        if not wanted:
            return
        is_shown = stdout.is_terminal() and not (
            args.into or args.into_queue or args.into_journal or args.call
        )
        async with opened_sink(args) as sink, replayed as messages:
            left = messages.statistics().lag
            total = left if args.max_messages is None else min(left, args.max_messages)
            with progress("replaying", total, is_wanted=not is_shown) as advance:
                while await self._replay_some(messages, sink, advance):
                    pass
        for gap in messages.losses:
            note(f"warning: {gap}")

    async def _replay_some(self, messages: Replay, sink: Sink, advance: Callable[[int], None]) -> bool:
        """Replay some messages. False if there are no more."""
        wanted = (
            sink.most
            if self._args.max_messages is None
            else min(sink.most, self._args.max_messages - self._count)
        )
        if not wanted:
            return False
        try:
            some = await messages.receive_many(wanted, max_bytes=OUT_BYTES)
        except trio.EndOfChannel:
            self._next |= messages.position  # after damage at the end
            return False
        try:
            await sink.put(some)
        except BaseException as failure:
            self._note(some[: sink.landed(failure)])
            raise
        self._note(some)
        advance(len(some))
        return True

    def _note(self, messages: Sequence[AnyMessage]) -> None:
        for message in messages:
            self._next[message.partition] = message.offset + 1
        self._count += len(messages)

    def summary(self) -> str:
        """Return the number of messages, and the options that go on from here."""
        text = f"{self._count} replayed"
        if all(offset >= self._stretch[partition].stop for partition, offset in self._next.items()):
            return text
        # Completed partitions are named, too: without it they would begin anew.
        places = [
            f"--start-offset {offset}" if self._args.is_journal else f"--start-offset {partition}:{offset}"
            for partition, offset in self._next.items()
        ]
        return f"{text}; go on with {' '.join(places)}"
