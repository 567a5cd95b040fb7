# Which rows are wanted, as an expression of pyarrow's. Law: a row is chosen by the expression alone; what is
# known of many rows without reading them (their place, their offsets, a group's statistics) only says that
# none of them can be wanted.

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

__all__ = ["Where"]

_PARQUET = pyarrow.dataset.ParquetFileFormat()
_NOWHERE = pa.fs.LocalFileSystem()


class Where:
    """An expression about columns of `schema`."""

    def __init__(self, expression: Any, schema: Any) -> None:
        """Raises TypeError and ValueError if it cannot be evaluated."""
        if not isinstance(expression, pc.Expression):
            kind = type(expression).__name__
            raise TypeError(f"where is an expression, as pyarrow.compute.field('offset') > 5, got {kind}")
        self._expression = expression
        self._schema = schema
        try:
            self._check(schema.names)
        except pa.ArrowException as failure:
            names = ", ".join(schema.names)
            raise ValueError(f"where cannot be evaluated: {failure}; the columns are {names}") from None

    @property
    def columns(self) -> list[str]:
        """The columns that the expression is about."""
        return [name for name in self._schema.names if self._needs(name)]

    def _needs(self, name: str) -> bool:
        try:
            self._check([other for other in self._schema.names if other != name])
        except pa.ArrowException:
            return True
        return False

    def _check(self, names: list[str]) -> None:
        pa.schema([self._schema.field(name) for name in names]).empty_table().filter(self._expression)

    def choose(self, batch: Any) -> Any:
        """Return the rows of a `pyarrow.RecordBatch` that are wanted, as a `pyarrow.Table`."""
        return pa.Table.from_batches([batch]).filter(self._expression)

    def may_have(self, topic: str, partition: int, first: int, next_offset: int) -> bool:
        """True unless no message with offsets `first` to `next_offset` - 1 of a partition can be wanted."""
        offset = pc.field("offset")
        known = _place(topic, partition) & (offset >= first) & (offset < next_offset)
        # A file that is never opened: pyarrow compares what is known of it.
        file = _PARQUET.make_fragment("", filesystem=_NOWHERE, partition_expression=known)
        files = pyarrow.dataset.FileSystemDataset([file], self._schema, _PARQUET, _NOWHERE)
        return any(True for _ in files.get_fragments(filter=self._expression))

    def groups(self, file: Any, topic: str, partition: int) -> set[int]:
        """Return the groups of rows of an open Parquet file whose statistics say that some may be wanted."""
        opened = _PARQUET.make_fragment(file, partition_expression=_place(topic, partition))
        return {group.id for group in opened.subset(self._expression, schema=self._schema).row_groups}


def _place(topic: str, partition: int) -> Any:
    return (pc.field("topic") == topic) & (pc.field("partition") == pa.scalar(partition, pa.int32()))
