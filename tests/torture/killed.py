"""Directories whose process was killed, and then damaged, or written to by another program: is anything lost?

    python -m tests.torture.killed --cases 5000 --seed 1
    python -m tests.torture.killed --seed 1 --only 'stream/three:flip:1234'

A case is a killed directory (killed_making.py) with one damage (killed_cases.py). It is verified, opened,
read, read as its peer reads it, opened again and consumed, and judged (killed_judging.py). The command ends
with 1 where one case has a fault. `--log` keeps what each of those said; `--only` runs one again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import diskq
from tests.torture.killed_cases import DAMAGES, load, make
from tests.torture.killed_judging import FAULTS, Verdict, judge
from tests.torture.killed_kinds import KINDS
from tests.torture.killed_making import TEMPLATES

__all__ = ["ids", "main"]

_HANGS = 30


def ids(names: Sequence[str], cases: int, seed: int, damages: Sequence[str]) -> Iterator[str]:
    """The cases of a run: each template in turn, each without damage first."""
    rng = random.Random(f"cases of {seed}")
    weights = [DAMAGES[name] for name in damages]
    for number in range(cases):
        name = names[number % len(names)]
        group = "none" if number < len(names) and "none" in damages else rng.choices(damages, weights)[0]
        if group.startswith("peer") and KINDS[TEMPLATES[name].kind].peer is None:
            group = "ours"
        yield f"{name}:{group}:{number}"


def _table(verdicts: Sequence[Verdict]) -> str:
    rows = dict[tuple[str, str], list[Verdict]]()
    for verdict in verdicts:
        name, group, _ = verdict.id.split(":")
        for row in ((name.split("/")[0], group), (name.split("/")[0], "all"), ("all", "all")):
            rows.setdefault(row, []).append(verdict)
    heads = ("kind", "damage", "cases", *FAULTS, "refused", "slowest")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    order = [*DAMAGES, "all"]
    for (kind, group), of in sorted(
        rows.items(), key=lambda row: (row[0][0] == "all", row[0][0], order.index(row[0][1]))
    ):
        cells = [kind, group, f"{len(of):,}"]
        for fault in FAULTS:
            cases = sum(fault in verdict.faults for verdict in of)
            total = sum(verdict.faults[fault] for verdict in of)
            cells.append(f"{total} in {cases}" if total > cases else str(cases))
        cells += [
            str(sum(bool(verdict.refused) for verdict in of)),
            f"{max(verdict.seconds for verdict in of):.2f} s",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _source() -> str:
    """A name of the code that makes the directories."""
    root = Path(diskq.__file__).parent
    told = hashlib.sha256()
    for path in [
        *sorted(root.rglob("*.py")),
        *sorted(root.rglob("*.so")),
        Path(__file__).with_name("killed_making.py"),
    ]:
        told.update(path.read_bytes())
    return told.hexdigest()[:12]


def _room() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _hung(*_: Any) -> None:
    raise TimeoutError(f"not over after {_HANGS} s")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.killed", description=__doc__)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--kind", action="append", default=[], help="a kind or a template; may be given again"
    )
    parser.add_argument("--damage", action="append", default=[], choices=list(DAMAGES))
    parser.add_argument(
        "--only", action="append", default=[], metavar="ID", help="run this case and tell all of it"
    )
    parser.add_argument("--templates", type=Path, help="the killed directories; kept (.cache/killed/CODE)")
    parser.add_argument("--log", type=Path, help="each case with a fault, as a line of JSON")
    args = parser.parse_args(argv)
    logging.disable()
    before = signal.signal(signal.SIGALRM, _hung)
    try:
        return _run(args)
    finally:
        signal.signal(signal.SIGALRM, before)
        logging.disable(logging.NOTSET)


def _run(args: argparse.Namespace) -> int:
    place = args.templates or Path(".cache/killed") / _source()
    names = [
        name for name in TEMPLATES if not args.kind or name in args.kind or name.split("/")[0] in args.kind
    ]
    wanted = args.only or list(ids(names, args.cases, args.seed, args.damage or list(DAMAGES)))
    names = sorted({case.split(":")[0] for case in wanted})
    make(names, place)
    killed = {name: load(name, place) for name in names}
    verdicts: list[Verdict] = []
    told = began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=_room()) as room:
        for number, case in enumerate(wanted):
            verdict = judge(killed[case.split(":")[0]], case, args.seed, Path(room), limit=_HANGS)
            verdicts.append(verdict)
            if args.only:
                _tell(verdict)
            elif time.monotonic() > told + 10:
                told = time.monotonic()
                count = sum(bool(each.faults) for each in verdicts)
                progress = f"{number + 1:,} of {len(wanted):,}, {count} with a fault, {told - began:.0f} s"
                print(progress, flush=True)
            if args.log and verdict.faults:
                _write_down(verdict, args.seed, args.log)
    print(_table(verdicts))
    broken = [verdict for verdict in verdicts if verdict.faults]
    if not args.only:
        _tell_examples(broken)
    return 1 if broken else 0


def _write_down(verdict: Verdict, seed: int, path: Path) -> None:
    told = {"id": verdict.id, "seed": seed, "what": verdict.what, "faults": verdict.faults}
    with path.open("a") as log:
        log.write(json.dumps({**told, "notes": verdict.notes, "refused": verdict.refused}) + "\n")


def _tell_examples(broken: Sequence[Verdict]) -> None:
    """Two of each kind, damage and fault."""
    shown = Counter[tuple[str, str, str]]()
    for verdict in broken:
        name, group, _ = verdict.id.split(":")
        row = (name.split("/")[0], group, min(verdict.faults))
        shown[row] += 1
        if shown[row] <= 2:
            print(f"{verdict.id}: {verdict.what}: {dict(verdict.faults)}")


def _tell(verdict: Verdict) -> None:
    print(f"{verdict.id}: {verdict.what}")
    for note in verdict.notes:
        print(f"    {note}")
    print(
        f"    refused: {verdict.refused or 'no'}; opened in {verdict.seconds:.3f} s; "
        f"faults: {dict(verdict.faults)}"
    )


if __name__ == "__main__":
    sys.exit(main())
