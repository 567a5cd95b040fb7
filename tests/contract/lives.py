"""Lives of one store on a disk that fails, and what each kind promises in them.

A `Life` opens a store, does a little of everything in it, goes on after errors as a program would, and closes
it. It records what the calls returned, and `check` compares that with what the next open finds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from diskq import DiskqError, FullError, StorageFailedError
from diskq.options import Durability
from diskq.storage.fs import FULL_DISK_ERRNOS
from diskq.testing import CrashFS, FaultFS
from tests.contract.kinds import Kind, Opened, body

__all__ = ["FIRST", "NEXT", "PATH", "Life", "crash_disk", "disk"]

PATH = "/k"
ERRORS = (OSError, DiskqError)
"""What a call may raise when the disk fails. Anything else is a fault in diskq."""

FIRST = "wmsb ty Bw fmt mws"
"""What a new store lives through, and"""
NEXT = "wt bsBt mw"
"""one that a killed process has left. w, m, s: put one, written, in memory, synced; b, B: a small batch, and
one that rolls; t: take; y, f: sync, flush."""

_WORDS: dict[str, Durability] = {"w": "written", "m": "memory", "s": "synced"}
_SIZES = {"w": 1, "m": 1, "s": 1, "b": 3, "B": 15}


def crash_disk() -> CrashFS:
    """An empty one, with the directory."""
    fs = CrashFS()
    fs.make_directory_durably(PATH)
    return fs


def disk() -> FaultFS[CrashFS]:
    return FaultFS(crash_disk())


class Life:
    """One process that has a store."""

    def __init__(self, kind: Kind, fs: FaultFS[CrashFS], *, wal: bool = False, **options: Any) -> None:
        self.kind = kind
        self.fs = fs
        self.wal = wal
        self.options = {**kind.small, "sync_every": 5, **options}
        if kind.name == "priority":
            self.options["snapshot_segments"] = 1
        self.known: list[bytes] = []
        """All that may be in, in order."""
        self.sure: set[bytes] = set()
        """Of these, what is in: it was accepted, and not taken."""
        self.synced: set[bytes] = set()
        """Of these, what outlives a power cut."""
        self.in_memory: set[bytes] = set()
        """Of these, what only a clean close promises."""
        self.number = 0
        self.errors: list[Exception] = []
        self.store: Opened | None = None

    # --- what it does -----------------------------------------------------------------------------------

    def run(self, acts: str = FIRST) -> None:
        """From open to close."""
        self.open()
        self.act(acts)
        self.close()

    def open(self) -> None:
        self.store = self._try(lambda: self.kind.open(PATH, fs=self.fs, wal=self.wal, **self.options))

    def act(self, acts: str) -> None:
        for act in acts.replace(" ", ""):
            if self.store is None:
                return
            if act in _SIZES:
                self._put(self.store, _SIZES[act], _WORDS.get(act, "written"))
            elif act == "t":
                self._take(self.store)
            elif act == "f":
                self._try(self.store.flush)
            elif self._try(self.store.sync, failed=True) is None:
                self.synced |= self.sure

    def close(self) -> None:
        if self.store is None:
            return
        if self._try(self.store.close, failed=True) is None and not self._is_broken:
            self.synced |= self.sure
        else:
            self.sure -= self.in_memory

    @property
    def _is_broken(self) -> bool:
        return any(isinstance(each, StorageFailedError) for each in self.errors)

    def _put(self, store: Opened, count: int, word: Durability) -> None:
        batch = [body(number, 90) for number in range(self.number, self.number + count)]
        self.number += count
        before = store.accepted()
        maybe: list[bytes] = []
        try:
            if count == 1:
                store.put(batch[0], word)
            else:
                store.put_many(batch, word)
        except StorageFailedError as failure:  # nobody knows
            self.errors.append(failure)
            batch, maybe = [], batch
        except FullError as full:
            self.errors.append(full)
            batch = batch[: full.accepted]
        except OSError as failure:  # of a batch, some may be in: those that are counted
            self._failed(failure)
            batch = batch[: store.accepted() - before] if count > 1 else []
        else:
            if word == "synced":
                self.synced.update(batch)
        self.known += [*batch, *maybe]
        self.sure.update(batch)
        if word == "memory":
            self.in_memory.update(batch)

    def _take(self, store: Opened) -> None:
        if not store.takes:
            return
        try:
            taken = store.take()
        except ERRORS as failure:
            self._failed(failure)
            # A spool's message is delivered first; what a broken store did is not known.
            if self.sure and ("spool" in self.kind.name or isinstance(failure, StorageFailedError)):
                self.sure.discard(next(each for each in self.known if each in self.sure))
        else:
            if taken is not None:
                assert taken in self.known, "that was never put"
                self.sure.discard(taken)

    def _try(self, call: Callable[[], Any], failed: Any = None) -> Any:
        try:
            return call()
        except ERRORS as failure:
            self._failed(failure)
            return failed

    def _failed(self, failure: Exception) -> None:
        self.errors.append(failure)

    # --- what comes of it -------------------------------------------------------------------------------

    def check(self, *, power_cut: bool = False) -> None:
        """After the end: nothing is open, and the next open, in this process, finds what was promised.

        With `power_cut`, so does one after the machine has lost its power.
        """
        assert self.fs.inner.open_files() == [], f"left open: {self.fs.inner.open_files()}"
        self.fs.heal()
        if power_cut:
            for rng in (None, random.Random(self.number)):
                found, _ = self._read(self.fs.inner.crash(rng))
                assert self.sure & self.synced <= set(found), "lost by a power cut"
                assert set(found) <= set(self.known), "refused, and in all the same"
        found, repairs = self._read(self.fs.inner)
        self.compare(found)
        wrong = [repair for repair in repairs if repair.records != 0]
        assert wrong == []

    def check_words(self) -> None:
        """A full disk is called so."""
        raw = [each for each in self.errors if isinstance(each, OSError)]
        assert [each for each in raw if each.errno in FULL_DISK_ERRNOS] == [], "raw"

    def _read(self, fs: CrashFS) -> tuple[list[bytes], Any]:
        found = self.kind.read_with_repairs(PATH, fs=fs)
        assert fs.open_files() == [], "left open by a reader"
        return found

    def compare(self, found: list[bytes]) -> None:
        assert len(set(found)) == len(found), "doubled"
        assert set(found) <= set(self.known), "refused, and in all the same"
        assert self.sure <= set(found), "lost"
        assert found == [each for each in self.known if each in set(found)], "out of order"


def killed(kind: Kind, *, wal: bool) -> tuple[CrashFS, Life]:
    """What a process that was killed has left: files that rolled, a tail that is not synced; its write-ahead
    log.
    """
    life = Life(kind, disk(), wal=wal, sync_every=1000)
    life.open()
    life.act("Bs tBw b")
    assert life.errors == []
    return life.fs.inner.kill(), life


def after(left: tuple[CrashFS, Life]) -> Life:
    """The life of the next process, on a copy."""
    fs, before = left
    life = Life(before.kind, FaultFS(fs.copy()), wal=before.wal)
    life.known, life.sure, life.number = [*before.known], {*before.sure}, before.number
    life.synced = {*before.synced}
    return life
