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

from diskq.testing import CrashFS
from tests.crash import test_priority as priority
from tests.crash.harness import Report, enumerate_cuts, run_cuts
from tests.crash.redo_logs import KINDS, Promises, check, lifetimes
from tests.sampling import IS_FULL

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


@pytest.mark.parametrize("kind, seed", CASES)
def test_no_synced_message_is_lost_whatever_the_power_interrupts(kind: str, seed: int) -> None:
    crash(kind, seed, every=1 if IS_FULL else SAMPLE)


@pytest.mark.parametrize("kind, seed", [(kind, seed + 50) for kind in KINDS for seed in range(3)])
def test_recovery_may_be_interrupted_too(kind: str, seed: int) -> None:
    crash(kind, seed, every=4 if IS_FULL else 2 * SAMPLE, again=3)


def test_that_is_twenty_thousand_cut_points() -> None:
    cuts = {kind: sum(cut_points(kind, seed) for seed in seeds) for kind, seeds in SEEDS.items()}
    assert sum(cuts.values()) >= 20_000, cuts
    assert min(cuts.values()) >= 4_000, cuts
