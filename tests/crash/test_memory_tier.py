# The promises of a FIFO queue with memory first, after every crash there is. Law: what a crash takes is
# what came last and was never promised to be anywhere but in memory; there is no hole before it.

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import diskq
from diskq.options import Durability
from diskq.testing import CrashFS
from tests.crash.harness import CAME_BACK, PromiseBroken, Report, run_cuts
from tests.crash.mutations import Mutation
from tests.crash.test_fifo import LOST, Promises, Session, body, check_what_came_back
from tests.engine.queues import taken
from tests.sampling import stride

OPTIONS = diskq.QueueOptions(
    segment_size=6000, sync_every=7, sync_timeout=1000.0, durability="memory", memory_size=4000
)


class TierSession(Session):
    """A queue in use. What is `accepted` there has been promised to be in the files."""

    def __init__(self, fs: CrashFS, promises: Promises) -> None:
        super().__init__(fs, promises, OPTIONS)
        self.sent = promises.attempted

    def put(self, count: int = 1, durability: Durability = "memory") -> None:
        promises = self.promises
        numbers = range(promises.attempted, promises.attempted + count)
        promises.attempted += count
        before = self.metadata()
        self.queue.put_many(map(body, numbers), durability=durability)
        if durability != "memory":
            promises.accepted = promises.attempted
        if durability == "synced":
            promises.synced = promises.attempted
        if self.metadata() != before:
            promises.taken_durably = promises.taken

    def take(self, count: int = 1) -> None:
        before = self.metadata()
        if count == 1:
            bodies = [body for body in [taken(self.queue)] if body is not None]
        else:
            bodies = self.queue.get_many(count)
        if self.metadata() != before:
            self.promises.taken_durably = self.promises.taken
        self.check_taken(bodies)

    def check_taken(self, bodies: list[bytes]) -> None:
        assert bodies == [body(self.promises.taken + i) for i in range(len(bodies))]
        self.promises.taken += len(bodies)

    def work(self, rng: random.Random) -> None:
        """Peek at some messages, let others come or a sync pass, and take some of them."""
        bodies = self.queue.peek_many(rng.randrange(1, 9))
        self.put(rng.randrange(1, 7), rng.choice(["memory", "written"]))
        if rng.random() < 0.4:
            self.sync()
        done = rng.randrange(len(bodies) + 1)
        self.queue.advance(done)
        self.check_taken(bodies[:done])

    def clear(self) -> None:
        self.promises.accepted = self.promises.attempted
        super().clear()

    def all_is_durable(self) -> None:
        self.promises.accepted = self.promises.attempted
        super().all_is_durable()


ACTS: list[Callable[[TierSession, random.Random], None]] = [
    lambda session, rng: session.put(),
    lambda session, rng: session.put(rng.randrange(2, 12)),
    lambda session, rng: session.put(durability="written"),
    lambda session, rng: session.put(durability="synced"),
    lambda session, rng: session.take(),
    lambda session, rng: session.take(rng.randrange(2, 12)),
    lambda session, rng: session.work(rng),
    lambda session, rng: session.sync(),
    lambda session, rng: session.clear(),
]


def lifetimes(seed: int, sessions: int = 2, acts: int = 20) -> Callable[[CrashFS, Promises], None]:
    def workload(fs: CrashFS, promises: Promises) -> None:
        rng = random.Random(seed)
        fs.make_directory_durably("/q")
        for _ in range(sessions):
            session = TierSession(fs, promises)
            for _ in range(acts):
                rng.choices(ACTS, [6, 5, 1, 1, 5, 2, 4, 0.5, 0.2])[0](session, rng)
            session.close()

    return workload


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
    assert numbers == sorted(set(numbers)), "out of order, or twice"
    assert not numbers or numbers[-1] < promises.attempted
    again = [number for number in numbers if number < promises.taken]
    assert not again or again[0] >= promises.taken_durably, "what was consumed for good came back"
    if not promises.is_emptying:
        fresh = numbers[len(again) :]
        end = max(promises.taken, promises.accepted if outcome == "kill" else promises.synced)
        assert fresh == list(range(promises.taken, promises.taken + len(fresh))), "a hole"
        assert promises.taken + len(fresh) >= end, "lost"


def crash(seed: int, **options: Any) -> Report:
    return run_cuts(lifetimes(seed), check, witness=Promises, **options)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_power_interrupts_only_what_came_last_is_lost(seed: int) -> None:
    report = crash(seed, every=stride(4))
    assert report.cuts > 25 // stride(1)


# --- do they bite? ------------------------------------------------------------------------------

HEAD, TAIL, STEPS = "diskq.engine.queue.head", "diskq.engine.queue.tail", "diskq.engine.queue.steps"

MUTATIONS = [
    # Written, and still in memory: twice in the queue.
    Mutation(TAIL, "tier.let_go(done)", "tier.let_go(max(1, done - 1))"),
    # A stronger word overtakes what was sent before.
    Mutation(
        TAIL,
        "        self.spill()\n        return self.write_many",
        "        return self.write_many",
    ),
    # What is in memory overtakes what is in the files.
    Mutation(TAIL, "        self.tier.is_next = False\n", ""),
    # A sync is for the files alone; so is the end.
    Mutation(STEPS, "            if is_spill_due:\n                self.tail.spill()\n", ""),
    # What was peeked at is written, and delivered once more.
    Mutation(
        HEAD,
        "        self._ahead.pass_over(self._buffer.end, len(bodies))\n        self._gate.left = 0\n",
        "",
    ),
    # It is taken to be before the place where it was written.
    Mutation(
        HEAD,
        "self._keep_peeked(bodies, self._buffer.end)\n",
        "self._keep_peeked(bodies, self._size_of(bodies))\n",
    ),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_weaker_tier_is_caught(mutation: Mutation) -> None:
    def crash_everywhere() -> None:
        for seed in range(12):
            crash(seed, every=3)

    with mutation.installed(), pytest.raises((PromiseBroken, AssertionError)):
        crash_everywhere()
