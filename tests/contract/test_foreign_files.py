# Something else is where one of diskq's files should be: a pipe, a device, a directory, a hole of a terabyte.
# Law: no call waits for it, reads it to its end or takes memory for it; a clear error names it, or it is
# damage. That holds for the files of a closed store, and of a killed process, which has more of them.
#
# Each case is a process of its own, which the system stops if it waits. Two objects are tried in each place;
# all of them with DISKQ_EVERY_FAULT=1.

from __future__ import annotations

import os
import pickle
import resource
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import diskq
from diskq import DiskqError
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.groups import ConsumerGroup
from diskq.storage.fs import OsFileSystem
from diskq.tools.info import info
from diskq.tools.repair.repair import repair
from diskq.tools.salvage.salvage import salvage
from diskq.tools.stores import Store, stores_below
from diskq.tools.verify.verification import verify
from diskq.tools.watch.gauge import gauge_of
from tests.contract.kinds import Kind, bodies, engines
from tests.sampling import IS_FULL, first

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no such things")

WAITS = 30  # seconds: then it hangs
CPU = 2.0  # seconds, of one call
MEMORY = 2 * 1024**3
TERABYTE = 1024**4
GIBIBYTE = 1024**3


# --- what lies there --------------------------------------------------------------------------------------


def bind(path: Path) -> None:
    """A socket. Its address has to be short."""
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def grow(path: Path, content: bytes = b"", size: int = TERABYTE) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.truncate(size)


STORES: dict[str, Callable[[Path, bytes], object]] = {
    "pipe": lambda path, _: os.mkfifo(path),
    "zeros": lambda path, _: path.symlink_to("/dev/zero"),
    "full": lambda path, _: path.symlink_to("/dev/full"),
    "directory": lambda path, _: path.mkdir(),
    "socket": lambda path, _: bind(path),
    "hole": lambda path, _: grow(path),
    "hole after it": grow,
    "3 GiB": lambda path, _: grow(path, size=3 * GIBIBYTE),
    "3 GiB after it": lambda path, content: grow(path, content, 3 * GIBIBYTE),
}


# --- who meets it -----------------------------------------------------------------------------------------


def on_each(do: Callable[[Store], object]) -> Callable[[Kind, Path], None]:
    def act(_: Kind, path: Path) -> None:
        for store in stores_below(path):
            do(store)

    return act


def use(kind: Kind, path: Path) -> None:
    with kind.open(path, **kind.small) as store:
        store.put(b"one more")


ACTS: dict[str, Callable[[Kind, Path], object]] = {
    "verify": on_each(verify),
    "info": on_each(info),
    "sample": on_each(lambda store: gauge_of(store).sample()),
    "dry repair": on_each(repair),
    "salvage": on_each(lambda store: salvage(store, lambda lines: None)),
    "read": lambda kind, path: kind.read(path),
    "open": use,
    "repair": on_each(lambda store: repair(store, apply=True)),
}


def met(kind: Kind, path: Path) -> list[str]:
    """What is wrong with how they take it."""
    wrong = []
    for name, act in ACTS.items():
        began = time.process_time()
        try:
            act(kind, path)
        except DiskqError:
            pass
        except BaseException as failure:
            wrong.append(f"{name}: {failure!r}")
        if (seconds := time.process_time() - began) > CPU:
            wrong.append(f"{name}: {seconds:.1f} s")
    return wrong


def in_a_process(act: Callable[[], list[str]]) -> list[str]:
    results, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(WAITS)
        # Beyond what the process that runs the tests has already.
        most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        try:
            os.write(told, pickle.dumps(act()))
        finally:
            os._exit(0)
    os.close(told)
    with open(results, "rb") as file:
        content = file.read()
    os.waitpid(pid, 0)
    found: list[str] = pickle.loads(content) if content else ["it hangs, or it crashed"]
    return found


# --- the small roots --------------------------------------------------------------------------------------


@pytest.fixture
def room() -> Iterator[Path]:
    """A directory in memory, where there is such a place."""
    shared = "/dev/shm"
    made = tempfile.mkdtemp(dir=shared if os.access(shared, os.W_OK) else None)
    yield Path(made)
    shutil.rmtree(made)


def fill(kind: Kind, path: Path, state: str) -> None:
    path.mkdir()
    small: dict[str, Any] = kind.small | ({"soft_limit": 500} if kind.name == "priority" else {})
    with kind.open(path, **small) as store:
        store.put_many(bodies(20, size=100))
        if store.takes:
            store.take()
        if kind.name == "priority":
            store.engine.snapshot()
            store.put(b"behind it")
    if state != "closed":
        pid = os.fork()
        if pid == 0:  # it dies with what it has open
            try:
                store = kind.open(path, wal=state == "killed with a write-ahead log", **small)
                store.put_many(bodies(3, size=100))
                for _ in range(3):
                    store.put(b"one more")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    if kind.name == "stream":
        fs = OsFileSystem()
        with ConsumerGroup(fs, StreamFiles(fs, str(path)), "g").committed_offset(0) as committed_offset:
            committed_offset.commit(3)
    elif kind.name == "journal":
        with diskq.JournalReaderOffset(path, "me") as offset:
            offset.commit(3)


def files_below(path: Path) -> list[Path]:
    return sorted(each.relative_to(path) for each in path.rglob("*") if each.is_file())


@pytest.mark.parametrize("state", first(1, ["killed with a write-ahead log", "closed", "killed"]))
@pytest.mark.parametrize("kind", engines(), ids=str)
def test_a_foreign_file_is_named_and_not_waited_for(kind: Kind, state: str, room: Path) -> None:
    whole, tried = room / "whole", room / "tried"
    fill(kind, whole, state)
    wrong = []
    names = list(STORES)
    # Of each kind of file one, of those that roll.
    places = {place.suffix or place.name: place for place in files_below(whole)}.values()
    for number, place in enumerate(files_below(whole) if IS_FULL else places):
        content = (whole / place).read_bytes()
        for what in names if IS_FULL else (names[number % 7], names[-1 - number % 2]):
            shutil.copytree(whole, tried)
            (tried / place).unlink()
            STORES[what](tried / place, content)
            wrong += [f"{what} at {place}: {each}" for each in in_a_process(lambda: met(kind, tried))]
            shutil.rmtree(tried)
    assert wrong == []


@pytest.mark.parametrize("what", ["pipe", "zeros", "directory", "socket", "hole"])
def test_the_error_says_where_and_what(what: str, room: Path) -> None:
    path = room / "file"
    STORES[what](path, b"")
    with pytest.raises(diskq.NotAFileError, match="move it away") as told:
        OsFileSystem().open(str(path))
    assert str(path) in str(told.value)
    names = {"pipe": "a named pipe", "zeros": "a symbolic link", "hole": f"a hole of {TERABYTE} bytes"}
    assert told.value.what == names.get(what, f"a {what}")


def test_a_large_file_with_something_in_it_is_a_file(room: Path) -> None:
    fs = OsFileSystem()
    path = room / "file"
    with path.open("wb") as file:
        for at in range(1, 6):
            file.seek(at * 1024**3 - 1)
            file.write(bytes(8 * 1024**2))
    fs.close(fs.open(str(path)))
