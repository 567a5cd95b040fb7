# The promises of a transaction after every crash there is. Law: what a sink committed is in the stream once,
# all of it, in order, behind what was there before; what it did not commit is not in it, nor any part of
# it; who does not know commits the epoch again, with other bytes; and each way to weaken this is caught.

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from diskq.engine.log import recovery
from diskq.engine.stream import recovery as streamrecovery
from diskq.engine.stream import steps as streamsteps
from diskq.engine.stream import stream as engine
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.partition_reader import PartitionReader
from diskq.engine.stream.stream import Stream
from diskq.engine.stream.transactions import adoption, staging
from diskq.engine.stream.transactions import roll_forward as rollforward
from diskq.engine.stream.transactions import transaction as transactions
from diskq.engine.stream.transactions.transaction import Transaction, committed, forget_sinks
from diskq.errors import DiskqError
from diskq.options import Durability, Encoding, StreamOptions
from diskq.testing import CrashFS
from tests.crash.harness import CAME_BACK, KILL, PromiseBroken, Report, enumerate_cuts, run_cuts
from tests.crash.mutations import Mutation
from tests.crash.test_stream import Promises as StreamPromises
from tests.crash.test_stream import message
from tests.engine.streams import ROOT, Triple, held, partitions
from tests.engine.transactions import INTENT, stage, stage_files, staged_files
from tests.reference import triplet_oracle as oracle
from tests.sampling import stride

pytestmark = pytest.mark.usefixtures("quiet_log")

SINKS = ("a", "b.2")


def parted(of: list[Triple], count: int) -> dict[int, list[Triple]]:
    found: dict[int, list[Triple]] = {}
    for one in of:
        found.setdefault(oracle.fnv1(one[0]) % count, []).append(one)
    return found


@dataclass
class Act:
    """A transaction that was, or is being, committed."""

    sink: str
    epoch: int
    messages: dict[int, list[Triple]]
    """By partition."""
    starts: dict[int, int]
    """So many messages were there before."""


@dataclass
class Promises(StreamPromises):
    """`attempted` is without the transaction in doubt."""

    doubtful: Act | None = None
    """A commit that has not returned."""
    epochs: dict[str, int] = field(default_factory=dict)
    """What each sink has committed."""
    count: int = 0


class Session:
    """A stream in use, by a producer and by sinks, and the promises it makes."""

    def __init__(
        self,
        fs: CrashFS,
        promises: Promises,
        rng: random.Random,
        encoding: Encoding = "fixed",
        count: int | None = None,
        segment_size: int | None = None,
        extent: int | None = None,
    ) -> None:
        self.fs = fs
        self.rng = rng
        self.promises = promises
        promises.varuint = encoding == "varuint"
        self.longest = rng.choice([60, 300, 900])
        self.extent = extent
        self.options = StreamOptions(
            partition_count=promises.count or count or rng.choice([1, 2, 3]),
            segment_size=segment_size or rng.choice([700, 2500, 6000]),
            sync_every=9,
            sync_timeout=1000.0,
            max_unsynced=rng.choice([1500, 100_000]),
            encoding=encoding,
        )
        promises.count = self.options.partition_count or 0
        self.uses_wal = rng.random() < 0.2
        self.open()

    def open(self) -> None:
        promises = self.promises
        self.stream = Stream(ROOT, options=self.options, fs=self.fs, uses_wal=self.uses_wal)
        self.decide()
        # What was in memory when the last one ended is gone.
        there = held(self.fs, varuint=promises.varuint, may_skip=True)
        for partition, messages in there.items():
            found = promises.attempted.setdefault(partition, [])
            assert promises.written.get(partition, 0) <= len(messages) <= len(found)
            assert messages == found[: len(messages)]
            del found[len(messages) :]
        promises.all_are(promises.written, promises.synced)

    def decide(self) -> None:
        """A commit failed, and the stream was opened again: it was committed, or it was not."""
        act, self.promises.doubtful = self.promises.doubtful, None
        if act is None:
            return
        last = committed(self.fs, StreamFiles(self.fs, ROOT), act.sink)
        if last is not None and last.epoch == act.epoch:
            self.has_committed(act)

    def has_committed(self, act: Act) -> None:
        promises = self.promises
        for partition, messages in act.messages.items():
            assert len(promises.attempted.setdefault(partition, [])) == act.starts[partition]
            promises.attempted[partition] += messages
        promises.epochs[act.sink] = act.epoch
        promises.doubtful = None
        promises.all_are(promises.written, promises.synced)

    # --- acts -------------------------------------------------------------------------------------

    def messages(self, count: int) -> list[Triple]:
        number = sum(map(len, self.promises.attempted.values())) * 100 + self.fs.operations % 10
        return [message(number + index, self.longest) for index in range(count)]

    def append(self, count: int, durability: Durability = "written") -> None:
        promises = self.promises
        batch = self.messages(count)
        for partition, messages in parted(batch, promises.count).items():
            promises.attempted.setdefault(partition, []).extend(messages)
        self.stream.append_many([(k, v, t) for k, t, v in batch], durability=durability)
        if durability != "memory":
            promises.all_are(promises.written)
        if not self.stream.unsynced_bytes:
            promises.all_are(promises.written, promises.synced)

    def commit(self, tasks: int | None = None, sink: str | None = None) -> None:
        """As Spark does: tasks stage, some of them more than once; the driver commits what succeeded."""
        promises, rng = self.promises, self.rng
        sink = sink or rng.choice(SINKS)
        epoch = promises.epochs.get(sink, -1) + rng.choice([1, 1, 1, 5])
        batches = [
            self.messages(rng.randrange(1, 15)) for _ in range(rng.randrange(4) if tasks is None else tasks)
        ]
        for number, batch in enumerate(batches):  # no two alike
            batches[number] = [(k, t + 1 + number, v + b"/%d" % number) for k, t, v in batch]
        if rng.random() < 0.3:
            self.stage(self.messages(3), sink, epoch, 0)  # an attempt of which nobody heard again
        staged = [file for task, batch in enumerate(batches) for file in self.stage(batch, sink, epoch, task)]
        of = parted([one for batch in batches for one in batch], promises.count)
        starts = {partition: len(promises.attempted.get(partition, ())) for partition in of}
        promises.doubtful = act = Act(sink, epoch, of, starts)
        assert self.stream.commit(Transaction(sink, epoch, "query", tuple(staged)))
        self.has_committed(act)
        assert_nothing_finished_is_staged(self.fs)

    def stage(self, batch: list[Triple], sink: str, epoch: int, task: int) -> tuple[staging.StagedFile, ...]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(staging, "_EXTENT", 1)  # a segment of any size may be staged whole
            return stage_files(
                self.fs,
                parted(batch, self.promises.count),
                sink=sink,
                epoch=epoch,
                task=task,
                count=self.promises.count,
                encoding="varuint" if self.promises.varuint else "fixed",
                extent=self.extent or self.rng.choice([1, 4, 100]),
                segment_size=self.options.segment_size,
            )

    def commit_once(self, tasks: int | None = None) -> None:
        """A sink that commits one epoch, and is forgotten: nobody will commit it again."""
        sink = f"once.{self.fs.operations}"
        self.commit(tasks, sink)
        del self.promises.epochs[sink]
        self.end()
        assert forget_sinks(ROOT, lambda name: name == sink, fs=self.fs) == [sink]
        self.open()

    def commit_again(self) -> None:
        """Who did not hear that it was committed: an epoch of before, with other bytes."""
        for sink, epoch in self.promises.epochs.items():
            staged = self.stage(self.messages(3), sink, epoch, 7)
            assert not self.stream.commit(Transaction(sink, epoch, "query", staged))
            if epoch:
                assert not self.stream.commit(Transaction(sink, epoch - 1, "query", ()))

    def fail_to_commit(self) -> None:
        """A sync fails, anywhere in it. Then the epoch is committed again."""
        self.fs.fail_sync(self.rng.randrange(1, 14))
        with suppress(DiskqError, OSError):
            self.commit()
        self.fs.fail_sync(0)
        self.fail()

    def sync(self) -> None:
        self.stream.sync()
        self.promises.all_are(self.promises.written, self.promises.synced)

    def end(self) -> None:
        """The process ends without a word: all that is written stays as it is."""
        with suppress(DiskqError):
            self.stream.log.fail(OSError("the process ends here"))
        self.stream.close()

    def fail(self) -> None:
        """It does so, and the next one goes on."""
        self.end()
        self.open()

    def close(self) -> None:
        self.stream.close()
        self.promises.all_are(self.promises.written, self.promises.synced)


Workload = Callable[[CrashFS, Promises], None]

ACTS: list[tuple[float, Callable[[Session, random.Random], None]]] = [
    (3, lambda session, rng: session.append(rng.randrange(1, 12))),
    (1, lambda session, rng: session.append(rng.randrange(1, 12), "synced")),
    (1, lambda session, rng: session.append(rng.randrange(1, 12), "memory")),
    (5, lambda session, rng: session.commit()),
    (0.5, lambda session, rng: session.commit_again()),
    (0.5, lambda session, rng: session.commit_once()),
    (0.7, lambda session, rng: session.fail_to_commit()),
    (0.5, lambda session, rng: session.sync()),
    (0.5, lambda session, rng: session.fail()),
]


def lifetimes(seed: int, sessions: int = 2, acts: int = 6) -> Workload:
    """A workload: a stream opened, used at random and closed, a few times over."""
    weights, choices = zip(*ACTS, strict=True)

    def workload(fs: CrashFS, promises: Promises) -> None:
        rng = random.Random(seed)
        for _ in range(sessions):
            session = Session(fs, promises, rng, "varuint" if seed % 4 == 3 else "fixed")
            for _ in range(acts):
                rng.choices(choices, weights)[0](session, rng)
            session.close()

    return workload


def again(act: Act) -> dict[int, list[Triple]]:
    """What the epoch's tasks stage when they run again: other bytes, and another number of them."""
    return {
        partition: [(key, when, value + b" again") for key, when, value in messages]
        + [(b"", -1, b"one more")]
        for partition, messages in act.messages.items()
    }


def check(outcome: str, fs: CrashFS, promises: Promises) -> None:
    stream = Stream(ROOT, fs=fs)
    for repair in stream.repairs:
        assert outcome != KILL
        assert not repair.records or repair.reason in (recovery.MISSING, recovery.UNSYNCED)
    promised = promises.written if outcome == KILL else promises.synced
    act = promises.doubtful
    has_holes = outcome == CAME_BACK
    is_in = check_messages(fs, promises, promised, has_holes=has_holes)
    # All that is seen is durable.
    check_messages(fs.crash(), promises, promised, is_raw=True, has_holes=has_holes)
    for sink in {*SINKS, *([act.sink] if act else [])}:
        last = committed(fs, StreamFiles(fs, ROOT), sink)
        if act is not None and sink == act.sink and is_in:
            assert (last.epoch if last else None) == act.epoch
        else:
            assert (last.epoch if last else None) == promises.epochs.get(sink), (
                "what was committed is not told"
            )
    assert fs.size_of(INTENT) is None
    assert_nothing_finished_is_staged(fs)
    replay(fs, stream, promises, is_in, has_holes=has_holes)
    # It is not closed: who comes next finds it as this one left it.


def replay(fs: CrashFS, stream: Stream, promises: Promises, is_in: bool, *, has_holes: bool) -> None:
    """As Spark does: the epoch of which it does not know is made again, and so is one that was committed."""
    act = promises.doubtful
    if stream.partition_count != promises.count:
        return  # the very first open was cut short
    for sink, epoch in promises.epochs.items():
        if act is None or sink != act.sink:
            assert not stream.commit(Transaction(sink, epoch, "query", ())), "forgotten"
    if act is None:
        return
    encoding: Encoding = "varuint" if promises.varuint else "fixed"
    file = stage(
        fs,
        again(act),
        sink=act.sink,
        epoch=act.epoch,
        task=9,
        count=promises.count,
        encoding=encoding,
        extent=3,
    )
    assert stream.commit(Transaction(act.sink, act.epoch, "query", (file,))) == (not is_in)
    assert check_messages(fs, promises, {}, has_holes=has_holes)
    assert check_messages(fs.crash(), promises, {}, is_raw=True, has_holes=has_holes)
    assert not [name for name in staged_files(fs) if name.startswith(f"{act.sink}-{act.epoch}-")]


def read(fs: CrashFS, *, varuint: bool) -> dict[int, list[Triple]]:
    """What a reader finds, which passes over what is damaged."""
    found: dict[int, list[Triple]] = {}
    for partition in partitions(fs.files()):
        with PartitionReader(fs, StreamFiles(fs, ROOT).partition(partition), varuint=varuint) as reader:
            reader.seek_oldest()
            found[partition] = [(m.key, m.timestamp_ns, m.value) for m in iter(reader.read, None)]
    return found


def check_messages(
    fs: CrashFS,
    promises: Promises,
    promised: dict[int, int],
    *,
    is_raw: bool = False,
    has_holes: bool = False,
) -> bool:
    """What is there was appended, in order, and once. Returns whether the transaction in doubt is.

    With `has_holes` messages that were not synced may be missing anywhere.
    """
    act = promises.doubtful
    is_in: set[bool] = set()
    if has_holes:
        found = read(fs, varuint=promises.varuint)
    else:
        found = held(fs, varuint=promises.varuint, may_skip=True, may_trail=is_raw)
    for partition, messages in found.items():
        before = promises.attempted.get(partition, [])
        if has_holes:
            before = before[: promised.get(partition, 0)] + [
                one for one in before[promised.get(partition, 0) :] if one in messages
            ]
        kept = next((n for n, one in enumerate(messages) if before[n : n + 1] != [one]), len(messages))
        assert kept >= promised.get(partition, 0), "lost"
        rest = messages[kept:]
        if act is None or partition not in act.messages:
            assert not rest, "invented, or doubled"
        elif rest == act.messages[partition]:
            assert kept == len(before), "committed, and what was there before is not"
            is_in.add(True)
        elif rest == again(act)[partition]:
            is_in.add(True)
        else:
            assert not rest, "a part of a transaction, or more than that"
            is_in.add(False)
    assert len(is_in) <= 1, "in one partition, and not in the other"
    if act is not None and not act.messages:
        last = committed(fs, StreamFiles(fs, ROOT), act.sink)
        return last is not None and last.epoch == act.epoch
    return is_in == {True}


def assert_nothing_finished_is_staged(fs: CrashFS) -> None:
    for name in staged_files(fs):
        parsed = staging.StagedName.parse(name)
        assert parsed is not None
        last = committed(fs, StreamFiles(fs, ROOT), parsed.sink)
        assert parsed.epoch > (last.epoch if last else -1), "left behind"


def crash(seed: int, **options: Any) -> Report:
    return run_cuts(lifetimes(seed), check, witness=Promises, **options)


def _run(workload: Workload, fs: CrashFS) -> None:
    workload(fs, Promises())


SEEDS = range(8)
EVERY = 3


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_the_power_interrupts_a_transaction_is_in_once_or_not_at_all(seed: int) -> None:
    report = crash(seed, every=stride(EVERY))
    assert report.cuts > 50 // stride(1)


def test_that_is_a_thousand_cuts_and_four_outcomes_each() -> None:
    operations = [enumerate_cuts(functools.partial(_run, lifetimes(seed))) for seed in SEEDS]
    assert sum(made // EVERY for made in operations) >= 1000


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, 3, 6])
def test_carrying_it_out_may_be_interrupted_too(seed: int) -> None:
    crash(seed, again=2, limit=30, seeds=2)


# --- do they bite? ------------------------------------------------------------------------------


def behind_what_is_not_synced(fs: CrashFS, promises: Promises) -> None:
    session = Session(fs, promises, random.Random(0), count=1)
    session.append(4, "synced")
    session.append(3)
    session.commit(tasks=1)


def two_sinks(fs: CrashFS, promises: Promises) -> None:
    session = Session(fs, promises, random.Random(1), count=2)
    for sink in (*SINKS, *SINKS):
        session.commit(tasks=2, sink=sink)


def forgotten(fs: CrashFS, promises: Promises) -> None:
    session = Session(fs, promises, random.Random(3), count=1)
    session.commit_once(tasks=1)
    session.append(2, "synced")


def within_an_extent(fs: CrashFS, promises: Promises) -> None:
    """Segments end in the middle of it: so does what is there when it is gone on with."""
    session = Session(fs, promises, random.Random(2), count=1, segment_size=200, extent=100)
    session.append(1)
    for _ in range(2):
        session.commit(tasks=2)


def over_many_segments(fs: CrashFS, promises: Promises) -> None:
    """A disk that comes back has lost parts of some of them: those are damaged, and later ones are whole."""
    session = Session(fs, promises, random.Random(2), count=1, segment_size=150, extent=100)
    session.commit(tasks=3)


def renamed(fs: CrashFS, promises: Promises) -> None:
    """Staged files become segments, of all partitions at once, one after the other."""
    session = Session(fs, promises, random.Random(3), count=2, segment_size=400, extent=3)
    for _ in range(2):
        session.commit(tasks=2)
    session.append(3)


def filled(fs: CrashFS, promises: Promises) -> None:
    """A task stages more than a segment for a partition."""
    session = Session(fs, promises, random.Random(3), count=1, segment_size=150, extent=3)
    session.append(1)
    session.commit(tasks=2)


STREAM = engine.__name__
STEPS = streamsteps.__name__
ROLL = rollforward.__name__
STAGING = staging.__name__
ADOPTION = adoption.__name__
TRANSACTIONS = transactions.__name__
RECOVERY = streamrecovery.__name__

NOTE = "note_committed(fs, stream.files, intent.sink, Committed(intent.epoch, intent.query))\n"

# What catches it first, and what is caught.
MUTATIONS: list[tuple[Workload, Mutation]] = [
    # What a task has staged is not durable, or has no durable name.
    (two_sinks, Mutation(STAGING, "files=(self._handle, *self._handles), directories", "directories")),
    (two_sinks, Mutation(STAGING, "leading = (self._files.staging,", "leading = (")),
    # The commit point.
    (
        behind_what_is_not_synced,
        Mutation(
            STREAM,
            "        self.log.sync()\n        if steps.has_pending_rows",
            "        if steps.has_pending_rows",
        ),
    ),
    (two_sinks, Mutation(STREAM, "rollforward.write_intent(fs, files, intent)", "pass")),
    (
        two_sinks,
        Mutation(STREAM, "if rollforward.is_committed(fs, files, transaction):", "if False:"),
    ),
    # It is gone on with.
    (
        two_sinks,
        Mutation(
            STEPS,
            "if self._intent is not None:\n            self.roll",
            "if False:\n            self.roll",
        ),
    ),
    # Behind it.
    (two_sinks, Mutation(ROLL, "    stream.log.sync()\n", "")),
    (two_sinks, Mutation(ROLL, f"    stream.log.sync()\n    {NOTE}", f"    {NOTE}    stream.log.sync()\n")),
    (
        two_sinks,
        Mutation(
            ROLL,
            f"    {NOTE}    forget_finished(fs, stream.files)\n",
            f"    forget_finished(fs, stream.files)\n    {NOTE}",
        ),
    ),
    (two_sinks, Mutation(ROLL, NOTE, "\n")),
    (two_sinks, Mutation(TRANSACTIONS, "(*removals, *finished(fs, files))", "tuple(finished(fs, files))")),
    (two_sinks, Mutation(TRANSACTIONS, "(*removals, *finished(fs, files))", "tuple(removals)")),
    # What is there already.
    (within_an_extent, Mutation(ROLL, "left[extent.partition] -= skip", "pass")),
    (two_sinks, Mutation(ROLL, "stream.next_offset(p) - share.start + share.skip", "0")),
    (
        within_an_extent,
        Mutation(
            ROLL,
            "for data in reader.records(extent, skip):\n                        stream.",
            "for data in reader.records(extent):\n                        stream.",
        ),
    ),
    (within_an_extent, Mutation(STAGING, "yield data[start:]", "yield data")),
    (two_sinks, Mutation(TRANSACTIONS, "last.epoch >= intent.epoch", "True")),
    (two_sinks, Mutation(TRANSACTIONS, "last.epoch >= intent.epoch", "last.epoch > intent.epoch")),
    # Forgotten for good.
    (forgotten, Mutation(TRANSACTIONS, "Barrier(directories=(files.private,), removals", "Barrier(removals")),
    # What is damaged is appended again, not passed over.
    (over_many_segments, Mutation(RECOVERY, "self.differs = self.differs_at(point)", "pass")),
    # A staged file becomes a segment.
    (renamed, Mutation(STAGING, "files=(self._handle, *self._handles)", "files=(self._handle,)")),
    (filled, Mutation(STAGING, "files=(file.handle,), closing", "closing")),
    (
        renamed,
        Mutation(STEPS, "        self.log.sync()\n        Barrier(installs", "        Barrier(installs"),
    ),
    (renamed, Mutation(ADOPTION, "pending.sync_and_close(*handles)", "pending.closing += handles")),
    (renamed, Mutation(ADOPTION, "pending.directories[partition.private] = None", "pass")),
    (renamed, Mutation(ROLL, "segment=segment)", "segment=None)")),
    (renamed, Mutation(ROLL, "not left[whole.partition] and ", "")),
    (
        renamed,
        Mutation(
            ROLL,
            "adopted for extent in file.extents):\n            adopt()",
            "adopted for extent in file.extents):\n            pass",
        ),
    ),
    # Recovery does not skip what comes again.
    (two_sinks, Mutation(RECOVERY, "if self.assigns_again(given):", "if False:")),
    (two_sinks, Mutation(RECOVERY, "offset <= self.refilled.stop", "offset < self.refilled.stop")),
]


@pytest.mark.parametrize(
    "workload, mutation", MUTATIONS, ids=lambda what: getattr(what, "__name__", str(what))
)
def test_a_weaker_transaction_is_caught(workload: Workload, mutation: Mutation) -> None:
    def crash_everywhere() -> None:
        run_cuts(workload, check, witness=Promises, again=0, seeds=1)  # which catches most of them
        run_cuts(workload, check, witness=Promises, again=1, seeds=4)
        for seed in SEEDS:
            crash(seed, again=1, every=3, seeds=2)

    with mutation.installed(), pytest.raises((PromiseBroken, AssertionError, DiskqError)):
        crash_everywhere()
