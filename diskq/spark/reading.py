# One DataFrame of all messages. Law: each message that there is at the call is in it once, whether the table
# has it or the log; Spark itself reads the table's files, and tasks of Python are only there for the rest.
#
# The tasks are those of `format("diskq")`, and read in the same way; but Spark passes their columns on as
# they come (`mapInArrow`), and they make only those that were asked for.

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructType

from diskq.spark.batch import read_task
from diskq.spark.errors import DiskqSparkError, with_codes
from diskq.spark.filters import Wanted
from diskq.spark.layouts.layout import OffsetRange
from diskq.spark.options import ReadOptions
from diskq.spark.planning import Task, plan, range_of, tasks_of
from diskq.spark.schema import NANOS, TYPE, check_projection, schema_of
from diskq.spark.streams import kinds_of, open_streams
from diskq.tables.extents import PartitionExtent, extent_of
from diskq.tables.names import TableFile
from diskq.tables.parquet import read_footer
from diskq.tables.sources import open_source
from diskq.tables.table import Table, open_table

__all__ = ["read"]

# Most rows of numbers in a batch: 8192 of them are less than Spark's work for a batch.
_NARROW_ROWS = 32 * 1024
_ROWS_OPTION = "recordsperarrowbatch"

_LAYOUTS = {"stream": "triplet", "journal": "sej"}

# A table is of one stream, and Parquet's statistics find offsets and times in it.
_NOT_WITH_TABLE = (
    "subscribe",
    "subscribePattern",
    "assign",
    "layout",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
)


def read(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    table: Table | str | os.PathLike[str] | None = None,
    host: str | None = None,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Return the messages that there are now at `path` as a DataFrame, each once.

    With a `table` of the stream or journal (or the directory `into` of one) Spark reads the table's files,
    and the stream only from where they end. Without, and for queues and priority stores, all of it is read
    in place. Its rows are those of `spark.read.format("diskq")`, which it is faster than; `options` are the
    same. With a table there are no options that choose offsets or times: `.where` skips what it does not
    need, by the statistics of the files. `host` is that of the table, as in `open_table`, if `table` is the
    directory of one that has the streams of several machines.

    `columns` names those that are made, in this order; None: all. Spark does not tell Python which ones a
    `select` leaves, so name them here. `count()` of the DataFrame itself reads no message unless
    failOnDataLoss is false; that of one derived from it does.

    Planned here, in the program that calls it: it has to see the stream, and the table, as the executors
    do. Raises DiskqSparkError.
    """
    given = {name: _as_text(value) for name, value in options.items()}
    checked = ReadOptions.parse({**given, "path": os.path.abspath(path)}, is_streaming=False)
    if host is not None and (table is None or isinstance(table, Table)):
        reason = "an opened table has its own" if table is not None else "is that of a table: name it, too"
        raise DiskqSparkError("DISKQ_OPTION", f"host is {host!r}: {reason}")
    with with_codes():
        if table is not None:
            opened = _opened(os.path.abspath(path), table, given.get("topic"), host)
            return _with_table(spark, os.path.abspath(path), opened, columns, given, checked)
        kinds = kinds_of(checked)
        schema = _schema(kinds, columns, with_nanos=checked.with_nanos)
        checked = _batched(checked, schema, given)
        ranges = plan(checked, None, Wanted())
        frame = _in_place(spark, checked, schema, tasks_of(ranges, checked, _cores(spark)))
    if checked.fail_on_data_loss and "taskflux" not in kinds:
        return _counted(frame, sum(each.records for each in ranges))
    return frame


def _as_text(value: Any) -> str:
    """Return an option as Spark has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _schema(kinds: set[str], columns: Sequence[str] | None, *, with_nanos: bool) -> StructType:
    """Return the schema with these columns. Raises DISKQ_OPTION."""
    if columns is None:
        return schema_of(kinds, with_nanos=with_nanos)
    if isinstance(columns, str):
        raise DiskqSparkError("DISKQ_OPTION", f"columns is a list of names, and not the text {columns!r}")
    there = {field.name: field for field in schema_of(kinds, with_nanos=True)}
    if TYPE not in there and TYPE in columns:
        raise DiskqSparkError("DISKQ_OPTION", f"columns: {TYPE} is of journals, and here is none")
    if unknown := [name for name in columns if name not in there]:
        names = ", ".join(there)
        raise DiskqSparkError("DISKQ_OPTION", f"columns: no column {unknown[0]!r}; there are {names}")
    schema = StructType([there[name] for name in columns])
    check_projection(schema, kinds)
    return schema


# --- in place -------------------------------------------------------------------------------------


def _in_place(
    spark: SparkSession, options: ReadOptions, schema: StructType, tasks: Sequence[Task]
) -> DataFrame:
    """Return what these tasks read, each in a partition of its own."""
    numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
    return _map_in_arrow(numbers, partial(_read, options, schema, tuple(tasks)), schema)


def _batched(options: ReadOptions, schema: StructType, given: Mapping[str, str]) -> ReadOptions:
    """Return the options with larger batches for rows without keys and values, unless a number is given."""
    if {"key", "value"} & set(schema.names) or _ROWS_OPTION in (name.lower() for name in given):
        return options
    return replace(options, records_per_batch=_NARROW_ROWS)


def _cores(spark: SparkSession) -> int | None:
    """Return the number of tasks that run at once; None with Spark Connect, which does not say."""
    session: Any = spark
    return session.sparkContext.defaultParallelism if hasattr(session, "_jsparkSession") else None


def _map_in_arrow(frame: DataFrame, function: Callable[[Any], Any], schema: StructType) -> DataFrame:
    """Return `frame.mapInArrow(function, schema)`, also where pandas is missing, which it does not use."""
    if find_spec("pandas") is not None or not hasattr(frame, "_jdf"):
        return frame.mapInArrow(function, schema)
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    its = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF, name="read")
    called: Any = its(*frame.columns)
    return type(frame)(frame._jdf.mapInArrow(called._jc, False, None), frame.sparkSession)


def _read(
    options: ReadOptions, schema: StructType, tasks: Sequence[Task], numbers: Iterable[Any]
) -> Iterator[Any]:
    """Yield the messages of the tasks with these numbers, as `pyarrow.RecordBatch`. In a worker."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from read_task(options, schema, tasks[number])


# --- a table, and the rest ------------------------------------------------------------------------


def _opened(path: str, table: Table | str | os.PathLike[str], topic: str | None, host: str | None) -> Table:
    if isinstance(table, Table):
        return table
    into = os.fspath(table)
    return open_table(path, into if "://" in into else os.path.abspath(into), topic=topic, host=host)


def _with_table(
    spark: SparkSession,
    path: str,
    table: Table,
    columns: Sequence[str] | None,
    given: Mapping[str, str],
    options: ReadOptions,
) -> DataFrame:
    lower = {name.lower() for name in given}
    if wrong := [name for name in _NOT_WITH_TABLE if name.lower() in lower]:
        reason = "with a table, choose by .where(...) on offset, timestamp or partition"
        raise DiskqSparkError("DISKQ_OPTION", f"{wrong[0]}: {reason}")
    source = open_source(table.state.source_fs, path)
    schema = _schema({_LAYOUTS[source.kind]}, columns, with_nanos=options.with_nanos)
    options = _batched(options, schema, given)
    allow_gaps = not options.fail_on_data_loss
    extents = [
        extent_of(source, table.state, partition, allow_gaps=allow_gaps) for partition in source.partitions()
    ]
    ranges = _rest(options, extents)
    files = [file for extent in extents for file in extent.files]
    stored = _stored(spark, table, schema, [file.path for file in files]) if files else None
    if stored is not None and not ranges:
        return _counted(stored, 0, partial(_rows, table, files, stored.count))
    rest = _in_place(spark, options, schema, tasks_of(ranges, options, _cores(spark)))
    planned = sum(each.records for each in ranges)
    if stored is None:
        return _counted(rest, planned) if options.fail_on_data_loss else rest
    frame = stored.unionAll(rest)
    if not options.fail_on_data_loss:
        return frame
    return _counted(frame, planned, partial(_rows, table, files, stored.count))


def _rest(options: ReadOptions, extents: Sequence[PartitionExtent]) -> list[OffsetRange]:
    """Return the ranges that the table lacks."""
    (stream,) = open_streams(options)
    spans = stream.spans(options.selection)
    return [
        range_of(stream, extent.partition, extent.tail, extent.end, spans[extent.partition])
        for extent in extents
        if extent.tail < extent.end
    ]


def _stored(spark: SparkSession, table: Table, schema: StructType, files: Sequence[str]) -> DataFrame:
    """Return the rows of these files of a table, as Spark reads Parquet: with the columns it is asked for."""
    is_journal = table.kind() == "journal"
    in_files = {"key", "value", "partition", "offset", "timestamp", NANOS, *([TYPE] if is_journal else [])}
    its = [field for field in schema_of({"sej"}, with_nanos=True) if field.name in in_files]
    rows = (
        spark.read.schema(StructType(its))
        .option("basePath", _uri(table, table.directory))
        .option("__globPaths__", "false")  # names are names, whatever characters they have
        .parquet(*(_uri(table, file) for file in files))
    )
    kind_of_time = F.when(F.col(NANOS).isNull(), -1).otherwise(0) if is_journal else F.lit(0)
    made = {"topic": F.lit(table.topic), "timestampType": kind_of_time}
    return rows.select(*(made.get(name, F.col(name)).alias(name) for name in schema.names))


def _uri(table: Table, path: str) -> str:
    """Return the path of a table's file for Spark, whatever its default file system is."""
    uri = table.state.uri(os.path.abspath(path) if table.state.remote is None else path)
    if uri is None:
        reason = "Spark's name for its file system is not known: read its files with spark.read.parquet"
        raise DiskqSparkError("DISKQ_OPTION", f"table is {table.directory}: {reason}")
    return f"s3a://{uri.removeprefix('s3://')}" if uri.startswith("s3://") else uri


# --- how many -------------------------------------------------------------------------------------


def _counted(frame: DataFrame, planned: int, stored: Callable[[], int] = int) -> DataFrame:
    """Return the frame with a `count` of the `planned` rows, and those that `stored` counts."""

    def count() -> int:
        return planned + stored()

    frame.count = count  # type: ignore[method-assign]
    return frame


def _rows(table: Table, files: Sequence[TableFile], by_spark: Callable[[], int]) -> int:
    """Return the number of rows in these files of a table, by their footers.

    A Spark job that counts them reads the same footers, and takes 50 times as long for 20 files. Where a
    footer takes a request over the network, it reads several at once; so `by_spark` counts in an object
    store, and where a file is gone, as it raises what other actions raise.
    """
    if table.state.remote is not None:
        return by_spark()
    try:
        with with_codes():
            return sum(read_footer(table.state.fs, file).rows for file in files)
    except FileNotFoundError:
        return by_spark()
