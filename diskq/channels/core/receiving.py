# Taking messages out of a tail: what a stream's consumer and a journal's scanner have in common.
#
# `receive` tries a compiled door first: a cancellation point, one call, done. Where the door refuses
# (the slice is over, it is another one's turn, there is nothing to take) the tail decides.

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.core.handle import MANY_BYTES, Handle, Iterated
from diskq.channels.core.opening import Opening
from diskq.channels.core.tail import Tail, TailPart, take_one
from diskq.engine.log.reader import Sized, SkippedBytes
from diskq.storage.callbacks import check_plain

__all__ = ["End", "OpeningReceiver", "TailReceiver", "TakenMessages", "checked_end"]

M = TypeVar("M", bound=Sized)
R = TypeVar("R", bound="TailReceiver[Any]")

End = Literal["wait", "close"] | int


class TakenMessages(Generic[M]):
    """Messages that were taken together, and from where: so that they can be put back, or committed."""

    def __init__(self, tail: Tail, max_items: int, max_bytes: int) -> None:
        self.messages: list[M] = []
        self.starts: dict[TailPart, int] = {}
        self._tail = tail
        self._max_items = max_items
        self._left = max_bytes

    def fetch(self, part: TailPart) -> Self:
        """Take what is there: of this partition, then of the others in turn."""
        turn: TailPart | None = part
        while turn is not None and self.has_room:
            ahead = turn.ahead
            if self.messages and ahead.next_size > self._left:
                self._left = 0
                break
            self.starts.setdefault(turn, turn.position)
            most = min(self._max_items - len(self.messages), self._tail.gate.left)
            more = ahead.take_many(most, self._left)
            self._left -= sum(len(message.key) + len(message.value) for message in more)
            self.messages += more
            if self.has_room:
                turn = self._tail.find_more()
        return self

    @property
    def has_room(self) -> bool:
        return len(self.messages) < self._max_items and self._left > 0

    def put_back(self) -> None:
        """Let them be received again."""
        for part, start in self.starts.items():
            self._tail.rewind(part, start)


class TailReceiver(Handle, Iterated[M]):
    """Receives from a tail. A subclass says what is committed, and how. Messages are `M`.

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
        self._unprocessed: set[TailPart] = set()  # what was received last is of these: with autocommit
        tail.on_turn = self._count_turn if autocommit else self._open_doors
        tail.gate.restart()

    def _open_doors(self, part: TailPart) -> None:
        ahead = part.ahead
        self._take, self._take_now, self._take_some = ahead.take, ahead.take_untimed, ahead.take_some

    def _count_turn(self, part: TailPart) -> None:
        # No fast doors: each call is to say that what was received before is processed.
        self._unprocessed.add(part)

    # --- for the subclass -------------------------------------------------------------------------

    def _check_commits(self) -> None:
        """Raises what keeps commits from being made."""

    def _commit_received(self) -> None:
        """What is `_unprocessed` is processed, up to where each is, and is not unprocessed any more."""

    def _commit_block(self, parts: Iterable[TailPart]) -> None:
        """The same of these, after a block."""

    # --- receiving --------------------------------------------------------------------------------

    async def receive(self) -> M:
        """The next message; waits for one. Receivers are served in order of arrival.

        `Cancelled` means: nothing was received. Raises trio.EndOfChannel behind the last message that was
        asked for, OffsetOutOfRangeError where what comes next was removed meanwhile (then `seek`), OSError
        where the files cannot be read: nothing was received then, either, and it may be tried again.
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
        """As `receive`; raises trio.WouldBlock where there is no message for us now."""
        if (message := self._take_now()) is not None:
            return message
        self._begin_to_take()
        return self._tail.take_now(take_one)  # type: ignore[no-any-return]

    @enable_ki_protection
    async def receive_many(
        self, max_items: int, *, max_bytes: int = MANY_BYTES, linger: float = 0.0
    ) -> list[M]:
        """The next messages, at least one, which it waits for.

        At most `max_items`, keys and values of together at most `max_bytes`, but one however large. With
        `linger` it waits so many seconds more for `max_items` to be there; others wait meanwhile. Raises as
        `receive`; `Cancelled` means: nothing was received.
        """
        if linger == 0 and max_items > 0:
            if self._needs_point():
                await self._first_point()
            if (messages := self._take_some(max_items, max_bytes)) is not None:
                return messages
            self._tail.own_thread.check()
            await self._tail.schedule_point()
            if (messages := self._take_some(max_items, max_bytes)) is not None:
                return messages
            self._begin_to_take()
            batch = TakenMessages[M](self._tail, max_items, max_bytes)
            await self._waiting(self._tail.take(batch.fetch))
            return batch.messages
        batch = await self._lease(max_items, max_bytes, linger)
        self._tail.release()
        return batch.messages

    @enable_ki_protection
    async def receive_if(self, may_take: Callable[[], bool]) -> list[M]:
        """The next message, alone in a list, if `may_take()` says so when it is our turn; else [].

        So `select` asks. Waits and raises as `receive`; `Cancelled` means: nothing was received.
        """
        check_plain("may_take", may_take)
        await self._begin()
        self._begin_to_take()
        return await self._waiting(self._tail.take(lambda part: [take_one(part)] if may_take() else []))

    @enable_ki_protection
    async def peek(self) -> M:
        """The next message, which stays; waits for one. Raises as `receive`."""
        await self._begin()
        self._begin_to_take()
        return await self._waiting(self._tail.take(_peek))

    @asynccontextmanager
    @enable_ki_protection
    async def receiving(
        self, max_items: int, *, max_bytes: int = MANY_BYTES, linger: float = 0.0
    ) -> AsyncIterator[list[M]]:
        """The next messages, for the length of a block, which is the unit of work.

        Takes what `receive_many` takes. Leaving the block cleanly commits them, where anything is committed.
        An exception, `Cancelled` among them, puts them back, to be received again. Others wait meanwhile.
        """
        batch = await self._lease(max_items, max_bytes, linger)
        try:
            yield batch.messages
        except BaseException:
            if not self._is_closed:
                batch.put_back()
            raise
        else:
            if self._is_closed:
                raise trio.ClosedResourceError(f"{self._told}, and this block was not committed")
            self._commit_block(batch.starts)
        finally:
            self._unprocessed.clear()
            if not self._is_closed:
                self._tail.release()

    async def _lease(self, max_items: int, max_bytes: int, linger: float) -> TakenMessages[M]:
        """Take a batch, and keep everybody else from taking."""
        await self._begin()
        if max_items < 1:
            raise ValueError(f"max_items is at least 1, got {max_items}")
        self._begin_to_take()
        batch = TakenMessages[M](self._tail, max_items, max_bytes)

        def begin(part: TailPart) -> TakenMessages[M]:
            batch.fetch(part)
            self._tail.lease()
            return batch

        await self._waiting(self._tail.take(begin))
        try:
            with trio.move_on_after(linger):
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
        """The doors were shut. With autocommit they always are, and what was received before is processed."""
        self._check()
        if self._unprocessed:
            self._commit_received()

    def __anext__(self) -> Any:
        return self._receive(StopAsyncIteration)

    # --- as a whole -------------------------------------------------------------------------------

    @property
    def losses(self) -> tuple[SkippedBytes, ...]:
        """What could not be read since the open, because it was damaged."""
        return tuple(self._tail.losses)

    def finish(self) -> None:
        """The block was left cleanly: with autocommit, what was received in it is processed."""
        if self._unprocessed and not self._is_closed:
            # What is broken is told when the block is left.
            with contextlib.suppress(trio.BrokenResourceError):
                self._commit_received()

    def close(self) -> None:
        """Let go of the files, and wake who waits with ClosedResourceError. Idempotent.

        The last commits are synced, and what was claimed is released, when the block is left.
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
    """Opens a receiver, and has it commit what is left when its block ends."""

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


def checked_end(end: End) -> End:
    """The same; raises TypeError, or ValueError for an unknown word or a negative offset."""
    if isinstance(end, str):
        if end not in ("wait", "close"):
            raise ValueError(f'end is "wait", "close" or an offset, got {end!r}')
    elif isinstance(end, bool) or not isinstance(end, int):
        raise TypeError(f"end is a word or an offset, not {type(end).__name__}")
    elif end < 0:
        raise ValueError(f"an offset is 0 or more, got {end}")
    return end


def _refuse(*_: object) -> None:
    return None
