# The promises of acknowledging out of order, after every crash there is. Law: what is not acknowledged comes
# again, what is acknowledged does not once that is durable (after a kill: once `ack` has returned), and an
# attempt that was made counts.

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import diskq
from diskq.engine.queue import ack_log as ackjournal
from diskq.engine.queue.work import Lease, QueueWork
from diskq.testing import CrashFS
from tests.crash.harness import CAME_BACK, Check, PromiseBroken, Report, run_cuts
from tests.crash.mutations import Mutation
from tests.crash.test_fifo import body
from tests.sampling import stride

# Some files to a queue, in few operations, and room for all that is in them.
OPTIONS = diskq.QueueOptions(segment_size=4000, sync_every=9, sync_timeout=1000.0)
WORK = diskq.QueueWorkOptions(max_in_flight=6, max_ahead=40)
ALL = diskq.QueueWorkOptions(max_in_flight=100_000)

REST = 50.0
"""Seconds that a delayed message rests."""


@pytest.fixture(autouse=True)
def small_journals(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a new one is begun now and then."""
    monkeypatch.setattr(ackjournal, "_GROWN", 8 * ackjournal.ROW.size)


@dataclass
class Promises:
    """What the work has promised so far. Messages are numbered from 0 in the order of their puts."""

    attempted: int = 0
    accepted: int = 0
    synced: int = 0
    acked: set[int] = field(default_factory=set)
    acked_durably: set[int] = field(default_factory=set)
    acking: set[int] = field(default_factory=set)
    """It was asked for, and has not returned."""
    tried: dict[int, int] = field(default_factory=dict)
    """How often each was handed out."""
    most_tried: dict[int, int] = field(default_factory=dict)
    is_handing_out: bool = False
    emptied: int = 0
    """All before this one were to be removed."""


class Session:
    """A queue that is worked on, and the promises it makes."""

    def __init__(self, fs: CrashFS, promises: Promises, rng: random.Random) -> None:
        self.fs, self.promises, self.rng = fs, promises, rng
        self.queue = diskq.Queue("/q", "events", options=OPTIONS, fs=fs)
        self.leases: list[Lease] = []
        self.acked_before = set(promises.acked)
        self.begin()

    def begin(self) -> None:
        self.promises.is_handing_out = True
        self.work = QueueWork(self.queue, options=WORK)
        self.promises.is_handing_out = False

    def act(self, name: str) -> None:
        before = self.metadata()
        getattr(self, name)()
        if self.metadata() != before:
            self.all_is_durable(self.acked_before)
        self.acked_before = set(self.promises.acked)

    def metadata(self) -> bytes:
        """It changes with each barrier that makes acknowledgements durable, and with no other."""
        return self.fs.files().get("/q/events.diskqueue.meta.dat", b"")

    def all_is_durable(self, acked: set[int]) -> None:
        if not self.queue.unsynced_bytes:
            self.promises.synced = self.promises.accepted
        self.promises.acked_durably |= acked

    def some(self) -> list[Lease]:
        """Some of the leases, which are then not ours any more."""
        chosen = self.rng.sample(self.leases, self.rng.randint(0, len(self.leases)))
        self.leases = [lease for lease in self.leases if lease not in chosen]
        return chosen

    def put(self) -> None:
        promises = self.promises
        count = self.rng.randint(1, 5)
        bodies = [body(promises.attempted + i) for i in range(count)]
        promises.attempted += count
        self.queue.put_many(bodies, durability=self.rng.choice(["memory", "written", "written", "synced"]))
        if self.queue.log.is_flushed:
            promises.accepted = promises.attempted
        if not self.queue.unsynced_bytes:
            promises.synced = promises.accepted

    def take(self) -> None:
        promises = self.promises
        promises.is_handing_out = True
        leases = self.work.get_many(self.rng.randint(1, 5), max_bytes=2000)
        for lease in leases:
            number = int(lease.body[:6])
            assert lease.body == body(number)
            assert number not in promises.acked
            promises.tried[number] = promises.tried.get(number, 0) + 1
            promises.most_tried[number] = max(promises.most_tried.get(number, 0), promises.tried[number])
            assert lease.attempts == promises.tried[number]
        self.leases += leases
        promises.is_handing_out = False

    def ack(self) -> None:
        some = self.some()
        numbers = {int(lease.body[:6]) for lease in some}
        self.promises.acking |= numbers
        self.work.ack(some)
        self.promises.acked |= numbers
        if self.queue.log.is_flushed:
            self.promises.accepted = self.promises.attempted

    def nack(self) -> None:
        self.work.nack(self.some(), self.rng.choice([0.0, 0.0, REST]))

    def time(self) -> None:
        self.fs.clock += REST / 2

    def sync(self) -> None:
        self.queue.sync()
        self.promises.accepted = self.promises.attempted
        self.all_is_durable(set(self.promises.acked))

    def clear(self) -> None:
        self.promises.emptied = self.promises.attempted
        self.queue.clear()
        self.leases.clear()
        self.work.close()
        self.begin()
        self.promises.accepted = self.promises.attempted

    def again(self) -> None:
        """The work ends, and goes on: what was in flight was not tried."""
        self.promises.is_handing_out = True
        self.work.close()
        for lease in self.leases:
            self.promises.tried[int(lease.body[:6])] -= 1
        self.leases.clear()
        self.begin()

    def close(self) -> None:
        self.promises.is_handing_out = True
        for lease in self.leases:
            self.promises.tried[int(lease.body[:6])] -= 1
        self.queue.close()
        self.promises.accepted = self.promises.attempted
        self.all_is_durable(set(self.promises.acked))
        self.promises.is_handing_out = False


ACTS = {"put": 6, "take": 6, "ack": 6, "nack": 2, "time": 1, "sync": 1, "again": 0.7, "clear": 0.2}


def lifetimes(seed: int, sessions: int = 2, acts: int = 22) -> Callable[[CrashFS, Promises], None]:
    """A workload: a queue opened, worked on at random and closed, a few times over."""

    def workload(fs: CrashFS, promises: Promises) -> None:
        rng = random.Random(seed)
        fs.make_directory_durably("/q")
        for _ in range(sessions):
            session = Session(fs, promises, rng)
            for _ in range(acts):
                session.act(rng.choices(list(ACTS), list(ACTS.values()))[0])
            session.close()

    return workload


def delivered(fs: CrashFS) -> Iterator[Lease]:
    """All that work on the queue hands out, each once; the queue is left as it was found."""
    fs.clock += REST
    with (
        diskq.Queue("/q", "events", options=OPTIONS, fs=fs) as queue,
        QueueWork(queue, options=ALL) as work,
    ):
        while leases := work.get_many(7):
            yield from leases


def plainly(outcome: str, fs: CrashFS, accepted: int) -> list[int]:
    """The numbers of what a plain reader finds; the first `accepted` messages were accepted."""
    with diskq.Queue("/q", "events", options=OPTIONS, fs=fs) as queue:
        found = queue.peek_many(10_000)
        assert queue.depth == len(found)
        lost = queue.statistics().lost
        repairs = queue.repairs
    numbers = [int(message[:6]) for message in found]
    assert found == [body(number) for number in numbers], "altered or invented"
    assert numbers == sorted(set(numbers)), "out of order, or twice"
    came_back = outcome == CAME_BACK
    if not (came_back and (lost or repairs)):
        assert lost == 0
        # Of a put that did not return any message may be missing once the disk came back.
        whole = [number for number in numbers if number < accepted] if came_back else numbers
        assert not whole or whole == list(range(whole[0], whole[0] + len(whole))), "out of order"
    return numbers


def check(outcome: str, fs: CrashFS, promises: Promises, *, is_exact: bool = True) -> None:
    kept = range(promises.emptied, promises.accepted if outcome == "kill" else promises.synced)
    in_files = plainly(outcome, fs, promises.accepted)
    for number in kept:
        assert number in in_files or number in promises.acking, "lost to a plain reader"

    leases = list(delivered(fs))
    numbers = [int(lease.body[:6]) for lease in leases]
    assert [lease.body for lease in leases] == [body(number) for number in numbers], "altered or invented"
    assert numbers == sorted(set(numbers)), "out of order, or twice"
    assert sorted(lease.id for lease in leases) == [lease.id for lease in leases]
    for number in kept:
        assert number in numbers or number in promises.acking, "lost"
    gone = promises.acked if outcome == "kill" else promises.acked_durably
    assert gone.isdisjoint(numbers), "acknowledged, and handed out again"

    for number, lease in zip(numbers, leases, strict=True):
        most = promises.most_tried.get(number, 0) + 1
        assert 1 <= lease.attempts <= most + promises.is_handing_out + (not is_exact)
        if outcome == "kill" and is_exact and not promises.is_handing_out:
            assert lease.attempts == promises.tried.get(number, 0) + 1, "an attempt was not counted"


def check_life_goes_on(outcome: str, fs: CrashFS, promises: Promises) -> None:
    """Also what comes after the crash, in the places of what it took, is handed out, as a first time."""
    check(outcome, fs, promises)
    new = range(promises.attempted + 1000, promises.attempted + 1030)
    with diskq.Queue("/q", "events", options=OPTIONS, fs=fs) as queue:
        queue.put_many([body(number)[:60] for number in new], durability="synced")
    for disk in (fs, fs.crash(random.Random(fs.operations))):
        attempts = {int(lease.body[:6]): lease.attempts for lease in delivered(disk)}
        assert [attempts.get(number) for number in new] == [1] * len(new), "taken for another"


def check_again(outcome: str, fs: CrashFS, promises: Promises) -> None:
    check(outcome, fs, promises, is_exact=False)


def crash(seed: int, checked: Check = check, **options: Any) -> Report:
    return run_cuts(lifetimes(seed), checked, witness=Promises, **options)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_power_interrupts_the_promises_hold(seed: int) -> None:
    report = crash(seed, every=stride(1), seeds=2)
    assert report.cuts > 60 // stride(1)


@pytest.mark.parametrize("seed", range(3))
def test_what_comes_after_is_not_taken_for_what_was_before(seed: int) -> None:
    crash(seed, check_life_goes_on, every=stride(4), seeds=2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, 2])
def test_what_comes_after_may_be_interrupted_too(seed: int) -> None:
    crash(seed, check_again, again=2, every=5)


# --- do they bite? ------------------------------------------------------------------------------

JOURNAL = ackjournal.__name__
WORK_MODULE = QueueWork.__module__

MUTATIONS = [
    # What is said of bytes that were cut off: taken back, and durably, before others take their place.
    Mutation(JOURNAL, "    if _end(row) <= write:\n        return None\n", "    return None\n"),
    Mutation(JOURNAL, "        return handed_row(write)", "        return None"),
    # Acknowledgements are written at once, and synced before the metadata is.
    Mutation(
        WORK_MODULE, "        self._write([])\n        self._move_head()\n", "        self._move_head()\n"
    ),
    Mutation(JOURNAL, "        return (self._handle,)", "        return ()"),
    Mutation("diskq.engine.queue.steps", "active += self.head.worker.settle()", "self.head.worker.settle()"),
    # A new file is durable before the old one goes, and says all that mattered.
    Mutation(
        WORK_MODULE,
        "        yield from acked_rows(window[number - self._first] for number in self._done)\n",
        "",
    ),
    Mutation(WORK_MODULE, "        yield handed_row(self._handed)\n", ""),
    # The read position is not beyond what is not acknowledged.
    Mutation(
        "diskq.engine.queue.head",
        "return self.worker.head or self.reader.position",
        "return self.reader.position",
    ),
    Mutation(WORK_MODULE, "while self._first in self._done:", "while self._done:"),
    # An attempt counts before the message is handed out.
    Mutation(WORK_MODULE, "                rows.append(handed_row(end))\n", "                pass\n"),
    Mutation(
        WORK_MODULE, "                    rows.append(tried_row(*lease._place[:2], lease.attempts))\n", ""
    ),
    # At the end of the work: what was in flight was not tried.
    Mutation(
        WORK_MODULE, "                self.release(list(self._in_flight.values()))", "                pass"
    ),
    # The queue goes on where the work had not done with it.
    Mutation(
        "diskq.engine.queue.head", "            self._read_again(head, worker.kept)\n", "            pass\n"
    ),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_weaker_journal_is_caught(mutation: Mutation) -> None:
    def crash_everywhere() -> None:
        for seed in range(6):
            crash(seed, check_life_goes_on, every=2, seeds=2)

    with mutation.installed(), pytest.raises((PromiseBroken, AssertionError)):
        crash_everywhere()
