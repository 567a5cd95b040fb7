# Receiving from a tail: what a stream's consumer and a journal's scanner have in common.
#
# `receive` tries the compiled fast path first: a cancellation point, then one call. If the fast path refuses
# (the slice is over, it is another partition's turn, there is no message) the tail decides.

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.core.handle import MANY_BYTES, Handle, Iterated
from diskq.channels.core.opening import Opening
from diskq.channels.core.tail import Tail, TailPart, take_one
from diskq.engine.log.reader import Sized, SkippedBytes
from diskq.engine.log.start import End, checked_end
from diskq.storage.callbacks import check_plain

__all__ = ["End", "OpeningReceiver", "TailReceiver", "TakenMessages", "checked_end"]

M = TypeVar("M", bound=Sized)
R = TypeVar("R", bound="TailReceiver[Any]")


class TakenMessages(Generic[M]):
    """Messages that were taken together, and their positions, so that they can be put back or committed."""

    def __init__(self, tail: Tail, max_messages: int, max_bytes: int) -> None:
        self.messages: list[M] = []
        self.starts: dict[TailPart, int] = {}
        self._tail = tail
        self._max_messages = max_messages
        self._left = max_bytes

    def fetch(self, part: TailPart) -> Self:
        """Take the available messages of this partition, then of the other partitions in turn."""
        turn: TailPart | None = part
        while turn is not None and self.has_room:
            ahead = turn.ahead
            if self.messages and ahead.next_size > self._left:
                self._left = 0
                break
            self.starts.setdefault(turn, turn.position)
            most = min(self._max_messages - len(self.messages), self._tail.gate.left)
            more = ahead.take_many(most, self._left)
            self._left -= sum(len(message.key) + len(message.value) for message in more)
            self.messages += more
            if self.has_room:
                turn = self._tail.find_more()
        return self

    @property
    def has_room(self) -> bool:
        return len(self.messages) < self._max_messages and self._left > 0

    def put_back(self) -> None:
        """Put all messages back, to be received again."""
        for part, start in self.starts.items():
            self._tail.rewind(part, start)


class TailReceiver(Handle, Iterated[M]):
    """Receives from a tail. A subclass defines what is committed, and how. Messages are `M`.

    Any number of tasks may receive at once; each message is handed to one of them. Every async method is a
    cancellation point, and a schedule point once per slice; where one raises `Cancelled`, nothing was
    received.
    """

    def __init__(self, tail: Tail, *, autocommit: bool) -> None:
        super().__init__(tail)
        self._tail = tail
        self._take: Callable[[], M | None] = _refuse
        self._take_now: Callable[[], M | None] = _refuse
        self._take_some: Callable[[int, int], list[M] | None] = _refuse
        self._unprocessed: set[TailPart] = set()  # with autocommit: the partitions of the last receive
        tail.on_turn = self._count_turn if autocommit else self._open_fast_path
        tail.gate.restart()

    def _open_fast_path(self, part: TailPart) -> None:
        ahead = part.ahead
        self._take, self._take_now, self._take_some = ahead.take, ahead.take_untimed, ahead.take_some

    def _count_turn(self, part: TailPart) -> None:
        # No fast path: each call must first commit what was received before.
        self._unprocessed.add(part)

    # --- for the subclass -------------------------------------------------------------------------

    def _check_commits(self) -> None:
        """Raise if commits cannot be made."""

    def _commit_received(self) -> None:
        """Commit each partition in `_unprocessed` up to its position, and clear the set."""

    def _commit_block(self, parts: Iterable[TailPart]) -> None:
        """Commit these partitions up to their positions, after a `receiving` block."""

    # --- receiving --------------------------------------------------------------------------------

    async def receive(self) -> M:
        """Return the next message; waits for one. Receivers are served in order of arrival.

        `Cancelled` means: nothing was received. Raises trio.EndOfChannel after the last message up to `end`,
        OffsetOutOfRangeError if the next message was removed meanwhile (then `seek`), OSError if the files
        cannot be read. After an error nothing was received, and the caller may try again.
        """
        return await self._receive(trio.EndOfChannel)

    @enable_ki_protection
    async def _receive(self, ended: type[Exception]) -> M:
        if self._needs_point():
            await self._first_point()
        if (message := self._take()) is not None:
            return message
        self._tail.own_thread.check()
        await self._tail.schedule_point()
        if (message := self._take()) is not None:
            return message
        self._begin_to_take()
        try:
            return await self._waiting(self._tail.take(take_one))
        except trio.EndOfChannel:
            raise ended from None

    @enable_ki_protection
    def receive_nowait(self) -> M:
        """Do as `receive` without waiting; raises trio.WouldBlock if no message is available now."""
        if (message := self._take_now()) is not None:
            return message
        self._begin_to_take()
        return self._tail.take_now(take_one)  # type: ignore[no-any-return]

    @enable_ki_protection
    async def receive_many(
        self, max_messages: int, *, max_bytes: int = MANY_BYTES, linger: float = 0.0
    ) -> list[M]:
        """Return the next messages; waits for at least one.

        At most `max_messages` messages, with at most `max_bytes` of keys and values in all; one message of
        any size is always returned. It then waits up to `linger` seconds until `max_messages` are there;
        other receivers wait meanwhile. Raises as `receive`; `Cancelled` means: nothing was received.
        """
        if linger == 0 and max_messages > 0:
            if self._needs_point():
                await self._first_point()
            if (messages := self._take_some(max_messages, max_bytes)) is not None:
                return messages
            self._tail.own_thread.check()
            await self._tail.schedule_point()
            if (messages := self._take_some(max_messages, max_bytes)) is not None:
                return messages
            self._begin_to_take()
            batch = TakenMessages[M](self._tail, max_messages, max_bytes)
            await self._waiting(self._tail.take(batch.fetch))
            return batch.messages
        batch = await self._lease(max_messages, max_bytes, linger)
        self._tail.release()
        return batch.messages

    @enable_ki_protection
    async def receive_if(self, may_take: Callable[[], bool]) -> list[M]:
        """Return [message] if `may_take()` is true when a message is there; else [], and the message stays.

        `select` receives this way. Waits and raises as `receive`; `Cancelled` means: nothing was received.
        """
        check_plain("may_take", may_take)
        await self._begin()
        self._begin_to_take()
        return await self._waiting(self._tail.take(lambda part: [take_one(part)] if may_take() else []))

    @enable_ki_protection
    async def peek(self) -> M:
        """Return the next message without taking it; waits for one.

        Raises as `receive`; `Cancelled` changes nothing.
        """
        await self._begin()
        self._begin_to_take()
        return await self._waiting(self._tail.take(_peek))

    @asynccontextmanager
    @enable_ki_protection
    async def receiving(
        self, max_messages: int, *, max_bytes: int = MANY_BYTES, linger: float = 0.0
    ) -> AsyncIterator[list[M]]:
        """Receive the next messages for a block: an async context manager that gives a list of them.

        The messages are as from `receive_many`. Leaving the block without an exception commits them, if there
        is a group or a name to commit for. An exception, also `Cancelled`, puts them back, to be received
        again. Other receivers wait meanwhile.
        """
        batch = await self._lease(max_messages, max_bytes, linger)
        try:
            yield batch.messages
        except BaseException:
            if not self._is_closed:
                batch.put_back()
            raise
        else:
            if self._is_closed:
                raise trio.ClosedResourceError(f"{self._closed_text}, and this block was not committed")
            self._commit_block(batch.starts)
        finally:
            self._unprocessed.clear()
            if not self._is_closed:
                self._tail.release()

    async def _lease(self, max_messages: int, max_bytes: int, linger: float) -> TakenMessages[M]:
        """Take a batch, and keep all other receivers from taking."""
        await self._begin()
        if max_messages < 1:
            raise ValueError(f"max_messages is at least 1, got {max_messages}")
        self._begin_to_take()
        batch = TakenMessages[M](self._tail, max_messages, max_bytes)

        def begin(part: TailPart) -> TakenMessages[M]:
            batch.fetch(part)
            self._tail.lease()
            return batch

        await self._waiting(self._tail.take(begin))
        try:
            with self._tail.event_loop.move_on_after(linger):
                while linger and batch.has_room:
                    await self._waiting(self._tail.take_leased(batch.fetch))
        except trio.EndOfChannel:
            pass
        except BaseException:
            if not self._is_closed:
                batch.put_back()
                self._tail.release()
            raise
        return batch

    def _begin_to_take(self) -> None:
        """Check the handle after the fast path refused; with autocommit, commit what was received before."""
        self._check()
        if self._unprocessed:
            self._commit_received()

    def __anext__(self) -> Any:
        return self._receive(StopAsyncIteration)

    # --- as a whole -------------------------------------------------------------------------------

    @property
    def losses(self) -> tuple[SkippedBytes, ...]:
        """The damaged ranges that were skipped since the open."""
        return tuple(self._tail.losses)

    def finish(self) -> None:
        """With autocommit, commit what was received: the block was left without an exception."""
        if self._unprocessed and not self._is_closed:
            # A broken loop is reported when the block is left.
            with contextlib.suppress(trio.BrokenResourceError):
                self._commit_received()

    def close(self) -> None:
        """Close the files, and wake waiting tasks with ClosedResourceError. Idempotent.

        The last commits are synced, and claimed partitions are released, when the block is left.
        """
        super().close()

    def _shut(self) -> None:
        self._take = self._take_now = self._take_some = _refuse

    def _let_go(self) -> None:
        self._tail.close()

    def _check(self) -> None:
        super()._check()
        self._check_commits()


class OpeningReceiver(Opening[R]):
    """Opens a receiver, and makes it commit the rest when its block ends without an exception."""

    @enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is None:
            self._handle.finish()
        await super().__aexit__(kind, value, trace)


def _peek(part: TailPart) -> Any:
    message = part.ahead.peek()
    assert message is not None, "the tail found one"
    return message


def _refuse(*_: object) -> None:
    return None
