# A handle on a log that is open for writing: what a stream's and a journal's have in common.
#
# A subclass's `send` tries a compiled door first: a cancellation point, one call, done. Where the door
# refuses (the slice is over, a sync is due, a message needs judgement, nobody is awake to write what
# belongs to it) the loop decides.

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import trio
from trio.lowlevel import checkpoint_if_cancelled, current_task, enable_ki_protection

from diskq.channels.cancellation import always, cancellation_test
from diskq.channels.leaving import Leaving
from diskq.channels.sendingloop import SendingLoop
from diskq.errors import StorageFailedError
from diskq.options import DURABILITY_WORDS, Durability
from diskq.storage.closing import Closing
from diskq.storage.recovery import Repair

__all__ = ["Sender"]

P = TypeVar("P")
R = TypeVar("R")


class Sender(Leaving, Closing, Generic[P]):
    """Sends messages to a log. `P` is what each gets: where it is.

    Any number of tasks may send at once, through one handle or through clones. Every async method is a
    cancellation point, and a schedule point once per slice; where one raises `Cancelled`, nothing was sent.
    """

    def __init__(
        self, loop: SendingLoop[Any, P], put: Callable[..., P | None], put_now: Callable[..., P | None]
    ) -> None:
        """`put` and `put_now` are the compiled doors; the second one is for who cannot yield."""
        self._loop = loop
        self._is_closed = False
        self._tasks: set[trio.lowlevel.Task] = set()  # those that may be waiting, on this handle
        # In strict mode every call passes a full checkpoint; then one cancellation point is enough.
        self._first_point = trio.lowlevel.checkpoint if loop.is_strict else checkpoint_if_cancelled
        self._needs_point: Any = always if loop.is_strict else cancellation_test()
        self._waiting = loop.waiting
        self._word = loop.options.durability
        self._is_written = self._word == "written"
        self._put: Callable[..., P | None] = put if self._is_written else _refuse
        self._put_now: Callable[..., P | None] = put_now if self._is_written else _refuse
        loop.open_handles += 1

    # --- sending ----------------------------------------------------------------------------------

    @abstractmethod
    def _checked(self, message: tuple[Any, ...], word: Durability) -> tuple[int, Callable[[], P]]:
        """How large the message is, and what puts it in, once there is room. Raises what is wrong with it."""

    async def _send(self, message: tuple[Any, ...], durability: Durability | None) -> P:
        """Send what the compiled door has refused, or was not asked for, behind a cancellation point."""
        self._loop.own_thread.check()
        await self._loop.schedule_point()
        if (durability or self._word) == "synced" and not self._is_closed:
            gathered = self._loop.gathered or self._loop.gather()
            if gathered is not None and (number := gathered.add(message, current_task())) >= 0:
                await self._loop.barrier(with_metadata=False)
                return gathered.places[number]  # type: ignore[return-value]
        if durability is None and self._is_written:
            try:
                if (position := self._loop.send_simply(*message)) is not None:
                    return position
            except OSError as failure:
                self._write_failed(failure)
        word = self._checked_word(durability)
        if word == "synced":
            position = None
            try:
                position = self._loop.send_through(*message)
            except OSError as failure:
                self._write_failed(failure)
            if position is not None:
                await self._loop.barrier(with_metadata=False)
                return position
        size, put_in = self._checked(message, word)
        return await self._deliver(size, put_in, word)

    def _send_now(self, message: tuple[Any, ...]) -> P:
        """The same for a caller that will not wait. Raises WouldBlock."""
        try:
            if (position := self._put_now(*message)) is not None:
                if self._waiting:
                    self._loop.tell(self._loop.partition_of(position))
                return position
            if (
                self._is_written
                and not self._is_closed
                and (position := self._loop.send_simply(*message)) is not None
            ):
                return position
        except OSError as failure:
            self._write_failed(failure)
        word = self._checked_word(None)
        size, put_in = self._checked(message, word)
        try:
            return self._loop.deliver_now(size, put_in, word)
        except StorageFailedError as failure:
            self._loop.broke(failure)

    async def _deliver(self, size: int, put_in: Callable[[], R], word: Durability) -> R:
        task = current_task()
        self._tasks.add(task)
        try:
            return await self._loop.deliver(size, put_in, word)
        except StorageFailedError as failure:
            self._loop.broke(failure)
        finally:
            self._tasks.discard(task)

    def _checked_word(self, durability: Durability | None) -> Durability:
        self._check()
        word = durability or self._word
        if word not in DURABILITY_WORDS:
            raise ValueError(f"durability is one of {', '.join(DURABILITY_WORDS)}, got {word!r}")
        return word

    def _write_failed(self, failure: OSError) -> None:
        try:
            self._loop.engine.log.append_failed(failure)
        except StorageFailedError as fatal:
            self._loop.broke(fatal)

    # --- the log as a whole -----------------------------------------------------------------------

    @enable_ki_protection
    async def sync(self) -> None:
        """Return when all messages sent are on the platter, with all that belongs to them."""
        await self._first_point()
        await self._loop.schedule_point()
        self._check()
        await self._loop.barrier(with_metadata=True)

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """What was found wrong with the files at the open."""
        return self._loop.engine.repairs  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close this handle, and wake who waits on it with ClosedResourceError. Idempotent.

        What it writes to lives as long as the block that opened it.
        """
        if not self._is_closed:
            self._loop.own_thread.check()
            self._is_closed = True
            self._put = self._put_now = _refuse
            self._is_written = False
            self._loop.open_handles -= 1
            self._loop.dismiss(self._tasks)

    async def aclose(self) -> None:
        """As `close`, and a checkpoint."""
        self.close()
        await trio.lowlevel.checkpoint()

    def _check(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("this handle was closed")
        self._loop.check()


def _refuse(*_: object) -> None:
    return None
