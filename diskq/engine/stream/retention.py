# Retention: complete segments are removed, the oldest first. Law: only segments at the beginning are removed,
# so there is never a hole; the active segment stays; and readers and producers are not disturbed.
#
# go-diskq's vacuum checks every segment, and may leave holes where timestamps step back. It deletes a segment
# when its oldest message is too old, although it promises to check the newest: diskq checks the newest,
# unless `age_rule` says otherwise.
#
# A message may be stamped in the future: a wrong clock, or a unit mixed up. It would keep its segment, and
# all after it, until that time comes. So such a segment has the age of its data file: when that was last
# written.

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from diskq._native.stream.codec import TripletFraming
from diskq.engine.log.timestamps import as_text
from diskq.engine.stream.files import PartitionFiles, StreamFiles, first_as, read_first
from diskq.engine.stream.segment_times import SegmentGone, SegmentTimes, framing_of
from diskq.engine.stream.time_summary import EARLIEST, fitting, read_sealed, sealed_rows
from diskq.errors import NotFoundError
from diskq.options import AgeRule
from diskq.storage.barrier import Barrier, Replacement
from diskq.storage.fs import FileSystem
from diskq.storage.state import has_state

__all__ = ["FutureSegment", "PartitionRetention", "RetentionReport", "remove_oldest", "retain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRetention:
    """What was removed from one partition."""

    partition: int
    removed: tuple[int, ...]
    """The removed segments, by their first offsets."""
    removed_bytes: int
    """Bytes of data; indexes and checksums were about a third of that more."""
    first_offset: int
    """The first offset of the partition now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FutureSegment:
    """A segment with a message that is stamped in the future: its data file says how old it is."""

    partition: int
    base: int
    """The segment's first offset."""
    timestamp_ns: int
    """The message's timestamp, in nanoseconds since 1970."""
    written_ns: int
    """When the data file was last written, in nanoseconds since 1970: the age that counts."""
    removed: bool
    """True if the segment was too old by that, and was removed."""

    def __str__(self) -> str:
        stamped, written = as_text(self.timestamp_ns), as_text(self.written_ns)
        done = "removed" if self.removed else "kept, with all after it"
        return (
            f"partition {self.partition}, segment {self.base}: a message is stamped {stamped}, "
            f"in the future; the segment has the age of its file, written {written}: "
            f"{done}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionReport:
    """What was removed from a stream."""

    partitions: tuple[PartitionRetention, ...]
    """Only partitions from which something was removed."""
    from_future: tuple[FutureSegment, ...] = ()
    """The segments whose age is that of their file, because a message in them is stamped in the future."""

    @property
    def segments(self) -> int:
        return sum(len(partition.removed) for partition in self.partitions)

    @property
    def removed_bytes(self) -> int:
        return sum(partition.removed_bytes for partition in self.partitions)


def retain(
    fs: FileSystem,
    files: StreamFiles,
    *,
    now_ns: int,
    max_bytes: int | None = None,
    max_age_ns: int | None = None,
    age_rule: AgeRule = "newest",
    keep_from: Mapping[int, int] | None = None,
    dry_run: bool = False,
) -> RetentionReport:
    """Remove the oldest complete segments that exceed the bounds, from every partition.

    Of each partition's complete segments the oldest are removed while their data is together larger than
    `max_bytes`, or while the newest message in them (by `age_rule` the oldest: the first) is older than
    `max_age_ns` at the moment `now_ns`. If that message is stamped later than `now_ns`, the time at which the
    data file was last written counts, and the report says so. None: no such bound. A segment that has offset
    `keep_from[partition]` or a later one stays, and so do the segments after it. A segment whose timestamps
    cannot be read has no age. With `dry_run` nothing is removed, and the report says what would be.

    The caller needs no lock: a producer, readers, and other such calls may run at the same time. Files that
    an earlier, interrupted call has left are removed as well. Removals are not synced: after a power cut some
    files may be back, and recovery knows. Raises NotFoundError, UnsupportedFormatError and OSError.
    """
    framing = framing_of(fs, files)
    reports: list[PartitionRetention] = []
    from_future: list[FutureSegment] = []
    for index in files.partitions():
        partition = _RetainedPartition(fs, files.partition(index), framing)
        kept = keep_from.get(index) if keep_from is not None else None
        limit = None if max_age_ns is None else AgeLimit(now_ns, max_age_ns, age_rule)
        try:
            report = partition.retain(max_bytes, limit, kept, dry_run=dry_run)
        except NotFoundError:
            continue  # the whole partition was removed meanwhile
        if report.removed:
            reports.append(report)
        from_future += partition.from_future
    return RetentionReport(partitions=tuple(reports), from_future=tuple(from_future))


def remove_oldest(
    fs: FileSystem, files: StreamFiles, wanted: int, *, keep_from: Mapping[int, int] | None = None
) -> RetentionReport:
    """Remove complete segments, the ones of all partitions that were written first, until enough is free.

    `wanted` are bytes on the disk: indexes and checksums count as well. Otherwise as `retain`.
    """
    framing = framing_of(fs, files)
    partitions = {
        index: _RetainedPartition(fs, files.partition(index), framing) for index in files.partitions()
    }
    kept = keep_from or {}
    oldest = [p.oldest(index, kept.get(index)) for index, p in partitions.items()]
    removed: dict[int, list[int]] = {}
    freed = 0
    for _, index, base, size in heapq.merge(*oldest):
        if freed >= wanted:
            break
        removed.setdefault(index, []).append(base)
        freed += size
    reports = (partitions[index].remove_first(bases) for index, bases in sorted(removed.items()))
    return RetentionReport(partitions=tuple(reports))


class AgeLimit(NamedTuple):
    """How old a segment may be."""

    now_ns: int
    max_age_ns: int
    rule: AgeRule


class _RetainedPartition:
    def __init__(self, fs: FileSystem, files: PartitionFiles, framing: Callable[[], TripletFraming]) -> None:
        self._fs = fs
        self._files = files
        self._framing = framing
        self.from_future: list[FutureSegment] = []
        """The segments at which `retain` looked that have a message stamped in the future."""

    def retain(
        self, max_bytes: int | None, limit: AgeLimit | None, kept: int | None, *, dry_run: bool
    ) -> PartitionRetention:
        bases = self._files.bases()
        complete = list(pairwise(bases))
        sizes = [self._fs.size_of(self._files.data(base)) or 0 for base, _ in complete]
        total = left = sum(sizes)
        removed: list[int] = []
        rows = sealed_rows(read_sealed(self._fs, self._files)) if limit is not None else {}
        for (base, next_base), size in zip(complete, sizes, strict=True):
            if kept is not None and next_base > kept:
                break
            if not (max_bytes is not None and left > max_bytes):
                if limit is None:
                    break
                segment = SegmentTimes(self._fs, self._files, base, self._framing)
                segment.settle(next_base, fitting(rows, base, next_base, size))
                if not self._is_older(segment, limit):
                    break
            removed.append(base)
            left -= size
        if not dry_run:
            self._remove(bases, removed)
        return PartitionRetention(
            partition=self._files.index,
            removed=tuple(removed),
            removed_bytes=total - left,
            first_offset=bases[len(removed)] if bases else 0,
        )

    def oldest(self, index: int, kept: int | None) -> Iterator[tuple[int, int, int, int]]:
        """Yield complete segments in order: when each (or the one before it) was written, and its bytes."""
        written = 0
        for base, next_base in pairwise(self._files.bases()):
            stamp = self._fs.stamp_of(self._files.data(base))
            if stamp is None or (kept is not None and next_base > kept):
                return
            written = max(written, stamp.modified_ns)
            paths = (*self._files.segment(base), *self._files.private_files(base))
            yield written, index, base, sum(self._fs.size_of(path) or 0 for path in paths)

    def remove_first(self, removed: list[int]) -> PartitionRetention:
        """Remove these segments, which are the first of the partition."""
        bases = self._files.bases()
        size = sum(self._fs.size_of(self._files.data(base)) or 0 for base in removed)
        self._remove(bases, removed)
        return PartitionRetention(
            partition=self._files.index,
            removed=tuple(removed),
            removed_bytes=size,
            first_offset=next(base for base in bases if base > removed[-1]),
        )

    def _is_older(self, segment: SegmentTimes, limit: AgeLimit) -> bool:
        moment = limit.now_ns - limit.max_age_ns
        try:
            timestamp = segment.timestamp_of(segment.base) if limit.rule == "oldest" else None
            if timestamp is None:
                timestamp = segment.greatest()
        except SegmentGone:
            return False  # another process is removing it: the next call continues
        finally:
            segment.close()
        if timestamp <= limit.now_ns:
            return EARLIEST < timestamp < moment
        stamp = self._fs.stamp_of(self._files.data(segment.base))
        if stamp is None:
            return False
        found = FutureSegment(
            partition=self._files.index,
            base=segment.base,
            timestamp_ns=timestamp,
            written_ns=stamp.modified_ns,
            removed=stamp.modified_ns < moment,
        )
        self.from_future.append(found)
        return found.removed

    def _remove(self, bases: list[int], removed: list[int]) -> None:
        # A segment that a producer begins meanwhile is after the last one that was listed.
        leftovers = self._files.orphans(bases, before=bases[-1]) if bases else []
        paths = [
            path
            for base in removed
            for path in (*self._files.segment(base), *self._files.private_files(base))
        ]
        Barrier(replacements=self._first_noted(bases, removed), removals=(*leftovers, *paths)).execute(
            self._fs
        )

    def _first_noted(self, bases: list[int], removed: list[int]) -> tuple[Replacement, ...]:
        """Return the note for recovery, durable before anything is removed; none without a diskq producer."""
        if not removed or not has_state(self._fs, self._files.stream):
            return ()
        first = bases[len(removed)]
        return (first_as(self._files, first),) if first > read_first(self._fs, self._files) else ()
