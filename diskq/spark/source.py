# The data source `diskq`, as Spark finds it: `spark.read.format("diskq")`, `readStream`, `write` and
# `writeStream`. Law: nothing is asked of the disk before it must be, and an option that is wrong is told
# when the read is loaded.
#
# Spark makes one of these for each load, on the driver's machine, and takes it along to all that follows:
# so it is then that a batch looks what the latest is. It is made for writing as well, and before anybody
# knows which of the two it is: so a look that fails says nothing yet.
#
# It is made for each batch of a query, too, twice, in processes that live for that: so what one of them
# does not need is not imported.

from __future__ import annotations

import contextlib
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from diskq.errors import DiskqError
from diskq.spark.errors import telling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from diskq.spark.options import ReadOptions
    from diskq.spark.planning import Snapshot

__all__ = ["FORMAT", "DiskqDataSource", "DiskqPushdownDataSource", "register"]

FORMAT = "diskq"
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class DiskqDataSource(DataSource):
    """Streams, journals, stores and queues of diskq. Options: docs/spark.md."""

    _takes_filters = False

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._snapshot: Snapshot | None = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def __getstate__(self) -> dict[str, Any]:
        """For the journey: a read that was loaded knows from here on what the latest is."""
        if self._snapshot is None:
            from diskq.spark.options import ReadOptions
            from diskq.spark.planning import Snapshot

            with contextlib.suppress(DiskqError, OSError):
                self._snapshot = Snapshot.taken(ReadOptions.parse(self.options, is_streaming=None))
        return self.__dict__

    def schema(self) -> StructType:
        from diskq.spark.options import ReadOptions
        from diskq.spark.schema import schema_of

        # Asked for batches and streams alike, which have different options: what is wrong for one of
        # them its reader says.
        options = ReadOptions.parse(self.options, is_streaming=None)
        return schema_of(_kinds_of(options), with_nanos=options.with_nanos)

    # --- reading ----------------------------------------------------------------------------------

    def reader(self, schema: StructType) -> DataSourceReader:
        from diskq.spark.batch import DiskqPushdownReader, DiskqReader
        from diskq.spark.options import ReadOptions
        from diskq.spark.schema import check_projection, is_of_stores

        options = ReadOptions.parse(self.options, is_streaming=False)
        kinds = _kinds_of(options)
        check_projection(schema, kinds)
        if is_of_stores(kinds):
            from diskq.spark.layouts.priority import check_options

            check_options(self.options)
            return DiskqReader(options, schema, self._snapshot)
        reader = DiskqPushdownReader if self._takes_filters else DiskqReader
        return reader(options, schema, self._snapshot)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from diskq.spark.options import ReadOptions
        from diskq.spark.schema import check_projection
        from diskq.spark.streaming import DiskqStreamReader

        options = ReadOptions.parse(self.options, is_streaming=True)
        check_projection(schema, _kinds_of(options))
        return DiskqStreamReader(options, schema)

    # --- writing ----------------------------------------------------------------------------------

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from diskq.spark.sink import DiskqBatchWriter

        with telling():
            return DiskqBatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from diskq.spark.sink import DiskqStreamWriter

        with telling():
            return DiskqStreamWriter(self.options, schema, overwrite)


def _kinds_of(options: ReadOptions) -> set[str]:
    """Of which options.LAYOUTS they are; streams, where nobody can tell: whoever reads them says why."""
    from diskq.spark.streams import kinds_of

    with contextlib.suppress(DiskqError, OSError):
        return kinds_of(options) or {"triplet"}
    return {"triplet"}


class DiskqPushdownDataSource(DiskqDataSource):
    """The same, whose batch reads take filters in: only for sessions whose setting allows it."""

    _takes_filters = True


def register(spark: SparkSession, pushdown: bool = True) -> None:
    """Make `format("diskq")` known to this session, also where Spark does not find it by itself.

    With `pushdown` batch reads are planned by their filters on partition, offset, topic and timestamp;
    the session's setting that allows it is switched on for all data sources written in Python.
    """
    if pushdown:
        spark.conf.set(_PUSHDOWN, "true")
    source: Any = DiskqPushdownDataSource if pushdown else DiskqDataSource
    spark.dataSource.register(source)
