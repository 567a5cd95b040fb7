# Readers of streams without an event loop keep the contract, too. Law: a wrong call changes nothing; after an
# error the caller may go on; no message is left out, and what was committed does not come again.

from __future__ import annotations

import gc
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import diskq
from diskq import DiskqError, StorageFailedError
from diskq.testing import CrashFS, FaultFS
from tests.contract.faults import errors, faults
from tests.contract.kinds import ENGINES, READERS, ReaderKind, bodies
from tests.contract.test_fork import all_forked, content, in_child, outcomes
from tests.contract.test_wrong_types import Calls, unexpected

PATH = "/s"
COUNT = 6

each_reader = pytest.mark.parametrize("kind", READERS, ids=str)
of_a_group = pytest.mark.parametrize("kind", [kind for kind in READERS if kind.group], ids=str)


def fill(path: str | Path, fs: Any = None) -> None:
    with ENGINES["stream"].open(path, fs=fs) as store:
        store.put_many(bodies(COUNT))


def disk() -> CrashFS:
    fs = CrashFS()
    fill(PATH, fs)
    return fs


def rest(reader: diskq.StreamReader) -> list[bytes]:
    return [message.value for message in iter(lambda: reader.read(0), None)]


# --- asking -------------------------------------------------------------------------------------------------


@each_reader
@pytest.mark.parametrize("path", [b"/tmp", None, 3, 3.5, ["/tmp"]], ids=repr)
def test_what_is_no_path_is_a_type_error(kind: ReaderKind, path: Any) -> None:
    with pytest.raises(TypeError, match=r"path|PathLike"):
        kind.open(path)


@each_reader
@pytest.mark.parametrize(
    "name, value, error",
    [
        ("sync_every", 0, ValueError),
        ("sync_timeout", float("nan"), ValueError),
        ("claim_interval", "1", TypeError),
        ("start", "eldest", ValueError),
        ("end", "never", ValueError),
        ("partitions", [-1], DiskqError),
        ("partitions", ["0"], TypeError),
    ],
)
def test_a_wrong_option_is_named_and_nothing_is_left_open(
    kind: ReaderKind, name: str, value: Any, error: type[Exception]
) -> None:
    fs = disk()
    before = fs.files()
    with pytest.raises(error, match=name.removesuffix("s")):
        kind.open(PATH, fs=fs, **{name: value})
    assert (fs.files(), fs.open_files()) == (before, [])


@each_reader
def test_a_call_names_the_wrong_argument(kind: ReaderKind) -> None:
    with kind.open(PATH, fs=disk()) as reader:
        calls: Calls = {
            "read_many": lambda wrong: reader.read_many(wrong, timeout=0),
            "read_many, bytes": lambda wrong: reader.read_many(1, max_bytes=wrong, timeout=0),
            "seek": reader.seek,
            "seek, partition": lambda wrong: reader.seek("oldest", partition=wrong),
            "seek, mapping": lambda wrong: reader.seek({0: wrong}),
            "commit": reader.commit,
            "commit, durability": lambda wrong: reader.commit(durability=wrong),
        }
        assert [found for name, call in calls.items() for found in unexpected(name, call)] == []
        reader.seek("oldest")
        rest(reader)
        calls = {
            "read, timeout": lambda wrong: None if wrong is None else reader.read(wrong),
            "read_many, timeout": lambda wrong: None if wrong is None else reader.read_many(1, timeout=wrong),
        }
        assert [found for name, call in calls.items() for found in unexpected(name, call)] == []


@each_reader
def test_after_close_every_call_is_refused_and_close_does_nothing(kind: ReaderKind) -> None:
    fs = disk()
    reader = kind.open(PATH, fs=fs)
    reader.read(0)
    reader.close()
    before = fs.files(), fs.operations
    for call in kind.calls(reader).values():
        with pytest.raises(ValueError, match="closed"):
            call()
    reader.close()
    assert (fs.files(), fs.operations) == before
    assert fs.open_files() == []


# --- threads, forks, and what is dropped --------------------------------------------------------------------


@each_reader
def test_each_message_is_handed_to_one_of_many_threads(kind: ReaderKind, tmp_path: Path) -> None:
    fill(tmp_path)
    found: list[bytes] = []
    with kind.open(tmp_path, end="close") as reader:
        threads = [threading.Thread(target=lambda: found.extend(rest(reader))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == bodies(COUNT)


@each_reader
def test_each_call_of_a_child_raises_and_touches_no_file(kind: ReaderKind, tmp_path: Path) -> None:
    fill(tmp_path)

    def calls() -> Iterator[tuple[str, Callable[[], object]]]:
        yield from kind.calls(reader).items()
        yield "close", reader.close

    with kind.open(tmp_path) as reader:
        first = reader.read(0.001)
        assert first is not None
        before = content(tmp_path)
        assert all_forked(in_child(lambda: outcomes(calls())))
        assert content(tmp_path) == before
        assert rest(reader) == bodies(COUNT)[1:]
        if kind.group is not None:
            reader.commit(durability="synced")
    with kind.open(tmp_path) as reader:
        assert rest(reader) == ([] if kind.group else bodies(COUNT))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
@each_reader
def test_one_that_is_dropped_warns_and_lets_go(kind: ReaderKind, tmp_path: Path) -> None:
    fill(tmp_path)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    warned: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: warned.append(str(message))
        reader: Any = kind.open(tmp_path)
        assert len(rest(reader)) == COUNT
        assert reader.read(0.001) is None  # from here on it watches
        del reader
        gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert warned
    assert all(text.startswith("unclosed ") and str(tmp_path) in text for text in warned)
    with kind.open(tmp_path) as again:  # a claim is free again
        assert rest(again) == bodies(COUNT)


# --- a disk that fails --------------------------------------------------------------------------------------


class Life:
    """One process that reads, and commits where it is of a group."""

    def __init__(self, kind: ReaderKind) -> None:
        self.kind = kind
        self.fs = FaultFS(disk())
        self.errors: list[Exception] = []
        self.read: list[bytes] = []
        self.committed = self.synced = 0

    def run(self) -> None:
        reader = self._try(lambda: self.kind.open(PATH, fs=self.fs))
        if reader is None:
            return
        for acts in ("read", "read_many", "commit", "read", "sync", "commit, synced", "read", "lag"):
            calls = self.kind.calls(reader)
            if acts not in calls:
                continue
            before = len(self.errors)
            found = self._try(calls[acts])
            if acts.startswith("read") and found is not None:
                self.read += [each.value for each in (found if isinstance(found, list) else [found])]
                assert self.read == bodies(COUNT)[: len(self.read)], "left out, or doubled"
            elif len(self.errors) == before and acts.startswith("commit"):
                self.committed = len(self.read)
            if len(self.errors) == before and acts in ("sync", "commit, synced"):
                self.synced = self.committed
        self._try(reader.close)

    def _try(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (OSError, DiskqError) as failure:
            self.errors.append(failure)
            return None

    def check(self, *, power_cut: bool = False) -> None:
        assert self.fs.inner.open_files() == [], f"left open: {self.fs.inner.open_files()}"
        self.fs.heal()
        if power_cut:
            self._check_rest(self.fs.inner.crash(), self.synced)
        self._check_rest(self.fs.inner, self.committed)

    def _check_rest(self, fs: CrashFS, committed: int) -> None:
        with self.kind.open(PATH, fs=fs) as reader:
            found = rest(reader)
        assert found == bodies(COUNT)[COUNT - len(found) :], "left out"
        first = COUNT - len(found)
        assert (committed <= first <= len(self.read)) or not self.kind.group, "committed, and there again"


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.usefixtures("quiet_log")
@each_reader
@errors
def test_one_failed_call_in_the_life_of_a_reader(kind: ReaderKind, errors: tuple[int, ...]) -> None:
    assert faults(lambda: Life(kind), Life.run, errors, 8) == []


@of_a_group
@pytest.mark.parametrize("act", ["sync", "commit, synced"])
def test_a_sync_that_is_interrupted_is_a_failed_one(
    kind: ReaderKind, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = disk()
    reader = kind.open(PATH, fs=fs)
    reader.read(0)
    reader.commit(durability="synced")
    reader.read(0)
    reader.commit()
    sync_files = fs.sync_files

    def interrupted(*args: Any) -> None:
        monkeypatch.setattr(fs, "sync_files", sync_files)
        raise KeyboardInterrupt

    monkeypatch.setattr(fs, "sync_files", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kind.calls(reader)[act]()
    with pytest.raises(StorageFailedError):
        reader.sync()
    assert rest(reader) == bodies(COUNT)[2:], "reading goes on"
    reader.close()
    assert fs.open_files() == []
    with kind.open(PATH, fs=fs.crash()) as again:
        assert rest(again)[-4:] == bodies(COUNT)[2:]
