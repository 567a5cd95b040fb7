# Senders that wait for room, whatever they send to. Law: in a line they are let in in order of arrival, as
# far as there is room. Whoever makes room puts in what they bring, and wakes them when it is in: nobody who
# comes later gets before them, and `Cancelled` means that nothing is in.

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import outcome
import trio

from diskq.channels.core.barrier_thread import BarrierThread
from diskq.channels.core.commit_loop import CommitLoop, Engine
from diskq.channels.core.waiting_line import Line
from diskq.options import Durability

__all__ = ["AdmittingLoop", "Sending", "SendingOptions"]

E = TypeVar("E", bound=Engine)


@dataclass(slots=True)
class Sending:
    """What a sender brings: checked messages, to be put in all together."""

    line: Line[Any]
    """Where the sender waits if it must."""
    size: int
    """In bytes, as the engine counts them."""
    put_in: Callable[[], Any]
    """Puts them in, and returns what their sender gets. Raises what keeps them out."""
    word: Durability
    arrival: int = field(default=0, init=False)
    """When the sender began to wait, among all who wait for the same room."""


S = TypeVar("S", bound=Sending)


class SendingOptions(Protocol):
    """What the loop wants to know of the options of what is sent to."""

    @property
    def durability(self) -> Durability: ...

    @property
    def checkpoint_slice(self) -> float: ...

    @property
    def memory_flush(self) -> float: ...


class AdmittingLoop(CommitLoop[E], Generic[E, S]):
    """A loop that senders bring messages to, in one line or in several.

    A subclass has the lines, says what is an obstacle, and calls `_admit` in `_after`.
    """

    options: SendingOptions

    def __init__(
        self,
        engine: E,
        thread: BarrierThread,
        senders: Iterable[Line[S]] = (),
        others: Iterable[Line[Any]] = (),
    ) -> None:
        self._sender_lines = tuple(senders)
        super().__init__(engine, thread, (*self._sender_lines, *others))

    # --- for the subclass -------------------------------------------------------------------------

    @abstractmethod
    def _obstacle(self, sending: S) -> bool:
        """Must the sender wait? Raises what refuses it: DiskFullError where that is the policy, say."""

    def _arrival(self) -> int:
        """The place of somebody who begins to wait, among all who wait for the same room."""
        return 0

    def _must_wait(self, sending: S) -> bool:
        """Must a sender who comes now wait? Senders that wait already go first."""
        return bool(sending.line) or self._obstacle(sending)

    def _accepted(self, sending: S) -> None:
        """The messages are in, or were refused, while nobody waited before them."""
        self._after()

    # --- sending ----------------------------------------------------------------------------------

    async def deliver(self, sending: S) -> Any:
        """Put messages in after waiting until there is room for them. Returns what `put_in` does.

        `Cancelled` means: none of them is in. The caller has passed a schedule point.
        """
        if self._must_wait(sending):
            sending.arrival = self._arrival()
            result = await sending.line.wait(sending, on_arrival=self._narrow_gates, on_leave=self._after)
            self.new_slice()
        else:
            result = self._accept(sending)
        if sending.word == "synced":
            await self.barrier(with_metadata=False)
        return result

    def deliver_now(self, sending: S) -> Any:
        """As `deliver`, for a caller that will not wait. Raises WouldBlock."""
        if self._must_wait(sending):
            raise trio.WouldBlock
        return self._accept(sending)

    def _accept(self, sending: S) -> Any:
        try:
            return sending.put_in()
        finally:
            self._accepted(sending)

    def _admit(self, line: Line[S]) -> bool:
        """Let in who waits in this line, as far as there is room. True: somebody left it."""
        before = len(line)
        while line and self._admit_first(line):
            pass
        return len(line) < before

    def _admit_first(self, line: Line[S]) -> bool:
        """Let in the first of the line, or tell it what refuses it. False: it has to wait on."""
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
        """For room, or for a sync."""
        return self._waiting_for_room() + len(self._unsynced) + len(self._syncing)

    def _waiting_for_room(self) -> int:
        return sum(map(len, self._sender_lines))
