# Sends that are written together: senders that wait for the same sync share one write as well.
#
# Law: a gathered message is only in memory until it is written, and it is written before any later message.
# A failed write is reported to the senders whose messages it could not take, and to no others.

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import trio

from diskq.errors import DiskqError, StorageFailedError

__all__ = ["LARGEST_GATHERED", "MOST_GATHERED", "REFUSALS", "Gathered"]

P = TypeVar("P")

MOST_GATHERED = 1024 * 1024
"""The most bytes of messages that are gathered."""
LARGEST_GATHERED = 64 * 1024
"""In bytes. Larger messages get a write of their own, so that others do not fail for lack of their space."""
REFUSALS = (DiskqError, OSError, MemoryError)
"""The errors that keep a message out, and leave the store usable, but for StorageFailedError."""


class Gathered(ABC, Generic[P]):
    """Messages that wait to be written, and the tasks that sent them, in order.

    A subclass holds the messages and writes them. `P` is the position that each of them gets.
    """

    __slots__ = ("places", "room", "tasks")

    def __init__(self, room: int) -> None:
        """`room`: about how many bytes fit in all."""
        self.tasks: list[trio.lowlevel.Task] = []
        self.room = min(room, MOST_GATHERED)
        """The number of bytes that may still be added."""
        self.places: list[P | None] = []
        """The position of each written message; None: it is not in the log."""

    # --- for the subclass -------------------------------------------------------------------------

    @abstractmethod
    def _write_all(self) -> None:
        """Append all messages with one write. Raises the error that kept some of them out."""

    @abstractmethod
    def _found(self) -> list[P | None]:
        """Return each message's position after `_write_all`, which may have raised; None: it is not in."""

    @abstractmethod
    def _write_one(self, number: int) -> P:
        """Append that message with a write of its own. Raises the error that keeps it out."""

    def _take_along(self, size: int, task: trio.lowlevel.Task) -> int:
        """Return the number that a message of `size` bytes gets; -1: it is too large or does not fit."""
        if size > LARGEST_GATHERED or size > self.room:
            return -1
        self.room -= size
        self.tasks.append(task)
        return len(self.tasks) - 1

    # --- for the loop -----------------------------------------------------------------------------

    def write(self) -> list[tuple[trio.lowlevel.Task, Exception]]:
        """Append the messages with one write; if that fails, with one write for each message not yet in.

        Returns the tasks whose messages are not in, each with the error that kept its message out. Raises
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
            except REFUSALS:
                self.places = self._found()
        refused: list[tuple[trio.lowlevel.Task, Exception]] = []
        for number, place in enumerate(self.places):
            if place is None:
                try:
                    self.places[number] = self._write_one(number)
                except StorageFailedError:
                    raise
                except REFUSALS as failure:
                    refused.append((self.tasks[number], failure))
        return refused
