# The promises of a FIFO queue after every crash there is. Law: what is told here is docs/durability.md's
# table, and each way to weaken the barrier is caught.

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import diskq
from diskq.options import Durability
from diskq.storage.budget import join_budget
from diskq.storage.log.replay import LAST_NOT_WHOLE
from diskq.testing import CrashFS
from tests.crash.barriers import APPENDFILE, BARRIER, WEAKER
from tests.crash.harness import CAME_BACK, PromiseBroken, Report, enumerate_cuts, repeat, run_cuts
from tests.crash.mutations import Mutation
from tests.engine.queues import taken
from tests.sampling import stride

# Some blocks to a file and some files to a queue, in few operations.
OPTIONS = diskq.QueueOptions(segment_size=6000, sync_every=7, sync_timeout=1000.0)

LOST = {"not synced before the machine stopped", LAST_NOT_WHOLE}
"""What is reported after a power cut."""


def body(number: int) -> bytes:
    """Message `number`: told from every other, and from itself with any byte changed."""
    return b"%06d" % number + random.Random(number).randbytes(number * 37 % 900)


@dataclass
class Promises:
    """What the queue has promised so far. Messages are numbered from 0 in the order of their puts."""

    attempted: int = 0
    accepted: int = 0
    synced: int = 0
    taken: int = 0
    taken_durably: int = 0
    """Taken before the last sync that was paid: never to be seen again."""
    is_emptying: bool = False


class Session:
    """A queue in use, and the promises it makes."""

    def __init__(self, fs: CrashFS, promises: Promises, options: diskq.QueueOptions = OPTIONS) -> None:
        self.promises = promises
        self.fs = fs
        self.queue = diskq.Queue("/q", "events", options=options, fs=fs)

    def put(self, count: int = 1, durability: Durability = "written") -> None:
        promises = self.promises
        bodies = [body(promises.attempted + i) for i in range(count)]
        promises.attempted += count
        before = self.metadata()
        if count == 1:
            self.queue.put(bodies[0], durability=durability)
        else:
            self.queue.put_many(bodies, durability=durability)
        promises.accepted += count
        if not self.queue.unsynced_bytes:
            promises.synced = promises.accepted
        if self.metadata() != before:
            promises.taken_durably = promises.taken

    def take(self, count: int = 1) -> None:
        promises = self.promises
        before = self.metadata()
        if count == 1:
            bodies = [body for body in [taken(self.queue)] if body is not None]
        else:
            bodies = self.queue.get_many(count)
        if self.metadata() != before:
            promises.synced = promises.accepted
            promises.taken_durably = promises.taken
        assert bodies == [body(promises.taken + i) for i in range(len(bodies))]
        promises.taken += len(bodies)

    def metadata(self) -> bytes:
        """It changes with each barrier that makes a read position durable, and with no other."""
        return self.fs.files().get("/q/events.diskqueue.meta.dat", b"")

    def sync(self) -> None:
        self.queue.sync()
        self.all_is_durable()

    def clear(self) -> None:
        self.promises.is_emptying = True
        self.queue.clear()
        self.promises.is_emptying = False
        self.promises.taken = self.promises.accepted
        self.all_is_durable()

    def close(self) -> None:
        self.queue.close()
        self.all_is_durable()

    def all_is_durable(self) -> None:
        self.promises.synced = self.promises.accepted
        self.promises.taken_durably = self.promises.taken


ACTS: list[Callable[[Session, random.Random], None]] = [
    lambda session, rng: session.put(),
    lambda session, rng: session.put(durability="synced"),
    lambda session, rng: session.put(rng.randrange(2, 12)),
    lambda session, rng: session.take(),
    lambda session, rng: session.take(rng.randrange(2, 9)),
    lambda session, rng: session.sync(),
    lambda session, rng: session.clear(),
]


def lifetimes(
    seed: int,
    sessions: int = 2,
    acts: int = 14,
    *,
    is_pressed: bool = False,
    options: diskq.QueueOptions = OPTIONS,
) -> Callable[[CrashFS, Promises], None]:
    """A workload: a queue opened, used at random and closed, a few times over.

    With `is_pressed` somebody waits for room in a budget that it shares: it leaves files early, to give it.
    """

    def workload(fs: CrashFS, promises: Promises) -> None:
        rng = random.Random(seed)
        fs.make_directory_durably("/q")
        for _ in range(sessions):
            session = Session(fs, promises, pressed() if is_pressed else options)
            for _ in range(acts):
                rng.choices(ACTS, [6, 3, 3, 5, 2, 1, 0.4])[0](session, rng)
            session.close()

    return workload


def pressed() -> diskq.QueueOptions:
    budget = diskq.DiskBudget(1024 * 1024)
    other = join_budget(budget, "somebody", 0, 0, "wait")
    assert not other.reserve(0, budget.max_bytes)
    other.wait(other.arrival())
    return dataclasses.replace(OPTIONS, budget=budget)


def check(outcome: str, fs: CrashFS, promises: Promises) -> None:
    with diskq.Queue("/q", "events", options=OPTIONS, fs=fs) as queue:
        found = queue.peek_many(10_000)
        depth, repairs, files = queue.depth, queue.repairs, queue.statistics().files
    assert sum(name.endswith(".dat") for name in fs.list_directory("/q")) == files + 1, "consumed files stay"
    assert depth == len(found)
    has_holes = outcome == CAME_BACK
    assert has_holes or [its.reason for its in repairs if outcome == "kill" or its.reason not in LOST] == []

    numbers = [int(message[:6]) for message in found]
    assert found == [body(number) for number in numbers], "altered or invented"
    if has_holes:
        check_what_came_back(numbers, promises)
        return
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True, "out of order"
    next_number = numbers[-1] + 1 if numbers else promises.taken
    assert next_number <= promises.attempted
    if numbers:
        assert numbers[0] >= promises.taken_durably, "what was consumed for good came back"
    if not promises.is_emptying:
        assert next_number >= (promises.accepted if outcome == "kill" else promises.synced), "lost"
        if numbers:
            assert numbers[0] <= promises.taken, "skipped"


def check_what_came_back(numbers: list[int], promises: Promises) -> None:
    """The disk went away and came back: of what was not synced any message may be missing, as reported."""
    assert numbers == sorted(set(numbers)), "out of order, or twice"
    assert not numbers or numbers[-1] < promises.attempted
    assert not numbers or numbers[0] >= promises.taken_durably, "what was consumed for good came back"
    assert promises.is_emptying or set(range(promises.taken, promises.synced)) <= set(numbers), "lost"


def _run(workload: Callable[[CrashFS, Promises], None], fs: CrashFS) -> None:
    workload(fs, Promises())


def crash(seed: int, **options: Any) -> Report:
    return run_cuts(lifetimes(seed), check, witness=Promises, **options)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_power_interrupts_the_promises_hold(seed: int) -> None:
    report = crash(seed, every=stride(1))
    assert report.cuts > 60 // stride(1)


@pytest.mark.parametrize("seed", range(4))
def test_they_hold_too_where_others_want_room_in_its_budget(seed: int) -> None:
    report = run_cuts(lifetimes(seed, is_pressed=True), check, witness=Promises, every=stride(1))
    assert report.cuts > 80 // stride(1)


@pytest.mark.parametrize("seed", range(2))
def test_they_hold_too_where_most_messages_are_larger_than_a_file(seed: int) -> None:
    """Such a file is left with the next barrier, though it is the last one."""
    options = dataclasses.replace(OPTIONS, segment_size=100)
    report = run_cuts(lifetimes(seed, options=options), check, witness=Promises, every=stride(4))
    assert report.cuts > 20 // stride(1)


def test_that_is_a_thousand_cuts_and_four_outcomes_each() -> None:
    cuts = 0
    for seed in range(12):
        workload = lifetimes(seed)
        cuts += enumerate_cuts(functools.partial(_run, workload)) + 1
    assert cuts >= 1000


def test_a_kill_between_the_cut_of_a_file_and_its_checksums_is_no_loss() -> None:
    """The file was sealed, and its checksums outlived a power cut that took its end."""
    repeat(lifetimes(2), check, cut=91, outcome="power cut", seed=1, again=8, witness=Promises)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, 2])
def test_recovery_may_be_interrupted_too(seed: int) -> None:
    crash(seed, again=2, every=3)


# --- do they bite? ------------------------------------------------------------------------------

MUTATIONS = [
    *WEAKER,
    # A directory's fsync left out.
    Mutation(BARRIER, "self._sync_directory(fs, directory)", "pass"),
    # An order turned round: deletions before names.
    Mutation(
        BARRIER,
        "        replaced = self._replace(fs)\n        self._remove(fs)\n",
        "        self._remove(fs)\n        replaced = self._replace(fs)\n",
    ),
    # What nobody points at any more stays.
    Mutation(BARRIER, "for path in self.removals:", "for path in ():"),
    # Round the barrier: what is owed to it, and what recovery does with what it finds.
    Mutation(APPENDFILE, "pending_syncs.directories[directory_of(checksum_file)] = None", "pass"),
    Mutation(APPENDFILE, "self._write_rows()\n        if self.failure", "if self.failure"),
    Mutation("diskq.engine.log.recovery", "cls.POWER_CUT if was_restarted else cls.KILLED", "cls.KILLED"),
    Mutation("diskq.engine.queue.recovery", "due = number + 1 if is_complete else -1", "due = number + 1"),
    Mutation("diskq.engine.log.recovery", "self._asides.freeze((), ()).execute(self._fs)", "pass"),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_weaker_barrier_is_caught(mutation: Mutation) -> None:
    def crash_everywhere() -> None:
        for seed in range(3):
            crash(seed, again=0, every=3, seeds=1)  # most are caught by a few cuts, each recovered from once
        for seed in range(12):
            crash(seed, again=1)

    with mutation.installed(), pytest.raises((PromiseBroken, AssertionError)):
        crash_everywhere()
