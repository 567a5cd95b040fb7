# `diskq completion`, and what happens at Tab. Law: candidates come from the parser, so that all of them are
# accepted; names come from the files; nothing is locked or changed.
#
# The shell asks the command itself (argcomplete): a generated script could not know which queues there are,
# and would offer the options of the version that generated it.

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from diskq.cli.core.parsing import CommandError, CommandParser, Commands, add_command
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import warnings_left_out
from diskq.cli.stream.view import StreamView
from diskq.distribution import install_command
from diskq.engine.stream.groups import groups
from diskq.errors import DiskqError
from diskq.tools.view.queue import queue_names

__all__ = ["add_parser", "answer"]

SHELLS = ("bash", "zsh", "fish")

ABOUT = f"""
Print the shell code that completes command lines of diskq: nouns, verbs, options, paths, names of queues.
Needs `{install_command("cli")}`.
"""

EXAMPLES = """
  eval "$(diskq completion bash)"                                   in ~/.bashrc
  eval "$(diskq completion zsh)"                                    in ~/.zshrc, after compinit
  diskq completion fish > ~/.config/fish/completions/diskq.fish     once
"""

Completer = Callable[..., Iterable[str]]


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, "completion", "completion of command lines, for a shell", ABOUT, EXAMPLES)
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    stdout.print(_argcomplete().shellcode(["diskq"], shell=args.shell))


def answer(parser: CommandParser) -> None:
    """Print the candidates, for which the shell asks, and end the process."""
    _prepare(parser)
    with warnings_left_out():
        _argcomplete().autocomplete(parser, always_complete_options="long")


def _argcomplete() -> Any:
    try:
        import argcomplete
    except ImportError:
        raise CommandError(f"completion needs argcomplete: {install_command('cli')}") from None
    return argcomplete


# --- candidates -----------------------------------------------------------------------------------

# Arguments that are paths; any other argument without choices is a word that only the user knows.
_PATHS = {"PATH", "DIR", "FILE", "ROOT", "NEW", "OUT", "SOURCE", "TARGET"}


def _prepare(parser: CommandParser) -> None:
    """Give each argument the function that returns its candidates."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _prepare(below)
        elif action.choices is None and (completer := _completer(action)) is not None:
            action.completer = completer  # type: ignore[attr-defined]


def _completer(action: argparse.Action) -> Completer | None:
    """Return the function for an argument. None: files and directories, the default of argcomplete."""
    if action.dest == "name" and action.metavar == "NAME":
        return _queues
    if action.dest in ("group", "reset"):
        return _groups
    return None if action.metavar in _PATHS or isinstance(action.metavar, tuple) else _nothing


def _nothing(**_: object) -> list[str]:
    return []


def _queues(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    return _names(queue_names, getattr(parsed_args, "directory", None))


def _groups(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    return _names(_groups_of, getattr(parsed_args, "path", None))


def _groups_of(path: str) -> list[str]:
    view = StreamView(path)
    return [group.name for group in groups(view.fs, view.files)]


def _names(look: Callable[[str], list[str]], path: str | None) -> list[str]:
    try:
        return look(path) if path else []
    except (CommandError, DiskqError, OSError):
        return []
