# One thread at a time, and one process. Law: a call while another thread is inside is refused, with an error
# that says so; it changes nothing, and the other's call goes on as if it had not come.
#
# Threads meet in the disk: while one is in it, another one calls, so that nothing here depends on chance.

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import diskq
from diskq.storage.fs import OsFileSystem
from tests.contract.kinds import ENGINES, Kind, Opened, bodies, body, each_call, engines
from tests.contract.lives import PATH, crash_disk

each_kind = pytest.mark.parametrize("kind", engines(), ids=str)

# --- threads ------------------------------------------------------------------------------------------------


class MeetingPoint(OsFileSystem):
    """A disk in which another thread calls: once, at the next write or sync."""

    native = False
    visitor: Callable[[], object] | None = None
    met: object = None
    """What the visit came to."""

    def _meet(self) -> None:
        visitor, self.visitor = self.visitor, None
        if visitor is not None:
            thread = threading.Thread(target=self.visit, args=(visitor,))
            thread.start()
            thread.join()

    def visit(self, visitor: Callable[[], object]) -> None:
        try:
            self.met = visitor()
        except BaseException as failure:
            self.met = failure

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
        self.store.put_many(bodies(2))

    def visited(self, call: Callable[[], object], visitor: Callable[[], object]) -> object:
        """What the visitor came to, while `call` is in the disk."""
        self.disk.visitor = visitor
        call()
        assert self.disk.visitor is None, "the call did not come to the disk"
        return self.disk.met


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
def test_a_call_while_another_thread_is_inside_is_refused_and_the_other_goes_on(
    kind: Kind, place: Place, name: str
) -> None:
    store = place.store
    visitor = dict(each_call(store))[name]
    for inside in (store.sync, lambda: store.put(body(2))):
        met = place.visited(inside, visitor)
        assert isinstance(met, diskq.BusyError)
        assert "lock around each call" in str(met)
        assert str(store.engine.name) in str(met)
    assert store.accepted() == 3


@each_kind
def test_a_call_after_the_other_has_ended_is_admitted(kind: Kind, place: Place) -> None:
    place.visited(place.store.sync, place.store.sync)
    place.disk.visit(lambda: place.store.put(body(2)))
    assert place.disk.met is None
    assert place.store.accepted() == 3


@each_kind
def test_a_call_that_raised_has_left_the_guard(kind: Kind, place: Place) -> None:
    with pytest.raises(TypeError):
        place.store.put(3)  # type: ignore[arg-type]
    place.disk.visit(lambda: place.store.put(body(2)))
    assert place.store.accepted() == 3


@each_kind
def test_reading_statistics_is_allowed_at_any_time(kind: Kind, place: Place) -> None:
    engine = place.store.engine
    look = getattr(engine, "statistics", lambda: engine.unsynced_bytes)
    assert not isinstance(place.visited(place.store.sync, look), BaseException)


@pytest.mark.parametrize("kind", [ENGINES["stream"]], ids=str)
def test_old_segments_are_removed_in_any_thread(kind: Kind, place: Place) -> None:
    engine = place.store.engine
    assert not isinstance(place.visited(place.store.sync, engine.steps.remove_old), BaseException)


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
