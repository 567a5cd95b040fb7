# Former names of engines' calls: each does what the new one does, warns, and is not listed.

from __future__ import annotations

import pydoc
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader import JournalReader
from diskq.engine.priority.store import PriorityStore
from diskq.engine.queue.fifo_queue import FifoQueue
from diskq.engine.queue.work import FifoWork
from diskq.engine.stream.partition_reader import PartitionReader
from diskq.storage.old_names import HasOldNames, old_name
from diskq.testing import CrashFS

READ = {"take": "read", "take_many": "read_many"}
GET = {"take": "get", "take_many": "get_many"}
OLD: dict[type[HasOldNames], dict[str, str]] = {
    FifoQueue: GET,
    FifoWork: GET,
    PriorityStore: {
        "enqueue": "put",
        "enqueue_many": "put_many",
        "dequeue": "get",
        "dequeue_many": "get_many",
    },
    JournalReader: {**READ, "take_back": "read_back"},
    PartitionReader: READ,
}
EACH = [(kind, old, new) for kind, names in OLD.items() for old, new in names.items()]


@pytest.fixture
def fs() -> CrashFS:
    disk = CrashFS()
    disk.make_directory_durably("/q")
    return disk


@pytest.mark.parametrize("kind, old, new", EACH)
def test_an_old_name_is_the_call_of_the_new_one_and_warns(
    kind: type[HasOldNames], old: str, new: str
) -> None:
    with pytest.warns(DeprecationWarning, match=rf"^{kind.__name__}\.{old} is now {new};") as told:
        assert getattr(kind, old) is getattr(kind, new)
    assert [warning.filename for warning in told] == [__file__]


@pytest.mark.parametrize("kind", OLD, ids=lambda kind: kind.__name__)
def test_old_names_are_not_listed(kind: type[HasOldNames]) -> None:
    assert not set(dir(kind)) & set(OLD[kind])
    assert set(dir(kind)) >= set(OLD[kind].values())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = pydoc.plain(pydoc.render_doc(kind))
    lines = [line.strip(" |") for line in page.splitlines()]
    shown = [line for line in lines if any(line.startswith((f"{old}(", f"{old} =")) for old in OLD[kind])]
    assert not shown
    assert all(any(line.startswith(f"{new}(") for line in lines) for new in OLD[kind].values())


def test_a_queue_hands_out_messages_under_the_old_names(fs: CrashFS) -> None:
    with FifoQueue("/q", "name", fs=fs) as queue:
        queue.put_many([b"a", b"b", b"c"])
        assert old(queue, "take")() == b"a"
        assert old(queue, "take_many")(5) == [b"b", b"c"]
        assert not set(dir(queue)) & set(GET)


def test_so_does_the_work_on_one(fs: CrashFS) -> None:
    with FifoQueue("/q", "name", fs=fs) as queue, FifoWork(queue) as work:
        queue.put_many([b"a", b"b"])
        assert old(work, "take")().body == b"a"
        assert [lease.body for lease in old(work, "take_many")(5)] == [b"b"]


def test_so_does_a_priority_store(fs: CrashFS) -> None:
    with PriorityStore("/q/store", fs=fs) as store:
        queue = store.queue()
        old(store, "enqueue")(queue, b"last", 9)
        old(store, "enqueue_many")(queue, [b"first", b"second"], 1)
        assert old(store, "dequeue")(queue).payload == b"first"
        assert [record.payload for record in old(store, "dequeue_many")(queue, 5)] == [b"second", b"last"]


def test_so_does_a_journal_reader(fs: CrashFS) -> None:
    with Journal("/q/journal", fs=fs) as journal:
        journal.append_many([b"a", b"b", b"c"])
    with JournalReader("/q/journal", fs=fs) as reader:
        reader.seek(0)
        assert old(reader, "take")().value == b"a"
        assert [message.value for message in old(reader, "take_many")(5)] == [b"b", b"c"]
        assert [message.value for message in old(reader, "take_back")(2)] == [b"c", b"b"]


def test_an_unknown_name_is_no_attribute() -> None:
    class Changed(HasOldNames):
        def new(self) -> int:
            return 1

        old = old_name(new)

    class More(Changed):
        def another(self) -> int:
            return 2

        one = old_name(another)

    with pytest.raises(AttributeError, match="no attribute 'other'"):
        getattr(More(), "other")  # noqa: B009
    assert {name for name in dir(More()) if not name.startswith("_")} == {"another", "new"}
    with pytest.warns(DeprecationWarning, match=r"^More\.old is now new;"):
        assert More().old() == 1


def old(instance: object, name: str) -> Callable[..., Any]:
    with pytest.warns(DeprecationWarning, match=name):
        found: Callable[..., Any] = getattr(instance, name)
    return found
