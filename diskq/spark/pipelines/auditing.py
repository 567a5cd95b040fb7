# A check of a whole stream. Law: the engine checks a segment (diskq/engine/stream/audit.py); Spark only
# distributes the segments.

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from diskq.engine.stream.audit import AuditTask, SegmentAudit, audit_segment, audit_tasks
from diskq.spark.errors import with_codes
from diskq.spark.pipelines.progress import Watch, watched

__all__ = ["Audit", "audit"]

_TASKS_A_CORE = 4
_SCHEMA = """
    partition int, base long, records long, size long, first_offset long, last_offset long,
    first_timestamp_ns long, last_timestamp_ns long, checksummed long, lost long, problem string
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The result of an audit."""

    segments: tuple[SegmentAudit, ...]
    """By partition and offset, without those that retention removed meanwhile."""
    seconds: float

    @property
    def problems(self) -> tuple[SegmentAudit, ...]:
        return tuple(segment for segment in self.segments if segment.problem is not None)

    @property
    def is_clean(self) -> bool:
        return not self.problems

    @property
    def records(self) -> int:
        """Messages that can be read."""
        return sum(segment.records for segment in self.segments)

    @property
    def lost(self) -> int:
        """Messages that cannot be read."""
        return sum(segment.lost for segment in self.segments)

    @property
    def size(self) -> int:
        """Bytes of data."""
        return sum(segment.size for segment in self.segments)

    @property
    def checksummed_share(self) -> float:
        """The share of the bytes that checksums cover, from 0.0 to 1.0."""
        return sum(segment.checksummed for segment in self.segments) / self.size if self.size else 1.0


def audit(spark: SparkSession, stream: str, *, watch: Watch | None = None) -> Audit:
    """Check each segment of `stream`: checksums, records, both indices and offsets against each other.

    It changes nothing, takes no lock, and may run while the stream is written to and vacuumed. It keeps no
    state: run it again after a kill. Damage is in the result; raises DiskqSparkError DISKQ_NOT_FOUND and
    DISKQ_FORMAT, OSError, and Spark's exceptions, if the stream could not be checked.
    """
    began = time.monotonic()
    with with_codes():
        tasks = tuple(audit_tasks(stream))
    count = min(len(tasks), _TASKS_A_CORE * _cores(spark))
    look = F.udf(partial(_looked_at, stream, tasks), _SCHEMA, useArrow=False)
    rows = spark.range(0, len(tasks), 1, max(1, count)).select(look("id").alias("found"))
    with watched(spark, watch):
        found = [SegmentAudit(**row["found"].asDict()) for row in rows.collect() if row["found"] is not None]
    found.sort(key=lambda segment: (segment.partition, segment.base))
    return Audit(segments=tuple(found), seconds=time.monotonic() - began)


def _cores(spark: SparkSession) -> int:
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    return context.defaultParallelism if context is not None else 8


def _looked_at(stream: str, tasks: Sequence[AuditTask], number: int) -> tuple[Any, ...] | None:
    """Carry out the task of this number, in a worker. One row for each is cheap compared with the task."""
    with with_codes():
        found = audit_segment(stream, tasks[number])
    return None if found is None else astuple(found)
