"""How many instructions a message takes on each of the ten hottest paths: python -m benchmarks.instructions

Noise cannot move these numbers, so they are a gate: --check fails where one is more than a few percent above
what benchmarks/instructions.json has for this version of Python. Counted by valgrind's callgrind, in user
space only; what the kernel does for a message is in the benchmarks that take time.
"""

# Law: one process counts them all, as most of its time is spent on starting.

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import trio

from benchmarks.hot_paths import PATHS, mark

__all__ = ["TOLERANCE", "compare", "count", "main"]

RECORDED = Path(__file__).with_name("instructions.json")
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
TOLERANCE = 0.04
"""An increase by this share is a regression: other compilers of one family differ by about half of it."""
MESSAGES = 2000
_WARM_UP = 200

_TOTALS = re.compile(r"^totals: (\d+)$", re.MULTILINE)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit code 1 where a path has become longer")
    parser.add_argument("--record", action="store_true", help=f"write the counts into {RECORDED.name}")
    args = parser.parse_args(argv)
    if shutil.which("valgrind") is None:
        print("valgrind is not there: install it (Debian: apt-get install valgrind)", file=sys.stderr)
        return 2
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    found = count(list(PATHS))
    lines, worse = compare(found, recorded.get(VERSION, {}))
    if worse:
        # Where objects lie in memory decides how often their hashes collide: in a process of its own they lie
        # elsewhere. A path that has become longer is longer there, too.
        found |= {name: min(found[name], count([name])[name]) for name in worse}
        lines, worse = compare(found, recorded.get(VERSION, {}))
    print(*lines, sep="\n")
    if args.record:
        RECORDED.write_text(json.dumps(recorded | {VERSION: found}, indent=2) + "\n")
    elif args.check and VERSION not in recorded:
        print(f"nothing is recorded for Python {VERSION}: nothing to compare with")
    if args.check and worse:
        print(f"longer than recorded by more than {TOLERANCE:.0%}: {', '.join(worse)}", file=sys.stderr)
        return 1
    return 0


def compare(found: dict[str, int], recorded: dict[str, int]) -> tuple[list[str], list[str]]:
    """A line for each path, and the names of those that have become longer."""
    lines = [f"{'instructions a message':30}{'now':>9}{'recorded':>10}{'change':>9}"]
    worse = []
    for name, now in found.items():
        before = recorded.get(name)
        change = f"{now / before - 1:+.1%}" if before else "-"
        lines.append(f"{name:30}{now:>9,}{f'{before:,}' if before else '-':>10}{change:>9}")
        if before and now > before * (1 + TOLERANCE):
            worse.append(name)
    return lines, worse


def count(names: list[str]) -> dict[str, int]:
    """Instructions a message of each path. Raises CalledProcessError, with what valgrind said."""
    with tempfile.TemporaryDirectory() as directory:
        _run_under_callgrind(names, directory)
        # A dump for each `mark`. A path is walked twice: what came before, the first walk, what came
        # between, the second walk, which counts.
        dumps = sorted(Path(directory).glob("counts.*.*"), key=lambda path: int(path.name.rpartition(".")[2]))
        totals = [_total(dump) for dump in dumps]
    assert len(totals) > 4 * len(names), f"{len(totals)} dumps of {len(names)} paths"
    return {name: round(totals[4 * number + 3] / MESSAGES) for number, name in enumerate(names)}


def _run_under_callgrind(names: list[str], directory: str) -> None:
    command = [
        "valgrind",
        "--tool=callgrind",
        "--dump-before=getpgid",
        f"--callgrind-out-file={directory}/counts.%p",
        sys.executable,
        "-m",
        "benchmarks.instructions",
        "--inside",
        *names,
    ]
    # A hash of its own for each run would lay every dict out differently.
    surroundings = os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        done.check_returncode()


def _total(dump: Path) -> int:
    found = _TOTALS.search(dump.read_text(errors="replace"))
    return int(found[1]) if found else 0


def _inside(names: list[str]) -> None:
    """In the counted process: every path, between two marks; first a short walk, then the one that counts.

    After the short walk nothing is left to import. The garbage collector then begins each count alike,
    and has nothing to go through but what the path itself makes.
    """
    for name in names:
        for messages in (_WARM_UP, MESSAGES):
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            with tempfile.TemporaryDirectory() as directory:
                trio.run(PATHS[name], directory, messages)
    mark()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        _inside(sys.argv[2:])
    else:
        sys.exit(main())
