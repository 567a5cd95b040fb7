# Writing, exactly once. Law: tasks stage, the driver commits; a batch that is repeated is recognized; and
# nothing that a commit has named is ever removed.
#
#   task      encodes its rows and syncs them in the stream's staging directory, where no reader looks
#   commit    creates the stream if there is none; under its lock writes the intent, from which on the batch
#             will be appended whatever happens; appends it; records that it is done
#
# The next process that opens the stream, Spark or not, finishes a commit that was killed. A commit waits
# while another process has the stream open, up to `wait`. The mechanism is below Spark:
# diskq/engine/stream/transactions/transaction.py.

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from diskq._native.stream.columns import RowError
from diskq.engine.stream.settings import StreamSettings, settings_at, settings_of
from diskq.engine.stream.transactions.staging import (
    Abandoned,
    StagedFile,
    StagedName,
    StagingWriter,
    prepare_staging,
)
from diskq.engine.stream.transactions.transaction import Transaction, abandon, forget_sinks, sweep_staging
from diskq.errors import LockedError
from diskq.options import StreamOptions
from diskq.spark.columns import check_columns, columns_of, topics_in
from diskq.spark.driver import is_dead, job_name
from diskq.spark.errors import Code, DiskqSparkError, with_codes
from diskq.spark.patience import open_patiently
from diskq.spark.sink_options import WriteOptions, sink_name
from diskq.spark.workers import spare_collections

if TYPE_CHECKING:
    from diskq.engine.stream.stream import Stream

__all__ = ["DiskqBatchWriter", "DiskqStreamWriter", "StagedCommit"]

_CODES_OF_ROWS: dict[str, Code] = {
    "null value": "DISKQ_NULL_VALUE",
    "value size": "DISKQ_MESSAGE_SIZE",
    "key size": "DISKQ_MESSAGE_SIZE",
    "timestamp": "DISKQ_SINK",
    "partition": "DISKQ_SINK",
}
# A batch without a name.
_JOB = sink_name("job", "")
# Properties that Spark sets for a task of a streaming query.
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class StagedCommit(WriterCommitMessage):
    """What a task has staged; `files` is empty if it had no rows."""

    sink: str
    epoch: int
    query: str
    files: tuple[StagedFile, ...]
    topics: frozenset[str] = frozenset()
    """The values of the column `topic`, if it decides anything."""


class _SparkSink:
    """The common part of batches and streaming queries."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, overwrite: bool, *, is_streaming: bool
    ) -> None:
        if overwrite:
            mode = 'outputMode("complete")' if is_streaming else 'mode("overwrite")'
            raise DiskqSparkError("DISKQ_OPTION", f"{mode}: a stream is appended to; use append")
        self.options = WriteOptions.parse(options, is_streaming=is_streaming)
        check_columns(schema)
        with self._with_codes():
            settings = self._settings()
        self.partition_count, self.encoding = settings.partitions, settings.encoding
        self.segment_size = settings.roll_size
        spare_collections()

    def _settings(self) -> StreamSettings:
        """Return the stream's settings; if there is none, those that the commit will create it with.

        So a new stream's files are synced once, not before the tasks begin. Where something else may be in
        the way the stream is created now: then that is an error of the plan.
        """
        options = self.options
        if settings_at(options.path) is None and not prepare_staging(options.path, fs=self._file_system()):
            self._create()
        settings = settings_at(options.path) or settings_of(self._of_new(), None)
        count = settings.partitions
        if options.partition_count not in (None, count):
            raise DiskqSparkError(
                "DISKQ_OPTION",
                f"partitionCount is {options.partition_count}: {options.path} has {count}; leave it out",
            )
        return settings

    def _create(self) -> None:
        """Create the stream if there is none. Raises as `_opened`."""
        if settings_at(self.options.path) is None:
            self._opened().close()

    def _of_new(self) -> StreamOptions:
        return StreamOptions(partition_count=self.options.partition_count)

    def _opened(self) -> Stream:
        """Return the stream, once no other process has it; a new one, if there is none, or half of one.

        Raises LockedError after the timeout.
        """
        its = self.options
        return open_patiently(its.path, self._of_new(), timeout=its.wait, fs=self._file_system())

    def _file_system(self) -> Any:
        """Return the file system for all writes; None for the system's own. For tests, which let it fail."""
        return None

    @contextlib.contextmanager
    def _with_codes(self) -> Iterator[None]:
        """Give errors that are raised in this block their code."""
        try:
            with with_codes():
                yield
        except RowError as error:
            code = _CODES_OF_ROWS[error.reason]
            raise DiskqSparkError(code, f"{self.options.path}: {error}") from error

    # --- in a task --------------------------------------------------------------------------------

    def _stage(self, batches: Iterable[Any], sink: str, epoch: int, query: str) -> StagedCommit:
        task = TaskContext.get()
        number = task.partitionId() if task is not None else 0
        spare_collections()

        with (
            self._with_codes(),
            StagingWriter(
                self.options.path,
                sink=sink,
                epoch=epoch,
                task=number,
                partition_count=self.partition_count,
                encoding=self.encoding,
                segment_size=self.segment_size,
                fs=self._file_system(),
            ) as writer,
        ):
            topics: frozenset[str] = frozenset()
            for batch in batches:
                if not self.options.has_topic:
                    topics |= topics_in(batch)
                    self._check_topics(topics)
                writer.add_columns(columns_of(batch))
            staged = writer.finish()
            files = (staged, *writer.segments) if staged.extents else ()
            return StagedCommit(sink, epoch, query, files, topics)

    def _check_topics(self, topics: frozenset[str]) -> None:
        """Raise DISKQ_OPTION for rows of several topics: whoever has a column of them may expect streams."""
        if len(topics) > 1:
            some = ", ".join(sorted(topics)[:3])
            raise DiskqSparkError(
                "DISKQ_OPTION",
                f"rows of several topics ({some}), and {self.options.path} is one stream: write each topic "
                'by itself, with .where(...) and .option("topic", ...); or .drop("topic") for all in one',
            )

    # --- on the driver ----------------------------------------------------------------------------

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = [message for message in messages if isinstance(message, StagedCommit)]
        if not staged:
            with self._with_codes():
                self._create()
            return
        one = staged[0]
        self._check_topics(frozenset().union(*(message.topics for message in staged)))
        files = tuple(file for message in staged for file in message.files)
        transaction = Transaction(sink=one.sink, epoch=one.epoch, query=one.query, staged=files)

        with self._with_codes():
            if files:
                with self._opened() as stream:
                    stream.commit(transaction)
            else:
                self._create()
            with contextlib.suppress(LockedError):  # the next one sweeps
                sweep_staging(self.options.path, lambda name: _is_left(name, one), fs=self._file_system())
                forget_sinks(self.options.path, lambda sink: _is_over(sink, one), fs=self._file_system())
        spare_collections()

    def _abort(self, transactions: Iterable[tuple[str, int]]) -> None:
        """Abandon staged files. Spark also calls this after a failed commit, whose files stay.

        Tasks may still be running. Files that they stage later are removed by the next commit of the sink; a
        job without a name has none, so its files are abandoned for good.
        """
        for sink, epoch in transactions:
            with self._with_codes():
                abandon(self.options.path, sink, epoch, for_good=sink.startswith(_JOB))


def _is_left(name: StagedName | Abandoned, done: StagedCommit) -> bool:
    """True if a staged file is of no further use, now that `done` is committed."""
    return name.epoch <= done.epoch if name.sink == done.sink else _is_dead(name.sink)


def _is_over(sink: str, done: StagedCommit) -> bool:
    """True if the note on the last commit of `sink` can be removed: the sink will not commit again.

    That is a sink of a job without a name, which commits once: if its process has ended, or if `done` is its
    commit.
    """
    return _is_dead(sink) or (sink == done.sink and sink.startswith(_JOB))


def _is_dead(sink: str) -> bool:
    return sink.startswith(_JOB) and is_dead(sink.removeprefix(_JOB))


class DiskqBatchWriter(_SparkSink, DataSourceArrowWriter):
    """`df.write.format("diskq").mode("append")`: all rows are appended, or none.

    With txnAppId and txnVersion they are appended once, even if the job runs several times.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite, is_streaming=False)
        # Chosen here, once: Spark uses this object for its tasks and for the commit.
        if self.options.app_id is not None and self.options.version is not None:
            self.sink, self.epoch = sink_name("app", self.options.app_id), self.options.version
        else:
            self.sink, self.epoch = sink_name("job", job_name()), 0

    def write(self, iterator: Iterator[Any]) -> StagedCommit:
        return self._stage(iterator, self.sink, self.epoch, "")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort([(self.sink, self.epoch)])  # tasks that have not ended are not reported


class DiskqStreamWriter(_SparkSink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("diskq")`: each batch of the query is appended once, despite kills."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite, is_streaming=True)

    def write(self, iterator: Iterator[Any]) -> StagedCommit:
        # The commit runs in another process, on a new object: the message carries what it needs.
        task = TaskContext.get()
        query = task.getLocalProperty(_QUERY_ID) if task is not None else None
        batch = task.getLocalProperty(_BATCH_ID) if task is not None else None
        if not query or not batch:
            raise DiskqSparkError(
                "DISKQ_SINK", f"{self.options.path}: Spark has set no query id and batch id"
            )
        own = self.options.sink_id
        sink = sink_name("query", query) if own is None else sink_name("sink", own)
        return self._stage(iterator, sink, int(batch), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._abort(
            {(message.sink, message.epoch) for message in messages if isinstance(message, StagedCommit)}
        )
