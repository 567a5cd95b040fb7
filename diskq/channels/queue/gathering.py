# Synced sends to a queue that are written together, by one system call.

from __future__ import annotations

from diskq.channels.core.gathering import Gathered
from diskq.engine.queue.tail import FifoTail

__all__ = ["GatheredBodies"]


class GatheredBodies(Gathered[bool]):
    """Messages of a queue that wait to be written. Each gets True: it has no position."""

    __slots__ = ("_count", "_tail")

    def __init__(self, tail: FifoTail) -> None:
        super().__init__(tail.room)
        self._tail = tail
        self._count = 0

    def _write_all(self) -> None:
        before, done = self._tail.records, 0
        try:
            while done < len(self.messages):
                done = self._tail.accept_many(self.messages, done, is_held=False)
        finally:
            self._count = self._tail.records - before

    def _found(self) -> list[bool | None]:
        return [True] * self._count + [None] * (len(self.messages) - self._count)

    def _write_one(self, number: int) -> bool:
        self._tail.accept(self.messages[number], is_held=False)
        return True
