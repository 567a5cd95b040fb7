"""A data source that yields a tuple for each message: what one would write first."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from diskq.engine.stream.reader import ReadableStream

SCHEMA = """
    key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int
"""


class TupleSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "diskq_tuples"

    def schema(self) -> str:
        return SCHEMA.strip()

    def reader(self, schema: StructType) -> TupleReader:
        return TupleReader(self.options["path"])


class TupleReader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self.path = path

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in ReadableStream(self.path).partitions()]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        with ReadableStream(self.path).open(partition.value) as reader:
            reader.seek_oldest()
            for message in iter(reader.read, None):
                moment = datetime.fromtimestamp(message.timestamp_ns / 1e9, UTC)
                yield message.key, message.value, "t", message.partition, message.offset, moment, 0
