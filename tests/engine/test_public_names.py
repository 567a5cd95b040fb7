# The public names of a synchronous engine are those that a user may call. The loop's calls, the writer's and
# the format's are elsewhere: in `log` and in `steps`.

from __future__ import annotations

from collections.abc import Callable

import pytest

import diskq
from diskq.engine.journal.journal import Journal
from diskq.engine.priority.store import PriorityStore
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.stream.stream import Stream
from diskq.engine.stream.stream_reader import StreamReader
from diskq.storage.closing import Closing
from diskq.testing import CrashFS

CALLS = {
    Queue: "advance bytes_on_disk clear close delete depth empty flush full get get_many get_nowait head"
    " join peek peek_many put put_many put_nowait qsize repairs statistics sync tail unsynced_bytes",
    PriorityStore: "ack ack_many close create_queue delete_queue flush get get_many info layout"
    " nack nack_many next_lsn peek put put_many queue queues repairs snapshot statistics sync"
    " unsynced_bytes warnings",
    Stream: "accepted_bytes append append_many close commit flush next_offsets partition_count partition_of"
    " repairs sync unsynced_bytes vacuum",
    StreamReader: "close commit committed has_ended lag losses partitions position read read_many seek sync",
    Journal: "accepted_bytes append append_encoded append_many close flush next_offset repairs sync"
    " synced_offset unsynced_bytes",
}
"""The public methods of each class, in alphabetical order."""

FACTS = {
    Queue: "name options",
    PriorityStore: "files name options path",
    Stream: "files name options path settings",
    StreamReader: "path",
    Journal: "files name options path",
}
"""Attributes of an open one."""

INSIDE = {"log", "steps", "guard"}
"""Names for channels and the engine's own modules; a reader has the guard alone."""

MOST = 25


def _reader(fs: CrashFS) -> StreamReader:
    Stream("/q/stream", fs=fs).close()
    return StreamReader("/q/stream", fs=fs)


OPENED: dict[type[Closing], Callable[[CrashFS], Closing]] = {
    Queue: lambda fs: Queue("/q", "name", fs=fs),
    PriorityStore: lambda fs: PriorityStore("/q/store", fs=fs),
    Stream: lambda fs: Stream("/q/stream", fs=fs),
    StreamReader: _reader,
    Journal: lambda fs: Journal("/q/journal", fs=fs),
}


def public(names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_a_class_shows_what_a_user_may_call_and_no_more(kind: type[Closing]) -> None:
    assert sorted(public(dir(kind))) == CALLS[kind].split()
    assert len(CALLS[kind].split()) <= MOST


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_an_open_one_shows_what_it_is_and_few_objects_of_its_inside(kind: type[Closing]) -> None:
    fs = CrashFS()
    fs.make_directory_durably("/q")
    inside = {"guard"} if kind is StreamReader else INSIDE
    with OPENED[kind](fs) as opened:
        assert public(dir(opened)) - public(dir(kind)) == {*FACTS[kind].split(), *inside}


def is_named_by_another(of: type) -> bool:
    """True for errors and text, whose names are Python's."""
    return issubclass(of, (BaseException, str))


@pytest.mark.parametrize("name", diskq.__all__)
def test_no_public_class_shows_more_names_than_one_can_remember(name: str) -> None:
    of = getattr(diskq, name)
    if isinstance(of, type) and not is_named_by_another(of):
        assert len(public(dir(of)) - {"count", "index"}) <= MOST


def test_one_act_of_the_work_on_a_queue_has_one_public_name() -> None:
    calls = {
        "get",
        "get_many",
        "get_nowait",
        "ack",
        "nack",
        "release",
        "task_done",
        "join",
        "statistics",
        "close",
    }
    assert public(dir(diskq.QueueWork)) == calls


def test_what_keeps_a_readers_place_shows_six_names() -> None:
    names = {"offset", "commit", "sync", "close", "repairs", "reader"}
    assert public(dir(diskq.JournalReaderOffset)) == names


def test_a_budget_shows_what_it_is_and_not_how_its_members_come() -> None:
    assert public(dir(diskq.DiskBudget)) == {"headroom", "max_bytes", "statistics"}
