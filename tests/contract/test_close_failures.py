# Every reader, tool and kind closes what it opened, whichever call of the system fails.
#
# In each round the n-th call of one sort fails, for some n, or with DISKQ_EVERY_FAULT=1 for every n. Then no
# file is open any more, and none was closed twice: its descriptor might belong to another file by then.

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count

import pytest

import diskq
from diskq import DiskqError
from diskq.channels.core.event_loops.on_asyncio import AsyncioLoop
from diskq.channels.core.event_loops.on_trio import TrioLoop
from diskq.engine.queue.snapshot import QueueSnapshot, SnapshotReader
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.groups import ConsumerGroup
from diskq.engine.stream.membership import Membership
from diskq.engine.stream.reader import ReadableStream
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS, FaultFS
from diskq.tools.info import info
from diskq.tools.repair.repair import repair
from diskq.tools.salvage.salvage import salvage
from diskq.tools.stores import Store, stores_below
from diskq.tools.verify.verification import verify
from diskq.tools.watch.gauge import gauge_of
from tests.contract.kinds import ENGINES, ChannelKind, Kind, bodies, body, channels, engines
from tests.hub.rig import message, put, store
from tests.loops import each_loop
from tests.sampling import IS_FULL

PATH = "/k"
FAULTS = [
    ("close", errno.EIO),
    ("pread", errno.EIO),
    ("pread", errno.EAGAIN),
    ("size", errno.EIO),
    ("open", errno.EMFILE),
]

Act = Callable[[FileSystem], object]


def filled(kind: Kind, was_killed: bool) -> CrashFS:
    """A disk with some files of the kind, closed, or as a killed process left them."""
    return _filled(kind.name, was_killed).copy()


@cache
def _filled(name: str, was_killed: bool) -> CrashFS:
    kind = ENGINES[name]
    fs = CrashFS()
    fs.make_directory_durably(PATH)
    small = {**kind.small, "soft_limit": 500} if kind.name == "priority" else kind.small
    opened = kind.open(PATH, fs=fs, **small)
    opened.put_many(bodies(20, size=100))
    opened.sync()
    for number in range(20, 26):
        opened.put(body(number, 100))
    if opened.takes:
        opened.take()
    if was_killed:
        return fs.kill()
    opened.close()
    return fs


# --- what is done -----------------------------------------------------------------------------------------


def use(kind: Kind) -> Act:
    def act(fs: FileSystem) -> None:
        with kind.open(PATH, fs=fs, wal=True, **kind.small) as opened:
            opened.put(b"a" * 30)
            opened.put_many(bodies(10, size=100))
            if opened.takes:
                for _ in range(15):
                    opened.take()
            opened.sync()
            if kind.name == "priority":
                opened.engine.snapshot()

    return act


def on_each(do: Callable[[Store, FileSystem], object]) -> Act:
    def act(fs: FileSystem) -> None:
        for found in stores_below(PATH, fs=fs):
            do(found, fs)

    return act


TOOLS: dict[str, Act] = {
    "verify": on_each(lambda store, fs: verify(store, fs=fs)),
    "info": on_each(lambda store, fs: info(store, fs=fs)),
    "sample": on_each(lambda store, fs: gauge_of(store, fs=fs).sample()),
    "dry repair": on_each(lambda store, fs: repair(store, fs=fs)),
    "repair": on_each(lambda store, fs: repair(store, apply=True, fs=fs)),
    "salvage": on_each(lambda store, fs: salvage(store, lambda lines: None, fs=fs)),
}


def read_a_snapshot(fs: FileSystem) -> None:
    for part in QueueSnapshot(PATH, "events", fs=fs).plan(2):
        with SnapshotReader(PATH, "events", part, fs=fs) as reader:
            while reader.columns() is not None:
                pass


def read_a_stream(fs: FileSystem) -> None:
    stream = ReadableStream(PATH, fs=fs)
    with stream.open(0) as reader:
        reader.seek_oldest()
        while reader.read() is not None:
            pass
        stream.seek(reader, 0, "newest")
        reader.seek(3)
        reader.read_many(2)


def read_in_a_group(fs: FileSystem) -> None:
    files = StreamFiles(fs, PATH)
    membership = Membership(ConsumerGroup(fs, files, "g"), diskq.StreamConsumerOptions(), fs.monotonic)
    try:
        for number in range(2):
            committed_offset = membership.claim(number)
            assert committed_offset is not None
            committed_offset.commit(5)
    finally:
        membership.close()


def read_a_journal(fs: FileSystem) -> None:
    with diskq.JournalReader(PATH, fs=fs) as reader:
        reader.seek_oldest()
        while reader.read() is not None:
            pass
        reader.seek_newest()
    for start in ("oldest", "newest"):
        with diskq.JournalReaderOffset(PATH, start, start, fs=fs) as offset:
            offset.commit(5)
    with diskq.JournalReaderOffset(PATH, "oldest", fs=fs):
        pass


def serve(fs: FileSystem) -> None:
    hub = store(fs)
    try:
        put(hub, [message(0), message(1)])
    finally:
        hub.close()


READERS: dict[str, tuple[str, Act]] = {
    "a snapshot": ("queue", read_a_snapshot),
    "a stream": ("stream", read_a_stream),
    "a group": ("stream", read_in_a_group),
    "a journal": ("journal", read_a_journal),
}


def acts() -> Iterator[object]:
    for kind in engines():
        yield pytest.param(kind, use(kind), id=f"{kind}, use")
    for kind in engines("leases", "threaded spool"):  # their files are those of others
        for name, act in TOOLS.items():
            yield pytest.param(kind, act, id=f"{kind}, {name}")
    for name, (kind_name, act) in READERS.items():
        yield pytest.param(ENGINES[kind_name], act, id=f"read {name}")


def turns(step: float) -> Iterator[int]:
    """Which calls fail: all, or the first ones and ever fewer of the others."""
    at = 1.0
    while True:
        yield int(at)
        at = at + 1 if IS_FULL else max(at + 1, at * step)


# --- what holds then --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, act", list(acts()))
@pytest.mark.parametrize("was_killed", [False, True], ids=["closed", "killed"])
def test_nothing_stays_open_and_nothing_is_closed_twice(kind: Kind, act: Act, was_killed: bool) -> None:
    for verb, error in FAULTS:
        for turn in turns(1.2 if verb == "close" else 2.2):
            disk = filled(kind, was_killed)
            fs = FaultFS(disk)
            fault = fs.fail(verb, turn, error)
            try:
                act(fs)
            except (OSError, DiskqError) as failure:
                failure.__traceback__ = None
            if not fault.hits:
                break
            case = f"{verb} {turn}: {errno.errorcode[error]}"
            assert disk.open_files() == [], case
            assert not [call for call in fs.calls if call.path.startswith("handle ")], case


@pytest.mark.parametrize("kind", engines("leases"), ids=str)
def test_whatever_a_close_says_the_lock_is_let_go_of(kind: Kind) -> None:
    for turn in count(1):
        disk = filled(kind, False)
        fs = FaultFS(disk)
        opened = kind.open(PATH, fs=fs, wal=True, **kind.small)
        opened.put(b"one")
        fault = fs.fail("close", turn)
        try:
            opened.close()
        except (OSError, DiskqError) as failure:
            failure.__traceback__ = None
        if not fault.hits:
            break
        fs.heal()
        kind.open(PATH, fs=fs, **kind.small).close()


@pytest.mark.parametrize("verb, error", FAULTS)
def test_a_hub_lets_go_of_its_journals(verb: str, error: int) -> None:
    for turn in turns(1.3):
        disk = CrashFS()
        disk.make_directory_durably("/hub")
        fs = FaultFS(disk)
        fault = fs.fail(verb, turn, error)
        try:
            serve(fs)
        except (OSError, DiskqError) as failure:
            failure.__traceback__ = None
        if not fault.hits:
            break
        assert disk.open_files() == [], turn


@pytest.mark.parametrize("kind", engines(), ids=str)
@pytest.mark.parametrize("verb", ["pwrite", "make_directory", "share_memory"])
def test_a_full_disk_at_the_open_is_reported_as_one(kind: Kind, verb: str) -> None:
    for was_killed in (False, True):
        for turn in turns(1.3):
            disk = filled(kind, was_killed)
            fs = FaultFS(disk)
            fault = fs.fail(verb, turn, errno.ENOSPC, times=None)
            try:
                kind.open(PATH, fs=fs, wal=True, **kind.small).close()
            except diskq.FullError as full:
                full.__traceback__ = None
            if not fault.hits:
                break
            assert disk.open_files() == [], turn


# --- no thread to be had ----------------------------------------------------------------------------------


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under RLIMIT_NPROC: those that run already go on, and no other one begins."""
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name.startswith("diskq"):
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.mark.parametrize("kind", channels(), ids=str)
@pytest.mark.usefixtures("no_thread")
@each_loop
async def test_a_channel_whose_thread_cannot_start_is_not_open(kind: ChannelKind) -> None:
    disk = CrashFS()
    disk.make_directory_durably(PATH)
    with pytest.raises(RuntimeError, match="thread"):
        async with kind.open(PATH, fs=disk):
            pass
    assert disk.open_files() == []
    assert kind.read(PATH, fs=disk) == []


@pytest.mark.usefixtures("no_thread")
@each_loop
async def test_a_reader_whose_thread_cannot_start_is_not_open() -> None:
    disk = filled(ENGINES["stream"], False)
    with pytest.raises(RuntimeError, match="thread"):
        async with diskq.open_consumer(PATH, group="g", fs=disk):
            pass
    assert disk.open_files() == []
    disk = filled(ENGINES["journal"], False)
    with pytest.raises(RuntimeError, match="thread"):
        async with diskq.open_scanner(PATH, reader="me", fs=disk):
            pass
    assert disk.open_files() == []


@pytest.mark.parametrize("kind", channels(), ids=str)
@each_loop
async def test_a_channel_is_closed_without_another_thread(
    kind: ChannelKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = CrashFS()
    disk.make_directory_durably(PATH)
    async with kind.open(PATH, fs=disk) as channel:
        await channel.send(b"one")
        for side in (TrioLoop, AsyncioLoop):
            monkeypatch.setattr(side, "run_in_thread", staticmethod(no_more_threads))
    assert disk.open_files() == []
    assert kind.read(PATH, fs=disk) == [b"one"]


async def no_more_threads(*_: object, **__: object) -> None:
    raise RuntimeError("can't start new thread")
