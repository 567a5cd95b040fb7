# Every way for a disk to die. Law: whether the machine was restarted or only the disk went away,
# whatever checksums outlived their data or data its checksums, and whoever opens the files first: no synced
# message is lost, none is altered, no open is refused, and what is missing among the others is reported.
#
# Each power cut is tried with another boot id, with the same one, and on a system that has none; with a part
# of what was not synced, with all checksums and no other unsynced byte, and the reverse. Some are cut again
# during recovery. DISKQ_EVERY_FAULT=1 tries all; without it, a sample.

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from diskq.testing import CrashFS
from tests.crash.harness import enumerate_cuts, pictures
from tests.crash.redo_logs import KINDS, Kind, Promises, lifetimes
from tests.sampling import sampled

pytestmark = pytest.mark.usefixtures("quiet_log")

SEEDS = {"queue": range(3), "stream": range(2), "journal": range(3)}
BOOTS = ("another", "the same", "none")
SHAPES = ("any part", "checksums outlived", "data outlived")
CASES = [(kind, seed, boot) for kind, seeds in SEEDS.items() for seed in seeds for boot in BOOTS]
SAMPLE = 8
AGAIN = 7
"""Each so many-th state is cut again during recovery."""


class Death(NamedTuple):
    cut: int
    boot: str
    shape: str


def after(fs: CrashFS, death: Death) -> CrashFS:
    """The disk as the next process finds it."""
    is_restart = death.boot == "another"
    if death.shape == "any part":
        return fs.crash(random.Random(str(death)), is_restart=is_restart)
    left = fs.copy().crash(is_restart=is_restart)
    for path, content in fs.files().items():
        is_checksums = path.endswith(".sums")
        is_data = path.endswith((".dat", "/data", ".data", ".jnl")) and "meta" not in path
        if left.size_of(path) is None or not (is_checksums or is_data):
            continue
        if is_checksums == (death.shape == "checksums outlived"):
            left.write_durably(path, content)
    return left


def deaths(kind: Kind, seed: int, boot: str) -> Iterator[tuple[Death, CrashFS, Promises]]:
    def workload(fs: CrashFS, promises: Promises) -> None:
        fs.has_boot_id = boot != "none"
        lifetimes(kind, seed)(fs, promises)

    end = enumerate_cuts(lambda fs: workload(fs, Promises())) + 1
    cuts = list(sampled(range(1, end + 1), SAMPLE))
    for cut, fs, seen in pictures(workload, cuts, Promises()):
        for shape in SHAPES:
            death = Death(cut, boot, shape)
            yield death, after(fs, death), seen


def check(kind: Kind, fs: CrashFS, promises: Promises, theirs: list[bytes]) -> list[bytes]:
    repairs, values = kind.values(fs)
    known = {
        one: (group, number)
        for group, messages in promises.attempted.items()
        for number, one in enumerate(messages)
    }
    assert [one for one in values if one not in known and one not in theirs] == [], "altered or invented"
    assert set(theirs) <= set(values), "the peer's are lost"
    last: dict[int, int] = {}
    has_hole = False
    for group, number in (known[one] for one in values if one in known):
        if group in last:
            assert theirs or number > last[group], "out of order"
            has_hole |= number > last[group] + 1
        last[group] = number
    found = set(values)
    for group, messages in promises.attempted.items():
        synced = messages[promises.gone.get(group, 0) : promises.synced.get(group, 0)]
        assert [one for one in synced if one not in found] == [], "lost"
    assert repairs or not has_hole, "silent"
    return values


def judge(kind: Kind, fs: CrashFS, death: Death, promises: Promises, theirs: list[bytes], number: int) -> int:
    """Check one state, and some of them again after a cut of the recovery. Returns how many states."""
    count = 1
    if number % AGAIN == 0:
        whole = fs.copy()
        check(kind, whole, promises, theirs)
        rng = random.Random(f"{death} again")
        first = fs.copy()
        first.cut_at = rng.randint(1, max(1, whole.operations))
        try:
            kind.values(first)
        except BaseException:
            if not first.is_cut:
                raise
        again = first.crash(rng, is_restart=death.boot == "another")
        check(kind, again, promises, theirs)
        count += 1
    check(kind, fs, promises, theirs)
    return count


@pytest.mark.parametrize("name, seed, boot", CASES)
def test_nothing_is_lost_altered_refused_or_silent(name: str, seed: int, boot: str) -> None:
    kind = KINDS[name]
    for number, (death, fs, seen) in enumerate(deaths(kind, seed, boot)):
        if name == "queue":
            fs.make_directory_durably("/q")
        try:
            judge(kind, fs, death, seen, [], number)
        except Exception as failure:
            raise AssertionError(f"{name} {seed} {death}: {failure}") from failure


def cut_points(name: str, seed: int) -> int:
    work = lifetimes(KINDS[name], seed)
    return enumerate_cuts(lambda fs: work(fs, Promises())) + 1


def test_that_is_twenty_five_thousand_states() -> None:
    cuts = sum(cut_points(name, seed) for name, seeds in SEEDS.items() for seed in seeds)
    assert cuts * len(BOOTS) * len(SHAPES) >= 25_000
