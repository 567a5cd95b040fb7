# Sends that are written together: senders that wait for the same sync share one write as well.
#
# Law: a gathered message is only in memory until it is written, and it is written before any later message.
# A failed write is reported to the senders whose messages it could not take, and to no others.
#
# The first sender of a batch asks for a sync; the others only sleep, and are woken with it.

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from diskq._native.core.send_batch import SendBatch
from diskq.channels.core.event_loops.seam import Task
from diskq.errors import DiskqError, StorageFailedError

__all__ = [
    "FIRST",
    "LARGEST_GATHERED",
    "MOST_GATHERED",
    "NOT_GATHERED",
    "REFUSALS",
    "Gathered",
    "OpenBatch",
    "Refused",
    "write_each",
]

P = TypeVar("P")

MOST_GATHERED = 1024 * 1024
"""The most bytes of messages that are gathered."""
LARGEST_GATHERED = 64 * 1024
"""In bytes. Larger messages get a write of their own, so that others do not fail for lack of their space."""
REFUSALS = (DiskqError, OSError, MemoryError)
"""The errors that keep a message out, and leave the store usable, but for StorageFailedError."""

NOT_GATHERED = -1
"""In place of a message's number in its batch: it is in none."""
FIRST = 0
"""The number of the message whose sender waits for the sync of its batch; the others sleep meanwhile."""

Refused = list[tuple[Task, Exception]]
"""Senders whose messages are not in, each with the error that kept its message out."""


class OpenBatch(Protocol):
    """Messages that wait to be written, and the tasks that sent them. Each has a number, from 0 on."""

    @property
    def tasks(self) -> list[Task]:
        """The senders, in order."""

    def write_all(self) -> None:
        """Append all messages with one write, and note which are in, also if it fails.

        Raises the error that kept some of them out.
        """

    def is_in(self, number: int) -> object:
        """True if the message was written."""

    def write_one(self, number: int) -> None:
        """Append that message with a write of its own. Raises the error that keeps it out."""


class Gathered(SendBatch, ABC, Generic[P]):
    """A `OpenBatch`. A subclass writes its messages. `P` is the position that each of them gets."""

    __slots__ = ("places",)

    places: list[P | None]
    """The position of each written message; None: it is not in the log. Set by `write_all`."""

    @abstractmethod
    def write_all(self) -> None:
        """Append all messages, as `OpenBatch.write_all`, and set `places`."""

    @abstractmethod
    def _write_one(self, number: int) -> P:
        """Append that message with a write of its own. Raises the error that keeps it out."""

    def write_one(self, number: int) -> None:
        self.places[number] = self._write_one(number)

    def is_in(self, number: int) -> bool:
        return self.places[number] is not None


def write_each(batch: OpenBatch, failure: Exception) -> Refused:
    """Append the remaining messages of a batch one by one, after one write of all has failed with `failure`.

    Returns the tasks whose message was refused, each with the error. Raises StorageFailedError.
    """
    tasks = batch.tasks
    if len(tasks) == 1:
        return [(tasks[0], failure)]
    refused: Refused = []
    for number, task in enumerate(tasks):
        if not batch.is_in(number):
            try:
                batch.write_one(number)
            except StorageFailedError:
                raise
            except REFUSALS as failure:
                refused.append((task, failure))
    return refused
