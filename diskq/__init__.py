"""diskq: channels that live on disk.

`open_queue` gives a Trio channel on NSQ's files; `FifoQueue` is the same queue for synchronous
programs. What Trio is needed for is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diskq.engine.fifo import FifoQueue, QueueStatistics
from diskq.errors import (
    CorruptionError,
    DiskFullError,
    DiskqError,
    LockedError,
    MessageSizeError,
    QueueNameError,
    StorageFailedError,
    UnsupportedFormatError,
)
from diskq.options import QueueOptions
from diskq.storage.recovery import Repair

if TYPE_CHECKING:
    from diskq.channels.queue import ChannelStatistics, DiskQueue, open_queue

    __version__: str

__all__ = [
    "ChannelStatistics",
    "CorruptionError",
    "DiskFullError",
    "DiskQueue",
    "DiskqError",
    "FifoQueue",
    "LockedError",
    "MessageSizeError",
    "QueueNameError",
    "QueueOptions",
    "QueueStatistics",
    "Repair",
    "StorageFailedError",
    "UnsupportedFormatError",
    "open_queue",
]

_CHANNELS = ("ChannelStatistics", "DiskQueue", "open_queue")


def __getattr__(name: str) -> Any:
    if name in _CHANNELS:
        from diskq.channels import queue

        globals().update({each: getattr(queue, each) for each in _CHANNELS})
        return globals()[name]
    if name == "__version__":
        from importlib.metadata import version

        return version("diskq")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
