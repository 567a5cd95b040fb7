# Names that differ only in case, on a file system that does not tell case apart, as vfat and macOS have it.
# Law: two names are two stores; where the file system takes them for one, the second is refused and nothing
# of the first changes. Where it tells them apart, they are two.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from diskq import JournalReaderOffset, Queue
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.groups import ConsumerGroup
from diskq.errors import GroupNameError, QueueNameError, ReaderNameError
from diskq.storage.numbered_files import listed_as
from diskq.testing import CrashFS, FaultFS
from tests.contract.kinds import ENGINES, bodies

PATH = "/x"


class FoldingFS:
    """A disk that keeps the case of a name, and finds it by any."""

    native = False

    def __init__(self, below: Any) -> None:
        self._below = below

    def __getattr__(self, verb: str) -> Any:
        act = getattr(self._below, verb)
        if not callable(act):
            return act

        def called(*its: Any, **options: Any) -> Any:
            paths = [self._there(each) if isinstance(each, str) and each[:1] == "/" else each for each in its]
            return act(*paths, **options)

        return called

    def _there(self, path: str) -> str:
        found = ""
        for name in path[1:].split("/"):
            try:
                names = self._below.list_directory(found or "/")
            except FileNotFoundError:
                names = []
            found += "/" + next((each for each in names if each.casefold() == name.casefold()), name)
        return found


@dataclass(frozen=True)
class Named:
    """What one can open under a name."""

    what: str
    make: Callable[[Any], None]
    """Make what it is in, at PATH."""
    use: Callable[[Any, str], object]
    """Open it, leave something there, close it, and return what it finds."""
    error: type[Exception]

    def __str__(self) -> str:
        return self.what


def use_queue(fs: Any, name: str) -> object:
    with Queue(PATH, name, fs=fs) as queue:
        queue.put(name.encode())
        return queue.peek_many(10)


def use_group(fs: Any, name: str) -> object:
    group = ConsumerGroup(fs, StreamFiles(fs, PATH), name)
    claim = group.claim(0)
    assert claim is not None
    with group.committed_offset(0) as committed:
        before = committed.next_offset
        committed.commit(before or 0)
    claim.release()
    return before


def use_reader(fs: Any, name: str) -> object:
    with JournalReaderOffset(PATH, name, fs=fs) as reader:
        before = reader.offset
        reader.commit(before + 1)
        return before


def filled(kind: str) -> Callable[[Any], None]:
    def fill(fs: Any) -> None:
        with ENGINES[kind].open(PATH, fs=fs) as store:
            store.put_many(bodies(9))

    return fill


NAMED = [
    Named("queue", lambda fs: None, use_queue, QueueNameError),
    Named("group", filled("stream"), use_group, GroupNameError),
    Named("reader", filled("journal"), use_reader, ReaderNameError),
]
each_named = pytest.mark.parametrize("named", NAMED, ids=str)


def disk(named: Named) -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably(PATH)
    named.make(fs)
    return fs


@each_named
@pytest.mark.parametrize("first, second", [("Events", "events"), ("events", "EVENTS"), ("web.1", "Web.1")])
def test_the_second_is_refused_and_nothing_of_the_first_changes(
    named: Named, first: str, second: str
) -> None:
    below = disk(named)
    fs = FoldingFS(below)
    named.use(fs, first)
    before = below.files()
    for _ in range(2):
        with pytest.raises(named.error, match=f"{second!r}.*{first!r}.*does not tell case apart"):
            named.use(fs, second)
    assert below.files() == before
    assert named.use(fs, first)  # it goes on


@each_named
def test_two_names_are_two_where_case_is_told_apart(named: Named) -> None:
    fs = disk(named)
    assert named.use(fs, "Events") == named.use(disk(named), "Events")
    found = named.use(fs, "events")
    assert found == named.use(disk(named), "events")


def test_a_peer_s_queue_is_found_so_too() -> None:
    fs = CrashFS()
    fs.make_directory_durably(PATH)
    fs.write_durably(f"{PATH}/Events.diskqueue.000000.dat", b"\0\0\0\3one")
    fs.write_durably(f"{PATH}/Events.diskqueue.meta.dat", b"1\n0,0\n0,7\n")
    with pytest.raises(QueueNameError, match="'Events'"):
        use_queue(FoldingFS(fs), "events")
    assert use_queue(FoldingFS(fs), "Events") == [b"one", b"Events"]


def test_a_directory_is_listed_only_where_another_case_is_found() -> None:
    below = CrashFS()
    below.make_directory_durably(PATH)
    below.write_durably(f"{PATH}/events.lock", b"")
    fs = FaultFS(below)
    assert listed_as(fs, f"{PATH}/events.lock") is None
    assert listed_as(fs, f"{PATH}/another.lock") is None
    assert [call.verb for call in fs.calls if call.verb != "size_of"] == []
    assert listed_as(FoldingFS(below), f"{PATH}/EVENTS.lock") == "events.lock"
    assert listed_as(FoldingFS(below), f"{PATH}/events.lock") is None
    below.write_durably(f"{PATH}/über.lock", b"")
    assert listed_as(FoldingFS(below), f"{PATH}/ÜBER.lock") == "über.lock"
    below.write_durably(f"{PATH}/EVENTS.LOCK", b"")  # another one's, and another file
    assert listed_as(below, f"{PATH}/events.lock") is None
