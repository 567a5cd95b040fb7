# Receiving what has to be settled, one or many: what a queue's work and a priority queue have in common.
# Law: what was taken is handed over, or given back.

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable
from typing import TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.core.handle import MANY_BYTES, Handle, Iterated

__all__ = ["LeasingHandle"]

R = TypeVar("R")


class LeasingHandle(Handle, Iterated[R]):
    """A handle through which messages are taken as `R`, which has to be acknowledged, or given back."""

    # --- for the subclass -------------------------------------------------------------------------

    @abstractmethod
    def _take(self, max_items: int, max_bytes: int) -> Awaitable[list[R]]:
        """The next messages, at least one, which it waits for. `Cancelled` means: nothing was taken.

        The handle was checked.
        """

    @abstractmethod
    def _size_of(self, taken: R) -> int:
        """In bytes."""

    @abstractmethod
    def _return(self, taken: list[R]) -> None:
        """As if they had not been handed out."""

    @abstractmethod
    def _return_quietly(self, taken: list[R]) -> None:
        """The same behind an exception: raises nothing of its own."""

    # --- receiving --------------------------------------------------------------------------------

    @enable_ki_protection
    async def receive_many(
        self, max_items: int, *, max_bytes: int = MANY_BYTES, linger: float = 0.0
    ) -> list[R]:
        """The next messages, at least one, which it waits for.

        At most `max_items`, of together at most `max_bytes`, but one however large. With `linger` it
        waits so many seconds more for others to come. As `receive`.
        """
        if max_items < 1:
            raise ValueError(f"max_items is at least 1, got {max_items}")
        await self._begin()
        taken = await self._take(max_items, max_bytes)
        if linger and len(taken) < max_items:
            await self._gather(taken, max_items, max_bytes, linger)
        return taken

    async def _gather(self, taken: list[R], max_items: int, max_bytes: int, seconds: float) -> None:
        """Have more of them, as they come. All are given back where that ends with an exception."""
        size = sum(map(self._size_of, taken))
        try:
            with trio.move_on_after(seconds):
                while len(taken) < max_items and size < max_bytes:
                    self._check()
                    more = await self._take(max_items - len(taken), max_bytes - size)
                    size += sum(map(self._size_of, more))
                    if size > max_bytes:
                        self._return(more)
                    else:
                        taken += more
        except BaseException:
            self._return_quietly(taken)
            raise
