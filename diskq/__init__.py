"""diskq: channels that live on disk."""

from __future__ import annotations

from diskq.channels.queue import ChannelStatistics, DiskQueue, open_queue
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
