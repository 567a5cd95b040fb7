# The progress of a running pipeline. Law: watching does not slow the pipeline, and the numbers are Spark's
# own counts.

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from diskq.spark.lag import offsets_behind
from diskq.spark.patience import is_repeated

__all__ = ["BatchTally", "PipelineProgress", "Progress", "Watch", "run_query", "watched"]

_LOOK = 0.25  # seconds between looks
_names = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProgress:
    """The progress of a pipeline."""

    messages: int = 0
    """Read so far, in this run."""
    batches: int = 0
    """Done so far, in this run."""
    rate: float = 0.0
    """Messages a second, since it began."""
    lag: int | None = None
    """Messages that were still to be read at the last look; None if unknown."""
    tasks: tuple[int, int] | None = None
    """Finished tasks and all tasks, of the job that runs now."""


Progress = PipelineProgress
"""The name of `PipelineProgress` that programs import."""


Watch = Callable[[PipelineProgress], None]

# --- streaming queries ----------------------------------------------------------------------------


@dataclass(slots=True)
class BatchTally:
    """Sums over the reports of a streaming query about its batches."""

    messages: int = 0
    batches: int = 0
    late: int = 0
    """Rows that were dropped because they were before the watermark."""
    closed: int = 0
    """Windows, or other state, that were closed: written, in append mode."""
    held: int = 0
    """Rows of state that are still held."""
    lag: int | None = None
    seen: str = ""
    """The time of the last report that was added."""

    def add(self, reports: list[Any]) -> None:
        for report in reports:
            if (when := report["timestamp"]) <= self.seen:
                continue
            self.seen = when
            rows = report["numInputRows"]
            self.messages += rows
            self.batches += rows > 0
            behind = offsets_behind(report)
            self.lag = None if behind is None else sum(behind.values())
            operators = report["stateOperators"]
            self.late += sum(state["numRowsDroppedByWatermark"] for state in operators)
            self.closed += sum(state["numRowsRemoved"] for state in operators)
            self.held = sum(state["numRowsTotal"] for state in operators)


def run_query(start: Callable[[], StreamingQuery], watch: Watch | None, follow: float | None) -> BatchTally:
    """Start a query, wait for its end, and report its progress. Raises StreamingQueryException.

    One that follows is started again, from its checkpoint, after DISKQ_WORKER_LATE.

    If interrupted, it stops the query, and waits for its end: the next run repeats the batch that was
    running, from the checkpoint.
    """
    tally = BatchTally()
    began = time.monotonic()
    while True:
        query = start()
        try:
            _await(query, tally, watch, began)
            return tally
        except StreamingQueryException as failure:
            tally.add(query.recentProgress)
            if not is_repeated(failure, follow):
                raise


def _await(query: StreamingQuery, tally: BatchTally, watch: Watch | None, began: float) -> None:
    try:
        while not query.awaitTermination(_LOOK):  # type: ignore[arg-type]  # seconds, as Spark takes them
            tally.add(query.recentProgress)
            if watch is not None:
                rate = tally.messages / (time.monotonic() - began)
                watch(
                    PipelineProgress(messages=tally.messages, batches=tally.batches, rate=rate, lag=tally.lag)
                )
    finally:
        if query.isActive:
            query.stop()
    tally.add(query.recentProgress)


# --- batches --------------------------------------------------------------------------------------


@contextmanager
def watched(
    spark: SparkSession, watch: Watch | None, before: PipelineProgress | None = None
) -> Iterator[None]:
    """Report the share of finished tasks to `watch` while a batch runs in this block."""
    context = getattr(spark, "sparkContext", None) if watch is not None else None  # Spark Connect has none
    if watch is None or context is None:
        yield
        return
    group = f"diskq-{next(_names)}"
    context.setJobGroup(group, "diskq pipeline", interruptOnCancel=False)
    is_over = threading.Event()
    base = before or PipelineProgress()

    def look() -> None:
        while not is_over.wait(_LOOK):
            if (tasks := _tasks(context, group)) is not None:
                watch(replace(base, tasks=tasks))

    thread = threading.Thread(target=look, name="diskq-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        context.setLocalProperty("spark.jobGroup.id", None)


def _tasks(context: Any, group: str) -> tuple[int, int] | None:
    tracker = context.statusTracker()
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        if info is None or info.status != "RUNNING":
            continue
        for stage in filter(None, map(tracker.getStageInfo, info.stageIds)):
            done += stage.numCompletedTasks
            total += stage.numTasks
    return (done, total) if total else None
