# What can be read, whatever the files are like: one class for each layout. Law: what a partition of
# Spark's reads is a range of offsets of one partition of one stream; who is asked for it gives all of it,
# or says what is missing.
#
# Nothing compiled is imported here: an executor may have none of it.

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from diskq.spark.arrow import Piece
from diskq.spark.errors import Code, DiskqSparkError

__all__ = ["Layout", "Losses", "Span", "layout_of", "open_layout"]

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


class Layout(Protocol):
    """One stream, or queue, read where it lies; nothing is consumed. Raises DiskqError, and OSError."""

    is_growing: bool
    """May a streaming read follow it?"""

    def identity(self) -> str | None:
        """What tells it from another one that is made in its place; None: nothing does."""

    def spans(self) -> Mapping[int, Span]:
        """Its partitions, ascending, and what each holds now."""

    def offset_at_or_after(self, partition: int, timestamp: int) -> int | None:
        """The first offset whose message is not earlier (ns since 1970); None: none is that late."""

    def read(
        self, partition: int, start: int, end: int, max_bytes: int, losses: Losses
    ) -> Iterator[tuple[int, Piece]]:
        """The messages from `start` up to `end`, perhaps some behind it, with the first offset of each piece.

        A piece is made of at most `max_bytes` of file, but of one message, however large. What is missing
        of start:end is told to `losses`, once.
        """


def layout_of(path: str) -> str:
    """Which of options.LAYOUTS the files are of. Raises DISKQ_NOT_FOUND where there are none."""
    return "triplet"


def open_layout(kind: str, path: str) -> Layout:
    """`kind` is one of options.LAYOUTS. Raises DiskqError, OSError."""
    from diskq.spark.triplets import TripletLayout

    return TripletLayout(path)
