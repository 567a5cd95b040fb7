# How far a pipeline is, told while it works. Law: whoever watches costs the work nothing, and sees numbers
# that Spark itself counts.

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["BatchTally", "PipelineProgress", "Progress", "Watch", "run_query", "watched"]

_LOOK = 0.25  # seconds between looks
_names = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProgress:
    """How far a pipeline is."""

    messages: int = 0
    """Read so far, in this run."""
    batches: int = 0
    """Done so far, in this run."""
    rate: float = 0.0
    """Messages a second, since it began."""
    lag: int | None = None
    """So many messages were there when it last looked, and are still to be read; None: nobody knows."""
    tasks: tuple[int, int] | None = None
    """Of what runs at this moment: so many tasks are done, of so many."""


Progress = PipelineProgress
"""The name of `PipelineProgress` that programs import."""


Watch = Callable[[PipelineProgress], None]

# --- streaming queries ----------------------------------------------------------------------------


@dataclass(slots=True)
class BatchTally:
    """What a streaming query has told of its batches."""

    messages: int = 0
    batches: int = 0
    late: int = 0
    """Rows that came behind the watermark and were dropped."""
    closed: int = 0
    """Windows, or other state, that were let go: written, in append mode."""
    held: int = 0
    """What is still held."""
    lag: int | None = None
    seen: str = ""
    """The time of the last report that was taken in."""

    def take(self, reports: list[Any]) -> None:
        for report in reports:
            if (when := report["timestamp"]) <= self.seen:
                continue
            self.seen = when
            rows = report["numInputRows"]
            self.messages += rows
            self.batches += rows > 0
            self.lag = _lag(report["sources"])
            operators = report["stateOperators"]
            self.late += sum(state["numRowsDroppedByWatermark"] for state in operators)
            self.closed += sum(state["numRowsRemoved"] for state in operators)
            self.held = sum(state["numRowsTotal"] for state in operators)


def run_query(query: StreamingQuery, watch: Watch | None) -> BatchTally:
    """Wait for the end of a query, telling how far it is. Raises StreamingQueryException.

    Interrupted, it stops the query, and waits until it has: the batch that is under way is done again by
    the next run, as its checkpoint says.
    """
    tally = BatchTally()
    began = time.monotonic()
    try:
        while not query.awaitTermination(_LOOK):  # type: ignore[arg-type]  # seconds, as Spark takes them
            tally.take(query.recentProgress)
            if watch is not None:
                rate = tally.messages / (time.monotonic() - began)
                watch(
                    PipelineProgress(messages=tally.messages, batches=tally.batches, rate=rate, lag=tally.lag)
                )
    finally:
        if query.isActive:
            query.stop()
    tally.take(query.recentProgress)
    return tally


def _lag(sources: list[Any]) -> int | None:
    """How many messages are behind the place that the last batch has read to."""
    lag = 0
    for source in sources:
        done, latest = _places(source["endOffset"]), _places(source["latestOffset"])
        if latest is None or done is None:
            return None
        lag += sum(max(0, offset - done.get(part, 0)) for part, offset in latest.items())
    return lag


def _places(text: Any) -> dict[tuple[str, str], int] | None:
    try:
        streams = (json.loads(text) if isinstance(text, str) else text)["streams"]
        return {(topic, part): n for topic, at in streams.items() for part, n in at["partitions"].items()}
    except (TypeError, ValueError, KeyError, AttributeError):
        return None


# --- batches --------------------------------------------------------------------------------------


@contextmanager
def watched(
    spark: SparkSession, watch: Watch | None, before: PipelineProgress | None = None
) -> Iterator[None]:
    """While a batch runs in this block, `watch` is told which share of its tasks is done."""
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
