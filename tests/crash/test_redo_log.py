# The redo log alone, after every power cut there is. Law: an entry that was synced and is still needed is
# read, as it was written; no other bytes are ever read as an entry; and what a power cut can do is never
# reported as damage.

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from diskq.storage import redo_log
from diskq.storage.log import format as log_format
from diskq.storage.log.entries import CHECKSUMS, DATA, Part
from diskq.storage.log.format import read_redo
from diskq.storage.redo_log import RedoLog
from diskq.testing import CrashFS
from tests.crash.harness import KILL, PromiseBroken, Report, run_cuts
from tests.crash.mutations import Mutation
from tests.sampling import IS_FULL

PLACE = "/d/redo"
NUMBER = 0x1234_5678_9ABC_DEF0
HEADER = 4096


def parts(number: int, size: int) -> list[Part]:
    """Entry `number`: told from every other, and from itself with any byte changed."""
    rng = random.Random(number)
    return [
        Part(number % 3, DATA, 7, number, rng.randbytes(size)),
        Part(number % 3, CHECKSUMS, 7, 24 * number, rng.randbytes(24)),
    ]


@dataclass
class Promises:
    """What the log has promised so far. Entries are numbered from 0 in the order of their writes."""

    written: list[list[Part]] = field(default_factory=list)
    synced: int = 0
    """So many of them are durable,"""
    needed: int = 0
    """but not these first ones: their bytes are durable elsewhere."""


class Session:
    """A log in use, as a store uses it: an entry is written only when the one before it is durable."""

    def __init__(self, fs: CrashFS, promises: Promises, half_size: int) -> None:
        self.fs = fs
        self.promises = promises
        self.half_size = half_size
        fs.make_directory_durably("/d")
        self.log = RedoLog(fs, PLACE, NUMBER, HEADER + 2 * half_size)
        fs.sync_files((self.log.handle,))
        fs.sync_directory("/d")
        self.sequences: list[int] = []

    def add(self, rng: random.Random) -> None:
        self.sync()
        nearly_all = self.half_size - rng.randrange(120, 180)
        size = rng.choice([rng.randrange(1, 60), rng.randrange(1, self.half_size // 2)] * 8 + [nearly_all])
        new = parts(len(self.promises.written), size)
        self.promises.written.append(new)
        for _ in range(3):
            if self.log.add(new):
                break
            if self.log.needs_sync:
                self.fs.sync_files((self.log.handle,))
                self.log.note_synced(self.log.next_sequence)
            elif self.log.is_needed:
                self.release(len(self.sequences))
            else:
                self.promises.written.pop()
                return  # it is larger than a half
        else:
            raise AssertionError("no space, and nothing is needed")
        self.sequences.append(self.log.next_sequence - 1)

    def sync(self) -> None:
        if self.promises.synced < len(self.sequences):
            self.fs.sync_files((self.log.handle,))
            self.promises.synced = len(self.sequences)

    def release(self, count: int) -> None:
        """A sync of the files is complete. It may have begun when there were fewer entries."""
        self.promises.needed = max(self.promises.needed, count)
        is_all = count == len(self.sequences)
        self.log.release(self.log.next_sequence if is_all else self.sequences[count])


def lifetime(seed: int, acts: int = 60) -> Callable[[CrashFS, Promises], None]:
    def workload(fs: CrashFS, promises: Promises) -> None:
        rng = random.Random(seed)
        session = Session(fs, promises, rng.choice([400, 700, 1600, 3000]))
        is_often = rng.choice([0.05, 0.2, 0.5])
        for _ in range(acts):
            session.add(rng)
            if rng.random() < 0.8:
                session.sync()
            if rng.random() < is_often:
                kept = rng.choice([0, 0, 1, rng.randrange(4)])
                session.release(max(promises.needed, len(session.sequences) - kept))

    return workload


def check(outcome: str, fs: CrashFS, promises: Promises) -> None:
    found = read_redo(fs, PLACE)
    if found is None or found.number is None:
        assert not promises.written, "the log is lost"
        return
    assert not found.unreadable, "what a power cut can do is no damage"
    assert outcome != KILL or not found.torn, "each entry is written by one call"
    seen = [entry.parts[0].position for entry in found.entries if entry.parts]
    assert seen == sorted(set(seen)), "out of order"
    for entry in found.entries:
        if entry.parts:
            assert list(entry.parts) == promises.written[entry.parts[0].position], "altered"
    assert set(seen) >= set(range(promises.needed, promises.synced)), "lost"


def crash(seed: int, **how: Any) -> Report:
    return run_cuts(lifetime(seed), check, witness=Promises, **how)


@pytest.mark.parametrize("seed", range(400 if IS_FULL else 40))
def test_a_log_keeps_its_entries_whatever_the_power_interrupts(seed: int) -> None:
    crash(seed, seeds=12 if IS_FULL else 4)


# --- do they bite? --------------------------------------------------------------------------------

LOG = redo_log.__name__
FORMAT = log_format.__name__

MUTATIONS = [
    # What is released: too much; or nothing is looked at again.
    Mutation(LOG, "max(self._floor, sequence)", "max(self._floor, sequence + 1)"),
    Mutation(FORMAT, "if entry.sequence >= latest.floor]", "]"),
    Mutation(FORMAT, "latest.floor, latest.last):", "latest.floor, latest.last - 1):"),
    Mutation(FORMAT, "older.entries + latest.entries", "latest.entries"),
    Mutation(FORMAT, "key=lambda chain: chain.last", "key=lambda chain: -chain.last"),
    # Entries are written over that the last durable one says are needed.
    Mutation(LOG, "self._last[other] >= self._noted", "self._last[other] >= self._floor"),
    Mutation(LOG, "self._last[other] >= self._noted", "False"),
    Mutation(
        LOG, "self._at + size + _RESERVE <= self._half_size", "self._at + size <= self._half_size", by=3
    ),
    Mutation(LOG, "size + _RESERVE > self._half_size", "size > self._half_size", by=1),
    # What tells an entry from what is left of another one.
    Mutation(FORMAT, " or (entries and entry.sequence != entries[-1].sequence + 1)", ""),
    Mutation(FORMAT, " or head.crc != checksum(content, head.seed)", ""),
    Mutation(FORMAT, " or check != wanted", "", by=4),
    # The mark that nothing is needed: it is taken for durable, or for an entry that is needed.
    Mutation(
        LOG,
        "            self._is_marked = True\n\n",
        "            self._is_marked = True\n            self._noted = self._floor\n\n",
    ),
    Mutation(LOG, "self._next, self._next + 1, ()", "self._next, self._floor, ()", by=5),
    Mutation(LOG, "            self._floor = self._next\n", "", by=1),
    Mutation(LOG, "            self._next += 1  # the mark has this number\n", ""),
    Mutation(FORMAT, "head.floor <= head.sequence\n", "True\n", by=5),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_weaker_log_is_caught(mutation: Mutation) -> None:
    def crash_everywhere() -> None:
        first = mutation.by if isinstance(mutation.by, int) else 0
        for seed in (first, *range(40)):
            crash(seed, seeds=4)

    with mutation.installed(), pytest.raises((PromiseBroken, AssertionError)):
        crash_everywhere()
