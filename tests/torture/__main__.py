"""Everything that can go wrong, done to diskq and to its peers: python -m tests.torture

Each system puts numbered messages as durably as it can, meets an accident, and is opened again: what was
acknowledged and is missing, and what came and nobody put, is counted. docs/torture.md tells what each rig
does. Ends with 1 where one of ours breaks a promise. The peers are the extra `bench`, and go-diskqueue
where Go is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import commit, describe
from tests.torture.judging import Tally
from tests.torture.reporting import Measured, Results, broken, by_rig, cell, load, save
from tests.torture.rigs import RIGS, Bench, RecorderError
from tests.torture.systems import SYSTEMS, System
from tests.torture.tracing import can_trace

__all__ = ["main"]

DEPTH = 100
SHORT = 12
# The clock of a peer is not ours to set.
OURS_ALONE = frozenset({"clock"})


def _room() -> Path | None:
    room = Path("/dev/shm")
    return room if room.is_dir() else None


def _run(system: System, rig: str, depth: int, seed: int) -> Tally:
    with tempfile.TemporaryDirectory(dir=_room(), ignore_cleanup_errors=True) as scratch:
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


def _row(results: Results, system: System, depth: int, seed: int) -> Measured:
    """To be filled. What another run measured stays in it where commit, depth, seed and all are the same."""
    new = Measured(system.version(), commit(), depth, seed, describe(_room() or Path(tempfile.gettempdir())))
    old = results.get(system.name)
    results[system.name] = old if old is not None and old.is_of_one_run_with(new) else new
    return results[system.name]


def _line(system: System, rig: str, tally: Tally, faults: list[str], seconds: float) -> str:
    verdict = f"BROKEN: {', '.join(faults)}" if faults else tally.note or cell(tally)
    return f"{system.name:22}{rig:8}{tally.cases:>7,} cases {seconds:>7.1f} s  {verdict}"


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
        "--out",
        type=Path,
        metavar="DIRECTORY",
        help="torture.md and torture.json there; the rows of other systems that are in them are kept",
    )
    parser.add_argument(
        "--render",
        type=Path,
        metavar="DIRECTORY",
        help="run nothing: write torture.md of the torture.json there",
    )
    args = parser.parse_args(argv)
    if args.render is not None:
        results = load(args.render)
        if not results:
            parser.error(f"{args.render}: no torture.json with a result is there")
        save(args.render, results)
        return 0
    if not can_trace():
        parser.error("strace is not here, or may not attach to a process of ours")
    depth = args.depth or (SHORT if args.short else DEPTH)
    systems, rigs = _wanted(args.only)
    results = load(args.out) if args.out else {}
    is_broken = False
    for system in systems:
        if not system.is_there():
            print(f"{system.name}: not installed", flush=True)
            continue
        row = _row(results, system, depth, args.seed)
        for rig in rigs:
            if rig in OURS_ALONE and not system.is_ours:
                continue
            began = time.monotonic()
            tally = row.rigs[rig] = _run(system, rig, depth, args.seed)
            faults = broken(system, rig, tally)
            is_broken = is_broken or bool(system.is_ours and (faults or tally.note))
            print(_line(system, rig, tally, faults, time.monotonic() - began), flush=True)
            for example in tally.examples if faults else []:
                print(f"    {example}")
            if args.out:
                save(args.out, results)
    print("\n" + by_rig(results))
    return 1 if is_broken else 0


if __name__ == "__main__":
    sys.exit(main())
