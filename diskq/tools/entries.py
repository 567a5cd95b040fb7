# A message in no particular format, as tools convert it from one format to another; and batches of messages,
# by column. Law: what a format does not have is None, never a made-up value.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

__all__ = ["Entry", "EntryBatch"]

T = TypeVar("T")


class Entry(NamedTuple):
    """A message, with the fields that its format stores."""

    value: bytes
    key: bytes | None = None
    """Streams and journals."""
    timestamp_ns: int | None = None
    """Streams and journals; nanoseconds since 1970."""
    type: int | None = None
    """Journals; 0 to 255."""
    priority: int | None = None
    """Priority queues; the smallest is received first."""
    queue: str | None = None
    """Queues and priority queues."""
    partition: int | None = None
    """Streams."""
    offset: int | None = None
    """Streams and journals."""
    id: int | None = None
    """Jobs."""


@dataclass(slots=True, kw_only=True)
class EntryBatch:
    """Consecutive messages, by column. A column is None if none of them has that field."""

    values: list[bytes]
    keys: Sequence[bytes | None] | None = None
    timestamps: Sequence[int | None] | None = None
    types: Sequence[int | None] | None = None
    priorities: Sequence[int | None] | None = None
    queues: Sequence[str | None] | None = None
    partitions: Sequence[int | None] | None = None
    offsets: Sequence[int | None] | None = None
    ids: Sequence[int | None] | None = None

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> EntryBatch:
        """Return the same messages by column."""
        columns = list(zip(*entries, strict=True)) or [()] * len(Entry._fields)
        values, *others = columns
        return cls(
            values=list(values),
            **{
                name: None if all(cell is None for cell in column) else column
                for name, column in zip(_COLUMNS, others, strict=True)
            },
        )

    def __len__(self) -> int:
        return len(self.values)

    def entries(self) -> Iterator[Entry]:
        """Yield the messages one by one."""
        columns = [getattr(self, name) for name in _COLUMNS]
        return map(
            Entry._make,
            zip(self.values, *(repeat(None) if c is None else c for c in columns)),  # noqa: B905
        )

    def column(self, name: str) -> Sequence[Any] | None:
        """Return the column of a field of `Entry`."""
        found: Sequence[Any] | None = getattr(self, _COLUMN_OF[name])
        return found

    def chosen(self, places: Sequence[int]) -> EntryBatch:
        """Return the messages at these places, in this order."""
        if len(places) == len(self.values):
            return self
        return self._each(_picker(places))

    def cut(self, start: int, end: int) -> EntryBatch:
        """Return the messages at start:end."""
        return self._each(itemgetter(slice(start, end)))

    def _each(self, pick: Callable[[Any], Any]) -> EntryBatch:
        others = {name: getattr(self, name) for name in _COLUMNS}
        picked = {name: None if column is None else pick(column) for name, column in others.items()}
        return EntryBatch(values=pick(self.values), **picked)


def _picker(places: Sequence[int]) -> Callable[[Any], Any]:
    return lambda column: [column[place] for place in places]


_ALL = tuple(field.name for field in fields(EntryBatch))
_COLUMNS = _ALL[1:]
_COLUMN_OF = dict(zip(Entry._fields, _ALL, strict=True))
