"""diskq: channels that live on disk.

Channels run on Trio and on asyncio. `open_queue` opens one on NSQ's files; `Queue` is the same queue for
synchronous programs.
`open_spool` keeps the messages sent to it until it has delivered them to their destination; `Spool` does so
in synchronous programs.
`open_producer` and `open_consumer` write and read streams, in go-diskq's files; `Stream` and `StreamReader`
do so in synchronous programs. `Journal`, `JournalReader` and `JournalReaderOffset` are sej's journals.
`open_priority_store` keeps queues that deliver the smallest priority first, in TaskFlux's files;
`PriorityStore` is the same for synchronous programs. `open_table` keeps a stream or a journal as Parquet
files, and `read_arrow` reads it by column. Engines and channels are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diskq.channels.core.from_threads import (
        ThreadSender as ThreadSender,
        open_thread_sender as open_thread_sender,
    )
    from diskq.channels.core.merging import merge as merge
    from diskq.channels.core.selecting import select as select, select_nowait as select_nowait
    from diskq.channels.errors import (
        BrokenResourceError as BrokenResourceError,
        BusyResourceError as BusyResourceError,
        ClosedResourceError as ClosedResourceError,
        EndOfChannel as EndOfChannel,
        WouldBlock as WouldBlock,
    )
    from diskq.channels.journal.root_watch import (
        JournalRootWatch as JournalRootWatch,
        open_root_watch as open_root_watch,
    )
    from diskq.channels.journal.scanner import (
        JournalScanner as JournalScanner,
        JournalScannerStatistics as JournalScannerStatistics,
        open_scanner as open_scanner,
    )
    from diskq.channels.journal.shard_scanner import (
        JournalShardScanner as JournalShardScanner,
        open_shard_scanner as open_shard_scanner,
    )
    from diskq.channels.journal.shard_writer import (
        JournalShardWriter as JournalShardWriter,
        open_shards as open_shards,
    )
    from diskq.channels.journal.writer import (
        JournalWriter as JournalWriter,
        JournalWriterStatistics as JournalWriterStatistics,
        open_journal as open_journal,
    )
    from diskq.channels.priority.queue import (
        PriorityQueueChannel as PriorityQueueChannel,
        PriorityQueueChannelStatistics as PriorityQueueChannelStatistics,
    )
    from diskq.channels.priority.store import (
        PriorityStoreChannel as PriorityStoreChannel,
        PriorityStoreChannelStatistics as PriorityStoreChannelStatistics,
        open_priority_store as open_priority_store,
    )
    from diskq.channels.queue.queue import (
        QueueChannel as QueueChannel,
        QueueChannelStatistics as QueueChannelStatistics,
        open_queue as open_queue,
    )
    from diskq.channels.queue.work import QueueWorkChannel as QueueWorkChannel
    from diskq.channels.replay import (
        Replay as Replay,
        ReplayStatistics as ReplayStatistics,
        open_replay as open_replay,
    )
    from diskq.channels.spool.spool import SpoolChannel as SpoolChannel, open_spool as open_spool
    from diskq.channels.stream.consumer import (
        StreamConsumer as StreamConsumer,
        StreamConsumerStatistics as StreamConsumerStatistics,
        open_consumer as open_consumer,
    )
    from diskq.channels.stream.producer import (
        StreamProducer as StreamProducer,
        StreamProducerStatistics as StreamProducerStatistics,
        open_producer as open_producer,
    )
    from diskq.channels.stream.time_lookup import (
        offset_after as offset_after,
        offset_at_or_after as offset_at_or_after,
    )
    from diskq.engine.journal.journal import Journal as Journal
    from diskq.engine.journal.reader import JournalReader as JournalReader
    from diskq.engine.journal.reader_offset import (
        JournalReaderOffset as JournalReaderOffset,
        JournalReaderInfo as JournalReaderInfo,
        read_journal_offset as read_journal_offset,
        read_journal_offsets as read_journal_offsets,
    )
    from diskq.engine.journal.time_lookup import JournalTimes as JournalTimes
    from diskq.engine.priority.store import (
        PriorityQueueInfo as PriorityQueueInfo,
        PriorityRecord as PriorityRecord,
        PriorityStore as PriorityStore,
        PriorityStoreStatistics as PriorityStoreStatistics,
    )
    from diskq.engine.queue.fifo_queue import Queue as Queue, QueueStatistics as QueueStatistics
    from diskq.engine.queue.queue_errors import (
        QueueEmptyError as QueueEmptyError,
        QueueFullError as QueueFullError,
    )
    from diskq.engine.queue.work import (
        Lease as Lease,
        MessageId as MessageId,
        QueueWork as QueueWork,
        QueueWorkStatistics as QueueWorkStatistics,
    )
    from diskq.engine.spool.dead_letters import DeadLetter as DeadLetter, DeadLetters as DeadLetters
    from diskq.engine.spool.figures import SpoolStatistics as SpoolStatistics
    from diskq.engine.spool.spool import Spool as Spool
    from diskq.engine.stream.stream import Stream as Stream
    from diskq.engine.stream.stream_reader import StreamReader as StreamReader
    from diskq.errors import (
        BusyError as BusyError,
        CorruptionError as CorruptionError,
        DamagedStoreError as DamagedStoreError,
        DiskFullError as DiskFullError,
        DiskqError as DiskqError,
        ExistsError as ExistsError,
        ForeignFilesError as ForeignFilesError,
        ForkedError as ForkedError,
        FullError as FullError,
        GroupNameError as GroupNameError,
        HubError as HubError,
        KeySizeError as KeySizeError,
        LeaseError as LeaseError,
        LockedError as LockedError,
        MessageSizeError as MessageSizeError,
        NotAFileError as NotAFileError,
        NotFoundError as NotFoundError,
        OffsetMismatchError as OffsetMismatchError,
        OffsetOutOfRangeError as OffsetOutOfRangeError,
        Permanent as Permanent,
        PriorityRangeError as PriorityRangeError,
        QueueMovedError as QueueMovedError,
        QueueNameError as QueueNameError,
        ReaderNameError as ReaderNameError,
        Retry as Retry,
        ShardNameError as ShardNameError,
        SinkError as SinkError,
        SinkNameError as SinkNameError,
        StagedError as StagedError,
        StorageFailedError as StorageFailedError,
        TableGapError as TableGapError,
        TableMismatchError as TableMismatchError,
        UnsupportedFormatError as UnsupportedFormatError,
    )
    from diskq.messages import (
        NULL_TIMESTAMP as NULL_TIMESTAMP,
        Batch as Batch,
        JournalMessage as JournalMessage,
        Message as Message,
        Position as Position,
    )
    from diskq.options import (
        HubOptions as HubOptions,
        JournalOptions as JournalOptions,
        JournalScannerOptions as JournalScannerOptions,
        PriorityOptions as PriorityOptions,
        QueueOptions as QueueOptions,
        QueueWorkOptions as QueueWorkOptions,
        ReplicationOptions as ReplicationOptions,
        SpoolOptions as SpoolOptions,
        StreamConsumerOptions as StreamConsumerOptions,
        StreamOptions as StreamOptions,
        TableOptions as TableOptions,
    )
    from diskq.storage.budget import (
        BudgetMember as BudgetMember,
        BudgetStatistics as BudgetStatistics,
        DiskBudget as DiskBudget,
    )
    from diskq.storage.repairs import Repair as Repair, RepairKind as RepairKind
    from diskq.storage.sync_times import Durations as Durations
    from diskq.tables.names import TableFile as TableFile
    from diskq.tables.reading import read_arrow as read_arrow
    from diskq.tables.state import TableUpdate as TableUpdate
    from diskq.tables.table import (
        Table as Table,
        TableStatistics as TableStatistics,
        open_table as open_table,
    )

    __version__: str

# The public names, by their modules. The imports above repeat it for type checkers, which run no code; a test
# compares the two. Names are imported when they are first used, as Spark starts many processes that use few
# of them, and no Trio; only the modules in `_IMPORTED_AT_ONCE` are imported with the package.
_IMPORTED_AT_ONCE = ("errors", "messages", "options")
_HOMES = {
    "channels.core.from_threads": ("ThreadSender", "open_thread_sender"),
    "channels.core.merging": ("merge",),
    "channels.core.selecting": ("select", "select_nowait"),
    "channels.errors": (
        "BrokenResourceError",
        "BusyResourceError",
        "ClosedResourceError",
        "EndOfChannel",
        "WouldBlock",
    ),
    "channels.journal.root_watch": ("JournalRootWatch", "open_root_watch"),
    "channels.journal.scanner": ("JournalScanner", "JournalScannerStatistics", "open_scanner"),
    "channels.journal.shard_scanner": ("JournalShardScanner", "open_shard_scanner"),
    "channels.journal.shard_writer": ("JournalShardWriter", "open_shards"),
    "channels.journal.writer": ("JournalWriter", "JournalWriterStatistics", "open_journal"),
    "channels.priority.queue": ("PriorityQueueChannel", "PriorityQueueChannelStatistics"),
    "channels.priority.store": (
        "PriorityStoreChannel",
        "PriorityStoreChannelStatistics",
        "open_priority_store",
    ),
    "channels.queue.queue": ("QueueChannel", "QueueChannelStatistics", "open_queue"),
    "channels.queue.work": ("QueueWorkChannel",),
    "channels.replay": ("Replay", "ReplayStatistics", "open_replay"),
    "channels.spool.spool": ("SpoolChannel", "open_spool"),
    "channels.stream.consumer": ("StreamConsumer", "StreamConsumerStatistics", "open_consumer"),
    "channels.stream.producer": ("StreamProducer", "StreamProducerStatistics", "open_producer"),
    "channels.stream.time_lookup": ("offset_after", "offset_at_or_after"),
    "engine.journal.journal": ("Journal",),
    "engine.journal.reader": ("JournalReader",),
    "engine.journal.reader_offset": (
        "JournalReaderOffset",
        "JournalReaderInfo",
        "read_journal_offset",
        "read_journal_offsets",
    ),
    "engine.journal.time_lookup": ("JournalTimes",),
    "engine.priority.store": (
        "PriorityQueueInfo",
        "PriorityRecord",
        "PriorityStore",
        "PriorityStoreStatistics",
    ),
    "engine.queue.fifo_queue": ("Queue", "QueueStatistics"),
    "engine.queue.queue_errors": ("QueueEmptyError", "QueueFullError"),
    "engine.queue.work": ("Lease", "MessageId", "QueueWork", "QueueWorkStatistics"),
    "engine.spool.dead_letters": ("DeadLetter", "DeadLetters"),
    "engine.spool.figures": ("SpoolStatistics",),
    "engine.spool.spool": ("Spool",),
    "engine.stream.stream": ("Stream",),
    "engine.stream.stream_reader": ("StreamReader",),
    "errors": (
        "BusyError",
        "CorruptionError",
        "DamagedStoreError",
        "DiskFullError",
        "DiskqError",
        "ExistsError",
        "ForeignFilesError",
        "ForkedError",
        "FullError",
        "GroupNameError",
        "HubError",
        "KeySizeError",
        "LeaseError",
        "LockedError",
        "MessageSizeError",
        "NotAFileError",
        "NotFoundError",
        "OffsetMismatchError",
        "OffsetOutOfRangeError",
        "Permanent",
        "PriorityRangeError",
        "QueueMovedError",
        "QueueNameError",
        "ReaderNameError",
        "Retry",
        "ShardNameError",
        "SinkError",
        "SinkNameError",
        "StagedError",
        "StorageFailedError",
        "TableGapError",
        "TableMismatchError",
        "UnsupportedFormatError",
    ),
    "messages": ("NULL_TIMESTAMP", "Batch", "JournalMessage", "Message", "Position"),
    "options": (
        "HubOptions",
        "JournalOptions",
        "JournalScannerOptions",
        "PriorityOptions",
        "QueueOptions",
        "QueueWorkOptions",
        "ReplicationOptions",
        "SpoolOptions",
        "StreamConsumerOptions",
        "StreamOptions",
        "TableOptions",
    ),
    "storage.budget": ("BudgetMember", "BudgetStatistics", "DiskBudget"),
    "storage.repairs": ("Repair", "RepairKind"),
    "storage.sync_times": ("Durations",),
    "tables.names": ("TableFile",),
    "tables.reading": ("read_arrow",),
    "tables.state": ("TableUpdate",),
    "tables.table": ("Table", "TableStatistics", "open_table"),
}

__all__ = sorted(name for names in _HOMES.values() for name in names)


def _load(module: str) -> None:
    found = importlib.import_module(f"diskq.{module}")
    globals().update({name: getattr(found, name) for name in _HOMES[module]})


for _module in _IMPORTED_AT_ONCE:
    _load(_module)


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            _load(module)
            return globals()[name]
    if name == "__version__":
        from importlib.metadata import version

        from diskq.distribution import DISTRIBUTION

        return version(DISTRIBUTION)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_NOT_BY_THEIR_ENDING = ("EndOfChannel", "Permanent", "Retry", "WouldBlock")
_ENGINES = (
    "Journal",
    "JournalReader",
    "PriorityStore",
    "Queue",
    "QueueWork",
    "Spool",
    "Stream",
    "StreamReader",
)


def __dir__() -> list[str]:
    """What a program begins with: openers, engines, options and errors. `__all__` has all public names."""
    shown = [name for name in __all__ if name.startswith("open_") or name.endswith(("Error", "Options"))]
    always = ("__all__", "__doc__", "__file__", "__name__", "__path__", "__version__")
    return sorted([*shown, *_NOT_BY_THEIR_ENDING, *_ENGINES, *always])
