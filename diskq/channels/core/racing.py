# Waiting on several receivers at once. Law: one of them gives a message, the others keep theirs.
#
# Two may have a message at the same moment, and what a receiver has handed over it does not take back.
# So it must be stopped in the very moment in which another one hands over, before anybody's task runs:
#
#   what has `receive_if`     asks `may_take()`, with a message at hand: true for the first one who does, who
#                             has to give it then, and the others keep theirs
#   Trio's memory channels    wake the task that waits: an instrument sees it woken, and takes back the tasks
#                             that wait on other channels, there and then
#   anything else             is cancelled when another has won, which may be too late: whoever races such a
#                             receiver needs a place for what comes beside the first message

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import outcome
import trio
from trio.lowlevel import Task, checkpoint_if_cancelled, current_task, enable_ki_protection

__all__ = ["Race", "Receiver", "Taken", "keeps_its_own"]

T_co = TypeVar("T_co", covariant=True)


class Receiver(Protocol[T_co]):
    """What can be received from: Trio's memory channels, a disk queue, a stream's consumer, a merge."""

    async def receive(self) -> T_co: ...

    def receive_nowait(self) -> T_co: ...


Taken = tuple[Receiver[Any], outcome.Outcome[Any]]


def keeps_its_own(receiver: Receiver[Any]) -> bool:
    """Can it be stopped from handing over a message in the moment when another one does?"""
    return hasattr(receiver, "receive_if") or isinstance(receiver, trio.MemoryReceiveChannel)


class Race:
    """One wait for the first of several receivers."""

    def __init__(self, receivers: Iterable[Receiver[Any]]) -> None:
        self._receivers = list(receivers)
        self._taken: list[Taken] = []
        self._is_decided = False
        self._scope = trio.CancelScope()
        self._parked: list[trio.CancelScope] = []  # of those who wait on memory channels

    @enable_ki_protection
    async def run(self) -> list[Taken]:
        """The first one's message, or error; and what came of others in that moment.

        Of those that keep their own, at most one gives a message. Nothing where all have ended, and after
        `stop`. `Cancelled` means: nothing was taken. Who was handed a message in that moment returns it.
        """
        with self._scope:
            async with trio.open_nursery() as nursery:
                for receiver in self._receivers:
                    nursery.start_soon(self._wait_for, receiver)
        if not self._taken:
            await checkpoint_if_cancelled()
        return self._taken

    def stop(self) -> None:
        """Have `run` return."""
        self._decide()
        self._scope.cancel()

    def _decide(self) -> bool:
        """Somebody has something: True for the first one. From now on, nobody else hands over."""
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
        except trio.Cancelled:
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
        # Nothing is there: from here on who is woken has something, unless it is the end.
        with trio.CancelScope() as scope, _told_when_woken(lambda: self._note_woken(channel)):
            self._parked.append(scope)
            return [await channel.receive()]
        return []

    def _note_woken(self, channel: trio.MemoryReceiveChannel[Any]) -> None:
        if channel.statistics().open_send_channels:
            self._decide()


async def _receive(receiver: Receiver[Any]) -> list[Any]:
    return [await receiver.receive()]


# --- who is told when a task is woken -------------------------------------------------------------


class Wakings(trio.abc.Instrument):
    """Trio calls it when any task becomes runnable, in the step that makes it so."""

    def __init__(self) -> None:
        self.told: dict[Task, Callable[[], None]] = {}

    def task_scheduled(self, task: Task) -> None:
        tell = self.told.get(task)
        if tell is not None:
            tell()


_of_run: trio.lowlevel.RunVar[Wakings] = trio.lowlevel.RunVar("diskq_wakings")


@contextmanager
def _told_when_woken(tell: Callable[[], None]) -> Iterator[None]:
    """Have `tell` called whenever the running task is woken. Trio is instrumented while anybody is told."""
    instrument = wakings()
    if not instrument.told:
        trio.lowlevel.add_instrument(instrument)
    task = current_task()
    instrument.told[task] = tell
    try:
        yield
    finally:
        del instrument.told[task]
        if not instrument.told:
            trio.lowlevel.remove_instrument(instrument)


def wakings() -> Wakings:
    """The one of this run of Trio."""
    try:
        return _of_run.get()
    except LookupError:
        _of_run.set(instrument := Wakings())
        return instrument
