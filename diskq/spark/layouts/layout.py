# What can be read, whatever the files are like: what a layout promises. Law: what a partition of Spark's
# reads is a range of offsets of one partition of one stream; who is asked for it gives all of it, or says
# what is missing. Which class reads which files is in choice.py.

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pyspark.sql.datasource import InputPartition

from diskq.spark.errors import Code, DiskqSparkError

if TYPE_CHECKING:
    from diskq.spark.arrow import ColumnsPiece

__all__ = ["Layout", "Losses", "OffsetRange", "Span"]

logger = logging.getLogger("diskq.spark")


class Span(NamedTuple):
    """What a partition holds now."""

    first: int
    """The first offset that is there,"""
    next: int
    """the one behind the last,"""
    size: int
    """and about so many bytes between the two."""


class Losses:
    """What is done about messages that cannot be had: with failOnDataLoss an error, else a warning."""

    def __init__(self, *, is_fatal: bool) -> None:
        self.is_fatal = is_fatal

    def tell(self, code: Code, what: str) -> None:
        """Raises it with `code`, or logs it: then reading goes on behind what is lost."""
        if self.is_fatal:
            raise DiskqSparkError(
                code, f"{what}; failOnDataLoss=false reads what is left, and warns of what is not"
            )
        logger.warning("%s: %s (failOnDataLoss=false: reading goes on)", code, what)


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """Offsets start:end of a partition of a stream: what one task reads. It travels by pickle."""

    topic: str
    path: str
    layout: str
    partition: int
    start: int
    end: int
    size: int = 0
    """About so many bytes."""
    detail: Any = None
    """What else its layout needs to find them."""

    @property
    def records(self) -> int:
        return self.end - self.start


class Layout(Protocol):
    """One stream, journal or queue, read where it lies; nothing is consumed. Raises DiskqError, OSError."""

    is_growing: bool
    """May a streaming read follow it?"""

    def identity(self) -> str | None:
        """What tells it from another one that is made in its place; None: nothing does."""

    def spans(self) -> Mapping[int, Span]:
        """Its partitions, ascending, and what each holds now."""

    def offset_at_or_after(self, partition: int, timestamp: int) -> int | None:
        """The first offset whose message is not earlier (ns since 1970); None: none is that late."""

    def pin(self, parts: int | None) -> Any:
        """What a read that is planned again later needs, to read the same then; None: offsets are enough.

        `parts`: so many tasks are asked for. It travels by pickle.
        """

    def tasks(self, whole: OffsetRange) -> Iterable[OffsetRange]:
        """The same offsets, in ranges that may be read on their own, and be cut further."""

    def read(self, task: OffsetRange, max_bytes: int, losses: Losses) -> Iterator[tuple[int, ColumnsPiece]]:
        """Its messages, perhaps some before and behind them, with the offset of the first of each piece.

        A piece is made of at most `max_bytes` of file, but of one message, however large. What is missing
        of the task's is told to `losses`, once.
        """
