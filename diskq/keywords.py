# The options of each kind as keywords: what an opener or an engine takes as `**changes`. Type checkers refuse
# a misspelt one, and editors complete it.
#
# Written by `python -m scripts.option_keywords` from options.py: an option is changed there.

from typing import TypedDict

from diskq.options import (
    AgeRule,
    Budget,
    Commit,
    Compression,
    Durability,
    Encoding,
    JournalOptions,
    Keep,
    OnFull,
    OnFullQueue,
    QueueOptions,
    StoreLayout,
    SyncTo,
)

__all__ = [
    "HubKeywords",
    "JournalKeywords",
    "JournalScannerKeywords",
    "PriorityKeywords",
    "QueueKeywords",
    "QueueWorkKeywords",
    "ReplicationKeywords",
    "SpoolKeywords",
    "StreamConsumerKeywords",
    "StreamKeywords",
    "TableKeywords",
    "ThreadedSpoolKeywords",
]


class QueueKeywords(TypedDict, total=False):
    """The options of `QueueOptions`."""

    sync_every: int
    """Default: `2500`. Sync after this many messages were written, consumed, or (of one partition) committed;
    in a priority store, after this many commands. 1: each time. (nsqd's default.)"""
    sync_timeout: float
    """Default: `2.0`. Sync this many seconds after the first unsynced message, commit or command at the
    latest (nsqd's default)."""
    checkpoint_slice: float
    """Default: `100e-6`. A task whose calls never have to wait yields to others after this many seconds; 0:
    in every call."""
    durability: Durability
    """Default: `"written"`. What a call that writes (`send`, `put`, `append`, `ack` of a priority store)
    waits for: the process's memory, the page cache, or the disk."""
    max_unsynced: int
    """Default: `64 * 1024 * 1024`. Senders wait while this many bytes are not synced. A channel begins a sync
    at half of it."""
    memory_flush: float
    """Default: `0.01`. `memory` messages are written to the page cache after this many seconds at the latest;
    in a queue only if it has no `memory_size`."""
    sync_to: SyncTo
    """Default: `"log"`. Where `synced` messages are on stable storage when the call returns: in the redo
    `log`, by one sync, and in their files by the sync policy; or in their `files`, by two. After a power cut
    another program finds what is in the log alone only after diskq has opened the store."""
    redo_log_size: int
    """Default: `4 * 1024 * 1024`. The redo log grows up to this size; it begins with 64 KiB."""
    segment_size: int
    """Default: `100 * 1024 * 1024`. The queue starts a new file before the current one would grow past this
    (nsqd's default)."""
    min_message_size: int
    """Default: `0`. Smaller messages are refused; set 1 to forbid empty ones."""
    max_message_size: int
    """Default: `16 * 1024 * 1024`. Larger messages are refused. Larger ones that are already in the files are
    delivered."""
    max_bytes: int | None
    """Default: `None`. The queue's bound on disk, checksums and its logs included. None: only the disk's size
    bounds it."""
    on_full: OnFull
    """Default: `"wait"`. At the bound: let senders wait, refuse (`FullError`), or drop the oldest file."""
    budget: Budget | None
    """Default: `None`. A `DiskBudget`: a bound that this queue shares with others, in addition to its own."""
    memory_size: int
    """Default: `0`. With `durability="memory"`: up to this many bytes of messages stay in memory, and those
    received while they are there are never written. 0: `memory` messages are written soon."""
    strict: bool
    """Default: `False`. Raise `CorruptionError` at damage, at open and when reading, instead of reporting it
    and going on."""


class QueueWorkKeywords(TypedDict, total=False):
    """The options of `QueueWorkOptions`."""

    max_in_flight: int
    """Default: `1000`. Up to this many messages are leased and not yet acknowledged; then workers wait for
    the next one."""
    max_attempts: int | None
    """Default: `None`. After this many attempts a message is not delivered again, but given to `exhausted`;
    without an `exhausted`, and with None, it is delivered again without limit."""
    max_ahead: int
    """Default: `100_000`. Up to this many messages after the oldest unacknowledged one are read, acknowledged
    or not."""
    max_ahead_bytes: int
    """Default: `64 * 1024 * 1024`. The same in bytes, plus one message: the most that is held in memory."""


class StreamKeywords(TypedDict, total=False):
    """The options of `StreamOptions`."""

    sync_every: int
    """Default: `2500`. Sync after this many messages were written, consumed, or (of one partition) committed;
    in a priority store, after this many commands. 1: each time. (nsqd's default.)"""
    sync_timeout: float
    """Default: `2.0`. Sync this many seconds after the first unsynced message, commit or command at the
    latest (nsqd's default)."""
    checkpoint_slice: float
    """Default: `100e-6`. A task whose calls never have to wait yields to others after this many seconds; 0:
    in every call."""
    durability: Durability
    """Default: `"written"`. What a call that writes (`send`, `put`, `append`, `ack` of a priority store)
    waits for: the process's memory, the page cache, or the disk."""
    max_unsynced: int
    """Default: `64 * 1024 * 1024`. Senders wait while this many bytes are not synced. A channel begins a sync
    at half of it."""
    memory_flush: float
    """Default: `0.01`. `memory` messages are written to the page cache after this many seconds at the latest;
    in a queue only if it has no `memory_size`."""
    sync_to: SyncTo
    """Default: `"log"`. Where `synced` messages are on stable storage when the call returns: in the redo
    `log`, by one sync, and in their files by the sync policy; or in their `files`, by two. After a power cut
    another program finds what is in the log alone only after diskq has opened the store."""
    redo_log_size: int
    """Default: `4 * 1024 * 1024`. The redo log grows up to this size; it begins with 64 KiB."""
    partition_count: int | None
    """Default: `None`. Number of partitions that are written to (3). If the stream has more, it keeps them.
    """
    segment_size: int | None
    """Default: `None`. A new segment starts after the one whose data has reached this many bytes (32 MiB)."""
    segment_age: float | None
    """Default: `None`. A segment is complete, and a new one starts, at the latest this long after its first
    message, so that tables get it. A stream that no program has open waits for the next open. None: only by
    its size."""
    retention_max_bytes: int | None
    """Default: `None`. The oldest complete segments of a partition are removed while all of them are larger
    (no bound)."""
    retention_max_age: float | None
    """Default: `None`. Complete segments that are older are removed (no bound)."""
    encoding: Encoding | None
    """Default: `None`. How records store their lengths: `fixed` as in go-diskq's code, `varuint` as in its
    README (fixed)."""
    min_message_size: int
    """Default: `0`. Smaller values are refused; set 1 where Go programs read: they cannot read empty ones."""
    max_message_size: int
    """Default: `16 * 1024 * 1024`. Larger values are refused."""
    max_key_size: int
    """Default: `64 * 1024`. Longer keys are refused."""
    budget: Budget | None
    """Default: `None`. A `DiskBudget`: a bound on the disk that this stream shares with others."""
    on_full: OnFull
    """Default: `"wait"`. When the budget is used up: let senders wait, refuse (`FullError`), or drop old
    segments."""
    age_rule: AgeRule
    """Default: `"newest"`. The message of a segment that must be older than `retention_max_age`: its
    `newest`, as go-diskq promises, or its `oldest`, as go-diskq does."""
    keep_for_groups: bool
    """Default: `False`. Retention, and `on_full="drop_oldest"`, keep what the slowest consumer group has not
    committed yet."""
    strict: bool
    """Default: `False`. Raise `CorruptionError` at damage, at open, instead of reporting it and going on."""


class StreamConsumerKeywords(TypedDict, total=False):
    """The options of `StreamConsumerOptions`."""

    sync_every: int
    """Default: `2500`. Sync after this many messages were written, consumed, or (of one partition) committed;
    in a priority store, after this many commands. 1: each time. (nsqd's default.)"""
    sync_timeout: float
    """Default: `2.0`. Sync this many seconds after the first unsynced message, commit or command at the
    latest (nsqd's default)."""
    checkpoint_slice: float
    """Default: `100e-6`. A task whose calls never have to wait yields to others after this many seconds; 0:
    in every call."""
    autocommit: bool
    """Default: `False`. In a group: the next receive, and the end of the block, commit what was received
    before."""
    claim_interval: float
    """Default: `1.0`. In a group: seconds between two attempts to claim partitions that other members have.
    """


class SpoolKeywords(TypedDict, total=False):
    """The options of `SpoolOptions`."""

    max_messages: int
    """Default: `100`. A batch has at most this many messages."""
    max_bytes: int
    """Default: `1024 * 1024`. A batch has at most this many bytes of messages; a single larger message is a
    batch of its own."""
    backoff_initial: float
    """Default: `0.1`. The second try comes after this time; each later one waits twice as long as the one
    before."""
    backoff_max: float
    """Default: `60.0`. No try waits longer than this."""
    backoff_jitter: float
    """Default: `1.0`. A random time of up to this much is added, so that many processes do not retry at the
    same moment."""
    linger: float
    """Default: `0.0`. A batch that is not full waits this long for more messages."""
    max_attempts: int | None
    """Default: `None`. After this many tries a batch's messages become dead letters. None: it is tried
    without limit."""
    deliver_timeout: float | None
    """Default: `None`. A try that takes longer is cancelled, and has failed. None: no limit."""
    retry_on: type[Exception] | tuple[type[Exception], ...]
    """Default: `Exception`. Exceptions of `deliver` after which the batch is tried again; any other one ends
    the spool's block."""
    pause_after: int | None
    """Default: `None`. After this many failures in a row delivery stops for `pause`, then tries once. None:
    it never stops."""
    pause: float
    """Default: `60.0`. The length of that pause, to which up to a tenth is added at random."""
    rate: float | None
    """Default: `None`. At most this many messages a second on average, each batch at once. None: as fast as
    possible."""
    drain_timeout: float
    """Default: `0.0`. Leaving the block without an error waits up to this long for the remaining messages'
    delivery."""
    commit: Commit
    """Default: `"written"`. How durably a delivered batch is recorded before the next one is tried:
    `written`, it is not delivered again after a kill; `synced`, also not after a power cut, at the price of
    one sync for each batch."""
    queue: QueueOptions
    """Default: `QueueOptions()`. How the spool keeps its messages: durability, bounds, and what happens when
    it is full."""


class PriorityKeywords(TypedDict, total=False):
    """The options of `PriorityOptions`."""

    sync_every: int
    """Default: `2500`. Sync after this many messages were written, consumed, or (of one partition) committed;
    in a priority store, after this many commands. 1: each time. (nsqd's default.)"""
    sync_timeout: float
    """Default: `2.0`. Sync this many seconds after the first unsynced message, commit or command at the
    latest (nsqd's default)."""
    checkpoint_slice: float
    """Default: `100e-6`. A task whose calls never have to wait yields to others after this many seconds; 0:
    in every call."""
    durability: Durability
    """Default: `"written"`. What a call that writes (`send`, `put`, `append`, `ack` of a priority store)
    waits for: the process's memory, the page cache, or the disk."""
    max_unsynced: int
    """Default: `64 * 1024 * 1024`. Senders wait while this many bytes are not synced. A channel begins a sync
    at half of it."""
    memory_flush: float
    """Default: `0.01`. `memory` messages are written to the page cache after this many seconds at the latest;
    in a queue only if it has no `memory_size`."""
    soft_limit: int | None
    """Default: `None`. A new segment of the log starts after one that is larger than this (16 MiB)."""
    hard_limit: int | None
    """Default: `None`. A new segment also starts in the middle of a batch when the current one reaches this
    (32 MiB)."""
    snapshot_segments: int | None
    """Default: `None`. When this many segments are complete, a snapshot is taken and the log before it is
    removed (5)."""
    layout: StoreLayout | None
    """Default: `None`. How records are laid out: "aligned", as TaskFlux reads them, or as in its "document".
    None: as the store has them, and "aligned" in a new store."""
    preallocate: bool
    """Default: `True`. Write zeros ahead of the log, which makes a sync cheaper."""
    max_message_size: int
    """Default: `16 * 1024 * 1024`. Larger messages are refused, whatever their queue allows."""
    on_full: OnFullQueue
    """Default: `"wait"`. In a channel, while a queue holds `max_messages`: let senders wait, or refuse
    (`FullError`), as the engine and TaskFlux do."""
    strict: bool
    """Default: `False`. Raise `CorruptionError` also at a torn tail, instead of cutting it and reporting."""


class JournalScannerKeywords(TypedDict, total=False):
    """The options of `JournalScannerOptions`."""

    sync_every: int
    """Default: `2500`. Sync after this many messages were written, consumed, or (of one partition) committed;
    in a priority store, after this many commands. 1: each time. (nsqd's default.)"""
    sync_timeout: float
    """Default: `2.0`. Sync this many seconds after the first unsynced message, commit or command at the
    latest (nsqd's default)."""
    checkpoint_slice: float
    """Default: `100e-6`. A task whose calls never have to wait yields to others after this many seconds; 0:
    in every call."""
    autocommit: bool
    """Default: `False`. A named reader: the next receive, and the end of the block, commit what was received
    before."""


class JournalKeywords(TypedDict, total=False):
    """The options of `JournalOptions`."""

    sync_every: int
    """Default: `2500`. Sync after this many messages were written, consumed, or (of one partition) committed;
    in a priority store, after this many commands. 1: each time. (nsqd's default.)"""
    sync_timeout: float
    """Default: `2.0`. Sync this many seconds after the first unsynced message, commit or command at the
    latest (nsqd's default)."""
    checkpoint_slice: float
    """Default: `100e-6`. A task whose calls never have to wait yields to others after this many seconds; 0:
    in every call."""
    durability: Durability
    """Default: `"written"`. What a call that writes (`send`, `put`, `append`, `ack` of a priority store)
    waits for: the process's memory, the page cache, or the disk."""
    max_unsynced: int
    """Default: `64 * 1024 * 1024`. Senders wait while this many bytes are not synced. A channel begins a sync
    at half of it."""
    memory_flush: float
    """Default: `0.01`. `memory` messages are written to the page cache after this many seconds at the latest;
    in a queue only if it has no `memory_size`."""
    sync_to: SyncTo
    """Default: `"log"`. Where `synced` messages are on stable storage when the call returns: in the redo
    `log`, by one sync, and in their files by the sync policy; or in their `files`, by two. After a power cut
    another program finds what is in the log alone only after diskq has opened the store."""
    redo_log_size: int
    """Default: `4 * 1024 * 1024`. The redo log grows up to this size; it begins with 64 KiB."""
    segment_size: int
    """Default: `1024 * 1024 * 1024`. A new file starts after the message with which the current one reaches
    this size (sej's default)."""
    min_message_size: int
    """Default: `0`. Smaller values are refused."""
    max_message_size: int
    """Default: `16 * 1024 * 1024`. Larger values are refused. Larger ones that are already in the files are
    delivered."""
    max_key_size: int
    """Default: `127`. Longer keys are refused; the format allows up to 127 bytes."""
    strict: bool
    """Default: `False`. Raise `CorruptionError` at damage, at open, instead of reporting it and going on."""


class HubKeywords(TypedDict, total=False):
    """The options of `HubOptions`."""

    max_batch_size: int
    """Default: `64 * 1024 * 1024`. Larger requests are refused; an answer is at most this large."""
    max_batch_messages: int
    """Default: `100_000`. Requests with more messages are refused; an answer has at most this many."""
    max_get_size: int
    """Default: `1024 * 1024`. An answer holds up to this many bytes of a journal, or one larger message."""
    max_open_journals: int
    """Default: `256`. Up to this many journals are open at a time; the least recently used one is closed for
    another."""
    idle_timeout: float
    """Default: `60.0`. A journal that is not used for this long is closed."""
    max_requests: int
    """Default: `256`. Up to this many requests are in progress at a time; others are refused, to be repeated
    later."""
    max_streams: int
    """Default: `100`. Up to this many requests are in progress at a time on one connection."""
    threads: int
    """Default: `16`. Up to this many requests are worked on at a time, each in a thread."""
    request_timeout: float
    """Default: `30.0`. The longest time in which a request must arrive completely, and for which it waits for
    a thread."""
    max_client_requests: int
    """Default: `32`. Up to this many requests of one client are in progress at a time, arriving or worked on;
    others are refused, to be repeated later. A client is a token; without tokens a certificate, or else a
    connection."""
    max_connections: int
    """Default: `500`. Up to this many connections are open at a time; one more is closed at once. Each takes
    a descriptor."""
    handshake_timeout: float
    """Default: `10.0`. A connection is closed if its client has not begun to speak gRPC (and TLS) after this
    time."""
    idle_connection_timeout: float
    """Default: `60.0`. A connection without a request for this long is closed; a client opens another one
    when it needs it."""
    stop_timeout: float
    """Default: `10.0`. When the hub stops, it waits up to this long for requests in progress."""
    quota: int | None
    """Default: `None`. Up to this many bytes of journals for each client. None: only the disk's size bounds
    them."""
    journal: JournalOptions
    """Default: `JournalOptions()`. How journals are kept, and how large a value may be. Each batch is synced,
    whatever `durability` is."""


class ReplicationKeywords(TypedDict, total=False):
    """The options of `ReplicationOptions`."""

    max_messages: int
    """Default: `10_000`. A batch, which the hub syncs, has at most this many messages."""
    max_bytes: int
    """Default: `1024 * 1024`. A batch has at most this many bytes of messages; a single larger message is a
    batch of its own."""
    backoff_initial: float
    """Default: `0.1`. The second try comes after this time; each later one waits twice as long as the one
    before."""
    backoff_max: float
    """Default: `10.0`. No try waits longer than this."""
    backoff_jitter: float
    """Default: `1.0`. A random time of up to this much is added, so that many processes do not retry at the
    same moment."""
    linger: float
    """Default: `0.0`. From a queue or a stream: a batch that is not full waits this long for more messages.
    """
    from_oldest: bool
    """Default: `False`. Copy a journal whose oldest messages were removed from its first remaining one on, if
    the hub has nothing of it yet. Without this option that is an error, as removed messages cannot be copied.
    """


class TableKeywords(TypedDict, total=False):
    """The options of `TableOptions`."""

    compression: Compression
    """Default: `"zstd"`. How the pages of the files are compressed. Values that do not become smaller by it
    are left as they are."""
    keep: Keep
    """Default: `"all"`. `all`: files stay when retention removes their segments, so that the table is an
    archive. `segments`: a file goes once all messages in it are gone from the stream."""
    allow_gaps: bool
    """Default: `False`. True: messages that cannot be read, or that retention has removed before they came
    into the table, are left out, and their file says so. False: they are an error, and the table stays as it
    is."""
    keep_replaced: float
    """Default: `0.0`. For this many seconds files stay that a compaction has replaced: for a DataFrame of
    Spark's, or a catalog, that has listed them. The next update or compaction after that removes them.
    Meanwhile a program that lists names itself reads their messages twice."""


class ThreadedSpoolKeywords(TypedDict, total=False):
    """The options of `SpoolOptions`, but for `deliver_timeout`."""

    max_messages: int
    """Default: `100`. A batch has at most this many messages."""
    max_bytes: int
    """Default: `1024 * 1024`. A batch has at most this many bytes of messages; a single larger message is a
    batch of its own."""
    backoff_initial: float
    """Default: `0.1`. The second try comes after this time; each later one waits twice as long as the one
    before."""
    backoff_max: float
    """Default: `60.0`. No try waits longer than this."""
    backoff_jitter: float
    """Default: `1.0`. A random time of up to this much is added, so that many processes do not retry at the
    same moment."""
    linger: float
    """Default: `0.0`. A batch that is not full waits this long for more messages."""
    max_attempts: int | None
    """Default: `None`. After this many tries a batch's messages become dead letters. None: it is tried
    without limit."""
    retry_on: type[Exception] | tuple[type[Exception], ...]
    """Default: `Exception`. Exceptions of `deliver` after which the batch is tried again; any other one ends
    the spool's block."""
    pause_after: int | None
    """Default: `None`. After this many failures in a row delivery stops for `pause`, then tries once. None:
    it never stops."""
    pause: float
    """Default: `60.0`. The length of that pause, to which up to a tenth is added at random."""
    rate: float | None
    """Default: `None`. At most this many messages a second on average, each batch at once. None: as fast as
    possible."""
    drain_timeout: float
    """Default: `0.0`. Leaving the block without an error waits up to this long for the remaining messages'
    delivery."""
    commit: Commit
    """Default: `"written"`. How durably a delivered batch is recorded before the next one is tried:
    `written`, it is not delivered again after a kill; `synced`, also not after a power cut, at the price of
    one sync for each batch."""
    queue: QueueOptions
    """Default: `QueueOptions()`. How the spool keeps its messages: durability, bounds, and what happens when
    it is full."""
