"""The `diskq` command.

Law: each noun, and each verb for any path, is a module with `add_parser`, and is imported only if it is the
one that is asked for; a failure is one line and an exit code.

0    done
1    not possible: one line says why, and what to do (which is missing if stderr is closed or full);
     `verify`: something is torn or damaged; `repair`: something has to be repaired, or is left;
     `checkpoint`: a store was refused
2    invalid command line; `verify`, `info`, `repair` and `checkpoint`: something could not be read, or not be
     done
70   an unexpected error: a bug in diskq
130  interrupted (Ctrl-C, SIGTERM, SIGHUP); nothing is lost
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import trio

from diskq.cli.core.interrupts import ended_as_by_ctrl_c, was_interrupted
from diskq.cli.core.parsing import CommandError, CommandParser, UsageError, add_commands, described, parse
from diskq.cli.core.stdio import CLOSED, closed_streams, stderr, stdout
from diskq.cli.core.terminal import note, sentence, warnings_on_stderr
from diskq.distribution import DISTRIBUTION
from diskq.errors import DiskqError

__all__ = ["command_parser", "main"]

COMMANDS = {
    "queue": "diskq.cli.queue.parser",
    "stream": "diskq.cli.stream.parser",
    "journal": "diskq.cli.journal.parser",
    "priority": "diskq.cli.priority.parser",
    "spool": "diskq.cli.spool.parser",
    "hub": "diskq.cli.hub.parser",
    "pipeline": "diskq.cli.pipeline.parser",
    "info": "diskq.cli.info",
    "verify": "diskq.cli.verify",
    "repair": "diskq.cli.repair",
    "checkpoint": "diskq.cli.checkpoint",
    "convert": "diskq.cli.convert",
    "top": "diskq.cli.top.top",
    "bench": "diskq.cli.bench.bench",
    "completion": "diskq.cli.completion",
}
"""The module of each command: all of them together take longer to import than most commands take."""

_COMPLETING = "_ARGCOMPLETE"  # set by the shell when it asks for candidates

ABOUT = """
Disk queues and streams at the command line: a noun and a verb, or a verb and a path.

exit codes:
  0    done
  1    not possible: one line on stderr says why, and what to do; or what was read is damaged
  2    invalid command line; `info`, `verify`, `repair`, `checkpoint`: something could not be read
  70   a bug in diskq: --debug shows where the error comes from
  130  interrupted (Ctrl-C, SIGTERM, SIGHUP); nothing is lost
"""

EXAMPLES = """
  diskq queue send data events 'hello' --create    a message into the queue 'events' in the directory 'data'
  tail -f app.log | diskq queue send data events   a line is a message
  diskq queue receive data events                  print messages, and remove what was printed
  diskq queue info data                            what is in there, and which process has it open
  diskq stream send clicks 'hello' --create        a message into the stream in the directory 'clicks'
  diskq stream read clicks --since -1h             print the last hour's messages, which stay
  diskq stream tail clicks -f                      print the last messages, then new ones
  diskq priority send jobs --priority 5 'hello'    a message into the store of priority queues in 'jobs'
  diskq spool status spool/metrics --follow        what waits to be delivered, and its progress
  diskq hub push journals/web --address localhost:7070 --client-id web1    copy a journal to another machine
  diskq stream table clicks --into lake            keep it as Parquet files, which DuckDB and Spark read
  diskq pipeline aggregate clicks --window 1h      counts and rates, with Spark
  diskq info data clicks                           what is there: size, age, open in which process
  diskq verify data clicks spool/metrics           check every file, of any kind
  diskq repair clicks --apply                      repair what is damaged; --salvage saves what can be read
  diskq checkpoint data clicks                     put everything into the files that other programs read
  diskq convert data journals/events --to sej      messages of one format into another
  diskq top data clicks spool/metrics              watch rates, depths, lags, syncs, bytes on disk
  diskq bench                                      measure the speed on this disk
"""

# What errors advise programs to do, in the words of the command line.
_HERE = {"open with take_over=True": "add --take-over"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (None: that of this process). Returns the exit code."""
    stderr.has_failed = False
    if closed := closed_streams():
        _report_closed(closed)
        return 1
    words = sys.argv[1:] if argv is None else argv
    is_completing = _COMPLETING in os.environ
    parser = command_parser(None if is_completing else words[:1])
    if is_completing:
        import_module(COMMANDS["completion"]).answer(parser)
    with ended_as_by_ctrl_c(), warnings_on_stderr():
        try:
            exit_code = _exit_code(parser, argv)
        finally:
            stdout.drop()  # what could not leave
    return exit_code or int(stderr.has_failed)


def _report_closed(closed: list[str]) -> None:
    """Report them on stderr, or else at the terminal, if there is one: on stdout it would be a message."""
    if "stderr" not in closed:
        note(f"error: {closed[0]}: {CLOSED}")
        return
    with contextlib.suppress(OSError), open("/dev/tty", "w") as terminal:
        terminal.write(f"diskq: error: {' and '.join(closed)}: {CLOSED}\n")


class _Version(argparse._VersionAction):
    """Looks the version up when it is to be shown: that takes as long as many commands."""

    def __call__(self, parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> None:
        from importlib.metadata import version

        self.version = f"diskq {version(DISTRIBUTION)}"
        super().__call__(parser, *args, **kwargs)


def command_parser(wanted: Iterable[str] | None = None) -> CommandParser:
    """Return the parser of the command line: nouns and verbs, with options and examples.

    It knows the `wanted` commands alone, if they are all names of commands and not none; else all of them.
    """
    parser = CommandParser(prog="diskq")
    described(parser, ABOUT, EXAMPLES)
    parser.set_defaults(debug=False, advice={})
    commands = add_commands(parser, "nouns, and verbs for any path", "COMMAND")
    parser.add_argument("--version", action=_Version)
    names = list(wanted or ())
    for name in names if names and COMMANDS.keys() >= set(names) else COMMANDS:
        import_module(COMMANDS[name]).add_parser(commands)
    return parser


def _exit_code(parser: CommandParser, argv: Sequence[str] | None) -> int:
    args = argparse.Namespace(debug=False, advice={}, parser=parser)
    try:
        args = parse(parser, argv)
        try:
            exit_code: int = args.run(args) or 0
        finally:
            stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1  # the reader of our output, such as `head`, has ended
    except UsageError as failure:
        args.parser.error(sentence(failure))
    except (CommandError, DiskqError, OSError, trio.BrokenResourceError) as failure:
        if args.debug:
            _print_traceback()
        note(f"error: {_sentence(failure, args.advice)}")
        return failure.exit_code if isinstance(failure, CommandError) else 1
    except Exception as failure:
        if args.debug:
            _print_traceback()
        if was_interrupted(failure):
            return 130
        note(
            f"error: {type(failure).__name__}: {sentence(failure)}; this is a bug in diskq: "
            "--debug shows where it comes from"
        )
        return 70
    return exit_code


def _print_traceback() -> None:
    with contextlib.suppress(OSError):
        stderr.print(traceback.format_exc(), end="", flush=True)


def _sentence(failure: Exception, advice: Mapping[type[Exception], str]) -> str:
    text = sentence(failure)
    for there, here in _HERE.items():
        text = text.replace(there, here)
    for kind in type(failure).__mro__:
        if kind in advice:
            text += f"; {advice[kind]}"
            break
    return text
