"""The options a caller may choose. Validated once, here; the same objects in code and on the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, Literal, Protocol, TypeVar

__all__ = [
    "COMPRESSIONS",
    "DURABILITY_WORDS",
    "ENCODINGS",
    "KEEPS",
    "LARGEST_PAYLOAD",
    "MIB",
    "MOST_PARTITIONS",
    "Budget",
    "Compression",
    "Durability",
    "Encoding",
    "HubOptions",
    "JournalOptions",
    "JournalScannerOptions",
    "Keep",
    "OnFull",
    "PriorityOptions",
    "QueueOptions",
    "QueueWorkOptions",
    "ReplicationOptions",
    "SpoolOptions",
    "StreamOptions",
    "SyncTo",
    "TableOptions",
    "checked_durability",
    "chosen_options",
]


class _AnyOptions(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


Options = TypeVar("Options", bound=_AnyOptions)

Durability = Literal["memory", "written", "synced"]
OnFull = Literal["wait", "reject", "drop_oldest"]
Encoding = Literal["fixed", "varuint"]
AgeRule = Literal["newest", "oldest"]
Commit = Literal["written", "synced"]
SyncTo = Literal["log", "files"]
StoreLayout = Literal["aligned", "document"]
OnFullQueue = Literal["wait", "reject"]
Compression = Literal["none", "snappy", "lz4", "zstd", "gzip"]
Keep = Literal["all", "segments"]

DURABILITY_WORDS: tuple[Durability, ...] = ("memory", "written", "synced")
_ON_FULL: tuple[OnFull, ...] = ("wait", "reject", "drop_oldest")
ENCODINGS: tuple[Encoding, ...] = ("fixed", "varuint")
_AGE_RULES: tuple[AgeRule, ...] = ("newest", "oldest")
_COMMITS: tuple[Commit, ...] = ("written", "synced")
_SYNC_TO: tuple[SyncTo, ...] = ("log", "files")
_STORE_LAYOUTS: tuple[StoreLayout, ...] = ("aligned", "document")
_ON_FULL_QUEUE: tuple[OnFullQueue, ...] = ("wait", "reject")
COMPRESSIONS: tuple[Compression, ...] = ("none", "snappy", "lz4", "zstd", "gzip")
KEEPS: tuple[Keep, ...] = ("all", "segments")

MIB = 1024 * 1024

# The length word is a signed 32-bit number.
_LARGEST_MESSAGE = 2**31 - 1
# Attempts are counted with two bytes.
_MOST_ATTEMPTS = 2**16 - 2
# Partitions are directories of six digits, with three open files each.
MOST_PARTITIONS = 999_999
_LARGEST_KEY = 2**32 - 1
# A journal's key has a length of 8 bits with a sign.
_LARGEST_JOURNAL_KEY = 127
# A command holds a name of up to 255 bytes and its message, with one length word for both.
LARGEST_PAYLOAD = _LARGEST_MESSAGE - 1024
# Settings hold sizes, and durations in nanoseconds, as signed 64-bit numbers: 292 years.
_LARGEST_SIZE = 2**63 - 1
_LONGEST_AGE = _LARGEST_SIZE // 10**9
# Fewer bytes could not hold one file with its checksums and the next file.
_LEAST_BOUND = 64 * 1024
# A bounded queue has at least this many files: otherwise none could be removed while it is full.
_FILES_IN_A_BOUND = 8


class Budget(Protocol):
    """The part of a `DiskBudget` that options use."""

    @property
    def max_bytes(self) -> int: ...

    def _check_new(self, name: str, path: str, least: int) -> None: ...

    def _join(self, name: str, used: int, fixed: int, on_full: OnFull) -> Any: ...


# --- shared by several kinds ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _SyncedOptions:
    """The options of every store that is synced by a policy. Durations in seconds."""

    sync_every: int = 2500
    """Sync after this many messages were written, consumed, or (of one partition) committed; in a priority
    store, after this many commands. 1: each time. (nsqd's default.)"""
    sync_timeout: float = 2.0
    """Sync this many seconds after the first unsynced message, commit or command at the latest (nsqd's
    default)."""
    checkpoint_slice: float = 100e-6
    """A task whose calls never have to wait yields to others after this many seconds; 0: in every call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WriterOptions(_SyncedOptions):
    """The options of every store that messages are written to. Sizes in bytes."""

    durability: Durability = "written"
    """What a call that writes (`send`, `put`, `append`, `ack` of a priority store) waits for: the process's
    memory, the page cache, or the disk."""
    max_unsynced: int = 64 * MIB
    """Senders wait while this many bytes are not synced. A channel begins a sync at half of it."""
    memory_flush: float = 0.01
    """`memory` messages are written to the page cache after this many seconds at the latest; in a queue only
    if it has no `memory_size`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoggedOptions(_WriterOptions):
    """The options of every store with a redo log. Sizes in bytes."""

    sync_to: SyncTo = "log"
    """Where `synced` messages are on stable storage when the call returns: in the redo `log`, by one sync,
    and in their files by the sync policy; or in their `files`, by two. After a power cut another program
    finds what is in the log alone only after diskq has opened the store."""
    redo_log_size: int = 4 * MIB
    """The redo log grows up to this size; it begins with 64 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeliveryOptions:
    """The options of everything that delivers messages in batches, with retries. Durations in seconds."""

    max_messages: int = 100
    """A batch has at most this many messages."""
    max_bytes: int = MIB
    """A batch has at most this many bytes of messages; a single larger message is a batch of its own."""
    backoff_initial: float = 0.1
    """The second try comes after this time; each later one waits twice as long as the one before."""
    backoff_max: float = 60.0
    """No try waits longer than this."""
    backoff_jitter: float = 1.0
    """A random time of up to this much is added, so that many processes do not retry at the same moment."""


# --- of one kind ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(_LoggedOptions):
    """How a disk queue writes, syncs and bounds itself. Sizes in bytes, durations in seconds.

    No option is part of the format: a queue may be reopened with other options at any time.
    """

    segment_size: int = 100 * MIB
    """The queue starts a new file before the current one would grow past this (nsqd's default)."""
    min_message_size: int = 0
    """Smaller messages are refused; set 1 to forbid empty ones."""
    max_message_size: int = 16 * MIB
    """Larger messages are refused. Larger ones that are already in the files are delivered."""
    max_bytes: int | None = None
    """The queue's bound on disk, checksums and its logs included. None: only the disk's size bounds it."""
    on_full: OnFull = "wait"
    """At the bound: let senders wait, refuse (`FullError`), or drop the oldest file."""
    budget: Budget | None = None
    """A `DiskBudget`: a bound that this queue shares with others, in addition to its own."""
    memory_size: int = 0
    """With `durability="memory"`: up to this many bytes of messages stay in memory, and those received while
    they are there are never written. 0: `memory` messages are written soon."""
    strict: bool = False
    """Raise `CorruptionError` at damage, at open and when reading, instead of reporting it and going on."""

    def __post_init__(self) -> None:
        _at_least("segment_size", self.segment_size, 1)
        _at_least("min_message_size", self.min_message_size, 0)
        _at_least("max_message_size", self.max_message_size, max(1, self.min_message_size))
        if self.max_message_size > _LARGEST_MESSAGE:
            raise ValueError(f"max_message_size is at most {_LARGEST_MESSAGE}, got {self.max_message_size}")
        _check_logged(self)
        if self.max_bytes is not None:
            _at_least("max_bytes", self.max_bytes, _LEAST_BOUND)
        _one_of("on_full", self.on_full, _ON_FULL)
        _budget(self.budget)
        _at_least("memory_size", self.memory_size, 0)
        if self.memory_size and self.durability != "memory":
            raise ValueError(
                f'memory_size is for durability="memory": {self.durability!r} messages cannot wait in memory'
            )

    @property
    def roll_size(self) -> int:
        """The size at which a new file starts: `segment_size`, or an eighth of a smaller bound."""
        bounds = [self.max_bytes, self.budget.max_bytes if self.budget is not None else None]
        parts = [bound // _FILES_IN_A_BOUND for bound in bounds if bound is not None]
        return min([self.segment_size, *parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueWorkOptions:
    """How far several workers on one queue may get ahead of the slowest of them. Sizes in bytes."""

    max_in_flight: int = 1000
    """Up to this many messages are leased and not yet acknowledged; then workers wait for the next one."""
    max_attempts: int | None = None
    """After this many attempts a message is not delivered again, but given to `exhausted`; without an
    `exhausted`, and with None, it is delivered again without limit."""
    max_ahead: int = 100_000
    """Up to this many messages after the oldest unacknowledged one are read, acknowledged or not."""
    max_ahead_bytes: int = 64 * MIB
    """The same in bytes, plus one message: the most that is held in memory."""

    def __post_init__(self) -> None:
        _at_least("max_in_flight", self.max_in_flight, 1)
        if self.max_attempts is not None:
            _at_least("max_attempts", self.max_attempts, 1)
            if self.max_attempts > _MOST_ATTEMPTS:
                raise ValueError(f"max_attempts is at most {_MOST_ATTEMPTS}, got {self.max_attempts}")
        _at_least("max_ahead", self.max_ahead, 1)
        _at_least("max_ahead_bytes", self.max_ahead_bytes, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions(_LoggedOptions):
    """How a stream is laid out, written and kept. Sizes in bytes, durations in seconds.

    `partition_count`, `segment_size`, `retention_max_bytes`, `retention_max_age` and `encoding` are the
    stream's settings, kept in its settings.json; None means the value there or the default in parentheses,
    and is not written down. The others are the producer's, and may differ at each open.
    """

    partition_count: int | None = None
    """Number of partitions that are written to (3). If the stream has more, it keeps them."""
    segment_size: int | None = None
    """A new segment starts after the one whose data has reached this many bytes (32 MiB)."""
    segment_age: float | None = None
    """A segment is complete, and a new one starts, at the latest this long after its first message, so that
    tables get it. A stream that no program has open waits for the next open. None: only by its size."""
    retention_max_bytes: int | None = None
    """The oldest complete segments of a partition are removed while all of them are larger (no bound)."""
    retention_max_age: float | None = None
    """Complete segments that are older are removed (no bound)."""
    encoding: Encoding | None = None
    """How records store their lengths: `fixed` as in go-diskq's code, `varuint` as in its README (fixed)."""
    min_message_size: int = 0
    """Smaller values are refused; set 1 where Go programs read: they cannot read empty ones."""
    max_message_size: int = 16 * MIB
    """Larger values are refused."""
    max_key_size: int = 64 * 1024
    """Longer keys are refused."""
    budget: Budget | None = None
    """A `DiskBudget`: a bound on the disk that this stream shares with others."""
    on_full: OnFull = "wait"
    """When the budget is used up: let senders wait, refuse (`FullError`), or drop old segments."""
    age_rule: AgeRule = "newest"
    """The message of a segment that must be older than `retention_max_age`: its `newest`, as go-diskq
    promises, or its `oldest`, as go-diskq does."""
    keep_for_groups: bool = False
    """Retention, and `on_full="drop_oldest"`, keep what the slowest consumer group has not committed yet."""
    strict: bool = False
    """Raise `CorruptionError` at damage, at open, instead of reporting it and going on."""

    def __post_init__(self) -> None:
        for name in ("partition_count", "segment_size", "retention_max_bytes"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
                if getattr(self, name) > _LARGEST_SIZE:
                    raise ValueError(f"{name} is at most {_LARGEST_SIZE}, got {getattr(self, name)}")
        if self.partition_count is not None and self.partition_count > MOST_PARTITIONS:
            raise ValueError(f"partition_count is at most {MOST_PARTITIONS}, got {self.partition_count}")
        if self.segment_age is not None:
            _positive("segment_age", self.segment_age)
        if self.retention_max_age is not None:
            _positive("retention_max_age", self.retention_max_age)
            if self.retention_max_age > _LONGEST_AGE:
                raise ValueError(f"retention_max_age is at most {_LONGEST_AGE} seconds; None is no bound")
        if self.encoding is not None:
            _one_of("encoding", self.encoding, ENCODINGS)
        _at_least("min_message_size", self.min_message_size, 0)
        _at_least("max_message_size", self.max_message_size, max(1, self.min_message_size))
        _at_least("max_key_size", self.max_key_size, 32)  # a key that is made has 32 digits
        if self.max_key_size > _LARGEST_KEY:
            raise ValueError(f"max_key_size is at most {_LARGEST_KEY}, got {self.max_key_size}")
        _check_logged(self)
        _budget(self.budget)
        _one_of("on_full", self.on_full, _ON_FULL)
        _one_of("age_rule", self.age_rule, _AGE_RULES)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConsumerOptions(_SyncedOptions):
    """How a consumer of a stream reads, and how a group commits. Durations in seconds."""

    autocommit: bool = False
    """In a group: the next receive, and the end of the block, commit what was received before."""
    claim_interval: float = 1.0
    """In a group: seconds between two attempts to claim partitions that other members have."""

    def __post_init__(self) -> None:
        _check_syncing(self)
        _positive("claim_interval", self.claim_interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolOptions(_DeliveryOptions):
    """How a spool delivers. Sizes in bytes, durations in seconds.

    No option is part of the format: a spool may be reopened with other options at any time.
    """

    linger: float = 0.0
    """A batch that is not full waits this long for more messages."""
    max_attempts: int | None = None
    """After this many tries a batch's messages become dead letters. None: it is tried without limit."""
    deliver_timeout: float | None = None
    """A try that takes longer is cancelled, and has failed. None: no limit."""
    retry_on: type[Exception] | tuple[type[Exception], ...] = Exception
    """Exceptions of `deliver` after which the batch is tried again; any other one ends the spool's block."""
    pause_after: int | None = None
    """After this many failures in a row delivery stops for `pause`, then tries once. None: it never stops.
    """
    pause: float = 60.0
    """The length of that pause, to which up to a tenth is added at random."""
    rate: float | None = None
    """At most this many messages a second on average, each batch at once. None: as fast as possible."""
    drain_timeout: float = 0.0
    """Leaving the block without an error waits up to this long for the remaining messages' delivery."""
    commit: Commit = "written"
    """How durably a delivered batch is recorded before the next one is tried: `written`, it is not delivered
    again after a kill; `synced`, also not after a power cut, at the price of one sync for each batch."""
    queue: QueueOptions = field(default_factory=QueueOptions)
    """How the spool keeps its messages: durability, bounds, and what happens when it is full."""

    def __post_init__(self) -> None:
        _check_delivery(self)
        for name in ("max_attempts", "pause_after"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        for name in ("linger", "drain_timeout"):
            _number_of_seconds(name, getattr(self, name))
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is 0 or more seconds, got {getattr(self, name)}")
        _positive("pause", self.pause)
        if self.deliver_timeout is not None:
            _positive("deliver_timeout", self.deliver_timeout)
        if self.rate is not None:
            if not isinstance(self.rate, (int, float)):
                raise TypeError(f"rate is a number of messages a second, got {self.rate!r}")
            if not self.rate > 0:
                raise ValueError(f"rate is more than 0 messages a second, got {self.rate}")
        kinds: tuple[object, ...] = self.retry_on if isinstance(self.retry_on, tuple) else (self.retry_on,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise TypeError(f"retry_on is one or several kinds of Exception, got {self.retry_on!r}")
        _one_of("commit", self.commit, _COMMITS)
        if not isinstance(self.queue, QueueOptions):
            raise TypeError(f"queue is a QueueOptions, got {self.queue!r}")
        if self.queue.memory_size:
            raise ValueError("a spool's messages have a place in its files: memory_size is not for them")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityOptions(_WriterOptions):
    """How a store of priority queues writes, syncs and bounds itself. Sizes in bytes, durations in seconds.

    `soft_limit`, `hard_limit` and `snapshot_segments` are TaskFlux's settings; None means the value in
    `taskflux.settings.json`, or TaskFlux's default. Only `layout` is part of the format.
    """

    soft_limit: int | None = None
    """A new segment of the log starts after one that is larger than this (16 MiB)."""
    hard_limit: int | None = None
    """A new segment also starts in the middle of a batch when the current one reaches this (32 MiB)."""
    snapshot_segments: int | None = None
    """When this many segments are complete, a snapshot is taken and the log before it is removed (5)."""
    layout: StoreLayout | None = None
    """How records are laid out: "aligned", as TaskFlux reads them, or as in its "document". None: as the
    store has them, and "aligned" in a new store."""
    preallocate: bool = True
    """Write zeros ahead of the log, which makes a sync cheaper."""
    max_message_size: int = 16 * MIB
    """Larger messages are refused, whatever their queue allows."""
    on_full: OnFullQueue = "wait"
    """In a channel, while a queue holds `max_messages`: let senders wait, or refuse (`FullError`), as the
    engine and TaskFlux do."""
    strict: bool = False
    """Raise `CorruptionError` also at a torn tail, instead of cutting it and reporting."""

    def __post_init__(self) -> None:
        for name in ("soft_limit", "hard_limit", "snapshot_segments"):
            value = getattr(self, name)
            if value is not None:
                _at_least(name, value, int(name == "snapshot_segments"))
        if self.layout is not None:
            _one_of("layout", self.layout, _STORE_LAYOUTS)
        _at_least("max_message_size", self.max_message_size, 1)
        if self.max_message_size > LARGEST_PAYLOAD:
            raise ValueError(f"max_message_size is at most {LARGEST_PAYLOAD}, got {self.max_message_size}")
        _one_of("on_full", self.on_full, _ON_FULL_QUEUE)
        _check_writer(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalScannerOptions(_SyncedOptions):
    """How a journal is read, and how a named reader commits. Durations in seconds."""

    autocommit: bool = False
    """A named reader: the next receive, and the end of the block, commit what was received before."""

    def __post_init__(self) -> None:
        _check_syncing(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions(_LoggedOptions):
    """How a journal is written and synced. Sizes in bytes, durations in seconds.

    No option is part of the format: a journal may be reopened with other options at any time.
    """

    segment_size: int = 1024 * MIB
    """A new file starts after the message with which the current one reaches this size (sej's default)."""
    min_message_size: int = 0
    """Smaller values are refused."""
    max_message_size: int = 16 * MIB
    """Larger values are refused. Larger ones that are already in the files are delivered."""
    max_key_size: int = 127
    """Longer keys are refused; the format allows up to 127 bytes."""
    strict: bool = False
    """Raise `CorruptionError` at damage, at open, instead of reporting it and going on."""

    def __post_init__(self) -> None:
        _at_least("segment_size", self.segment_size, 0)
        if self.segment_size > _LARGEST_SIZE:
            raise ValueError(f"segment_size is at most {_LARGEST_SIZE}, got {self.segment_size}")
        _at_least("min_message_size", self.min_message_size, 0)
        _at_least("max_message_size", self.max_message_size, max(1, self.min_message_size))
        if self.max_message_size > _LARGEST_MESSAGE:
            raise ValueError(f"max_message_size is at most {_LARGEST_MESSAGE}, got {self.max_message_size}")
        _at_least("max_key_size", self.max_key_size, 0)
        if self.max_key_size > _LARGEST_JOURNAL_KEY:
            raise ValueError(f"max_key_size is at most {_LARGEST_JOURNAL_KEY}, got {self.max_key_size}")
        _check_logged(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubOptions:
    """Limits of a hub on requests, connections and journals. Sizes in bytes, durations in seconds."""

    max_batch_size: int = 64 * MIB
    """Larger requests are refused; an answer is at most this large."""
    max_batch_messages: int = 100_000
    """Requests with more messages are refused; an answer has at most this many."""
    max_get_size: int = MIB
    """An answer holds up to this many bytes of a journal, or one larger message."""
    max_open_journals: int = 256
    """Up to this many journals are open at a time; the least recently used one is closed for another."""
    idle_timeout: float = 60.0
    """A journal that is not used for this long is closed."""
    max_requests: int = 256
    """Up to this many requests are in progress at a time; others are refused, to be repeated later."""
    max_streams: int = 100
    """Up to this many requests are in progress at a time on one connection."""
    threads: int = 16
    """Up to this many requests are worked on at a time, each in a thread."""
    request_timeout: float = 30.0
    """The longest time in which a request must arrive completely, and for which it waits for a thread."""
    max_client_requests: int = 32
    """Up to this many requests of one client are in progress at a time, arriving or worked on; others are
    refused, to be repeated later. A client is a token; without tokens a certificate, or else a connection."""
    max_connections: int = 500
    """Up to this many connections are open at a time; one more is closed at once. Each takes a descriptor."""
    handshake_timeout: float = 10.0
    """A connection is closed if its client has not begun to speak gRPC (and TLS) after this time."""
    idle_connection_timeout: float = 60.0
    """A connection without a request for this long is closed; a client opens another one when it needs it."""
    stop_timeout: float = 10.0
    """When the hub stops, it waits up to this long for requests in progress."""
    quota: int | None = None
    """Up to this many bytes of journals for each client. None: only the disk's size bounds them."""
    journal: JournalOptions = field(default_factory=JournalOptions)
    """How journals are kept, and how large a value may be. Each batch is synced, whatever `durability` is."""

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_batch_messages", "max_get_size"):
            _at_least(name, getattr(self, name), 1)
        for name in ("max_open_journals", "max_requests", "max_streams", "threads"):
            _at_least(name, getattr(self, name), 1)
        for name in ("max_client_requests", "max_connections"):
            _at_least(name, getattr(self, name), 1)
        if self.max_batch_size > _LARGEST_MESSAGE:
            raise ValueError(f"max_batch_size is at most {_LARGEST_MESSAGE}, got {self.max_batch_size}")
        if self.quota is not None:
            _at_least("quota", self.quota, 1)
        for name in ("idle_timeout", "request_timeout", "stop_timeout"):
            _positive(name, getattr(self, name))
        for name in ("handshake_timeout", "idle_connection_timeout"):
            _positive(name, getattr(self, name))
        if not isinstance(self.journal, JournalOptions):
            raise TypeError(f"journal is a JournalOptions, got {self.journal!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationOptions(_DeliveryOptions):
    """How messages are copied to a hub. Sizes in bytes, durations in seconds."""

    max_messages: int = 10_000
    """A batch, which the hub syncs, has at most this many messages."""
    linger: float = 0.0
    """From a queue or a stream: a batch that is not full waits this long for more messages."""
    from_oldest: bool = False
    """Copy a journal whose oldest messages were removed from its first remaining one on, if the hub has
    nothing of it yet. Without this option that is an error, as removed messages cannot be copied."""
    backoff_max: float = 10.0
    """No try waits longer than this."""

    def __post_init__(self) -> None:
        _check_delivery(self)
        _zero_or_more("linger", self.linger)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """How a stream or a journal is kept as a table of Parquet files."""

    compression: Compression = "zstd"
    """How the pages of the files are compressed. Values that do not become smaller by it are left as they
    are."""
    keep: Keep = "all"
    """`all`: files stay when retention removes their segments, so that the table is an archive. `segments`:
    a file goes once all messages in it are gone from the stream."""
    allow_gaps: bool = False
    """True: messages that cannot be read, or that retention has removed before they came into the table, are
    left out, and their file says so. False: they are an error, and the table stays as it is."""
    keep_replaced: float = 0.0
    """For this many seconds files stay that a compaction has replaced: for a DataFrame of Spark's, or a
    catalog, that has listed them. The next update or compaction after that removes them. Meanwhile a program
    that lists names itself reads their messages twice."""

    def __post_init__(self) -> None:
        _one_of("compression", self.compression, COMPRESSIONS)
        _one_of("keep", self.keep, KEEPS)
        _zero_or_more("keep_replaced", self.keep_replaced)


def _check_syncing(options: _SyncedOptions) -> None:
    _zero_or_more("checkpoint_slice", options.checkpoint_slice)
    _at_least("sync_every", options.sync_every, 1)
    _positive("sync_timeout", options.sync_timeout)


def _check_logged(options: _LoggedOptions) -> None:
    _check_writer(options)
    _one_of("sync_to", options.sync_to, _SYNC_TO)
    _at_least("redo_log_size", options.redo_log_size, _LEAST_BOUND)


def _check_writer(options: _WriterOptions) -> None:
    _check_syncing(options)
    _one_of("durability", options.durability, DURABILITY_WORDS)
    _at_least("max_unsynced", options.max_unsynced, 1)
    _positive("memory_flush", options.memory_flush)


def _check_delivery(options: _DeliveryOptions) -> None:
    _at_least("max_messages", options.max_messages, 1)
    _at_least("max_bytes", options.max_bytes, 1)
    _positive("backoff_initial", options.backoff_initial)
    _number_of_seconds("backoff_max", options.backoff_max)
    if not options.backoff_initial <= options.backoff_max < math.inf:
        raise ValueError(f"backoff_max is at least backoff_initial, got {options.backoff_max}")
    _zero_or_more("backoff_jitter", options.backoff_jitter)


def checked_durability(word: Durability) -> Durability:
    """Return the durability of one call. Raises ValueError if it is not one of the three words."""
    _one_of("durability", word, DURABILITY_WORDS)
    return word


@cache
def _defaults(kind: type[Options]) -> Options:
    """Return the options of this kind that a call without options has: one object for all such calls."""
    return kind()


def chosen_options(
    called: Callable[..., Any],
    options: Options | None,
    kind: type[Options],
    changes: Mapping[str, Any],
    *,
    refused: str | None = None,
) -> Options:
    """Return the options that a call was given, or the defaults of its kind, with the changes to them.

    `called` is the opener or engine that takes them. Raises TypeError; if there is no such option, it says
    which one may be meant. `refused` is an option of that kind that the caller refuses: it is never meant.
    """
    if options is None:
        options = _defaults(kind)
    elif not isinstance(options, kind):
        raise TypeError(f"options are {kind.__name__}, not {type(options).__name__}")
    if not changes:
        return options
    names = [each.name for each in fields(kind)]
    for name in changes:
        if name not in names:
            raise TypeError(_no_option(called, name, [each for each in names if each != refused]))
    return replace(options, **changes)


def _no_option(called: Callable[..., Any], name: str, names: list[str]) -> str:
    import difflib
    import inspect

    others = [each for each in inspect.signature(called).parameters if each not in ("self", "changes")]
    meant = difflib.get_close_matches(name, [*names, *others], n=1)
    rest = f": did you mean {meant[0]!r}?" if meant else f"; it has {', '.join(sorted(names))}"
    return f"{called.__qualname__}() has no option {name!r}{rest}"


def _at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} is at least {least}, got {value}")


def _budget(value: Budget | None) -> None:
    if value is not None and not callable(getattr(value, "_join", None)):
        raise TypeError(f"budget is a DiskBudget, got {value!r}")


def _number_of_seconds(name: str, value: float) -> None:
    if not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number of seconds, got {value!r}")


def _zero_or_more(name: str, value: float) -> None:
    _number_of_seconds(name, value)
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is 0 or more seconds, got {value}")


def _positive(name: str, value: float) -> None:
    _number_of_seconds(name, value)
    if not value > 0:
        raise ValueError(f"{name} is more than 0 seconds, got {value}")


def _one_of(name: str, value: str, words: tuple[str, ...]) -> None:
    if value not in words:
        raise ValueError(f"{name} is one of {', '.join(words)}, got {value!r}")
