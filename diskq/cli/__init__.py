"""The `diskq` command.

Law: a noun, or a verb for whatever lies at a path, is a module with `add_parser`; whatever goes wrong is
one line and an exit code.

0    done
1    it could not be done: one line says why, and what to do; of `verify`: something is torn or damaged;
     of `repair`: something is to be repaired, or is left
2    the command line makes no sense; of `verify`, `info` and `repair`: something could not be
     looked at, or done
70   a fault of ours, of which nobody knew
130  interrupted (Ctrl-C); nothing is lost
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Mapping, Sequence

import trio

from diskq.cli import completion, convert, info, repair, verify
from diskq.cli.bench import bench
from diskq.cli.core.parsing import CommandError, CommandParser, UsageError, add_commands, described, parse
from diskq.cli.core.terminal import note, sentence, warnings_on_stderr
from diskq.cli.hub import parser as hub
from diskq.cli.journal import parser as journal
from diskq.cli.pipeline import parser as pipeline
from diskq.cli.priority import parser as priority
from diskq.cli.queue import parser as queue
from diskq.cli.spool import parser as spool
from diskq.cli.stream import parser as stream
from diskq.cli.top import top
from diskq.errors import DiskqError

__all__ = ["command_parser", "main"]

COMMANDS = (
    queue,
    stream,
    journal,
    priority,
    spool,
    hub,
    pipeline,
    info,
    verify,
    repair,
    convert,
    top,
    bench,
    completion,
)

ABOUT = """
Disk queues and streams at the command line: a noun, then a verb; or a verb, then a path.

exit codes:
  0    done
  1    it could not be done: one line on stderr says why, and what to do; or what was looked at is damaged
  2    the command line makes no sense; of `info`, `verify`, `repair`, `audit`: it could not be looked at
  70   a fault of diskq's own: --debug shows where it comes from
  130  interrupted (Ctrl-C, SIGTERM); nothing is lost
"""

EXAMPLES = """
  diskq queue send data events 'hello' --create    a message into the queue 'events' in the directory 'data'
  tail -f app.log | diskq queue send data events   a line is a message
  diskq queue receive data events                  print them, and remove what was printed
  diskq queue info data                            what is in there, and who has it
  diskq stream send clicks 'hello' --create        a message into the stream in the directory 'clicks'
  diskq stream read clicks --at -1h                print what came in the last hour; it stays
  diskq stream tail clicks -f                      print the last messages, and what comes
  diskq priority send jobs --priority 5 'hello'    a message into the store of priority queues in 'jobs'
  diskq spool status spool/metrics --follow        what waits to be delivered, and how it goes
  diskq hub push journals/web --to localhost:7070 --client-id web1    copy a journal to another machine
  diskq pipeline archive clicks /data/clicks       all of them into Parquet, with Spark
  diskq info data clicks                           what is there, how much, how old, who has it open
  diskq verify data clicks spool/metrics           is it whole? all of what is there, whatever it is
  diskq repair clicks --apply                      make whole what is not; --salvage saves what can be read
  diskq convert data journals/events --to sej      messages of one format into another
  diskq top data clicks spool/metrics              watch them: rates, depth, lags, syncs, bytes on disk
  diskq bench                                      how fast is all that, on this disk?
"""

# What errors tell programs to do, as a person does it.
_HERE = {"open with take_over=True": "add --take-over"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (None: this process's own). Returns its exit code."""
    parser = command_parser()
    completion.answer(parser)
    args = parse(parser, argv)
    with warnings_on_stderr():
        return _exit_code(args)


def command_parser() -> CommandParser:
    """The whole command line: every noun, every verb, their options and examples."""
    parser = CommandParser(prog="diskq")
    described(parser, ABOUT, EXAMPLES)
    parser.set_defaults(debug=False, advice={})
    commands = add_commands(parser, "nouns, and verbs for any path", "COMMAND")
    parser.add_argument("--version", action="version", version=f"diskq {importlib.metadata.version('diskq')}")
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


def _exit_code(args: argparse.Namespace) -> int:
    try:
        exit_code: int = args.run(args) or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has enough, as `head` has. What is still buffered goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UsageError as failure:
        args.parser.error(sentence(failure))
    except (CommandError, DiskqError, OSError, trio.BrokenResourceError) as failure:
        if args.debug:
            traceback.print_exc()
        note(f"error: {_sentence(failure, args.advice)}")
        return failure.exit_code if isinstance(failure, CommandError) else 1
    except Exception as failure:
        if args.debug:
            traceback.print_exc()
        note(
            f"error: {type(failure).__name__}: {sentence(failure)}; this is a fault of diskq's own: "
            "--debug shows where it comes from"
        )
        return 70
    return exit_code


def _sentence(failure: Exception, advice: Mapping[type[Exception], str]) -> str:
    text = sentence(failure)
    for there, here in _HERE.items():
        text = text.replace(there, here)
    if type(failure) in advice:
        text += f"; {advice[type(failure)]}"
    return text
