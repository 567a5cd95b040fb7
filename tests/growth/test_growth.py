"""Ten times as much costs at most twelve times the work. Law: work is counted, not timed: see meter.py.

To hold another tool, or another thing there may be much of, add it to `ACTS` or to `stores.MAKERS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pytest

from diskq.engine.queue.fifo_queue import Queue
from diskq.storage.fs import FileSystem
from diskq.storage.listings import ListedFileSystem
from diskq.tools.checkpoint import checkpoint
from diskq.tools.convert.conversion import convert
from diskq.tools.info import info
from diskq.tools.repair.repair import repair
from diskq.tools.salvage.salvage import salvage
from diskq.tools.stores import Store, stores_at
from diskq.tools.verify.verification import verify
from diskq.tools.watch.gauge import gauge_of
from tests.growth.crafted import CRAFTED, KIB, queue_with_log
from tests.growth.meter import MeteredDisk, Work, do_all, growth, work
from tests.growth.stores import MAKERS, open_store
from tests.sampling import first

FEW, MANY = 5, 50
MOST = 1.2 * MANY / FEW

ACTS = MappingProxyType[str, Callable[[Store, FileSystem], object]](
    {
        "opening": lambda store, fs: open_store(fs, store.path, store.kind),
        "info": lambda store, fs: info(store, fs=fs),
        "verifying": lambda store, fs: verify(store, fs=fs),
        "repairing": lambda store, fs: repair(store, fs=fs, apply=True),
        "salvaging": lambda store, fs: salvage(store, lambda _: None, fs=fs),
        "converting": lambda store, fs: convert(store, lambda _: None, "jsonl", fs=fs),
        "sampling": lambda store, fs: gauge_of(store, fs=fs).sample(),
        "checkpoint": lambda store, fs: checkpoint(store, fs=fs),
    }
)

each_kind = pytest.mark.parametrize("what", MAKERS)


@pytest.fixture(scope="module")
def disk() -> MeteredDisk:
    return MeteredDisk()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """A directory for each store, and each number of what it has."""
    return lambda what, count: tmp_path_factory.getbasetemp() / f"{what} {count}".replace(" ", "-")


def made(disk: MeteredDisk, path: Path, what: str, count: int) -> str:
    if not path.exists():
        path.mkdir()
        MAKERS[what](disk, os.fspath(path), count)
    return os.fspath(path)


# Each of these, when it is opened, looks for what a crash has left of it in the directory that all share.
SHARING = ("partitions of a group", "readers of a journal")


def assert_grows_alike(counts: list[Work], *unlike: str) -> None:
    grown = growth(*counts)
    for kind in unlike:
        grown.pop(kind, None)
    assert max(grown.values(), default=0) <= MOST, grown


@each_kind
def test_making_ten_times_as_much_is_at_most_twelve_times_the_work(what, disk, tmp_path):
    counts = []
    for count in (FEW, MANY):
        path = tmp_path / str(count)
        counts.append(work(partial(made, disk, path, what, count), disk))
    assert_grows_alike(counts, *(["names listed"] if what in SHARING else []))


@pytest.mark.parametrize("act", ACTS)
@each_kind
def test_ten_times_as_much_is_at_most_twelve_times_the_work(what, act, disk, places):
    counts = []
    for count in (FEW, MANY):
        (store,) = stores_at(made(disk, places(what, count), what, count), fs=disk)
        counts.append(work(partial(ACTS[act], store, disk), disk))
    assert_grows_alike(counts)


# --- queues that were not closed ------------------------------------------------------------------

GONE = MappingProxyType[str, tuple[str, ...]](
    {
        "nothing": (),
        "the metadata": ("*.meta.dat",),
        "the metadata and the checksums": ("*.meta.dat", ".diskq/*.sums"),
        "every second file": ("*[13579].dat",),
    }
)


@pytest.mark.parametrize("restarted", [False, True], ids=["same boot", "another boot"])
@pytest.mark.parametrize("gone", GONE)
def test_opening_a_queue_of_which_something_is_gone(gone, restarted, disk, tmp_path):
    counts = []
    for count in (FEW, MANY):
        path = tmp_path / str(count)
        made(disk, path, "files of a queue", count)
        for file in (file for pattern in GONE[gone] for file in path.glob(pattern)):
            file.unlink()
        disk.boots += restarted
        counts.append(work(partial(open_store, disk, os.fspath(path), "queue"), disk))
    assert_grows_alike(counts)


# --- a log that no writer has made ----------------------------------------------------------------


@pytest.mark.parametrize("what", CRAFTED)
def test_a_crafted_redo_log_costs_what_its_size_says(what, disk, tmp_path):
    counts = []
    for size in (64 * KIB, 640 * KIB):
        path = tmp_path / str(size)
        path.mkdir()
        queue_with_log(disk, os.fspath(path), CRAFTED[what](size), size)
        counts.append(work(partial(open_store, disk, os.fspath(path), "queue"), disk))
    assert_grows_alike(counts)


# --- many queues in one directory -----------------------------------------------------------------


class ListedDisk(ListedFileSystem, MeteredDisk):
    """As `disk_for_many`, with its calls counted."""


def queues_in(disk: MeteredDisk, path: Path, count: int) -> None:
    path.mkdir()
    for number in range(count):
        with Queue(path, f"queue{number:03}", fs=disk) as queue:
            queue.put(b"x")
    for directory in (path, path / ".diskq"):
        os.utime(directory, (0, 0))  # they have not changed for long


@pytest.mark.parametrize("act", first(2, [act for act in ACTS if act != "opening"]))
def test_a_look_at_ten_times_the_queues_is_at_most_twelve_times_the_work(act, tmp_path):
    disk = ListedDisk()
    counts = []
    for count in (FEW, MANY):
        path = tmp_path / str(count)
        queues_in(disk, path, count)
        stores = stores_at(path, fs=disk)
        counts.append(work(partial(do_all, [partial(ACTS[act], store, disk) for store in stores]), disk))
    assert len(stores) == MANY
    assert_grows_alike(counts)
