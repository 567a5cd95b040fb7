# How a command is declared. Law: help teaches: every command shows examples, every option its unit and its
# default.

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from diskq.cli.core import units
from diskq.cli.core.stdio import stdin, stream_of
from diskq.cli.core.terminal import asked
from diskq.errors import DiskqError
from diskq.options import DURABILITY_WORDS

__all__ = [
    "IN",
    "OUT",
    "CommandError",
    "CommandParser",
    "Commands",
    "UsageError",
    "add_command",
    "add_commands",
    "add_json",
    "add_noun",
    "check_confirmed",
    "check_source",
    "count",
    "described",
    "number",
    "parse",
    "usage_errors",
]

# How messages are separated on stdin, and on stdout.
IN = ["lines", "length_prefixed", "whole"]
OUT = ["lines", "length_prefixed", "base64"]

# `--at -1h`: argparse would take the duration for an option.
_OPTION = re.compile(r"--[a-z][a-z-]*")
_AGO = re.compile(r"-[0-9][0-9.]*[a-z][0-9a-z.]*", re.ASCII)


class UsageError(Exception):
    """The command line is invalid, in a way that argparse cannot know. Exit code 2."""


class CommandError(Exception):
    """The command is not possible, for a reason that only the command line knows. Exit code 1 by default."""

    def __init__(self, text: str, *, exit_code: int = 1) -> None:
        super().__init__(text)
        self.exit_code = exit_code


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a ValueError for a given option into a UsageError. For a block, or a function.

    diskq's own errors pass unchanged, also those that are ValueErrors.
    """
    try:
        yield
    except DiskqError:
        raise
    except ValueError as failure:
        raise UsageError(str(failure)) from None


def add_command(commands: Commands, name: str, help: str, description: str, examples: str) -> CommandParser:
    """Add a command to a level; `help` is its line in the overview. Returns its parser."""
    return described(commands.add_parser(name, help=help), description, examples)


def add_noun(
    nouns: Commands,
    name: str,
    help: str,
    description: str,
    examples: str,
    advice: Mapping[type[Exception], str] | None = None,
) -> Commands:
    """Add a command that has verbs, with `advice` for their errors. Returns the level of the verbs."""
    noun = add_command(nouns, name, help, description, examples)
    if advice is not None:
        noun.set_defaults(advice=advice)
    return add_commands(noun, "verbs", "VERB")


def add_commands(parser: CommandParser, title: str, metavar: str) -> Commands:
    """Give a command a level of commands below it. Returns that level."""
    return cast("Commands", parser.add_subparsers(title=title, metavar=metavar, action=Commands))


if TYPE_CHECKING:
    _Level = argparse._SubParsersAction["CommandParser"]
else:  # it takes no argument when it runs
    _Level = argparse._SubParsersAction


class Commands(_Level):
    """The commands of one level."""


def described(parser: CommandParser, description: str, examples: str) -> CommandParser:
    """Give a parser its description, its examples, and the options of every command. Returns it."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = description.strip()
    parser.epilog = f"examples:\n{examples.strip(chr(10)).rstrip()}"
    # Suppressed rather than False: the default of a verb must not undo the option before the verb.
    parser.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,
        help="show where an error comes from (a traceback)",
    )
    parser.set_defaults(run=_show_help, parser=parser)
    return parser


def _show_help(args: argparse.Namespace) -> None:
    """Show help for a noun without a verb, or an empty command line, which are no commands. Exit code 2."""
    args.parser.print_help()
    raise SystemExit(2)


def parse(parser: CommandParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse like `parse_args`, and also accept MESSAGE... and ID... after options.

    (argparse itself takes an argument that may be empty for empty as soon as an option comes.)
    """
    args, rest = parser.parse_known_args(_with_moments(sys.argv[1:] if argv is None else argv))
    end = rest.index("--") if "--" in rest else len(rest)
    name = next((name for name in ("messages", "ids") if name in args), None)
    if rest and (name is None or any(word.startswith("-") for word in rest[:end])):
        args.parser.error(
            f"unrecognized arguments: {' '.join(rest)}{_meant_options(args.parser, rest[:end])}"
        )
    if rest and name is not None:
        setattr(args, name, [*getattr(args, name), *rest[:end], *rest[end + 1 :]])
    return args


def _meant_options(parser: CommandParser, words: Sequence[str]) -> str:
    known = [name for name in parser._option_string_actions if name.startswith("--")]
    found = (
        (name, _meant(name, known)) for name in (word.partition("=")[0] for word in words) if name[:2] == "--"
    )
    return "".join(f"; {name}: did you mean {meant}?" for name, meant in found if meant is not None)


def _meant(word: str, known: Iterable[str]) -> str | None:
    """Return which of the known words is most like this one; None: none is like it."""
    import difflib

    return next(iter(difflib.get_close_matches(word, list(known), n=1)), None)


def _with_moments(argv: Sequence[str]) -> list[str]:
    """Return the words with `--at -1h` as `--at=-1h`."""
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    for at in range(end - 1, 0, -1):
        if _AGO.fullmatch(words[at]) and _OPTION.fullmatch(words[at - 1]):
            words[at - 1 : at + 1] = [f"{words[at - 1]}={words[at]}"]
    return words


# --- options of several commands ------------------------------------------------------------------


class CommandParser(argparse.ArgumentParser):
    """The parser of a command, with the options that several commands have."""

    def _print_message(self, message: str, file: Any = None) -> None:
        # What argparse prints: help, the version, and errors. Its own way ignores that a disk is full.
        if message:
            stream_of(file).print(message, end="", flush=True)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # A command is one of the choices of its level, too.
        known = [str(each) for each in action.choices or ()]
        if known and value not in known and (meant := _meant(str(value), known)) is not None:
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}: did you mean {meant!r}?")
        super()._check_value(action, value)

    # --- by type of value -------------------------------------------------------------------------

    def add_flag(self, *names: str, help: str) -> None:
        self.add_argument(*names, action="store_true", help=help)

    def add_duration(
        self, name: str, *, help: str, default: float | None = None, required: bool = False
    ) -> None:
        self.add_argument(
            name, type=units.duration, default=default, required=required, metavar="DURATION", help=help
        )

    def add_size(self, name: str, *, help: str, default: int | None = None) -> None:
        self.add_argument(name, type=units.size, default=default, metavar="SIZE", help=help)

    def add_count(self, *names: str, help: str, default: int | None = None) -> None:
        """Add an option that takes a whole number from 1 on."""
        self.add_argument(*names, type=count, default=default, metavar="N", help=help)

    def add_number(self, *names: str, help: str, default: int | None = None, required: bool = False) -> None:
        """Add an option that takes a whole number from 0 on."""
        self.add_argument(*names, type=number, default=default, required=required, metavar="N", help=help)

    # --- one by one -------------------------------------------------------------------------------

    def add_framing(
        self,
        where: str,
        choices: Sequence[str],
        default: str = "lines",
        *,
        json: str | None = None,
    ) -> None:
        """Add the options that say how messages are separated `where` they come from or go to.

        There is one for each of `choices`; with `json`, which says what is in them, also for lines of JSON.
        """
        group = self.add_mutually_exclusive_group()
        texts = _FRAMINGS if json is None else _FRAMINGS | {"json": f"lines of JSON, with {json}"}
        for name in choices if json is None else [*choices, "json"]:
            text = texts[name].format(where=where) + (" (default)" if name == default else "")
            group.add_argument(
                f"--{name.replace('_', '-')}", action="store_const", dest="framing", const=name, help=text
            )
        self.set_defaults(framing=None)

    def add_path(self, what: str, metavar: str = "PATH") -> None:
        self.add_argument("path", metavar=metavar, help=f"the {what}'s directory")

    def add_wait(self, what: str) -> None:
        text = f"how long to wait for a {what} that another process has open (default: 1s)"
        self.add_duration("--wait", default=1.0, help=text)

    def add_messages(self) -> None:
        self.add_argument("messages", metavar="MESSAGE", nargs="*", help="messages (default: read stdin)")

    def add_receiving(self) -> None:
        """Add -n and --follow, which say when to stop."""
        self.add_count(
            "-n", "--max-messages", help="stop after N messages (default: when the queue is empty)"
        )
        self.add_flag("--follow", help="wait for more until interrupted (default: stop when empty)")

    def add_most(self) -> None:
        """Add -n, which says how many messages are shown."""
        self.add_count("-n", "--max-messages", default=10, help="messages at most (default: 10)")

    def add_durability(self) -> None:
        self.add_argument(
            "--durability",
            choices=DURABILITY_WORDS[::-1],
            default="written",
            help="what to wait for after each batch: stable storage (survives a power cut), the page cache "
            "(survives a killed process), or nothing (default: written)",
        )

    def add_sync_to(self) -> None:
        self.add_argument(
            "--sync-to",
            choices=["log", "files"],
            default="log",
            help="what --durability synced syncs for a batch: the redo log, which costs one sync, or the "
            "files, for other programs that open them after a power cut (default: log)",
        )

    def add_sending(self, into: str) -> None:
        """Add --durability, --batch and --create."""
        self.add_durability()
        self.add_count("--batch", default=1000, help="messages sent, and synced, at a time (default: 1000)")
        self.add_create(into)

    def add_create(self, what: str) -> None:
        self.add_flag("--create", help=f"make {what} if it is not there (default: refuse)")

    def add_max_message_size(self, default: int) -> None:
        text = f"refuse larger messages (default: {units.show_size(default).replace('.0 ', '')})"
        self.add_size("--max-message-size", default=default, help=text)

    def add_partitions(self) -> None:
        self.add_argument(
            "-p",
            "--partition",
            type=number,
            action="append",
            metavar="P",
            dest="partitions",
            help="only this partition; may be given several times (default: all)",
        )

    def add_json(self, what: str = "one object") -> None:
        add_json(self, what)

    def add_yes(self) -> None:
        self.add_flag("--yes", help="do not ask (needed if stdin is no terminal; default: ask)")


_FRAMINGS = {
    "lines": "messages {where} are lines",
    "length_prefixed": "messages {where} are u32 big endian lengths, each with that number of bytes after it",
    "whole": "all of stdin is one message",
    "base64": "one line each, in base64",
    "raw": "the messages' bytes, with nothing between them",
}


def add_json(to: argparse._ActionsContainer, what: str = "one object") -> None:
    """Add --json to a parser, or to a group of its options."""
    to.add_argument("--json", action="store_true", help=f"print JSON, for programs: {what} (default: text)")


def check_source(args: argparse.Namespace) -> None:
    """Raise UsageError if messages come from both the command line and stdin, OSError if stdin is closed."""
    if args.messages and args.framing:
        raise UsageError(
            f"--{args.framing.replace('_', '-')} is for stdin: leave out the messages, or the option"
        )
    if not args.messages:
        stdin.fileno()


def check_confirmed(args: argparse.Namespace, question: Callable[[], str]) -> None:
    """Ask, unless --yes is given. Raises UsageError if stdin is no terminal, CommandError at a no."""
    if args.yes:
        return
    if not stdin.is_terminal():
        raise UsageError("--yes is needed: stdin is no terminal")
    if not asked(question()):
        raise CommandError("nothing was removed")


# --- types ----------------------------------------------------------------------------------------


def count(text: str) -> int:
    """Return a whole number from 1 on. An argparse type."""
    return _whole(text, 1)


def number(text: str) -> int:
    """Return a whole number from 0 on: a partition, an offset. An argparse type."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20) or int(text) < least:
        raise argparse.ArgumentTypeError(f"a whole number from {least} on, not {text!r}")
    return int(text)
