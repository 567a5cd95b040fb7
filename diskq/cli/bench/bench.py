# `diskq bench`: what this machine and this disk can do, and what diskq does on them. Law: everything is
# measured in each round, in random order, so that other load affects all of it alike; a report is a median
# with its spread; no file is left, however the run ends.

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from diskq.cli.bench.works import ENGINES, WORKS, Measured, run_engine
from diskq.cli.core import units
from diskq.cli.core.directories import check_directory, remove_directory
from diskq.cli.core.interrupts import run_async
from diskq.cli.core.parsing import Commands, UsageError, add_command
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import note, say, show_table, shown, status
from diskq.distribution import DISTRIBUTION
from diskq.tools.disk_limits import (
    DiskLimits,
    Mount,
    Spread,
    measure_limits,
    mount_of,
    quantile,
    spread_of,
    warnings_of,
)

__all__ = ["add_parser"]

ABOUT = """
Measure this machine and the disk that PATH is on, in a new directory that is removed at the end: first the
limits (writing, syncing, reading, copying in memory), then diskq's engines, in about 20 seconds.

send        one task, a message at a time, into the page cache
send_many   one task, in batches of up to 500 messages
receive     one task, a message at a time; jobs (a priority store): each acknowledged
synced      1, 16 or 64 tasks, each waiting for stable storage before it sends again: they share syncs

Figures are medians of several rounds, in random order; ± is half of what lies between the slowest and the
fastest round. CPU is all that this process uses for a message, on all cores. Other load on the machine
is in the figures: compare those of one run. A warning says when the disk does not look like a real one.
"""

EXAMPLES = """
  diskq bench
  diskq bench /var/lib/messages
  diskq bench /mnt/nvme --size 4KiB --json > nvme.json
  diskq bench --quick
"""

_SIZES = (100, 1024)
_PREFIX = ".diskq-bench-"


class Scale(NamedTuple):
    """How long a run takes."""

    rounds: int
    seconds: float
    """For each piece of work in a round."""
    file_size: int
    sync_seconds: float


FULL = Scale(rounds=5, seconds=0.05, file_size=64 * 1024 * 1024, sync_seconds=0.4)
QUICK = Scale(rounds=3, seconds=0.02, file_size=16 * 1024 * 1024, sync_seconds=0.1)

Case = tuple[str, int]
"""An engine, and the size of a body."""


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, "bench", "measure the speed on this disk", ABOUT, EXAMPLES)
    parser.add_argument(
        "path", metavar="PATH", nargs="?", default=".", help="a directory on the disk (default: this one)"
    )
    parser.add_argument(
        "--size",
        type=units.size,
        action="append",
        metavar="SIZE",
        dest="sizes",
        help="of a message; may be given several times (default: 100 and 1KiB)",
    )
    parser.add_flag("--quick", help="in about 3 seconds, and less exact (default: about 20 seconds)")
    parser.add_json("one object; seconds, bytes, messages per second")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    check_directory(args.path)
    sizes = tuple(dict.fromkeys(args.sizes or (_SIZES[:1] if args.quick else _SIZES)))
    if any(not 1 <= size <= _LARGEST for size in sizes):
        raise UsageError(f"--size is 1 to {units.show_size(_LARGEST)}")
    for name in sorted(os.listdir(args.path)):
        if name.startswith(_PREFIX):
            note(f"{shown(os.path.join(args.path, name))} is from a killed run, or one at work: remove it")
    bench = _Bench(QUICK if args.quick else FULL, sizes)
    load = os.getloadavg()[0]
    root = tempfile.mkdtemp(prefix=_PREFIX, dir=args.path)
    try:
        with status("measuring") as say:
            bench.measure(root, say)
    finally:
        remove_directory(root)
    mount = mount_of(args.path)
    syncs = bench.syncs
    warnings = warnings_of(mount, quantile(syncs, 0.5))
    cores = os.cpu_count() or 1
    if load > cores / 2:
        warnings.append(f"this machine was busy before the run: a load of {load:.1f} on {cores} cores")
    if args.json:
        stdout.print(json.dumps(_as_json(args, bench, mount, load, warnings), indent=2))
    else:
        _show(args, bench, mount, load)
    for warning in warnings:
        note(f"warning: {warning}")


_LARGEST = 16 * 1024 * 1024


class _Bench:
    """The measurements so far."""

    def __init__(self, scale: Scale, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.limits: list[DiskLimits] = []
        self.readings: dict[tuple[Case, str], list[Measured]] = {}
        self._scale = scale

    def measure(self, root: str, say: Callable[[str], None]) -> None:
        """Run all rounds in the directory `root`, which is emptied after each piece of work."""
        cases: list[Case | None] = [(engine, size) for engine in ENGINES for size in self.sizes]
        for number in range(self._scale.rounds):
            in_order = [*cases, None]
            random.shuffle(in_order)
            for case in in_order:
                what = "the disk" if case is None else f"{case[0]}, {units.show_size(case[1])}"
                say(f"round {number + 1} of {self._scale.rounds}: {what}")
                place = os.path.join(root, "work")
                os.mkdir(place)
                if case is None:
                    self.limits.append(
                        measure_limits(place, size=self._scale.file_size, seconds=self._scale.sync_seconds)
                    )
                else:
                    for work, reading in run_async(
                        run_engine, case[0], place, case[1], self._scale.seconds
                    ).items():
                        self.readings.setdefault((case, work), []).append(reading)
                remove_directory(place)

    @property
    def syncs(self) -> list[float]:
        return [each for limits in self.limits for each in limits.syncs]

    def limit(self, name: str) -> Spread:
        return spread_of([getattr(limits, name) for limits in self.limits])

    def sync_quantile(self, part: float) -> Spread:
        return spread_of([quantile(limits.syncs, part) for limits in self.limits])

    def rate(self, case: Case, work: str) -> Spread:
        return spread_of([reading.rate for reading in self.readings[case, work]])

    def cpu(self, case: Case, work: str) -> Spread:
        return spread_of([reading.cpu for reading in self.readings[case, work]])


# --- the report -----------------------------------------------------------------------------------

_LIMITS = {
    "memcpy": "copy in memory",
    "write": "write, page cache",
    "write_synced": "write, synced",
    "read": "read, page cache",
}
_QUANTILES = {"p50": 0.5, "p99": 0.99}


def _machine() -> dict[str, Any]:
    return {
        "diskq": version(DISTRIBUTION),
        "python": platform.python_version(),
        "trio": version("trio"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
    }


def _as_json(
    args: argparse.Namespace, bench: _Bench, mount: Mount, load: float, warnings: Sequence[str]
) -> dict[str, Any]:
    syncs = {f"fdatasync_{name}": bench.sync_quantile(part)._asdict() for name, part in _QUANTILES.items()}
    return {
        "path": os.path.realpath(args.path),
        "file_system": mount.kind,
        "mount": mount.path,
        **_machine(),
        "load": round(load, 2),
        "rounds": len(bench.limits),
        "warnings": list(warnings),
        "limits": {name: bench.limit(name)._asdict() for name in _LIMITS} | syncs,
        "rates": [
            {
                "engine": engine,
                "size": size,
                "work": work.split(" by ")[0],
                "producers": int(work.partition(" by ")[2] or 1),
                "rate": bench.rate((engine, size), work)._asdict(),
                "cpu": bench.cpu((engine, size), work)._asdict(),
            }
            for engine in ENGINES
            for size in bench.sizes
            for work in WORKS
        ],
    }


def _show(args: argparse.Namespace, bench: _Bench, mount: Mount, load: float) -> None:
    machine = _machine()
    facts = {
        "disk": f"{shown(os.path.realpath(args.path))} ({mount.kind})",
        "machine": f"{machine['system']}, {machine['cores']} cores, load {load:.1f}",
        "versions": f"diskq {machine['diskq']}, Python {machine['python']}, trio {machine['trio']}",
    }
    for what, value in facts.items():
        say(f"{what:14}{value}")
    stdout.print()
    rows = [
        (text, _bytes(bench.limit(name).median), _swing(bench.limit(name))) for name, text in _LIMITS.items()
    ]
    for name, part in _QUANTILES.items():
        found = bench.sync_quantile(part)
        rows.append((f"fdatasync, {name}", units.show_duration(round(found.median * 1e9)), _swing(found)))
    show_table(["what is possible", "median", "±"], rows, numeric=["median", "±"])
    stdout.print()
    columns, numeric = ["engine", "work"], []
    for size in bench.sizes:
        numeric += [f"{_short(size)}: a second", f"{_short(size)} ±", f"{_short(size)} CPU"]
    show_table([*columns, *numeric], [_row(bench, e, w) for e in ENGINES for w in WORKS], numeric=numeric)


def _row(bench: _Bench, engine: str, work: str) -> tuple[str, ...]:
    cells = [engine, work]
    for size in bench.sizes:
        rate, cpu = bench.rate((engine, size), work), bench.cpu((engine, size), work)
        cells += [_number(rate.median), _swing(rate), f"{float(f'{cpu.median * 1e6:.2g}'):g} µs"]
    return tuple(cells)


def _short(size: int) -> str:
    return units.show_size(size).replace(".0 ", " ")


def _bytes(rate: float) -> str:
    return f"{units.show_size(round(rate))}/s"


def _number(value: float) -> str:
    """Return it with three significant digits."""
    return f"{float(f'{value:.3g}'):,.0f}"


def _swing(spread: Spread) -> str:
    """Return half the distance between the slowest and the fastest round, as a part of the median."""
    return f"{(spread.high - spread.low) / 2 / spread.median:.0%}"
