# One thread at a time, and one process. Law: a call while another thread is inside waits until the other has
# ended, and then does what it does alone; a second process is refused, with an error that says so.
#
# Threads meet in the disk: while one is in it, another one calls, so that nothing here depends on chance.

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import diskq
from diskq._native.core.thread_guard import ThreadGuard
from diskq.storage.fs import OsFileSystem
from tests.contract.kinds import ENGINES, Kind, Opened, bodies, body, each_call, engines
from tests.contract.lives import PATH, crash_disk

MOST_SECONDS = 60.0
each_kind = pytest.mark.parametrize("kind", engines(), ids=str)

# --- threads ------------------------------------------------------------------------------------------------


class Visit:
    """A call in another thread, and what it came to."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.is_over = False
        self.met: object = None
        self._call = call
        self._thread = threading.Thread(target=self._visit)
        self._thread.start()

    def _visit(self) -> None:
        try:
            self.met = self._call()
        except BaseException as failure:
            self.met = failure
        self.is_over = True

    def end(self) -> object:
        self._thread.join(MOST_SECONDS)
        assert self.is_over, "it waits for ever"
        return self.met


class MeetingPoint(OsFileSystem):
    """A disk in which another thread calls: once, at the next write or sync."""

    native = False
    visitor: Callable[[], object] | None = None
    guard: ThreadGuard | None = None
    visit: Visit | None = None
    is_waited_for = False
    """True if the visitor waited for the thread that is in the disk."""

    def _meet(self) -> None:
        if threading.current_thread().name.startswith("diskq delivers"):
            return
        visitor, self.visitor = self.visitor, None
        if visitor is not None:
            assert self.guard is not None
            self.visit = Visit(visitor)
            while not self.visit.is_over and not self.guard.waiting:
                time.sleep(0)
            self.is_waited_for = not self.visit.is_over

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        self._meet()
        return super().pwrite(handle, data, offset)

    def sync_files(self, handles: Sequence[int]) -> None:
        self._meet()  # and nothing else: this is about threads, and no power goes

    def sync_directory(self, path: str) -> None:
        pass


class Place:
    """A store with two messages, on a disk where threads meet."""

    def __init__(self, kind: Kind, path: Path) -> None:
        self.disk = MeetingPoint()
        self.store: Opened = kind.open(path, fs=self.disk)
        self.disk.guard = self.store.guard
        self.store.put_many(bodies(2))

    def visited(self, call: Callable[[], object], visitor: Callable[[], object]) -> object:
        """What the visitor came to, that called while `call` was in the disk."""
        self.disk.visitor = visitor
        call()
        assert self.disk.visit is not None, "the call did not come to the disk"
        return self.disk.visit.end()


@pytest.fixture
def place(kind: Kind, tmp_path: Path) -> Iterator[Place]:
    place = Place(kind, tmp_path)
    yield place
    place.store.close()


def calls() -> list[Any]:
    """(kind, the name of a call) of all."""
    found: list[Any] = []
    for kind in engines():
        with kind.open(PATH, fs=crash_disk()) as store:
            found += [pytest.param(kind, name, id=f"{kind}: {name}") for name, _ in each_call(store)]
            if kind.name == "spool":
                found.pop()  # three things are closed there
    return found


@pytest.mark.parametrize("kind, name", calls())
def test_a_call_while_another_thread_is_inside_waits_for_it(kind: Kind, place: Place, name: str) -> None:
    visitor = dict(each_call(place.store))[name]
    met = place.visited(lambda: place.store.put(body(2)), visitor)
    assert place.disk.is_waited_for
    assert not isinstance(met, diskq.BusyError)
    if isinstance(met, BaseException):  # as it does alone: no queue of that name, for example
        with pytest.raises(type(met)):
            dict(each_call(place.store))[name]()


@each_kind
def test_what_two_threads_put_at_once_is_all_in(kind: Kind, place: Place) -> None:
    assert place.visited(lambda: place.store.put(body(2)), lambda: place.store.put(body(3))) is None
    assert place.disk.is_waited_for
    assert place.store.accepted() == 4


@pytest.mark.parametrize("kind", engines("threaded spool"), ids=str)  # it first writes its status
def test_a_call_that_waits_for_one_that_closes_is_refused_as_one_after_it(kind: Kind, place: Place) -> None:
    place.store.put(body(2), "memory")
    met = place.visited(place.store.engine.close, lambda: place.store.put(body(3)))
    assert isinstance(met, ValueError)
    assert "closed" in str(met)


@pytest.mark.parametrize("kind", engines("leases"), ids=str)
@pytest.mark.parametrize("threads", [4, 16])
@pytest.mark.slow
def test_what_many_threads_put_is_all_in_once(kind: Kind, tmp_path: Path, threads: int) -> None:
    store = kind.open(tmp_path)
    each = 12_000 // threads
    failures: list[BaseException] = []

    def put(first: int) -> None:
        try:
            for number in range(first, first + each):
                store.put(body(number))
        except BaseException as failure:
            failures.append(failure)

    with switching_often():
        crowd = [threading.Thread(target=put, args=(number * each,)) for number in range(threads)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
    store.close()
    assert failures == []
    found = kind.read(tmp_path)
    assert sorted(map(int, found)) == list(range(12_000))
    for number in range(threads):  # in the order of each
        own = [at for at in map(int, found) if at // each == number]
        assert own == sorted(own)


@contextlib.contextmanager
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@each_kind
def test_a_call_after_the_other_has_ended_is_admitted(kind: Kind, place: Place) -> None:
    assert place.visited(lambda: place.store.put(body(2)), place.store.sync) is None
    assert Visit(lambda: place.store.put(body(3))).end() is None
    assert place.store.accepted() == 4


@each_kind
def test_a_call_that_raised_has_left_the_guard(kind: Kind, place: Place) -> None:
    with pytest.raises(TypeError):
        place.store.put(3)  # type: ignore[arg-type]
    assert Visit(lambda: place.store.put(body(2))).end() is None
    assert place.store.accepted() == 3


@each_kind
def test_reading_statistics_is_allowed_at_any_time(kind: Kind, place: Place) -> None:
    engine = place.store.engine
    look = getattr(engine, "statistics", lambda: engine.unsynced_bytes)
    assert not isinstance(place.visited(lambda: place.store.put(body(2)), look), BaseException)
    assert not place.disk.is_waited_for


@pytest.mark.parametrize("kind", [ENGINES["stream"]], ids=str)
def test_old_segments_are_removed_in_any_thread(kind: Kind, place: Place) -> None:
    engine = place.store.engine
    met = place.visited(lambda: place.store.put(body(2)), engine.steps.remove_old)
    assert not isinstance(met, BaseException)
    assert not place.disk.is_waited_for


@each_kind
def test_what_a_batch_is_made_from_may_put_itself(kind: Kind, place: Place) -> None:
    def some() -> Iterator[bytes]:
        place.store.put(body(2))
        yield body(3)

    place.store.put_many(some())  # type: ignore[arg-type]
    assert place.store.accepted() == 4


# --- processes ----------------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("wal", [False, True], ids=["plain", "wal"])
def test_a_second_open_is_refused_with_its_holder_and_changes_nothing(kind: Kind, wal: bool) -> None:
    fs = crash_disk()
    with kind.open(PATH, fs=fs, wal=wal) as store:
        store.put(body(0))
        before, opened = fs.files(), fs.open_files()
        with pytest.raises(diskq.LockedError, match=rf"(?s){PATH}.*process {fs.identity().pid} on crashfs"):
            kind.open(PATH, fs=fs, wal=wal)
        assert (fs.files(), fs.open_files()) == (before, opened)
        store.put(body(1))
    assert kind.read(PATH, fs=fs) == bodies(2)


PROGRAM = """
    import sys, diskq
    from tests.contract.kinds import ENGINES
    for name, kind in ENGINES.items():
        try:
            kind.open(f"{sys.argv[1]}/{name}").put(b"mine")
        except diskq.LockedError as refused:
            print(refused)
"""


@pytest.mark.slow
def test_the_error_in_another_process_names_the_holder(tmp_path: Path) -> None:
    with contextlib.ExitStack() as opened:
        for name, kind in ENGINES.items():
            (tmp_path / name).mkdir()
            opened.enter_context(kind.open(tmp_path / name)).put(body(0))
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)]
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    for name, line in zip(ENGINES, told.splitlines(), strict=True):
        assert f"{tmp_path}/{name}" in line
        assert f"process {os.getpid()} " in line
        assert ENGINES[name].read(tmp_path / name) == bodies(1)
