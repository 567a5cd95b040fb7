# The promised ratios of diskq to its peers. Law: a floor is stated here and nowhere else.
#
# The benchmarks measure these rows and print them, `--check` fails if one is missed, and
# tests/test_floors.py checks that every row is measured. A section is measured together: its
# peers run within seconds of diskq, in the same round.

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = [
    "ARCHIVED",
    "CONVERT",
    "DURABLE",
    "FIGURES",
    "FSYNC",
    "HUB",
    "JOURNAL",
    "LOOPS",
    "PRIORITY",
    "QUEUE",
    "RAW",
    "SPARK",
    "SPOOL",
    "STREAM",
    "TABLE",
    "THREADS",
    "TOP",
    "VERIFIED",
    "VERIFY",
    "Figure",
    "Row",
    "Section",
    "calls",
    "go_bound",
    "go_synced",
    "reason_of",
    "sej_calls",
]


@dataclass(frozen=True, slots=True)
class Figure:
    """Something that is measured, and which of two values of it is the better one."""

    unit: str
    more_is_better: bool


FIGURES = {
    "rate": Figure("/s", more_is_better=True),
    "p50_us": Figure("µs", more_is_better=False),
    "open_ms": Figure("ms", more_is_better=False),
    "rss_mib": Figure("MiB", more_is_better=False),
    "gb_s": Figure("GB/s", more_is_better=True),
    "cpu_us": Figure("µs", more_is_better=False),
    "cpu_ms": Figure("ms", more_is_better=False),
    "batch_ms": Figure("ms", more_is_better=False),
    "record_bytes": Figure("B", more_is_better=False),
    "longest_ms": Figure("ms", more_is_better=False),
    "slices": Figure("slices", more_is_better=False),
    "threads": Figure("threads", more_is_better=False),
    "descriptors": Figure("descriptors", more_is_better=False),
    "core_percent": Figure("% of a core", more_is_better=False),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One reading of diskq, compared with one of a peer or with a bound.

    A reading has the name of its measurement, or "measurement: part" if the measurement makes several.
    """

    name: str
    ours: str
    peer: str = ""
    at_least: float | None = None
    """The minimal ratio to the peer, by the median of the rounds' ratios."""
    at_most: float | None = None
    """The highest value that is promised, in the figure's own unit, by the median of the rounds."""
    reaches: float | None = None
    """The lowest value that is promised, in the figure's own unit, where more is better."""
    figure: str = "rate"
    reason: str = ""
    """Why the floor is missed, if it is, by what was measured."""

    @property
    def has_floor(self) -> bool:
        return any(floor is not None for floor in (self.at_least, self.at_most, self.reaches))


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    rows: tuple[Row, ...]


# What Python users have today; each is put to work as its manual says (benchmarks/peers.py).
_LIBRARIES = (
    "queuelib",
    "sqlite3",
    "persist-queue",
    "diskcache",
    "litequeue",
    "localqueue",
    "LMDB",
    "RocksDB",
)
_PEERS = (*_LIBRARIES, "Redis")
_RELAXED = (*_PEERS, "persist-queue file", "NATS")  # which two have no durable put

_INTERPRETED = (
    "The interpreter's own work, an await and one compiled call, is nearly all of its time. It takes a "
    "quarter more on some machines, on which Go takes as long as on others."
)

QUEUE = (
    Section(
        "Sending: 100 B, a sync every 2500 messages or 2 s",
        (
            Row("send", "send", "go put", at_least=3.0),
            Row("send, 16 tasks", "send 16", "go put 16", at_least=3.6),
            Row("send_many(100)", "send_many", "go put", at_least=12.0),
            Row("send, strict", "send strict", "go put", at_least=0.35),
            Row(
                "send, strict, 16 tasks",
                "send strict 16",
                "go put 16",
                at_least=0.6,
                reason=(
                    "At its floor, above and below it from run to run (0.58, 0.67). Strict is a checkpoint "
                    "for each message, 1.5 µs of Trio's loop by itself, and a write(2) of its own, 0.6 µs: "
                    "together as much as a whole message of go-diskqueue's. The other 1.5 µs are the way "
                    "through the channel's Python, which is taken once a slice where one is not strict."
                ),
            ),
        ),
    ),
    Section(
        "Receiving: 100 B, from a queue filled and reopened before",
        (
            Row(
                "receive",
                "receive",
                "go get",
                at_least=2.0,
                reason=_INTERPRETED,
            ),
            Row("receive_many(100)", "receive_many", "go get", at_least=8.0),
        ),
    ),
    Section(
        "Sending and receiving at once: 100 B",
        (
            Row("send and receive", "both", "go putget", at_least=2.1, reason=_INTERPRETED),
            Row(
                "send_many and receive_many(100)",
                "both batched",
                "go putget",
                at_least=10.0,
                reason=_INTERPRETED,
            ),
        ),
    ),
    Section(
        "Sending: 1 KiB, a sync every 2500 messages or 2 s",
        (
            Row("send, 1 KiB", "send 1 KiB", "go put 1 KiB", at_least=2.1),
            Row("send_many(100), 1 KiB", "send_many 1 KiB", "go put 1 KiB", at_least=4.4),
        ),
    ),
    Section(
        "Latency: 100 B, from before send to received by another task, one at a time",
        (
            Row(
                "latency, p50",
                "latency",
                "go latency",
                at_least=1.0,
                figure="p50_us",
                reason=(
                    "A bare hand-over between two Trio tasks, with no queue between them, is 4.4 µs "
                    "of some 11 µs; all of Go's is 3 µs. No program in Trio reaches it."
                ),
            ),
            Row("latency, p50, and a bare hand-over", "latency", "trio hand-over", figure="p50_us"),
            Row("latency, p50, 1 ms apart", "latency 1 ms", "go latency 1 ms", figure="p50_us"),
        ),
    ),
    Section(
        "Others' turns: what another task waits for the event loop",
        (
            Row(
                "longest wait, while each fsync takes 20 ms",
                "slow disk: 20 ms",
                at_most=5.0,
                figure="longest_ms",
                reason=(
                    "One wait of a hundred thousand: the machine takes the processor away for some "
                    "milliseconds, with the 20 ms or without (the next row)."
                ),
            ),
            Row(
                "longest wait, beside the disk as it is",
                "slow disk: 20 ms",
                "slow disk: as it is",
                figure="longest_ms",
            ),
            *(
                Row(
                    f"a loop over {name}: the 99th of 100 runs without a yield",
                    f"turns: {name}",
                    at_most=2.0,
                    figure="slices",
                    reason=(
                        "A slice is looked at between two calls: what one of them does for all before it, a "
                        "write(2) of the write-ahead log or the read of the next chunk, ends the run."
                    ),
                )
                for name in ("send", "receive")
            ),
        ),
    ),
    Section(
        "A long queue: 100 B",
        (
            Row(
                "open",
                "long queue: open",
                at_most=50.0,
                figure="open_ms",
                reason=(
                    "It was the first open of its process and imported portalocker, for 40 ms and more (with "
                    "redis, where that is installed). It does not any more: 5.3 ms, in a round by itself."
                ),
            ),
            Row("memory grown by the open", "long queue: open", at_most=16.0, figure="rss_mib"),
            Row("receive its first", "long queue: first", "short queue", at_least=1.2),
            Row("receive in its middle", "long queue: middle", "short queue", at_least=1.3),
        ),
    ),
    Section(
        "A thousand queues in one program: 100 B",
        (
            Row("threads of diskq", "many queues: open", at_most=16, figure="threads"),
            Row("memory beyond an empty program", "many queues: open", at_most=25, figure="rss_mib"),
            Row("descriptors", "many queues: open", figure="descriptors"),
            Row("opened, one after another", "many queues: open"),
            Row(
                "one send to each, in turn",
                "many queues: round",
                reaches=5 * 56_000,
                reason=(
                    "What a thousand queues need in memory, 22 MiB, does not fit the caches of one core, and "
                    "the last cache is shared with other machines: 405 k/s on one day, 166 to 313 k/s on "
                    "another, when an earlier commit, in turn with this one, had 166 to 306."
                ),
            ),
            Row("sync of each, all at once", "many queues: sync"),
        ),
    ),
    Section(
        "Python's queues, relaxed: 100 B, no put waits for a sync of its own",
        (
            *(Row("Queue.put", "Queue: put", f"{peer}: put") for peer in _RELAXED),
            Row("Queue.put, never synced", "Queue, never synced: put", "queuelib: put"),
            *(Row("Queue.get", "Queue: get", f"{peer}: get") for peer in _RELAXED),
            *(Row("send", "channel: put", f"{peer}: put") for peer in _RELAXED),
            *(Row("receive", "channel: get", f"{peer}: get") for peer in _RELAXED),
        ),
    ),
    Section(
        "Python's queues, durable: 100 B, each put returns after its sync",
        (
            *(Row("send, synced, 1 task", "durable 1", f"{peer}, synced: put") for peer in _PEERS),
            Row("send, synced, 1 task", "durable 1", "go syncput"),
            *(Row("send, synced, 64 tasks", "durable 64", f"{peer}, synced: put") for peer in _PEERS),
        ),
    ),
)

# --- durable sends of each kind, in short works and many rounds -------------------------------------------

RAW = "raw append and fdatasync"
# The median ratios to go-diskqueue before there was a redo log, of which 1.6 times are promised.
_BEFORE = {
    16: {"queue": 14.8, "stream": 14.8, "journal": 14.8},
    256: {"queue": 66.7, "stream": 53.1, "journal": 66.7},
}


_HANDED_OVER = (
    "A send writes its message twice, to its file and to the redo log, and has another thread sync the log, "
    "so that a disk that stalls does not stop the event loop. The peer syncs in the thread that writes."
)
_INDEXED = " A stream's message has two index entries besides, which are two more writes."
_WAKING = (
    "All tasks share a sync. Between two syncs Trio's loop wakes them one after the other, and each sends "
    "again: a hand-over between two tasks for each message, in which the disk has nothing to do. With 256 "
    "tasks the processor's time for a message (CPU) is nearly all of its time."
)
_LOGS = {"queue": _HANDED_OVER, "stream": _HANDED_OVER + _INDEXED, "journal": _HANDED_OVER}


def go_synced(producers: int) -> str:
    """go-diskqueue with `syncEvery=1`, by this number of goroutines."""
    return f"go-diskqueue, syncEvery=1, {producers}"


DURABLE = (
    Section(
        "One producer: 100 B, each send returns after its sync",
        tuple(
            row
            for kind, reason in _LOGS.items()
            for row in (
                Row(f"{kind}, 1 task", f"{kind} 1", RAW, at_least=0.85, reason=reason),
                Row(f"{kind}, 1 task", f"{kind} 1", go_synced(1), at_least=2.8),
                Row(f"{kind}, 1 task", f"{kind} 1", "sqlite3", at_least=1.0, reason=reason),
            )
        ),
    ),
    *(
        Section(
            f"{tasks} producers: 100 B, each send returns after its sync",
            tuple(
                Row(
                    f"{kind}, {tasks} tasks",
                    f"{kind} {tasks}",
                    go_synced(tasks),
                    at_least=round(1.6 * before, 1),
                    reason=_WAKING,
                )
                for kind, before in kinds.items()
            ),
        )
        for tasks, kinds in _BEFORE.items()
    ),
)

FSYNC = (
    Section(
        "Durable sends, by the fdatasync of their own moment: 100 B",
        (
            Row("fdatasync of 2 files", "fdatasync: 2 files", "fdatasync: 1 file"),
            *(
                Row(f"send, synced, tasks: {tasks}", f"fdatasync: {tasks}", "fdatasync: 1 file")
                for tasks in (1, 16, 64, 256)
            ),
        ),
    ),
)

LOOPS = tuple(
    Section(
        f"One queue on {loop}, beside Trio: 100 B",
        (
            Row("send, one task", f"{loop}: send", f"{loop}: trio, send", at_least=0.8),
            Row("receive, one task", f"{loop}: receive", f"{loop}: trio, receive", at_least=0.8),
            Row(
                "hand-over to a task that waits, p50",
                f"{loop}: hand-over",
                f"{loop}: trio, hand-over",
                figure="p50_us",
                at_least=round(1 / 1.2, 2),
            ),
            Row("send, synced, p50", f"{loop}: alone", f"{loop}: trio, alone", figure="p50_us"),
            Row("send, synced, 256 tasks", f"{loop}: at once", f"{loop}: trio, at once", at_least=0.6),
        ),
    )
    for loop in ("asyncio", "uvloop")
)

_SWITCHING = (
    "Where a sync takes 0.1 ms, the time of a put is that of switches of threads and of Python, which runs "
    "one thread at a time. What that allows is in the last section: threads that only append to a list and "
    "wait for a shared sync of a page are 6.3 to 7.2 x one lock on a machine with nothing else to do, and 21 "
    "to 28 x with 1 ms more a sync."
)

THREADS = tuple(
    Section(
        f"Threads that share {name}: synced puts of 100 B",
        (
            *(
                Row(
                    f"threads: {count}",
                    f"{kind}: shared, {count}",
                    f"{kind}: lock, {count}",
                    at_least=8.0 if count == 64 and kind != "bare" else None,
                    reason=_SWITCHING if count == 64 and kind != "bare" else "",
                )
                for count in (1, 16, 64)
            ),
            Row(
                "threads: 64, where a sync takes 1 ms longer",
                f"{kind}, slower disk: shared, 64",
                f"{kind}, slower disk: lock, 64",
                at_least=None if kind == "bare" else 8.0,
            ),
        ),
    )
    for kind, name in (
        ("queue", "a queue"),
        ("stream", "a stream"),
        ("journal", "a journal"),
        ("priority", "a priority store"),
        ("bare", "a list, and a sync of a page: what Python and the disk allow"),
    )
)

# --- streams: go-diskq is not measured here; beside them stand its system calls alone --------------------


def calls(act: str) -> str:
    """The system calls that go-diskq makes for it, and nothing else (benchmarks/gocalls)."""
    return f"go-diskq's system calls alone, of {act}"


STREAM = (
    Section(
        "Sending: 100 B with a key of 8 B, a sync every 2500 messages or 2 s",
        (
            Row("send", "send", calls("Push"), at_least=2.4),
            Row("send, 3 partitions", "send 3", calls("Push, 3 partitions"), at_least=2.3),
            Row(
                "send, 16 tasks",
                "send 16",
                calls("Push, 16 goroutines"),
                at_least=3.6,
                reason=(
                    "Bound by the processor, where the calls are bound by the kernel: 3.4 to 3.8 times as "
                    "fast on one day, and 3.1 to 3.8 times with an earlier commit, in turn with this one."
                ),
            ),
            Row(
                "send_many(100)",
                "send_many",
                calls("Push"),
                at_least=6.0,
                reason=(
                    "Bound by the processor, 0.43 µs a message, for three files' bytes, where the calls are "
                    "bound by the kernel: from run to run it is 4.2 to 6.1 times as fast."
                ),
            ),
        ),
    ),
    Section(
        "Durable: each send returns after its sync",
        (
            Row("synced, 1 task", "synced 1", calls("Push and Sync")),
            Row("synced, 16 tasks", "synced 16", calls("Push and Sync, 16 goroutines")),
            Row("synced, 256 tasks", "synced 256", calls("Push and Sync, 256 goroutines")),
        ),
    ),
    Section(
        "Receiving: from a partition filled and reopened before",
        (
            Row("async for", "consume", calls("Consumer"), at_least=6.6),
            Row("receive_many(100)", "consume batched", calls("Consumer"), at_least=20.0),
            Row("columns", "columns", reaches=1.5, figure="gb_s"),
            Row("columns", "columns", calls("Read"), at_least=18.0),
        ),
    ),
    Section(
        "Finding a moment: 1,000,000 messages in 13 segments",
        (
            Row("offset_after, open", "lookup", calls("GetOffsetAfter"), at_least=19.0, figure="p50_us"),
            Row("offset_after, cold", "cold", calls("GetOffsetAfter"), at_least=1.4, figure="p50_us"),
        ),
    ),
    Section(
        "Finding a moment: 100,000,000 messages",
        (Row("offset_after, open", "lookup in many", at_most=20.0, figure="p50_us"),),
    ),
    Section(
        "Latency: from before send to received by another task, one at a time",
        (
            Row(
                "in process, p50",
                "latency",
                calls("Push to Consumer"),
                at_least=3.0,
                figure="p50_us",
                reason=(
                    "Two of go-diskq's three hand-overs are not in its calls, which are 17 µs. The 13 µs "
                    "here are a send and the wake-up of a Trio task, which alone is 4.6 µs: no program in "
                    "Trio is three times as fast as those calls."
                ),
            ),
            Row(
                "in process, p50, 1 ms apart",
                "latency 1 ms",
                calls("Push to Consumer, 1 ms apart"),
                figure="p50_us",
            ),
            Row(
                "across processes, p50",
                "across",
                calls("Push to Consumer, across processes"),
                at_least=1.0,
                figure="p50_us",
                reason=(
                    "The wake-ups of two event loops, the sender's and the receiver's: 68 µs, where "
                    "the calls of a bare Go program are 42 µs."
                ),
            ),
            Row(
                "across processes, p50, 1 ms apart",
                "across 1 ms",
                calls("Push to Consumer, across processes, 1 ms apart"),
                figure="p50_us",
            ),
        ),
    ),
    Section(
        "Waiting: 2 s without a message",
        (
            Row(
                "CPU of a consumer",
                "idle",
                at_most=1.0,
                figure="cpu_ms",
                reason=(
                    "At the grain of the measurement: 0.54 ms in the best round, 1.08 ms in the "
                    "median, and the event loop's own sleeps are all that it is."
                ),
            ),
        ),
    ),
)

# --- journals: nor is sej; beside them stand its system calls alone, and a bound written in Go -----------


def sej_calls(act: str) -> str:
    """The system calls that sej makes for it, and nothing else (benchmarks/gocalls)."""
    return f"sej's system calls alone, of {act}"


def go_bound(act: str) -> str:
    """A bound, which is not sej: the least that a program in Go does for its files (benchmarks/gojournal)."""
    return f"a bound written in Go, of {act}"


JOURNAL = (
    Section(
        "Sending: 100 B with a key of 8 B, in the page cache when the call returns",
        (
            # Append's messages are still in the process when it returns; its calls are a write of 4 KiB.
            Row("send_many(100)", "send_many", sej_calls("Append")),
            Row(
                "send_many(100)",
                "send_many",
                go_bound("buffered Append"),
                at_least=1.0,
                reason=(
                    "The bound copies 134 bytes into a buffer, and its messages are lost with its process; a "
                    "batch is a write(2) that has happened, checksums, and a call's own cost divided by 100 "
                    "messages: in batches of 1,000 it is less than half as much (the next row)."
                ),
            ),
            Row(
                "send_many(1000)",
                "send_many 1000",
                go_bound("buffered Append"),
                at_least=1.0,
                reason=(
                    "Within a tenth of a buffer that is lost with its process: these messages are in the "
                    "page cache when the call returns, and have checksums."
                ),
            ),
            Row("send_many(100)", "send_many", sej_calls("Append and Flush"), at_least=3.0),
            Row("send", "send", sej_calls("Append and Flush"), at_least=1.4),
            Row("send, 16 tasks", "send 16", sej_calls("Append and Flush"), at_least=1.5),
        ),
    ),
    Section(
        "Durable: each send returns after its sync",
        (
            Row("synced, 1 task", "synced 1", sej_calls("Append, Flush and Sync")),
            Row(
                "synced, 16 tasks",
                "synced 16",
                sej_calls("Append, Flush and Sync, 16 goroutines"),
                at_least=8.0,
                reason=(
                    "Sixteen sends share one write and one sync, where the calls of sej make one of each for "
                    "every message: 16 x would be a group in the time of one message. Between two groups "
                    "Trio's loop wakes sixteen tasks, one after the other, and each sends again; the disk "
                    "has nothing to do meanwhile."
                ),
            ),
        ),
    ),
    Section(
        "Receiving: from a journal filled and reopened before",
        (
            Row(
                "async for",
                "scan",
                go_bound("Scan"),
                at_least=1.5,
                reason=(
                    "One await and one Python object for each message, 0.37 µs; the bound has one "
                    "allocation, 0.08 µs. The bound is not sej: measured elsewhere, sej's scanner takes 2.6 "
                    "times as much processor time as the bound."
                ),
            ),
            Row(
                "receive_many(100)",
                "scan batched",
                go_bound("Scan"),
                at_least=1.5,
                reason=(
                    "Each message is a Python object of four fields with bytes of its own, and is compared "
                    "with a checksum, which sej's files do not have: 0.12 µs. The bound allocates once and "
                    "has no checksum: 0.08 µs. The bound is not sej: measured elsewhere, sej's scanner takes "
                    "2.6 times as much processor time, so that 0.58 x the bound is about 1.5 x sej."
                ),
            ),
            # Scan's calls are a read of 64 KiB for some 480 messages: what it costs is between them.
            Row("async for", "scan", sej_calls("Scan")),
            Row("receive_many(100)", "scan batched", sej_calls("Scan")),
            Row("columns", "columns", reaches=1.5, figure="gb_s"),
        ),
    ),
    Section(
        "Waiting: 2 s without a message",
        (Row("CPU of a scanner", "idle", at_most=1.0, figure="cpu_ms"),),
    ),
)

# --- the spool: what it costs where the destination takes everything at once ----------------------

HUB = (
    Section(
        "Hub on loopback: 100 B, each batch synced before the answer, a client in Go",
        (
            Row("batches of 1,000", "hub, 1000", "hub in Go, 1000", at_least=0.7),
            Row("batches of 100", "hub, 100", "hub in Go, 100"),
        ),
    ),
)

# --- verifying: by the seconds of one core, with the files in the page cache -------------------------

VERIFIED = {"queue": "NSQ", "stream": "triplet", "journal": "sej", "jobs": "TaskFlux"}
"""What is verified, and whose files those are."""

VERIFY = tuple(
    Section(
        f"Verifying: {told}, GB a second of one core",
        tuple(
            Row(f"{kind} ({format_})", f"{kind}, {size}", reaches=1.0, figure="gb_s")
            for kind, format_ in VERIFIED.items()
        ),
    )
    for size, told in ((100, "100 B"), (1024, "1 KiB"))
)

# Each gets a message and says that it is done, in a loop (benchmarks/spool_works.py).
_GET_AND_ACK = ("localqueue", "persist-queue ack", "persist-queue file")

SPOOL = (
    Section(
        "Steady: 100 B, sent and delivered at once, batches of 100 at most",
        (
            Row("CPU of a message, sent one by one", "steady", at_most=15.0, figure="cpu_us"),
            Row("CPU of a message, send_many(100)", "steady, send_many", at_most=15.0, figure="cpu_us"),
            Row("CPU of a message, durability=memory", "steady, memory", figure="cpu_us"),
            *(
                Row(
                    "sent and delivered",
                    "steady",
                    peer,
                    at_least=25.0,
                    reason=(
                        "diskq is bound by the processor and the peer by the disk: 21 to 29 times as fast as "
                        "persist-queue on one day, and 24 to 35 times with an earlier commit, in turn."
                    ),
                )
                for peer in _GET_AND_ACK
            ),
        ),
    ),
    Section(
        "Draining: 100 B, what was spooled before, batches of 100",
        tuple(Row("delivered", "drain", peer, at_least=34.0) for peer in _GET_AND_ACK),
    ),
    Section(
        "Leases: 100 B, each received and acknowledged",
        (
            *(Row("receive, ack", "leases", peer) for peer in _GET_AND_ACK),
            *(Row("receive_many(100), ack", "leases, batched", peer) for peer in _GET_AND_ACK),
        ),
    ),
)

# --- diskq top: who is watched does not notice ---------------------------------------------------------

TOP = (
    Section(
        "Watched: send_many(100) of 100 B at full speed, alone and beside diskq top in turn",
        (
            *(
                Row(
                    f"{kind}: CPU of a message",
                    f"{kind}: beside",
                    f"{kind}: alone",
                    at_least=0.98,
                    figure="cpu_us",
                    reason=(
                        "Not told from noise: the same producer, alone, differs by more than two percent "
                        "from one phase to the next, as the spread shows."
                    ),
                )
                for kind in ("queue", "stream")
            ),
            Row("queue: diskq top itself", "queue: watcher", at_most=5.0, figure="core_percent"),
            Row("stream: diskq top itself", "stream: watcher", at_most=5.0, figure="core_percent"),
        ),
    ),
)

# --- conversions ---------------------------------------------------------------------------------------

CONVERT = (
    Section(
        "Conversion: 100 B, read, written and synced",
        (
            Row("queue into journal", "nsq to sej", reaches=300_000),
            Row("queue into journal, CPU", "nsq to sej", at_most=1.5, figure="cpu_us"),
            Row("queue into store", "nsq to taskflux"),
            Row("queue into stream, keys made", "nsq to triplet"),
            Row("queue into lines of JSON", "nsq to jsonl"),
            Row("journal into queue", "sej to nsq"),
            Row("stream into journal", "triplet to sej"),
            Row("lines of JSON into journal", "jsonl to sej"),
        ),
    ),
)

TABLE = (
    Section(
        "Tables: a stream of 100 B as Parquet files, zstd, one processor",
        (
            Row("update", "table: update"),
            Row("update, CPU", "table: update", at_most=0.67, figure="cpu_us"),
            Row("pyarrow alone, from memory, CPU", "table: pyarrow alone", figure="cpu_us"),
            Row("read_arrow, table and tail, CPU", "table: read, table and tail", figure="cpu_us"),
            Row("pyarrow alone reads, CPU", "table: pyarrow reads", figure="cpu_us"),
            Row("read_arrow, stream, CPU", "table: read, stream", figure="cpu_us"),
        ),
    ),
)

# --- priority queues: what others give to users who want jobs acknowledged ---------------------------

_JOB_QUEUES = ("localqueue", "persist-queue ack", "litequeue")
_GROUPED = (
    "Groups of 64 share one write and one sync. Between two groups Trio's loop wakes 64 tasks, one after the "
    "other, and each sends again; the disk has nothing to do meanwhile."
)

PRIORITY = (
    Section(
        "Durable: 100 B, each send returns after its sync",
        (
            Row(
                "synced, 64 tasks",
                "synced 64",
                "localqueue put_many(64)",
                at_least=1.3,
                reason=_GROUPED + " The peer's 64 messages are those of one task, in one call.",
            ),
            Row("synced, 64 tasks, and pipelines of 64", "synced 64", "redis put 64"),
            # One after another, as these have nothing that gathers what several tasks put.
            Row(
                "synced, 64 tasks, beside one producer",
                "synced 64",
                "localqueue put",
                at_least=20.0,
                reason=_GROUPED,
            ),
            *(
                Row("synced, 64 tasks, beside one producer", "synced 64", f"{peer} put")
                for peer in _JOB_QUEUES[1:]
            ),
            Row(
                "synced, 1 task",
                "synced 1",
                "sqlite3 put",
                at_least=1.0,
                reason=(
                    "Both write and sync one file. A send has another thread sync it, so that a disk that "
                    "stalls does not stop the event loop; SQLite syncs in the thread that writes."
                ),
            ),
            *(Row("synced, 1 task", "synced 1", f"{peer} put") for peer in _JOB_QUEUES),
        ),
    ),
    Section(
        "Receiving and acknowledging: 100 B, from a backlog of 100,000",
        (
            Row("receive_many(100), ack", "drain", "localqueue get", at_least=20.0),
            *(Row("receive_many(100), ack", "drain", f"{peer} get") for peer in _JOB_QUEUES[1:]),
            Row("receive_many(100), ack, and ZPOPMIN of 100", "drain", "redis get 100"),
            *(Row("receive, ack", "drain 1", f"{peer} get") for peer in _JOB_QUEUES),
        ),
    ),
    Section(
        "The backlog: 100 sent, received and acknowledged, while N stay",
        (
            Row("100,000, beside 1,000", "backlog 100k", "backlog 1k", at_least=0.8),
            Row("1,000,000, beside 1,000", "backlog 1M", "backlog 1k", at_least=0.8),
            Row("1,000,000 of as many priorities", "backlog 1M distinct", "backlog 1k"),
        ),
    ),
    Section(
        "1,000,000 x 100 B in one queue",
        (
            Row("open from a snapshot", "million: open", at_most=3000.0, figure="open_ms"),
            Row("memory beyond the payload", "million: open", at_most=250.0, figure="record_bytes"),
            Row(
                "longest send, during a snapshot",
                "million: written, snapshot",
                at_most=20.0,
                figure="longest_ms",
            ),
            *(
                Row(
                    f"longest send, {word}, beside as long without",
                    f"million: {word}, snapshot",
                    f"million: {word}, beside",
                    figure="longest_ms",
                )
                for word in ("written", "synced")
            ),
        ),
    ),
)

# --- Spark: compared with Parquet, as a share of its rate -------------------------------------------------

ARCHIVED = int(os.environ.get("DISKQ_ARCHIVE_ROWS", "2000000"))
"""How many rows are archived, at full length."""

_IN_DIRECTORIES = (
    "A count is about 1 ms. The engines take topic and partition from the names of directories, and Spark's "
    "files are in none here: in the same directories they take DuckDB as long as the table's."
)

SPARK = (
    Section(
        "Reading 1,000,000 x 100 B, all columns, into noop",
        (
            Row(
                "diskq",
                "read",
                "read parquet",
                at_least=1 / 1.15,
                reason=(
                    "Two copies of each row in the JVM, which Spark makes of what comes from Python, "
                    "are more than half of what a read costs; Parquet is read inside the JVM."
                ),
            ),
            Row(
                "diskq, and a source of tuples",
                "read",
                "read tuples",
                at_least=10.0,
                reason=(
                    "Ten times the 700 k/s of tuples would be 1.5 times as fast as Parquet itself is "
                    "read in the same session."
                ),
            ),
            Row("three columns of it", "read three", "read parquet"),
            Row("the same rows from journals", "read journals", "read parquet"),
        ),
    ),
    Section(
        "Reading 200,000 x 1 KiB, all columns, into noop",
        (
            Row(
                "diskq",
                "read 1 KiB",
                "read parquet 1 KiB",
                at_least=1.0,
                reason=("As for 100 B: the copies on the way from Python into the JVM."),
            ),
        ),
    ),
    Section(
        "diskq.spark.read of 1,000,000 x 100 B, into noop",
        (
            Row("a table's files, all columns", "whole", "read parquet", at_least=0.95),
            Row("a table's files, three columns", "whole three", "parquet three", at_least=0.95),
            Row("a table's files, count()", "whole count", "parquet count", at_least=0.95),
            Row("all columns, without a table", "frame", "read parquet", at_least=1.0),
            Row("partition, offset, timestamp", "frame three", "parquet three", at_least=0.9),
            Row("count()", "frame count", "parquet count", at_least=3.0),
            Row("table and tail, all columns", "tabled", "read parquet", at_least=0.8),
            Row("table and tail, those three", "tabled three", "parquet three"),
            Row("table and tail, count()", "tabled count", "parquet count"),
        ),
    ),
    Section(
        "diskq.spark.read of 200,000 x 1 KiB, into noop",
        (
            Row("all columns, without a table", "frame 1 KiB", "read parquet 1 KiB"),
            Row("table and tail, all columns", "tabled 1 KiB", "read parquet 1 KiB"),
        ),
    ),
    *(
        Section(
            f"A table's files in DuckDB and Polars beside Spark's, 1,000,000 x 100 B, both {codec}",
            tuple(
                Row(
                    f"{engine}, {query}",
                    f"engines {codec}: {engine.lower()} {query.partition(' ')[0]}",
                    f"engines {codec}: {engine.lower()} {query.partition(' ')[0]} parquet",
                    at_least=0.95,
                    reason=_IN_DIRECTORIES if query == "count" else "",
                )
                for engine in ("DuckDB", "Polars")
                for query in ("all columns", "three columns", "count")
            ),
        )
        for codec in ("none", "zstd")
    ),
    Section(
        f"Archive: {ARCHIVED:,} x 100 B into Parquet, zstd; a table synced, Spark's copy of Parquet not",
        (Row("a table's update, one process", "archive", "archive parquet", at_least=2.0),),
    ),
    Section(
        "Writing: diskq synced and committed, Parquet neither",
        (
            Row(
                "1,000,000 x 100 B",
                "write",
                "write parquet",
                at_least=1.0,
                reason=(
                    "After each row Spark computes the size of the batch for Python, a third of the JVM's "
                    "time; and data, checksums and index are synced. Parquet syncs nothing."
                ),
            ),
            Row("1,000,000 x 100 B, batches bounded by rows alone", "write by rows", "write parquet"),
            Row("200,000 x 1 KiB", "write 1 KiB", "write parquet 1 KiB", at_least=0.75),
        ),
    ),
    Section(
        "Streaming: a batch of 1,600 rows, trigger to trigger",
        (Row("into diskq", "micro-batch", "micro-batch parquet", at_least=1.0, figure="batch_ms"),),
    ),
)

# --- why a floor is missed -------------------------------------------------------------------------------

_TABLES = (
    QUEUE,
    DURABLE,
    FSYNC,
    LOOPS,
    THREADS,
    STREAM,
    JOURNAL,
    HUB,
    VERIFY,
    SPOOL,
    TOP,
    CONVERT,
    TABLE,
    PRIORITY,
    SPARK,
)
_REASONS = {
    (section.title, row.name, row.peer): row.reason
    for table in _TABLES
    for section in table
    for row in section.rows
}


def reason_of(section: str, row: Row) -> str:
    """Return the stated reason why this row misses its floor; empty if there is none."""
    return _REASONS.get((section, row.name, row.peer), row.reason)
