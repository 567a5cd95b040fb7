# The promises of `synced` messages that are durable in the redo log alone, after every crash there is. Law:
# no message is lost or altered, no open is refused, nothing that was consumed durably comes back, and
# nothing is reported that is not damage: whatever part of the log and of the files a power cut leaves, and
# wherever recovery is interrupted; and each way to weaken this is caught.
#
# DISKQ_EVERY_FAULT=1 tries all of the more than 20,000 cut points, which takes half an hour; without it, a
# sample.

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from diskq.engine.log import redo, writer
from diskq.engine.queue import recovery as queue_recovery
from diskq.errors import DiskqError
from diskq.storage import append_file
from diskq.storage.log import replay
from diskq.testing import CrashFS
from tests.crash import test_priority as priority
from tests.crash.harness import PromiseBroken, Report, enumerate_cuts, run_cuts
from tests.crash.mutations import Mutation
from tests.crash.redo_logs import KINDS, Promises, check, check_after_a_peer, lifetimes
from tests.sampling import IS_EXHAUSTIVE, IS_FULL

pytestmark = pytest.mark.usefixtures("quiet_log")

# The priority store has no redo log: its command log is one.
SEEDS = {"queue": range(9), "stream": range(5), "journal": range(10), "priority": range(100, 105)}
CASES = [(kind, seed) for kind, seeds in SEEDS.items() for seed in seeds]
SAMPLE = 60


def workload(kind: str, seed: int) -> tuple[Callable[[CrashFS, Any], None], Callable[..., None], type]:
    if kind == "priority":
        return priority.lifetimes(seed, acts=60), priority.check, priority.Promises
    return lifetimes(KINDS[kind], seed), check(KINDS[kind]), Promises


def crash(kind: str, seed: int, **how: Any) -> Report:
    work, judge, promises = workload(kind, seed)
    return run_cuts(work, judge, witness=promises, **how)


def cut_points(kind: str, seed: int) -> int:
    work, _, promises = workload(kind, seed)
    return enumerate_cuts(functools.partial(_run, work, promises)) + 1


def _run(work: Callable[[CrashFS, Any], None], promises: type, fs: CrashFS) -> None:
    work(fs, promises())


@pytest.mark.sampled
@pytest.mark.parametrize("kind, seed", CASES)
def test_no_synced_message_is_lost_whatever_the_power_interrupts(kind: str, seed: int) -> None:
    crash(kind, seed, every=1 if IS_FULL else SAMPLE if IS_EXHAUSTIVE else 2 * SAMPLE)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind, seed", [(kind, seed + 50) for kind in KINDS for seed in range(3)])
def test_recovery_may_be_interrupted_too(kind: str, seed: int) -> None:
    crash(kind, seed, every=4 if IS_FULL else 2 * SAMPLE, again=3)


@pytest.mark.sampled
@pytest.mark.parametrize("kind, seed", [(kind, seed) for kind in KINDS for seed in range(4)])
def test_what_an_open_finds_after_another_program_is_durable(kind: str, seed: int) -> None:
    """The program that the format is from appends to the files of a killed process, and syncs only that."""
    judge = check_after_a_peer(KINDS[kind])
    every = 1 if IS_FULL else 20 if IS_EXHAUSTIVE else 60
    run_cuts(lifetimes(KINDS[kind], seed), judge, witness=Promises, seeds=0, every=every)


def test_that_is_twenty_thousand_cut_points() -> None:
    cuts = {kind: sum(cut_points(kind, seed) for seed in seeds) for kind, seeds in SEEDS.items()}
    assert sum(cuts.values()) >= 20_000, cuts
    assert min(cuts.values()) >= 4_000, cuts


# --- do they bite? --------------------------------------------------------------------------------


def after_a_peer() -> None:
    for seed in range(4):
        judge = check_after_a_peer(KINDS["queue"])
        run_cuts(lifetimes(KINDS["queue"], seed), judge, witness=Promises, seeds=0)


QUEUE = queue_recovery.__name__
WRITER, REDO = writer.__name__, redo.__name__
REPLAY, APPENDFILE = replay.__name__, append_file.__name__

# What only the log itself can get wrong is in test_redo_log.py.
MUTATIONS = [
    # A sync left out: of the log, of the state that names it, of what replay writes, of a new log.
    Mutation(WRITER, "barrier=Barrier(files=handles)", "barrier=Barrier()"),
    Mutation(REDO, "return (self._state.opened(), log.handle)", "return (log.handle,)"),
    Mutation(REPLAY, "Barrier(files=tuple(self._handles.values())).execute(self._fs)", "pass"),
    Mutation(REPLAY, "            if self._are_synced:", "            if False:", by=("queue", 126)),
    Mutation(REDO, "        pending.files.append(new.handle)\n", ""),
    # The order of clearing it: the state forgets it first, durably.
    Mutation(
        REDO,
        "self._forget()\n                self._empty(self._current.handle)",
        "self._empty(self._current.handle)\n                self._forget()",
    ),
    Mutation(
        REDO,
        "            if self._state.names_redo:\n"
        "                self._forget()\n"
        "            if self._fs.size_of(self.path):\n"
        "                with opened(self._fs, self.path, write=True) as handle:\n"
        "                    self._empty(handle)\n",
        "            if self._fs.size_of(self.path):\n"
        "                with opened(self._fs, self.path, write=True) as handle:\n"
        "                    self._empty(handle)\n"
        "            if self._state.names_redo:\n"
        "                self._forget()\n",
        by=("queue", 2),
    ),
    Mutation(
        REDO,
        "self._state.note_redo(0)\n        self._state.sync()",
        "self._state.note_redo(0)",
    ),
    # Its space is free before the files are durable.
    Mutation(
        WRITER,
        "else self.redo.mark()",
        "else (made := self.redo.mark(), self.redo.release(made))[0]",
    ),
    Mutation(
        REDO, "            append.note_synced(written)\n", "            append.note_synced(append.written)\n"
    ),
    # Records in it that mean nothing without the name of their file.
    Mutation(
        WRITER,
        "            or (in_flight is not None and (redo is None or not in_flight.barrier.is_plain))\n",
        "",
    ),
    Mutation(WRITER, "            or any(self.pending.parts)\n", ""),
    # Another program came after a kill, and synced nothing of it.
    Mutation(
        QUEUE,
        "self.acts.keep((self.files.data(number), self.sizes[number]))",
        "pass",
        by=after_a_peer,
    ),
    # What the replay does: nothing, too little, what is durable or consumed.
    Mutation(REPLAY, "_Replay(fs, source, done, has_run_on=has_run_on).run(content)", "pass"),
    Mutation(
        REPLAY,
        "try:\n            write_all(self._fs, handle, part.content, part.position)",
        "try:\n            pass",
    ),
    Mutation(REPLAY, "if part.kind == CHECKSUMS:", "if False:"),
    Mutation(REPLAY, "if self._is_covered(part.group, part.file, end):", "if False:"),
    Mutation(APPENDFILE, "        self.buffer.close_block()  # its", "        pass  # its"),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_weaker_redo_log_is_caught(mutation: Mutation) -> None:
    def crash_everywhere() -> None:
        if callable(mutation.by):
            mutation.by()
        if isinstance(mutation.by, tuple):
            kind, seed = mutation.by
            crash(kind, seed, every=4, again=2)
        for again, every in ((0, 9), (2, 5)):
            for kind in KINDS:
                for seed in SEEDS[kind][:4]:
                    crash(kind, seed, every=every, again=again, seeds=2)

    with mutation.installed(), pytest.raises((PromiseBroken, AssertionError, DiskqError)):
        crash_everywhere()
