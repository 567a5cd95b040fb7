# The command line of `diskq stream`: verbs, options, help.

from __future__ import annotations

from diskq.cli.core.parsing import IN, OUT, CommandParser, Commands, add_command, add_noun, number
from diskq.cli.core.places import place, stop
from diskq.cli.core.times import MOMENTS, moment
from diskq.cli.info import add_info
from diskq.cli.replay.replay import add_replay
from diskq.cli.stream import groups as stream_groups
from diskq.cli.stream import inspect as stream_inspect
from diskq.cli.stream import read as stream_read
from diskq.cli.stream import retention as stream_retention
from diskq.cli.stream import send as stream_send
from diskq.cli.stream.view import StreamView
from diskq.cli.table import add_table
from diskq.errors import DiskFullError, LockedError, MessageSizeError, OffsetOutOfRangeError
from diskq.options import ENCODINGS, StreamOptions
from diskq.tools.json_lines import STREAM

__all__ = ["add_parser"]

ABOUT = """
A stream is a directory that keeps messages: bytes, with a key and a time. Reading removes nothing: any
number of readers may begin anywhere, at an offset or at a time, while one process writes. It has partitions;
messages of one key are in one partition, in the order in which they were sent. Its files are those of
go-diskq.
"""

EXAMPLES = """
  diskq stream create clicks --partition-count 3 --retention-max-age 7d
  diskq stream send clicks 'hello' --key customer-00
  diskq stream read clicks --since -1h
  diskq stream tail clicks -f
  diskq stream replay clicks --speed 10 --since -1h
  diskq stream table clicks --into /lake
  diskq stream stats clicks
"""

ABOUT_CREATE = """
Make a stream; or change the settings that are given, if it is there already: its messages and its other
settings stay. With another number of partitions, keys go to other partitions from then on.
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

Lines of JSON are those of `read --json`. They need Data (base64); PartitionKey and TimestampUTC take
precedence over --key and --timestamp; partition and offset are new.
"""

EXAMPLES_SEND = """
  diskq stream send clicks 'hello' --key customer-00
  diskq stream send photos --key cat --whole < cat.jpg
  tail -f app.log | diskq stream send log --key app
  diskq stream send flights 'UA1545' --key EWR --timestamp '2013-07-04 06:00 America/New_York'
  diskq stream read old --json | diskq stream send new --json --create
"""

ABOUT_READ = """
Write messages to stdout; they stay in the stream. The messages of a partition come in order, partitions in
any order. It stops at the last message; --end wait goes on with new messages, until interrupted.

With a moment, reading begins in each partition at the first message, in the order of offsets, that is later
(see `diskq stream lookup`); earlier ones may come after it, if times step back.

As a group, reading begins after what the group has committed (at --start if that is nothing), and commits
what was written out. If the reader of stdout ends, or its disk is full, or you press Ctrl-C, the rest comes
the next time, and the last few messages may come again. One process of a group at a time reads a partition:
with --end wait, partitions of other processes are taken over when those end. A message in a pipe counts as
written even if a reader such as `head` never reads it: use -n.
"""

EXAMPLES_READ = """
  diskq stream read clicks
  diskq stream read clicks --partition 0 --start 4096 -n 10
  diskq stream read clicks --since '2013-07-04 06:00 America/New_York' --json
  diskq stream read clicks --start at-offset --start-offset 10 --end at-offset --end-offset 20
  diskq stream read clicks --group billing --end wait --json | ./bill
"""

ABOUT_TAIL = """
Write the last messages of a stream to stdout, the latest of all partitions; with -f go on with new messages,
until interrupted.
"""

EXAMPLES_TAIL = """
  diskq stream tail clicks
  diskq stream tail clicks -n 100 --json
  diskq stream tail clicks -f -n 0 | grep --line-buffered error
"""

ABOUT_LOOKUP = """
Print the offset of a moment: in each partition that of the first message, in the order of offsets, that is
later. Times need not be in order. It prints `none` for a partition without such a message, and fails if there
is none in any partition.
"""

EXAMPLES_LOOKUP = """
  diskq stream lookup flights --at '2013-07-04 06:00 America/New_York'
  diskq stream lookup flights --at 2013-07-04T10:00:00Z --at-or-after --partition 0
  diskq stream lookup clicks --at -1h --json | jq .Offset
"""

ABOUT_VACUUM = """
Remove what exceeds the retention limits: complete segments, the oldest first, never the active one. The
limits are those of the stream's settings, unless options give others. Other processes may write and read
meanwhile. What was removed is printed on stdout.

A segment is too old when its newest message is; if that is stamped in the future, when its file was last
written, and stderr says so. --max-bytes counts the complete segments of each partition.
"""

EXAMPLES_VACUUM = """
  diskq stream vacuum clicks
  diskq stream vacuum clicks --max-age 48h --max-bytes 1GiB --dry-run
  diskq stream vacuum clicks --max-age 1h30m --keep-for-groups
  diskq stream vacuum clicks --max-age 7d --keep-for-table /lake
"""

ABOUT_STATS = """
Show what a stream holds: offsets, times and bytes of each partition. Takes no lock and changes nothing. The
JSON has go-diskq's names; Age is in nanoseconds.
"""

EXAMPLES_STATS = """
  diskq stream stats clicks
  diskq stream stats clicks --json | jq .SizeBytes
"""

ABOUT_GROUPS = """
Show the groups that read a stream: in each partition the last offset that they have committed, and the number
of messages after it (the lag). --reset moves a group to --to, while no process reads as this group.
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
    OffsetOutOfRangeError: "`diskq stream stats` shows the offsets of each partition; --partition reads one",
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
    create.set_defaults(run=stream_send.create)

    send = add("send", "add messages", ABOUT_SEND, EXAMPLES_SEND)
    _add_send(send)
    _add_lock(send)
    send.set_defaults(run=stream_send.send)

    read = add("read", "print messages from any place", ABOUT_READ, EXAMPLES_READ)
    _add_read(read)
    read.set_defaults(run=stream_read.read)

    tail = add("tail", "print the last messages, then new ones", ABOUT_TAIL, EXAMPLES_TAIL)
    tail.add_partitions()
    tail.add_number("-n", "--max-messages", default=10, help="messages (default: 10)")
    tail.add_flag("-f", "--follow", help="go on with new messages (default: stop)")
    tail.add_framing("to stdout", [*OUT, "raw"], json=STREAM.about)
    tail.set_defaults(run=stream_read.tail)

    add_replay(verbs, "stream", "clicks", "PATH")

    add_table(verbs, "stream", "clicks", "PATH")

    add_info(verbs, "stream", "clicks", "PATH", StreamView)

    lookup = add("lookup", "the offset of a moment", ABOUT_LOOKUP, EXAMPLES_LOOKUP)
    lookup.add_argument("--at", type=moment, required=True, metavar="TIME", help=f"the moment: {MOMENTS}")
    lookup.add_partitions()
    lookup.add_flag(
        "--at-or-after", help="the first message that is not earlier (default: the first that is later)"
    )
    lookup.add_json("a line of JSON for each partition")
    lookup.set_defaults(run=stream_inspect.lookup)

    vacuum = add("vacuum", "remove what exceeds the retention limits", ABOUT_VACUUM, EXAMPLES_VACUUM)
    _add_vacuum(vacuum)
    vacuum.set_defaults(run=stream_retention.vacuum)

    stats = add("stats", "offsets, times and sizes by partition", ABOUT_STATS, EXAMPLES_STATS)
    stats.add_json("one line, as go-diskq's; bytes")
    stats.set_defaults(run=stream_inspect.stats)

    groups = add("groups", "positions of groups", ABOUT_GROUPS, EXAMPLES_GROUPS)
    _add_groups(groups)
    groups.set_defaults(run=stream_groups.groups)


# --- options, verb by verb ------------------------------------------------------------------------


def _add_layout(parser: CommandParser) -> None:
    parser.add_count("--partition-count", help="number of partitions (default: 3)")
    parser.add_size("--segment-size", help="begin another segment when one has this size (default: 32MiB)")
    parser.add_size(
        "--retention-max-bytes",
        help="`vacuum` keeps this size in complete segments of each partition (default: all)",
    )
    parser.add_duration("--retention-max-age", help="`vacuum` keeps what is younger than this (default: all)")
    parser.add_argument(
        "--encoding",
        choices=ENCODINGS,
        help="how lengths are encoded: `fixed`, which go-diskq reads and writes, or `varuint`, which its "
        "README describes, and which is smaller (default: fixed)",
    )


def _add_lock(parser: CommandParser) -> None:
    parser.add_wait("stream")
    parser.add_flag(
        "--take-over",
        help="open a stream whose go-diskq producer crashed and left an owner file; make sure that none runs "
        "(default: refuse)",
    )


def _add_send(parser: CommandParser) -> None:
    options = StreamOptions()
    parser.add_messages()
    parser.add_framing("from stdin", IN, json=STREAM.about)
    parser.add_argument(
        "--key",
        metavar="KEY",
        help="the messages' key, which determines the partition (default: a random one for each)",
    )
    parser.add_argument(
        "--timestamp", type=moment, metavar="TIME", help=f"the messages' time: {MOMENTS} (default: now)"
    )
    parser.add_sending("the stream")
    parser.add_sync_to()
    parser.add_duration(
        "--segment-age",
        help="complete a segment this long after its first message, for tables (default: when it is full)",
    )
    parser.add_max_message_size(options.max_message_size)
    parser.add_size(
        "--min-message-size",
        default=options.min_message_size,
        help="refuse smaller messages; use 1 if go-diskq reads them: it stops at empty ones (default: 0)",
    )


def _add_read(parser: CommandParser) -> None:
    parser.add_partitions()
    parser.add_argument(
        "--start",
        type=place,
        metavar="PLACE",
        help="where to begin: `oldest`, `newest` (the last message, or the next one if the active segment is "
        "empty), `active` (the active segment), an offset, or a time (default: oldest)",
    )
    parser.add_argument(
        "--start-offset", type=number, metavar="OFFSET", help="begin at this offset (default: see --start)"
    )
    parser.add_argument(
        "--since", type=moment, metavar="TIME", help=f"begin at this moment: {MOMENTS} (default: see --start)"
    )
    parser.add_argument(
        "--end",
        type=stop,
        metavar="PLACE",
        help="where to stop: `close` (at the last message), `wait` (never), or after an offset, waiting for "
        "it (default: close)",
    )
    parser.add_argument(
        "--end-offset", type=number, metavar="OFFSET", help="stop after this offset (default: see --end)"
    )
    parser.add_count("-n", "--max-messages", help="stop after N messages (default: see --end)")
    parser.add_argument(
        "--group",
        metavar="NAME",
        help="read as this group, and commit what was written out (default: no group)",
    )
    parser.add_framing("to stdout", [*OUT, "raw"], json=STREAM.about)
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_const",
        dest="framing",
        const="json",
        help="the same as --json, as in go-diskq (default: --lines)",
    )


def _add_vacuum(parser: CommandParser) -> None:
    parser.add_size(
        "--max-bytes",
        help="keep this size in complete segments of each partition (default: as the settings say)",
    )
    parser.add_duration("--max-age", help="keep what is younger than this (default: as the settings say)")
    parser.add_flag(
        "--keep-for-groups", help="keep what some group has not committed yet (default: remove it)"
    )
    parser.add_argument(
        "--keep-for-table",
        metavar="DIR",
        help="update the table in DIR first (see `diskq stream table`), and keep what it does not have then; "
        "with --dry-run it is not updated (default: remove it)",
    )
    parser.add_flag("--dry-run", help="show what would be removed, and remove nothing (default: remove it)")


def _add_groups(parser: CommandParser) -> None:
    parser.add_json("a line of JSON for each partition")
    parser.add_argument("--reset", metavar="GROUP", help="move this group (default: show groups)")
    parser.add_argument(
        "--to", type=place, metavar="PLACE", help="`oldest`, `newest`, an offset, or a time (default: none)"
    )
    parser.add_partitions()
