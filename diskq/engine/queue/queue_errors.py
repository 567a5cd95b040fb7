# The errors by which a program that knows the standard library's queues knows these. They are not in
# diskq/errors.py, since `queue` imports `threading`, which most programs of `import diskq` do not need.

from __future__ import annotations

import queue

from diskq.errors import DiskqError, FullError

__all__ = ["QueueEmptyError", "QueueFullError"]


class QueueEmptyError(DiskqError, queue.Empty):
    """There is no message, or none came in time. It is a `queue.Empty`. `name` names the queue."""

    def __init__(self, name: str) -> None:
        super().__init__(f"queue {name!r} has no message")
        self.name = name


class QueueFullError(FullError, queue.Full):
    """The message would pass `max_bytes` or the budget, or no space came in time. It is a `queue.Full`."""
