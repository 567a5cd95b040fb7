"""The `diskq` command.

Law: a noun is a module with `add_parser` and `run`; whatever goes wrong is one line and an exit code.

0    done
1    it could not be done: one line says why, and what to do
2    the command line makes no sense
130  interrupted (Ctrl-C); nothing is lost
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Sequence

import trio

from diskq.cli import queue
from diskq.cli.parsing import CommandError, UsageError, add_command, parse
from diskq.cli.terminal import warnings_on_stderr
from diskq.errors import DiskFullError, DiskqError, LockedError, MessageSizeError

__all__ = ["main"]

NOUNS = (queue,)

EXAMPLES = """
  diskq queue send data events 'hello' --create    a message into the queue 'events' in the directory 'data'
  tail -f app.log | diskq queue send data events   a line is a message
  diskq queue receive data events                  print them, and remove what was printed
  diskq queue info data                            what is in there, and who has it
"""

# What to do about it, where the error itself cannot know that a person is at the command line.
_ADVICE: dict[type[Exception], str] = {
    LockedError: "or wait for it: --wait 30s",
    DiskFullError: "receive or empty, free space, or raise --max-bytes",
    MessageSizeError: "raise --max-message-size",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (None: this process's own). Returns its exit code."""
    parser = argparse.ArgumentParser(prog="diskq")
    add_command(parser, "Disk queues at the command line: a noun, then a verb.", EXAMPLES)
    parser.set_defaults(debug=False)
    nouns = parser.add_subparsers(title="nouns", metavar="NOUN")
    parser.add_argument("--version", action="version", version=f"diskq {importlib.metadata.version('diskq')}")
    for noun in NOUNS:
        noun.add_parser(nouns)
    args = parse(parser, argv)
    with warnings_on_stderr():
        return _exit_code(args)


def _exit_code(args: argparse.Namespace) -> int:
    try:
        args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has enough, as `head` has. What is still buffered goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UsageError as failure:
        args.parser.error(str(failure))
    except (CommandError, DiskqError, OSError, trio.BrokenResourceError) as failure:
        if args.debug:
            traceback.print_exc()
        print(f"diskq: error: {_sentence(failure)}", file=sys.stderr)
        return 1
    return 0


def _sentence(failure: Exception) -> str:
    if isinstance(failure, OSError) and failure.strerror:
        text = f"{failure.filename}: {failure.strerror}" if failure.filename else failure.strerror
    else:
        text = str(failure)
    advice = _ADVICE.get(type(failure))
    return " ".join(f"{text}; {advice}".split()) if advice else " ".join(text.split())
