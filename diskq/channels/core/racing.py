# Waiting on several receivers at once. Law: one of them gives a message, the others keep theirs.
#
# Two may have a message at the same moment, and a receiver cannot take back a message it has given.
# So the others must be stopped in the moment in which the first one gives a message, before any task runs:
#
#   what has `receive_if`     calls `may_take()` when it has a message: true for the first caller, which must
#                             then give its message; the others keep theirs
#   Trio's memory channels    wake the waiting task: an instrument sees the wake-up, and at once cancels the
#                             tasks that wait on other channels
#   anything else             is cancelled when another one has won, which may be too late: the caller of the
#                             race must keep the additional messages

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import outcome
import trio
from trio.lowlevel import Task, current_task, enable_ki_protection

from diskq.channels.core.event_loops.seam import running_event_loop

__all__ = ["Race", "Receiver", "Taken", "keeps_its_own"]

T_co = TypeVar("T_co", covariant=True)


class Receiver(Protocol[T_co]):
    """Anything to receive from: Trio's memory channels, a disk queue, a stream's consumer, a merge."""

    async def receive(self) -> T_co: ...

    def receive_nowait(self) -> T_co: ...


Taken = tuple[Receiver[Any], outcome.Outcome[Any]]


def keeps_its_own(receiver: Receiver[Any]) -> bool:
    """True if the receiver keeps its message when another receiver gives one at the same moment."""
    return hasattr(receiver, "receive_if") or isinstance(receiver, trio.MemoryReceiveChannel)


class Race:
    """One wait for the first of several receivers."""

    def __init__(self, receivers: Iterable[Receiver[Any]]) -> None:
        self._receivers = list(receivers)
        self._taken: list[Taken] = []
        self._is_decided = False
        self._event_loop = running_event_loop()
        self._scope = self._event_loop.scope()
        self._parked: list[trio.CancelScope] = []  # those of the tasks that wait on memory channels

    @enable_ki_protection
    async def run(self) -> list[Taken]:
        """Wait for the first receiver. Returns its message or error, and those of others at the same moment.

        Of the receivers that keep their own, at most one gives a message. The list is empty if all have
        ended, and after `stop`. `Cancelled` means: nothing was taken. If a message was given at the moment of
        the cancellation, it is returned instead.
        """
        with self._scope:
            async with self._event_loop.open_nursery() as nursery:
                for receiver in self._receivers:
                    nursery.start_soon(self._wait_for, receiver)
        if not self._taken:
            await self._event_loop.checkpoint_if_cancelled()
        return self._taken

    def stop(self) -> None:
        """Make `run` return."""
        self._decide()
        self._scope.cancel()

    def _decide(self) -> bool:
        """Decide the race for the caller: True for the first call. No other receiver gives a message then."""
        if self._is_decided:
            return False
        self._is_decided = True
        for scope in self._parked:
            scope.cancel()
        return True

    @enable_ki_protection
    async def _wait_for(self, receiver: Any) -> None:
        wait: Callable[[Any], Awaitable[list[Any]]] = _receive
        if hasattr(receiver, "receive_if"):
            wait = self._ask
        elif isinstance(receiver, trio.MemoryReceiveChannel):
            wait = self._park
        try:
            self._taken += [(receiver, outcome.Value(message)) for message in await wait(receiver)]
        except trio.EndOfChannel:
            return  # the others go on
        except self._event_loop.cancelled:
            return  # from outside, too: another one may have a message, and `run` is to return it
        except Exception as failure:
            self._taken.append((receiver, outcome.Error(failure)))
        self.stop()

    async def _ask(self, receiver: Any) -> list[Any]:
        return await receiver.receive_if(self._decide)  # type: ignore[no-any-return]

    async def _park(self, channel: trio.MemoryReceiveChannel[Any]) -> list[Any]:
        if self._is_decided:
            return []
        try:
            message = channel.receive_nowait()
        except trio.WouldBlock:
            pass
        else:
            self._decide()
            return [message]
        # The channel is empty: a task that is woken from here on has a message, unless the channel ended.
        with trio.CancelScope() as scope, _called_when_woken(lambda: self._note_woken(channel)):
            self._parked.append(scope)
            return [await channel.receive()]
        return []

    def _note_woken(self, channel: trio.MemoryReceiveChannel[Any]) -> None:
        if channel.statistics().open_send_channels:
            self._decide()


async def _receive(receiver: Receiver[Any]) -> list[Any]:
    return [await receiver.receive()]


# --- callbacks for a task that is woken -----------------------------------------------------------


class Wakings(trio.abc.Instrument):
    """An instrument: Trio calls it when a task becomes runnable, in the same step."""

    def __init__(self) -> None:
        self.callbacks: dict[Task, Callable[[], None]] = {}

    def task_scheduled(self, task: Task) -> None:
        callback = self.callbacks.get(task)
        if callback is not None:
            callback()


_of_run: trio.lowlevel.RunVar[Wakings] = trio.lowlevel.RunVar("diskq_wakings")


@contextmanager
def _called_when_woken(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` whenever the running task is woken. The instrument is installed only while needed."""
    instrument = wakings()
    if not instrument.callbacks:
        trio.lowlevel.add_instrument(instrument)
    task = current_task()
    instrument.callbacks[task] = callback
    try:
        yield
    finally:
        del instrument.callbacks[task]
        if not instrument.callbacks:
            trio.lowlevel.remove_instrument(instrument)


def wakings() -> Wakings:
    """Return the instrument of this Trio run."""
    try:
        return _of_run.get()
    except LookupError:
        _of_run.set(instrument := Wakings())
        return instrument
