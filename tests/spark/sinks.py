# The words of the sink's tests: rows as Arrow has them, what is in a stream afterwards, and a disk on
# which a process is killed.

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from diskq.engine.stream.reader import ReadableStream
from diskq.engine.stream.settings import settings_at
from diskq.messages import Message
from diskq.spark.sink import DiskqBatchWriter, DiskqStreamWriter
from diskq.spark.source import DiskqDataSource
from diskq.storage.fs import OsFileSystem
from diskq.testing import FaultFS

Row = tuple[Any, ...]

_TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "int": IntegerType(),
    "long": LongType(),
    "string": StringType(),
    "timestamp": TimestampType(),
}


def schema(columns: str) -> StructType:
    """Of `name type, ...`: as StructType.fromDDL, which needs a Spark that runs."""
    pairs = [column.split() for column in columns.split(",")]
    return StructType([StructField(name, _TYPES[kind]) for name, kind in pairs])


SCHEMA = schema("key binary, value binary")


def rows(count: int, start: int = 0, keys: int = 5) -> list[Row]:
    return [(b"key-%d" % (number % keys), b"value %06d" % number) for number in range(start, start + count)]


def batch(of: Iterable[Row], columns: StructType = SCHEMA) -> Any:
    arrow = to_arrow_schema(columns, timezone="UTC")
    filled = list(zip(*of, strict=True)) or [() for _ in arrow.names]
    return pa.record_batch([pa.array(c, t) for c, t in zip(filled, arrow.types, strict=True)], arrow)


def writer(
    path: Path, schema: StructType = SCHEMA, overwrite: bool = False, **options: object
) -> DiskqBatchWriter:
    """As Spark makes it for a batch: options are text, with names in lower case."""
    given = {"path": str(path), "wait": "0"}
    given |= {name.lower(): str(value) for name, value in options.items()}
    return DiskqBatchWriter(given, schema, overwrite)


def write(path: Path, *tasks: Iterable[Row], **options: Any) -> None:
    """A whole job of so many tasks."""
    job = writer(path, **options)
    job.commit([job.write(iter([batch(task)])) for task in tasks])


class Found(NamedTuple):
    """What is in a stream, and what lies beside it that should not."""

    messages: list[Message]
    staged: list[str]
    is_pending: bool

    @property
    def values(self) -> list[bytes]:
        return sorted(message.value for message in self.messages)


def found(path: Path) -> Found:
    messages = []
    if settings_at(path) is not None:  # there is none before the first commit
        stream = ReadableStream(str(path))
        for partition in stream.partitions():
            with stream.open(partition) as reader:
                reader.seek_oldest()
                mine = list(iter(reader.read, None))
                assert [m.offset for m in mine] == list(range(len(mine)))
                assert not reader.losses
                messages += mine
    staging = path / ".diskq" / "staging"
    staged = sorted(path.name for path in staging.glob("*.staged"))
    return Found(messages, staged, (path / ".diskq" / "intent").exists())


# --- a process that is killed in the middle -------------------------------------------------------


class Killer(FaultFS[OsFileSystem]):
    """Kills its process where the disk is asked to do `verb` with a path that ends so, for the nth time."""

    def __init__(self, verb: str, ending: str, nth: int) -> None:
        super().__init__(OsFileSystem())
        self.victim = (verb, ending)
        self.left = nth

    def _ask(self, verb: str, path: str) -> None:
        if verb == self.victim[0] and path.endswith(self.victim[1]):
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)

    def pwrite(self, handle: int, data: Any, offset: int) -> int:
        self._ask("pwrite", self._by_handle[handle].path)
        return super().pwrite(handle, data, offset)

    def rename(self, old: str, new: str) -> None:
        self._ask("rename", new)
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self._ask("unlink", path)
        super().unlink(path)

    def sync_files(self, handles: Any) -> None:
        for handle in handles:
            self._ask("sync_files", self._by_handle[handle].path)
        super().sync_files(handles)


def plan_of(path: str) -> Path:
    """Beside a stream: where, if it is there, whoever commits to it is killed."""
    return Path(path + ".plan")


class KilledWriter(DiskqStreamWriter):
    """As the sink, but that its process is killed where the plan says; once."""

    def _file_system(self) -> Any:
        return self._disk

    _disk: Any = None

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        plan = plan_of(self.options.path)
        if plan.exists():
            verb, ending, nth = plan.read_text().split()
            plan.unlink()
            self._disk = Killer(verb, ending, int(nth))
        super().commit(messages, batchId)


class KilledSource(DiskqDataSource):
    @classmethod
    def name(cls) -> str:
        return "diskq_killed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DiskqStreamWriter:  # noqa: N802
        return KilledWriter(self.options, schema, overwrite)


def options_of(**options: object) -> Mapping[str, str]:
    return {name.lower(): str(value) for name, value in options.items()}
