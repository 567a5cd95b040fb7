# What streams and journals have in common for executors that have diskq's Python and nothing compiled. Law:
# they are read segment by segment, what is gone is told, and what is read was planned elsewhere.

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import ClassVar, NoReturn, Protocol

from diskq.spark.arrow import Piece
from diskq.spark.errors import DiskqSparkError
from diskq.spark.layouts import Losses, OffsetRange

__all__ = ["Segment", "UncompiledLayout"]


class Segment(AbstractContextManager["Segment"], Protocol):
    """One that is open."""

    def read(self, start: int, end: int, max_bytes: int, losses: Losses) -> Iterator[tuple[int, Piece]]:
        """Its messages start:end, as `Layout.read`."""


class UncompiledLayout(ABC):
    """A `Layout` for tasks that were planned where diskq is compiled."""

    is_growing = True

    removal: ClassVar[str]
    """What to say of segments that are gone before the first one."""

    def __init__(self, path: str) -> None:
        self._path = path

    @abstractmethod
    def _directory(self, partition: int) -> str:
        """Where its segments are."""

    @abstractmethod
    def _base_of(self, name: str) -> int | None:
        """The first offset of the segment whose data file has this name; None: it is no data file."""

    @abstractmethod
    def _segment(self, partition: int, base: int) -> Segment:
        """Open it. Raises FileNotFoundError where it has gone."""

    def _place(self, partition: int) -> str:
        """As losses have it."""
        return f"{self._path}[{partition}]"

    def read(self, task: OffsetRange, max_bytes: int, losses: Losses) -> Iterator[tuple[int, Piece]]:
        where, at = self._place(task.partition), task.start
        while at < task.end:
            bases = self._bases(task.partition)
            if not bases or bases[0] >= task.end:
                losses.tell("DISKQ_DATA_LOSS", f"{where}: offsets {at} to {task.end - 1} are gone")
                return
            if at < bases[0]:
                losses.tell(
                    "DISKQ_DATA_LOSS", f"{where}: offsets {at} to {bases[0] - 1} are gone: {self.removal}"
                )
                at = bases[0]
            number = bisect_right(bases, at) - 1
            end = min([task.end, *bases[number + 1 : number + 2]])
            try:
                segment = self._segment(task.partition, bases[number])
            except FileNotFoundError:
                continue  # it was removed in this moment
            with segment:
                yield from segment.read(at, end, max_bytes, losses)
            at = end

    def _bases(self, partition: int) -> list[int]:
        try:
            names = os.listdir(self._directory(partition))
        except FileNotFoundError:
            return []
        return sorted(base for base in map(self._base_of, names) if base is not None)

    # --- planning is done where diskq is compiled -------------------------------------------------

    def identity(self) -> NoReturn:
        raise _not_here()

    def spans(self) -> NoReturn:
        raise _not_here()

    def offset_at_or_after(self, partition: int, timestamp: int) -> NoReturn:
        raise _not_here()

    def pin(self, parts: int | None) -> NoReturn:
        raise _not_here()

    def tasks(self, whole: OffsetRange) -> NoReturn:
        raise _not_here()


def _not_here() -> DiskqSparkError:
    """Something compiled is needed."""
    return DiskqSparkError("DISKQ_FORMAT", "the driver needs diskq's compiled modules: `pip install diskq`")
