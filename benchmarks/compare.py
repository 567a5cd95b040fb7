# Two runs compared, row by row. Law: a single measurement has no spread, and a median may leave the spread of
# a few rounds by chance: both are reported.
#
# A row with a peer is compared by its ratio, one without by its figure, which the machine changes, too. The
# stated spread of a row is its least..most over the rounds. The condition that a run's median is in the
# other's spread is too strict: of two runs of five rounds of the same code, one in six has its median outside
# the other's range; of three rounds, two in five. The ranges are disjoint, every round of one above every
# round of the other, in 2 of C(10, 5) = 252 cases, and 2 of 20. So a row is
#
#   within      the new median lies in the old least..most
#   overlapping it does not, but the two ranges meet, the old one widened by a tenth at both ends
#   apart       neither: more than chance and a tenth, which is what ratios move by on a shared machine
#
# No distribution is assumed; the report states how many rows are apart, and how many are expected by chance.
# Rows are found by their present names (benchmarks/renamed.py).

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.floors import FIGURES, Row
from benchmarks.harness import Result, Spread
from benchmarks.renamed import Key, note_of, present
from benchmarks.report import Report, against, line_of, range_of, short, value_of
from benchmarks.summary import read, read_texts

__all__ = ["WIDER", "Comparison", "Pair", "compare"]

ROOT = Path(__file__).parent.parent
RESULTS = "benchmarks/results"
WIDER = 1.1
"""The factor by which a stated range is widened up and down."""

Verdict = Literal["within", "overlapping", "apart"]
_VERDICTS: tuple[Verdict, ...] = ("within", "overlapping", "apart")


@dataclass(frozen=True, slots=True)
class Pair:
    """A row that both runs have measured, by its present name."""

    benchmark: str
    section: str
    row: Row
    old: Spread
    new: Spread
    note: str = ""
    """What is measured otherwise."""

    @property
    def is_ratio(self) -> bool:
        return bool(self.row.peer)

    @property
    def quotient(self) -> float:
        """How many times as good the new median is."""
        old, new = self.old.median, self.new.median
        if not self.is_ratio and not FIGURES[self.row.figure].more_is_better:
            old, new = new, old
        if old == new:
            return 1.0
        return new / old if old else math.inf

    @property
    def verdict(self) -> Verdict:
        if self.old.least <= self.new.median <= self.old.most:
            return "within"
        if self.new.least <= self.old.most * WIDER and self.new.most >= self.old.least / WIDER:
            return "overlapping"
        return "apart"

    @property
    def chance(self) -> float:
        """That all rounds of one lie above all of the other, where both measured the same thing."""
        rounds = len(self.old.each), len(self.new.each)
        return 2 / math.comb(sum(rounds), rounds[0])


@dataclass(slots=True)
class Comparison:
    pairs: list[Pair] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What differs between them."""
    alone: list[str] = field(default_factory=list)
    """Rows that only one of them has measured."""

    @property
    def apart(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.verdict == "apart"]

    def text(self) -> str:
        """Markdown: what there is to say of all, the rows that are apart, and every row."""
        slower = [pair for pair in self.apart if pair.quotient < 1]
        faster = [pair for pair in self.apart if pair.quotient >= 1]
        return "\n".join(
            [
                *self._summary(),
                *_table("Apart: slower", slower),
                *_table("Apart: faster", faster),
                *_table("Every row", self.pairs),
                *(["## In one run only", "", *self.alone, ""] if self.alone else []),
            ]
        )

    def _summary(self) -> Iterator[str]:
        yield from ("# One run beside another", "", *self.notes, *([""] if self.notes else []))
        if not self.pairs:
            yield from ("No row is measured in both.", "")
            return
        counts = [
            f"{sum(pair.verdict == word for pair in self.pairs)} {word}" for word in _VERDICTS if self.pairs
        ]
        by_chance = math.fsum(pair.chance for pair in self.pairs)
        ratios = sum(pair.is_ratio for pair in self.pairs)
        yield (
            f"{len(self.pairs)} rows, {ratios} of them ratios: {', '.join(counts)}. Chance alone, of two "
            f"runs of the same thing, sets apart {by_chance:.0f} at the most."
        )
        quotients = sorted(pair.quotient for pair in self.pairs)
        yield (
            f"How many times as good the new median is: {short(_at(quotients, 0.5))} in the middle, nine in "
            f"ten {short(_at(quotients, 0.05))}..{short(_at(quotients, 0.95))}."
        )
        yield ""


def compare(old: str | Path, new: str | Path) -> Comparison:
    """The results in two directories, or in `benchmarks/results` of two commits.

    Raises FileNotFoundError where one of them is neither, or has no results.
    """
    before, after = results_of(old), results_of(new)
    found = Comparison()
    for name in sorted(before.keys() | after.keys()):
        runs = before.get(name), after.get(name)
        if None in runs:
            found.notes.append(f"* {name}: only in {old if runs[1] is None else new}")
        else:
            found.notes += _differences(name, *(run for run in runs if run is not None))
    rows, others = _rows(before), _rows(after)
    for key, (number, result) in rows.items():
        if key not in others:
            found.alone.append(_alone(key, old))
            continue
        also, other = others[key]
        found.pairs.append(
            Pair(key.benchmark, key.section, other.row, _of(result), _of(other), note_of(key, number, also))
        )
    found.alone += [_alone(key, new) for key in others if key not in rows]
    return found


def results_of(place: str | Path) -> dict[str, Report]:
    """By benchmark, the reports of a directory, or of a commit. Raises FileNotFoundError."""
    path = Path(place)
    reports = read(path) if path.is_dir() else read_texts(_committed(str(place)))
    if not reports:
        raise FileNotFoundError(f"{place}: no results lie there (*.json, as --out writes them)")
    return {report.about["benchmark"]: report for report in reports}


def _committed(commit: str) -> Iterator[str]:
    names = _git("ls-tree", "--name-only", commit, f"{RESULTS}/")
    if names is None:
        raise FileNotFoundError(f"{commit}: no directory of results, and no commit")
    for name in names.splitlines():
        if name.endswith(".json"):
            yield _git("show", f"{commit}:{name}") or "{}"


def _git(*command: str) -> str | None:
    """What it prints; None if it fails."""
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def _differences(name: str, old: Report, new: Report) -> Iterator[str]:
    for fact in ("scale", "commit"):
        if old.about[fact] != new.about[fact]:
            yield f"* {name}: {fact} {old.about[fact]}, then {new.about[fact]}"


def _rows(run: dict[str, Report]) -> dict[Key, tuple[int, Result]]:
    """What was measured, with the way in which it was."""
    return {
        present(Key(name, result.section, result.row.name, result.row.peer)): (
            report.about.get("measured", 1),
            result,
        )
        for name, report in run.items()
        for result in report.results
        if not result.missing
    }


def _of(result: Result) -> Spread:
    return result.ratio or result.ours[result.row.figure]


def _alone(key: Key, place: str | Path) -> str:
    peer = f", against {key.peer}" if key.peer else ""
    return f"* {place}: {key.benchmark}, {key.section}, {key.name}{peer}"


def _table(title: str, pairs: Sequence[Pair]) -> Iterator[str]:
    if not pairs:
        return
    yield from (f"## {title}", "")
    yield line_of(
        ("", "section", "row", "against", "old", "least..most", "new", "least..most", "as good", "", "")
    )
    yield "|---|---|---|---|---:|---:|---:|---:|---:|---|---|"
    for pair in pairs:
        cells = (pair.benchmark, pair.section, pair.row.name, against(pair.row))
        old, new = (_cells(pair, each) for each in (pair.old, pair.new))
        yield line_of((*cells, *old, *new, f"{short(pair.quotient)} x", pair.verdict, pair.note))
    yield ""


def _cells(pair: Pair, spread: Spread) -> tuple[str, str]:
    if pair.is_ratio:
        return f"{short(spread.median)} x", range_of(spread)
    figure = pair.row.figure
    return value_of(figure, {figure: spread}), range_of(spread, figure)


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
