# Sends that are written together: senders that wait for the same sync share one write as well.
#
# Law: a gathered message is only in memory until it is written, and it is written before any later message.
# A failed write is reported to the senders whose messages it could not take, and to no others.
#
# The first sender of a batch waits for a barrier; the others sleep, and are woken with it, which costs less
# than a place in a line for each.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from diskq._native.core.send_batch import SendBatch
from diskq.channels.core.event_loops.seam import Task
from diskq.errors import DiskqError, StorageFailedError

__all__ = [
    "FIRST",
    "LARGEST_GATHERED",
    "MOST_GATHERED",
    "NOT_GATHERED",
    "Gathered",
    "Refused",
    "write_together",
]

P = TypeVar("P")

MOST_GATHERED = 1024 * 1024
"""The most bytes of messages that are gathered."""
LARGEST_GATHERED = 64 * 1024
"""In bytes. Larger messages get a write of their own, so that others do not fail for lack of their space."""
# The errors that keep a message out, and leave the store usable, but for StorageFailedError.
_REFUSALS = (DiskqError, OSError, MemoryError)

NOT_GATHERED = -1
"""In place of a message's number in its batch: it is in none."""
FIRST = 0
"""The number of the message whose sender waits for the sync of its batch; the others sleep meanwhile."""

Refused = list[tuple[Task, Exception]]
"""Senders whose messages are not in, each with the error that kept its message out."""


class Gathered(SendBatch, ABC, Generic[P]):
    """Messages that wait to be written, and the tasks that sent them, in order.

    A subclass writes them. `P` is the position that each of them gets.
    """

    __slots__ = ("places",)

    def __init__(self, room: int) -> None:
        """`room`: about how many bytes fit in all."""
        super().__init__(min(room, MOST_GATHERED))
        self.places: list[P | None] = []
        """The position of each written message; None: it is not in the log."""

    # --- for the subclass -------------------------------------------------------------------------

    @abstractmethod
    def _write_all(self) -> None:
        """Append all messages with one write, and set `places`, also if it fails.

        Raises the error that kept some of them out.
        """

    @abstractmethod
    def _write_one(self, number: int) -> P:
        """Append that message with a write of its own. Raises the error that keeps it out."""

    # --- for the loop -----------------------------------------------------------------------------

    def write(self) -> Refused:
        """Append the messages, as `write_together`. Raises StorageFailedError."""
        self.places = [None] * len(self.tasks)
        together = self._write_all if len(self.tasks) > 1 else lambda: self._place(0)
        return write_together(
            self.tasks, together, lambda number: self.places[number] is not None, self._place
        )

    def _place(self, number: int) -> None:
        self.places[number] = self._write_one(number)


def write_together(
    tasks: list[Task],
    write_all: Callable[[], object],
    is_in: Callable[[int], object],
    write_one: Callable[[int], object],
) -> Refused:
    """Append the messages of `tasks` with one write; if that fails, with one write for each that is not in.

    `is_in` and `write_one` get the message's number. Raises StorageFailedError.
    """
    try:
        write_all()
        return []
    except StorageFailedError:
        raise
    except _REFUSALS as failure:
        if len(tasks) == 1:
            return [(tasks[0], failure)]
    refused: Refused = []
    for number, task in enumerate(tasks):
        if not is_in(number):
            try:
                write_one(number)
            except StorageFailedError:
                raise
            except _REFUSALS as failure:
                refused.append((task, failure))
    return refused
