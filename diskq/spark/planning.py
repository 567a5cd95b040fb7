# Which offsets are read, and by how many tasks. Law: every offset of the plan is in one task, tasks are about
# the same size, and a partition's tasks are in order, so that a copy without a shuffle keeps the order.
#
# "Latest" is determined when the read is loaded: a DataFrame that is planned again (for each action) then
# reads the same messages. So the data source looks once and keeps the result (`Snapshot`).

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from diskq.options import MIB
from diskq.spark.errors import DiskqSparkError
from diskq.spark.filters import Wanted
from diskq.spark.layouts.layout import Losses, OffsetRange, OffsetRanges, Span
from diskq.spark.layouts.origins import Origin
from diskq.spark.offsets import EARLIEST, LATEST, ReadBound
from diskq.spark.options import ReadOptions
from diskq.spark.streams import NamedStream, open_streams

__all__ = ["Snapshot", "Task", "bounds_at", "plan", "range_of", "split", "tasks_of", "within"]

_NANOS_IN_A_MILLISECOND = 1_000_000
# A task reads about two segments, so that a retry is short and cores are busy to the end. Each task itself
# takes some tens of milliseconds, and memory of the driver.
_BYTES_IN_A_TASK = 64 * MIB
_MOST_TASKS = 1000
# Smaller ranges share a task up to this size: it is read in the time that a task takes anyway. And up to this
# number, as each of them is opened and checked. Where the number of cores is known they share more: Spark's
# limit for files, two tasks' bytes, as long as each core has a task.
_BYTES_TOGETHER = 8 * MIB
_RANGES_TOGETHER = 64


# --- a batch --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The next offsets, by topic and partition, when the read was loaded."""

    ends: Mapping[str, Mapping[int, int]]
    pins: Mapping[str, Any]
    """What layouts need besides, by topic."""
    origins: Mapping[str, Mapping[int, Origin]]
    """What distinguishes them from others at their paths, by topic and partition."""

    @classmethod
    def taken(cls, options: ReadOptions) -> Snapshot:
        """Look at the streams now. Raises DiskqError, OSError."""
        ends, pins, origins = {}, {}, {}
        for stream in open_streams(options):
            spans = stream.spans(options.selection)
            ends[stream.topic] = {number: span.next for number, span in spans.items()}
            pins[stream.topic] = stream.layout.pin(options.min_partitions)
            origins[stream.topic] = {number: stream.layout.origin(number) for number in spans}
        return cls(ends, pins, origins)


def plan(options: ReadOptions, snapshot: Snapshot | None, wanted: Wanted) -> list[OffsetRange]:
    """Return the ranges of a batch: the wanted messages between the bounds. Raises DiskqError, OSError."""
    streams = open_streams(options, {} if snapshot is None else snapshot.pins)
    topics = [stream.topic for stream in streams]
    for bound in (options.starting, options.ending):
        bound.check_topics(topics)
    losses = Losses(is_fatal=options.fail_on_data_loss)
    ranges: list[OffsetRange] = []
    for stream in streams:
        if not wanted.topic(stream.topic):
            continue
        ranges += _ranges(options, stream, snapshot, wanted, losses)
    return ranges


def _ranges(
    options: ReadOptions, stream: NamedStream, snapshot: Snapshot | None, wanted: Wanted, losses: Losses
) -> Iterator[OffsetRange]:
    spans = stream.spans(options.selection)
    then = spans if snapshot is None else _as_of(snapshot, stream, spans, losses)
    find = stream.layout.offset_at_or_after
    starts = bounds_at(options.starting, stream, then, find, at_no_match=options.at_no_match)
    ends = bounds_at(options.ending, stream, then, find)
    for number in filter(wanted.partition, then):
        start, end = within(stream, number, starts[number], ends[number], spans[number], losses)
        start, end = wanted.offsets(start, end)
        if start < end and wanted.from_moment is not None:
            offset = find(number, wanted.from_moment)
            start = end if offset is None else max(start, offset)
        if start < end:
            origin = None if snapshot is None else snapshot.origins[stream.topic][number]
            yield from stream.layout.tasks(range_of(stream, number, start, end, spans[number], origin))


def range_of(
    stream: NamedStream, number: int, start: int, end: int, span: Span, origin: Origin | None = None
) -> OffsetRange:
    """Return offsets start:end of a partition that holds `span`, as one task.

    `origin` is that of the partition, if it is known.
    """
    size = span.size * (end - start) // max(1, span.next - span.first)
    origin = origin or stream.layout.origin(number)
    return OffsetRange(stream.topic, stream.path, stream.kind, number, start, end, size, origin=origin)


def _as_of(
    snapshot: Snapshot, stream: NamedStream, spans: Mapping[int, Span], losses: Losses
) -> dict[int, Span]:
    """Return these spans as they were when the read was loaded, without later partitions.

    A partition of another stream, which is at the path now, is reported and left out.
    """
    ends = snapshot.ends.get(stream.topic, {})
    then = {}
    for number, span in spans.items():
        if number in ends:
            wrong = stream.layout.changed(number, snapshot.origins[stream.topic][number])
            if wrong is None:
                then[number] = span._replace(next=ends[number])
            else:
                losses.report("DISKQ_STREAM_CHANGED", f"{wrong}; load it again")
    return then


# --- bounds ---------------------------------------------------------------------------------------


def bounds_at(
    bound: ReadBound,
    stream: NamedStream,
    spans: Mapping[int, Span],
    find: Callable[[int, int], int | None],
    *,
    at_no_match: str = "latest",
) -> dict[int, int]:
    """Return the offset of a bound in each of these partitions. `find` looks up a moment (ns) in one.

    If no message is that late, it is the latest offset, or with at_no_match "error" DISKQ_OPTION.
    """
    found = {}
    for number, said in bound.of(stream.topic, list(spans)).items():
        if not bound.is_time:
            found[number] = {EARLIEST: spans[number].first, LATEST: spans[number].next}.get(said, said)
            continue
        offset = find(number, said * _NANOS_IN_A_MILLISECOND)
        if offset is None or offset > spans[number].next:
            if at_no_match == "error":
                raise DiskqSparkError(
                    "DISKQ_OPTION",
                    f"{bound.option}: {stream.topic}[{number}] has no message at {said} ms or later; "
                    "startingOffsetsByTimestampStrategy=latest begins at its end",
                )
            offset = spans[number].next
        found[number] = offset
    return found


def within(
    stream: NamedStream, number: int, start: int, end: int, span: Span, losses: Losses
) -> tuple[int, int]:
    """Return start:end as far as it exists; missing offsets are reported to `losses`."""
    where = f"{stream.path}[{number}]"
    if start < span.first and start < end:
        gone = min(span.first, end) - 1
        losses.report(
            "DISKQ_DATA_LOSS",
            f"{where}: offsets {start} to {gone} are gone: retention kept those from {span.first} on",
        )
        start = span.first
    if max(start, end) > span.next:
        losses.report(
            "DISKQ_DATA_LOSS",
            f"{where}: offset {max(start, end)} does not exist: the next is {span.next}: the stream was cut, "
            "or created again, or the offset is of another one",
        )
        end = min(end, span.next)
    return start, max(start, end)


# --- the number of tasks --------------------------------------------------------------------------

Task = OffsetRange | OffsetRanges


def tasks_of(ranges: Iterable[OffsetRange], options: ReadOptions, cores: int | None = None) -> list[Task]:
    """Return the same offsets, in order, as tasks: large ranges are cut, and small ones share a task.

    `cores` is the number of tasks that run at once, if it is known: then ranges share a task up to the share
    of a core.
    """
    at_least, most = options.min_partitions, options.max_records_per_partition
    parts = split(ranges, at_least=at_least, most_records=most)
    # Whoever asks for a number of tasks gets it.
    if at_least is not None:
        return list(parts)
    together = _BYTES_TOGETHER
    if cores is not None:
        # Partitions are not quite even: with an eighth more, as many share a task as there should.
        share = sum(part.size for part in parts) * 9 // (8 * cores)
        together = max(together, min(share, 2 * _BYTES_IN_A_TASK))
    return list(_gathered(parts, together, most))


def _gathered(parts: Iterable[OffsetRange], most_bytes: int, most_records: int | None) -> Iterator[Task]:
    together: list[OffsetRange] = []
    size = records = 0
    for part in parts:
        # A store is a state, which its task holds in memory.
        is_full = (
            size + part.size > most_bytes
            or len(together) == _RANGES_TOGETHER
            or part.layout == "taskflux"
            or (most_records is not None and records + part.records > most_records)
        )
        if together and is_full:
            yield _as_task(together)
            together, size, records = [], 0, 0
        together.append(part)
        size += part.size
        records += part.records
    if together:
        yield _as_task(together)


def _as_task(ranges: list[OffsetRange]) -> Task:
    return ranges[0] if len(ranges) == 1 else OffsetRanges(tuple(ranges))


def split(
    ranges: Iterable[OffsetRange], *, at_least: int | None = None, most_records: int | None = None
) -> list[OffsetRange]:
    """Return the same offsets in ranges of about the same size; `at_least` is their minimal number."""
    ranges = [each for each in ranges if each.records > 0]
    total = sum(each.records for each in ranges)
    if not total:
        return []
    size = sum(each.size for each in ranges)
    tasks = max(at_least or 1, -(-size // max(_BYTES_IN_A_TASK, size // _MOST_TASKS)))

    def count(each: OffsetRange) -> int:
        """Return the number of tasks for this range. One with detail was divided already."""
        share = -(-each.records * tasks // total) if each.detail is None else 1
        return min(each.records, max(share, -(-each.records // (most_records or total))))

    return [part for each in ranges for part in _cut(each, count(each))]


def _cut(each: OffsetRange, count: int) -> list[OffsetRange]:
    edges = [each.start + each.records * number // count for number in range(count + 1)]
    return [
        replace(each, start=start, end=end, size=each.size * (end - start) // each.records)
        for start, end in pairwise(edges)
    ]
