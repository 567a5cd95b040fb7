# The command line of `diskq spool`: verbs, options, help.

from __future__ import annotations

from diskq.cli.core.parsing import OUT, CommandParser, Commands, add_command, add_commands, add_noun
from diskq.cli.info import add_info
from diskq.cli.queue.parser import ADVICE as QUEUE_ADVICE
from diskq.cli.queue.parser import add_send
from diskq.cli.spool import dead_letters as spool_dead
from diskq.cli.spool import run as spool_run
from diskq.cli.spool import status as spool_status
from diskq.cli.spool import verbs as spool_verbs
from diskq.cli.spool.view import check_spool
from diskq.engine.spool.files import SPOOL
from diskq.errors import FullError

__all__ = ["add_parser"]

ABOUT = """
A spool is a directory that keeps messages (bytes, any bytes) until they are delivered: a program accepts
them at any time and delivers them in order, in batches, when the destination can be reached. What can never
be delivered becomes a dead letter, with the reason. Its two queues, `spool` and `dead`, are in NSQ's files.

One process at a time has a spool open. These commands are for the people who operate it.
"""

EXAMPLES = """
  diskq spool status spool/metrics --follow
  diskq spool dead list spool/metrics
  diskq spool dead replay spool/metrics --all
  diskq spool send spool/metrics 'hello'
"""

ABOUT_STATUS = """
Show what waits in a spool and the progress of its delivery. Takes no lock and changes nothing; the figures of
the process that has the spool open are up to a second old.

With --follow it is a line that changes; in a pipe, or without rich, one line after the other. In the JSON,
times are seconds since the Unix epoch, ages are seconds, and null is absent or unknown.
"""

EXAMPLES_STATUS = """
  diskq spool status spool/metrics
  diskq spool status spool/metrics --follow --interval 5s
  diskq spool status spool/metrics --json | jq .depth
"""

ABOUT_SEND = """
Add messages at the end of a spool that no process has open; the next process that opens it delivers them.
They come from the arguments, or from stdin as they come in: a line is a message (without its newline)
unless an option says otherwise. The number of messages sent is printed on stderr at the end, also after an
error.
"""

EXAMPLES_SEND = """
  diskq spool send spool/metrics 'hello' --create
  diskq spool send spool/orders --durability synced < orders.jsonl
  diskq spool send spool/photos --whole < cat.jpg
"""

ABOUT_RUN = """
Deliver with a command: each batch is its stdin, in lines unless an option says otherwise. Exit code 0 means
delivered; 75 means try again; so does any other, unless --on-failure give_up makes dead letters of such a
batch, with the last line of stderr as the reason. DISKQ_ATTEMPTS is the number of the attempt, DISKQ_MESSAGES
the number of messages.

It goes on until interrupted (Ctrl-C, SIGTERM), which ends the command and leaves its batch in the spool; or,
with --drain, until no message waits.
"""

EXAMPLES_RUN = """
  diskq spool run spool/metrics --exec 'curl -sS --fail --data-binary @- https://far.example/ingest'
  diskq spool run spool/orders --exec ./load-orders --batch 1000 --linger 1s --timeout 30s
  diskq spool run spool/orders --exec ./load-orders --on-failure give_up --drain
"""

ABOUT_DEAD = """
Dead letters: messages that the destination refused for good, or after too many attempts. Listing takes no
lock; to replay or purge them, the spool must not be open in a process.
"""

EXAMPLES_DEAD = """
  diskq spool dead list spool/metrics
  diskq spool dead replay spool/metrics 75086135dfe511b4:0:8
  diskq spool dead purge spool/metrics --all
"""

ABOUT_LIST = """
Show the dead letters, or those with some ids, in the order in which they were given up. The table has only
the start of each message; in the JSON, one line per letter, `body` is the whole message in base64.
"""

EXAMPLES_LIST = """
  diskq spool dead list spool/metrics
  diskq spool dead list spool/metrics --json | jq -r .reason | sort | uniq -c
  diskq spool dead list spool/metrics 75086135dfe511b4:0:8 --json | jq -r .body | base64 -d
"""

ABOUT_REPLAY = """
Move the messages of dead letters to the end of the spool, to be delivered again. Their ids are printed on
stdout.
"""

EXAMPLES_REPLAY = """
  diskq spool dead replay spool/metrics 75086135dfe511b4:0:8 75086135dfe511b4:0:27
  diskq spool dead replay spool/metrics --all --wait 1m
"""

ABOUT_PURGE = """
Remove dead letters. Their ids are printed on stdout.
"""

EXAMPLES_PURGE = """
  diskq spool dead purge spool/metrics 75086135dfe511b4:0:8
  diskq spool dead purge spool/metrics --all
"""

# What to do about it, where the error itself cannot know that a person is at the command line.
ADVICE = QUEUE_ADVICE | {FullError: "let it be delivered, free space, or raise --max-bytes"}


def add_parser(nouns: Commands) -> None:
    verbs = add_noun(
        nouns, "spool", "messages until they are delivered, and dead letters", ABOUT, EXAMPLES, ADVICE
    )

    status = add_command(
        verbs, "status", "what waits, and the progress of delivery", ABOUT_STATUS, EXAMPLES_STATUS
    )
    status.add_path("spool")
    status.add_flag("--follow", help="go on until interrupted (default: once)")
    status.add_duration("--interval", help="with --follow: time between two lines (default: 1s)")
    status.add_json("a line of JSON each time")
    status.set_defaults(run=spool_status.status)

    add_info(verbs, "spool", "spool/metrics", "PATH", check_spool)

    send = add_command(verbs, "send", "add messages", ABOUT_SEND, EXAMPLES_SEND)
    send.add_argument("directory", metavar="PATH", help="the spool's directory")
    add_send(send)
    send.add_wait("spool")
    send.set_defaults(run=spool_verbs.send, name=SPOOL)

    work = add_command(verbs, "run", "deliver with a command", ABOUT_RUN, EXAMPLES_RUN)
    work.add_path("spool")
    _add_run(work)
    work.add_wait("spool")
    work.set_defaults(run=spool_run.run)

    dead = add_command(verbs, "dead", "dead letters", ABOUT_DEAD, EXAMPLES_DEAD)
    _add_dead(add_commands(dead, "verbs", "VERB"))


def _add_run(parser: CommandParser) -> None:
    parser.add_argument("--exec", metavar="COMMAND", required=True, help="the shell command that delivers")
    parser.add_framing("to the command", OUT)
    parser.add_count("--batch", default=100, help="messages in a batch at most (default: 100)")
    parser.add_duration("--linger", default=0.0, help="wait this long for a batch to fill (default: 0s)")
    parser.add_duration("--timeout", help="end a command that takes longer, and try again (default: none)")
    parser.add_count("--max-attempts", help="give a batch up after N attempts (default: never)")
    parser.add_argument(
        "--on-failure",
        choices=["retry", "give_up"],
        default="retry",
        help="after an exit code other than 0 and 75 (default: retry)",
    )
    parser.add_duration(
        "--backoff-max", default=60.0, help="the longest time between attempts, which grows (default: 60s)"
    )
    parser.add_count("--rate", help="messages per second at most (default: no limit)")
    parser.add_flag("--drain", help="stop when no message waits (default: go on)")
    parser.add_create("PATH")


def _add_dead(verbs: Commands) -> None:
    shown = add_command(verbs, "list", "show dead letters", ABOUT_LIST, EXAMPLES_LIST)
    shown.add_path("spool")
    shown.add_argument("ids", metavar="ID", nargs="*", help="only these letters (default: all)")
    shown.add_json("a line of JSON for each letter")
    shown.set_defaults(run=spool_dead.show)

    replay = add_command(verbs, "replay", "deliver them again", ABOUT_REPLAY, EXAMPLES_REPLAY)
    _add_ids(replay)
    replay.set_defaults(run=spool_dead.replay)

    purge = add_command(verbs, "purge", "remove them", ABOUT_PURGE, EXAMPLES_PURGE)
    _add_ids(purge)
    purge.set_defaults(run=spool_dead.purge)


def _add_ids(parser: CommandParser) -> None:
    parser.add_path("spool")
    parser.add_argument("ids", metavar="ID", nargs="*", help="which letters")
    parser.add_flag("--all", help="all letters (default: those with the ids)")
    parser.add_json("one object, with the ids")
    parser.add_wait("spool")
