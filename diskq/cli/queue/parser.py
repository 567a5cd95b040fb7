# The command line of `diskq queue`: verbs, options, help.

from __future__ import annotations

from diskq.cli.core.parsing import IN, OUT, CommandParser, Commands, add_command, add_noun
from diskq.cli.queue import verbs as queue_verbs
from diskq.errors import FullError, LockedError, MessageSizeError
from diskq.options import QueueOptions

__all__ = ["add_parser", "add_send"]

ABOUT = """
A disk queue is a name in a directory. It keeps messages (bytes, any bytes) in the order in which
they were sent; each is received once. Its files are those of NSQ's disk queues.

One process at a time has a queue open. Its lock ends with the process.
"""

EXAMPLES = """
  diskq queue send data events 'hello' 'world' --create
  diskq queue peek data events
  diskq queue receive data events
  diskq queue info data
"""

ABOUT_SEND = """
Add messages at the end of a queue, which is made if it is not there. They come from the arguments, or from
stdin as they come in: a line is a message (without its newline) unless an option says otherwise. The number
of messages sent is printed on stderr at the end, also after an error.
"""

EXAMPLES_SEND = """
  diskq queue send data events 'hello' --create
  tail -f app.log | diskq queue send data log --max-bytes 10GiB --on-full drop_oldest
  diskq queue send data orders --durability synced < orders.jsonl
  diskq queue send data photos --whole < cat.jpg
"""

ABOUT_RECEIVE = """
Write the messages to stdout, oldest first, and stop when the queue is empty. A message is removed after it
was written. If the reader of stdout ends, or its disk is full, or you press Ctrl-C, messages that were not
written stay, and the last written ones may come again. A message in a pipe counts as written even if a reader
such as `head` never reads it: use -n.

In lines, a message that contains a newline looks like two (you are warned once): use --base64 or
--length-prefixed if messages may be any bytes.

With --follow the queue is closed while it is empty, so that others can send.
"""

EXAMPLES_RECEIVE = """
  diskq queue receive data events > events.txt
  diskq queue receive data events -n 1
  diskq queue receive data events --base64 | while read -r line; do base64 -d <<< "$line"; done
  diskq queue receive data events --follow --linger 5s | ./upload
"""

ABOUT_PEEK = """
Show the first messages, which stay in the queue. At a terminal it prints a table; in a pipe it writes what
`receive` would write. Takes no lock and changes nothing, so the queue may be on a read-only disk, or open in
another process; what that has received since its last sync (2 s by default) is shown, too.
"""

EXAMPLES_PEEK = """
  diskq queue peek data events
  diskq queue peek data events -n 1 --base64
"""

ABOUT_INFO = """
Show the queues of a directory, or details of one: how many messages and bytes, where it is read and written
(file:byte), which process has it open, what the next open will repair. Takes no lock and changes nothing.
While a process has the queue open the numbers are as old as its last sync (2 s by default); after it was
killed they are what the next open finds. In the JSON,
`holder` is the process that has it open if `is_open`, else the last one; `problems` is what the next open
will repair.
"""

EXAMPLES_INFO = """
  diskq queue info data
  diskq queue info data events
  diskq queue info data events --json | jq .depth
"""

ABOUT_CLEAR = """
Remove all messages of a queue. Asks first at a terminal.
"""

EXAMPLES_CLEAR = """
  diskq queue clear data events
  diskq queue clear data events --yes
"""

# What to do about it, where the error itself cannot know that a person is at the command line.
ADVICE: dict[type[Exception], str] = {
    LockedError: "or wait for it: --wait 30s",
    FullError: "receive or clear it, free space, or raise --max-bytes",
    MessageSizeError: "raise --max-message-size",
}


def add_parser(nouns: Commands) -> None:
    verbs = add_noun(nouns, "queue", "FIFO queues (NSQ's files)", ABOUT, EXAMPLES, ADVICE)

    send = add_command(verbs, "send", "add messages", ABOUT_SEND, EXAMPLES_SEND)
    _add_queue(send)
    add_send(send)
    send.add_wait("queue")
    send.set_defaults(run=queue_verbs.send)

    receive = add_command(verbs, "receive", "print messages and remove them", ABOUT_RECEIVE, EXAMPLES_RECEIVE)
    _add_queue(receive)
    receive.add_receiving()
    _add_output(receive)
    receive.add_duration(
        "--linger", help="with --follow: wait this long for more after the first message (default: 0s)"
    )
    receive.add_wait("queue")
    receive.set_defaults(run=queue_verbs.receive)

    peek = add_command(verbs, "peek", "print messages, which stay", ABOUT_PEEK, EXAMPLES_PEEK)
    _add_queue(peek)
    peek.add_most()
    _add_output(peek)
    peek.set_defaults(run=queue_verbs.peek)

    info = add_command(verbs, "info", "what is in there, and which process has it", ABOUT_INFO, EXAMPLES_INFO)
    _add_queue(info, is_name_optional=True)
    info.add_json("one object, or a list without NAME; bytes")
    info.set_defaults(run=queue_verbs.info)

    clear = add_command(verbs, "clear", "remove all messages", ABOUT_CLEAR, EXAMPLES_CLEAR)
    _add_queue(clear)
    clear.add_yes()
    clear.add_wait("queue")
    clear.set_defaults(run=queue_verbs.clear)


def _add_queue(parser: CommandParser, *, is_name_optional: bool = False) -> None:
    parser.add_argument("directory", metavar="DIR", help="the directory that holds the queue's files")
    parser.add_argument(
        "name", metavar="NAME", nargs="?" if is_name_optional else None, help="the queue's name"
    )


def _add_output(parser: CommandParser) -> None:
    parser.add_framing("to stdout", OUT, json="value in base64")


def add_send(parser: CommandParser) -> None:
    """Add the arguments of `queue_verbs.send` but for the queue."""
    parser.add_messages()
    parser.add_framing("from stdin", IN)
    parser.add_sending("DIR")
    parser.add_sync_to()
    _add_bounds(parser)


def _add_bounds(parser: CommandParser) -> None:
    options = QueueOptions()
    parser.add_size("--max-bytes", help="limit of the queue on disk, at least 64KiB (default: none)")
    parser.add_argument(
        "--on-full",
        choices=["reject", "drop_oldest"],
        default="reject",
        help="at --max-bytes: stop with an error, or remove the oldest file's messages (default: reject)",
    )
    parser.add_size(
        "--segment-size",
        default=options.segment_size,
        help="begin another file before one grows larger than this (default: 100MiB)",
    )
    parser.add_max_message_size(options.max_message_size)
