# Many receivers as one. Law: no message is taken before a task receives, and each message taken is returned.
#
# A receiving task tries the receivers in turn with `receive_nowait`. If none has a message, it waits on all
# of them at once, and the first one ends the wait. A receiver that cannot be stopped (see racing.py) may give
# a second message at the same moment: that message is held, and is the next one received.

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

import outcome
import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.core.event_loops.seam import running_event_loop
from diskq.channels.core.handle import Slice
from diskq.channels.core.leaving import Leaving
from diskq.channels.core.own_thread import OwnProcess, OwnThread
from diskq.channels.core.racing import Race, Receiver
from diskq.storage.callbacks import check_plain

__all__ = ["Merged", "Receiver", "merge"]

# Messages of one receiver before it is the next one's turn.
_TURN = 16

T_co = TypeVar("T_co", covariant=True)


@overload
def merge(*receivers: Receiver[T_co], with_source: Literal[False] = False) -> Merged[T_co]: ...
@overload
def merge(*receivers: Receiver[T_co], with_source: Literal[True]) -> Merged[tuple[Receiver[T_co], T_co]]: ...
def merge(*receivers: Receiver[Any], with_source: bool = False) -> Merged[Any]:
    """Return one channel that receives the messages of all receivers, in turn.

    `with_source` gives pairs of a receiver and its message. Each receiver's messages stay in order.
    The channel ends when all receivers have ended. An error of a receiver is raised unchanged, and the others
    can still be received from. Closing the channel leaves the receivers open: their owners close them.
    """
    return Merged(receivers, with_source)


class Merged(Leaving, trio.abc.ReceiveChannel[T_co]):
    """Receives from several receivers in turn. Made by `merge`. Any number of tasks may receive."""

    def __init__(self, receivers: tuple[Receiver[Any], ...], with_source: bool) -> None:
        self._turns = deque(dict.fromkeys(receivers))  # those that have not ended; whose turn it is first
        self._left = _TURN
        self._make: Callable[[Receiver[Any], Any], Any] = _pair if with_source else _message
        self._held: deque[outcome.Outcome[Any]] = deque()
        self._lock: Any = (
            None  # held by the task that waits; made by the first receive: any thread may make a merge
        )
        self._race: Race | None = None
        self._own_thread: OwnThread | None = None  # that of the first receive, too
        self._own_process = OwnProcess("this merge")
        self._is_closed = False
        self._slice = Slice()

    @enable_ki_protection
    async def receive(self) -> T_co:
        """Return the next message of any receiver; waits for one.

        `Cancelled` means: no message is lost. Raises EndOfChannel when all receivers have ended, and the
        error of a receiver unchanged.
        """
        self._check_thread()
        await self._slice.point()
        if not self._lock.locked():
            try:
                return self.receive_nowait()
            except trio.WouldBlock:
                pass
        async with self._lock:
            while True:
                try:
                    return self._take()
                except trio.WouldBlock:
                    await self._wait()
                if self._held:  # it came before this could be closed
                    return self._held.popleft().unwrap()  # type: ignore[no-any-return]

    @enable_ki_protection
    async def receive_if(self, may_take: Callable[[], bool]) -> list[T_co]:
        """Return [message] if `may_take()` is true when a message is there; else [], and the message stays.

        `select` receives this way. Waits and raises as `receive`; `Cancelled` means: no message is lost.
        """
        check_plain("may_take", may_take)
        self._check_thread()
        await self._slice.point()
        async with self._lock:
            while not self._held:
                try:
                    self._held.append(outcome.Value(self._take()))
                except trio.WouldBlock:
                    await self._wait()
            return [self._held.popleft().unwrap()] if may_take() else []

    def receive_nowait(self) -> T_co:
        """Do as `receive` without waiting; raises trio.WouldBlock if no message is available now."""
        self._check_thread()
        if self._lock.locked():
            raise trio.WouldBlock
        return self._take()

    def _check_thread(self) -> None:
        if self._own_thread is None:
            self._own_process.check()
            self._lock = running_event_loop().lock()
            self._own_thread = OwnThread("this merge")
        self._own_thread.check()

    def _take(self) -> T_co:
        if self._is_closed:
            raise trio.ClosedResourceError("this merge was closed")
        if self._held:
            return self._held.popleft().unwrap()  # type: ignore[no-any-return]
        for _ in range(len(self._turns)):
            receiver = self._turns[0]
            try:
                message = receiver.receive_nowait()
            except trio.WouldBlock:
                self._next_turn()
            except trio.EndOfChannel:
                self._turns.popleft()
                self._left = _TURN
            except BaseException:
                self._next_turn()  # so that the others get their turn as well
                raise
            else:
                self._left -= 1
                if not self._left:
                    self._next_turn()
                return self._make(receiver, message)  # type: ignore[no-any-return]
        if not self._turns:
            raise trio.EndOfChannel
        raise trio.WouldBlock

    def _next_turn(self) -> None:
        self._turns.rotate(-1)
        self._left = _TURN

    async def _wait(self) -> None:
        """Return when a message is held, or all receivers have ended, or this was closed."""
        self._race = Race(self._turns)
        try:
            taken = await self._race.run()
        finally:
            self._race = None
        for receiver, result in taken:
            if isinstance(result, outcome.Value):
                result = outcome.Value(self._make(receiver, result.value))
            self._held.append(result)

    def close(self) -> None:
        """Close this channel, and wake its waiting tasks with ClosedResourceError. Held messages are lost."""
        self._own_process.check()
        if self._own_thread is not None:
            self._own_thread.check()
        self._is_closed = True
        if self._race is not None:
            self._race.stop()


def _message(_: Receiver[Any], message: Any) -> Any:
    return message


def _pair(receiver: Receiver[Any], message: Any) -> Any:
    return receiver, message
