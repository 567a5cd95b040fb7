# The promises of a journal's readers after every crash there is. Law: what was committed durably is not
# undone, nothing is skipped that was not committed, nor what a power cut takes and is then written again.

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from diskq.engine.journal import steps as engine
from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader_offset import JournalCommittedOffset, read_journal_offset
from diskq.options import JournalOptions
from diskq.testing import CrashFS
from tests.crash.harness import CAME_BACK, KILL, PromiseBroken, run_cuts
from tests.crash.mutations import Mutation
from tests.engine.journals import ROOT, stored

pytestmark = pytest.mark.usefixtures("quiet_log")


@dataclass
class Promises:
    """What the offset may say: what is durable, then what was committed since, in order."""

    said: list[int] = field(default_factory=lambda: [0])

    def durable(self, offset: int) -> None:
        """Noted when it was promised: what was committed before it is never seen again."""
        del self.said[: self.said.index(offset)]


def lifetimes(seed: int) -> Callable[[CrashFS, Promises], None]:
    """A workload: a journal written, and read by somebody who is at times ahead of what is synced."""

    def workload(fs: CrashFS, promises: Promises) -> None:
        rng = random.Random(seed)
        for _ in range(2):
            with (
                Journal(ROOT, options=JournalOptions(segment_size=400), fs=fs) as journal,
                JournalCommittedOffset(ROOT, "reader", fs=fs, sync_every=20) as mine,
            ):
                for _ in range(7):
                    journal.append_many([b"%04d" % rng.randrange(10_000)] * rng.randrange(1, 6))
                    if rng.random() < 0.3:
                        journal.sync()
                    offset = rng.randrange(mine.offset, journal.next_offset + 1)
                    if offset > promises.said[-1]:
                        promises.said.append(offset)
                        mine.commit_to(offset)
                        promises.durable(mine.durable if mine.durable in promises.said else promises.said[0])
                    if rng.random() < 0.3:
                        mine.sync()
                        promises.durable(promises.said[-1])
            promises.durable(promises.said[-1])

    return workload


def check(outcome: str, fs: CrashFS, promises: Promises) -> None:
    with Journal(ROOT, fs=fs) as journal:
        next_offset = journal.next_offset
        if outcome != CAME_BACK:
            assert len(stored(fs)) == next_offset
    told = read_journal_offset(ROOT, "reader", fs=fs)
    with JournalCommittedOffset(ROOT, "reader", fs=fs) as mine:
        assert told is None or told.offset in (None, mine.offset)
        is_said = mine.offset in promises.said
        is_set_back = mine.offset == next_offset and next_offset < max(promises.said) and outcome != KILL
        assert is_said or is_set_back, "undone, skipped or never committed"
        assert mine.repairs == (), "the journal's writer has seen to it"


@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_power_interrupts_the_promises_hold(seed: int) -> None:
    assert run_cuts(lifetimes(seed), check, witness=Promises, every=3).cuts > 50


def test_opening_may_be_interrupted_too() -> None:
    run_cuts(lifetimes(3), check, witness=Promises, limit=15, again=2, seeds=2)


@pytest.mark.parametrize(
    "mutation",
    [
        Mutation(engine.__name__, "writer.repairs += set_back(fs, files, found.next_offset)", "pass"),
        Mutation(
            "diskq.storage.barrier", "fs.sync_files((handle,))\n        finally", "pass\n        finally"
        ),
        Mutation(
            "diskq.engine.log.committed_offset",
            "self.durable = sync.state",
            "self.durable = self.committed + 1",
        ),
    ],
    ids=str,
)
def test_a_weaker_offset_is_caught(mutation: Mutation) -> None:
    def crash_everywhere() -> None:
        for seed in range(6):
            run_cuts(lifetimes(seed), check, witness=Promises, every=2)

    with mutation.installed(), pytest.raises((PromiseBroken, AssertionError, TypeError)):
        crash_everywhere()
