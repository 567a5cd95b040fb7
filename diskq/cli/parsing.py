# How a command is declared. Law: help teaches. Every command shows examples, every option its unit
# and its default.

from __future__ import annotations

import argparse
from collections.abc import Sequence

__all__ = ["CommandError", "UsageError", "add_command", "count", "parse"]


class UsageError(Exception):
    """The command line makes no sense in a way that argparse cannot know. Exit code 2."""


class CommandError(Exception):
    """It cannot be done, for a reason that only the command line has. Exit code 1."""


def add_command(parser: argparse.ArgumentParser, description: str, examples: str) -> argparse.ArgumentParser:
    """Give a parser its description, its examples, and what every command has. Returns it."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = description.strip()
    parser.epilog = f"examples:\n{examples.strip(chr(10)).rstrip()}"
    # Suppressed rather than False: a verb's default must not undo what stood before the verb.
    parser.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,
        help="show where an error comes from (a traceback)",
    )
    parser.set_defaults(run=_show_help, parser=parser)
    return parser


def _show_help(args: argparse.Namespace) -> None:
    """A noun without a verb, or nothing at all: not an error of typing, but not a command either."""
    args.parser.print_help()
    raise SystemExit(2)


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """As `parse_args`; and MESSAGE... may stand behind options.

    (argparse itself gives an argument that may be empty its nothing as soon as an option comes.)
    """
    args, rest = parser.parse_known_args(argv)
    end = rest.index("--") if "--" in rest else len(rest)
    if rest and ("messages" not in args or any(word.startswith("-") for word in rest[:end])):
        args.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.messages = [*args.messages, *rest[:end], *rest[end + 1 :]]
    return args


def count(text: str) -> int:
    """A whole number from 1 on. An argparse type."""
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on, not {text!r}")
    return int(text)
