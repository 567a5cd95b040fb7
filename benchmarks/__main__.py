"""Measure diskq beside its peers."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

from benchmarks import (
    bench_convert,
    bench_fsync,
    bench_hub,
    bench_journal,
    bench_priority,
    bench_queue,
    bench_spark,
    bench_spool,
    bench_stream,
    bench_top,
    bench_verify,
    harness,
    machine,
)
from benchmarks.floors import Section
from benchmarks.report import Report
from benchmarks.sparkworks import SparkWork

ROOT = Path(__file__).parent.parent
BENCHMARKS: dict[str, ModuleType] = {
    "queue": bench_queue,
    "stream": bench_stream,
    "journal": bench_journal,
    "spool": bench_spool,
    "priority": bench_priority,
    "hub": bench_hub,
    "verify": bench_verify,
    "convert": bench_convert,
    "spark": bench_spark,
    "fsync": bench_fsync,
    "top": bench_top,
}
FULL, QUICK = harness.Scale("full", 1.0), harness.Scale("quick", 0.2)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    missed = 0
    for name in options.names or BENCHMARKS:
        report = measure(name, options)
        print(report.text(), end="\n\n")
        for path in report.write(options.out) if options.out else []:
            print(f"wrote {path}")
        missed += len(report.missed)
    return 1 if options.check and missed else 0


def measure(name: str, options: argparse.Namespace) -> Report:
    benchmark, scale = BENCHMARKS[name], QUICK if options.quick else FULL
    rounds = options.rounds or (3 if options.quick else benchmark.ROUNDS)
    about = {
        "benchmark": name,
        "scale": scale.name,
        "rounds": rounds,
        "seed": options.seed,
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": machine.commit(),
        "machine": machine.describe(options.dir),
        "load_before": machine.load(),
    }
    measurements = benchmark.measurements(scale)
    try:
        results = harness.run(
            chosen(benchmark.SECTIONS, options.only),
            measurements,
            rounds=rounds,
            directory=options.dir,
            seed=options.seed,
            progress=show,
        )
    finally:
        SparkWork.stop()
    show("")
    about |= {
        "load_after": machine.load(),
        "versions": machine.versions() | _go_versions(measurements.values()),
        "measurements": {key: measurement.describe() for key, measurement in measurements.items()},
    }
    return Report(about, results)


def _go_versions(measurements: Iterable[harness.Measurement]) -> dict[str, str]:
    found: dict[str, str] = {}
    for measurement in measurements:
        if isinstance(measurement, harness.GoBench):
            found |= measurement.versions
    return found


def chosen(sections: tuple[Section, ...], text: str) -> list[Section]:
    """Sections whose title holds the text, and of others the rows whose name does."""
    if not text:
        return list(sections)
    found = []
    for section in sections:
        rows = section.rows
        if text not in section.title:
            rows = tuple(row for row in rows if text in row.name or text in row.peer)
        if rows:
            found.append(replace(section, rows=rows))
    return found


def show(progress: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{progress}", end="", file=sys.stderr, flush=True)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", metavar="BENCHMARK", help=f"of {', '.join(BENCHMARKS)} (default: all)")
    add("--quick", action="store_true", help="a fifth of the work, and fewer rounds")
    add("--rounds", type=int, default=0, help="how many (default: the benchmark's own)")
    add("--only", default="", metavar="TEXT", help="sections, rows and peers with TEXT in their name")
    add("--check", action="store_true", help="exit code 1 where a floor is missed")
    add("--out", type=Path, help="write JSON, Markdown and a picture into this directory")
    add("--dir", type=Path, help="where the queues live meanwhile (default: .cache in the tree)")
    add("--seed", type=int, default=random.randrange(10**6), help="of the order (default: random)")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in BENCHMARKS:
            parser.error(f"no benchmark {name!r}: one of {', '.join(BENCHMARKS)}")
    if options.rounds < 0:
        parser.error("--rounds is at least 1")
    if options.dir is None:
        options.dir = ROOT / ".cache"
        options.dir.mkdir(exist_ok=True)
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
