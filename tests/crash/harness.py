# Every crash there is. Law: the power may fail instead of any operation, and once more while the next
# process recovers; whatever was promised by then holds.
#
# After a power cut the next process finds another boot id; or the same one, as if the disk alone had gone
# away; or there is none, before and after it. What was not synced may then be missing anywhere, and is
# reported.
#
# `run_cuts` knows no engine. A workload does something on a CrashFS and writes down in its witness what
# it was promised, the moment it is; a check reopens what the crash left and insists on it:
#
#     def workload(fs, witness):
#         fs.make_directory_durably("/q")
#         with Queue("/q", "events", fs=fs) as queue:
#             witness.attempted.append(b"one")
#             queue.put(b"one", durability="synced")
#             witness.synced.append(b"one")
#
#     def check(outcome, fs, witness):
#         with Queue("/q", "events", fs=fs) as queue:
#             assert queue.peek_many(10)[: len(witness.synced)] == witness.synced
#
#     run_cuts(workload, check)
#
# The workload is run once to count its operations, once with a picture taken of the disk and the witness
# before each cut, and once more to repeat a crash: it must do the same each time. No clock but the disk's,
# and no randomness without a seed.

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from diskq.testing import CrashFS

__all__ = [
    "ANOTHER",
    "CAME_BACK",
    "NONE",
    "SAME",
    "Crash",
    "PromiseBroken",
    "Report",
    "Witness",
    "enumerate_cuts",
    "outcomes",
    "pictures",
    "repeat",
    "run_cuts",
]

KILL = "kill"
POWER_CUT = "power cut"
CAME_BACK = "the disk came back"
"""A power cut after which the boot id is the same, or there is none."""

ANOTHER, SAME, NONE = BOOTS = ("another", "the same", "none")
"""The boot id that the next process finds after a power cut. All suites try each."""

_JOURNAL_LINES = 8

Workload = Callable[[CrashFS, Any], object]
Check = Callable[[str, CrashFS, Any], object]
"""Called with KILL, POWER_CUT or CAME_BACK, the disk after that, and the witness, which it only reads."""


@dataclass(slots=True)
class Witness:
    """What the workload knows to be true. Any other object will do: give `run_cuts` its class."""

    attempted: list[Any] = field(default_factory=list)
    """Noted before each act: may be there."""
    acknowledged: list[Any] = field(default_factory=list)
    """Noted when the act returned: there after a kill."""
    synced: list[Any] = field(default_factory=list)
    """Noted when durability was promised: there after everything."""
    consumed: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Crash:
    """One way to die, exactly."""

    cut: int
    """The power fails instead of this operation; if there are fewer, at the end."""
    outcome: str
    seed: int | None = None
    """Of a power cut."""
    again: int | None = None
    """The power fails once more instead of this operation of the check."""
    boot: str = ANOTHER

    def __str__(self) -> str:
        words = [f"cut={self.cut}", f"outcome={self.outcome!r}"]
        words += [f"seed={self.seed}"] if self.seed is not None else []
        words += [f"again={self.again}"] if self.again is not None else []
        words += [f"boot={self.boot!r}"] if self.boot != ANOTHER else []
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Report:
    """What was tried, all of it with success."""

    operations: int
    """Of the whole workload."""
    cuts: int
    crashes: int


class PromiseBroken(AssertionError):
    """A check failed; `crash` says after what."""

    def __init__(self, message: str, crash: Crash) -> None:
        super().__init__(message)
        self.crash = crash


def enumerate_cuts(workload: Callable[[CrashFS], object]) -> int:
    """How many operations the workload makes when the power stays on."""
    fs = CrashFS()
    workload(fs)
    return fs.operations


def outcomes(fs: CrashFS, seeds: Iterable[int]) -> Iterator[tuple[str, CrashFS]]:
    """The disk as the next process may find it: after a kill, and after one power cut for each seed."""
    yield KILL, fs.kill()
    for seed in seeds:
        yield POWER_CUT, _after(fs, POWER_CUT, seed, ANOTHER)


def run_cuts(
    workload: Workload,
    check: Check,
    *,
    every: int = 1,
    seeds: int = 3,
    limit: int | None = None,
    again: int = 0,
    witness: Callable[[], Any] = Witness,
) -> Report:
    """Cut the workload before each operation and at its end, and check every outcome.

    `every` takes each so many-th cut only, `limit` so many at most, spread evenly; the end is always
    among them. `seeds` is the number of power cuts for each, of which each has another of the `BOOTS`: so
    three or more try all of them. `again` crashes so many of the checks themselves, at random operations,
    and checks what that left; such a check must leave in the store what it found, so that it can be made
    again.

    Raises PromiseBroken at the first check that fails.
    """
    operations = enumerate_cuts(lambda fs: workload(fs, witness()))
    end = operations + 1
    cuts = list(range(1, end, every))
    if limit is not None and len(cuts) >= limit:
        cuts = [cuts[number * len(cuts) // (limit - 1)] for number in range(limit - 1)]
    cuts.append(end)

    crashes = 0
    for has_boot_id in (True, False):
        tried = {cut: _crashes(number, cut, seeds, has_boot_id) for number, cut in enumerate(cuts)}
        needed = [cut for cut in cuts if cut == end or tried[cut]]
        for cut, fs, seen in pictures(workload, needed, witness(), has_boot_id=has_boot_id):
            for crash in tried[cut]:
                checked = _check(workload, check, fs, crash, seen)
                crashes += 1
                choices = range(1, checked.operations + 1)
                for second in random.Random(str(crash)).sample(choices, min(again, len(choices))):
                    _check(workload, check, fs, replace(crash, again=second), seen)
                    crashes += 1
    return Report(operations, len(cuts), crashes)


def _crashes(number: int, cut: int, seeds: int, has_boot_id: bool) -> list[Crash]:
    """The crashes that are tried at this cut, one of many, on a system with boot ids, or on one without."""
    kill = Crash(cut, KILL, boot=NONE if number % 3 == 2 else ANOTHER)
    power_cuts = [Crash(cut, POWER_CUT, seed, boot=BOOTS[(number + seed) % 3]) for seed in range(seeds)]
    return [crash for crash in (kill, *power_cuts) if (crash.boot != NONE) == has_boot_id]


def repeat(
    workload: Workload,
    check: Check,
    *,
    cut: int,
    outcome: str,
    seed: int | None = None,
    again: int | None = None,
    boot: str = ANOTHER,
    witness: Callable[[], Any] = Witness,
) -> None:
    """One crash of `run_cuts` once more, as its failure names it. Raises PromiseBroken."""
    seen = witness()
    fs = _run(workload, cut, seen, has_boot_id=boot != NONE)
    _check(workload, check, fs, Crash(cut, outcome, seed, again, boot), seen)


class _Camera(CrashFS):
    """Takes pictures: of itself, as it would be had the power failed, and of what the witness has seen."""

    def __init__(self, cuts: Iterable[int], witness: Any) -> None:
        super().__init__()
        self._cuts = frozenset(cuts)
        self._witness = witness
        self.pictures: list[tuple[int, CrashFS, Any]] = []

    def _count(self, verb: str, path: str, more: str = "") -> None:
        if self.operations + 1 in self._cuts:
            self.take(self.operations + 1, (verb, path, more))
        super()._count(verb, path, more)

    def take(self, cut: int, instead: tuple[str, str, str] | None = None) -> None:
        shadow = self.copy()
        shadow.operations, shadow.is_cut = self.operations, instead is not None
        shadow._log = self._log.copy()
        if instead is not None:
            shadow.operations += 1
            shadow._log.append(instead)
        self.pictures.append((cut, shadow, deepcopy(self._witness)))


def pictures(
    workload: Workload, cuts: list[int], witness: Any, *, has_boot_id: bool = True
) -> list[tuple[int, CrashFS, Any]]:
    """For each cut the disk, and what the workload had seen by then. The last one is the end."""
    camera = _Camera(cuts, witness)
    camera.has_boot_id = has_boot_id
    workload(camera, witness)
    camera.take(cuts[-1])
    return camera.pictures


def _run(workload: Workload, cut: int, witness: Any, *, has_boot_id: bool) -> CrashFS:
    fs = CrashFS(cut_at=cut)
    fs.has_boot_id = has_boot_id
    _until_the_power_fails(fs, lambda: workload(fs, witness))
    return fs


def _until_the_power_fails(fs: CrashFS, act: Callable[[], object]) -> None:
    try:
        act()
    except KeyboardInterrupt:
        raise
    except BaseException:
        # A dead process's last words mean nothing, in whatever group they come.
        if not fs.is_cut:
            raise


def _after(fs: CrashFS, outcome: str, seed: int | None, boot: str) -> CrashFS:
    if outcome == KILL:
        return fs.kill()
    # Not the seed alone: each cut would draw the same numbers, and meet its files in the same way.
    return fs.crash(random.Random(f"{fs.operations} {seed}"), is_restart=boot != SAME)


def _check(workload: Workload, check: Check, fs: CrashFS, crash: Crash, witness: Any) -> CrashFS:
    """Reopen after the crash, and insist. Returns the disk as the check left it."""
    outcome, after = crash.outcome, _after(fs, crash.outcome, crash.seed, crash.boot)
    power_cut = POWER_CUT if crash.boot == ANOTHER else CAME_BACK
    if outcome == POWER_CUT:
        outcome = power_cut
    between: list[str] = []
    if crash.again is not None:
        after.cut_at = crash.again
        _until_the_power_fails(after, lambda: check(outcome, after, witness))
        second = random.Random(str(crash)).choice((KILL, POWER_CUT))
        between = [f"... {outcome}, and in the next process:", *after.journal, f"... {second}"]
        after = _after(after, second, crash.seed, crash.boot)
        # The page cache is gone, whichever of the two took it.
        final = power_cut if POWER_CUT in (crash.outcome, second) else KILL
    else:
        final = outcome
    try:
        check(final, after, witness)
    except (Exception, pytest.fail.Exception) as broken:
        who = f"{workload.__name__}, {check.__name__}"
        journal = [*(fs.journal[-1:] if between else fs.journal), *between]
        last = "\n    ".join(journal[-_JOURNAL_LINES:])
        message = f"{broken}\n  the disk's last operations:\n    {last}\n  again: repeat({who}, {crash})"
        raise PromiseBroken(message, crash) from broken
    return after
