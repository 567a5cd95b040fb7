"""Everything that can go wrong, done to diskq and to its peers: python -m tests.torture

Each system puts numbered messages as durably as it can, meets an accident, and is opened again: what was
acknowledged and is missing, and what came and nobody put, is counted. docs/torture.md tells what each rig
does. Ends with 1 where one of ours breaks a promise. The peers are the extra `bench`, and go-diskqueue
where Go is.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import commit, describe
from tests.torture.judging import Tally
from tests.torture.rigs import RIGS, Bench, RecorderError
from tests.torture.systems import SYSTEMS, System
from tests.torture.tracing import can_trace

__all__ = ["broken", "main", "table"]

DEPTH = 100
SHORT = 12
# The clock of a peer is not ours to set.
OURS_ALONE = frozenset({"clock"})
# Where bytes rot, whoever notices may refuse, and what is gone is gone; what is no message must not come.
MAY_MISS = frozenset({"rot"})

Results = dict[str, dict[str, Tally]]


def broken(system: System, rig: str, tally: Tally) -> list[str]:
    """What of this the system's own documents promise not to happen."""
    if rig not in system.promises:
        return []
    wrong = ["altered", "unordered", "hung", "unreported"]
    if rig not in MAY_MISS:
        wrong += ["lost", "refused"]
    return [f"{getattr(tally, name)} {name}" for name in wrong if getattr(tally, name)]


# --- running ----------------------------------------------------------------------------------------


def _run(system: System, rig: str, depth: int, seed: int) -> Tally:
    room = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=room, ignore_cleanup_errors=True) as scratch:
        bench = Bench(system, system.name, Path(scratch), depth, seed)
        with bench.tamed:
            try:
                return RIGS[rig](bench)
            except RecorderError as failure:
                return Tally(note=f"not recorded: {failure}"[:200])


def _wanted(only: list[str]) -> tuple[list[System], list[str]]:
    """A word is a rig, or a part of the name of systems."""
    rigs = [name for name in RIGS if name in only] or list(RIGS)
    words = [word for word in only if word not in RIGS]
    systems = [
        system
        for system in SYSTEMS.values()
        if not words
        or any(word == system.name or word in system.name.split() for word in words)
        or ("ours" in words and system.is_ours)
        or ("peers" in words and not system.is_ours)
    ]
    return systems, rigs


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--short", action="store_true", help=f"{SHORT} cases of each kind (default: {DEPTH})")
    parser.add_argument("--depth", type=int, help="so many cases of each kind at most")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="SYSTEM|RIG",
        help=f"a system, `ours`, `peers`, or a rig ({', '.join(RIGS)}); may be given again",
    )
    parser.add_argument("--seed", type=int, default=1, help="of what is chosen at random (default: 1)")
    parser.add_argument(
        "--out", type=Path, metavar="DIRECTORY", help="write torture.md and torture.json there"
    )
    args = parser.parse_args(argv)
    if not can_trace():
        parser.error("strace is not here, or may not attach to a process of ours")
    depth = args.depth or (SHORT if args.short else DEPTH)
    systems, rigs = _wanted(args.only)
    results: Results = {}
    is_broken = False
    for system in systems:
        if not system.is_there():
            print(f"{system.name}: not installed", flush=True)
            continue
        for rig in rigs:
            if rig in OURS_ALONE and not system.is_ours:
                continue
            began = time.monotonic()
            tally = results.setdefault(system.name, {})[rig] = _run(system, rig, depth, args.seed)
            faults = broken(system, rig, tally)
            is_broken = is_broken or bool(system.is_ours and (faults or tally.note))
            print(_line(system, rig, tally, faults, time.monotonic() - began), flush=True)
            for example in tally.examples if faults else []:
                print(f"    {example}")
            if args.out:
                _write(args.out, results, depth, args.seed)
    print("\n" + table(results))
    return 1 if is_broken else 0


# --- telling ----------------------------------------------------------------------------------------


def _line(system: System, rig: str, tally: Tally, faults: list[str], seconds: float) -> str:
    verdict = f"BROKEN: {', '.join(faults)}" if faults else tally.note or _cell(tally)
    return f"{system.name:22}{rig:8}{tally.cases:>7,} cases {seconds:>7.1f} s  {verdict}"


def _cell(tally: Tally) -> str:
    names = ("lost", "altered", "unordered", "refused", "hung", "unreported")
    told = [f"{getattr(tally, name):,} {name}" for name in names if getattr(tally, name)]
    return ", ".join(told) if told else "0"


def table(results: Results) -> str:
    """One row for each system: what it lost in each rig. `0`: nothing was wrong in any case."""
    rigs = [rig for rig in RIGS if any(rig in found for found in results.values())]
    rows = [["system", *rigs], ["---"] * (len(rigs) + 1)]
    for name, found in results.items():
        cells = []
        for rig in rigs:
            if rig not in found:
                cells.append("")
                continue
            faults = broken(SYSTEMS[name], rig, found[rig])
            mark = "" if rig in SYSTEMS[name].promises else " (no promise)"
            text = found[rig].note or _cell(found[rig])
            cells.append(f"**{text}**" if faults else text + (mark if text != "0" else ""))
        rows.append([name, *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _details(results: Results) -> str:
    names: tuple[str, ...] = (
        "cases",
        "acknowledged",
        "lost",
        "cases_with_loss",
        "altered",
        "again",
        "unordered",
        "refused",
    )
    names += ("hung", "unreported")
    titles = [name.replace("_", " ") for name in names]
    lines = ["| system | rig | " + " | ".join(titles) + " |", "|---|---" + "|--:" * len(names) + "|"]
    for system, found in results.items():
        for rig, tally in found.items():
            values = " | ".join(f"{getattr(tally, name):,}" for name in names)
            lines.append(f"| {system} | {rig} | {values} |")
    return "\n".join(lines)


def _write(out: Path, results: Results, depth: int, seed: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {name: SYSTEMS[name] for name in results}
    told = {
        "machine": describe(Path("/dev/shm")),
        "commit": commit(),
        "depth": depth,
        "seed": seed,
        "systems": {
            name: {
                "version": system.version(),
                "opened": system.says,
                "promises": sorted(system.promises),
                "rigs": {rig: asdict(tally) for rig, tally in results[name].items()},
            }
            for name, system in about.items()
        },
    }
    (out / "torture.json").write_text(json.dumps(told, indent=1) + "\n")
    opened = "\n".join(f"- {name} {each.version()}: {each.says}" for name, each in about.items())
    examples = "\n".join(
        f"- {name}, {rig}: {example}"
        for name, found in results.items()
        for rig, tally in found.items()
        for example in tally.examples[:1]
    )
    text = f"""# What is lost

`python -m tests.torture`, depth {depth}, seed {seed}; [docs/torture.md](../../docs/torture.md) tells what
the rigs do. Messages lost, altered, out of order; opens refused or hung; failed syncs that nobody was told
of. **Bold** is what the
system's own documents promise not to happen.

{table(results)}

## How each was opened

{opened}

## All counts

{_details(results)}

## An example of each

{examples}
"""
    (out / "torture.md").write_text(text)


if __name__ == "__main__":
    sys.exit(main())
