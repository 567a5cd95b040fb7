# `diskq priority`: its verbs, their options, and what their help teaches.

from __future__ import annotations

from diskq.cli.core.parsing import IN, OUT, CommandParser, Commands, add_command, add_noun
from diskq.cli.info import add_info
from diskq.cli.priority import inspect as prioritylooks
from diskq.cli.priority import verbs as priorityverbs
from diskq.cli.priority.view import check_store
from diskq.errors import (
    DiskFullError,
    LockedError,
    MessageSizeError,
    QueueFullError,
    QueueNotFoundError,
)
from diskq.tools.json_lines import JOB

__all__ = ["add_parser"]

ABOUT = """
A store of priority queues is a directory. Of each of its queues the message with the smallest priority is
received first, and of one priority that which came first. One queue, whose name is '', is always there.
The files are those of TaskFlux.

One process has a store at a time: its lock ends with the process, however that ends.
"""

EXAMPLES = """
  diskq priority create jobs mail --max-size 10000
  diskq priority send jobs --queue mail --priority 5 'welcome'
  diskq priority receive jobs --queue mail -n 1
  diskq priority queues jobs
  diskq priority inspect jobs
"""

ABOUT_QUEUES = """
Show the queues of a store: how many messages and bytes, and what they allow. Takes no lock and changes
nothing; messages that a process has in its hands are counted.
"""

EXAMPLES_QUEUES = """
  diskq priority queues jobs
  diskq priority queues jobs --json | jq '.[] | select(.stored > 1000).name'
"""

ABOUT_CREATE = """
Add a queue to a store, which is made where it is not there. What a queue allows is fixed for good.
"""

EXAMPLES_CREATE = """
  diskq priority create jobs
  diskq priority create jobs mail --max-size 10000 --max-message-size 64KiB
  diskq priority create jobs alarms --priorities 0 9 --kind QA
"""

ABOUT_DELETE = """
Remove a queue, with all messages in it, for good. Asks first at a terminal.
"""

EXAMPLES_DELETE = """
  diskq priority delete jobs mail
  diskq priority delete jobs mail --yes
"""

ABOUT_SEND = """
Add messages to a queue. They come from the arguments, or from stdin as they come in: a line is a message
(without its newline) unless told otherwise. A line of JSON may tell its own queue and priority, and its
`data` is base64. stderr tells at the end how many were sent, also where something went wrong on the way.
"""

EXAMPLES_SEND = """
  diskq priority send jobs 'hello' --create
  diskq priority send jobs --queue mail --priority -3 --durability synced 'urgent'
  diskq priority send jobs --queue mail --priority 5 < letters.txt
  diskq priority receive old --queue mail --json | diskq priority send new
"""

ABOUT_RECEIVE = """
Write the messages of a queue to stdout, the smallest priority first, and stop when it is empty. A message
leaves the queue after it was written: if the reader goes away, or the disk is full, or you press Ctrl-C,
what was not written stays, and a part of what was written may come again.

In lines, a message that contains a newline looks like two (you are warned once): use --base64, --json or
--length-prefixed where messages may be anything.

With --follow the store is let go of while the queue is empty, so that others can send.
"""

EXAMPLES_RECEIVE = """
  diskq priority receive jobs --queue mail > letters.txt
  diskq priority receive jobs -n 1
  diskq priority receive jobs --queue mail --json | jq .priority
  diskq priority receive jobs --queue mail --follow | ./send-mail
"""

ABOUT_PEEK = """
Show the first messages of a queue, which stay. Takes no lock: messages that a process has in its hands are
shown, too. At a terminal it is a table; in a pipe it is what `receive` would write.
"""

EXAMPLES_PEEK = """
  diskq priority peek jobs --queue mail
  diskq priority peek jobs -n 1 --json
"""

ABOUT_SNAPSHOT = """
Write the state of a store down, and remove the log before it: it then opens faster, and takes less room.
A store does that by itself when some segments are complete.
"""

EXAMPLES_SNAPSHOT = """
  diskq priority snapshot jobs
"""

ABOUT_INSPECT = """
Look at a store's files: its segments and their records, the snapshot, the layout, what is damaged or
missing, and what the next open will say to it. Takes no lock and changes nothing. The exit code is 1 where
the store would not be opened.

While a process has the store, what it is writing in this moment may look torn.
"""

EXAMPLES_INSPECT = """
  diskq priority inspect jobs
  diskq priority inspect jobs --commands
  diskq priority inspect jobs --json | jq .opening
"""

ABOUT_REPAIR = """
Make a store open again that is refused as damaged: its log ends at the damage, and what is cut off is kept
in files of its own, whose names are told. Messages behind the damage are not in the store then, and those
that were acknowledged behind it are there again.

Without --apply nothing is changed: it tells what would be done. `diskq repair` does the same, and salvages.
"""

EXAMPLES_REPAIR = """
  diskq priority repair jobs
  diskq priority repair jobs --apply
"""

# What to do about it, where the error itself cannot know that a person is at the command line.
ADVICE: dict[type[Exception], str] = {
    LockedError: "or wait for it: --wait 30s",
    DiskFullError: "receive messages, or free space",
    MessageSizeError: "the queue's limit is fixed when it is made",
    QueueFullError: "receive some first",
    QueueNotFoundError: "see `diskq priority queues`; `diskq priority create` makes one",
}


def add_parser(nouns: Commands) -> None:
    verbs = add_noun(nouns, "priority", "priority queues (TaskFlux's files)", ABOUT, EXAMPLES, ADVICE)
    nouns.add_old_name("jobs", nouns.choices["priority"])

    queues = add_command(verbs, "queues", "what queues there are", ABOUT_QUEUES, EXAMPLES_QUEUES)
    queues.add_path("store")
    queues.add_json("a list; sizes in bytes")
    queues.set_defaults(run=prioritylooks.queues)

    _add_create(verbs)

    delete = add_command(verbs, "delete", "remove a queue", ABOUT_DELETE, EXAMPLES_DELETE)
    delete.add_path("store")
    delete.add_argument("name", metavar="NAME", help="the queue")
    delete.add_yes()
    delete.add_wait("store")
    delete.set_defaults(run=priorityverbs.delete)

    _add_send(verbs)
    _add_receive(verbs)

    peek = add_command(verbs, "peek", "print messages, which stay", ABOUT_PEEK, EXAMPLES_PEEK)
    peek.add_path("store")
    _add_queue(peek)
    peek.add_most()
    _add_output(peek)
    peek.set_defaults(run=prioritylooks.peek)

    add_info(verbs, "priority", "jobs", "PATH", check_store)

    snapshot = add_command(
        verbs, "snapshot", "write the state down, remove the log", ABOUT_SNAPSHOT, EXAMPLES_SNAPSHOT
    )
    snapshot.add_path("store")
    snapshot.add_wait("store")
    snapshot.set_defaults(run=priorityverbs.snapshot)

    inspect = add_command(verbs, "inspect", "segments, records, damage", ABOUT_INSPECT, EXAMPLES_INSPECT)
    inspect.add_path("store")
    inspect.add_flag("--commands", help="show every command in the log, too (default: count them)")
    inspect.add_json()
    inspect.set_defaults(run=prioritylooks.inspect)

    repair = add_command(verbs, "repair", "open what is damaged", ABOUT_REPAIR, EXAMPLES_REPAIR)
    repair.add_path("store")
    repair.add_flag("--apply", help="do it (default: tell what would be done)")
    repair.add_json()
    repair.add_wait("store")
    repair.set_defaults(run=prioritylooks.repair)


def _add_create(verbs: Commands) -> None:
    create = add_command(verbs, "create", "make a store, add a queue", ABOUT_CREATE, EXAMPLES_CREATE)
    create.add_path("store")
    create.add_argument(
        "name", metavar="NAME", nargs="?", help="the queue; without it, the store alone is made"
    )
    create.add_number("--max-size", help="messages that it holds at most (default: no limit)")
    create.add_size("--max-message-size", help="refuse larger ones (default: no limit)")
    create.add_argument(
        "--priorities",
        type=int,
        nargs=2,
        metavar=("LOWEST", "HIGHEST"),
        help="refuse other priorities (default: any of 64 bits)",
    )
    create.add_argument(
        "--kind",
        choices=["H4", "QA"],
        default="H4",
        help="TaskFlux's word for how it is built; QA is for few --priorities (default: H4)",
    )
    create.add_argument(
        "--layout",
        choices=["aligned", "document"],
        help="of a new store: as TaskFlux reads it, or as its document has it (default: aligned)",
    )
    create.add_wait("store")
    create.set_defaults(run=priorityverbs.create)


def _add_send(verbs: Commands) -> None:
    send = add_command(verbs, "send", "add messages", ABOUT_SEND, EXAMPLES_SEND)
    send.add_path("store")
    send.add_messages()
    _add_queue(send)
    send.add_argument("--priority", type=int, metavar="N", help="the smallest is received first (default: 0)")
    send.add_framing("from stdin", IN, json=JOB.about)
    send.add_sending("the store")
    send.add_wait("store")
    send.set_defaults(run=priorityverbs.send)


def _add_receive(verbs: Commands) -> None:
    receive = add_command(verbs, "receive", "print messages and remove them", ABOUT_RECEIVE, EXAMPLES_RECEIVE)
    receive.add_path("store")
    _add_queue(receive)
    receive.add_receiving()
    _add_output(receive)
    receive.add_wait("store")
    receive.set_defaults(run=priorityverbs.receive)


def _add_queue(parser: CommandParser) -> None:
    parser.add_argument(
        "--queue", metavar="NAME", help="which queue (default: the one that is always there, '')"
    )


def _add_output(parser: CommandParser) -> None:
    parser.add_framing("to stdout", OUT, json=JOB.about)
