# The batch reader: planned on the driver, read by tasks. Law: it is pickled, with its options and its
# snapshot, and holds nothing open.

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from diskq.spark.errors import with_codes
from diskq.spark.filters import Wanted
from diskq.spark.layouts.choice import open_layout
from diskq.spark.layouts.layout import Losses, OffsetRange
from diskq.spark.options import ReadOptions
from diskq.spark.planning import Snapshot, plan

__all__ = ["DiskqPushdownReader", "DiskqReader", "read_range"]


class DiskqReader(DataSourceReader):
    """Reads all messages between the bounds, by columns."""

    def __init__(self, options: ReadOptions, schema: StructType, snapshot: Snapshot | None) -> None:
        self._options = options
        self._schema = schema
        self._snapshot = snapshot
        self._wanted = Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        with with_codes():
            return plan(self._options, self._snapshot, self._wanted)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_range(self._options, self._schema, partition)


class DiskqPushdownReader(DiskqReader):
    """The same reader, which takes filters in. Spark passes filters only if its own setting allows it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return list(self._wanted.narrow(filters))


def read_range(options: ReadOptions, schema: StructType, partition: InputPartition) -> Iterator[Any]:
    """Yield what a task reads, as `pyarrow.RecordBatch`. For an empty plan, Spark passes None."""
    from diskq.spark.arrow import Batches  # takes a tenth of a second, and planning does not need it

    if not isinstance(partition, OffsetRange):
        return
    _spare_collections()
    if partition.layout == "taskflux":
        from diskq.spark.layouts.priority import state_of

        yield from state_of(options, schema, partition)
        return
    losses = Losses(is_fatal=options.fail_on_data_loss)
    batches = Batches(
        schema,
        topic=partition.topic,
        partition=partition.partition,
        rows=options.records_per_batch,
        size=options.bytes_per_batch,
    )
    with with_codes():
        layout = open_layout(partition.layout, partition.path)
        wrong = None if partition.origin is None else layout.changed(partition.partition, partition.origin)
        if wrong is not None:
            return losses.report("DISKQ_STREAM_CHANGED", wrong)
        pieces = layout.read(partition, options.bytes_per_batch, losses)
        yield from batches.of(pieces, partition.start, partition.end)


def _spare_collections() -> None:
    """Exclude the objects that exist before the first task from the garbage collections of Spark's daemon.

    The daemon collects after each task. The imported modules took some ten milliseconds each time. This is
    done in Spark's workers only.
    """
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()
