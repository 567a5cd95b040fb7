# The data source `diskq`, as Spark finds it: `spark.read.format("diskq")`, `readStream`, `write` and
# `writeStream`. Law: files are read only when needed, and a wrong option is an error when the read is loaded.
#
# Spark makes one of these for each load, on the driver's machine, and uses it for all that follows: so a
# batch looks for the latest offsets at that time. It is made for writing as well, before it is known which of
# the two it is for: so a look that fails is no error yet.
#
# It is also made twice for each batch of a query, in processes of their own: so modules are imported only
# when needed.

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
from diskq.spark.errors import with_codes

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
        """Take the snapshot before pickling: from here on, the latest offsets of a loaded read are fixed."""
        if self._snapshot is None:
            from diskq.spark.options import ReadOptions
            from diskq.spark.planning import Snapshot

            with contextlib.suppress(DiskqError, OSError):
                self._snapshot = Snapshot.taken(ReadOptions.parse(self.options, is_streaming=None))
        return self.__dict__

    def schema(self) -> StructType:
        from diskq.spark.options import ReadOptions
        from diskq.spark.schema import schema_of
        from diskq.spark.streams import kinds_of

        # Called by `load`, for batches and streams alike, which have different options: the reader reports
        # what is wrong for its kind. What is not there is reported now.
        options = ReadOptions.parse(self.options, is_streaming=None)
        with with_codes():
            return schema_of(kinds_of(options) or {"triplet"}, with_nanos=options.with_nanos)

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
        from diskq.spark.versions import imports_explained

        with imports_explained():
            from diskq.spark.streaming import DiskqStreamReader

        options = ReadOptions.parse(self.options, is_streaming=True)
        check_projection(schema, _kinds_of(options))
        return DiskqStreamReader(options, schema)

    # --- writing ----------------------------------------------------------------------------------

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from diskq.spark.sink import DiskqBatchWriter

        with with_codes():
            return DiskqBatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from diskq.spark.sink import DiskqStreamWriter

        with with_codes():
            return DiskqStreamWriter(self.options, schema, overwrite)


def _kinds_of(options: ReadOptions) -> set[str]:
    """Return their options.LAYOUTS; that of streams if they cannot be read yet: the reader then raises."""
    from diskq.spark.streams import kinds_of

    with contextlib.suppress(DiskqError, OSError):
        return kinds_of(options) or {"triplet"}
    return {"triplet"}


class DiskqPushdownDataSource(DiskqDataSource):
    """The same, whose batch reads take filters in: only for sessions whose setting allows it."""

    _takes_filters = True


def register(spark: SparkSession, pushdown: bool = True) -> None:
    """Register `format("diskq")` in this session, also if Spark does not find it by itself.

    With `pushdown`, batch reads are planned by their filters on partition, offset, topic and timestamp;
    the session's setting that allows it is switched on for all data sources written in Python.
    """
    if pushdown:
        spark.conf.set(_PUSHDOWN, "true")
    source: Any = DiskqPushdownDataSource if pushdown else DiskqDataSource
    spark.dataSource.register(source)
