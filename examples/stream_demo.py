"""A year of departures as a stream: with their airports as keys and their departure times, replayed.

The rows are in the order of the schedule, so their departure times go back and forth: a flight that
left four hours late comes before one that left on time. The stream keeps offsets and times apart, and
a lookup by time is exact nevertheless.

    write     a producer sends each row to its airport's partition
    look up   the first departure after 4 July 2013, 06:00 New York time, in each partition; compared
              with the result of reading every row from the start
    replay    a consumer of the group `replay` reads from there on, and commits what it has processed;
              it is killed (SIGKILL) in the middle, and a second process resumes the group
    check     every row from there on was processed, unaltered
"""

from __future__ import annotations

import csv
import json
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from statistics import median
from zlib import crc32
from zoneinfo import ZoneInfo

import trio
from flights import DemoError
from screen import Plain, rate
from victim import live, report

import diskq

NEW_YORK = ZoneInfo("America/New_York")
MOMENT = datetime(2013, 7, 4, 6, 0, tzinfo=NEW_YORK)
PARTITIONS = 3
GROUP = "replay"
BATCH = 500
SLOW = 0.002  # seconds that the first process takes for a batch
COLUMNS = {"year", "month", "day", "dep_time", "sched_dep_time", "origin"}
RECORD = struct.Struct("<IQI")  # a message in a consumer's record: partition, offset, checksum


@dataclass(frozen=True)
class Job:
    """The task of one process."""

    directory: str
    path: str
    start_ns: int
    work: float
    """Seconds that a batch takes."""
    run: int


# --- writing --------------------------------------------------------------------------------------


def rows_of(source: Path, most: int | None) -> Iterator[tuple[str, bytes, datetime]]:
    """Yield airport, row and departure time of each flight, in the order of the file."""
    with source.open(newline="") as file:
        lines = iter(file)
        names = next(csv.reader(lines), list[str]())
        if not set(names) >= COLUMNS:
            raise DemoError(f"{source} has no columns {', '.join(sorted(COLUMNS))}: try --only queue")
        places = {name: names.index(name) for name in COLUMNS}
        for line in islice(lines, most):
            fields = line.split(",")
            yield fields[places["origin"]], line.rstrip("\r\n").encode(), departure(fields, places)


def departure(fields: list[str], places: dict[str, int]) -> datetime:
    """Return the departure time; for a cancelled flight, the scheduled one."""
    year, month, day = (int(fields[places[name]]) for name in ("year", "month", "day"))
    actual = fields[places["dep_time"]]
    scheduled = int(fields[places["sched_dep_time"]])
    hours, minutes = divmod(int(actual) if actual not in ("", "NA") else scheduled, 100)
    left = datetime(year, month, day, tzinfo=NEW_YORK) + timedelta(hours=hours, minutes=minutes)
    # Six hours or more before the scheduled time means the next day: it left after midnight.
    return left + timedelta(days=1) if hours * 100 + minutes < scheduled - 600 else left


async def write(source: Path, most: int | None, path: Path) -> int:
    options = diskq.StreamOptions(partition_count=PARTITIONS, segment_size=4 * 1024 * 1024)
    written = 0
    async with diskq.open_producer(path, options=options) as producer:
        rows = rows_of(source, most)
        while batch := list(islice(rows, BATCH)):
            await producer.send_many(batch)
            written += len(batch)
        await producer.sync()
    return written


# --- reading --------------------------------------------------------------------------------------


async def look_up(path: Path) -> tuple[dict[int, int | None], float]:
    """Return the first departure after the moment in each partition, and the seconds of a lookup."""
    found: dict[int, int | None] = {}
    took: list[float] = []
    for partition in list(range(PARTITIONS)) * 20:
        began = time.perf_counter()
        found[partition] = await diskq.offset_after(path, partition, MOMENT)
        took.append(time.perf_counter() - began)
    return found, median(took)


@dataclass
class Facts:
    """The results of reading every message from the start."""

    first_after: dict[int, int | None]
    steps_back: int
    checksums: dict[tuple[int, int], int]
    """Of each message from the first one after the moment on, by partition and offset."""


async def read_all(path: Path) -> Facts:
    facts = Facts(dict.fromkeys(range(PARTITIONS)), 0, {})
    last: dict[int, datetime] = {}
    async with diskq.open_consumer(path, end="close") as consumer:
        async for message in consumer:
            partition, when = message.partition, message.timestamp
            facts.steps_back += when < last.get(partition, when)
            last[partition] = when
            if facts.first_after[partition] is None and when > MOMENT:
                facts.first_after[partition] = message.offset
            if facts.first_after[partition] is not None:
                facts.checksums[partition, message.offset] = crc32(message.value)
    return facts


async def replay(job: Job) -> None:
    """Process messages, record them, then commit: in the process that is killed."""
    start = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=job.start_ns // 1000)
    began = time.perf_counter()
    async with diskq.open_consumer(job.path, group=GROUP, start=start, end="close") as consumer:
        report(opened_in=time.perf_counter() - began)
        with notes(job).open("wb", buffering=0) as ledger:
            while True:
                try:
                    async with consumer.receiving(BATCH) as messages:
                        await trio.sleep(job.work)
                        ledger.write(
                            b"".join(RECORD.pack(m.partition, m.offset, crc32(m.value)) for m in messages)
                        )
                except trio.EndOfChannel:
                    break


def notes(job: Job) -> Path:
    return Path(job.directory, f"replayed-{job.run}")


def noted(job: Job) -> int:
    return sum(path.stat().st_size // RECORD.size for path in Path(job.directory).glob("replayed-*"))


def replayed(directory: Path) -> Iterator[tuple[int, int, int]]:
    for path in sorted(directory.glob("replayed-*")):
        data = path.read_bytes()
        yield from RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size])


# --- all of it ------------------------------------------------------------------------------------


@dataclass
class Verdict:
    wanted: int
    missing: int
    altered: int
    again: int

    @property
    def is_good(self) -> bool:
        return not self.missing and not self.altered


def check(directory: Path, wanted: dict[tuple[int, int], int]) -> Verdict:
    """Compare every message from the moment on with every processed one."""
    missing = set(wanted)
    seen = altered = 0
    for partition, offset, checksum in replayed(directory):
        seen += 1
        altered += wanted.get((partition, offset)) != checksum
        missing.discard((partition, offset))
    return Verdict(len(wanted), len(missing), altered, seen - (len(wanted) - len(missing)) - altered)


def demo(source: Path, most: int | None, directory: Path, out: Plain) -> bool:
    path = directory / "departures"
    out.title("\nThe same as a stream, looked up by time and replayed")

    began = time.perf_counter()
    written = trio.run(write, source, most, path)
    out.section(
        "write",
        f"{written:,} rows to {PARTITIONS} partitions, {rate(written, time.perf_counter() - began)}",
    )

    found, seconds = trio.run(look_up, path)
    began = time.perf_counter()
    facts = trio.run(read_all, path)
    is_exact = found == facts.first_after
    out.section(
        "look up",
        f"the first departure after {MOMENT:%d %B %Y, %H:%M} New York time, in {seconds * 1e6:.0f} µs each:",
        ", ".join(f"partition {p}: {'none' if o is None else f'offset {o:,}'}" for p, o in found.items()),
        f"reading all {written:,} rows says {'the same' if is_exact else 'OTHERWISE'}, "
        f"in {(time.perf_counter() - began) * 1000:.0f} ms; {facts.steps_back:,} times the time went back",
    )
    if not facts.checksums:
        out.verdict("There is nothing after that moment to replay.", is_good=is_exact)
        return is_exact

    start_ns = int(MOMENT.timestamp()) * 1_000_000_000
    job = Job(str(directory), str(path), start_ns, SLOW, run=1)
    half = len(facts.checksums) // 2
    script = str(Path(__file__))
    with out.watching(len(facts.checksums), "processed") as show:
        first = live(script, json.dumps(asdict(job)), lambda: (noted(job),), show, lambda: noted(job) >= half)
        before = noted(job)
        out.section(
            "replay 1", f"{before:,} rows, {rate(before, first.seconds)}; killed (SIGKILL) in the middle"
        )
        job = replace(job, work=0, run=2)
        second = live(script, json.dumps(asdict(job)), lambda: (noted(job),), show)
        after = noted(job) - before
        out.section("replay 2", f"the group resumed, {after:,} rows, {rate(after, second.seconds)}")

    verdict = check(directory, facts.checksums)
    arrived = verdict.wanted - verdict.missing
    out.section(
        "check",
        f"{arrived:,} of {verdict.wanted:,} rows: {verdict.missing:,} missing, {verdict.altered:,} altered",
        f"{verdict.again:,} rows came again: what was not committed when the process was killed",
    )
    is_good = verdict.is_good and is_exact
    if is_good:
        out.verdict("The lookup was exact, and every row from there on arrived, unaltered.", is_good=True)
    else:
        out.verdict("SOMETHING IS WRONG. This is a bug in diskq: please report it.", is_good=False)
    return is_good


if __name__ == "__main__":
    trio.run(replay, Job(**json.loads(sys.argv[2])))
