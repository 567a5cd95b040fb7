# Senders that wait for space, in any kind of store. Law: senders in a line are admitted in order of arrival,
# as far as there is space. The task that frees space also appends their messages and then wakes them: a
# sender that comes later cannot overtake, and `Cancelled` means that none of the messages is in.

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import outcome
import trio

from diskq.channels.core.commit_loop import CommitLoop, Engine
from diskq.channels.core.sync_executor import SyncExecutor
from diskq.channels.core.waiting_line import Line
from diskq.options import Durability

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
    """A loop that senders bring messages to, in one line or in several.

    A subclass makes the lines, defines the obstacles, and calls `_admit` in `_after`.
    """

    __slots__ = ("_sender_lines", "options")

    options: SendingOptions

    def __init__(
        self,
        engine: E,
        executor: SyncExecutor,
        senders: Iterable[Line[S]] = (),
        others: Iterable[Line[Any]] = (),
    ) -> None:
        self._sender_lines = tuple(senders)
        super().__init__(engine, executor, (*self._sender_lines, *others))

    # --- for the subclass -------------------------------------------------------------------------

    @abstractmethod
    def _obstacle(self, sending: S) -> bool:
        """True if the sender must wait. Raises the error that refuses it, for example DiskFullError."""

    def _arrival(self) -> int:
        """Return the arrival number of a sender that begins to wait."""
        return 0

    def _must_wait(self, sending: S) -> bool:
        """True if a sender that comes now must wait. Senders that already wait go first."""
        return bool(sending.line) or self._obstacle(sending)

    def _accepted(self, sending: S) -> None:
        """Called after messages were appended or refused without waiting."""
        self._after()

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

    # --- for statistics ---------------------------------------------------------------------------

    @property
    def tasks_waiting_send(self) -> int:
        """Tasks that wait for space or for a sync."""
        return self._waiting_for_room() + len(self._unsynced) + len(self._syncing)

    def _waiting_for_room(self) -> int:
        return sum(map(len, self._sender_lines))
