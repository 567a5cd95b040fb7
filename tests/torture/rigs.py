# The ways to die. Law: each rig does one thing to one system, so many times, from one seed, and counts.

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from tests.torture.disk import DiskModel, Files, Model, acts_of, files_in, write_files
from tests.torture.judging import Tally, judge
from tests.torture.systems import System
from tests.torture.tracing import CHANGING, Call, Ran, Tamed, calls_of

__all__ = ["RIGS", "Bench", "RecorderError", "record"]

COUNT = 24
"""Messages in a run: over one file's bytes."""
AGAIN = 1000
"""The numbers of a second process begin here."""
MORE = 4


class RecorderError(AssertionError):
    """What was recorded is not what is on the disk."""


class Bench:
    """One system, a tamed process of it, and room for its directories."""

    def __init__(self, system: System, place: str, room: Path, depth: int, seed: int) -> None:
        """`place`: its name in the table, or MODULE:NAME. `depth`: so many cases of each kind at most."""
        self.system = system
        self.place = place
        self.depth = depth
        self.random = random.Random(f"{seed} {system.name}")
        self.room = room
        self.tamed = Tamed(place, room)
        self._numbers = 0

    def directory(self) -> Path:
        made = self.path()
        made.mkdir()
        return made

    def path(self) -> Path:
        self._numbers += 1
        return self.room / f"case-{self._numbers}"

    def some(self, cases: list[Case]) -> list[Case]:
        """At most `depth` of them, spread evenly."""
        if len(cases) <= self.depth:
            return cases
        return [cases[at * len(cases) // self.depth] for at in range(self.depth)]

    def read(self, directory: Path, *, restarted: bool = False, limit: int = 20) -> Ran:
        try:
            return self.tamed.consume(directory, restarted=restarted, limit=limit)
        finally:
            shutil.rmtree(directory)

    def and_again(
        self,
        tally: Tally,
        directory: Path,
        said: list[tuple[str, str]],
        where: str,
        *,
        restarted: bool = False,
    ) -> None:
        """A second process puts some more, and closes: most of what is lost by others is lost here."""
        ran = self.tamed.produce(directory, AGAIN, MORE, restarted=restarted)
        tried = [*range(COUNT), *range(AGAIN, AGAIN + MORE)]
        judge(tally, said + ran.said, self.read(directory), tried, f"{where}, and {MORE} more")


class Case(NamedTuple):
    """The n-th call of this name, in whichever thread makes so many first."""

    call: str
    nth: int
    take_every: int
    error: str = ""

    def __str__(self) -> str:
        takes = f", taking one of {self.take_every}" if self.take_every else ""
        return f"{self.error or 'killed'} at {self.call} {self.nth}{takes}"


# --- the calls of a run -----------------------------------------------------------------------------


def record(bench: Bench, take_every: int = 0) -> tuple[list[Call], Path]:
    """The system calls of one whole run, and the directory that it left."""
    directory, log = bench.directory(), bench.room / "strace"
    ran = bench.tamed.produce(directory, 0, COUNT, take_every=take_every, log=log)
    if ran.status != 0:
        raise RecorderError(f"{bench.system.name} ended with {ran.status}: {ran.said[-3:]}")
    return calls_of(log), directory


def _points(bench: Bench, names: Iterable[str], take_every: int) -> list[Case]:
    """Each call below the directory, as the n-th of its name in its thread."""
    calls, directory = record(bench, take_every)
    wanted = frozenset(names)
    hexed = "".join(f"\\x{byte:02x}" for byte in str(directory).encode())
    counted: dict[tuple[int, str], int] = {}
    found: dict[Case, None] = {}
    for call in calls:
        nth = counted[call.thread, call.name] = counted.get((call.thread, call.name), 0) + 1
        if call.name in wanted and (hexed in call.arguments or hexed in call.tail):
            found[Case(call.name, nth, take_every)] = None
    shutil.rmtree(directory)
    return list(found)


def _ways(bench: Bench) -> list[int]:
    """Puts alone and, where messages can be taken, with takes."""
    return [0, 3] if bench.system.takes else [0]


# --- the rigs ---------------------------------------------------------------------------------------


def kill(bench: Bench) -> Tally:
    """SIGKILL instead of the n-th system call, and at any time; read then, and after a second process."""
    tally = Tally()
    for take_every in _ways(bench):
        for case in bench.some(_points(bench, CHANGING, take_every)):
            inject = f"{case.call}:signal=SIGKILL:when={case.nth}"
            directory = bench.directory()
            ran = bench.tamed.produce(directory, 0, COUNT, take_every=take_every, inject=inject)
            _kill_judged(bench, tally, directory, ran, COUNT, str(case))
    for number in range(bench.depth // 4):
        directory = bench.directory()
        ran = bench.tamed.produce(directory, 0, AGAIN, kill_after=bench.random.uniform(0, 0.03))
        _kill_judged(bench, tally, directory, ran, AGAIN, f"killed at any time, run {number}")
    return tally


def _kill_judged(bench: Bench, tally: Tally, directory: Path, ran: Ran, count: int, where: str) -> None:
    copy = bench.path()
    shutil.copytree(directory, copy)
    judge(tally, ran.said, bench.read(directory), range(count), where)
    again = bench.tamed.produce(copy, AGAIN, MORE)
    tried = [*range(count), *range(AGAIN, AGAIN + MORE)]
    judge(tally, ran.said + again.said, bench.read(copy), tried, f"{where}, and {MORE} more")


def _power(bench: Bench, model: Model) -> Tally:
    tally = Tally()
    for take_every in _ways(bench):
        calls, directory = record(bench, take_every)
        acts = acts_of(calls, directory)
        disk_model = DiskModel(acts, model)
        _check_recorder(disk_model.at(len(acts), None), files_in(directory))
        shutil.rmtree(directory)
        cuts = disk_model.cuts()
        seen: set[object] = set()
        for number in range(bench.depth * 4):
            cut = cuts[number * 7919 % len(cuts)]
            rng = random.Random(f"{bench.random.random()} {cut}")
            files, said = disk_model.at(cut, rng), disk_model.said(cut)
            state = (tuple(sorted(files.items(), key=lambda item: item[0])), tuple(said))
            if state in seen:
                continue
            seen.add(state)
            where = f"power cut before act {cut} of {len(acts)}, taking {take_every}, disk {number}"
            _power_judged(bench, tally, files, said, where, is_twice=number % 4 == 0)
    return tally


def _power_judged(
    bench: Bench, tally: Tally, files: Files, said: list[tuple[str, str]], where: str, *, is_twice: bool
) -> None:
    directory = bench.path()
    write_files(directory, files)
    if is_twice:
        bench.and_again(tally, directory, said, where, restarted=True)
    else:
        judge(tally, said, bench.read(directory, restarted=True), range(COUNT), where)


def _check_recorder(replayed: Files, real: Files) -> None:
    """All of what was recorded makes what is there. What is stored into shared memory is not recorded."""
    for path in replayed.keys() | real.keys():
        if path.endswith(("-shm", ".wal", ".status")):
            continue
        if replayed.get(path, b"not there") != real.get(path, b"not there"):
            raise RecorderError(f"{path} is not what was recorded")


def power(bench: Bench) -> Tally:
    """The power fails at any call, on a file system with a journal."""
    return _power(bench, "journal")


def posix(bench: Bench) -> Tally:
    """The power fails at any call, on a file system that does no more than POSIX says."""
    return _power(bench, "posix")


_ERRORS = {
    "EIO": ("write", "pwrite64", "fsync", "fdatasync"),
    "ENOSPC": ("write", "pwrite64", "openat", "ftruncate", "fallocate", "mkdir", "rename", "link"),
    "EMFILE": ("openat",),
}


def errors(bench: Bench) -> Tally:
    """The n-th call fails: EIO, ENOSPC or EMFILE. Whoever put is told, and nothing partial stays."""
    tally = Tally()
    points = _points(bench, CHANGING, 0)
    cases = [
        case._replace(error=error)
        for error, names in _ERRORS.items()
        for case in points
        if case.call in names
    ]
    for case in bench.some(cases):
        directory = bench.directory()
        inject = f"{case.call}:error={case.error}:when={case.nth}"
        ran = bench.tamed.produce(directory, 0, COUNT, inject=inject)
        is_told = ran.status != 0 or any(word in "fx" for word, _ in ran.said)
        if case.call in ("fsync", "fdatasync") and not is_told:
            tally.unreported += 1
            tally.tell(f"{case}: the failure was not reported")
        tally.hung += ran.hung or ran.crashed
        if is_told and case.nth % 2:
            bench.and_again(tally, directory, ran.said, str(case))
        else:
            judge(tally, ran.said, bench.read(directory), range(COUNT), str(case))
    return tally


def rot(bench: Bench) -> Tally:
    """A byte is another one, or a file ends early, after a clean close."""
    tally = Tally()
    directory = bench.directory()
    ran = bench.tamed.produce(directory, 0, COUNT)
    files = files_in(directory)
    shutil.rmtree(directory)
    places = [(path, at) for path, content in files.items() for at in range(len(content or b""))]
    chosen = [places[at * len(places) // (bench.depth * 2)] for at in range(bench.depth * 2)]
    for number, (path, at) in enumerate(chosen):
        content = files[path] or b""
        if number % 4 == 3:
            damaged, where = content[:at], f"{path} ends at byte {at}"
        else:
            mask = (0xFF, 0x01, 0x80)[number % 4]
            damaged = content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]
            where = f"byte {at} of {path} changed by {mask:#04x}"
        place = bench.path()
        write_files(place, {**files, path: damaged})
        judge(tally, ran.said, bench.read(place, limit=5), range(COUNT), where, tells_losses=False)
    return tally


def owners(bench: Bench) -> Tally:
    """Two processes open it and put at the same time: what each was told is in, is in."""
    tally = Tally()
    with Tamed(bench.place, bench.room) as other:
        for number in range(max(2, bench.depth // 8)):
            directory = bench.directory()
            # It is there before they come: who makes it is another question.
            made = bench.tamed.produce(directory, 2 * AGAIN, 1)
            one = bench.tamed.begin(directory, 0, COUNT * 4)
            two = other.begin(directory, AGAIN, COUNT * 4)
            said = made.said + bench.tamed.end(one).said + other.end(two).said
            tried = [*range(COUNT * 4), *range(AGAIN, AGAIN + COUNT * 4), 2 * AGAIN]
            where = f"two at once, run {number}"
            judge(tally, said, bench.read(directory), tried, where, is_ordered=False)
    return tally


def clock(bench: Bench) -> Tally:
    """The wall clock is set, by hours and by days, forth and back, before each look at it."""
    tally = Tally()
    for number in range(max(2, bench.depth // 8)):
        directory = bench.directory()
        ran = bench.tamed.produce(directory, 0, COUNT, steps=True)
        bench.and_again(tally, directory, ran.said, f"clock set, run {number}")
    return tally


RIGS: dict[str, Callable[[Bench], Tally]] = {
    "kill": kill,
    "power": power,
    "posix": posix,
    "errors": errors,
    "rot": rot,
    "owners": owners,
    "clock": clock,
}
