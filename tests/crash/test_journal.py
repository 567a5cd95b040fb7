# The promises of a journal after every crash there is. Law: a kill loses nothing that was written; a power
# cut keeps what was synced, and of the rest a beginning, never altered, never invented; offsets are dense;
# what a peer has synced in between is there; and each way to weaken this is caught.

from __future__ import annotations

import errno
import functools
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from diskq.engine.journal import files as journalfiles
from diskq.engine.journal import steps as journalsteps
from diskq.engine.journal.journal import Journal
from diskq.engine.log import opening, recovery, writer
from diskq.engine.log.engine import Admission, Mode
from diskq.errors import DiskFullError, DiskqError, StorageFailedError
from diskq.options import Durability, JournalOptions
from diskq.storage import checksums
from diskq.storage.log import replay
from diskq.storage.log.replay import LAST_NOT_WHOLE
from diskq.testing import CrashFS, FaultFS
from tests.crash.barriers import APPENDFILE, WEAKER
from tests.crash.harness import CAME_BACK, KILL, PromiseBroken, Report, enumerate_cuts, run_cuts
from tests.crash.mutations import Mutation
from tests.engine.journals import LOCK, ROOT, data, given, read_all, reader, segments, stored, told
from tests.reference import sej_oracle as oracle
from tests.reference.sej_oracle import Item
from tests.sampling import stride

pytestmark = pytest.mark.usefixtures("quiet_log")

PLACE, OLD_PLACE = f"{ROOT}/.diskq/journal-data", f"{ROOT}/.diskq/jnl"


def message(number: int, longest: int) -> Item:
    """Message `number`: told from every other, and from itself with any byte changed."""
    rng = random.Random(number)
    value = b"%06d" % number + rng.randbytes(number * 37 % longest)
    return b"key-%d" % rng.randrange(7), 1000 * number, number % 256, value


@dataclass
class Promises:
    """What the journal has promised so far."""

    attempted: list[Item] = field(default_factory=list)
    """All messages, in the order in which they were appended: the place in the list is the offset."""
    written: int = 0
    """So many of them are there after a kill,"""
    synced: int = 0
    """and so many after everything."""
    has_peer: bool = False
    """One of sej's was there. Of what it wrote no checksum tells, nor whether it wrote at all: behind what
    was synced a power cut may leave anything that looks like a record."""
    displaced: bool = False
    """What stood on a write-ahead log found another writer's messages in its place, and is appended after
    them: where
    that is cut short by a kill, some of it twice."""
    kept: set[bytes] = field(default_factory=set)
    """Then the values that are there after a kill."""
    loose: set[int] = field(default_factory=set)
    """Messages of ours that were not synced when it came: behind them are some that it has synced."""


class Session:
    """A journal in use, and the promises it makes."""

    def __init__(
        self,
        fs: CrashFS,
        promises: Promises,
        *,
        longest: int = 60,
        segment_size: int = 6000,
        uses_wal: bool = False,
    ) -> None:
        self.fs = fs
        self.disk = FaultFS(fs)
        self.promises = promises
        self.longest = longest
        self.options = JournalOptions(segment_size=segment_size, sync_every=9, sync_timeout=1000.0)
        self.uses_wal = uses_wal
        self.open()

    def open(self) -> None:
        self.journal = Journal(ROOT, options=self.options, fs=self.disk, uses_wal=self.uses_wal)
        # What was in memory when the last one ended is gone, and its offsets are free.
        promises = self.promises
        assert promises.written <= self.journal.next_offset <= len(promises.attempted)
        del promises.attempted[self.journal.next_offset :]
        promises.written = promises.synced = len(promises.attempted)
        promises.loose.clear()

    def append(self, count: int = 1, durability: Durability = "written") -> None:
        batch = self.attempt(count)
        if count == 1:
            ((key, timestamp, kind, value),) = batch
            self.journal.append(value, key, timestamp, kind, durability=durability)
        else:
            self.journal.append_many(given(batch), durability=durability)
        self.note(durability)

    def append_encoded(self, count: int, durability: Durability) -> None:
        first = self.journal.next_offset
        self.journal.append_encoded(oracle.encoded(self.attempt(count), first), durability=durability)
        self.note(durability)

    def attempt(self, count: int) -> list[Item]:
        number = len(self.promises.attempted) * 10 + self.fs.operations % 10
        batch = [message(number + index, self.longest) for index in range(count)]
        self.promises.attempted += batch
        return batch

    def note(self, durability: Durability) -> None:
        promises = self.promises
        if durability != "memory":
            promises.written = len(promises.attempted)
        if not self.journal.unsynced_bytes:
            promises.written = promises.synced = len(promises.attempted)
        assert durability != "synced" or not self.journal.unsynced_bytes
        promises.synced = max(promises.synced, self.journal.synced_offset)

    def stage(self, count: int) -> None:
        """As a channel does: they stand on the write-ahead log, and somebody is awake to write them soon."""
        self.journal.steps.buffer.is_awake = True
        append = self.journal.steps.buffer.appender(Mode.STAGED, Admission.COUNTED).append
        for _ in range(count):
            ((key, timestamp, kind, value),) = self.attempt(1)
            offset = append(value, key, timestamp, kind)
            if offset is None:
                offset = self.journal.append(value, key, timestamp, kind)
                self.journal.steps.buffer.is_awake = True
            self.promises.written = offset + 1

    def flush(self) -> None:
        self.journal.flush()
        self.promises.written = len(self.promises.attempted)

    def sync(self) -> None:
        self.journal.sync()
        self.promises.written = self.promises.synced = len(self.promises.attempted)

    def end(self) -> None:
        """The process ends without a word: all that is written stays as it is."""
        with suppress(StorageFailedError):
            self.journal.log.fail(OSError("the process ends here"))
        self.journal.close()

    def fail(self) -> None:
        """It does so, and the next one goes on."""
        self.end()
        self.open()

    def fail_to_sync(self, rng: random.Random) -> None:
        """The kernel says so, and holds what it did not write for written."""
        self.append()
        self.fs.fail_sync(rng.randrange(1, 4))
        with suppress(StorageFailedError):
            self.journal.sync()
            self.promises.written = self.promises.synced = len(self.promises.attempted)
        self.fs.fail_sync(0)
        self.fail()

    def peer(self, rng: random.Random) -> None:
        """One of sej's writers comes and goes between two of ours, or tries to while we are here."""
        self.promises.has_peer = True
        if rng.random() < 0.3:
            be_refused(self.fs)
            return
        self.end() if rng.random() < 0.5 else self.close()
        # What nobody has written by now is not there for sej.
        written = len(stored(self.fs))
        if written < self.promises.written:
            self.open()
            return
        del self.promises.attempted[written:]
        self.promises.loose = set(range(self.promises.synced, written))
        write_as_sej(self.fs, self.attempt(rng.randrange(1, 5)), written)
        self.promises.written = self.promises.synced = len(self.promises.attempted)
        self.open()

    def close(self) -> None:
        self.journal.close()
        self.promises.written = self.promises.synced = len(self.promises.attempted)


def write_as_sej(fs: CrashFS, items: list[Item], first: int) -> None:
    """Its NewWriter, an Append and Sync for each, and Close. What it does not sync promises nothing."""
    lock = fs.open(LOCK, write=True, create=True)
    # Emptied at its open: a file system with a journal has that on stable storage before what is synced
    # later.
    fs.write_durably(LOCK, b"")
    assert fs.try_lock(lock)
    path = data(int(max(segments(fs)).removesuffix(".jnl"), 16))
    for offset, its in enumerate(items, first):
        fs.write_durably(path, fs.read(path) + oracle.record(offset, *its))
    fs.close(lock)
    fs.unlink(LOCK)


def be_refused(fs: CrashFS) -> None:
    """Its NewWriter empties the lock file, and cannot lock it."""
    handle = fs.open(LOCK, write=True)
    fs.truncate(handle, 0)
    fs.close(handle)


Workload = Callable[[CrashFS, Promises], None]

ACTS: list[tuple[float, Callable[[Session, random.Random], None]]] = [
    (6, lambda session, rng: session.append()),
    (3, lambda session, rng: session.append(durability="synced")),
    (2, lambda session, rng: session.append(durability="memory")),
    (4, lambda session, rng: session.append(rng.randrange(2, 12))),
    (1, lambda session, rng: session.append(rng.randrange(2, 12), "synced")),
    (1, lambda session, rng: session.append(rng.randrange(2, 12), "memory")),
    (1, lambda session, rng: session.append_encoded(rng.randrange(1, 9), rng.choice(["written", "synced"]))),
    (2, lambda session, rng: session.stage(rng.randrange(1, 12))),
    (0.5, lambda session, rng: session.flush()),
    (1, lambda session, rng: session.sync()),
    (0.8, lambda session, rng: session.fail()),
    (0.8, Session.fail_to_sync),
    (0.8, Session.peer),
]


def lifetimes(seed: int, sessions: int = 2, acts: int = 14) -> Workload:
    """A workload: a journal opened, used at random and closed, a few times over."""
    weights, choices = zip(*ACTS, strict=True)

    def workload(fs: CrashFS, promises: Promises) -> None:
        rng = random.Random(seed)
        for _ in range(sessions):
            session = Session(
                fs,
                promises,
                longest=rng.choice([60, 300, 900]),
                segment_size=rng.choice([0, 700, 2500, 6000]),
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


def a_sync_that_failed(fs: CrashFS, promises: Promises) -> None:
    """The kernel then holds for written what it has not written."""
    session = Session(fs, promises)
    for seed in range(3):
        session.append(2)
        session.fail_to_sync(random.Random(seed))


def held_on_a_full_disk(fs: CrashFS, promises: Promises) -> None:
    """What is in memory finds no room until the end."""
    session = Session(fs, promises)
    session.append(3, "synced")
    session.disk.fail("pwrite", error=errno.ENOSPC, path="*.jnl", times=None)
    session.append(2, "memory")
    with pytest.raises(DiskFullError):
        session.journal.close()


def killed_with_a_wal(fs: CrashFS, promises: Promises) -> None:
    """What stands on it was acknowledged, and is written by the next one."""
    session = Session(fs, promises, uses_wal=True)
    session.append()
    session.stage(6)
    session.end()
    session.open()
    session.append(durability="synced")


def a_wal_of_long_ago(fs: CrashFS, promises: Promises) -> None:
    """A process is killed, one of sej's writes where what stood on its write-ahead log belongs; then we come
    back.
    """
    session = Session(fs, promises, uses_wal=True)
    session.append(durability="synced")
    before = promises.written
    session.stage(6)
    session.end()
    staged = promises.attempted[before:]
    promises.kept = {its[3] for its in promises.attempted}
    promises.has_peer = promises.displaced = True
    del promises.attempted[before:]
    theirs = [(b"", number, 0, b"theirs %d" % number) for number in range(3)]
    promises.attempted += [*theirs, *staged]
    write_as_sej(fs, theirs, before)
    promises.kept |= {its[3] for its in theirs}
    Session(fs, promises)


def a_peer_behind_a_kill(fs: CrashFS, promises: Promises) -> None:
    """What it has synced has no checksum of ours, and an old point."""
    session = Session(fs, promises, segment_size=500)
    session.append(9)
    session.end()
    promises.has_peer = True
    promises.loose = set(range(9))
    write_as_sej(fs, session.attempt(20), len(promises.attempted) - 20)
    promises.written = promises.synced = len(promises.attempted)
    session = Session(fs, promises, segment_size=500)
    session.append(2)
    session.append(2, "synced")


def a_peer_that_is_refused(fs: CrashFS, promises: Promises) -> None:
    """It empties our lock file while we are here: what is not synced is doubted all the same."""
    session = Session(fs, promises)
    promises.has_peer = True
    be_refused(fs)
    session.append(3, "synced")
    for _ in range(4):
        session.append(2)


def left_by_an_older_version(fs: CrashFS, promises: Promises) -> None:
    """It had checksums in a directory that sej takes for a journal's: they are moved when it is opened."""
    session = Session(fs, promises, segment_size=300)
    for _ in range(3):
        session.append(3, "synced")
    session.append(2)
    session.end()
    as_an_older_version(fs)
    session.open()
    session.append(2)
    session.append(2, "synced")


def as_an_older_version(fs: CrashFS) -> None:
    """Its files are where that one had them; a cut in between leaves them half moved."""
    fs.make_directory(OLD_PLACE)
    fs.sync_directory(f"{ROOT}/.diskq")
    for name in fs.list_directory(PLACE):
        fs.rename(f"{PLACE}/{name}", f"{OLD_PLACE}/{name}")
    fs.sync_directory(OLD_PLACE)
    fs.sync_directory(PLACE)
    fs.remove_directory(PLACE)
    fs.sync_directory(f"{ROOT}/.diskq")


NARROW: list[Workload] = [
    left_by_an_older_version,
    rolls_without_a_sync,
    a_sync_that_failed,
    killed_with_a_wal,
    held_on_a_full_disk,
    a_wal_of_long_ago,
    a_peer_behind_a_kill,
    a_peer_that_is_refused,
]


def check(outcome: str, fs: CrashFS, promises: Promises) -> None:
    if outcome == KILL:
        check_what_others_see(fs, promises)
    journal = Journal(ROOT, fs=fs)
    assert fs.size_of(OLD_PLACE) is None, "sej would take our directory for a journal"
    if outcome == CAME_BACK and not promises.displaced:
        check_what_came_back(fs, promises)
        return
    for repair in journal.repairs:
        is_again = promises.displaced and not repair.records
        assert outcome != KILL or is_again, repair
        is_cut = repair.reason in (recovery.UNSYNCED, LAST_NOT_WHOLE) and repair.records == 0
        assert is_cut or promises.has_peer
    if promises.loose and (missing := missing_in(fs)):
        assert outcome != KILL, missing
        assert missing <= promises.loose, "lost"
        return
    found = stored(fs, has_gaps=outcome == CAME_BACK)
    if promises.displaced:
        values = list(dict.fromkeys(message.value for message in found))
        assert values == [its[3] for its in promises.attempted if its[3] in values], "altered or invented"
        assert outcome != KILL or set(values) >= promises.kept, "lost"
        assert values[:1] == [promises.attempted[0][3]], "lost"
        assert segments(fs.crash()) == segments(fs), "not durable"
        return
    promised = promises.written if outcome == KILL else promises.synced
    assert len(found) >= promised, "lost"
    known = promised if promises.has_peer and outcome != KILL else len(found)
    assert found[:known] == told(promises.attempted[:known]), "altered or invented"
    assert journal.next_offset == len(found)
    assert segments(fs.crash()) == segments(fs), "not durable"
    if sum(map(len, segments(fs).values())) % 3 == 0:  # as that takes its time
        assert read_all(fs) == found
    # It is not closed: who comes next finds it as this one left it.


def check_what_came_back(fs: CrashFS, promises: Promises) -> None:
    """The disk went away and came back: of what was not synced any message may be missing, as reported."""
    with reader(fs) as found:
        for message in found.read_many(10**9):
            its = (message.key, message.timestamp_ns, message.type, message.value)
            is_known = message.offset < promises.synced or not promises.has_peer
            assert not is_known or its == promises.attempted[message.offset], "altered or invented"
        end = found.position
    assert min(missing_in(fs) - promises.loose, default=end) >= promises.synced, "lost"
    assert segments(fs.crash()) == segments(fs), "not durable"


def missing_in(fs: CrashFS) -> set[int]:
    """The offsets that a reader does not find; it tells which ones."""
    with reader(fs) as found:
        offsets = {message.offset for message in found.read_many(10**9)}
        missing = {offset for gap in found.losses for offset in range(gap.offset, gap.offset + gap.count)}
        assert offsets | missing == set(range(found.position))
    return missing


def check_what_others_see(fs: CrashFS, promises: Promises) -> None:
    """After a kill, before a recovery: sej reads on, as all that was written is there."""
    if segments(fs):
        found = stored(fs)
        assert promises.displaced or found == told(promises.attempted[: len(found)])


def _run(workload: Workload, fs: CrashFS) -> None:
    workload(fs, Promises())


def crash(seed: int | Workload, **options: Any) -> Report:
    workload = lifetimes(seed) if isinstance(seed, int) else seed
    return run_cuts(workload, check, witness=Promises, **options)


SEEDS = range(6)
EVERY = 6


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_the_power_interrupts_the_promises_hold(seed: int) -> None:
    report = crash(seed, every=stride(EVERY))
    assert report.cuts > 30 // stride(1)


def test_that_is_three_hundred_cuts_and_four_outcomes_each() -> None:
    operations = [enumerate_cuts(functools.partial(_run, lifetimes(seed))) for seed in SEEDS]
    assert sum(made // EVERY for made in operations) >= 300


@pytest.mark.exhaustive
@pytest.mark.parametrize("workload", NARROW)
def test_they_hold_where_it_is_narrow(workload: Workload) -> None:
    crash(workload, again=1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, 3])
def test_recovery_may_be_interrupted_too(seed: int) -> None:
    crash(seed, again=2, limit=30, seeds=2)


# --- do they bite? ------------------------------------------------------------------------------

JOURNAL = journalsteps.__name__
OPENING = opening.__name__
WRITER = writer.__name__
REPLAY = replay.__name__
RECOVERY = recovery.__name__
FILES = journalfiles.__name__
CHECKSUMS = checksums.__name__

MUTATIONS = [
    *WEAKER,
    # An fsync left out.
    Mutation(
        JOURNAL,
        "active = self._segment.settle()",
        "active = self._segment.settle()[:1]",
        by=a_sync_that_failed,
    ),
    Mutation(JOURNAL, "active = self._segment.settle()", "active = self._segment.settle()[1:]"),
    Mutation(RECOVERY, "self.pending_syncs.files.append(handle)", "pass"),
    Mutation(RECOVERY, "rewrite(self._fs, handle, start, end)", "pass", by=a_sync_that_failed),
    # A directory's fsync left out.
    Mutation(WRITER, "            self.pending.directories[path] = None", "            pass"),
    Mutation(JOURNAL, "keep_path(fs, self.path)", "pass", by=rolls_without_a_sync),
    # A step left out.
    Mutation(
        APPENDFILE,
        "self._write_rows()\n        if self.failure",
        "if self.failure",
        by=held_on_a_full_disk,
    ),
    # Where recovery begins: told too early, too far on, not at all.
    Mutation(JOURNAL, "Points(is_closing, {0", "Points(True, {0"),
    Mutation(WRITER, "self.pending.files.append(self.lock.handle)", "pass"),
    # The checksums of an older version: not moved, half moved, moved to where a power cut takes them away.
    Mutation(JOURNAL, "files.move_old_data()", "pass", by=left_by_an_older_version),
    Mutation(FILES, "installs=tuple(moves)", "installs=tuple(moves[1:])", by=left_by_an_older_version),
    Mutation(FILES, "directories=(self.private,), installs", "installs", by=left_by_an_older_version),
    # Whether a peer was there.
    Mutation(JOURNAL, "self._find_a_peer(points)", "pass", by=a_peer_behind_a_kill),
    Mutation(JOURNAL, "opening.lock.previous is not None", "True", by=a_wal_of_long_ago),
    # What recovery does with what it finds.
    Mutation(RECOVERY, "cls.POWER_CUT if was_restarted else cls.KILLED", "cls.KILLED"),
    Mutation(CHECKSUMS, "or not row.matches(data)", ""),
    Mutation(
        OPENING,
        "self.wals.replay(in_place=left.in_place, voided=redone.voided)",
        "pass",
        by=killed_with_a_wal,
    ),
    Mutation(OPENING, "kind.append_again(each)", "pass", by=a_wal_of_long_ago),
    Mutation(JOURNAL, "is_held=False)\n        self.log.sync()", "is_held=False)", by=a_wal_of_long_ago),
    Mutation(REPLAY, "part.content.startswith(there) and ", "", by=a_wal_of_long_ago),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_weaker_journal_is_caught(mutation: Mutation) -> None:
    def crash_everywhere() -> None:
        if callable(mutation.by):
            crash(mutation.by, every=2, seeds=2)
            crash(mutation.by, again=1)
        first = mutation.by if isinstance(mutation.by, int) else 2
        if mutation.by is None:
            crash(first, again=0, every=4, seeds=1)  # most are caught by a few cuts, each recovered from once
        for seed in (first, *SEEDS):
            crash(seed, again=1, every=4, seeds=2)

    with mutation.installed(), pytest.raises((PromiseBroken, AssertionError, DiskqError)):
        crash_everywhere()
