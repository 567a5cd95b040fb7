# The command line of `diskq priority`: verbs, options, help.

from __future__ import annotations

from diskq.cli.core.parsing import IN, OUT, CommandParser, Commands, add_command, add_noun
from diskq.cli.info import add_info
from diskq.cli.priority import inspect as priority_inspect
from diskq.cli.priority import verbs as priority_verbs
from diskq.cli.priority.view import check_store
from diskq.errors import (
    DiskFullError,
    FullError,
    LockedError,
    MessageSizeError,
    NotFoundError,
)
from diskq.tools.json_lines import JOB

__all__ = ["add_parser"]

ABOUT = """
A store of priority queues is a directory with queues. Each queue gives the message with the smallest
priority first, and the oldest first among equals. One queue, whose name is '', is always there. The files are
those of TaskFlux.

One process at a time has a store open. Its lock ends with the process.
"""

EXAMPLES = """
  diskq priority create jobs mail --max-messages 10000
  diskq priority send jobs --queue mail --priority 5 'welcome'
  diskq priority receive jobs --queue mail -n 1
  diskq priority queues jobs
  diskq priority inspect jobs
"""

ABOUT_QUEUES = """
Show the queues of a store: how many messages and bytes, and their limits. Takes no lock and changes
nothing; messages in flight are counted.
"""

EXAMPLES_QUEUES = """
  diskq priority queues jobs
  diskq priority queues jobs --json | jq '.[] | select(.stored > 1000).name'
"""

ABOUT_CREATE = """
Add a queue to a store, which is made if it is not there. The limits of a queue cannot be changed later.
"""

EXAMPLES_CREATE = """
  diskq priority create jobs
  diskq priority create jobs mail --max-messages 10000 --max-message-size 64KiB
  diskq priority create jobs alarms --priority-range 0 9 --implementation QA
"""

ABOUT_DELETE = """
Remove a queue, with all messages in it. Asks first at a terminal.
"""

EXAMPLES_DELETE = """
  diskq priority delete jobs mail
  diskq priority delete jobs mail --yes
"""

ABOUT_SEND = """
Add messages to a queue. They come from the arguments, or from stdin as they come in: a line is a message
(without its newline) unless an option says otherwise. A line of JSON may give its own queue and priority;
its `body` is base64. The number of messages sent is printed on stderr at the end, also after an error.
"""

EXAMPLES_SEND = """
  diskq priority send jobs 'hello' --create
  diskq priority send jobs --queue mail --priority -3 --durability synced 'urgent'
  diskq priority send jobs --queue mail --priority 5 < lines.txt
  diskq priority receive old --queue mail --json | diskq priority send new
"""

ABOUT_RECEIVE = """
Write the messages of a queue to stdout, the smallest priority first, and stop when it is empty. A message is
removed after it was written. If the reader of stdout ends, or its disk is full, or you press Ctrl-C,
messages that were not written stay, and the last written ones may come again.

In lines, a message that contains a newline looks like two (you are warned once): use --base64, --json or
--length-prefixed if messages may be any bytes.

With --follow the store is closed while the queue is empty, so that others can send.
"""

EXAMPLES_RECEIVE = """
  diskq priority receive jobs --queue mail > lines.txt
  diskq priority receive jobs -n 1
  diskq priority receive jobs --queue mail --json | jq .priority
  diskq priority receive jobs --queue mail --follow | ./send-mail
"""

ABOUT_PEEK = """
Show the first messages of a queue, which stay. Takes no lock: messages in flight are shown, too. At a
terminal it prints a table; in a pipe it writes what `receive` would write.
"""

EXAMPLES_PEEK = """
  diskq priority peek jobs --queue mail
  diskq priority peek jobs -n 1 --json
"""

ABOUT_SNAPSHOT = """
Write a snapshot of a store, and remove the log before it: it then opens faster, and takes less space. A store
does that by itself when some segments are complete.
"""

EXAMPLES_SNAPSHOT = """
  diskq priority snapshot jobs
"""

ABOUT_INSPECT = """
Show the state of a store's files: segments and their records, the snapshot, the layout, what is damaged or
missing, and the outcome of the next open. Takes no lock and changes nothing. The exit code is 1 if the store
could not be opened.

While a process has the store open, what it is writing at this moment may look torn.
"""

EXAMPLES_INSPECT = """
  diskq priority inspect jobs
  diskq priority inspect jobs --commands
  diskq priority inspect jobs --json | jq .opening
"""

ABOUT_REPAIR = """
Repair a store that cannot be opened because of damage: its log is cut at the damage, and what is cut off is
kept in other files, whose names are printed. Messages that were sent after the damage are then missing, and
those that were acknowledged after it are there again.

Without --apply nothing is changed: it shows what would be done. `diskq repair` does the same, and salvages.
"""

EXAMPLES_REPAIR = """
  diskq priority repair jobs
  diskq priority repair jobs --apply
"""

# What to do about it, where the error itself cannot know that a person is at the command line.
ADVICE: dict[type[Exception], str] = {
    LockedError: "or wait for it: --wait 30s",
    DiskFullError: "receive messages, or free space",
    MessageSizeError: "the limit of a queue is fixed when it is made",
    FullError: "receive some first",
    NotFoundError: "see `diskq priority queues`; `diskq priority create` makes one",
}


def add_parser(nouns: Commands) -> None:
    verbs = add_noun(nouns, "priority", "priority queues (TaskFlux's files)", ABOUT, EXAMPLES, ADVICE)

    queues = add_command(verbs, "queues", "show the queues of a store", ABOUT_QUEUES, EXAMPLES_QUEUES)
    queues.add_path("store")
    queues.add_json("a list; sizes in bytes")
    queues.set_defaults(run=priority_inspect.queues)

    _add_create(verbs)

    delete = add_command(verbs, "delete", "remove a queue", ABOUT_DELETE, EXAMPLES_DELETE)
    delete.add_path("store")
    delete.add_argument("name", metavar="NAME", help="the queue")
    delete.add_yes()
    delete.add_wait("store")
    delete.set_defaults(run=priority_verbs.delete)

    _add_send(verbs)
    _add_receive(verbs)

    peek = add_command(verbs, "peek", "print messages, which stay", ABOUT_PEEK, EXAMPLES_PEEK)
    peek.add_path("store")
    _add_queue(peek)
    peek.add_most()
    _add_output(peek)
    peek.set_defaults(run=priority_inspect.peek)

    add_info(verbs, "priority", "jobs", "PATH", check_store)

    snapshot = add_command(
        verbs, "snapshot", "write a snapshot, remove the log before it", ABOUT_SNAPSHOT, EXAMPLES_SNAPSHOT
    )
    snapshot.add_path("store")
    snapshot.add_wait("store")
    snapshot.set_defaults(run=priority_verbs.snapshot)

    inspect = add_command(verbs, "inspect", "show segments, records, damage", ABOUT_INSPECT, EXAMPLES_INSPECT)
    inspect.add_path("store")
    inspect.add_flag("--commands", help="show every command in the log (default: count them)")
    inspect.add_json()
    inspect.set_defaults(run=priority_inspect.inspect)

    repair = add_command(verbs, "repair", "repair a damaged store", ABOUT_REPAIR, EXAMPLES_REPAIR)
    repair.add_path("store")
    repair.add_flag("--apply", help="do it (default: show what would be done)")
    repair.add_json()
    repair.add_wait("store")
    repair.set_defaults(run=priority_inspect.repair)


def _add_create(verbs: Commands) -> None:
    create = add_command(verbs, "create", "make a store, add a queue", ABOUT_CREATE, EXAMPLES_CREATE)
    create.add_path("store")
    create.add_argument("name", metavar="NAME", nargs="?", help="the queue (default: make only the store)")
    create.add_number("--max-messages", help="messages in it at most (default: no limit)")
    create.add_size("--max-message-size", help="refuse larger messages (default: no limit)")
    create.add_argument(
        "--priority-range",
        type=int,
        nargs=2,
        metavar=("LOWEST", "HIGHEST"),
        help="refuse other priorities (default: any of 64 bits)",
    )
    create.add_argument(
        "--implementation",
        choices=["H4", "QA"],
        default="H4",
        help="TaskFlux's name of the structure; QA is for a small --priority-range (default: H4)",
    )
    create.add_argument(
        "--layout",
        choices=["aligned", "document"],
        help="of a new store: as TaskFlux reads it, or as its documentation says (default: aligned)",
    )
    create.add_wait("store")
    create.set_defaults(run=priority_verbs.create)


def _add_send(verbs: Commands) -> None:
    send = add_command(verbs, "send", "add messages", ABOUT_SEND, EXAMPLES_SEND)
    send.add_path("store")
    send.add_messages()
    _add_queue(send)
    send.add_argument("--priority", type=int, metavar="N", help="the smallest is received first (default: 0)")
    send.add_framing("from stdin", IN, json=JOB.about)
    send.add_sending("the store")
    send.add_wait("store")
    send.set_defaults(run=priority_verbs.send)


def _add_receive(verbs: Commands) -> None:
    receive = add_command(verbs, "receive", "print messages and remove them", ABOUT_RECEIVE, EXAMPLES_RECEIVE)
    receive.add_path("store")
    _add_queue(receive)
    receive.add_receiving()
    _add_output(receive)
    receive.add_wait("store")
    receive.set_defaults(run=priority_verbs.receive)


def _add_queue(parser: CommandParser) -> None:
    parser.add_argument("--queue", metavar="NAME", help="the queue (default: '', which is always there)")


def _add_output(parser: CommandParser) -> None:
    parser.add_framing("to stdout", OUT, json=JOB.about)
