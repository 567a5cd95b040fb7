# Rounds. Law: what is compared was measured in the same round, minutes apart at most, each in a
# process of its own; what is reported is a median with its spread.
#
# A round measures every section once, sections in random order and the measurements of a section
# in random order too. Whatever else the machine does in these seconds then hits both sides of a
# ratio; ratios are taken within a round, and their median is judged.

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Protocol

from benchmarks.floors import FIGURES, Row, Section
from tests.compat.go_peer import GoPeer
from tests.compat.golang import GoUnavailableError

__all__ = [
    "GoBench",
    "Measurement",
    "MissingError",
    "Result",
    "Scale",
    "Spread",
    "Work",
    "forking",
    "ratio_of",
    "run",
]

ROOT = Path(__file__).parent.parent
TIMEOUT = 300.0

Readings = dict[str, dict[str, float]]
"""By part ("" where there is one), then by figure."""


class MissingError(Exception):
    """Something to measure is not on this machine."""


# --- what is measured ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of it. Everything that counts messages is asked for in full and comes scaled."""

    name: str
    factor: float

    def __call__(self, count: int, *, least: int = 100) -> int:
        return max(least, round(count * self.factor))


class Measurement(Protocol):
    def measure(self, directory: Path) -> Readings:
        """In an empty directory. Raises MissingError."""

    def describe(self) -> dict[str, Any]:
        """For the report."""


@dataclass(frozen=True, slots=True)
class Work:
    """A function of benchmarks/MODULE.py, in a fresh Python."""

    name: str
    options: Mapping[str, Any]
    module: str = "works"
    after: Work | None = None
    """Done before in the same directory, in a process of its own, and not measured."""

    def measure(self, directory: Path) -> Readings:
        if self.after is not None:
            self.after.measure(directory)
        arguments = [self.module, self.name, str(directory), json.dumps(dict(self.options))]
        done = (_forks or _fresh)(arguments)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stderr}")
        report = json.loads(done.stdout.splitlines()[-1])
        if "missing" in report:
            raise MissingError(report["missing"])
        readings: Readings = report["readings"]
        return readings

    def describe(self) -> dict[str, Any]:
        return {"python": f"benchmarks.{self.module}.{self.name}", **self.options}


def _fresh(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.child", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


class _Forks:
    """A Python that has imported nearly all, and forks for each work."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.child", "--forks"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as directory:
            output, errors = Path(directory, "output"), Path(directory, "errors")
            print(json.dumps([arguments, str(output), str(errors)]), file=self._process.stdin, flush=True)
            code = int(self._process.stdout.readline())
            return subprocess.CompletedProcess(arguments, code, output.read_text(), errors.read_text())

    def close(self) -> None:
        self._process.communicate()


_forks: _Forks | None = None


@contextmanager
def forking() -> Iterator[None]:
    """For the length of a block a work is not a fresh Python but the fork of a warm one.

    That saves its start, which is most of a short run. For tests: what it measures of memory is not its own.
    """
    global _forks
    _forks = _Forks()
    try:
        yield
    finally:
        _forks.close()
        _forks = None


class GoProgram(Protocol):
    """A Go program that measures itself. One process per call."""

    @classmethod
    def build(cls) -> GoProgram:
        """Raises GoUnavailableError."""

    def bench(self, what: str, directory: Path, timeout: float, **options: Any) -> dict[str, Any]:
        """`count`, `seconds`, `rate`, `cpu_seconds`, `go`; perhaps `peer`, `warnings` and latencies."""


class GoBench:
    """A benchmark of a Go program: of go-diskqueue's harness (tests/compat/gopeer), or another."""

    _built: ClassVar[dict[type[GoProgram], GoProgram]] = {}

    def __init__(self, bench: str, program: type[GoProgram] = GoPeer, **options: Any) -> None:
        self.bench = bench
        self.program = program
        self.options = options
        self.versions: dict[str, str] = {}
        """What the program said of itself, once it has run."""

    def measure(self, directory: Path) -> Readings:
        try:
            if self.program not in GoBench._built:
                GoBench._built[self.program] = self.program.build()
        except GoUnavailableError as reason:
            raise MissingError(str(reason)) from reason
        program = GoBench._built[self.program]
        report = program.bench(self.bench, directory, timeout=TIMEOUT, **self.options)
        if report.get("warnings"):
            raise RuntimeError(f"{report['peer']} complained: {report['warnings']}")
        self.versions = {"go": report["go"].removeprefix("go")}
        if "peer" in report:
            peer, version = report["peer"].split()
            self.versions[peer] = version
        figures = {name: report[name] for name in ("count", "seconds", "rate")}
        figures["cpu_us"] = report["cpu_seconds"] / report["count"] * 1e6
        figures |= {name: value for name, value in report.items() if name.endswith("_us")}
        return {"": figures}

    def describe(self) -> dict[str, Any]:
        return {"go": f"{self.program.__name__}.bench {self.bench}", **self.options}


# --- what comes of it --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    least: float
    most: float
    quartiles: tuple[float, float]
    each: list[float]
    """In the order of the rounds."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        first, third = values[0], values[0]
        if len(values) > 1:
            first, _, third = statistics.quantiles(values, n=4, method="inclusive")
        return cls(statistics.median(values), min(values), max(values), (first, third), list(values))


@dataclass(slots=True)
class Result:
    """A row of the report. Where something was missing, no more than the reason."""

    section: str
    row: Row
    ours: dict[str, Spread] = field(default_factory=dict)
    peer: dict[str, Spread] = field(default_factory=dict)
    ratio: Spread | None = None
    """Above 1: diskq is the better one."""
    missing: str = ""

    @property
    def is_reached(self) -> bool | None:
        """None: there is no floor to reach."""
        if not self.row.has_floor:
            return None
        if self.missing:
            return False
        if self.row.at_most is not None:
            return self.ours[self.row.figure].median <= self.row.at_most
        if self.row.reaches is not None:
            return self.ours[self.row.figure].median >= self.row.reaches
        assert self.ratio is not None
        assert self.row.at_least is not None
        return self.ratio.median >= self.row.at_least


# --- running ---------------------------------------------------------------------------------------------


def run(
    sections: Sequence[Section],
    measurements: Mapping[str, Measurement],
    *,
    rounds: int,
    directory: Path,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
    goes_on: bool = False,
    took: dict[str, float] | None = None,
) -> list[Result]:
    """Measure each section in each round, in scratch directories below `directory`.

    `took` gets the seconds that each measurement took in all rounds, with what is not measured: filling,
    opening, removing. Raises RuntimeError if a measurement fails; with `goes_on`, its rows report it as
    missing instead.
    """
    order = random.Random(seed)
    taken: dict[tuple[str, str], list[Readings]] = {}
    missing: dict[str, str] = {}
    for number in range(rounds):
        for section in order.sample(sections, len(sections)):
            names = sorted({name for row in section.rows for name in _measured(row)})
            for name in order.sample(names, len(names)):
                if name in missing:
                    continue
                progress(f"round {number + 1} of {rounds}: {name}")
                began = perf_counter()
                try:
                    with _scratch(directory) as scratch:
                        readings = measurements[name].measure(scratch)
                except MissingError as reason:
                    missing[name] = str(reason)
                    continue
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    if not goes_on:
                        raise
                    missing[name] = f"{name} failed: {str(error).strip().splitlines()[-1][:200]}"
                    continue
                finally:
                    if took is not None:
                        took[name] = took.get(name, 0.0) + perf_counter() - began
                taken.setdefault((section.title, name), []).append(readings)
    return [_result(section, row, taken, missing) for section in sections for row in section.rows]


@contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=directory))
    try:
        yield path
    finally:
        shutil.rmtree(path)
        os.sync()  # the disk is done with it before the next one is measured


def _split(reading: str) -> tuple[str, str]:
    """The measurement of a reading, and its part in it."""
    name, _, part = reading.partition(": ")
    return name, part


def _measured(row: Row) -> Iterator[str]:
    yield _split(row.ours)[0]
    if row.peer:
        yield _split(row.peer)[0]


def _result(
    section: Section,
    row: Row,
    taken: Mapping[tuple[str, str], list[Readings]],
    missing: Mapping[str, str],
) -> Result:
    for name in _measured(row):
        if name in missing:
            return Result(section.title, row, missing=missing[name])

    def rounds_of(reading: str) -> list[dict[str, float]]:
        name, part = _split(reading)
        return [readings[part] for readings in taken[section.title, name]]

    result = Result(section.title, row, ours=_spreads(rounds_of(row.ours)))
    if row.peer:
        result.peer = _spreads(rounds_of(row.peer))
        result.ratio = ratio_of(row, result.ours, result.peer)
    return result


def _spreads(rounds: list[dict[str, float]]) -> dict[str, Spread]:
    return {figure: Spread.of([readings[figure] for readings in rounds]) for figure in rounds[0]}


def ratio_of(row: Row, ours: Mapping[str, Spread], peer: Mapping[str, Spread]) -> Spread:
    """Return how many times as good as the peer, round by round."""
    pairs = zip(ours[row.figure].each, peer[row.figure].each, strict=True)
    if FIGURES[row.figure].more_is_better:
        return Spread.of([one / other for one, other in pairs])
    return Spread.of([other / one for one, other in pairs])
