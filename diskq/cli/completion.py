# `diskq completion`, and what happens when Tab is pressed. Law: what is offered is what the parser knows, so
# it is never another than what is taken; names are looked up in the files, nothing is locked or changed.
#
# The shell asks the command itself (argcomplete): a script written down once could not know which queues
# there are, and would tell of yesterday's options.

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from typing import Any

from diskq.cli.core.parsing import CommandError, CommandParser, Commands, add_command
from diskq.cli.core.terminal import warnings_left_out
from diskq.cli.stream.view import StreamView
from diskq.engine.stream.groups import groups
from diskq.errors import DiskqError
from diskq.tools.view.queue import queue_names

__all__ = ["add_parser", "answer"]

SHELLS = ("bash", "zsh", "fish")

ABOUT = """
Print what has a shell complete diskq's command lines: nouns, verbs, options, paths and the names of queues.
Needs `pip install 'diskq[cli]'`.
"""

EXAMPLES = """
  eval "$(diskq completion bash)"                                   in ~/.bashrc
  eval "$(diskq completion zsh)"                                    in ~/.zshrc, behind compinit
  diskq completion fish > ~/.config/fish/completions/diskq.fish     once
"""

_ASKED = "_ARGCOMPLETE"  # by which the shell says that it asks

Completer = Callable[..., Iterable[str]]


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, "completion", "have the shell complete command lines", ABOUT, EXAMPLES)
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    print(_argcomplete().shellcode(["diskq"], shell=args.shell))


def answer(parser: CommandParser) -> None:
    """Where it is the shell that asks, tell it what may come next, and leave the process."""
    if _ASKED in os.environ:
        _prepare(parser)
        with warnings_left_out():
            _argcomplete().autocomplete(parser, always_complete_options="long")


def _argcomplete() -> Any:
    try:
        import argcomplete
    except ImportError:
        raise CommandError("completion needs argcomplete: pip install 'diskq[cli]'") from None
    return argcomplete


# --- what may stand where -------------------------------------------------------------------------

# Places in the file system; anything else that has no choices is the user's own word.
_PATHS = {"PATH", "DIR", "FILE", "ROOT", "NEW", "OUT", "SOURCE", "TARGET"}


def _prepare(parser: CommandParser) -> None:
    """Tell of each argument what may stand there."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _prepare(below)
        elif action.choices is None and (completer := _completer(action)) is not None:
            action.completer = completer  # type: ignore[attr-defined]


def _completer(action: argparse.Action) -> Completer | None:
    """None: files and directories, which is what is offered where nobody says anything else."""
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
