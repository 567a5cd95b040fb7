# Sends that are written together: who waits for the same sync may share the write as well.
#
# Law: a message that was gathered is in no queue before it is written, and it is written before anything
# that comes after it. A write that fails is told to those whose messages it could not take, and to nobody
# else.

from __future__ import annotations

import trio

from diskq.engine.priority import PriorityStore
from diskq.engine.storedqueue import StoredQueue
from diskq.errors import DiskqError, StorageFailedError

__all__ = ["MOST_GATHERED", "Gathered"]

MOST_GATHERED = 1024 * 1024
"""So many bytes of messages are gathered at most."""
# Larger messages have a write of their own: others are not to fail for want of their room.
_LARGEST = 64 * 1024
_REFUSALS = (DiskqError, OSError, MemoryError)


class Gathered:
    """Messages of one queue that wait to be written, and the tasks that sent them, in order."""

    __slots__ = ("_highest", "_keys", "_largest", "_lowest", "_payloads", "_queue", "_tasks", "ids", "room")

    def __init__(self, queue: StoredQueue, most: int, room: int) -> None:
        """For payloads of at most `most` bytes, and about `room` bytes in all."""
        self._queue = queue
        self._largest = min(most, _LARGEST)
        if queue.max_message_size is not None:
            self._largest = min(self._largest, queue.max_message_size)
        self._lowest, self._highest = queue.keys
        self._payloads: list[bytes] = []
        self._keys: list[int] = []
        self._tasks: list[trio.lowlevel.Task] = []
        self.room = min(room, MOST_GATHERED)
        """So many bytes more may be taken along."""
        self.ids: list[int] = []
        """What each message got as its id, when it is written; 0: it is not in the queue."""

    def add(self, payload: object, key: object, task: trio.lowlevel.Task) -> int:
        """Take a message along. Returns its place; -1: it needs judgement, or does not fit."""
        if type(payload) is not bytes or type(key) is not int:
            return -1
        size = len(payload)
        if size > self._largest or size > self.room or not self._lowest <= key <= self._highest:
            return -1
        self.room -= size
        self._payloads.append(payload)
        self._keys.append(key)
        self._tasks.append(task)
        return len(self._tasks) - 1

    def write(self, engine: PriorityStore) -> list[tuple[trio.lowlevel.Task, Exception]]:
        """Put the messages into the queue with one write; where that fails, with one for each of the others.

        Returns the tasks whose messages are not in the queue, each with what kept its message out. Raises
        StorageFailedError.
        """
        table, payloads = self._queue.table, self._payloads
        first = table.last_id + 1
        try:
            self.ids = list(engine.add(self._queue, payloads, self._keys, "synced"))
            return []
        except StorageFailedError:
            raise
        except _REFUSALS as failure:
            self.ids = list(range(first, table.last_id + 1))
            if len(payloads) == 1:
                self.ids = [0]
                return [(self._tasks[0], failure)]
        refused: list[tuple[trio.lowlevel.Task, Exception]] = []
        for place in range(len(self.ids), len(payloads)):
            try:
                self.ids += engine.add(self._queue, [payloads[place]], self._keys[place], "synced")
            except StorageFailedError:
                raise
            except _REFUSALS as failure:
                self.ids.append(0)
                refused.append((self._tasks[place], failure))
        return refused
