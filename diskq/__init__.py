"""diskq: channels that live on disk.

`open_queue` gives a Trio channel on NSQ's files; `FifoQueue` is the same queue for synchronous
programs. `open_spool` delivers what it is sent, when the far end is there, and keeps it so long.
`open_producer` and `open_consumer` write and read streams, in go-diskq's files; `Stream` is
the producer for synchronous programs. `Journal`, `JournalReader` and `JournalOffset` are sej's journals.
`open_priority_store` keeps queues of which the smallest priority comes first, in TaskFlux's files;
`PriorityStore` is the same for synchronous programs. Engines and channels are imported when they are
first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from diskq.errors import (
    BusyError,
    CorruptionError,
    DamagedStoreError,
    DiskFullError,
    DiskqError,
    ForeignFilesError,
    ForkedError,
    GroupNameError,
    HubError,
    JournalNotFoundError,
    KeySizeError,
    LeaseError,
    LockedError,
    MessageSizeError,
    NotAFileError,
    OffsetMismatchError,
    OffsetNameError,
    OffsetOutOfRangeError,
    Permanent,
    PriorityRangeError,
    QueueExistsError,
    QueueFullError,
    QueueMovedError,
    QueueNameError,
    QueueNotFoundError,
    Retry,
    ShardNameError,
    SinkError,
    SinkNameError,
    StagedError,
    StorageFailedError,
    StreamNotFoundError,
    UnsupportedFormatError,
)
from diskq.messages import NULL_TIMESTAMP, Batch, JournalMessage, Message, Position
from diskq.options import (
    ConsumerOptions,
    HubOptions,
    JournalOptions,
    PriorityOptions,
    QueueOptions,
    ReplicationOptions,
    ScannerOptions,
    SpoolOptions,
    StreamOptions,
    WorkOptions,
)

if TYPE_CHECKING:
    from diskq.channels.consumer import ConsumerStatistics, StreamConsumer, open_consumer
    from diskq.channels.fromthreads import ThreadSender, from_threads
    from diskq.channels.journal import JournalStatistics, JournalWriter, open_journal
    from diskq.channels.merging import merge
    from diskq.channels.moments import offset_after, offset_at_or_after
    from diskq.channels.priority import DiskPriorityStore, PriorityStoreStatistics, open_priority_store
    from diskq.channels.priorityqueue import DiskPriorityQueue, PriorityQueueStatistics
    from diskq.channels.queue import ChannelStatistics, DiskQueue, open_queue
    from diskq.channels.replaying import Replay, ReplayStatistics, replay
    from diskq.channels.rootwatch import RootWatch, watch_root
    from diskq.channels.scanner import JournalScanner, ScannerStatistics, open_scanner
    from diskq.channels.selecting import select, select_nowait
    from diskq.channels.shards import ShardWriter, open_shards
    from diskq.channels.shardscanner import ShardScanner, scan_shards
    from diskq.channels.spool import Spool, SpoolStatistics, open_spool
    from diskq.channels.stream import ProducerStatistics, StreamProducer, open_producer
    from diskq.channels.work import DiskWork
    from diskq.engine.deadletters import DeadLetter, DeadLetters
    from diskq.engine.fifo import FifoQueue, QueueStatistics
    from diskq.engine.journal import Journal
    from diskq.engine.journaloffsets import (
        JournalOffset,
        ReaderOffset,
        read_journal_offset,
        read_journal_offsets,
    )
    from diskq.engine.journalreader import JournalReader
    from diskq.engine.journaltimes import JournalTimes
    from diskq.engine.priority import PriorityRecord, PriorityStore, QueueInfo, StoreStatistics
    from diskq.engine.stream import Stream
    from diskq.engine.work import FifoWork, Lease, MessageId, WorkStatistics
    from diskq.storage.budget import BudgetMember, BudgetStatistics, DiskBudget
    from diskq.storage.durations import Durations
    from diskq.storage.recovery import Repair

    __version__: str

__all__ = [
    "NULL_TIMESTAMP",
    "Batch",
    "BudgetMember",
    "BudgetStatistics",
    "BusyError",
    "ChannelStatistics",
    "ConsumerOptions",
    "ConsumerStatistics",
    "CorruptionError",
    "DamagedStoreError",
    "DeadLetter",
    "DeadLetters",
    "DiskBudget",
    "DiskFullError",
    "DiskPriorityQueue",
    "DiskPriorityStore",
    "DiskQueue",
    "DiskWork",
    "DiskqError",
    "Durations",
    "FifoQueue",
    "FifoWork",
    "ForeignFilesError",
    "ForkedError",
    "GroupNameError",
    "HubError",
    "HubOptions",
    "Journal",
    "JournalMessage",
    "JournalNotFoundError",
    "JournalOffset",
    "JournalOptions",
    "JournalReader",
    "JournalScanner",
    "JournalStatistics",
    "JournalTimes",
    "JournalWriter",
    "KeySizeError",
    "Lease",
    "LeaseError",
    "LockedError",
    "Message",
    "MessageId",
    "MessageSizeError",
    "NotAFileError",
    "OffsetMismatchError",
    "OffsetNameError",
    "OffsetOutOfRangeError",
    "Permanent",
    "Position",
    "PriorityOptions",
    "PriorityQueueStatistics",
    "PriorityRangeError",
    "PriorityRecord",
    "PriorityStore",
    "PriorityStoreStatistics",
    "ProducerStatistics",
    "QueueExistsError",
    "QueueFullError",
    "QueueInfo",
    "QueueMovedError",
    "QueueNameError",
    "QueueNotFoundError",
    "QueueOptions",
    "QueueStatistics",
    "ReaderOffset",
    "Repair",
    "Replay",
    "ReplayStatistics",
    "ReplicationOptions",
    "Retry",
    "RootWatch",
    "ScannerOptions",
    "ScannerStatistics",
    "ShardNameError",
    "ShardScanner",
    "ShardWriter",
    "SinkError",
    "SinkNameError",
    "Spool",
    "SpoolOptions",
    "SpoolStatistics",
    "StagedError",
    "StorageFailedError",
    "StoreStatistics",
    "Stream",
    "StreamConsumer",
    "StreamNotFoundError",
    "StreamOptions",
    "StreamProducer",
    "ThreadSender",
    "UnsupportedFormatError",
    "WorkOptions",
    "WorkStatistics",
    "from_threads",
    "merge",
    "offset_after",
    "offset_at_or_after",
    "open_consumer",
    "open_journal",
    "open_priority_store",
    "open_producer",
    "open_queue",
    "open_scanner",
    "open_shards",
    "open_spool",
    "read_journal_offset",
    "read_journal_offsets",
    "replay",
    "scan_shards",
    "select",
    "select_nowait",
    "watch_root",
]

# Who has what: Spark starts many processes, which use little of it each, and no Trio. `__all__` and the
# imports above say it again, for type checkers, which run nothing; a test compares the three.
_HOMES = {
    "channels.consumer": ("ConsumerStatistics", "StreamConsumer", "open_consumer"),
    "channels.fromthreads": ("ThreadSender", "from_threads"),
    "channels.journal": ("JournalStatistics", "JournalWriter", "open_journal"),
    "channels.merging": ("merge",),
    "channels.moments": ("offset_after", "offset_at_or_after"),
    "channels.priority": ("DiskPriorityStore", "PriorityStoreStatistics", "open_priority_store"),
    "channels.priorityqueue": ("DiskPriorityQueue", "PriorityQueueStatistics"),
    "channels.queue": ("ChannelStatistics", "DiskQueue", "open_queue"),
    "channels.replaying": ("Replay", "ReplayStatistics", "replay"),
    "channels.rootwatch": ("RootWatch", "watch_root"),
    "channels.scanner": ("JournalScanner", "ScannerStatistics", "open_scanner"),
    "channels.selecting": ("select", "select_nowait"),
    "channels.shards": ("ShardWriter", "open_shards"),
    "channels.shardscanner": ("ShardScanner", "scan_shards"),
    "channels.spool": ("Spool", "SpoolStatistics", "open_spool"),
    "channels.stream": ("ProducerStatistics", "StreamProducer", "open_producer"),
    "channels.work": ("DiskWork",),
    "engine.deadletters": ("DeadLetter", "DeadLetters"),
    "engine.fifo": ("FifoQueue", "QueueStatistics"),
    "engine.journal": ("Journal",),
    "engine.journaloffsets": (
        "JournalOffset",
        "ReaderOffset",
        "read_journal_offset",
        "read_journal_offsets",
    ),
    "engine.journalreader": ("JournalReader",),
    "engine.journaltimes": ("JournalTimes",),
    "engine.priority": ("PriorityRecord", "PriorityStore", "QueueInfo", "StoreStatistics"),
    "engine.stream": ("Stream",),
    "engine.work": ("FifoWork", "Lease", "MessageId", "WorkStatistics"),
    "storage.budget": ("BudgetMember", "BudgetStatistics", "DiskBudget"),
    "storage.durations": ("Durations",),
    "storage.recovery": ("Repair",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            found = importlib.import_module(f"diskq.{module}")
            globals().update({each: getattr(found, each) for each in names})
            return globals()[name]
    if name == "__version__":
        from importlib.metadata import version

        return version("diskq")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
