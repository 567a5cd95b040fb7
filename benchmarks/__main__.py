"""Measure diskq beside its peers: all benchmarks, and one report of them; or those that are named."""

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
    bench_durable,
    bench_fsync,
    bench_hub,
    bench_journal,
    bench_loops,
    bench_priority,
    bench_queue,
    bench_spark,
    bench_spool,
    bench_stream,
    bench_sweep,
    bench_table,
    bench_threads,
    bench_top,
    bench_verify,
    harness,
    machine,
    summary,
)
from benchmarks.compare import compare
from benchmarks.floors import Section
from benchmarks.renamed import MEASURED
from benchmarks.report import Report
from benchmarks.spark_works import SparkWork

ROOT = Path(__file__).parent.parent
BENCHMARKS: dict[str, ModuleType] = {
    "sweep": bench_sweep,
    "queue": bench_queue,
    "stream": bench_stream,
    "journal": bench_journal,
    "spool": bench_spool,
    "priority": bench_priority,
    "hub": bench_hub,
    "verify": bench_verify,
    "convert": bench_convert,
    "table": bench_table,
    "spark": bench_spark,
    "durable": bench_durable,
    "fsync": bench_fsync,
    "loops": bench_loops,
    "threads": bench_threads,
    "top": bench_top,
}
FULL, QUICK = harness.Scale("full", 1.0), harness.Scale("quick", 0.03)
REPORT, COMPARE = "report", "compare"
RESULTS = ROOT / "benchmarks" / "results"
QUICK_RESULTS = ROOT / "build" / "bench-quick"  # a quick run takes no full one's place


def main(arguments: list[str]) -> int:
    if arguments[:1] == [COMPARE]:
        return side_by_side(arguments[1:])
    options = parse(arguments)
    missed = failed = 0
    for name in options.names or BENCHMARKS:
        if name == REPORT:
            continue
        try:
            report = measure(name, options)
        except RuntimeError as error:
            if options.names:
                raise
            failed += 1  # the others are not lost for it
            print(f"{name} failed: {error}", file=sys.stderr)
            continue
        print(report.text(), end="\n\n")
        for path in report.write(options.out) if options.out else []:
            print(f"wrote {path}", flush=True)
        missed += len(report.missed)
        failed += sum(" failed: " in result.missing for result in report.results)
    if options.out and (not options.names or REPORT in options.names):
        for path in summary.write(options.out):
            print(f"wrote {path}")
    return 1 if failed or (options.check and missed) else 0


def measure(name: str, options: argparse.Namespace) -> Report:
    benchmark, scale = BENCHMARKS[name], QUICK if options.quick else FULL
    rounds = options.rounds or (1 if options.quick else benchmark.ROUNDS)
    sections = (
        getattr(benchmark, "QUICK_SECTIONS", benchmark.SECTIONS) if options.quick else benchmark.SECTIONS
    )
    about = {
        "benchmark": name,
        "scale": scale.name,
        "measured": MEASURED,
        "rounds": rounds,
        "seed": options.seed,
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": machine.commit(),
        "machine": machine.describe(options.dir),
        "load_before": machine.load(),
    }
    measurements = benchmark.measurements(scale)
    took: dict[str, float] = {}
    try:
        results = harness.run(
            chosen(sections, options.only),
            measurements,
            rounds=rounds,
            directory=options.dir,
            seed=options.seed,
            progress=show,
            goes_on=not options.names,  # a whole run is not lost for one measurement
            took=took,
        )
    finally:
        SparkWork.stop()
    show("")
    about |= {
        "load_after": machine.load(),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": machine.versions() | _go_versions(measurements.values()),
        "took": {name: round(seconds, 1) for name, seconds in took.items()},
        "measurements": {key: measurement.describe() for key, measurement in measurements.items()},
    }
    return Report(about, results)


def side_by_side(arguments: list[str]) -> int:
    description = "Compare two runs, row by row: is each new ratio within the spread of the old one?"
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {COMPARE}", description=description)
    text = "a directory of results, as --out writes them, or a commit, whose benchmarks/results are meant"
    parser.add_argument("old", metavar="OLD", help=text)
    text = "another (default: the results in the tree)"
    parser.add_argument("new", metavar="NEW", nargs="?", default=RESULTS, help=text)
    parser.add_argument("--check", action="store_true", help="exit code 1 where a row is apart")
    options = parser.parse_args(arguments)
    try:
        found = compare(options.old, options.new)
    except FileNotFoundError as error:
        parser.error(str(error))
    print(found.text())
    return 1 if options.check and (found.apart or not found.pairs) else 0


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
    text = f"of {', '.join(BENCHMARKS)}; or {REPORT}, which measures nothing (default: all, and {REPORT}); "
    text += f"or {COMPARE} OLD [NEW], two directories or commits with results"
    add("names", nargs="*", metavar="BENCHMARK", help=text)
    add("--quick", action="store_true", help="a thirtieth of the work, one round, fewer points")
    add("--rounds", type=int, default=0, help="how many (default: the benchmark's own)")
    add("--only", default="", metavar="TEXT", help="sections, rows and peers with TEXT in their name")
    add("--check", action="store_true", help="exit code 1 where a floor is missed")
    text = "write JSON, Markdown and pictures into this directory (default, of all and of the report: "
    text += f"{RESULTS.relative_to(ROOT)}, or with --quick {QUICK_RESULTS.relative_to(ROOT)})"
    add("--out", type=Path, help=text)
    add("--dir", type=Path, help="where the queues live meanwhile (default: .cache in the tree)")
    add("--seed", type=int, default=random.randrange(10**6), help="of the order (default: random)")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in (*BENCHMARKS, REPORT):
            parser.error(f"no benchmark {name!r}: one of {', '.join(BENCHMARKS)}, {REPORT}")
    # A part of it takes no whole one's place.
    if options.out is None and not options.only and (not options.names or REPORT in options.names):
        options.out = QUICK_RESULTS if options.quick else RESULTS
    if options.rounds < 0:
        parser.error("--rounds is at least 1")
    if options.dir is None:
        options.dir = ROOT / ".cache"
        options.dir.mkdir(exist_ok=True)
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
