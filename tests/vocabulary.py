# The public names of the library, the command line and Spark: each with the place where it is.

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import diskq

__all__ = ["Name", "public_names"]


class Name(NamedTuple):
    word: str
    where: str
    kind: str
    """`parameter`, `attribute`, `name`, `option` of the command line, or `column`."""


def public_names() -> Iterator[Name]:
    for name in diskq.__all__:
        public = getattr(diskq, name)
        yield Name(name, "diskq", "name")
        if inspect.isclass(public):
            yield from _of_a_class(name, public)
        elif callable(public):
            yield from _parameters(name, public)
    yield from _of_the_command_line()


def _of_a_class(name: str, of: type) -> Iterator[Name]:
    if not issubclass(of, BaseException) and "__init__" in vars(of):
        yield from _parameters(name, vars(of)["__init__"])
    for member in dir(of):
        value = inspect.getattr_static(of, member)
        if member.startswith("_") or (issubclass(of, (str, tuple, BaseException)) and member in _OTHERS):
            continue
        yield Name(member, f"{name}.{member}", "attribute")
        function = getattr(value, "__func__", value)
        if inspect.isfunction(function):
            yield from _parameters(f"{name}.{member}", function)


_OTHERS = {*dir(str), *dir(tuple), *dir(BaseException)}


def _parameters(where: str, of: Any) -> Iterator[Name]:
    try:
        parameters = inspect.signature(of).parameters
    except ValueError:  # compiled
        return
    for parameter in parameters.values():
        if parameter.name != "self" and parameter.kind is not parameter.VAR_KEYWORD:
            yield Name(parameter.name, f"{where}({parameter.name})", "parameter")


def _of_the_command_line() -> Iterator[Name]:
    from diskq.cli import command_parser

    yield from _options("diskq", command_parser())


def _options(where: str, parser: argparse.ArgumentParser) -> Iterator[Name]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, below in action.choices.items():
                yield from _options(f"{where} {verb}", below)
        for option in action.option_strings:
            if option.startswith("--"):
                word = option.removeprefix("--").replace("-", "_")
                yield Name(word, f"{where} {option}", "option")
