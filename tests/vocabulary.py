# The public names of the library, its packages, the command line and Spark: each with the place where it is.

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["PACKAGES", "Name", "not_installed", "public_names"]

PACKAGES = (
    "diskq",
    "diskq.hub",
    "diskq.logging",
    "diskq.metrics",
    "diskq.metrics.otel",
    "diskq.metrics.prometheus",
    "diskq.scrapy",
    "diskq.spark",
    "diskq.spark.pipelines",
    "diskq.testing",
    "diskq.tools.convert.conversion",
    "diskq.tools.convert.field_mapping",
    "diskq.tools.convert.sources",
    "diskq.tools.verify.verification",
)
"""Those that programs import from. What an extra brings may be missing: its names are then left out."""


class Name(NamedTuple):
    word: str
    where: str
    kind: str
    """`parameter`, `attribute`, `name`, `option` of the command line or of Spark, or `metric`."""


def not_installed() -> list[str]:
    """The packages whose extra is missing."""
    return [package for package in PACKAGES if not _is_installed(package)]


def _is_installed(package: str) -> bool:
    try:
        home = importlib.import_module(package)
        return all(hasattr(home, name) for name in home.__all__)
    except ImportError:
        return False


def public_names() -> Iterator[Name]:
    for package in filter(_is_installed, PACKAGES):
        yield from _of_a_package(package)
    yield from _of_the_command_line()
    yield from _of_spark()
    yield from _of_metrics()


def _of_a_package(package: str) -> Iterator[Name]:
    """The names of a package; before those of any other than `diskq` is the package: `spark.read`."""
    home = importlib.import_module(package)
    for name in home.__all__:
        public = getattr(home, name)
        yield Name(name, package, "name")
        place = name if package in _WITHOUT_PREFIX else f"{package.removeprefix('diskq.')}.{name}"
        if inspect.isclass(public):
            yield from _of_a_class(place, public)
        elif callable(public):
            yield from _parameters(place, public)


_WITHOUT_PREFIX = ("diskq", "diskq.hub", "diskq.logging", "diskq.testing")


def _of_a_class(name: str, of: type) -> Iterator[Name]:
    if not issubclass(of, BaseException) and "__init__" in vars(of):
        yield from _parameters(name, vars(of)["__init__"])
    fields = [each.name for each in dataclasses.fields(of)] if dataclasses.is_dataclass(of) else ()
    for member in sorted({*dir(of), *fields}):
        if member not in dir(of):
            yield Name(member, f"{name}.{member}", "attribute")
            continue
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


def _of_spark() -> Iterator[Name]:
    """The options of `format("diskq")`, in the words of Python: `partitionCount` is `partition_count`."""
    try:
        from diskq.spark import options, sink_options
    except ImportError:
        return
    for where, known in (("Spark read", options._KNOWN), ("Spark write", sink_options._KNOWN)):
        for option in known.values():
            word = re.sub(r"(?<=[a-z])([A-Z])", lambda found: f"_{found[1].lower()}", option)
            yield Name(word, f"{where}({word})", "option")


def _of_metrics() -> Iterator[Name]:
    from diskq.metrics import METRICS

    for metric in METRICS:
        yield Name(metric.name.removeprefix("diskq_"), f"metrics {metric.name}", "metric")
