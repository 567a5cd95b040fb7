# `diskq stream`: its verbs, their options, and what their help teaches.

from __future__ import annotations

from diskq.cli.core.parsing import IN, OUT, CommandParser, Commands, add_command, add_noun, number
from diskq.cli.core.places import place, stop
from diskq.cli.core.times import MOMENTS, moment
from diskq.cli.info import add_info
from diskq.cli.replay.replay import add_replay
from diskq.cli.stream import groups as streamgroups
from diskq.cli.stream import inspect as streamlooks
from diskq.cli.stream import read as streamread
from diskq.cli.stream import retention as streamkeep
from diskq.cli.stream import send as streamsend
from diskq.cli.stream.view import StreamView
from diskq.errors import DiskFullError, LockedError, MessageSizeError, OffsetOutOfRangeError
from diskq.options import ENCODINGS, StreamOptions
from diskq.tools.json_lines import STREAM

__all__ = ["add_parser"]

ABOUT = """
A stream is a directory that keeps messages: bytes, with a key and a time. Reading removes nothing: any
number of readers may begin anywhere, at an offset or at a time, while one process writes. It has
partitions; messages of one key are in one partition, in the order in which they were written. Its files
are those of go-diskq.
"""

EXAMPLES = """
  diskq stream create clicks --partition-count 3 --retention-max-age 7d
  diskq stream send clicks 'hello' --key customer-00
  diskq stream read clicks --at -1h
  diskq stream tail clicks -f
  diskq stream replay clicks --speed 10 --since -1h
  diskq stream stats clicks
"""

ABOUT_CREATE = """
Make a stream. Of a stream that is there already, change the settings that are given: it keeps the
messages, and the others. With more partitions, keys go to other ones from then on.
"""

EXAMPLES_CREATE = """
  diskq stream create clicks
  diskq stream create clicks --partition-count 8 --segment-size 64MiB
  diskq stream create clicks --retention-max-age 1h30m --retention-max-bytes 10GiB
"""

ABOUT_SEND = """
Add messages at the end of a stream. They come from the arguments, or from stdin as they come in: a line is
a message (without its newline) unless an option says otherwise. At the end stdout says where the messages
are (partition=P offset=O, or offset=FIRST..LAST), also after an error on the way.

Lines of JSON are those of `read --json`. They need Data (base64); PartitionKey and TimestampUTC go before
--key and --timestamp; the new stream gives partition and offset.
"""

EXAMPLES_SEND = """
  diskq stream send clicks 'hello' --key customer-00
  diskq stream send photos --key cat --whole < cat.jpg
  tail -f app.log | diskq stream send log --key app
  diskq stream send flights 'UA1545' --key EWR --timestamp '2013-07-04 06:00 America/New_York'
  diskq stream read old --json | diskq stream send new --json --create
"""

ABOUT_READ = """
Write messages to stdout; they stay in the stream. Each partition's messages come in order, the partitions
as it happens. It stops at the end of what there is; --end wait goes on with what comes, until interrupted.

At a moment, reading begins with the first message, in the order of offsets, that is later, in each
partition for itself (see `diskq stream lookup`); behind it there may be earlier ones, if times step back.

As a group, reading begins behind what the group has committed (where that is nothing, at --start), and
commits what was written out: if the reader goes away, or the disk is full, or you press Ctrl-C, the rest
comes the next time, and the last few perhaps again. A partition is read by one of a group at a time: with
--end wait, those that others have are taken over when they end. What a reader such as `head` does not
read of a pipe is written all the same: use -n.
"""

EXAMPLES_READ = """
  diskq stream read clicks
  diskq stream read clicks --partition 0 --start 4096 -n 10
  diskq stream read clicks --at '2013-07-04 06:00 America/New_York' --json
  diskq stream read clicks --start at-offset --start-offset 10 --end at-offset --end-offset 20
  diskq stream read clicks --group billing --end wait --json | ./bill
"""

ABOUT_TAIL = """
Write the last messages of a stream to stdout, the latest of all partitions; with -f go on with what comes,
until interrupted.
"""

EXAMPLES_TAIL = """
  diskq stream tail clicks
  diskq stream tail clicks -n 100 --json
  diskq stream tail clicks -f -n 0 | grep --line-buffered error
"""

ABOUT_LOOKUP = """
Tell at which offset a moment is: of each partition the first message, in the order of offsets, that is
later. Times need not be in order. Where no message is that late it says so; where none is in any partition,
that is an error.
"""

EXAMPLES_LOOKUP = """
  diskq stream lookup flights --at '2013-07-04 06:00 America/New_York'
  diskq stream lookup flights --at 2013-07-04T10:00:00Z --at-or-after --partition 0
  diskq stream lookup clicks --at -1h --json | jq .Offset
"""

ABOUT_VACUUM = """
Remove what is older, or more, than the stream is to keep: complete segments, the oldest first, never the
one that is written to. The stream's settings say how much that is, unless options do. May be done while
others write and read. stdout tells what was removed.

A segment is too old when its newest message is. --max-bytes counts the complete segments of each partition.
"""

EXAMPLES_VACUUM = """
  diskq stream vacuum clicks
  diskq stream vacuum clicks --max-age 48h --max-bytes 1GiB --dry-run
  diskq stream vacuum clicks --max-age 1h30m --keep-for-groups
"""

ABOUT_STATS = """
Show what a stream holds: of each partition the offsets and the times that are there, and how much room it
takes. Takes no lock and changes nothing. The JSON has go-diskq's names; Age is in nanoseconds.
"""

EXAMPLES_STATS = """
  diskq stream stats clicks
  diskq stream stats clicks --json | jq .SizeBytes
"""

ABOUT_GROUPS = """
Show the groups that read a stream: of each partition the last offset that they have committed, and how
many messages are behind that (the lag). --reset moves a group that nobody reads as: --to tells from where
it is to go on.
"""

EXAMPLES_GROUPS = """
  diskq stream groups clicks
  diskq stream groups clicks --json | jq 'select(.Lag > 1000)'
  diskq stream groups clicks --reset billing --to '2013-07-04 06:00 America/New_York'
  diskq stream groups clicks --reset billing --partition 0 --to oldest
"""

# What to do about it, where the error itself cannot know that a person is at the command line.
ADVICE: dict[type[Exception], str] = {
    LockedError: "or wait for it: --wait 30s",
    DiskFullError: "free space, or `diskq stream vacuum`",
    MessageSizeError: "see --min-message-size, --max-message-size",
    OffsetOutOfRangeError: "--partition takes one alone, `diskq stream stats` shows what each has",
}


def add_parser(nouns: Commands) -> None:
    verbs = add_noun(nouns, "stream", "streams to replay (go-diskq's files)", ABOUT, EXAMPLES, ADVICE)

    def add(name: str, text: str, about: str, examples: str) -> CommandParser:
        verb = add_command(verbs, name, text, about, examples)
        verb.add_path("stream")
        return verb

    create = add("create", "make a stream, or change its settings", ABOUT_CREATE, EXAMPLES_CREATE)
    _add_layout(create)
    _add_lock(create)
    create.set_defaults(run=streamsend.create)

    send = add("send", "add messages", ABOUT_SEND, EXAMPLES_SEND)
    _add_send(send)
    _add_lock(send)
    send.set_defaults(run=streamsend.send)
    verbs.add_old_name("write", send, stdin_framing="whole")

    read = add("read", "print messages, from anywhere", ABOUT_READ, EXAMPLES_READ)
    _add_read(read)
    read.set_defaults(run=streamread.read)

    tail = add("tail", "print the last messages, and what comes", ABOUT_TAIL, EXAMPLES_TAIL)
    tail.add_partitions()
    tail.add_number("-n", default=10, help="so many messages (default: 10)")
    tail.add_flag("-f", "--follow", help="go on with what comes (default: stop)")
    tail.add_framing("to stdout", [*OUT, "raw"], json=STREAM.about)
    tail.set_defaults(run=streamread.tail)

    add_replay(verbs, "stream", "clicks", "PATH")

    add_info(verbs, "stream", "clicks", "PATH", StreamView)

    lookup = add("lookup", "the offset of a moment", ABOUT_LOOKUP, EXAMPLES_LOOKUP)
    _add_at(lookup, "the moment", is_required=True)
    lookup.add_partitions()
    lookup.add_flag(
        "--at-or-after", help="the first message that is not earlier (default: the first that is later)"
    )
    lookup.add_json("a line of JSON for each partition")
    lookup.set_defaults(run=streamlooks.lookup)

    vacuum = add("vacuum", "remove what is too old, or too much", ABOUT_VACUUM, EXAMPLES_VACUUM)
    _add_vacuum(vacuum)
    vacuum.set_defaults(run=streamkeep.vacuum)

    stats = add("stats", "what is in there", ABOUT_STATS, EXAMPLES_STATS)
    stats.add_json("one line, as go-diskq's; bytes")
    stats.set_defaults(run=streamlooks.stats)

    groups = add("groups", "who has read how far", ABOUT_GROUPS, EXAMPLES_GROUPS)
    _add_groups(groups)
    groups.set_defaults(run=streamgroups.groups)


# --- options, verb by verb ------------------------------------------------------------------------


def _add_layout(parser: CommandParser) -> None:
    parser.add_count("--partition-count", help="partitions that are written to (default: 3)")
    parser.add_size(
        "--segment-size", help="begin the next segment when one has grown so large (default: 32MiB)"
    )
    parser.add_size(
        "--retention-max-bytes",
        help="`vacuum` keeps so much in the complete segments of each partition (default: all)",
    )
    parser.add_duration("--retention-max-age", help="`vacuum` keeps what is younger than this (default: all)")
    parser.add_argument(
        "--encoding",
        choices=ENCODINGS,
        help="how records tell lengths: `fixed`, which go-diskq reads and writes, or `varuint`, as its "
        "README has it, and which is smaller (default: fixed)",
    )


def _add_lock(parser: CommandParser) -> None:
    parser.add_wait("stream")
    parser.add_flag(
        "--take-over",
        help="go on where a go-diskq producer crashed and left its owner file; make sure that none runs "
        "(default: refuse)",
    )


def _add_send(parser: CommandParser) -> None:
    options = StreamOptions()
    parser.add_messages()
    parser.add_framing("from stdin", IN, json=STREAM.about)
    parser.add_argument(
        "--key",
        metavar="KEY",
        help="the messages' key, which decides on the partition (default: each gets a random one)",
    )
    parser.add_argument(
        "--timestamp", type=moment, metavar="TIME", help=f"the messages' time: {MOMENTS} (default: now)"
    )
    parser.add_sending("the stream")
    parser.add_max_message_size(options.max_message_size)
    parser.add_size(
        "--min-message-size",
        default=options.min_message_size,
        help="refuse smaller messages; 1 where go-diskq reads, which stops at empty ones (default: 0)",
    )


def _add_read(parser: CommandParser) -> None:
    parser.add_partitions()
    parser.add_argument(
        "--start",
        type=place,
        metavar="PLACE",
        help="where to begin: `oldest`, `newest` (the last message, or the next one where the segment "
        "that is written to is empty), `active` (that segment), an offset, or a time (default: oldest)",
    )
    parser.add_argument(
        "--start-offset", type=number, metavar="OFFSET", help="begin at this offset (default: see --start)"
    )
    _add_at(parser, "begin at this moment", default="see --start")
    parser.add_argument(
        "--end",
        type=stop,
        metavar="PLACE",
        help="where to stop: `close` (at the end of what there is), `wait` (never), or at an offset, "
        "inclusive, which is waited for (default: close)",
    )
    parser.add_argument(
        "--end-offset", type=number, metavar="OFFSET", help="stop behind this offset (default: see --end)"
    )
    parser.add_count("-n", help="stop after N messages (default: see --end)")
    parser.add_argument(
        "--group",
        metavar="NAME",
        help="read as this group, and commit what was written out (default: as nobody)",
    )
    parser.add_framing("to stdout", [*OUT, "raw"], json=STREAM.about)
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_const",
        dest="framing",
        const="json",
        help="as --json: go-diskq's name (default: --lines)",
    )


def _add_at(
    parser: CommandParser, what: str, *, is_required: bool = False, default: str | None = None
) -> None:
    text = f"{what}: {MOMENTS}" + (f" (default: {default})" if default else "")
    parser.add_argument("--at", type=moment, required=is_required, metavar="TIME", help=text)


def _add_vacuum(parser: CommandParser) -> None:
    parser.add_size(
        "--max-bytes",
        help="keep so much in the complete segments of each partition (default: as the settings say)",
    )
    parser.add_duration("--max-age", help="keep what is younger than this (default: as the settings say)")
    parser.add_flag(
        "--keep-for-groups", help="spare what some group has not committed yet (default: remove it, too)"
    )
    parser.add_flag("--dry-run", help="tell what would be removed, and remove nothing (default: remove it)")


def _add_groups(parser: CommandParser) -> None:
    parser.add_json("a line of JSON for each partition")
    parser.add_argument("--reset", metavar="GROUP", help="move this group (default: only look)")
    parser.add_argument(
        "--to", type=place, metavar="PLACE", help="`oldest`, `newest`, an offset, or a time (default: none)"
    )
    parser.add_partitions()
