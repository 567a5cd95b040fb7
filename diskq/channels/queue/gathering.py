# Synced sends to a queue that are written together, by one system call.

from __future__ import annotations

from diskq.channels.core.gathering import Gathered
from diskq.engine.queue.tail import FifoTail

__all__ = ["GatheredBodies"]


class GatheredBodies(Gathered[bool]):
    """Messages of a queue that wait to be written. Each gets True: it has no position."""

    __slots__ = ("_tail",)

    def __init__(self, tail: FifoTail) -> None:
        super().__init__(tail.room)
        self._tail = tail

    def _write_all(self) -> None:
        before, done = self._tail.records, 0
        try:
            while done < len(self.messages):
                done = self._tail.accept_many(self.messages, done, is_held=False)
        finally:
            count = self._tail.records - before
            self.places = [True] * count + [None] * (len(self.messages) - count)

    def _write_one(self, number: int) -> bool:
        self._tail.accept(self.messages[number], is_held=False)
        return True
