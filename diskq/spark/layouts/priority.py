# Priority stores, in TaskFlux's files, as they were when the read was loaded. Law: one load is one state, for
# each action of the frame, even while other processes use the store; it is read in place, without the store's
# lock, and nothing in it changes.
#
# A state is not in the files: it is the snapshot and the effect of every later command. So a store is read by
# one task, which holds it in memory. The task gets the number of the last command.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from diskq.engine.priority.state import StoredQueue
from diskq.engine.priority.store import PriorityRecord
from diskq.engine.priority.view import command_mark, last_command, look_at_store
from diskq.spark.errors import DiskqSparkError, with_codes
from diskq.spark.layouts.layout import Losses, OffsetRange, Span
from diskq.spark.layouts.origins import Origin, changed
from diskq.spark.options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from diskq.tables.columns import Columns

__all__ = ["StoreLayout", "check_options", "state_of"]

# A store has no offsets, no partitions and no times.
_OF_OFFSETS = (
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeTimestampNanos",
)


def check_options(options: Mapping[str, str]) -> None:
    """Raise DISKQ_OPTION for options about offsets."""
    given = {name.lower() for name in options}
    for name in _OF_OFFSETS:
        if name.lower() in given:
            raise DiskqSparkError(
                "DISKQ_OPTION", f"{name}: a priority store has no offsets: it is read whole"
            )


class StoreLayout:
    """A store: one partition, which is one task."""

    is_growing = False

    def __init__(self, path: str, pinned: int | None) -> None:
        """Find the last command, unless it is given as `pinned`. Raises DISKQ_NOT_FOUND, OSError."""
        self._path = path
        try:
            self._lsn = last_command(path) if pinned is None else pinned
        except FileNotFoundError as missing:
            raise DiskqSparkError("DISKQ_NOT_FOUND", f"{path}: {missing.strerror}") from None

    def identity(self) -> None:
        return None

    def origin(self, partition: int) -> Origin:
        return Origin(None, command_mark(self._path, self._lsn))

    def changed(self, partition: int, then: Origin) -> str | None:
        if then.mark is None:
            return None
        return changed(self._path, then, None, command_mark(self._path, self._lsn, as_in=then.mark))

    def spans(self) -> dict[int, Span]:
        return {0: Span(0, 1, 0)}

    def offset_at_or_after(self, partition: int, timestamp: int) -> int | None:
        raise DiskqSparkError("DISKQ_OPTION", f"{self._path}: a store keeps no times")

    def pin(self, parts: int | None) -> int:
        return self._lsn

    def tasks(self, whole: OffsetRange) -> Iterable[OffsetRange]:
        return (replace(whole, detail=self._lsn),)

    def read(self, task: OffsetRange, max_bytes: int, losses: Losses) -> Iterator[tuple[int, Columns]]:
        raise DiskqSparkError("DISKQ_OPTION", f"{self._path}: a store has other columns: see docs/spark.md")


# --- the task -------------------------------------------------------------------------------------


def state_of(options: ReadOptions, schema: StructType, task: OffsetRange) -> Iterator[Any]:
    """Yield the records of a store, queue by queue, each in its order, as `pyarrow.RecordBatch`."""
    import pyarrow as pa

    from diskq.spark.schema import arrow_schema

    columns = arrow_schema(schema)
    losses = Losses(is_fatal=options.fail_on_data_loss)
    with with_codes():
        wrong = StoreLayout(task.path, task.detail).changed(0, task.origin or Origin(None))
        if wrong is not None:
            return losses.report("DISKQ_STREAM_CHANGED", wrong)
        look = look_at_store(task.path, until=task.detail)
        if look.lsn > task.detail:
            losses.report(
                "DISKQ_DATA_LOSS",
                f"{task.path}: its state after command {task.detail}, at the load, is gone: a snapshot was "
                f"taken after command {look.lsn}; load it again",
            )
        for loss in look.losses:
            losses.report("DISKQ_CORRUPT", f"{loss.path}: byte {loss.kept}: {loss.reason}")
        queues = [queue for _, queue in sorted(look.queues.items())]
        del look
        for batch in chain.from_iterable(_taken(queue, options) for queue in queues):
            arrays = [pa.array(_cells(field.name, batch, task.topic), field.type) for field in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=columns)


def _taken(queue: StoredQueue, options: ReadOptions) -> Iterator[list[PriorityRecord]]:
    while records := queue.table.take(options.records_per_batch, options.bytes_per_batch):
        yield records


def _cells(name: str, records: list[PriorityRecord], topic: str) -> list[Any]:
    if name == "topic":
        return [topic] * len(records)
    return list(map(attrgetter(name), records))
