# The batch reader: planned on the driver, read by tasks. Law: it is pickled, with its options and its
# snapshot, and holds nothing open.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from diskq.spark.errors import with_codes
from diskq.spark.filters import Wanted
from diskq.spark.layouts.choice import open_layout
from diskq.spark.layouts.layout import Losses, OffsetRange, OffsetRanges
from diskq.spark.options import ReadOptions
from diskq.spark.planning import Snapshot, plan, tasks_of
from diskq.spark.workers import spare_collections

__all__ = ["DiskqPushdownReader", "DiskqReader", "read_task"]


class DiskqReader(DataSourceReader):
    """Reads all messages between the bounds, by columns."""

    def __init__(self, options: ReadOptions, schema: StructType, snapshot: Snapshot | None) -> None:
        self._options = options
        self._schema = schema
        self._snapshot = snapshot
        self._wanted = Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        with with_codes():
            return tasks_of(plan(self._options, self._snapshot, self._wanted), self._options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_task(self._options, self._schema, partition)


class DiskqPushdownReader(DiskqReader):
    """The same reader, which takes filters in. Spark passes filters only if its own setting allows it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return list(self._wanted.narrow(filters))


def read_task(options: ReadOptions, schema: StructType, task: InputPartition) -> Iterator[Any]:
    """Yield what a task reads, as `pyarrow.RecordBatch`. For an empty plan, Spark passes None."""
    ranges = task.ranges if isinstance(task, OffsetRanges) else (task,)
    for each in ranges:
        if isinstance(each, OffsetRange):
            spare_collections()
            yield from _read_range(options, schema, each)


def _read_range(options: ReadOptions, schema: StructType, its: OffsetRange) -> Iterator[Any]:
    from diskq.spark.arrow import Batches  # takes a tenth of a second, and planning does not need it

    if its.layout == "taskflux":
        from diskq.spark.layouts.priority import state_of

        yield from state_of(options, schema, its)
        return
    losses = Losses(is_fatal=options.fail_on_data_loss)
    batches = Batches(
        schema,
        topic=its.topic,
        partition=its.partition,
        rows=options.records_per_batch,
        size=options.bytes_per_batch,
    )
    with with_codes():
        layout = open_layout(its.layout, its.path)
        wrong = None if its.origin is None else layout.changed(its.partition, its.origin)
        if wrong is not None:
            return losses.report("DISKQ_STREAM_CHANGED", wrong)
        pieces = layout.read(its, options.bytes_per_batch, losses)
        yield from batches.of(pieces, its.start, its.end)
