# Two runs compared, row by row, by their ratios. Law: a single measurement has no spread, and a median may
# leave the spread of a few rounds by chance: both are reported.
#
# The stated spread of a row is its ratio's least..most over the rounds. The condition that a run's median is
# in the other's spread is too strict: of two runs of five rounds of the same code, one in six has its median
# outside the other's range; of three rounds, two in five. The ranges are disjoint, every round of one above
# every round of the other, in 2 of C(10, 5) = 252 cases, and 2 of 20. So a row is
#
#   within      the new median lies in the old least..most
#   overlapping it does not, but the two ranges meet, the old one widened by a tenth at both ends
#   apart       neither: more than chance and a tenth, which is what ratios move by on a shared machine
#
# No distribution is assumed; the report states how many rows are apart, and how many are expected by chance.

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.floors import Row
from benchmarks.harness import Result, Spread
from benchmarks.report import Report, against, line_of, range_of, short
from benchmarks.summary import read

__all__ = ["WIDER", "Comparison", "Pair", "compare"]

WIDER = 1.1
"""The factor by which a stated range is widened up and down."""

Verdict = Literal["within", "overlapping", "apart"]
_VERDICTS: tuple[Verdict, ...] = ("within", "overlapping", "apart")


@dataclass(frozen=True, slots=True)
class Pair:
    """A row that both runs have a ratio of."""

    benchmark: str
    section: str
    row: Row
    old: Spread
    new: Spread

    @property
    def quotient(self) -> float:
        """New median by old median."""
        return self.new.median / self.old.median

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
    """What differs between them, and what only one of them has."""

    @property
    def apart(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.verdict == "apart"]

    def text(self) -> str:
        """Markdown: what there is to say of all, what stands apart, and every row."""
        return "\n".join([*self._summary(), *_table("Apart", self.apart), *_table("Every row", self.pairs)])

    def _summary(self) -> Iterator[str]:
        yield from ("# One run beside another", "", *self.notes, *([""] if self.notes else []))
        if not self.pairs:
            yield from ("No row has a ratio in both.", "")
            return
        counts = [
            f"{sum(pair.verdict == word for pair in self.pairs)} {word}" for word in _VERDICTS if self.pairs
        ]
        by_chance = math.fsum(pair.chance for pair in self.pairs)
        yield (
            f"{len(self.pairs)} ratios: {', '.join(counts)}. Chance alone, of two runs of the same thing, "
            f"sets apart {by_chance:.0f} at the most."
        )
        quotients = sorted(pair.quotient for pair in self.pairs)
        yield (
            f"New by old median: {short(_at(quotients, 0.5))} in the middle, nine in ten "
            f"{short(_at(quotients, 0.05))}..{short(_at(quotients, 0.95))}."
        )
        yield ""


def compare(old: Path, new: Path) -> Comparison:
    """The results that lie in two directories.

    Raises FileNotFoundError where one of them is none, or has none.
    """
    found = Comparison()
    runs = [{report.about["benchmark"]: report for report in _results(path)} for path in (old, new)]
    for name in sorted(runs[0].keys() | runs[1].keys()):
        if any(name not in run for run in runs):
            found.notes.append(f"* {name}: only in {old if name in runs[0] else new}")
            continue
        _compare(found, name, *(run[name] for run in runs))
    return found


def _results(path: Path) -> Sequence[Report]:
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no directory of results")
    if not (reports := read(path)):
        raise FileNotFoundError(f"{path}: no results lie there (*.json, as --out writes them)")
    return reports


def _compare(found: Comparison, name: str, old: Report, new: Report) -> None:
    for fact in ("scale", "commit"):
        if old.about[fact] != new.about[fact]:
            found.notes.append(f"* {name}: {fact} {old.about[fact]}, then {new.about[fact]}")
    before, after = ({_key(result): result for result in run.results} for run in (old, new))
    for key, result in before.items():
        other = after.get(key)
        if other is None or result.ratio is None or other.ratio is None:
            continue
        found.pairs.append(Pair(name, result.section, result.row, result.ratio, other.ratio))
    for which, these, those in (("the old one", before, after), ("the new one", after, before)):
        if only := sum(_has(these, key) and not _has(those, key) for key in these):
            found.notes.append(f"* {name}: {only} ratios only in {which}")


_Key = tuple[str, str, str]
_Results = dict[_Key, Result]


def _key(result: Result) -> _Key:
    return result.section, result.row.name, result.row.peer


def _has(run: _Results, key: _Key) -> bool:
    return key in run and run[key].ratio is not None


def _table(title: str, pairs: Sequence[Pair]) -> Iterator[str]:
    if not pairs:
        return
    yield from (f"## {title}", "")
    yield line_of(
        ("", "section", "row", "against", "old", "least..most", "new", "least..most", "new/old", "")
    )
    yield "|---|---|---|---|---:|---:|---:|---:|---:|---|"
    for pair in pairs:
        cells = (pair.benchmark, pair.section, pair.row.name, against(pair.row))
        old, new = ((f"{short(each.median)} x", range_of(each)) for each in (pair.old, pair.new))
        yield line_of((*cells, *old, *new, short(pair.quotient), pair.verdict))
    yield ""


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
