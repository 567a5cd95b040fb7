# Sends that are written together: who waits for the same sync may share the write as well.
#
# Law: a message that was gathered is nowhere before it is written, and it is written before anything that
# comes after it. A write that fails is told to those whose messages it could not take, and to nobody else.

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import trio

from diskq.errors import DiskqError, StorageFailedError

__all__ = ["LARGEST_GATHERED", "MOST_GATHERED", "Gathered"]

P = TypeVar("P")

MOST_GATHERED = 1024 * 1024
"""So many bytes of messages are gathered at most."""
LARGEST_GATHERED = 64 * 1024
"""Larger messages have a write of their own: others are not to fail for want of their room."""
_REFUSALS = (DiskqError, OSError, MemoryError)


class Gathered(ABC, Generic[P]):
    """Messages that wait to be written, and the tasks that sent them, in order.

    A subclass has the messages, and knows how they are written. `P` is what each gets: where it is.
    """

    __slots__ = ("places", "room", "tasks")

    def __init__(self, room: int) -> None:
        """For about `room` bytes in all."""
        self.tasks: list[trio.lowlevel.Task] = []
        self.room = min(room, MOST_GATHERED)
        """So many bytes more may be taken along."""
        self.places: list[P | None] = []
        """Where each message is, when it is written; None: it is not in."""

    # --- for the subclass -------------------------------------------------------------------------

    @abstractmethod
    def _write_all(self) -> None:
        """Put all of them in, with one write. Raises what keeps some of them out."""

    @abstractmethod
    def _found(self) -> list[P | None]:
        """Where each of them is, after `_write_all`, which may have raised; None: it is not in."""

    @abstractmethod
    def _write_one(self, number: int) -> P:
        """Put that one in, with a write of its own. Raises what keeps it out."""

    def _take_along(self, size: int, task: trio.lowlevel.Task) -> int:
        """The number that a message of `size` bytes gets; -1: it is too large, or there is no room for it."""
        if size > LARGEST_GATHERED or size > self.room:
            return -1
        self.room -= size
        self.tasks.append(task)
        return len(self.tasks) - 1

    # --- for the loop -----------------------------------------------------------------------------

    def write(self) -> list[tuple[trio.lowlevel.Task, Exception]]:
        """Put the messages in with one write; where that fails, with one for each of the others.

        Returns the tasks whose messages are not in, each with what kept its message out. Raises
        StorageFailedError.
        """
        if len(self.tasks) == 1:
            self.places = [None]
        else:
            try:
                self._write_all()
                self.places = self._found()
                return []
            except StorageFailedError:
                raise
            except _REFUSALS:
                self.places = self._found()
        refused: list[tuple[trio.lowlevel.Task, Exception]] = []
        for number, place in enumerate(self.places):
            if place is None:
                try:
                    self.places[number] = self._write_one(number)
                except StorageFailedError:
                    raise
                except _REFUSALS as failure:
                    refused.append((self.tasks[number], failure))
        return refused
