# Senders, in any kind of store: those that wait for space, and those that share a write and a sync.
#
# Law: senders in a line are admitted in order of arrival, as far as there is space. The task that frees space
# also appends their messages and then wakes them: a sender that comes later cannot overtake, and `Cancelled`
# means that none of the messages is in. What was gathered (gathering.py) is written before any later message.

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import outcome
import trio

from diskq.channels.core.budget_place import BudgetPlace
from diskq.channels.core.commit_loop import Beside, CommitLoop, Engine
from diskq.channels.core.event_loops.seam import Task
from diskq.channels.core.gathering import NOT_GATHERED, REFUSALS, OpenBatch, Refused, write_each
from diskq.channels.core.sync_executor import SyncExecutor
from diskq.channels.core.waiting_line import Line
from diskq.errors import StorageFailedError
from diskq.options import Durability
from diskq.storage.budget import BudgetShare

__all__ = ["AdmittingLoop", "Sending", "SendingOptions"]

E = TypeVar("E", bound=Engine)


@dataclass(slots=True)
class Sending:
    """The checked messages of one sender, to be appended together."""

    line: Line[Any]
    """The line in which the sender waits if it must."""
    size: int
    """In bytes, as the engine counts them."""
    put_in: Callable[[], Any]
    """Appends them, and returns the sender's result. Raises the error that keeps them out."""
    durability: Durability
    arrival: int = field(default=0, init=False)
    """The sender's arrival number among all senders that wait for the same space."""


S = TypeVar("S", bound=Sending)


class SendingOptions(Protocol):
    """The options of a store that the loop reads."""

    @property
    def durability(self) -> Durability: ...

    @property
    def checkpoint_slice(self) -> float: ...

    @property
    def memory_flush(self) -> float: ...


class AdmittingLoop(CommitLoop[E], Generic[E, S]):
    """A loop that senders bring messages to.

    It has the lines in which they wait for space, a place in the line of a budget that its engine shares with
    others, and a batch, which is what senders that wait for the same sync write together. A subclass makes
    the lines and `gathering`, defines the obstacles, calls `_write_gathered` before any later message, and
    `_admit` in `_after`.
    """

    __slots__ = ("_place", "_sender_lines", "gathering", "options")

    options: SendingOptions
    gathering: Any
    """Where senders add messages: its `batch` is to be written before the next sync; None: there is none."""

    def __init__(
        self,
        engine: E,
        executor: SyncExecutor,
        senders: Iterable[Line[S]] = (),
        others: Iterable[Line[Any]] = (),
        share: BudgetShare | None = None,
        beside: Iterable[Beside] = (),
    ) -> None:
        """`share` is the share of a budget that the engine has, if any."""
        self._sender_lines = tuple(senders)
        self._place = None if share is None else BudgetPlace(share, self._on_budget_change)
        super().__init__(engine, executor, (*self._sender_lines, *others), beside)

    # --- for the subclass -------------------------------------------------------------------------

    @abstractmethod
    def _obstacle(self, sending: S) -> bool:
        """True if the sender must wait. Raises the error that refuses it, for example DiskFullError."""

    def _arrival(self) -> int:
        """Return the arrival number of a sender that begins to wait."""
        return 0 if self._place is None else self._place.arrival()

    def _must_wait(self, sending: S) -> bool:
        """True if a sender that comes now must wait. Senders that already wait go first."""
        self._write_before()
        return bool(sending.line) or self._obstacle(sending)

    def _accepted(self, sending: S) -> None:
        """Called after messages were appended or refused without waiting."""
        self._after()

    def _begin_gathering(self) -> OpenBatch | None:
        """Return an empty batch; None: a message may have to wait for space, or there are other reasons."""
        return None

    def _written(self) -> None:
        """Called when a batch was written."""

    def _relieve(self) -> None:
        """Give up space of the budget that other loops want, if possible."""

    # --- sending ----------------------------------------------------------------------------------

    async def deliver(self, sending: S) -> Any:
        """Wait until there is space for the messages, and append them. Returns what `put_in` returns.

        `Cancelled` means: none of them is in. The caller has passed a schedule point.
        """
        if self._must_wait(sending):
            sending.arrival = self._arrival()
            result = await sending.line.wait(sending, on_arrival=self._narrow_gates, on_leave=self._after)
            self.new_slice()
        else:
            result = self._accept(sending)
        if sending.durability == "synced":
            await self.barrier(with_metadata=False)
        return result

    def deliver_now(self, sending: S) -> Any:
        """Do as `deliver` without waiting. Raises WouldBlock if the sender must wait."""
        if self._must_wait(sending):
            raise trio.WouldBlock
        return self._accept(sending)

    def _accept(self, sending: S) -> Any:
        try:
            return sending.put_in()
        finally:
            self._accepted(sending)

    def _admit(self, line: Line[S]) -> bool:
        """Admit the senders in this line as far as there is space. True: at least one left the line."""
        before = len(line)
        while line and self._admit_first(line):
            pass
        return len(line) < before

    def _admit_first(self, line: Line[S]) -> bool:
        """Admit or refuse the first sender of the line. False: it has to wait longer."""
        sending = line.first
        has_obstacle = outcome.capture(self._obstacle, sending)
        if has_obstacle == outcome.Value(True):
            return False
        line.wake_first(
            has_obstacle if isinstance(has_obstacle, outcome.Error) else outcome.capture(sending.put_in)
        )
        return True

    def _on_budget_change(self) -> None:
        """Serve the waiting senders after space was freed, or give space up if other loops want it."""
        if self._failure is None and not self.is_closing:
            self._relieve()
            self._after()

    # --- sending together -------------------------------------------------------------------------

    def gather(self, *message: Any) -> int:
        """Add a synced message to the batch, or begin one with it, and return its number there.

        The sender of the `FIRST` one then waits for a `barrier` at once; the others sleep. `NOT_GATHERED`:
        the message would be alone, is not simple, or has no space in the batch.
        """
        self.own_thread.check()
        gathering = self.gathering
        if gathering.batch is not None:
            return gathering.add(*message)  # type: ignore[no-any-return]
        if not self._unsynced or self.is_closing:
            return NOT_GATHERED
        gathering.batch = self._begin_gathering()
        if gathering.batch is None:
            return NOT_GATHERED
        number: int = gathering.add(*message)
        if number == NOT_GATHERED:
            gathering.batch = None
        else:
            self._narrow_gates()  # no later message passes one before these are written
        return number

    def _write_gathered(self) -> None:
        """Write the gathered messages before anything else. A storage failure breaks the loop."""
        batch: OpenBatch | None = self.gathering.batch
        if batch is None:
            return
        self.gathering.batch = None
        tasks = batch.tasks
        if not tasks:
            return  # its first message was refused
        if len(tasks) > 1:
            # The first one is in line for this sync; it asked for it.
            self._unsynced.append((self.syncs_prepared + 1, tasks[1:]))
        refused: Refused = []
        try:
            try:
                batch.write_all()
            except StorageFailedError:
                raise
            except REFUSALS as failure:
                refused = write_each(batch, failure)
        except StorageFailedError as failed:
            self._break(failed)
            return
        for task, reason in refused:
            self._refuse_gathered(task, reason)
        self._written()

    def _refuse_gathered(self, task: Task, failure: Exception) -> None:
        """Wake a sender whose message is not in; the running task gets the error when it asks for a sync."""
        for place in self._unsynced:
            if task in place[1]:
                place[1].remove(task)
                if not place[1]:
                    self._unsynced.remove(place)
                self.event_loop.wake(task, outcome.Error(failure))
                return
        self._refusal = failure

    def _write_before(self) -> None:
        """Write the gathered messages before something else is done. Raises BrokenResourceError."""
        self._write_gathered()
        if self._failure is not None:
            raise self._broken()

    # --- the end ----------------------------------------------------------------------------------

    def _break(self, failure: BaseException) -> None:
        batch: OpenBatch | None = self.gathering.batch
        self.gathering.batch = None
        if batch is not None:
            self._unsynced.append((0, batch.tasks[1:]))  # the first one is in line
        super()._break(failure)
        if self._place is not None:
            self._place.leave()

    # --- for statistics ---------------------------------------------------------------------------

    @property
    def tasks_waiting_send(self) -> int:
        """Tasks that wait for space or for a sync."""
        batch: OpenBatch | None = self.gathering.batch
        gathered = max(0, len(batch.tasks) - 1) if batch else 0
        unsynced = sum(len(tasks) for _, tasks in tuple(self._unsynced))
        return self._waiting_for_room() + unsynced + len(self._syncing) + gathered

    def _waiting_for_room(self) -> int:
        return sum(map(len, self._sender_lines))
