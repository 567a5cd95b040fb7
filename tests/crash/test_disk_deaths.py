# Every way for a disk to die. Law: whether the machine was restarted or only the disk went away,
# whatever checksums outlived their data or data its checksums, and whoever opens the files first: no synced
# message is lost, none is altered, no open is refused, and what is missing among the others is reported.
#
# Each power cut is tried with another boot id, with the same one, and on a system that has none; with a part
# of what was not synced, with all checksums and no other unsynced byte, and the reverse; and after it diskq
# is first, or the program whose format it is, which closes the files or dies. Some are cut again during
# recovery. DISKQ_EVERY_FAULT=1 tries all; without it, a sample.

from __future__ import annotations

import contextlib
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from diskq.testing import CrashFS
from tests.crash import peers
from tests.crash import test_priority as priority
from tests.crash import test_spool as spool
from tests.crash.harness import POWER_CUT, enumerate_cuts, pictures
from tests.crash.redo_logs import KINDS, METADATA, Kind, Promises, lifetimes
from tests.sampling import sampled

pytestmark = pytest.mark.usefixtures("quiet_log")

BOOTS = ("another", "the same", "none")
SHAPES = ("any part", "checksums outlived", "data outlived")
FIRST = ("diskq", "a peer that closes", "a peer that dies")
SAMPLE = 8
AGAIN = 7
"""Each so many-th state is cut again during recovery."""


class Death(NamedTuple):
    cut: int
    boot: str
    shape: str
    first: str


# --- the kinds ------------------------------------------------------------------------------------


class Theirs(NamedTuple):
    """The messages of a program that was first."""

    written: list[bytes]
    """Those that are whole in its files."""
    attempted: list[bytes]
    """These may be there."""


class Subject(ABC):
    """One kind of store: how it is used, who else writes it, and what it promises."""

    name: str
    seeds: range
    promises: Callable[[], Any]
    data: tuple[str, ...] = (".dat", "/data", ".data", ".jnl")
    """How the names of files with messages end."""
    checksums: tuple[str, ...] = (".sums",)
    """And of those that say something of these files."""

    @abstractmethod
    def workload(self, seed: int) -> Callable[[CrashFS, Any], object]: ...

    @abstractmethod
    def let_peer_write(self, fs: CrashFS, values: list[bytes], *, dies: bool) -> list[bytes] | None:
        """Have the program open the files and write. Returns what it wrote; None if it cannot open them."""

    def is_unmarked(self, before: CrashFS, after: CrashFS) -> bool:
        """True if nothing tells what a peer has written from what diskq wrote and did not sync.

        So it is with go-diskqueue, if it dies before its first sync of the metadata after a power cut: its
        messages are kept aside as diskq's that were not synced.
        """
        return False

    @abstractmethod
    def check(
        self, fs: CrashFS, promises: Any, theirs: Theirs | None, reported: Sequence[int | None] = ()
    ) -> None:
        """Open it, and insist on what was promised; with `theirs` a peer was first.

        `reported`: the numbers of messages in the repairs that an open has logged which was cut.
        """


class LogSubject(Subject):
    """A queue, a stream or a journal."""

    promises = Promises

    def __init__(self, kind: Kind, seeds: range) -> None:
        self.name, self.kind, self.seeds = kind.name, kind, seeds

    def workload(self, seed: int) -> Callable[[CrashFS, Any], object]:
        return lifetimes(self.kind, seed)

    def let_peer_write(self, fs: CrashFS, values: list[bytes], *, dies: bool) -> list[bytes] | None:
        if self.kind.first_file not in fs.files():
            return None
        return self.kind.let_peer_write(fs, values, dies=dies)

    def is_unmarked(self, before: CrashFS, after: CrashFS) -> bool:
        return self.name == "queue" and before.files().get(METADATA) == after.files().get(METADATA)

    def check(
        self, fs: CrashFS, promises: Any, theirs: Theirs | None, reported: Sequence[int | None] = ()
    ) -> None:
        if self.name == "queue":
            fs.make_directory_durably("/q")
        repairs, values = self.kind.values(fs)
        known = {
            one: (group, number)
            for group, messages in promises.attempted.items()
            for number, one in enumerate(messages)
        }
        found = set(values)
        written, attempted = theirs or Theirs([], [])
        strange = found - known.keys() - set(attempted)
        if theirs is not None:
            # What is left of bytes that were not synced, and has no checksum, cannot be told from the peer's.
            strange = {value for value in strange if not any(peers.is_left_of(value, one) for one in known)}
        assert strange == set(), "altered or invented"
        last: dict[int, int] = {}
        has_hole = False
        for group, number in (known[one] for one in values if one in known):
            if group in last:
                assert theirs is not None or number > last[group], "out of order"
                # A call that has not returned may be done in part.
                has_hole |= last[group] + 1 < min(number, promises.written.get(group, 0))
            last[group] = number
        lost = [
            one
            for group, messages in promises.attempted.items()
            for one in messages[promises.gone.get(group, 0) : promises.synced.get(group, 0)]
            if one not in found
        ]
        assert theirs is not None or lost == [], "lost"
        lost += [one for one in written if one not in found]
        counts = [*reported, *(repair.records for repair in repairs)]
        assert None in counts or len(lost) <= sum(count or 0 for count in counts), "lost beside a peer"
        assert counts or not has_hole, "silent"


class PrioritySubject(Subject):
    """A store of priority queues, of which messages are received, acknowledged and given back."""

    name = "priority"
    seeds = range(4)
    promises = priority.Promises
    data = (".log",)
    checksums = (".snapshot", ".metadata", "/point")

    def workload(self, seed: int) -> Callable[[CrashFS, Any], object]:
        return priority.lifetimes(seed, acts=40)

    def let_peer_write(self, fs: CrashFS, values: list[bytes], *, dies: bool) -> list[bytes] | None:
        return peers.taskflux(fs, f"{priority.ROOT}/data", values, dies=dies) or None

    def check(
        self, fs: CrashFS, promises: Any, theirs: Theirs | None, reported: Sequence[int | None] = ()
    ) -> None:
        added = theirs.written if theirs else None
        priority.check(POWER_CUT, fs, promises, added, is_reported=bool(reported))


class SpoolSubject(Subject):
    """A spool, of which messages are delivered, rejected, sent again and purged."""

    name = "spool"
    seeds = range(3)
    promises = spool.Promises
    checksums = (".sums", ".note", ".state")
    metadata = f"{spool.PATH}/spool.diskqueue.meta.dat"

    def workload(self, seed: int) -> Callable[[CrashFS, Any], object]:
        return spool.lifetimes(seed)

    def let_peer_write(self, fs: CrashFS, values: list[bytes], *, dies: bool) -> list[bytes] | None:
        if self.metadata not in fs.files():
            return None
        return peers.go_diskqueue(fs, spool.PATH, "spool", values, dies=dies)

    def is_unmarked(self, before: CrashFS, after: CrashFS) -> bool:
        return before.files().get(self.metadata) == after.files().get(self.metadata)

    def check(
        self, fs: CrashFS, promises: Any, theirs: Theirs | None, reported: Sequence[int | None] = ()
    ) -> None:
        spool.check(POWER_CUT, fs, promises, theirs.written if theirs else None)


SUBJECTS: dict[str, Subject] = {
    each.name: each
    for each in (
        LogSubject(KINDS["queue"], range(3)),
        LogSubject(KINDS["stream"], range(2)),
        LogSubject(KINDS["journal"], range(3)),
        PrioritySubject(),
        SpoolSubject(),
    )
}
CASES = [(each.name, seed, boot) for each in SUBJECTS.values() for seed in each.seeds for boot in BOOTS]


# --- the states -----------------------------------------------------------------------------------


def after(subject: Subject, fs: CrashFS, cut: int, boot: str, shape: str) -> CrashFS:
    """The disk as the next process finds it."""
    is_restart = boot == "another"
    if shape == "any part":
        return fs.crash(random.Random(f"{cut} {boot}"), is_restart=is_restart)
    outlived = subject.checksums if shape == "checksums outlived" else subject.data
    left = fs.copy().crash(is_restart=is_restart)
    for path, content in fs.files().items():
        is_there = left.size_of(path) is not None
        if is_there and path.endswith(outlived) and not path.endswith(".meta.dat"):
            left.write_durably(path, content)
    return left


def deaths(
    subject: Subject, seed: int, boot: str, cut: int = 0
) -> Iterator[tuple[Death, CrashFS, Any, Theirs | None]]:
    """The states: each with what was promised by then, and the messages of a peer, if one was first.

    Of one `cut`, or of a sample of all.
    """

    def workload(fs: CrashFS, promises: Any) -> None:
        fs.has_boot_id = boot != "none"
        subject.workload(seed)(fs, promises)

    cuts = [cut]
    if not cut:
        end = enumerate_cuts(lambda fs: workload(fs, subject.promises())) + 1
        cuts = list(sampled(range(1, end + 1), SAMPLE))
    for cut, fs, seen in pictures(workload, cuts, subject.promises()):
        for shape in SHAPES:
            left = after(subject, fs, cut, boot, shape)
            for first in FIRST:
                found, theirs = left.copy(), None
                if first != "diskq":
                    rng = random.Random(f"{cut} {shape}")
                    values = [b"peer %d " % number + rng.randbytes(rng.randrange(700)) for number in range(6)]
                    written = subject.let_peer_write(found, values, dies=first.endswith("dies"))
                    if written is None:
                        continue
                    if first.endswith("dies") and subject.is_unmarked(left, found):
                        continue
                    theirs = Theirs(written, values)
                yield Death(cut, boot, shape, first), found, seen, theirs


def judge(
    subject: Subject, fs: CrashFS, death: Death, promises: Any, theirs: Theirs | None, number: int
) -> int:
    """Check one state, and some of them again after a cut of the recovery. Returns how many states."""
    if number % AGAIN:
        subject.check(fs, promises, theirs)
        return 1
    rng = random.Random(f"{death} again")
    whole, first = fs.copy(), fs
    subject.check(whole, promises, theirs)
    first.cut_at = rng.randint(1, max(1, whole.operations))
    with logged_repairs() as reported:
        try:
            subject.check(first, promises, theirs)
        except BaseException:
            if not first.is_cut:
                raise
    subject.check(first.crash(rng, is_restart=death.boot == "another"), promises, theirs, reported)
    return 2


@contextlib.contextmanager
def logged_repairs() -> Iterator[list[int | None]]:
    """The numbers of messages in the repairs that are logged: an open does so before its first barrier."""
    reported: list[int | None] = []
    handler = logging.Handler()
    handler.emit = lambda record: reported.append(getattr(record, "diskq_count", None))  # type: ignore[method-assign]
    handler.addFilter(lambda record: getattr(record, "diskq_event", "") == "repair")
    logger = logging.getLogger("diskq")
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield reported
    finally:
        logger.propagate = propagates
        logger.setLevel(level)
        logger.removeHandler(handler)


@pytest.mark.parametrize("name, seed, boot", CASES)
def test_nothing_is_lost_altered_refused_or_silent(name: str, seed: int, boot: str) -> None:
    subject = SUBJECTS[name]
    for number, (death, fs, seen, theirs) in enumerate(deaths(subject, seed, boot)):
        try:
            judge(subject, fs, death, seen, theirs, number)
        except Exception as failure:
            raise AssertionError(f"{name} {seed} {death}: {failure}") from failure


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name, seed, boot, cut",
    [
        # Zeros were empty messages: whole ones came after them, checksums were gone, or they were in a file
        # after the peer's.
        ("queue", 0, "none", 481),
        ("queue", 1, "none", 21),
        ("queue", 2, "the same", 353),
        ("queue", 2, "another", 496),
        ("queue", 2, "another", 562),
        # A file that is not the last one was cut where a message ends, and nobody heard of the others.
        ("queue", 2, "another", 509),
        ("queue", 2, "none", 679),
        ("queue", 2, "another", 636),
        # So was a record of which the length of the value was zeros.
        ("stream", 0, "another", 406),
        ("stream", 0, "the same", 917),
        ("stream", 1, "none", 432),
        ("stream", 1, "none", 1035),
        # A peer's bytes took the place of records in the redo log, and their checksums judged them.
        ("stream", 1, "the same", 1274),
        ("stream", 0, "none", 348),
        # The index was half rewritten when the power failed again, and with it went what named a peer's.
        ("stream", 0, "none", 699),
        ("stream", 0, "another", 1096),
        ("stream", 1, "another", 451),
        ("stream", 1, "the same", 203),
        # Of an index and a timeindex that contradicted each other then, neither named the peer's.
        ("stream", 0, "the same", 89),
        ("stream", 1, "another", 640),
        ("stream", 1, "none", 867),
        ("stream", 1, "none", 853),
        # The checksum that says that a segment is complete is none of bytes: a peer's were covered by it.
        ("stream", 1, "none", 658),
        # The open was cut when a snapshot without the damage was durable, and the damage not yet reported.
        ("priority", 1, "the same", 353),
        # The open was cut when the queue's metadata was diskq's again: a peer's got ids that others had had.
        ("spool", 0, "none", 44),
        ("spool", 0, "another", 46),
        ("spool", 1, "the same", 65),
        # A peer's messages were as long as those in whose place they are, of which a checksum outlived.
        ("spool", 2, "the same", 209),
        # Zeros in a file after the peer's were empty messages, as no checksum of that file was left.
        ("spool", 2, "another", 376),
        # A message that the redo log appends again was taken off those that a peer had overwritten.
        ("queue", 0, "the same", 422),
        ("queue", 2, "another", 604),
        # What diskq had not synced, before a peer's first file, was delivered where its frames were whole.
        ("queue", 2, "another", 25),
        ("queue", 1, "another", 500),
        ("queue", 1, "the same", 677),
        ("queue", 1, "none", 738),
        ("queue", 2, "the same", 146),
        ("queue", 2, "none", 482),
        ("spool", 2, "none", 345),
        # The metadata was diskq's again before the state said that messages are to be appended again.
        ("queue", 2, "the same", 159),
    ],
)
def test_the_states_that_have_failed(name: str, seed: int, boot: str, cut: int) -> None:
    """Each of that cut, and each cut again."""
    subject = SUBJECTS[name]
    for death, fs, seen, theirs in deaths(subject, seed, boot, cut):
        judge(subject, fs, death, seen, theirs, 0)


def cut_points(name: str, seed: int) -> int:
    subject = SUBJECTS[name]
    return enumerate_cuts(lambda fs: subject.workload(seed)(fs, subject.promises())) + 1


def test_that_is_twenty_five_thousand_states() -> None:
    cuts = sum(cut_points(name, seed) for name in KINDS for seed in SUBJECTS[name].seeds)
    assert cuts * len(BOOTS) * len(SHAPES) >= 25_000
