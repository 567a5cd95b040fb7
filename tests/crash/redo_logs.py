# Queues, streams and journals of which many messages are durable in their redo log alone. Law: a workload
# knows, at every moment, what a crash may take and what it may not; it is the same for all kinds, and only
# an adapter knows how one of them is used.
#
# A channel has a sync of the files and a sync of the log in flight at the same time, and writes on meanwhile:
# a session does so, too, step by step (`overlap`).

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from diskq.engine.journal.journal import Journal
from diskq.engine.log.reader import SkippedBytes
from diskq.engine.log.sync import Sync
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.reader import ReadableStream
from diskq.engine.stream.retention import retain
from diskq.engine.stream.stream import Stream
from diskq.errors import StorageFailedError
from diskq.options import JournalOptions, QueueOptions, StreamOptions
from diskq.storage.fs import FileSystem
from diskq.storage.log.replay import LAST_NOT_WHOLE
from diskq.storage.repairs import Repair, RepairKind
from diskq.testing import CrashFS
from tests.crash import peers
from tests.crash.harness import CAME_BACK, KILL
from tests.engine import journals, streams
from tests.reference import triplet_oracle

__all__ = [
    "KINDS",
    "METADATA",
    "Found",
    "Kind",
    "Promises",
    "Session",
    "check",
    "check_after_a_peer",
    "lifetimes",
    "value",
]

LEAST = 64 * 1024
QUEUE_PLACE = "/q"
METADATA = f"{QUEUE_PLACE}/events.diskqueue.meta.dat"


def value(number: int, longest: int) -> bytes:
    """Message `number`: told from every other, and from itself with any byte changed."""
    rng = random.Random(number)
    return b"%06d" % number + rng.randbytes(rng.randrange(longest))


@dataclass
class Promises:
    """What a store has promised so far, by partition (0 in a store without partitions)."""

    attempted: dict[int, list[bytes]] = field(default_factory=dict)
    """All messages, in the order in which they were appended."""
    written: dict[int, int] = field(default_factory=dict)
    """So many of them are there after a kill,"""
    synced: dict[int, int] = field(default_factory=dict)
    """and so many after everything."""
    gone: dict[int, int] = field(default_factory=dict)
    """So many may be missing at the beginning: they were consumed, or retention may have removed them."""
    gone_durably: dict[int, int] = field(default_factory=dict)
    """And so many never come back."""

    @property
    def count(self) -> int:
        return sum(map(len, self.attempted.values()))

    def now(self) -> dict[int, int]:
        return {group: len(messages) for group, messages in self.attempted.items()}

    def note_synced(self, count: dict[int, int]) -> None:
        """So many are durable: they were there when a sync began that has ended."""
        for group, number in count.items():
            self.synced[group] = max(self.synced.get(group, 0), number)


class Found:
    """What an open finds, by partition: the number of the first message, and all there are."""

    def __init__(self, engine: Any, messages: dict[int, tuple[int | None, list[bytes]]]) -> None:
        self.repairs: tuple[Repair, ...] = engine.repairs
        self.messages = messages


def as_repair(loss: SkippedBytes) -> Repair:
    """What a reader reports, as an open would."""
    dropped = loss.end - loss.start
    return Repair(
        path=loss.path,
        kind=RepairKind.CORRUPT,
        kept=loss.start,
        dropped=dropped,
        reason=loss.reason,
        records=loss.count,
    )


# --- the kinds ------------------------------------------------------------------------------------


class Kind(ABC):
    """How one kind is used."""

    name: ClassVar[str]
    redo: ClassVar[str]
    first_file: ClassVar[str]
    """The store has been made once it is there."""
    unsynced: ClassVar[tuple[str, ...]] = (
        "not synced before the machine stopped",
        "an open that was killed kept it aside",
        LAST_NOT_WHOLE,
    )
    """What may be reported after a power cut: bytes that were not synced."""

    @abstractmethod
    def open(self, fs: FileSystem, *, file_size: int, **options: Any) -> Any: ...

    @abstractmethod
    def place(self, engine: Any, number: int) -> int:
        """The partition of this message."""

    @abstractmethod
    def accept(self, engine: Any, numbers: Sequence[int], values: Sequence[bytes]) -> None:
        """Write messages, and sync nothing: as a channel does while a sync is in flight."""

    @abstractmethod
    def put(self, engine: Any, numbers: Sequence[int], values: Sequence[bytes], word: str) -> None: ...

    @abstractmethod
    def found(self, fs: CrashFS) -> Found: ...

    def _end(self, engine: Any) -> None:
        """The process ends: what it found and wrote stays as it is."""
        with suppress(StorageFailedError):
            engine.log.fail(OSError("the process ends here"))
        engine.close()

    def values(self, fs: CrashFS) -> tuple[tuple[Repair, ...], list[bytes]]:
        """Open it for writing. Returns what the open and a reader report, and all that the reader gets."""
        found = self.found(fs)
        return found.repairs, [value for _, values in found.messages.values() for value in values]

    @abstractmethod
    def let_peer_write(self, fs: CrashFS, values: Sequence[bytes], *, dies: bool = False) -> list[bytes]:
        """Have the program that the format is from open the files, append messages, sync and close.

        Or it dies before it has synced its metadata or closed. Returns those of the messages that are whole
        in its files.
        """


class QueueKind(Kind):
    name = "queue"
    redo = f"{QUEUE_PLACE}/.diskq/events.redo"
    first_file = METADATA

    def open(self, fs: FileSystem, *, file_size: int, **options: Any) -> Queue:
        fs.make_directory(QUEUE_PLACE)
        return Queue(QUEUE_PLACE, "events", options=QueueOptions(segment_size=file_size, **options), fs=fs)

    def place(self, engine: Any, number: int) -> int:
        return 0

    def accept(self, engine: Any, numbers: Sequence[int], values: Sequence[bytes]) -> None:
        for body in values:
            engine.steps.tail.accept(body, is_held=False)

    def put(self, engine: Any, numbers: Sequence[int], values: Sequence[bytes], word: str) -> None:
        if len(values) == 1:
            engine.put(values[0], durability=word)
        else:
            engine.put_many(values, durability=word)

    def found(self, fs: CrashFS) -> Found:
        with self.open(fs, file_size=20_000) as queue:
            bodies = queue.peek_many(100_000)
            assert queue.depth == len(bodies)
            files = queue.statistics().files
            found = Found(queue, {0: (None, bodies)})
        there = sum(name.endswith(".dat") for name in fs.list_directory(QUEUE_PLACE))
        assert there == files + 1, "consumed files stay"
        return found

    def values(self, fs: CrashFS) -> tuple[tuple[Repair, ...], list[bytes]]:
        with self.open(fs, file_size=20_000) as queue:
            found = queue.peek_many(100_000)
            return queue.repairs, found  # what cannot be read is reported when it is met

    def let_peer_write(self, fs: CrashFS, values: Sequence[bytes], *, dies: bool = False) -> list[bytes]:
        return peers.go_diskqueue(fs, QUEUE_PLACE, "events", values, dies=dies)


class StreamKind(Kind):
    name = "stream"
    redo = f"{streams.ROOT}/.diskq/redo"
    first_file = streams.POINTS
    unsynced = (
        *Kind.unsynced,
        "messages are missing at the end",
        "entries of no record",
        "entries that disagree with their records",
    )

    def open(self, fs: FileSystem, *, file_size: int, **options: Any) -> Stream:
        chosen = StreamOptions(partition_count=3, segment_size=file_size, **options)
        return Stream(streams.ROOT, options=chosen, fs=fs)

    def place(self, engine: Any, number: int) -> int:
        return triplet_oracle.fnv1(self._key(number)) % 3

    def accept(self, engine: Any, numbers: Sequence[int], values: Sequence[bytes]) -> None:
        for number, value in zip(numbers, values, strict=True):
            engine.steps.accept(value, self._key(number), number, is_held=False)

    def put(self, engine: Any, numbers: Sequence[int], values: Sequence[bytes], word: str) -> None:
        if len(values) == 1:
            engine.append(values[0], self._key(numbers[0]), numbers[0], durability=word)
        else:
            items = [(self._key(n), v, n) for n, v in zip(numbers, values, strict=True)]
            engine.append_many(items, durability=word)

    def _key(self, number: int) -> bytes:
        return b"key-%d" % (number * 7 % 11)

    def found(self, fs: CrashFS) -> Found:
        stream = self.open(fs, file_size=6000)
        found = Found(stream, {})
        self._end(stream)
        for group in streams.partitions(fs.files()):
            values: list[bytes] = []
            first = end = None
            for base, segment in streams.segments(fs.files(), group).items():
                records, _, stop = triplet_oracle.records(segment.get("data", b""))
                assert stop == "END"
                if end is not None and base != end and not records:
                    continue  # it begins after offsets that were lost with what was not synced
                if base != end:
                    first, values = base, []  # of what retention has removed some may be back
                values += [value for _, _, value in records]
                end = base + len(records)
            found.messages[group] = first, values
        return found

    def values(self, fs: CrashFS) -> tuple[tuple[Repair, ...], list[bytes]]:
        opened = self.open(fs, file_size=6000)
        self._end(opened)
        stream, found, losses = ReadableStream(streams.ROOT, fs=fs), list[bytes](), list[Repair]()
        for partition in stream.partitions():
            with stream.open(partition) as reader:
                reader.seek_oldest()
                found += [message.value for message in iter(reader.read, None)]
                losses += map(as_repair, reader.losses)
        return (*opened.repairs, *losses), found

    def let_peer_write(self, fs: CrashFS, values: Sequence[bytes], *, dies: bool = False) -> list[bytes]:
        return peers.go_diskq(fs, values, dies=dies)


class JournalKind(Kind):
    name = "journal"
    redo = f"{journals.ROOT}/.diskq/redo"
    first_file = journals.data()

    def open(self, fs: FileSystem, *, file_size: int, **options: Any) -> Journal:
        return Journal(journals.ROOT, options=JournalOptions(segment_size=file_size, **options), fs=fs)

    def place(self, engine: Any, number: int) -> int:
        return 0

    def accept(self, engine: Any, numbers: Sequence[int], values: Sequence[bytes]) -> None:
        for number, value in zip(numbers, values, strict=True):
            engine.steps.accept(value, b"key", number, 0, is_held=False)

    def put(self, engine: Any, numbers: Sequence[int], values: Sequence[bytes], word: str) -> None:
        if len(values) == 1:
            engine.append(values[0], b"key", numbers[0], 0, durability=word)
        else:
            engine.append_many(
                [(b"key", v, n, 0) for n, v in zip(numbers, values, strict=True)], durability=word
            )

    def found(self, fs: CrashFS) -> Found:
        journal = self.open(fs, file_size=6000)
        found = Found(journal, {})
        self._end(journal)
        messages = journals.stored(fs, has_gaps=True)
        found.messages[0] = 0, [message.value for message in messages]
        return found

    def values(self, fs: CrashFS) -> tuple[tuple[Repair, ...], list[bytes]]:
        journal = self.open(fs, file_size=6000)
        self._end(journal)
        with journals.reader(fs) as reader:
            values = [message.value for message in reader.read_many(10**9)]
            return (*journal.repairs, *map(as_repair, reader.losses)), values

    def let_peer_write(self, fs: CrashFS, values: Sequence[bytes], *, dies: bool = False) -> list[bytes]:
        return peers.sej(fs, values, dies=dies)


KINDS: dict[str, Kind] = {kind.name: kind for kind in (QueueKind(), StreamKind(), JournalKind())}


# --- a store in use -------------------------------------------------------------------------------


class Between:
    """A disk on which something happens between the steps of a barrier, as in another thread."""

    def __init__(self, disk: CrashFS, act: Callable[[], object]) -> None:
        self._disk = disk
        self._act = act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def sync_files(self, handles: Sequence[int]) -> None:
        for handle in handles:
            self._act()
            self._disk.sync_files((handle,))

    def sync_directory(self, path: str) -> None:
        self._act()
        self._disk.sync_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._act()
        self._disk.rename(source, target)

    def unlink(self, path: str) -> None:
        self._act()
        self._disk.unlink(path)


class Session:
    """A store in use, and the promises it makes."""

    def __init__(self, kind: Kind, fs: CrashFS, promises: Promises, longest: int, **options: Any) -> None:
        self.kind = kind
        self.fs = fs
        self.promises = promises
        self.longest = longest
        self.options = options
        self.most = 4  # messages in a batch
        self.open()

    def open(self) -> None:
        self.engine = self.kind.open(self.fs, **self.options)
        self.log = self.engine.log
        self.in_log: tuple[Sync, dict[int, int]] | None = None
        self.is_executed = False
        promises = self.promises
        if self.kind.name == "queue":
            ends = self._found_in_queue()
        elif self.kind.name == "journal":
            ends = {0: self.engine.next_offset}
        else:
            ends = dict(enumerate(self.engine.next_offsets))
        for group, end in ends.items():
            messages = promises.attempted.setdefault(group, [])
            assert promises.written.get(group, 0) <= end <= len(messages), "lost"
            del messages[end:]
        self.all_is_durable()

    def _found_in_queue(self) -> dict[int, int]:
        """Return where its messages end. What was consumed, and not durably, may be back."""
        promises = self.promises
        bodies = self.engine.peek_many(100_000)
        messages = promises.attempted.get(0, [])
        if not bodies:
            promises.gone[0] = promises.written.get(0, 0)
            return {0: promises.gone[0]} if messages else {}
        first = messages.index(bodies[0])
        assert promises.gone_durably.get(0, 0) <= first <= promises.gone.get(0, 0)
        assert bodies == messages[first : first + len(bodies)]
        promises.gone[0] = first
        return {0: first + len(bodies)}

    def attempt(self, count: int) -> tuple[list[int], list[bytes]]:
        # Not the same bytes where messages that a failure took were.
        first = self.promises.count * 10 + self.fs.operations % 10
        numbers = [first + index for index in range(count)]
        values = [value(number, self.longest) for number in numbers]
        for number, one in zip(numbers, values, strict=True):
            self.promises.attempted.setdefault(self.kind.place(self.engine, number), []).append(one)
        return numbers, values

    def put(self, rng: random.Random, word: str, most: int = 0) -> None:
        numbers, values = self.attempt(rng.randrange(1, max(2, most or self.most)))
        before = self.metadata()
        self.kind.put(self.engine, numbers, values, word)
        self.note_returned(before)
        assert word != "synced" or not self.engine.unsynced_bytes

    def note_returned(self, before: bytes) -> None:
        promises = self.promises
        promises.written = promises.now()
        if not self.engine.unsynced_bytes:
            promises.note_synced(promises.now())
        if self.metadata() != before:
            promises.note_synced(promises.now())
            promises.gone_durably = promises.gone.copy()

    def metadata(self) -> bytes:
        """It changes with each barrier that makes a read position durable, and with no other."""
        return self.fs.files().get(METADATA, b"") if self.kind.name == "queue" else b""

    def take(self, rng: random.Random) -> None:
        """Consume something: of a queue the first messages, of a stream whole segments."""
        if self.kind.name == "stream":
            for group in range(3):
                live = self.engine.steps.live(group)
                assert live is not None
                self.promises.gone[group] = live.base
            retain(self.fs, StreamFiles(self.fs, streams.ROOT), now_ns=0, max_bytes=2000)
        elif self.kind.name == "queue":
            before = self.metadata()
            bodies = self.engine.get_many(rng.randrange(1, 12))
            if self.metadata() != before:
                self.promises.note_synced(self.promises.now())
                self.promises.gone_durably = self.promises.gone.copy()
            self._note_taken(bodies)

    def _note_taken(self, bodies: list[bytes]) -> None:
        taken = self.promises.gone.get(0, 0)
        assert bodies == self.promises.attempted.get(0, [])[taken : taken + len(bodies)]
        self.promises.gone[0] = taken + len(bodies)

    def sync(self) -> None:
        self.engine.sync()
        self.all_is_durable()

    def all_is_durable(self) -> None:
        self.promises.written = self.promises.now()
        self.promises.note_synced(self.promises.now())
        self.promises.gone_durably = self.promises.gone.copy()

    def close(self) -> None:
        self.engine.close()
        self.all_is_durable()

    def end(self) -> None:
        """The process ends, and the next one goes on."""
        with suppress(StorageFailedError):
            self.log.fail(OSError("the process ends here"))
        self.engine.close()
        self.open()

    def fail_to_sync(self, rng: random.Random) -> None:
        """A sync fails, and the kernel takes what it did not write for written."""
        self.put(rng, "written")
        self.fs.fail_sync(rng.randrange(1, 5))
        with suppress(StorageFailedError):
            for _ in range(4):
                rng.choice([lambda: self.put(rng, "synced"), self.sync, lambda: self.overlap(rng)])()
        self.fs.fail_sync(0)
        self.end()

    # --- two syncs at once ----------------------------------------------------------------------------

    def overlap(self, rng: random.Random) -> None:
        """Have a sync of the files in flight, and beside it some of the log."""
        self.accept(rng)
        if rng.random() < 0.4:
            self.begin_log()
        is_full = rng.random() < 0.6
        sync = self.log.prepare(full=is_full)
        count, gone = self.promises.now(), self.promises.gone.copy()
        between = cast(FileSystem, Between(self.fs, lambda: self.meanwhile(rng)))
        try:
            is_replaced = sync.barrier.execute(between)
        except OSError as failure:
            self.log.fail(failure)
        for _ in range(rng.randrange(3)):
            self.meanwhile(rng)
        self.log.complete(sync, is_replaced)
        self.promises.note_synced(count)
        if sync.has_metadata and is_replaced:
            self.promises.gone_durably = gone
        for _ in range(rng.randrange(4)):
            self.meanwhile(rng)
        self.end_log()

    def meanwhile(self, rng: random.Random) -> None:
        """Do what Trio's thread may do while another one executes a barrier."""
        if rng.random() < 0.5:
            return
        if rng.random() < 0.4:
            self.accept(rng)
        if self.in_log is None:
            self.begin_log()
        elif not self.is_executed:
            self.execute_log()
        else:
            self.complete_log()

    def accept(self, rng: random.Random) -> None:
        numbers, values = self.attempt(rng.randrange(1, self.most))
        self.kind.accept(self.engine, numbers, values)
        self.log.flush()
        self.promises.written = self.promises.now()
        if self.kind.name == "queue" and rng.random() < 0.2:
            self._note_taken(self.engine.steps.head.fetch(rng.randrange(1, 5)))

    def begin_log(self) -> None:
        sync = self.log.prepare_log()
        if sync is not None:
            self.in_log = sync, self.promises.now()
            self.is_executed = False

    def execute_log(self) -> None:
        assert self.in_log is not None
        try:
            self.in_log[0].barrier.execute(self.fs)
        except OSError as failure:
            self.log.fail(failure)
        self.is_executed = True

    def complete_log(self) -> None:
        assert self.in_log is not None
        sync, count = self.in_log
        self.in_log = None
        self.log.complete(sync, True)
        self.promises.note_synced(count)

    def end_log(self) -> None:
        if self.in_log is not None:
            if not self.is_executed:
                self.execute_log()
            self.complete_log()


Workload = Callable[[CrashFS, Promises], None]

ACTS: list[tuple[float, Callable[[Session, random.Random], None]]] = [
    (12, lambda session, rng: session.put(rng, "synced")),
    (3, lambda session, rng: session.put(rng, "written")),
    (3, lambda session, rng: session.take(rng)),
    (0.7, lambda session, rng: session.sync()),
    (5, lambda session, rng: session.overlap(rng)),
    (0.3, lambda session, rng: session.end()),
    (0.4, lambda session, rng: session.fail_to_sync(rng)),
]


def lifetimes(kind: Kind, seed: int, sessions: int = 2, acts: int = 40) -> Workload:
    """A workload: a store opened, used at random and closed, a few times over."""
    weights, choices = zip(*ACTS, strict=True)

    def workload(fs: CrashFS, promises: Promises) -> None:
        rng = random.Random(seed)
        if kind.name == "queue":
            fs.make_directory_durably(QUEUE_PLACE)
        for _ in range(sessions):
            session = Session(
                kind,
                fs,
                promises,
                rng.choice([200, 1500, 4000]),
                file_size=rng.choice([5_000, 20_000, 60_000, 10**6]),
                redo_log_size=rng.choice([LEAST, LEAST, 4 * LEAST]),
                sync_every=rng.choice([7, 60, 10**6]),
                sync_timeout=10**6,
            )
            for _ in range(acts):
                rng.choices(choices, weights)[0](session, rng)
            session.close()

    return workload


def check(kind: Kind) -> Callable[[str, CrashFS, Promises], None]:
    def nothing_is_lost(outcome: str, fs: CrashFS, promises: Promises) -> None:
        found = kind.found(fs)
        _judge(kind, outcome, found, promises)
        # And it is durable.
        again = kind.found(fs.crash())
        if kind.name != "stream":  # the removals of retention are not synced
            assert again.messages == found.messages, "not durable"
        _judge(kind, outcome, again, promises)
        # A file that is missing between others is reported by each open, until it is consumed.
        if outcome != CAME_BACK:
            assert [repair for repair in again.repairs if repair.reason not in kind.unsynced] == []

    return nothing_is_lost


def check_after_a_peer(kind: Kind) -> Callable[[str, CrashFS, Promises], None]:
    """A check of what diskq finds if the other program has opened the files of a killed process before it."""

    def nothing_is_lost(outcome: str, fs: CrashFS, promises: Promises) -> None:
        assert outcome == KILL
        if kind.first_file not in fs.files():
            return
        new = [b"peer %d" % number + value(number, 300) for number in range(4)]
        kind.let_peer_write(fs, new)
        repairs, values = kind.values(fs)
        attempted = {one for messages in promises.attempted.values() for one in messages}
        assert set(values) <= attempted | set(new), "altered or invented"
        gone: set[bytes] = set()
        synced: set[bytes] = set()
        for group, messages in promises.attempted.items():
            first = promises.gone.get(group, 0)
            gone |= set(messages[:first])
            synced |= set(messages[first : promises.synced.get(group, 0)])
        assert synced <= set(values) or repairs, "lost in silence"
        assert set(values) - gone <= set(kind.values(fs.crash())[1]), "not durable"

    return nothing_is_lost


def _judge_what_came_back(kind: Kind, found: Found, promises: Promises) -> None:
    """The disk went away and came back: of what was not synced any message may be missing, as reported."""
    for group, messages in promises.attempted.items():
        place = {one: number for number, one in enumerate(messages)}
        _, values = found.messages.get(group, (None, []))
        numbers = [place.get(value, -1) for value in values]
        assert numbers == sorted(set(numbers) - {-1}), "altered, invented or out of order"
        if kind.name == "queue":
            assert not numbers or numbers[0] >= promises.gone_durably.get(group, 0), (
                "what was consumed came back"
            )
        kept = range(promises.gone.get(group, 0), promises.synced.get(group, 0))
        assert set(kept) <= set(numbers), "lost"


def _judge(kind: Kind, outcome: str, found: Found, promises: Promises) -> None:
    if outcome == CAME_BACK:
        _judge_what_came_back(kind, found, promises)
        return
    allowed = kind.unsynced if outcome != KILL else ()
    assert [repair for repair in found.repairs if repair.reason not in allowed] == []
    promised = promises.written if outcome == KILL else promises.synced
    for group, messages in promises.attempted.items():
        first, values = found.messages.get(group, (None, []))
        gone, gone_durably = promises.gone.get(group, 0), promises.gone_durably.get(group, 0)
        if first is None:
            first = messages.index(values[0]) if values else gone
        assert values == messages[first : first + len(values)], "altered, invented or out of order"
        assert first <= gone, "skipped"
        end = first + len(values)
        if kind.name == "queue":
            assert first >= gone_durably, "what was consumed for good came back"
        else:
            end = max(end, gone)  # whole segments that retention may have removed
        assert end >= promised.get(group, 0), "lost"
