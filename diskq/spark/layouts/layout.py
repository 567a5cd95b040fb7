# The interface of a layout, whatever its files. Law: a partition of Spark's reads a range of offsets of one
# partition of one stream; the layout returns all of it, or reports what is missing. Which class reads which
# files is in choice.py.

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pyspark.sql.datasource import InputPartition

from diskq.spark.errors import Code, DiskqSparkError
from diskq.spark.layouts.origins import Origin

if TYPE_CHECKING:
    from diskq.tables.columns import Columns

__all__ = ["Layout", "Losses", "OffsetRange", "OffsetRanges", "Span"]

logger = logging.getLogger("diskq.spark")


class Span(NamedTuple):
    """What a partition holds now."""

    first: int
    """The first offset."""
    next: int
    """The offset after the last one."""
    size: int
    """Bytes between the two, approximately."""


class Losses:
    """What happens about missing messages: an error with failOnDataLoss, else a warning."""

    def __init__(self, *, is_fatal: bool) -> None:
        self.is_fatal = is_fatal

    def report(self, code: Code, what: str) -> None:
        """Raise it with `code`, or log it: reading then continues after what is lost."""
        if self.is_fatal:
            raise DiskqSparkError(
                code, f"{what}; failOnDataLoss=false reads the rest, and logs a warning for what is missing"
            )
        logger.warning("%s: %s (failOnDataLoss=false: reading continues)", code, what)


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """Offsets start:end of a partition of a stream: what one task reads. It is pickled."""

    topic: str
    path: str
    layout: str
    partition: int
    start: int
    end: int
    size: int = 0
    """Bytes, approximately."""
    detail: Any = None
    """What else the layout needs to find them."""
    origin: Origin | None = None
    """Which stream it is a range of: a task reads no other one."""

    @property
    def records(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class OffsetRanges(InputPartition):
    """Small ranges in a row, which one task reads one after the other. It is pickled."""

    ranges: tuple[OffsetRange, ...]


class Layout(Protocol):
    """One stream, journal or queue, read in place; nothing is consumed. Raises DiskqError, OSError."""

    is_growing: bool
    """True if a streaming read may follow it."""

    def identity(self) -> str | None:
        """Return an id that distinguishes it from another one in its place; None if it has none."""

    def origin(self, partition: int) -> Origin:
        """Return what distinguishes it, with this partition's messages, from another one in its place."""

    def changed(self, partition: int, then: Origin) -> str | None:
        """Return what is wrong if it is another one than `then`, which was the origin; None if it is not."""

    def spans(self) -> Mapping[int, Span]:
        """Return what each partition holds now, in ascending order."""

    def offset_at_or_after(self, partition: int, timestamp: int) -> int | None:
        """Return the first offset whose message is not earlier (ns since 1970); None if all are earlier."""

    def pin(self, parts: int | None) -> Any:
        """Return what a later plan of the same read needs to read the same; None if offsets are enough.

        `parts` is the number of tasks that was requested. The result is pickled.
        """

    def tasks(self, whole: OffsetRange) -> Iterable[OffsetRange]:
        """Return the same offsets in ranges that may be read independently, and be cut further."""

    def read(self, task: OffsetRange, max_bytes: int, losses: Losses) -> Iterator[tuple[int, Columns]]:
        """Yield pieces of messages, each with the offset of its first message.

        They may begin before the task's range and end after it. A piece is made of up to `max_bytes` of file;
        a single message may be larger. What is missing of the range is reported to `losses`, once.
        """
