# Receiving messages that must be settled: what a queue's work and a priority queue have in common.
# Law: a message that was taken is returned to the caller, or given back.

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable
from typing import TypeVar

from trio.lowlevel import enable_ki_protection

from diskq.channels.core.handle import MANY_BYTES, Handle, Iterated

__all__ = ["LeasingHandle"]

R = TypeVar("R")


class LeasingHandle(Handle, Iterated[R]):
    """A handle that takes messages as `R`, which the caller must acknowledge or give back."""

    # --- for the subclass -------------------------------------------------------------------------

    @abstractmethod
    def _take(self, max_messages: int, max_bytes: int) -> Awaitable[list[R]]:
        """Take the next messages; waits for at least one. `Cancelled` means: nothing was taken.

        The caller has checked the handle.
        """

    @abstractmethod
    def _size_of(self, taken: R) -> int:
        """Return the size in bytes."""

    @abstractmethod
    def _return(self, taken: list[R]) -> None:
        """Give them back, as if they had not been handed out."""

    @abstractmethod
    def _return_quietly(self, taken: list[R]) -> None:
        """Give them back while an exception is raised: raises nothing of its own."""

    # --- receiving --------------------------------------------------------------------------------

    @enable_ki_protection
    async def receive_many(
        self, max_messages: int, *, max_bytes: int = MANY_BYTES, linger: float = 0.0
    ) -> list[R]:
        """Return the next messages; waits for at least one.

        At most `max_messages` messages with at most `max_bytes` in all; one message of any size is always
        returned. It then waits up to `linger` seconds for more. Raises as `receive`; `Cancelled` means:
        nothing was taken.
        """
        if max_messages < 1:
            raise ValueError(f"max_messages is at least 1, got {max_messages}")
        await self._begin()
        taken = await self._take(max_messages, max_bytes)
        if linger and len(taken) < max_messages:
            await self._gather(taken, max_messages, max_bytes, linger)
        return taken

    async def _gather(self, taken: list[R], max_messages: int, max_bytes: int, seconds: float) -> None:
        """Add messages to `taken` as they come. After an exception all are given back."""
        size = sum(map(self._size_of, taken))
        try:
            with self._channel.event_loop.move_on_after(seconds):
                while len(taken) < max_messages and size < max_bytes:
                    self._check()
                    more = await self._take(max_messages - len(taken), max_bytes - size)
                    size += sum(map(self._size_of, more))
                    if size > max_bytes:
                        self._return(more)
                    else:
                        taken += more
        except BaseException:
            self._return_quietly(taken)
            raise
