# The command line of `diskq journal`: verbs, options, help.

from __future__ import annotations

from diskq.cli.core.parsing import IN, OUT, CommandParser, Commands, add_command, add_noun
from diskq.cli.core.places import place
from diskq.cli.core.times import MOMENTS, moment
from diskq.cli.info import add_info
from diskq.cli.journal import inspect as journal_inspect
from diskq.cli.journal import verbs as journal_verbs
from diskq.cli.journal.view import check_journal
from diskq.cli.replay.replay import add_replay
from diskq.cli.table import add_table
from diskq.errors import LockedError
from diskq.tools.json_lines import JOURNAL

__all__ = ["add_parser"]

ABOUT = """
A journal is a directory with messages (a value, a key, a type of 0 to 255, a time), which stay when they are
read. Readers with a name remember their position. The files are those of sej.

A journal has one writer at a time, and any number of readers. Reading takes no lock and changes nothing.
"""

EXAMPLES = """
  diskq journal send journals/web 'hello' --create
  diskq journal tail journals/web --follow
  diskq journal read journals/web --start -1h --json
  diskq journal offset journals/web
"""

_PLACE = f"oldest, newest, an offset, or a time: {MOMENTS}"


def add_parser(nouns: Commands) -> None:
    advice: dict[type[Exception], str] = {LockedError: "or wait for it: --wait 30s"}
    verbs = add_noun(nouns, "journal", "journals (sej's files)", ABOUT, EXAMPLES, advice)

    send = _verb(
        verbs, "send", "add messages", "Add messages: arguments, or lines of stdin.", "'one' 'two' --key k"
    )
    send.add_messages()
    send.add_argument("--key", metavar="KEY", help="key of all messages, up to 127 bytes (default: none)")
    send.add_number("--type", default=0, help="type of all messages, up to 255 (default: 0)")
    send.add_argument("--timestamp", type=moment, metavar="TIME", help=f"{MOMENTS} (default: now)")
    send.add_framing("from stdin", IN)
    send.add_sending("the journal")
    send.add_sync_to()
    send.add_wait("journal")
    send.set_defaults(run=journal_verbs.send)

    read = _verb(
        verbs,
        "read",
        "print messages from any place",
        "Print the messages from one place to another. They stay.",
        "--start -1h --json",
    )
    _add_stretch(read)
    read.add_count("-n", "--max-messages", help="messages at most (default: all)")
    _add_output(read)
    read.set_defaults(run=journal_inspect.read)

    counted = _verb(verbs, "count", "count messages", "Count messages.", "--type 3")
    _add_stretch(counted)
    counted.set_defaults(run=journal_inspect.count)

    tail = _verb(verbs, "tail", "print the last messages", "Print the last messages.", "-n 20 --follow")
    tail.add_number("-n", "--max-messages", default=10, help="messages (default: 10)")
    tail.add_flag("--follow", "-f", help="go on with new messages (default: stop)")
    _add_output(tail)
    tail.set_defaults(run=journal_inspect.tail)

    add_replay(verbs, "journal", "journals/web", "DIR")

    add_table(verbs, "journal", "journals/web", "DIR")

    add_info(verbs, "journal", "journals/web", "DIR", check_journal)

    offset = _verb(
        verbs,
        "offset",
        "positions of readers",
        "Show the first and the next offset, and the positions of readers.",
        "--json",
    )
    offset.add_json()
    offset.set_defaults(run=journal_inspect.offset)

    reset = _verb(
        verbs, "reset", "move a reader", "Move a reader to another place.", "--reader billing --to -1h"
    )
    reset.add_argument("--reader", required=True, metavar="NAME", help="its name; a new one is made")
    reset.add_argument(
        "--to", required=True, type=place, metavar="PLACE", help=f"where it reads next: {_PLACE}"
    )
    reset.add_wait("reader's offset")
    reset.set_defaults(run=journal_verbs.reset)

    old = _verb(
        verbs,
        "old",
        "files that may be removed",
        "Print the files whose last message is older, and which every reader has read; never the last one.\n"
        "If that message is stamped in the future, the time at which the file was last written counts, and\n"
        "stderr says so.",
        "--days 30",
    )
    old.add_number("--days", default=7, help="days since the last message (default: 7)")
    old.set_defaults(run=journal_inspect.old)

    timestamp = _verb(
        verbs, "timestamp", "the time of a message", "Print the time of a message.", "--offset 23"
    )
    timestamp.add_number("--offset", required=True, help="its offset")
    timestamp.set_defaults(run=journal_inspect.timestamp)

    file = _verb(verbs, "file", "what is in a file", "Show what one file of a journal holds.", "", "FILE")
    file.add_json()
    file.set_defaults(run=journal_inspect.file)

    dump = _verb(
        verbs, "dump", "print a file's messages", "Print all messages of one file.", "--json", "FILE"
    )
    _add_output(dump)
    dump.set_defaults(run=journal_inspect.dump)


def _verb(
    verbs: Commands,
    name: str,
    short: str,
    about: str,
    example: str,
    what: str = "DIR",
) -> CommandParser:
    shown = "journals/web" if what == "DIR" else "journals/web/jnl/0000000000000000.jnl"
    parser = add_command(verbs, name, short, about, f"  diskq journal {name} {shown} {example}")
    text = "the journal's directory" if what == "DIR" else "one of its files, jnl/*.jnl"
    parser.add_argument("path", metavar=what, help=text)
    return parser


def _add_stretch(parser: CommandParser) -> None:
    parser.add_argument("--start", type=place, metavar="PLACE", help=f"{_PLACE} (default: oldest)")
    parser.add_argument("--end", type=place, metavar="PLACE", help="end before this place (default: newest)")
    parser.add_number("--type", help="only messages of this type (default: all)")


def _add_output(parser: CommandParser) -> None:
    parser.add_framing("to stdout", [*OUT, "raw"], json=JOURNAL.about)
    # The option of sej's command.
    parser.add_argument(
        "--format",
        dest="framing",
        choices=[*OUT, "raw", "json"],
        help="the same by its name (default: lines)",
    )
