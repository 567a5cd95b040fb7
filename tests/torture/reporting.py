# torture.json and torture.md. Law: counts come from a run and are kept with what they are of; words come from
# promises.py, so that other words need no other run.

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.torture.judging import COUNTS, Tally
from tests.torture.promises import TELLS
from tests.torture.rigs import RIGS
from tests.torture.systems import SYSTEMS, System

__all__ = ["Measured", "Results", "at_a_glance", "broken", "by_rig", "cell", "in_all", "load", "save"]

# Where bytes rot, whoever notices may refuse, and what is gone is gone; what is no message must not come.
MAY_MISS = frozenset({"rot"})
GLANCE = {
    "kill": "killed",
    "power": "power cut",
    "errors": "failed call, full disk",
    "owners": "two owners",
}
NOT_HERE = """go-diskq and sej, whose files streams and journals are, have no row: the Go module proxy refuses
both (403), so neither can be built here."""


@dataclass(slots=True)
class Measured:
    """One system's counts, and of what they are."""

    version: str
    commit: str
    """Of diskq."""
    depth: int
    seed: int
    machine: dict[str, Any]
    rigs: dict[str, Tally] = field(default_factory=dict)

    def is_of_one_run_with(self, other: Measured) -> bool:
        """True if the counts of both can be in one row."""
        return (self.version, self.run) == (other.version, other.run) and self.machine == other.machine

    @property
    def run(self) -> tuple[str, int, int]:
        return self.commit, self.depth, self.seed

    def total(self, name: str, rigs: Iterable[str]) -> int:
        return _total(self.rigs, name, rigs)


Results = dict[str, Measured]


def _total(tallies: Mapping[str, Tally], name: str, rigs: Iterable[str]) -> int:
    return sum(getattr(tallies[rig], name) for rig in rigs if rig in tallies)


def broken(system: System, rig: str, tally: Tally) -> list[str]:
    """What of this the system's own documents promise not to happen."""
    if rig not in system.promises:
        return []
    wrong = ["altered", "unordered", "hung"]
    if rig not in MAY_MISS:
        wrong += ["lost", "refused"]
    if TELLS in system.promises:
        wrong.append("unreported")
    return [f"{getattr(tally, name)} {name}" for name in wrong if getattr(tally, name)]


# --- the files --------------------------------------------------------------------------------------


def load(directory: Path) -> Results:
    """What torture.json there says. {}: it is not there. A system that is no more is left out."""
    path = directory / "torture.json"
    if not path.exists():
        return {}
    told = json.loads(path.read_text())["systems"]
    results: Results = {}
    for name in SYSTEMS:
        if name in told:
            rigs = {rig: Tally(**told[name]["rigs"][rig]) for rig in RIGS if rig in told[name]["rigs"]}
            about = {each: told[name][each] for each in ("version", "commit", "depth", "seed", "machine")}
            results[name] = Measured(**about, rigs=rigs)
    return results


def save(directory: Path, results: Results) -> None:
    """Both files, in the order of systems.py."""
    directory.mkdir(parents=True, exist_ok=True)
    results = {name: results[name] for name in SYSTEMS if name in results}
    told = {
        "systems": {
            name: {
                "opened": SYSTEMS[name].opened,
                "says": SYSTEMS[name].documents.says,
                "promises": sorted(SYSTEMS[name].promises),
                **asdict(measured),
            }
            for name, measured in results.items()
        }
    }
    (directory / "torture.json").write_text(json.dumps(told, indent=1) + "\n")
    (directory / "torture.md").write_text(_document(results))


def _document(results: Results) -> str:
    opened = "\n".join(
        f"- {_label(name, each)}: {SYSTEMS[name].opened}. {SYSTEMS[name].documents.says}"
        for name, each in results.items()
    )
    examples = "\n".join(
        f"- {name}, {rig}: {example}"
        for name, each in results.items()
        for rig, tally in each.rigs.items()
        for example in tally.examples[:1]
    )
    return f"""# What is lost

{_runs(results)} [docs/torture.md](../../docs/torture.md) says what the rigs do.
**Bold** is what the system's own documents promise not to happen, and who promises nothing breaks nothing:
{_broken_promises(results)}. {NOT_HERE}

## At a glance

Acknowledged messages that were lost, in how many cases, after each accident; messages that came with other
bytes than were put, after a byte of the files was changed; opens that were refused, rot apart.

{at_a_glance(results)}

## In all

{in_all(results)}

## By rig

Messages lost, altered; cases out of order; opens refused or hung; failed syncs that were not reported.

{by_rig(results)}

## How each was opened, and what its documents say

{opened}

## All counts

{_details(results)}

## An example of each

{examples}
"""


def _broken_promises(results: Results) -> str:
    count = sum(
        bool(broken(SYSTEMS[name], rig, tally))
        for name, each in results.items()
        for rig, tally in each.rigs.items()
    )
    return f"{count} cells below are" if count > 1 else "one cell below is" if count else "nothing below is"


def _runs(results: Results) -> str:
    """Of which commit, depth and seed."""
    runs: dict[tuple[str, int, int], list[str]] = {}
    for name, each in results.items():
        runs.setdefault(each.run, []).append(name)
    told = []
    for (commit, depth, seed), names in runs.items():
        whose = "" if len(runs) == 1 else f" ({', '.join(names)})"
        told.append(f"depth {depth}, seed {seed}, diskq at {commit}{whose}")
    return f"`python -m tests.torture`: {'; '.join(told)}."


# --- the tables -------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> str:
    """The first `texts` columns are text, the others numbers."""
    rule = ["---" if place < texts else "--:" for place in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def _label(name: str, measured: Measured) -> str:
    """With its version."""
    program, comma, setting = name.partition(",")
    ours = "diskq " if SYSTEMS[name].is_ours else ""
    return f"{ours}{program} {measured.version}{comma}{setting}"


def at_a_glance(results: Results) -> str:
    """A row for each system, first for all of ours: what it lost and altered, how often it would not open."""
    ours = {name: each for name, each in results.items() if SYSTEMS[name].is_ours}
    label = f"diskq {', '.join(sorted({each.version for each in ours.values()}))}, all kinds"
    rows = [_glance(label, _added(ours), _promised_by_all(ours))] if len(ours) > 1 else []
    rows += [_glance(_label(name, each), each.rigs, SYSTEMS[name].promises) for name, each in results.items()]
    accidents = [f"lost: {title}" for title in GLANCE.values()]
    return _table(["", "cases", *accidents, "altered: rot", "opens refused"], rows, 1)


def _glance(label: str, rigs: Mapping[str, Tally], promises: Set[str]) -> list[str]:
    row = [label, f"{_total(rigs, 'cases', RIGS):,}"]
    for rig in GLANCE:
        tally = rigs.get(rig)
        told = "" if tally is None else _loss(tally)
        row.append(f"**{told}**" if tally is not None and tally.lost and rig in promises else told)
    altered = _total(rigs, "altered", MAY_MISS)
    row.append(f"**{altered:,}**" if altered and MAY_MISS & promises else f"{altered:,}")
    refused = _total(rigs, "refused", RIGS.keys() - MAY_MISS)
    is_broken = _total(rigs, "refused", promises - MAY_MISS)
    row.append(f"**{refused:,}**" if is_broken else f"{refused:,}")
    return row


def _added(results: Results) -> dict[str, Tally]:
    """What became of all of them together, by the rig."""
    return {
        rig: sum((each.rigs[rig] for each in results.values() if rig in each.rigs), Tally()) for rig in RIGS
    }


def _promised_by_all(results: Results) -> frozenset[str]:
    return frozenset.intersection(*(SYSTEMS[name].promises for name in results))


def _loss(tally: Tally) -> str:
    if tally.note:
        return tally.note
    return f"{tally.lost:,} in {tally.cases_with_loss:,} of {tally.cases:,}" if tally.lost else "0"


def in_all(results: Results) -> str:
    """One row for each system: its cases, and what was lost, altered and refused in them."""
    names = ("cases", "acknowledged", "lost", "altered", "refused")
    kinds = (RIGS.keys() - MAY_MISS, MAY_MISS)
    rows = [
        [_label(name, each), *(f"{each.total(count, rigs):,}" for rigs in kinds for count in names)]
        for name, each in results.items()
    ]
    titles = ["cases tried", "acknowledged", "lost", "altered messages delivered", "opens refused"]
    head = ["", *titles, *(f"rot: {title}" for title in titles)]
    return _table(head, rows, 1)


def by_rig(results: Results) -> str:
    """One row for each system: what went wrong in each rig. `0`: nothing, in any case."""
    rigs = [rig for rig in RIGS if any(rig in each.rigs for each in results.values())]
    rows = []
    for name, each in results.items():
        row = [name]
        for rig in rigs:
            tally = each.rigs.get(rig)
            told = "" if tally is None else tally.note or cell(tally)
            if tally is not None and broken(SYSTEMS[name], rig, tally):
                told = f"**{told}**"
            elif told not in ("", "0") and rig not in SYSTEMS[name].promises:
                told += " (no promise)"
            row.append(told)
        rows.append(row)
    return _table(["system", *rigs], rows, len(rigs) + 1)


def cell(tally: Tally) -> str:
    names = ("lost", "altered", "unordered", "refused", "hung", "unreported")
    told = [f"{getattr(tally, name):,} {name}" for name in names if getattr(tally, name)]
    return ", ".join(told) if told else "0"


def _details(results: Results) -> str:
    rows = [
        [name, rig, *(f"{getattr(tally, count):,}" for count in COUNTS)]
        for name, each in results.items()
        for rig, tally in each.rigs.items()
    ]
    return _table(["system", "rig", *(count.replace("_", " ") for count in COUNTS)], rows, 2)
