# Copying into a stream, round by round. Law: a round is planned, the plan is durable, then its messages are
# written under its number; so it is in the stream once, and a run that is killed at any point is resumed.
#
# A streaming query is not used: its checkpoint is not synced, and after a power cut it may be older than the
# stream; a new batch under an old number would then count as committed, whatever its content. The plan of a
# round is in the stream itself (diskq/engine/stream/copy_job.py), synced before it is carried out.
#
# A round is a batch: planned by partition and offset, read without a shuffle, appended in the order of its
# tasks. So the messages of a partition are written in their order.

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from diskq.engine.stream.copy_job import Job, check_job_name
from diskq.engine.stream.settings import settings_at
from diskq.options import StreamOptions
from diskq.spark.errors import DiskqSparkError, with_codes
from diskq.spark.layouts.journal import JournalLayout
from diskq.spark.layouts.layout import Layout
from diskq.spark.layouts.queue import log_at
from diskq.spark.layouts.stream import TripletLayout
from diskq.spark.offsets import share
from diskq.spark.options import name_of
from diskq.spark.patience import LOCK_TIMEOUT, is_repeated, open_patiently
from diskq.spark.pipelines.progress import PipelineProgress, Watch, watched

__all__ = [
    "LOCK_TIMEOUT",
    "MOST_IN_A_ROUND",
    "Copied",
    "JobRun",
    "Part",
    "Places",
    "Ranges",
    "Source",
    "carry_out",
]

MOST_IN_A_ROUND = 2_000_000

Part = tuple[str, int]
"""A source's name, and one of its partitions."""
Places = Mapping[Part, int]
"""The next offset of each part."""
Ranges = Mapping[Part, tuple[int, int]]
"""The first offset and the end, of each partition in a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The result of one run."""

    messages: int
    """Written in this run."""
    read: int
    """Read for it: more, if duplicates were dropped."""
    rounds: int
    was_resumed: bool
    """True if it continued an earlier run."""
    seconds: float


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of the job named `job` of the stream `into`, with the caller's arguments."""

    spark: SparkSession
    into: str
    job: str
    follow: float | None
    """Seconds between looks for more; None: end when nothing is left."""
    most: int
    """Messages in a round."""
    wait: float
    """Seconds to wait for `into` while another process has it."""
    options: Mapping[str, Any] | None
    """Options of the reads."""
    watch: Watch | None

    def make(self, partition_count: int | None) -> int:
        """Create the stream `into`, or prepare one that only a peer has written. Returns its partition count.

        Raises DISKQ_OPTION if it exists with another count than `partition_count`, DISKQ_LOCKED after
        `wait` seconds.
        """
        into = self.into
        with with_codes():
            settings = settings_at(into)
            if settings is None or not os.path.isdir(os.path.join(into, ".diskq")):
                os.makedirs(into, exist_ok=True)
                options = StreamOptions(partition_count=partition_count)  # of a new stream
                open_patiently(into, options, timeout=self.wait).close()
                settings = settings_at(into)
                assert settings is not None
        if partition_count not in (None, settings.partitions):
            raise DiskqSparkError(
                "DISKQ_OPTION",
                f"{into} has {settings.partitions} partitions, not {partition_count}: "
                "give it a new directory",
            )
        return settings.partitions

    def append(self, frame: DataFrame, number: int) -> int:
        """Append the rows of `frame`, which has a sink's columns, once, as the round of this number.

        Returns the number of rows.
        """
        counted = Observation()
        (
            frame.observe(counted, F.count(F.lit(1)).alias("rows"))
            .write.format("diskq")
            .mode("append")
            .option("txnAppId", self.job)
            .option("txnVersion", number)
            .option("wait", f"{max(1, round(self.wait))}s")
            .save(self.into)
        )
        rows: int = counted.get["rows"]
        return rows


# --- where messages come from ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceStream:
    """A stream that is read, or a journal."""

    path: str
    layout: Layout

    @classmethod
    def opened(cls, path: str, *, may_be_journal: bool = False) -> SourceStream:
        """Open the stream, or journal, at `path`. Raises DiskqSparkError if there is none."""
        with with_codes():
            if may_be_journal and log_at(path) == "sej":
                return cls(path, JournalLayout(path))
            return cls(path, TripletLayout(path))

    @property
    def name(self) -> str:
        return name_of(os.path.abspath(self.path))


class Source:
    """The streams that a job copies: what is in them, and how it is read."""

    def __init__(
        self,
        paths: Iterable[str],
        find: Callable[[], Iterable[str]] | None = None,
        *,
        may_be_journals: bool = False,
    ) -> None:
        """`find` returns the paths of all sources between two rounds. Raises DiskqSparkError."""
        self._find = find
        self._may_be_journals = may_be_journals
        streams = [SourceStream.opened(path, may_be_journal=may_be_journals) for path in paths]
        self.streams = {stream.name: stream for stream in streams}
        if len(self.streams) < len(streams):
            names = sorted(stream.name for stream in streams)
            twice = next(name for name in names if names.count(name) > 1)
            raise DiskqSparkError("DISKQ_OPTION", f"two sources have the name {twice!r}: names must differ")

    def identities(self) -> dict[str, str | None]:
        """Return the ids of all sources now, which change if one is created again in its place."""
        for path in () if self._find is None else self._find():
            if name_of(path) not in self.streams:
                self.streams[name_of(path)] = SourceStream.opened(path, may_be_journal=self._may_be_journals)
        return {name: stream.layout.identity() for name, stream in self.streams.items()}

    def next_round(self, begun: Places, most: int) -> Ranges:
        """Return the ranges after these places, of up to `most` messages; empty if there are none."""
        starts: dict[Part, int] = {}
        waiting: dict[Part, int] = {}
        with with_codes():
            for name, stream in self.streams.items():
                for number, span in stream.layout.spans().items():
                    part = name, number
                    starts[part] = begun.get(part, span.first)
                    if span.next < starts[part] and stream.layout.identity() is None:
                        raise _cut(f"{stream.path}[{number}]", starts[part], span.next)
                    if span.next > starts[part]:
                        waiting[part] = span.next - starts[part]
        taken = share(most, waiting)
        return {part: (starts[part], starts[part] + count) for part, count in taken.items() if count}

    def waiting(self, begun: Places) -> int:
        """Return the number of messages that are still to be read."""
        ranges = self.next_round(begun, 2**62)
        return sum(end - start for start, end in ranges.values())

    def between(self, run: JobRun, ranges: Ranges) -> DataFrame:
        """Return these messages, with `timestampNanos`, by source, partition and offset, without a shuffle.

        Sources of one directory are one read, since each load takes time.
        """
        by_root: dict[str, dict[str, dict[int, tuple[int, int]]]] = {}
        for (name, number), between in sorted(ranges.items()):
            root = os.path.dirname(os.path.abspath(self.streams[name].path))
            by_root.setdefault(root, {}).setdefault(name, {})[number] = between
        frames = []
        for root, named in by_root.items():
            starts = {name: {n: start for n, (start, _) in parts.items()} for name, parts in named.items()}
            ends = {name: {n: end for n, (_, end) in parts.items()} for name, parts in named.items()}
            frames.append(
                run.spark.read.format("diskq")
                .option("includeTimestampNanos", True)
                .options(**(run.options or {}))
                .option("assign", json.dumps({name: list(parts) for name, parts in named.items()}))
                .option("startingOffsets", json.dumps(starts))
                .option("endingOffsets", json.dumps(ends))
                .load(root)
            )
        all_of_them = frames[0]
        for frame in frames[1:]:
            # Journals have one more column.
            all_of_them = all_of_them.unionByName(frame, allowMissingColumns=True)
        return all_of_them


def _cut(where: str, copied: int, next_offset: int) -> DiskqSparkError:
    return DiskqSparkError(
        "DISKQ_STREAM_CHANGED",
        f"{where}: offsets below {copied} were copied, and the next is {next_offset}: it was cut, or created "
        "again; give the job another name to copy it from its beginning",
    )


# --- rounds ---------------------------------------------------------------------------------------


def carry_out(
    run: JobRun,
    *,
    of: Mapping[str, Any],
    source: Source | None,
    next_round: Callable[[Places], tuple[Ranges, Mapping[str, Any]]],
    copy: Callable[[int, Ranges, Mapping[str, Any]], int],
) -> Copied:
    """Carry out the rounds of `run`, until `next_round` finds nothing; or for ever, if it follows.

    `source` reports whether a source was created again, and the lag; if None, neither is known. `of`
    describes what is copied and how: a job is resumed only with an equal one. `next_round` gets the places
    where the last one ended, and returns ranges, and what else the round needs if it is repeated. `copy`
    carries out a round, given its number, and returns how many messages it has written. A round that failed
    with DISKQ_WORKER_LATE is repeated if the run follows, as the next run would.
    """
    into, job, follow, watch = run.into, run.job, run.follow, run.watch
    began = time.monotonic()
    check_job_name(job)
    rounds = messages = read = 0
    with with_codes():
        kept = Job(into, job)
    with kept:
        plan = kept.plan
        was_resumed = plan is not None
        known = dict((plan or {}).get("identities", {}))
        if plan is not None and plan["of"] != dict(of):
            raise DiskqSparkError(
                "DISKQ_OPTION",
                f"job {job!r} of {into} is another one ({_described(plan['of'])}): choose another name",
            )
        places = {} if plan is None else _places(plan["places"])
        while True:
            if plan is None or plan["is_done"]:
                found = {} if source is None else source.identities()
                _check_identities(into, job, known, found)
                known |= found
                ranges, more = next_round(places)
                if not ranges:
                    if follow is None:
                        break
                    time.sleep(follow)
                    continue
                plan = {
                    "of": dict(of),
                    "identities": known,
                    "round": 0 if plan is None else plan["round"] + 1,
                    "ranges": [[*part, *between] for part, between in ranges.items()],
                    "more": dict(more),
                    "is_done": False,
                    "places": _as_list(places),
                }
                with with_codes():
                    kept.keep(plan)
            ranges = {(name, number): (start, end) for name, number, start, end in plan["ranges"]}
            before = _progress(read, rounds, began, source.waiting(places) if source and watch else None)
            try:
                with watched(run.spark, watch, before):
                    messages += copy(plan["round"], ranges, plan["more"])
            except Exception as failure:
                if is_repeated(failure, follow):
                    continue
                raise
            rounds += 1
            read += sum(end - start for start, end in ranges.values())
            places = {**places, **{part: end for part, (_, end) in ranges.items()}}
            plan = {**plan, "is_done": True, "places": _as_list(places)}
            with with_codes():
                kept.keep(plan)
            if watch is not None:
                watch(_progress(read, rounds, began, source.waiting(places) if source else None))
    return Copied(
        messages=messages,
        read=read,
        rounds=rounds,
        was_resumed=was_resumed,
        seconds=time.monotonic() - began,
    )


def _progress(read: int, rounds: int, began: float, lag: int | None) -> PipelineProgress:
    rate = read / max(time.monotonic() - began, 1e-6)
    return PipelineProgress(messages=read, batches=rounds, rate=rate, lag=lag)


def _check_identities(
    into: str, job: str, known: Mapping[str, str | None], found: Mapping[str, str | None]
) -> None:
    for name, identity in found.items():
        if identity is not None and known.get(name) not in (None, identity):
            raise DiskqSparkError(
                "DISKQ_STREAM_CHANGED",
                f"job {job!r} of {into} has copied stream {known[name]}, and {name} is now {identity}: it "
                "was created again; give the job another name to copy it from its beginning",
            )


def _as_list(places: Places) -> list[list[Any]]:
    return [[*part, offset] for part, offset in sorted(places.items())]


def _places(kept: list[list[Any]]) -> dict[Part, int]:
    return {(name, number): offset for name, number, offset in kept}


def _described(of: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in of.items())
