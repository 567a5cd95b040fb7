"""diskq: channels that live on disk.

`open_queue` gives a Trio channel on NSQ's files; `FifoQueue` is the same queue for synchronous
programs. `open_spool` delivers what it is sent, when the destination is there, and keeps it so long.
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
    from diskq.channels.core.from_threads import ThreadSender, from_threads
    from diskq.channels.core.merging import merge
    from diskq.channels.core.selecting import select, select_nowait
    from diskq.channels.journal.root_watch import RootWatch, watch_root
    from diskq.channels.journal.scanner import JournalScanner, ScannerStatistics, open_scanner
    from diskq.channels.journal.shard_scanner import ShardScanner, scan_shards
    from diskq.channels.journal.shard_writer import ShardWriter, open_shards
    from diskq.channels.journal.writer import JournalStatistics, JournalWriter, open_journal
    from diskq.channels.priority.queue import DiskPriorityQueue, PriorityQueueStatistics
    from diskq.channels.priority.store import DiskPriorityStore, PriorityStoreStatistics, open_priority_store
    from diskq.channels.queue.queue import ChannelStatistics, DiskQueue, open_queue
    from diskq.channels.queue.work import DiskWork
    from diskq.channels.replay import Replay, ReplayStatistics, replay
    from diskq.channels.spool.spool import Spool, SpoolStatistics, open_spool
    from diskq.channels.stream.consumer import ConsumerStatistics, StreamConsumer, open_consumer
    from diskq.channels.stream.producer import ProducerStatistics, StreamProducer, open_producer
    from diskq.channels.stream.time_lookup import offset_after, offset_at_or_after
    from diskq.engine.journal.journal import Journal
    from diskq.engine.journal.reader import JournalReader
    from diskq.engine.journal.reader_offset import (
        JournalOffset,
        ReaderOffset,
        read_journal_offset,
        read_journal_offsets,
    )
    from diskq.engine.journal.time_lookup import JournalTimes
    from diskq.engine.priority.store import PriorityRecord, PriorityStore, QueueInfo, StoreStatistics
    from diskq.engine.queue.fifo_queue import FifoQueue, QueueStatistics
    from diskq.engine.queue.work import FifoWork, Lease, MessageId, WorkStatistics
    from diskq.engine.spool.dead_letters import DeadLetter, DeadLetters
    from diskq.engine.stream.stream import Stream
    from diskq.storage.budget import BudgetMember, BudgetStatistics, DiskBudget
    from diskq.storage.durations import Durations
    from diskq.storage.repairs import Repair

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
    "channels.core.from_threads": ("ThreadSender", "from_threads"),
    "channels.core.merging": ("merge",),
    "channels.core.selecting": ("select", "select_nowait"),
    "channels.journal.root_watch": ("RootWatch", "watch_root"),
    "channels.journal.scanner": ("JournalScanner", "ScannerStatistics", "open_scanner"),
    "channels.journal.shard_scanner": ("ShardScanner", "scan_shards"),
    "channels.journal.shard_writer": ("ShardWriter", "open_shards"),
    "channels.journal.writer": ("JournalStatistics", "JournalWriter", "open_journal"),
    "channels.priority.queue": ("DiskPriorityQueue", "PriorityQueueStatistics"),
    "channels.priority.store": ("DiskPriorityStore", "PriorityStoreStatistics", "open_priority_store"),
    "channels.queue.queue": ("ChannelStatistics", "DiskQueue", "open_queue"),
    "channels.queue.work": ("DiskWork",),
    "channels.replay": ("Replay", "ReplayStatistics", "replay"),
    "channels.spool.spool": ("Spool", "SpoolStatistics", "open_spool"),
    "channels.stream.consumer": ("ConsumerStatistics", "StreamConsumer", "open_consumer"),
    "channels.stream.producer": ("ProducerStatistics", "StreamProducer", "open_producer"),
    "channels.stream.time_lookup": ("offset_after", "offset_at_or_after"),
    "engine.journal.journal": ("Journal",),
    "engine.journal.reader": ("JournalReader",),
    "engine.journal.reader_offset": (
        "JournalOffset",
        "ReaderOffset",
        "read_journal_offset",
        "read_journal_offsets",
    ),
    "engine.journal.time_lookup": ("JournalTimes",),
    "engine.priority.store": ("PriorityRecord", "PriorityStore", "QueueInfo", "StoreStatistics"),
    "engine.queue.fifo_queue": ("FifoQueue", "QueueStatistics"),
    "engine.queue.work": ("FifoWork", "Lease", "MessageId", "WorkStatistics"),
    "engine.spool.dead_letters": ("DeadLetter", "DeadLetters"),
    "engine.stream.stream": ("Stream",),
    "storage.budget": ("BudgetMember", "BudgetStatistics", "DiskBudget"),
    "storage.durations": ("Durations",),
    "storage.repairs": ("Repair",),
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
