# The promises of a stream after every crash there is. Law: a kill loses nothing that was written; a power
# cut keeps what was synced, and of the rest a beginning of each partition, never altered, never invented;
# offsets are dense; the three files agree; and each way to weaken this is caught.

from __future__ import annotations

import errno
import functools
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from diskq.engine.log import opening, recovery, recovery_points, writer
from diskq.engine.log import segment as logsegment
from diskq.engine.log import segment_recovery as segmentrecovery
from diskq.engine.log.engine import Admission, Mode
from diskq.engine.stream import index_rebuild as mending
from diskq.engine.stream import recovery as streamrecovery
from diskq.engine.stream import segment as tripletsegment
from diskq.engine.stream import steps as streamsteps
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.partition_reader import PartitionReader
from diskq.engine.stream.retention import retain
from diskq.engine.stream.stream import Stream
from diskq.errors import DiskFullError, DiskqError, StorageFailedError
from diskq.options import Durability, Encoding, StreamOptions
from diskq.storage import checksums
from diskq.storage.log.replay import LAST_NOT_WHOLE
from diskq.testing import CrashFS, FaultFS
from tests.crash.barriers import APPENDFILE, WEAKER
from tests.crash.harness import CAME_BACK, KILL, PromiseBroken, Report, enumerate_cuts, run_cuts
from tests.crash.mutations import Mutation
from tests.engine.streams import OWNER, ROOT, Triple, partitions, segments
from tests.reference import triplet_oracle as oracle
from tests.sampling import stride

pytestmark = pytest.mark.usefixtures("quiet_log")

# What a power cut's repairs may say.
AFTER_A_POWER_CUT = {
    recovery.UNSYNCED,
    recovery.MISSING,
    "entries of no record",
    # What an open after the power cut has cut, and told, and was killed: told twice rather than never.
    "an open that was killed kept it aside",
    "entries that disagree with their records",
    LAST_NOT_WHOLE,
}


def message(number: int, longest: int) -> Triple:
    """Message `number`: told from every other, and from itself with any byte changed."""
    rng = random.Random(number)
    return (
        b"key-%d" % rng.randrange(7),
        1000 * number,
        b"%06d" % number + rng.randbytes(number * 37 % longest),
    )


@dataclass
class Promises:
    """What the stream has promised so far, by partition."""

    attempted: dict[int, list[Triple]] = field(default_factory=dict)
    """All messages, in the order in which they were appended: the place in the list is the offset."""
    written: dict[int, int] = field(default_factory=dict)
    """So many of them are there after a kill,"""
    synced: dict[int, int] = field(default_factory=dict)
    """and so many after everything."""
    removable: dict[int, int] = field(default_factory=dict)
    """Before this offset retention may have removed segments."""
    was_left: bool = False
    """Its owner file was removed: behind that even what is no record may be a peer's."""
    varuint: bool = False

    def all_are(self, *words: dict[int, int]) -> None:
        for word in words:
            word.update((partition, len(messages)) for partition, messages in self.attempted.items())


class Session:
    """A stream in use, and the promises it makes."""

    def __init__(
        self,
        fs: CrashFS,
        promises: Promises,
        *,
        longest: int = 60,
        partition_count: int = 1,
        segment_size: int = 6000,
        encoding: Encoding = "fixed",
        uses_wal: bool = False,
        segment_age: float | None = None,
    ) -> None:
        self.fs = fs
        self.disk = FaultFS(fs)
        self.promises = promises
        promises.varuint = encoding == "varuint"
        self.longest = longest
        self.options = StreamOptions(
            partition_count=partition_count,
            segment_size=segment_size,
            segment_age=segment_age,
            sync_every=9,
            sync_timeout=1000.0,
            encoding=encoding,
        )
        self.uses_wal = uses_wal
        self.open()

    def open(self) -> None:
        self.stream = Stream(ROOT, options=self.options, fs=self.disk, uses_wal=self.uses_wal)
        # What was in memory when the last one ended is gone, and its offsets are free.
        for partition, offset in enumerate(self.stream.next_offsets):
            found = self.promises.attempted.setdefault(partition, [])
            assert self.promises.written.get(partition, 0) <= offset <= len(found)
            del found[offset:]
        self.promises.all_are(self.promises.written, self.promises.synced)

    def append(self, count: int = 1, durability: Durability = "written") -> None:
        promises = self.promises
        batch = self.attempt(count)
        before = self.stream.next_offsets
        if count == 1:
            key, timestamp, value = batch[0]
            position = self.stream.append(value, key, timestamp, durability=durability)
            assert position.offset == before[position.partition]
        else:
            offsets = self.stream.append_many([(k, v, t) for k, t, v in batch], durability=durability)
            assert all(before[partition] == given.start for partition, given in offsets.items())
        if durability != "memory":
            promises.all_are(promises.written)
        if not self.stream.unsynced_bytes:
            promises.all_are(promises.written, promises.synced)
        assert durability != "synced" or not self.stream.unsynced_bytes

    def attempt(self, count: int) -> list[Triple]:
        number = sum(map(len, self.promises.attempted.values())) * 10 + self.fs.operations % 10
        batch = [message(number + index, self.longest) for index in range(count)]
        for one in batch:
            partition = oracle.fnv1(one[0]) % self.stream.partition_count
            self.promises.attempted.setdefault(partition, []).append(one)
        return batch

    def stage(self, count: int) -> None:
        """As a channel does: they stand on the write-ahead log, and somebody is awake to write them soon."""
        self.stream.steps.router.is_awake = True
        append = self.stream.steps.router.appender(Mode.STAGED, Admission.COUNTED).append
        for _ in range(count):
            ((key, timestamp, value),) = self.attempt(1)
            position = append(value, key, timestamp)
            if position is None:
                position = self.stream.append(value, key, timestamp)
                self.stream.steps.router.is_awake = True
            # Of the other partitions something may be in memory still.
            self.promises.written[position.partition] = position.offset + 1

    def flush(self) -> None:
        self.stream.flush()
        self.promises.all_are(self.promises.written)

    def sync(self) -> None:
        self.stream.sync()
        self.promises.all_are(self.promises.written, self.promises.synced)

    def end(self) -> None:
        """The process ends without a word: all that is written stays as it is."""
        with suppress(StorageFailedError):
            self.stream.log.fail(OSError("the process ends here"))
        self.stream.close()

    def fail(self) -> None:
        """It does so, and the next one goes on."""
        self.end()
        self.open()

    def fail_to_sync(self, rng: random.Random) -> None:
        """The kernel says so, and holds what it did not write for written."""
        self.append()
        self.fs.fail_sync(rng.randrange(1, 4))
        with suppress(StorageFailedError):
            self.stream.sync()
            self.promises.all_are(self.promises.written, self.promises.synced)
        self.fs.fail_sync(0)
        self.fail()

    def retain(self) -> None:
        for partition in range(self.stream.partition_count):
            live = self.stream.steps.live(partition)
            assert live is not None
            self.promises.removable[partition] = live.base
        retain(self.fs, StreamFiles(self.fs, ROOT), now_ns=0, max_bytes=2000)

    def close(self) -> None:
        self.stream.close()
        self.promises.all_are(self.promises.written, self.promises.synced)


Workload = Callable[[CrashFS, Promises], None]

ACTS: list[tuple[float, Callable[[Session, random.Random], None]]] = [
    (6, lambda session, rng: session.append()),
    (3, lambda session, rng: session.append(durability="synced")),
    (2, lambda session, rng: session.append(durability="memory")),
    (4, lambda session, rng: session.append(rng.randrange(2, 12))),
    (1, lambda session, rng: session.append(rng.randrange(2, 12), "synced")),
    (1, lambda session, rng: session.append(rng.randrange(2, 12), "memory")),
    (2, lambda session, rng: session.stage(rng.randrange(1, 12))),
    (0.5, lambda session, rng: session.flush()),
    (1, lambda session, rng: session.sync()),
    (0.8, lambda session, rng: session.fail()),
    (0.8, Session.fail_to_sync),
    (0.5, lambda session, rng: session.retain()),
]


def lifetimes(seed: int, sessions: int = 2, acts: int = 12) -> Workload:
    """A workload: a stream opened, used at random and closed, a few times over."""
    weights, choices = zip(*ACTS, strict=True)

    def workload(fs: CrashFS, promises: Promises) -> None:
        rng = random.Random(seed)
        for _ in range(sessions):
            session = Session(
                fs,
                promises,
                longest=rng.choice([60, 300, 900]),
                partition_count=rng.choice([2, 2, 3]),
                segment_size=rng.choice([700, 2500, 6000]),
                encoding="varuint" if seed % 4 == 3 else "fixed",
                uses_wal=rng.random() < 0.3,
            )
            for _ in range(acts):
                rng.choices(choices, weights)[0](session, rng)
            session.close()

    return workload


# What the random ones seldom come to, if ever.


def rolls_without_a_sync(fs: CrashFS, promises: Promises) -> None:
    """A power cut may leave a later segment, and nothing of the one before it."""
    session = Session(fs, promises, segment_size=300)
    for _ in range(8):
        session.append(3)


def held_on_a_full_disk(fs: CrashFS, promises: Promises) -> None:
    """What is in memory finds no room until the end."""
    session = Session(fs, promises)
    session.append(3, "synced")
    session.disk.fail("pwrite", error=errno.ENOSPC, path="*.data", times=None)
    session.append(2, "memory")
    with pytest.raises(DiskFullError):
        session.stream.close()


def a_wal_of_long_ago(fs: CrashFS, promises: Promises) -> None:
    """Somebody removes the owner file of a process that was killed: what was on its write-ahead log is there
    still.
    """
    session = Session(fs, promises, uses_wal=True)
    session.append(durability="synced")
    session.stage(6)
    session.end()
    promises.was_left = True
    fs.unlink(OWNER)
    session = Session(fs, promises)
    session.append(2)


def retained_before_the_points_are_told(fs: CrashFS, promises: Promises) -> None:
    """A power cut may bring back a part of what was removed, and the points are of a segment before it."""
    session = Session(fs, promises, longest=900, segment_size=300)
    for _ in range(6):
        session.append(durability="synced")
    session.retain()
    session.append()


def complete_by_their_age(fs: CrashFS, promises: Promises) -> None:
    """Segments end between messages that are written, synced, staged and in memory."""
    for _ in range(2):  # by their timestamps, those that the second one finds are old
        session = Session(fs, promises, partition_count=2, uses_wal=True, segment_age=10.0)
        for count, durability in [(2, "written"), (1, "synced"), (1, "memory")]:
            session.append(count, durability)  # type: ignore[arg-type]
            session.stage(2)
            fs.clock += 10
        session.append()
        session.close()


NARROW: list[Workload] = [
    complete_by_their_age,
    rolls_without_a_sync,
    held_on_a_full_disk,
    a_wal_of_long_ago,
    retained_before_the_points_are_told,
]


def check(outcome: str, fs: CrashFS, promises: Promises) -> None:
    if outcome == KILL:
        check_what_others_see(fs, promises)
    if outcome != KILL and sum(map(len, fs.files().values())) % 4 == 0:  # as that takes its time
        check_offsets_are_given_once(fs.copy())
    stream = Stream(ROOT, fs=fs)
    if outcome == CAME_BACK:
        check_what_came_back(fs, promises, stream)
        return
    for repair in stream.repairs:
        assert outcome != KILL, repair
        is_torn = promises.was_left and repair.reason.startswith("a record that is not whole")
        assert is_torn or repair.reason in AFTER_A_POWER_CUT
        assert not repair.records or repair.reason in (recovery.MISSING, recovery.UNSYNCED)
    promised = promises.written if outcome == KILL else promises.synced
    files, durable = fs.files(), fs.crash().files()
    for partition in partitions(files):
        if partition >= stream.partition_count and not promises.attempted.get(partition):
            continue  # who wanted to have one more did not get that far
        next_offset, end = check_partition(files, partition, promises)
        assert end >= promised.get(partition, 0), "lost"
        if partition < stream.partition_count:
            assert stream.next_offsets[partition] == next_offset
        assert outcome != KILL or next_offset == end
        removable = promises.removable.get(partition, 0)
        found_durable = segments(durable, partition)
        for base, segment in segments(files, partition).items():
            assert base < removable or found_durable.get(base) == segment, "not durable"
        if sum(map(len, files.values())) % 3 == 0:  # which takes longer than all the rest
            check_reading(fs, partition, promises)
    # It is not closed: who comes next finds it as this one left it.


def check_what_came_back(fs: CrashFS, promises: Promises, stream: Stream) -> None:
    """The disk went away and came back: of what was not synced any message may be missing, as reported."""
    files, durable = fs.files(), fs.crash().files()
    for partition in partitions(files):
        attempted = promises.attempted.get(partition, [])
        if partition >= stream.partition_count and not attempted:
            continue  # who wanted to have one more did not get that far
        with PartitionReader(
            fs, StreamFiles(fs, ROOT).partition(partition), varuint=promises.varuint
        ) as reader:
            reader.seek_oldest()
            there = set()
            for message in iter(reader.read, None):
                its = (message.key, message.timestamp_ns, message.value)
                assert its == attempted[message.offset], "altered or invented"
                there.add(message.offset)
        removable = promises.removable.get(partition, 0)
        assert set(range(removable, promises.synced.get(partition, 0))) <= there, "lost"
        if partition < stream.partition_count:
            assert stream.next_offsets[partition] > max(there, default=-1)
        found_durable = segments(durable, partition)
        for base, segment in segments(files, partition).items():
            assert base < removable or found_durable.get(base) == segment, "not durable"


def check_reading(fs: CrashFS, partition: int, promises: Promises) -> None:
    """A reader gets what is in the files, each message at its offset, and tells what is missing."""
    expected: dict[int, Triple] = {}
    for base, segment in segments(fs.files(), partition).items():
        expected |= dict(enumerate(oracle.records(segment["data"], varuint=promises.varuint)[0], base))
    missing: set[int] = set()
    with PartitionReader(fs, StreamFiles(fs, ROOT).partition(partition), varuint=promises.varuint) as reader:
        reader.seek_oldest()
        start = reader.position
        found = {m.offset: (m.key, m.timestamp_ns, m.value) for m in iter(reader.read, None)}
        assert found == expected
        for gap in reader.losses:
            missing |= set(range(gap.offset, gap.offset + gap.count))
        assert set(range(start, reader.position)) == missing | set(found)


def check_offsets_are_given_once(fs: CrashFS) -> None:
    """What an index tells of somebody may have read: nobody gets its offset, however many came in between."""
    told: dict[int, int] = {}
    for partition in partitions(fs.files()):
        for base, segment in segments(fs.files(), partition).items():
            rows = segment.get("index", b"") if "data" in segment else b""
            there = struct.iter_unpack("<QQQ", rows[: len(rows) // 24 * 24])
            # Zeros are no entry: of the first message they say that its record has no bytes.
            given = [
                number for number, (offset, _, size) in enumerate(there, base) if number == offset and size
            ]
            told[partition] = max(told.get(partition, 0), *(offset + 1 for offset in given), 0)
    for count in (1, max(told, default=0) + 1):
        stream = Stream(ROOT, options=StreamOptions(partition_count=count), fs=fs)
        fs = fs.crash()
    for partition, offset in told.items():
        assert stream.next_offsets[partition] >= offset, "given twice"


def check_partition(files: dict[str, bytes], partition: int, promises: Promises) -> tuple[int, int]:
    """The files agree, and hold what was appended. Returns the next offset, and that behind the messages."""
    attempted = promises.attempted.get(partition, [])
    removable = promises.removable.get(partition, 0)
    end = None
    lost = 0
    for base, segment in segments(files, partition).items():
        if end is None or base > end:
            # Of what retention removed some may be there again. Behind what was not synced and is lost a
            # segment begins whose offsets nobody was given.
            assert base <= removable or not segment["data"], "skipped"
            assert base <= len(attempted)
            lost = base - (end or 0) if base > removable else 0
        else:
            assert base == end
        found, _, stop = oracle.records(segment["data"], varuint=promises.varuint)
        assert stop == "END"
        assert found == attempted[base : base + len(found)], "altered or invented"
        is_whole = segment == oracle.segment(found, base, varuint=promises.varuint)
        assert is_whole or base < removable, "the files do not agree"
        end = base + len(found)
    assert end is not None
    return end, end - lost


def check_what_others_see(fs: CrashFS, promises: Promises) -> None:
    """After a kill, before a recovery: each row of the index has its record."""
    files = fs.files()
    for partition in partitions(files):
        for base, segment in segments(files, partition).items():
            if "data" not in segment:
                assert base <= promises.removable.get(partition, 0)
                continue
            found, _, _ = oracle.records(segment["data"], varuint=promises.varuint)
            whole = oracle.segment(found, base, varuint=promises.varuint)
            assert whole["index"].startswith(segment.get("index", b"")), "a row of no record"


def _run(workload: Workload, fs: CrashFS) -> None:
    workload(fs, Promises())


def crash(seed: int | Workload, **options: Any) -> Report:
    workload = lifetimes(seed) if isinstance(seed, int) else seed
    return run_cuts(workload, check, witness=Promises, **options)


SEEDS = range(10)
EVERY = 2


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_the_power_interrupts_the_promises_hold(seed: int) -> None:
    report = crash(seed, every=stride(EVERY))
    assert report.cuts > 100 // stride(1)


def test_that_is_two_thousand_cuts_and_four_outcomes_each() -> None:
    operations = [enumerate_cuts(functools.partial(_run, lifetimes(seed))) for seed in SEEDS]
    assert sum(made // EVERY for made in operations) >= 2000


@pytest.mark.exhaustive
@pytest.mark.parametrize("workload", NARROW)
def test_they_hold_where_it_is_narrow(workload: Workload) -> None:
    crash(workload, again=1, every=stride(1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, 3, 8])
def test_recovery_may_be_interrupted_too(seed: int) -> None:
    crash(seed, again=2, limit=30, seeds=2)


# --- do they bite? ------------------------------------------------------------------------------

STREAM = streamsteps.__name__
OPENING = opening.__name__
WRITER = writer.__name__
SEGMENT = tripletsegment.__name__
FORMAT = streamrecovery.__name__
RECOVERY, SEGMENTS = recovery.__name__, segmentrecovery.__name__
CHECKSUMS = checksums.__name__
INDEX_REBUILD = mending.__name__
POINTS = recovery_points.__name__

MUTATIONS = [
    *WEAKER,
    # An fsync left out.
    Mutation(STREAM, "data = self.segment.settle()", "data = self.segment.settle()[:1]"),
    Mutation(STREAM, "data = self.segment.settle()", "data = self.segment.settle()[1:]"),
    Mutation(
        SEGMENT,
        "pending_syncs.sync_and_close(self._timeindex, self._index)",
        "pending_syncs.closing += (self._timeindex, self._index)",
        by=7,
    ),
    Mutation(RECOVERY, "self.pending_syncs.files.append(handle)", "pass"),
    Mutation(RECOVERY, "rewrite(self._fs, handle, start, end)", "pass", by=5),
    # A directory's fsync left out.
    Mutation(WRITER, "            self.pending.directories[path] = None", "            pass"),
    Mutation(STREAM, "keep_path(self._fs, self.path)", "pass"),
    # A step left out.
    Mutation(APPENDFILE, "self._write_rows()\n        if self.failure", "if self.failure"),
    Mutation(SEGMENT, "self.buffer.write_rows()\n        size", "size"),
    # Where recovery begins: told too early, too far on, not at all.
    Mutation(STREAM, "Points(is_closed, points", "Points(True, points"),
    # Where it began, and what retention has removed since.
    Mutation(
        POINTS,
        "first <= base < bases[0]",
        "base < bases[0]",
        by=retained_before_the_points_are_told,
    ),
    Mutation(
        logsegment.__name__,
        "self.buffer.flushed, self.buffer.written_offset)",
        "self.buffer.end, self.buffer.next_offset)",
        by=held_on_a_full_disk,
    ),
    # What recovery does with what it finds.
    Mutation(RECOVERY, "cls.POWER_CUT if was_restarted else cls.KILLED", "cls.KILLED"),
    Mutation(FORMAT, "return is_complete and (", "return (", by=rolls_without_a_sync),
    Mutation(CHECKSUMS, "or not row.matches(data)", ""),
    Mutation(CHECKSUMS, "if row.start != end and not over_gaps:", "if False:", by=8),
    Mutation(RECOVERY, "pending_syncs.removals += removals", "pass", by=7),
    Mutation(RECOVERY, "        self.bases.append(offset)\n", "        pass\n"),
    Mutation(
        SEGMENTS,
        "Barrier(removals=tuple(orphans)).execute(self._fs)",
        "self._repairs.pending_syncs.removals += orphans",
    ),
    Mutation(
        FORMAT,
        "if first > point.base and first in self.found.bases:",
        "if False:",
        by=retained_before_the_points_are_told,
    ),
    Mutation(OPENING, "self.wals.replay(in_place=left.in_place, voided=redone.voided)", "pass", by=0),
    Mutation(OPENING, "in_place=left.in_place, voided", "voided", by=a_wal_of_long_ago),
    Mutation(OPENING, "kind.append_again(each)", "pass", by=a_wal_of_long_ago),
    Mutation(
        INDEX_REBUILD, "self._changes(self.index, self.rows.index_patches()", "self._changes(self.index, []"
    ),
    Mutation(
        INDEX_REBUILD,
        "self._changes(self.timeindex, self.rows.timeindex_patches()",
        "self._changes(self.timeindex, []",
    ),
    Mutation(INDEX_REBUILD, "self._cut(its.path, its.end, RepairKind.STALE, _NO_RECORD)", "pass"),
    Mutation(INDEX_REBUILD, "rebuilt.given = max(rebuilt.given, self.rows.given())", "pass"),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_weaker_stream_is_caught(mutation: Mutation) -> None:
    def crash_everywhere() -> None:
        if callable(mutation.by):
            crash(mutation.by, again=1)
        first = mutation.by if isinstance(mutation.by, int) else 2  # which catches most of them,
        if mutation.by is None:
            crash(first, again=0, every=5, seeds=1)  # in a few cuts, each recovered from once
        for seed in (first, *SEEDS):
            crash(seed, again=1, every=3, seeds=3)

    with mutation.installed(), pytest.raises((PromiseBroken, AssertionError, DiskqError, FileNotFoundError)):
        crash_everywhere()
