# Sends that are written together: senders that wait for the same sync share one write as well.
#
# Law: a gathered message is only in memory until it is written, and it is written before any later message.
# A failed write is reported to the senders whose messages it could not take, and to no others.
#
# The first sender of a batch waits for a barrier; the others sleep, and are woken with it, which costs less
# than a place in a line for each.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

import outcome
import trio

from diskq._native.core.send_batch import SendBatch
from diskq.channels.core.commit_loop import Engine
from diskq.channels.core.sender_line import AdmittingLoop, Sending
from diskq.channels.core.sleeping import wake_tasks
from diskq.channels.core.sync_executor import SyncExecutor
from diskq.channels.core.waiting_line import Line
from diskq.errors import DiskqError, StorageFailedError

__all__ = ["LARGEST_GATHERED", "MOST_GATHERED", "Gathered", "GatheringLoop", "Refused", "write_together"]

E = TypeVar("E", bound=Engine)
S = TypeVar("S", bound=Sending)
P = TypeVar("P")

MOST_GATHERED = 1024 * 1024
"""The most bytes of messages that are gathered."""
LARGEST_GATHERED = 64 * 1024
"""In bytes. Larger messages get a write of their own, so that others do not fail for lack of their space."""
# The errors that keep a message out, and leave the store usable, but for StorageFailedError.
_REFUSALS = (DiskqError, OSError, MemoryError)

Refused = list[tuple[trio.lowlevel.Task, Exception]]
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
        """Append all messages with one write. Raises the error that kept some of them out."""

    @abstractmethod
    def _found(self) -> list[P | None]:
        """Return each message's position after `_write_all`, which may have raised; None: it is not in."""

    @abstractmethod
    def _write_one(self, number: int) -> P:
        """Append that message with a write of its own. Raises the error that keeps it out."""

    # --- for the loop -----------------------------------------------------------------------------

    def write(self) -> Refused:
        """Append the messages, as `write_together`. Raises StorageFailedError."""
        self.places = [None] * len(self.tasks)
        together = self._place_all if len(self.tasks) > 1 else lambda: self._place(0)
        return write_together(
            self.tasks, together, lambda number: self.places[number] is not None, self._place
        )

    def _place_all(self) -> None:
        try:
            self._write_all()
        finally:
            self.places = self._found()

    def _place(self, number: int) -> None:
        self.places[number] = self._write_one(number)


def write_together(
    tasks: list[trio.lowlevel.Task],
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


class OpenBatch(Protocol):
    """Messages that are not written yet."""

    @property
    def tasks(self) -> list[trio.lowlevel.Task]:
        """Their senders, in order."""


class GatheringLoop(AdmittingLoop[E, S]):
    """A loop whose synced senders share a write and a sync.

    A subclass sets `gathering`, and calls `_write_gathered` before any later message.
    """

    __slots__ = ("_covered", "gathering")

    gathering: Any
    """Where senders add messages: its `batch` is to be written before the next sync; None: there is none."""

    def __init__(
        self,
        engine: E,
        executor: SyncExecutor,
        senders: Iterable[Line[S]] = (),
        others: Iterable[Line[Any]] = (),
    ) -> None:
        # For each written batch, the number of the sync that covers it, and its senders without the first.
        self._covered: list[tuple[int, list[trio.lowlevel.Task]]] = []
        super().__init__(engine, executor, senders, others)

    # --- for the subclass -------------------------------------------------------------------------

    def _begin_gathering(self) -> SendBatch | None:
        """Return an empty batch; None: a message may have to wait for space, or there are other reasons."""
        return None

    @abstractmethod
    def _write(self, batch: Any) -> Refused:
        """Write a batch. Raises StorageFailedError."""

    def _written(self) -> None:
        """Called when a batch was written."""

    # --- writing ----------------------------------------------------------------------------------

    def _write_gathered(self) -> None:
        """Write the gathered messages before anything else. A storage failure breaks the loop."""
        batch: OpenBatch | None = self.gathering.batch
        if batch is None:
            return
        self.gathering.batch = None
        if not batch.tasks:
            return  # its first message was refused
        try:
            self._write_batch(batch)
        except StorageFailedError as failure:
            self._break(failure)
        else:
            self._written()

    def _write_before(self) -> None:
        """Write the gathered messages before something else is done. Raises BrokenResourceError."""
        self._write_gathered()
        if self._failure is not None:
            raise self._broken()

    def _write_batch(self, batch: OpenBatch) -> None:
        tasks = batch.tasks
        followers = tasks[1:]
        if followers:
            self._covered.append((self.syncs_prepared + 1, followers))
        for task, failure in self._write(batch):
            if task is not tasks[0]:
                followers.remove(task)
                trio.lowlevel.reschedule(task, outcome.Error(failure))
            else:
                self._refuse_gathered(task, failure)
                if followers:
                    self._ask_for_barrier()  # for them: this was the one that waited for it

    # --- sending ----------------------------------------------------------------------------------

    def gather(self, *message: Any) -> int:
        """Add a synced message to the batch, or begin one with it, and return its number there.

        The sender of number 0 then waits for a `barrier` at once; the others sleep. -1: the message would be
        alone, is not simple, or has no space in the batch.
        """
        self.own_thread.check()
        gathering = self.gathering
        if gathering.batch is not None:
            return gathering.add(*message)  # type: ignore[no-any-return]
        if not self._unsynced or self.is_closing:
            return -1
        gathering.batch = self._begin_gathering()
        if gathering.batch is None:
            return -1
        number: int = gathering.add(*message)
        if number < 0:
            gathering.batch = None
        else:
            self._narrow_gates()  # no later message passes one before these are written
        return number

    def _must_wait(self, sending: S) -> bool:
        self._write_before()
        return super()._must_wait(sending)

    # --- syncs ------------------------------------------------------------------------------------

    def _wake_unsynced(self, number: int) -> None:
        super()._wake_unsynced(number)
        while self._covered and self._covered[0][0] <= number:
            _, followers = self._covered.pop(0)
            if followers:
                self._is_lone = False
                wake_tasks(followers)
                self.new_slice()

    def _break(self, failure: BaseException) -> None:
        batch: OpenBatch | None = self.gathering.batch
        self.gathering.batch = None
        waiting = [task for _, followers in self._covered for task in followers]
        waiting += batch.tasks[1:] if batch is not None else []
        self._covered.clear()
        super()._break(failure)  # their first senders wait for a barrier
        for task in waiting:
            trio.lowlevel.reschedule(task, outcome.Error(self._broken()))

    @property
    def _is_done(self) -> bool:
        return super()._is_done and not self._covered

    # --- for statistics ---------------------------------------------------------------------------

    @property
    def tasks_waiting_send(self) -> int:
        batch: OpenBatch | None = self.gathering.batch
        followers = sum(len(tasks) for _, tasks in tuple(self._covered))
        return super().tasks_waiting_send + followers + (max(0, len(batch.tasks) - 1) if batch else 0)
