# What Spark is asked to do. Law: one session for all of it, as starting one would be most of what is
# measured; each kind of work is done once before the clock runs, and then some times, of which the
# median counts; both sides get the same rows, and the same settings.

from __future__ import annotations

import importlib
import os
import random
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from benchmarks.harness import MissingError, Readings
from benchmarks.stopwatch import reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from diskq.tables.table import Table

__all__ = ["Rows", "SparkWork"]

ROOT = Path(__file__).parent.parent
CORES = 2
PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Rows:
    """`count` messages, with values of `size` bytes and keys of eight."""

    count: int
    size: int


class SparkWork:
    """A function of this file, in the session that they share.

    It is warm when it was done `warm` times there; then it is done `times` times, of which the median counts.
    """

    _spark: ClassVar[SparkSession | None] = None
    _inputs: ClassVar[Path | None] = None
    _done: ClassVar[dict[tuple[object, ...], int]] = {}

    def __init__(
        self, name: str, rows: Rows, columns: str = "", batch: int = 0, warm: int = 2, times: int = 3
    ) -> None:
        self.name = name
        self.rows = rows
        self.columns = columns
        self.batch = batch
        self.warm = warm
        self.times = times

    def describe(self) -> dict[str, Any]:
        described = {
            "spark": f"benchmarks.spark_works.{self.name}",
            "rows": self.rows.count,
            "size": self.rows.size,
        }
        return described | {k: v for k, v in (("columns", self.columns), ("batch", self.batch)) if v}

    def measure(self, directory: Path) -> Readings:
        spark = self.session(directory.parent)
        if self.batch:
            return {"": WORKS[self.name](self, spark, directory / "warm")}
        return {"": self._timed(spark, directory)}

    def _timed(self, spark: SparkSession, directory: Path) -> dict[str, float]:
        work, kind = WORKS[self.name], (self.name, self.rows, self.columns)
        cold = max(0, self.warm - SparkWork._done.get(kind, 0))
        found = []
        for number in range(cold + self.times):
            cpu, began = _cpu_seconds(spark), perf_counter()
            work(self, spark, directory / str(number))
            found.append((perf_counter() - began, _cpu_seconds(spark) - cpu))
            shutil.rmtree(directory / str(number), ignore_errors=True)
        SparkWork._done[kind] = SparkWork._done.get(kind, 0) + len(found)
        seconds, cpu = (statistics.median(values) for values in zip(*found[cold:], strict=True))
        return reading(self.rows.count, seconds, cpu)

    # --- what they share --------------------------------------------------------------------------

    @classmethod
    def session(cls, directory: Path) -> SparkSession:
        """Raises MissingError where Spark, or Java, is not there."""
        if cls._spark is None:
            try:
                spark = importlib.import_module("diskq.spark")
                importlib.import_module("pyspark")
            except ModuleNotFoundError as missing:
                raise MissingError(f"{missing.name} is not installed") from missing
            try:
                # The workers have to find the source that the benchmark brings along.
                os.environ["PYTHONPATH"] = os.pathsep.join(
                    [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
                )
                cls._spark = spark.session(
                    "diskq's benchmarks", f"local[{CORES}]", {"spark.log.level": "ERROR"}
                )
            except spark.JavaNotFoundError as missing:
                raise MissingError(str(missing)) from missing
            cls._inputs = Path(tempfile.mkdtemp(prefix="inputs-", dir=directory))
        return cls._spark

    @classmethod
    def stop(cls) -> None:
        if cls._spark is not None:
            cls._spark.stop()
            cls._spark = None
            shutil.rmtree(cls._inputs or "", ignore_errors=True)

    def names(self) -> list[str] | None:
        """The columns, if they are not all."""
        return self.columns.split(", ") if self.columns else None

    def stream(self, name: str = "stream", segment_size: int | None = None) -> Path:
        """A stream that holds the rows; made once."""
        from diskq.engine.stream.stream import Stream
        from diskq.options import StreamOptions

        assert SparkWork._inputs is not None
        path = SparkWork._inputs / f"{name}-{self.rows.count}-{self.rows.size}"
        options = StreamOptions(partition_count=PARTITIONS, segment_size=segment_size)
        if not path.exists():
            with Stream(str(path), options=options) as stream:
                for messages in self._messages():
                    stream.append_many(messages)
        return path

    def tabled(self) -> tuple[Path, Path]:
        """A stream that holds the rows, and a table with about nine tenths of them; made once.

        Its segments are small, so that a tenth is in the tail, and the files are joined: as if segments had
        the usual size.
        """
        import diskq

        assert SparkWork._inputs is not None
        segment = self.rows.count * (self.rows.size + 26) // PARTITIONS * 2 // 11  # five and a half of them
        path, lake = self.stream("tabled", segment_size=segment), SparkWork._inputs / "lake"
        if not (lake / f"topic={path.name}").exists():
            table = diskq.open_table(path, lake, compression="none")
            table.update()
            table.compact()
        return path, lake

    def sealed(self, codec: Literal["none", "zstd"] = "none") -> Table:
        """The table with all of a stream that holds the rows in complete segments of the usual size.

        Made once.
        """
        import diskq
        from diskq.engine.stream.stream import Stream

        assert SparkWork._inputs is not None
        path = self.stream("sealed")
        table = diskq.open_table(path, SparkWork._inputs / f"lake-{codec}", compression=codec)
        if not Path(table.directory).exists():
            with Stream(str(path), options=diskq.StreamOptions(segment_age=1e-6)) as stream:
                stream.steps.seal_aged()
            assert table.update().messages == self.rows.count
        return table

    def journals(self) -> Path:
        """A directory of journals that hold the rows, as many as a stream has partitions; made once."""
        from diskq.engine.journal.journal import Journal

        assert SparkWork._inputs is not None
        path = SparkWork._inputs / f"journals-{self.rows.count}-{self.rows.size}"
        if not path.exists():
            with ExitStack() as stack:
                shards = [stack.enter_context(Journal(path / f"shard.2.{n:03x}")) for n in range(PARTITIONS)]
                for messages in self._messages():
                    for number, shard in enumerate(shards):
                        shard.append_many(messages[number::PARTITIONS])
        return path

    def _messages(self) -> Iterator[list[tuple[str, bytes]]]:
        """The rows, ten thousand at a time."""
        rng, size, count = random.Random(0), self.rows.size, self.rows.count
        for first in range(0, count, 10_000):
            numbers = range(first, min(first + 10_000, count))
            # No two alike: of values that repeat, Parquet would keep one, and read no more.
            bodies = rng.randbytes(size * len(numbers))
            yield [
                (f"{n:08d}", bodies[at : at + size])
                for n, at in zip(numbers, range(0, len(bodies), size), strict=True)
            ]

    def parquet(self, spark: SparkSession, codec: str = "none") -> Path:
        """The same rows as Parquet, uncompressed unless a codec is named, with all columns; made once."""
        assert SparkWork._inputs is not None
        path = SparkWork._inputs / f"parquet-{codec}-{self.rows.count}-{self.rows.size}"
        if not path.exists():
            rows = spark.read.format("diskq").load(str(self.stream()))
            rows.write.option("compression", codec).parquet(str(path))
        return path


# --- works ----------------------------------------------------------------------------------------


def read(work: SparkWork, spark: SparkSession, directory: Path) -> None:
    reader = spark.read.format("diskq")
    if work.columns:
        reader = reader.schema(work.columns)
    _to_nowhere(reader.load(str(work.stream())))


def read_journals(work: SparkWork, spark: SparkSession, directory: Path) -> None:
    reader = spark.read.format("diskq").option("layout", "sej").option("subscribePattern", "shard.*")
    _to_nowhere(reader.load(str(work.journals())))


def read_parquet(work: SparkWork, spark: SparkSession, directory: Path) -> None:
    rows = spark.read.parquet(str(work.parquet(spark)))
    _to_nowhere(rows.select(work.names() or rows.columns))


def count_parquet(work: SparkWork, spark: SparkSession, directory: Path) -> None:
    assert spark.read.parquet(str(work.parquet(spark))).count() == work.rows.count


def read_frame(work: SparkWork, spark: SparkSession, directory: Path) -> None:
    _to_nowhere(_frame(work, spark, work.stream()))


def count_frame(work: SparkWork, spark: SparkSession, directory: Path) -> None:
    assert _frame(work, spark, work.stream()).count() == work.rows.count


def read_tabled(work: SparkWork, spark: SparkSession, directory: Path) -> None:
    _to_nowhere(_frame(work, spark, *work.tabled()))


def count_tabled(work: SparkWork, spark: SparkSession, directory: Path) -> None:
    assert _frame(work, spark, *work.tabled()).count() == work.rows.count


def read_whole(work: SparkWork, spark: SparkSession, directory: Path) -> None:
    _to_nowhere(_whole(work, spark))


def count_whole(work: SparkWork, spark: SparkSession, directory: Path) -> None:
    assert _whole(work, spark).count() == work.rows.count


def update_table(work: SparkWork, spark: SparkSession, directory: Path) -> None:
    import diskq

    path = work.sealed().path
    assert diskq.open_table(path, directory, compression="zstd").update().messages == work.rows.count


def copy_parquet(work: SparkWork, spark: SparkSession, directory: Path) -> None:
    spark.read.parquet(str(work.parquet(spark))).write.option("compression", "zstd").parquet(str(directory))


def _frame(work: SparkWork, spark: SparkSession, path: Path, table: Path | None = None) -> DataFrame:
    from diskq.spark import read

    return read(spark, path, table=table, columns=work.names())


def _whole(work: SparkWork, spark: SparkSession) -> DataFrame:
    table = work.sealed()
    return _frame(work, spark, Path(table.path), Path(table.state.names.into))


def read_tuples(work: SparkWork, spark: SparkSession, directory: Path) -> None:
    """As a data source does it that knows nothing of columns."""
    from benchmarks.tuple_source import TupleSource

    spark.dataSource.register(TupleSource)
    _to_nowhere(spark.read.format(TupleSource.name()).load(str(work.stream())))


def _to_nowhere(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def write(work: SparkWork, spark: SparkSession, directory: Path) -> None:
    messages = spark.read.parquet(str(work.parquet(spark))).select("key", "value", "timestamp")
    messages.write.format("diskq").mode("append").option("partitionCount", PARTITIONS).save(str(directory))


def write_by_rows(work: SparkWork, spark: SparkSession, directory: Path) -> None:
    """As `write`, with batches that are bounded by their rows alone: docs/spark.md."""
    prefix = "spark.sql.execution.arrow"
    settings = {
        f"{prefix}.maxBytesPerBatch": str(2**31 - 1),
        f"{prefix}.maxRecordsPerBatch": str(2**20 // (work.rows.size + 28)),
    }
    before = {name: str(spark.conf.get(name)) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        write(work, spark, directory)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def write_parquet(work: SparkWork, spark: SparkSession, directory: Path) -> None:
    messages = spark.read.parquet(str(work.parquet(spark))).select("key", "value", "timestamp")
    messages.write.option("compression", "none").parquet(str(directory))


def stream(work: SparkWork, spark: SparkSession, directory: Path) -> dict[str, float]:
    return _batches(work, spark, directory, "diskq")


def stream_parquet(work: SparkWork, spark: SparkSession, directory: Path) -> dict[str, float]:
    return _batches(work, spark, directory, "parquet")


def _batches(work: SparkWork, spark: SparkSession, directory: Path, sink: str) -> dict[str, float]:
    """A query of some batches; what one of them takes."""
    rows = (
        spark.readStream.format("diskq")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", work.batch)
        .load(str(work.stream()))
        .select("key", "value", "timestamp")
    )
    query = (
        rows.writeStream.format(sink)
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    took = [
        progress["durationMs"]["triggerExecution"]
        for progress in query.recentProgress
        if progress["numInputRows"]
    ]
    settled = took[len(took) // 4 :]  # the first ones find everything cold
    return {"batch_ms": statistics.median(settled), "count": float(len(settled))}


WORKS: dict[str, Callable[[SparkWork, Any, Path], Any]] = {
    work.__name__: work
    for work in (
        read,
        read_journals,
        read_parquet,
        count_parquet,
        read_frame,
        count_frame,
        read_tabled,
        count_tabled,
        read_whole,
        count_whole,
        update_table,
        copy_parquet,
        read_tuples,
        write,
        write_by_rows,
        write_parquet,
        stream,
        stream_parquet,
    )
}

# --- what it costs --------------------------------------------------------------------------------


def _cpu_seconds(spark: SparkSession) -> float:
    """Return the seconds that the JVM, its Python workers and this process have used, user and system."""
    gateway: Any = spark.sparkContext._gateway
    ticks = sum(_ticks(pid) for pid in _with_children(gateway.proc.pid))
    return ticks / os.sysconf("SC_CLK_TCK") + process_time()


def _with_children(pid: int) -> Iterator[int]:
    yield pid
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    for child in found.stdout.split():
        yield from _with_children(int(child))


def _ticks(pid: int) -> int:
    """Its own, and those of its children that are gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(int(field) for field in fields[11:15])
