"""diskq: channels that live on disk.

`open_queue` gives a Trio channel on NSQ's files; `FifoQueue` is the same queue for synchronous
programs. `open_producer` and `open_consumer` write and read streams, in go-diskq's files; `Stream` is
the producer for synchronous programs. What Trio is needed for is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from diskq.engine.fifo import FifoQueue, QueueStatistics
from diskq.engine.stream import Stream
from diskq.errors import (
    CorruptionError,
    DiskFullError,
    DiskqError,
    ForeignFilesError,
    GroupNameError,
    KeySizeError,
    LockedError,
    MessageSizeError,
    OffsetOutOfRangeError,
    QueueNameError,
    StorageFailedError,
    StreamNotFoundError,
    UnsupportedFormatError,
)
from diskq.messages import Message, Position
from diskq.options import ConsumerOptions, QueueOptions, StreamOptions
from diskq.storage.recovery import Repair

if TYPE_CHECKING:
    from diskq.channels.consumer import ConsumerStatistics, StreamConsumer, open_consumer
    from diskq.channels.merging import merge
    from diskq.channels.moments import offset_after, offset_at_or_after
    from diskq.channels.queue import ChannelStatistics, DiskQueue, open_queue
    from diskq.channels.stream import ProducerStatistics, StreamProducer, open_producer

    __version__: str

__all__ = [
    "ChannelStatistics",
    "ConsumerOptions",
    "ConsumerStatistics",
    "CorruptionError",
    "DiskFullError",
    "DiskQueue",
    "DiskqError",
    "FifoQueue",
    "ForeignFilesError",
    "GroupNameError",
    "KeySizeError",
    "LockedError",
    "Message",
    "MessageSizeError",
    "OffsetOutOfRangeError",
    "Position",
    "ProducerStatistics",
    "QueueNameError",
    "QueueOptions",
    "QueueStatistics",
    "Repair",
    "StorageFailedError",
    "Stream",
    "StreamConsumer",
    "StreamNotFoundError",
    "StreamOptions",
    "StreamProducer",
    "UnsupportedFormatError",
    "merge",
    "offset_after",
    "offset_at_or_after",
    "open_consumer",
    "open_producer",
    "open_queue",
]

# What needs Trio, by the module that it is in.
_CHANNELS = {
    "consumer": ("ConsumerStatistics", "StreamConsumer", "open_consumer"),
    "merging": ("merge",),
    "moments": ("offset_after", "offset_at_or_after"),
    "queue": ("ChannelStatistics", "DiskQueue", "open_queue"),
    "stream": ("ProducerStatistics", "StreamProducer", "open_producer"),
}


def __getattr__(name: str) -> Any:
    for module, names in _CHANNELS.items():
        if name in names:
            found = importlib.import_module(f"diskq.channels.{module}")
            globals().update({each: getattr(found, each) for each in names})
            return globals()[name]
    if name == "__version__":
        from importlib.metadata import version

        return version("diskq")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
