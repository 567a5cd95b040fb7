# Many receivers as one. Law: nothing is taken before somebody asks, and what was taken is handed over.
#
# Whoever asks goes round the receivers with `receive_nowait`. Where none has a message, he waits on
# all of them at once, and the first one ends the wait. A second one may come at that very moment, where
# it cannot be stopped from that (see racing): that is held, and comes first when somebody asks again.

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

import outcome
import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.core.handle import Slice
from diskq.channels.core.leaving import Leaving
from diskq.channels.core.own_thread import OwnThread
from diskq.channels.core.racing import Race, Receiver
from diskq.storage.callbacks import check_plain

__all__ = ["Merged", "Receiver", "merge"]

# So many messages of one receiver, then it is the next one's turn.
_TURN = 16

T_co = TypeVar("T_co", covariant=True)


@overload
def merge(*receivers: Receiver[T_co], with_source: Literal[False] = False) -> Merged[T_co]: ...
@overload
def merge(*receivers: Receiver[T_co], with_source: Literal[True]) -> Merged[tuple[Receiver[T_co], T_co]]: ...
def merge(*receivers: Receiver[Any], with_source: bool = False) -> Merged[Any]:
    """All the receivers' messages, through one channel that is fair to each of them.

    `with_source` gives pairs of a receiver and its message. Each receiver's messages stay in order.
    The channel ends when all of them have; an error of one comes out as it is, and the others go on
    to be received. Closing the channel leaves the receivers open: they are their owners'.
    """
    return Merged(receivers, with_source)


class Merged(Leaving, trio.abc.ReceiveChannel[T_co]):
    """Made by `merge`. Receivers are asked in turn; any number of tasks may receive at once."""

    def __init__(self, receivers: tuple[Receiver[Any], ...], with_source: bool) -> None:
        self._turns = deque(dict.fromkeys(receivers))  # those that have not ended; whose turn it is first
        self._left = _TURN
        self._make: Callable[[Receiver[Any], Any], Any] = _pair if with_source else _message
        self._held: deque[outcome.Outcome[Any]] = deque()
        self._lock = trio.StrictFIFOLock()  # held by the one who waits
        self._race: Race | None = None
        self._own_thread: OwnThread | None = None  # of who has received first: a merge may be made anywhere
        self._is_closed = False
        self._slice = Slice()

    @enable_ki_protection
    async def receive(self) -> T_co:
        """The next message of any of them; waits for one.

        `Cancelled` means: no message is lost. Raises EndOfChannel when all have ended, and what a
        receiver raises, as it is.
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
                if self._held:  # it came before anybody could close this
                    return self._held.popleft().unwrap()  # type: ignore[no-any-return]

    @enable_ki_protection
    async def receive_if(self, may_take: Callable[[], bool]) -> list[T_co]:
        """The next message, alone in a list, if `may_take()` says so when it is our turn; else [].

        So `select` asks. Waits and raises as `receive`; `Cancelled` means: no message is lost.
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
        """As `receive`; raises trio.WouldBlock where there is no message for us now."""
        self._check_thread()
        if self._lock.locked():
            raise trio.WouldBlock
        return self._take()

    def _check_thread(self) -> None:
        if self._own_thread is None:
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
                self._next_turn()  # the others are to be heard as well
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
        """Return when something is held, or all have ended, or this was closed."""
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
        """Close this channel, and wake who waits on it with ClosedResourceError. What is held is given up."""
        if self._own_thread is not None:
            self._own_thread.check()
        self._is_closed = True
        if self._race is not None:
            self._race.stop()


def _message(_: Receiver[Any], message: Any) -> Any:
    return message


def _pair(receiver: Receiver[Any], message: Any) -> Any:
    return receiver, message
