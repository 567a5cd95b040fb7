# A reader is the first that opens a store after a crash. Law: it gets every message that was synced. If it
# may write, the files have what they lacked afterwards; and whoever comes next, after a kill or another power
# cut, finds and reports what it would without the reader.

from __future__ import annotations

import errno
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import diskq
from diskq.errors import LockedError
from diskq.storage.fs import OsFileSystem
from diskq.storage.lock import Lock, locked_briefly
from diskq.storage.repairs import Repair
from diskq.testing import CrashFS, FaultFS
from diskq.tools.verify.verification import verify
from tests.contract.test_read_only import ReadOnlyFS
from tests.loops import each_loop
from tests.sampling import IS_EXHAUSTIVE
from tests.tools import power_cuts
from tests.tools.power_cuts import PATH, Lost, content, lock_of, log_of, on_disk, overwrite
from tests.tools.test_after_a_power_cut import read

pytestmark = pytest.mark.usefixtures("quiet_log")

each_kind = pytest.mark.parametrize("kind", power_cuts.KINDS)
each_cut = pytest.mark.parametrize("seed", [None, *range(12)])
each_boot = pytest.mark.parametrize("boot", ["another", "same", "none"])


def lost(kind: str, boot: str = "another", **how: Any) -> Lost:
    return power_cuts.lost(kind, is_restart=boot == "another", has_boot_id=boot != "none", **how)


def opened_by(cut: Lost, disk: CrashFS) -> tuple[list[bytes], list[Repair]]:
    """What a writer finds, and what it reports but for the index, whose zeros a reader fills in."""
    with cut.kind.open(PATH, fs=disk, **power_cuts.OPTIONS.get(cut.kind.name, {})) as store:
        repairs = [each for each in store.repairs if not each.path.endswith("index")]
    return cut.kind.read(PATH, fs=disk), repairs


# --- what it does ---------------------------------------------------------------------------------


@each_boot
@each_cut
@each_kind
def test_the_files_have_what_they_lacked_and_the_log_stays(kind: str, seed: int | None, boot: str) -> None:
    cut = lost(kind, boot, seed=seed, unsynced=3)
    before = content(cut.disk)
    found = read(cut.store, cut.disk)
    assert set(cut.synced) <= set(found)
    after = content(cut.disk)
    kept = [path for path in before if path.endswith(("redo", "lock", "lck", "state", "meta.dat", "/owner"))]
    assert {path: after[path] for path in kept} == {path: before[path] for path in kept}
    overwrite(cut.disk, log_of(cut.store), bytes(65536))
    assert read(cut.store, cut.disk) == found, "without the log"


@each_boot
@each_cut
@each_kind
def test_the_next_open_finds_and_reports_the_same(kind: str, seed: int | None, boot: str) -> None:
    cut = lost(kind, boot, seed=seed, unsynced=3)
    expected = opened_by(cut, cut.disk.copy())
    read(cut.store, cut.disk)
    assert opened_by(cut, cut.disk) == expected


@pytest.mark.parametrize("at", [0, 100])
def test_index_entries_that_are_wrong_are_left_to_the_next_open_and_shown_right(at: int) -> None:
    cut = lost("stream", closed_after=5)
    for path in content(cut.disk):
        if path.endswith(".index"):
            overwrite(cut.disk, path, b"\xee", at)
    before = content(cut.disk)
    assert sorted(read(cut.store, cut.disk)) == sorted(cut.synced)
    assert content(cut.disk) == before


@each_kind
def test_what_is_in_the_files_already_is_not_written_again(kind: str) -> None:
    cut = lost(kind)
    read(cut.store, cut.disk)
    disk = FaultFS(cut.disk)
    read(cut.store, disk)
    assert [call for call in disk.calls if call.verb in ("pwrite", "try_lock")] == []


@each_kind
def test_after_a_kill_the_next_open_finds_the_same_too(kind: str) -> None:
    cut = lost(kind, is_killed=True)
    expected = opened_by(cut, cut.disk.copy())
    assert sorted(read(cut.store, cut.disk)) == sorted(cut.synced)
    assert opened_by(cut, cut.disk) == expected


# --- another crash --------------------------------------------------------------------------------


@each_boot
@each_cut
@each_kind
def test_after_another_power_cut_nothing_is_lost(kind: str, seed: int | None, boot: str) -> None:
    cut = lost(kind, boot, seed=seed)
    read(cut.store, cut.disk)
    for number in range(6):
        after = cut.disk.crash(random.Random(number), is_restart=boot == "another")
        if number % 2:
            assert sorted(read(cut.store, after)) == sorted(cut.synced)
        found, repairs = opened_by(cut, after)
        assert sorted(found) == sorted(cut.synced)
        assert not any(repair.records for repair in repairs)


@each_cut
@each_kind
def test_the_open_after_it_syncs_all_of_it_before_the_log_is_dropped(kind: str, seed: int | None) -> None:
    """Bytes, and the names of files that the reader has made."""
    cut = lost(kind, seed=seed)
    expected = cut.disk.copy()
    opened_by(cut, expected)
    read(cut.store, cut.disk)
    opened_by(cut, cut.disk)
    assert cut.disk.size_of(log_of(cut.store)) == 0
    after, without = (verify(cut.store, fs=disk.crash()) for disk in (cut.disk, expected))
    assert (after.verdict, after.messages) == ("clean", len(cut.synced))
    assert after.checksummed == without.checksummed


class Killed(BaseException):
    """The process has died."""


class Mortal:
    """A disk whose process is killed instead of a call; of a write a part may be done."""

    native = False

    def __init__(self, below: CrashFS, calls: int) -> None:
        self._below = below
        self._left = calls

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._below, verb)

        def act(*args: Any, **how: Any) -> Any:
            self._left -= 1
            if self._left > 0:
                return call(*args, **how)
            if self._left == 0 and verb == "pwrite":
                handle, data, at = args
                call(handle, data[: len(data) // 2], at)
            raise Killed

        return act


def kills(cut: Lost) -> Iterator[CrashFS]:
    """The disk after the reader was killed, at each of its calls."""
    for number in count(1, 1 if IS_EXHAUSTIVE else 7):
        disk = cut.disk.copy()
        try:
            read(cut.store, Mortal(disk, number))
        except Killed:
            yield disk
        else:
            return


@pytest.mark.sampled
@each_boot
@each_kind
def test_a_reader_that_is_killed_in_the_midst_of_it_costs_nothing(kind: str, boot: str) -> None:
    cut = lost(kind, boot)
    expected = opened_by(cut, cut.disk.copy())
    for disk in kills(cut):
        assert sorted(read(cut.store, disk.kill())) == sorted(cut.synced), "the next reader"
        assert opened_by(cut, disk.kill()) == expected, "the next writer"
        cut_again = disk.crash(random.Random(1), is_restart=boot == "another")
        assert sorted(opened_by(cut, cut_again)[0]) == sorted(cut.synced), "after a power cut"


# --- a reader that may not write ------------------------------------------------------------------


def full(disk: CrashFS, store: Any) -> Any:
    limited = FaultFS(disk)
    limited.capacity(0)
    return limited


def failing(verb: str, error: int, path: str | None = None) -> Callable[[CrashFS, Any], Any]:
    def wrap(disk: CrashFS, store: Any) -> Any:
        fails = FaultFS(disk)
        fails.fail(verb, error=error, path=path, times=None)
        return fails

    return wrap


def without_the_right(disk: CrashFS, store: Any) -> Any:
    """The files belong to another user: the lock file cannot be opened for writing."""

    class Foreign(ReadOnlyFS):
        def _refuse(self, *its: object, **_: object) -> Any:
            raise PermissionError(errno.EACCES, "Permission denied")

    return Foreign(disk)


LIMITS: dict[str, Callable[[CrashFS, Any], Any]] = {
    "mounted read-only": lambda disk, store: ReadOnlyFS(disk),
    "another user's": without_the_right,
    "full": full,
    "cannot lock": failing("try_lock", errno.ENOLCK),
    "refuses the write": failing("pwrite", errno.EIO),
}
each_limit = pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)


@each_limit
@each_cut
@each_kind
def test_a_reader_that_may_not_write_gets_the_same(
    kind: str, seed: int | None, limit: Callable[[CrashFS, Any], Any]
) -> None:
    cut = lost(kind, seed=seed, unsynced=3)
    expected = read(cut.store, cut.disk.copy())
    disk = cut.disk.copy()
    assert read(cut.store, limit(disk, cut.store)) == expected
    assert opened_by(cut, disk) == opened_by(cut, cut.disk)


# --- both at once ---------------------------------------------------------------------------------


@each_kind
def test_a_reader_that_meets_another_ones_replay_is_shown_the_same(kind: str) -> None:
    cut = lost(kind)
    with locked_briefly(cut.disk, lock_of(cut.store), log_of(cut.store)) as is_locked:
        assert is_locked
        assert sorted(read(cut.store, cut.disk)) == sorted(cut.synced)
    assert sorted(read(cut.store, cut.disk)) == sorted(cut.synced)


@pytest.mark.parametrize("is_brief", [True, False], ids=["for a replay", "for long"])
def test_an_open_waits_for_a_replay_and_for_nobody_else(
    is_brief: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diskq.storage.lock._BRIEF", 60.0)
    fs, lock, log = OsFileSystem(), f"{tmp_path}/lock", f"{tmp_path}/log"
    Path(log).touch()
    held, ends = threading.Event(), threading.Event()

    def replay() -> None:
        with locked_briefly(fs, lock, log):
            held.set()
            ends.wait()

    thread = threading.Thread(target=replay)
    if is_brief:
        thread.start()
        held.wait()
        threading.Timer(0.05, ends.set).start()
        Lock(fs, lock, "the store", brief=log).release()
        thread.join()
        return
    holder = Lock(fs, lock, "the store")
    began = time.monotonic()
    with pytest.raises(LockedError):
        Lock(fs, lock, "the store", brief=log)
    assert time.monotonic() - began < 30
    holder.release()


READ = """
import sys
from diskq.storage.fs import OsFileSystem
from diskq.tools.stores import stores_at
from tests.tools.test_after_a_power_cut import read
(store,) = stores_at(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(len(read(store, OsFileSystem())), flush=True)
"""


@each_kind
def test_readers_and_a_producer_of_several_processes_open_at_once(kind: str, tmp_path: Path) -> None:
    cut = lost(kind)
    store = on_disk(cut, tmp_path / "store")
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READ, store.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for _ in range(2)
    ]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
    for reader in readers:
        assert reader.stdin is not None
        reader.stdin.write("go\n")
        reader.stdin.flush()
    with cut.kind.open(store.path, fs=OsFileSystem(), **power_cuts.OPTIONS.get(kind, {})):
        pass  # it is not refused
    for reader in readers:
        with reader:
            assert reader.stdout is not None
            # One that has come to the files in the midst of the open sees what is in them by then.
            assert 1 <= int(reader.stdout.readline()) <= len(cut.synced)
    assert sorted(read(store, OsFileSystem())) == sorted(cut.synced)


# --- channels -------------------------------------------------------------------------------------


_READERS: dict[str, Any] = {"stream": diskq.open_consumer, "journal": diskq.open_scanner}


@pytest.mark.parametrize("kind", _READERS)
@pytest.mark.parametrize("limit", [None, ReadOnlyFS], ids=["may write", "read-only"])
@each_loop
async def test_a_channel_that_reads_gets_what_was_in_the_log_alone(kind: str, limit: Any) -> None:
    cut = lost(kind)
    disk: Any = cut.disk if limit is None else limit(cut.disk)
    async with _READERS[kind](PATH, start="oldest", fs=disk) as reader:
        found = [(await reader.receive()).value for _ in cut.synced]
        with cut.opened() as store:
            store.put(b"new", "synced")
            found.append((await reader.receive()).value)
    in_order = sorted if kind == "stream" else list  # partitions come in any order
    assert in_order(found) == in_order([*cut.synced, b"new"])
