# On a disk that is mounted read-only. Law: what only looks works there as it does elsewhere, after a close, a
# kill and a power cut; no file is opened for writing, made, changed or removed.

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Any

import pytest

from diskq.engine.journal.reader import JournalReader
from diskq.engine.journal.reader_offset import read_journal_offsets
from diskq.engine.journal.time_lookup import JournalTimes
from diskq.engine.priority.view import look_at_store
from diskq.engine.queue.snapshot import QueueSnapshot
from diskq.engine.spool.dead_letters import view_dead_letters
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.groups import groups
from diskq.engine.stream.reader import ReadableStream
from diskq.engine.stream.statistics import stream_statistics
from diskq.engine.stream.time_lookup import TimeLookup
from diskq.testing import CrashFS
from diskq.tools.convert.sources import entries
from diskq.tools.info import info
from diskq.tools.repair.repair import repair
from diskq.tools.salvage.salvage import salvage
from diskq.tools.stores import Store, stores_at
from diskq.tools.verify.verification import verify
from diskq.tools.view.queue import look, look_at_first
from diskq.tools.view.spool import look_at_spool
from diskq.tools.watch.gauge import gauge_of
from tests.contract.kinds import CHANNELS, ENGINES, NAME, bodies
from tests.contract.test_after_a_kill import killed

PATH = "/x"
KINDS = ("queue", "stream", "journal", "priority", "spool")


class ReadOnlyFS:
    """A disk that is mounted read-only: as the kernel, it refuses every call that would change something."""

    native = False

    def __init__(self, below: CrashFS) -> None:
        self._below = below

    def __getattr__(self, verb: str) -> Any:
        if verb in ("rename", "link", "unlink", "remove_directory", "pwrite", "truncate", "share_memory"):
            return self._refuse
        return getattr(self._below, verb)

    def _refuse(self, *its: object, **_: object) -> Any:
        raise OSError(errno.EROFS, "Read-only file system", *(each for each in its if isinstance(each, str)))

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> int:
        if write or (create and self._below.size_of(path) is None):
            self._refuse(path)
        return self._below.open(path)

    def make_directory(self, path: str) -> bool:
        if self._below.size_of(path) is None:
            self._refuse(path)
        return False


def disk(kind: str, state: str) -> CrashFS:
    """A disk with one store of this kind."""
    if state == "closed" or kind == "priority":
        fs = CrashFS()
        fs.make_directory_durably(PATH)
        store = ENGINES[kind].open(PATH, fs=fs)
        store.put_many(bodies(30), "written")
        store.put(b"synced", "synced")
        if state == "closed":
            store.close()
            return fs
        fs = fs.kill()
    else:
        fs = killed(CHANNELS[kind])[0]
    return fs.crash(random.Random(1)) if state == "cut" else fs


def salvaged(store: Store, fs: Any) -> list[bytes]:
    lines: list[bytes] = []
    salvage(store, lines.append, fs=fs)
    return lines


def in_journal(store: Store, fs: Any) -> object:
    with JournalReader(store.path, fs=fs) as reader:
        reader.seek_oldest()
        found = reader.read_many(100)
        reader.seek(reader.next_offset())
        back = reader.read_back(100)
    with JournalTimes(store.path, fs=fs) as times:
        assert found[3].timestamp_ns is not None
        at = times.offset_at_or_after(found[3].timestamp_ns)
    return found, back, at, read_journal_offsets(store.path, fs=fs)


def in_stream(store: Store, fs: Any) -> object:
    stream = ReadableStream(store.path, fs=fs)
    found: list[object] = []
    for partition in stream.partitions():
        with stream.open(partition) as reader, TimeLookup(stream.fs, stream.files.partition(partition)) as by:
            reader.seek_oldest()
            messages = reader.read_many(100)
            found += [messages, [by.offset_at_or_after(each.timestamp_ns) for each in messages[:3]]]
    files = StreamFiles(fs, store.path)
    return found, stream_statistics(fs, files), groups(fs, files)


def in_queue(store: Store, fs: Any) -> object:
    snapshot = QueueSnapshot(store.path, NAME, fs=fs)
    return look(store.path, NAME, fs=fs), look_at_first(store.path, NAME, 100, fs=fs), snapshot.plan(3)


def in_spool(store: Store, fs: Any) -> object:
    return look_at_spool(store.path, fs=fs), view_dead_letters(store.path, fs=fs)


def watched(store: Store, fs: Any) -> object:
    gauge = gauge_of(store, fs=fs)
    return [(each.depth, each.size, each.problems) for each in (gauge.sample(), gauge.sample())]


LOOKS: dict[str, Callable[[Store, Any], object]] = {
    "stores": lambda store, fs: stores_at(store.path, fs=fs),
    "info": lambda store, fs: info(store, fs=fs),
    "verify": lambda store, fs: verify(store, fs=fs),
    "repair": lambda store, fs: repair(store, fs=fs),
    "salvage": salvaged,
    "convert": lambda store, fs: list(entries(store, fs=fs)),
    "watch": watched,
    "read": lambda store, fs: _READ[store.kind](store, fs),
}
_READ: dict[str, Callable[[Store, Any], object]] = {
    "queue": in_queue,
    "stream": in_stream,
    "journal": in_journal,
    "jobs": lambda store, fs: look_at_store(store.path, fs=fs).infos(),
    "spool": in_spool,
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("state", ["closed", "killed", "cut"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_only_looks_finds_the_same_on_a_disk_that_is_read_only(kind: str, state: str, look: str) -> None:
    fs = disk(kind, state)
    before = fs.files()
    (store,) = stores_at(PATH, fs=fs)
    assert LOOKS[look](store, ReadOnlyFS(fs)) == LOOKS[look](store, fs)
    assert fs.files() == before


@pytest.mark.parametrize("kind", KINDS)
def test_an_open_is_refused_there_and_says_why(kind: str) -> None:
    fs = disk(kind, "closed")
    with pytest.raises(OSError, match="Read-only file system") as refused:
        ENGINES[kind].open(PATH, fs=ReadOnlyFS(fs))
    assert refused.value.errno == errno.EROFS
    assert str(refused.value.filename).startswith(PATH)
