# The promises of a group's markers after every crash there is. Law: what was committed durably is not
# undone, nothing is skipped that was not committed, no crash is taken for rot; and each way to weaken
# the barrier is caught.

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from diskq.engine.log.committed_offset import joint_barrier
from diskq.engine.log.sync import Sync
from diskq.engine.stream.committed_offset import GroupOffset
from diskq.testing import CrashFS
from tests.crash.harness import PromiseBroken, Report, enumerate_cuts, run_cuts
from tests.crash.mutations import Mutation
from tests.engine.offsets import disk, group, open_offset, read
from tests.sampling import stride

PARTITIONS = 2


@dataclass
class Promises:
    """By partition, what a marker may say: what is durable, then what was committed since, in order."""

    said: list[list[int | None]] = field(default_factory=lambda: [[None] for _ in range(PARTITIONS)])

    def committed(self, partition: int, offset: int | None) -> None:
        """Noted before the act."""
        self.said[partition].append(offset)

    def durable(self, partition: int, offset: int | None) -> None:
        """Noted when it was promised: what was committed before it is never seen again."""
        said = self.said[partition]
        assert offset in said, "undone, or never committed"
        del said[: len(said) - 1 - said[::-1].index(offset)]


class Session:
    """A group at work on both partitions, and the promises it makes."""

    def __init__(self, fs: CrashFS, promises: Promises) -> None:
        self.fs = fs
        self.promises = promises
        self.group = group(fs)
        self.claims = [self.group.claim(partition) for partition in range(PARTITIONS)]
        assert None not in self.claims
        self.committed_offsets = [
            self.group.committed_offset(partition, sync_every=4) for partition in range(PARTITIONS)
        ]

    def commit(self, rng: random.Random, *, seek: bool = False) -> None:
        committed_offset = rng.choice(self.committed_offsets)
        before = -1 if committed_offset.committed is None else committed_offset.committed
        offset = rng.randrange(before + 1) if seek and before >= 0 else before + rng.randrange(1, 300)
        self.promises.committed(committed_offset.partition, offset)
        committed_offset.commit(offset, seek=seek)
        self.note(committed_offset)

    def forget(self, rng: random.Random) -> None:
        committed_offset = rng.choice(self.committed_offsets)
        self.promises.committed(committed_offset.partition, None)
        committed_offset.commit(None, seek=True)
        self.note(committed_offset)

    def sync(self, rng: random.Random) -> None:
        committed_offset = rng.choice(self.committed_offsets)
        committed_offset.sync()
        self.note(committed_offset)

    def sync_together(self, rng: random.Random) -> None:
        """As a channel does it: commits go on while a thread pays."""
        prepared: list[tuple[GroupOffset, Sync]] = []
        for committed_offset in self.committed_offsets:
            if (sync := committed_offset.prepare()) is not None:
                prepared.append((committed_offset, sync))
        for committed_offset in self.committed_offsets:
            offset = (committed_offset.committed or 0) + 1
            self.promises.committed(committed_offset.partition, offset)
            committed_offset.move(offset)
        assert joint_barrier(sync for _, sync in prepared).execute(self.fs)
        for committed_offset, sync in prepared:
            committed_offset.complete(sync, True)
            self.note(committed_offset)

    def wait(self, rng: random.Random) -> None:
        """Mostly it stands still: less than a tick of a kernel's clock passes between two syncs."""
        self.fs.clock += 0.01

    def note(self, committed_offset: GroupOffset) -> None:
        self.promises.durable(committed_offset.partition, committed_offset.durable)

    def close(self) -> None:
        for committed_offset, claim in zip(self.committed_offsets, self.claims, strict=True):
            committed_offset.close()
            assert claim is not None
            claim.release()
            self.note(committed_offset)


ACTS: list[Callable[[Session, random.Random], None]] = [
    Session.commit,
    functools.partial(Session.commit, seek=True),
    Session.forget,
    Session.sync,
    Session.sync_together,
    Session.wait,
]


def lifetimes(seed: int, sessions: int = 3, acts: int = 12) -> Callable[[CrashFS, Promises], None]:
    """A workload: a group opened, used at random and closed, a few times over."""

    def workload(fs: CrashFS, promises: Promises) -> None:
        rng = random.Random(seed)
        for partition in range(PARTITIONS):
            fs.make_directory_durably(f"/s/parts/{partition:06d}")
        for _ in range(sessions):
            session = Session(fs, promises)
            for _ in range(acts):
                rng.choices(ACTS, [8, 1, 0.3, 3, 2, 0.5])[0](session, rng)
            session.close()

    return workload


def check(outcome: str, fs: CrashFS, promises: Promises) -> None:
    for partition, said in enumerate(promises.said):
        passing_by = read(fs, partition)
        assert passing_by is None or passing_by.repair is None, "a crash is no rot"
        with open_offset(fs, partition) as committed_offset:
            assert committed_offset.repairs == (), "a crash is no rot"
            assert committed_offset.committed == (passing_by.offset if passing_by else None)
            assert committed_offset.committed in said, "undone, or never committed"


def _run(workload: Callable[[CrashFS, Promises], None], fs: CrashFS) -> None:
    workload(fs, Promises())


def crash(seed: int, **options: Any) -> Report:
    return run_cuts(lifetimes(seed), check, witness=Promises, **options)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_the_power_interrupts_the_promises_hold(seed: int) -> None:
    report = crash(seed, every=stride(1))
    assert report.cuts > 100 // stride(1)


def test_that_is_a_thousand_cuts_and_four_outcomes_each() -> None:
    cuts = 0
    for seed in range(8):
        workload = lifetimes(seed)
        cuts += enumerate_cuts(functools.partial(_run, workload)) + 1
    assert cuts >= 1000


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, 2])
def test_opening_may_be_interrupted_too(seed: int) -> None:
    crash(seed, again=2, every=2)


def test_a_group_that_goes_on_after_each_of_many_power_cuts_never_falls_behind() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        fs = disk()
        promises = Promises()
        for _ in range(12):
            session = Session(fs, promises)
            for _ in range(rng.randrange(4)):
                rng.choice([Session.commit, Session.sync])(session, rng)
            fs = fs.crash(rng) if rng.random() < 0.5 else fs.kill()
            check("either", fs, promises)


# --- do they bite? ------------------------------------------------------------------------------

BARRIER = "diskq.storage.barrier"
OFFSETS = "diskq.engine.log.committed_offset"

MUTATIONS = [
    # An fsync left out: of the marker before its name, of the shadow copy before the next marker.
    Mutation(BARRIER, "fs.sync_files((handle,))\n        finally", "pass\n        finally"),
    Mutation(OFFSETS, "if self._is_shadow_unsynced and self._shadow >= 0 else ()", "if False else ()"),
    Mutation(OFFSETS, "self._is_shadow_unsynced = True\n        write_all", "write_all"),
    # A directory's fsync left out.
    Mutation(BARRIER, "for path in self.directories:", "for path in self.directories[1:]:"),
    Mutation(BARRIER, "for path in self.directories:", "for path in self.directories[:-1]:"),
    Mutation(BARRIER, "self._sync_directory(fs, directory)", "pass"),
    Mutation(OFFSETS, "directories=dict.fromkeys(above)", "directories={}"),
    # The rename left out, or the bytes.
    Mutation(BARRIER, "fs.rename(temporary, replacement.path)", "pass"),
    Mutation(
        BARRIER, "write_all(fs, handle, replacement.content, 0)\n            fs", "pass\n            fs"
    ),
    # More promised than was paid for.
    Mutation(OFFSETS, "self.durable = sync.state", "self.durable = self.committed"),
    # What tells rot from a crash.
    Mutation(
        OFFSETS,
        "and shadow.stamp == stamp:",
        "and shadow.stamp.modified_ns == (stamp and stamp.modified_ns):",
    ),
    Mutation(OFFSETS, "and shadow.stamp == stamp:", "and True:"),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_weaker_committed_offset_is_caught(mutation: Mutation) -> None:
    def crash_everywhere() -> None:
        for seed in range(8):
            crash(seed, again=1)

    with mutation.installed(), pytest.raises((PromiseBroken, AssertionError)):
        crash_everywhere()
