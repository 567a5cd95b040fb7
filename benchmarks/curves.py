# What the sweep has measured, as tables that can be read: systems by points. Law: a ratio is of one round,
# also here; it is made anew of the rounds that the JSON has.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.floors import FIGURES
from benchmarks.harness import Result, Spread

__all__ = ["Curves", "curves"]

Figures = dict[str, Spread]


@dataclass(slots=True)
class Curves:
    """What was measured of each system, point by point."""

    points: list[str] = field(default_factory=list)
    of: dict[str, dict[str, Figures]] = field(default_factory=dict)
    """By system, then by point."""
    missing: dict[str, None] = field(default_factory=dict)
    """What was not there, in order."""

    @property
    def ours(self) -> list[str]:
        return [system for system in self.of if is_ours(system)]

    @property
    def theirs(self) -> list[str]:
        return [system for system in self.of if not is_ours(system) and not is_limit(system)]

    @property
    def limits(self) -> list[str]:
        return [system for system in self.of if is_limit(system)]

    def ratio(self, ours: str, peer: str, point: str, figure: str = "rate") -> Spread | None:
        """How many times as good, round by round. None where one of them was not measured there."""
        one, other = (self.of.get(system, {}).get(point, {}).get(figure) for system in (ours, peer))
        if one is None or other is None or not all(one.each) or not all(other.each):
            return None
        pairs = zip(one.each, other.each, strict=True)
        if FIGURES[figure].more_is_better:
            return Spread.of([a / b for a, b in pairs])
        return Spread.of([b / a for a, b in pairs])


def curves(results: Sequence[Result], prefix: str) -> Curves:
    """Of the sections whose title is `prefix: POINT`, of what is called `SYSTEM @ POINT`."""
    found = Curves()
    for result in results:
        title, _, point = result.section.rpartition(": ")
        if title != prefix:
            continue
        if point not in found.points:
            found.points.append(point)
        if result.missing:
            found.missing[result.missing] = None
        for reading, figures in ((result.row.ours, result.ours), (result.row.peer, result.peer)):
            system, _, at = reading.partition(" @ ")
            if figures and at == point:
                found.of.setdefault(system, {}).setdefault(point, figures)
    found.of = dict(sorted(found.of.items(), key=lambda each: (not is_ours(each[0]), is_limit(each[0]))))
    return found


def is_ours(system: str) -> bool:
    return system.split()[0] in ("queue", "stream", "journal", "priority")


def is_limit(system: str) -> bool:
    return system.startswith("limit ")
