# The streaming reader. Law: the messages between two places of a checkpoint are always the same; missing ones
# are reported; and a place of another stream is never used for this one.
#
# Spark runs one of these in a process next to the driver while a query runs, asks it for the latest offsets,
# and keeps the answers as text. Tasks read the messages (batch.py). Spark's position is in its checkpoint, so
# `commit` writes nothing to the stream's files.

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from diskq.spark.batch import read_task
from diskq.spark.errors import DiskqSparkError, with_codes
from diskq.spark.layouts.layout import Losses, OffsetRange
from diskq.spark.layouts.origins import Origin
from diskq.spark.offsets import Places, StreamPlace, share
from diskq.spark.options import ReadOptions
from diskq.spark.planning import bounds_at, range_of, tasks_of, within
from diskq.spark.streams import NamedStream, open_streams

__all__ = ["DiskqStreamReader"]

Part = tuple[str, int]
"""A topic, and one of its partitions."""


class DiskqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a growing stream, from the place in the options or the checkpoint."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._losses = Losses(is_fatal=options.fail_on_data_loss)
        self._target: Places | None = None  # with Trigger.AvailableNow: the end
        self._last_batch = time.monotonic()

    # --- where it is ------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        with with_codes():
            streams = self._opened()
            self._options.starting.check_topics([stream.topic for stream in streams])
            places = {}
            for stream in streams:
                spans = stream.spans(self._options.selection)
                starts = bounds_at(
                    self._options.starting,
                    stream,
                    spans,
                    stream.layout.offset_at_or_after,
                    at_no_match=self._options.at_no_match,
                )
                places[stream.topic] = StreamPlace(stream.layout.identity(), starts)
            return Places(places).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        with with_codes():
            self._target = _Now(self._opened(), self._options).places()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with with_codes():
            now = _Now(self._opened(), self._options)
            begin = now.begin(Places.from_json(start), self._losses)
            end = now.ends(self._target, begin)
            for part in end:
                if end[part] < begin[part]:
                    self._losses.report("DISKQ_DATA_LOSS", now.fallen_back(part, begin[part]))
                    begin[part] = end[part]
            waiting = {part: end[part] - begin[part] for part in end if end[part] > begin[part]}
            taken = self._limited(waiting, limit, now)
            if taken:
                self._last_batch = time.monotonic()
            found = now.places({part: begin[part] + taken.get(part, 0) for part in end}).as_json()
            return start if found == start else found

    def _limited(self, waiting: Mapping[Part, int], limit: ReadLimit, now: _Now) -> Mapping[Part, int]:
        options = self._options
        if isinstance(limit, ReadAllAvailable):
            return waiting
        if options.min_offsets_per_trigger is not None and self._target is None:
            is_due = time.monotonic() - self._last_batch >= options.max_trigger_delay
            if sum(waiting.values()) < options.min_offsets_per_trigger and not is_due:
                return {}
        if options.max_offsets_per_trigger is not None:
            waiting = share(options.max_offsets_per_trigger, waiting)
        if options.max_bytes_per_trigger is not None:
            size = sum(now.size(part, count) for part, count in waiting.items())
            if size > options.max_bytes_per_trigger:
                waiting = share(sum(waiting.values()) * options.max_bytes_per_trigger // size, waiting)
        return waiting

    def reportLatestOffset(self) -> dict[str, Any]:
        with with_codes():
            return _Now(self._opened(), self._options).places().as_json()

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the place is in the checkpoint."""

    def stop(self) -> None:
        """Do nothing: no file is open between calls."""

    # --- what lies between ------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with with_codes():
            now = _Now(self._opened(), self._options)
            ranges = now.ranges(Places.from_json(start), Places.from_json(end), self._losses)
            return tasks_of(ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_task(self._options, self._schema, partition)

    def _opened(self) -> list[NamedStream]:
        streams = open_streams(self._options)
        for stream in streams:
            if not stream.layout.is_growing:
                raise DiskqSparkError(
                    "DISKQ_OPTION",
                    f"{stream.path}: layout {stream.kind} is for batch reads, not for streaming ones",
                )
        return streams


class _Now:
    """The streams as they are now, and the offsets of a checkpoint's places in them."""

    def __init__(self, streams: list[NamedStream], options: ReadOptions) -> None:
        self._streams = {stream.topic: stream for stream in streams}
        self._identities = {stream.topic: stream.layout.identity() for stream in streams}
        self._spans = {
            (stream.topic, number): span
            for stream in streams
            for number, span in stream.spans(options.selection).items()
        }

    def places(self, at: Mapping[Part, int] | None = None) -> Places:
        """Return these offsets, or the latest, as places for a checkpoint."""
        offsets = at or {part: span.next for part, span in self._spans.items()}
        return Places(
            {
                topic: StreamPlace(
                    identity, {number: offset for (of, number), offset in offsets.items() if of == topic}
                )
                for topic, identity in self._identities.items()
            }
        )

    def size(self, part: Part, count: int) -> int:
        """Return the approximate bytes of `count` messages of this partition."""
        span = self._spans[part]
        return span.size * count // max(1, span.next - span.first)

    def fallen_back(self, part: Part, offset: int) -> str:
        """Return the text for a checkpoint that is ahead of the partition."""
        topic, number = part
        return (
            f"{self._streams[topic].path}[{number}]: the checkpoint is at offset {offset}, and the next is "
            f"{self._spans[part].next}: messages that were read are gone, as after a power cut"
        )

    # --- from a checkpoint ------------------------------------------------------------------------

    def begin(self, start: Places, losses: Losses) -> dict[Part, int]:
        """Return where reading continues in each partition; in a new one, at its first message."""
        self._report_gone(start, losses)
        begin = {}
        for (topic, number), span in self._spans.items():
            place = self._place_in(start, topic)
            if place is not None and not self._is_same(topic, place):
                losses.report("DISKQ_STREAM_CHANGED", self._changed(topic, place))
                place = None
            known = place is not None and place.partitions.get(number)
            # What retention has removed meanwhile is not part of a batch; it is reported with the next one.
            begin[topic, number] = max(known or 0, span.first)
        return begin

    def ends(self, target: Places | None, begin: Mapping[Part, int]) -> dict[Part, int]:
        """Return the ends of the partitions now, or those of `target`, which has no new partitions."""
        ends = {part: span.next for part, span in self._spans.items()}
        if target is None:
            return ends
        for part, end in ends.items():
            topic, number = part
            place = target.streams.get(topic)
            is_in = place is not None and self._is_same(topic, place)
            wanted = place.partitions.get(number) if place is not None and is_in else None
            # A checkpoint may be ahead already, by a batch that was planned before.
            ends[part] = min(end, max(wanted or 0, begin[part]))
        return ends

    def ranges(self, start: Places, end: Places, losses: Losses) -> Iterator[OffsetRange]:
        """Yield the ranges between two places of checkpoints, as far as they exist."""
        self._report_gone(end, losses)
        for (topic, number), span in self._spans.items():
            to = self._place_in(end, topic)
            if to is None or number not in to.partitions:
                continue
            if not self._is_same(topic, to):
                losses.report("DISKQ_STREAM_CHANGED", self._changed(topic, to))
                continue
            place = self._place_in(start, topic)
            is_known = place is not None and place.identity in (None, to.identity)
            first = place.partitions.get(number, 0) if place is not None and is_known else 0
            stream = self._streams[topic]
            if first < to.partitions[number]:
                first, until = within(stream, number, first, to.partitions[number], span, losses)
                if first < until:
                    # An id is enough; otherwise the layout looks for more, for each micro-batch.
                    identity = self._identities[topic]
                    origin = None if identity is None else Origin(identity)
                    yield range_of(stream, number, first, until, span, origin)

    def _report_gone(self, places: Places, losses: Losses) -> None:
        for topic, place in places.streams.items():
            here = [topic] if topic in self._streams else list(self._streams)
            if len(here) != 1 or self._place_in(places, here[0]) is not place:
                losses.report("DISKQ_DATA_LOSS", f"stream {topic} of the checkpoint is gone")
                continue
            for number in place.partitions:
                if (here[0], number) not in self._spans:
                    path = self._streams[here[0]].path
                    losses.report("DISKQ_DATA_LOSS", f"{path}: partition {number} of the checkpoint is gone")

    def _place_in(self, places: Places, topic: str) -> StreamPlace | None:
        """Return a checkpoint's place in this stream; a single stream that was moved is found by its id."""
        if topic in places.streams or len(places.streams) != 1 or len(self._streams) != 1:
            return places.streams.get(topic)
        (place,) = places.streams.values()
        return place if place.identity is not None and place.identity == self._identities[topic] else None

    def _is_same(self, topic: str, place: StreamPlace) -> bool:
        # A stream that only a peer has written to gets its id when diskq's producer opens it.
        return place.identity is None or place.identity == self._identities[topic]

    def _changed(self, topic: str, place: StreamPlace) -> str:
        return (
            f"{self._streams[topic].path}: the checkpoint is of stream {place.identity}, and here is "
            f"{self._identities[topic] or 'one without an id'}: it was created again; "
            "begin with a new checkpointLocation"
        )
