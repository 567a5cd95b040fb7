# Who comes while another thread is inside. Law: he gets BusyError, nothing is changed by his call, and the
# other's call goes on as if he had not come. The disk is the meeting point: while one thread is in it,
# another one calls, so that nothing here depends on chance.

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import diskq
from diskq.engine.fifo import FifoQueue
from diskq.engine.journal import Journal
from diskq.engine.priority import PriorityStore
from diskq.engine.stream import Stream
from diskq.engine.work import FifoWork
from diskq.storage.fs import OsFileSystem

ENGINES = ["queue", "work", "stream", "journal", "jobs"]


class MeetingPoint(OsFileSystem):
    """A disk in which somebody else comes by: once, at the next write or sync."""

    native = False
    visitor: Callable[[], object] | None = None
    met: BaseException | object | None = None
    """What the visit came to."""

    def _meet(self) -> None:
        visitor, self.visitor = self.visitor, None
        if visitor is not None:
            thread = threading.Thread(target=self._visit, args=(visitor,))
            thread.start()
            thread.join()

    def _visit(self, visitor: Callable[[], object]) -> None:
        try:
            self.met = visitor()
        except BaseException as failure:
            self.met = failure

    def pwrite(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        self._meet()
        return super().pwrite(handle, data, offset)

    def sync_files(self, handles: Sequence[int]) -> None:
        self._meet()
        super().sync_files(handles)


class Place:
    """An engine with a few messages in it."""

    def __init__(self, name: str, directory: Path) -> None:
        self.disk = MeetingPoint()
        self.engine: Any
        if name in ("queue", "work"):
            self.engine = FifoQueue(directory, "events", fs=self.disk)
            self.put = self.engine.put
        elif name == "stream":
            self.engine = Stream(directory, diskq.StreamOptions(partition_count=1), fs=self.disk)
            self.put = self.engine.append
        elif name == "journal":
            self.engine = Journal(directory, fs=self.disk)
            self.put = self.engine.append
        else:
            self.engine = PriorityStore(directory, fs=self.disk)
            self.put = lambda body: self.engine.enqueue(self.engine.queue(), body)
        self.put(b"one")
        self.put(b"two")
        self.inner = FifoWork(self.engine) if name == "work" else None

    def count(self) -> int:
        """Of messages that were accepted, and are there."""
        engine = self.engine
        if isinstance(engine, FifoQueue):
            return engine.depth
        if isinstance(engine, PriorityStore):
            return engine.info(engine.queue()).stored
        return sum(engine.next_offsets) if isinstance(engine, Stream) else engine.next_offset

    def visited(self, call: Callable[[], object], visitor: Callable[[], object]) -> object:
        """What the visitor came to, while `call` is in the disk."""
        self.disk.visitor = visitor
        call()
        assert self.disk.visitor is None, "the call did not come to the disk"
        return self.disk.met

    def close(self) -> None:
        if self.inner is not None:
            self.inner.close()
        self.engine.close()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = Place(request.param, tmp_path)
    yield place
    place.close()


# --- whoever comes meanwhile is refused ---------------------------------------------------------------

_QUEUE: dict[str, Callable[[Any], object]] = {
    "put": lambda q: q.put(b"x"),
    "put, in memory": lambda q: q.put(b"x", "memory"),
    "put, of another kind": lambda q: q.put(bytearray(b"x")),
    "put_many": lambda q: q.put_many([b"x", b"y"]),
    "take": lambda q: q.take(),
    "take_many": lambda q: q.take_many(2),
    "peek": lambda q: q.peek(),
    "advance": lambda q: q.advance(0),
    "empty": lambda q: q.empty(),
    "attach": lambda q: FifoWork(q),
    "sync": lambda q: q.sync(),
    "close": lambda q: q.close(),
    "delete": lambda q: q.delete(),
}
_STREAM: dict[str, Callable[[Any], object]] = {
    "append": lambda s: s.append(b"x"),
    "append, in memory": lambda s: s.append(b"x", durability="memory"),
    "append_many": lambda s: s.append_many([b"x", b"y"]),
    "flush": lambda s: s.flush(),
    "vacuum": lambda s: s.vacuum(),
    "sync": lambda s: s.sync(),
    "close": lambda s: s.close(),
}
_JOURNAL: dict[str, Callable[[Any], object]] = {
    "append": lambda j: j.append(b"x"),
    "append_many": lambda j: j.append_many([b"x", b"y"]),
    "append_encoded": lambda j: j.append_encoded(b""),
    "flush": lambda j: j.flush(),
    "sync": lambda j: j.sync(),
    "close": lambda j: j.close(),
}
_JOBS: dict[str, Callable[[Any], object]] = {
    "enqueue": lambda p: p.enqueue(p.queue(), b"x"),
    "enqueue_many": lambda p: p.enqueue_many(p.queue(), [b"x", b"y"]),
    "dequeue": lambda p: p.dequeue(p.queue()),
    "dequeue_many": lambda p: p.dequeue_many(p.queue(), 2),
    "peek": lambda p: p.peek(p.queue()),
    "ack": lambda p: p.ack_many(p.queue(), []),
    "nack": lambda p: p.nack_many(p.queue(), []),
    "create_queue": lambda p: p.create_queue("mail"),
    "delete_queue": lambda p: p.delete_queue("mail"),
    "snapshot": lambda p: p.snapshot(),
    "sync": lambda p: p.sync(),
    "close": lambda p: p.close(),
}
_CALLS = {"queue": _QUEUE, "stream": _STREAM, "journal": _JOURNAL, "jobs": _JOBS}
CALLS = [
    pytest.param(name, call, id=f"{name}: {what}")
    for name, calls in _CALLS.items()
    for what, call in calls.items()
]


@pytest.mark.parametrize("place, visitor", CALLS, indirect=["place"])
def test_a_call_while_another_thread_syncs_is_refused(place: Place, visitor: Callable[[Any], object]) -> None:
    assert isinstance(place.visited(place.engine.sync, lambda: visitor(place.engine)), diskq.BusyError)
    assert place.count() == 2


@pytest.mark.parametrize("place, visitor", CALLS, indirect=["place"])
def test_a_call_while_another_thread_writes_is_refused_and_the_write_goes_on(
    place: Place, visitor: Callable[[Any], object]
) -> None:
    met = place.visited(lambda: place.put(b"three"), lambda: visitor(place.engine))
    assert isinstance(met, diskq.BusyError)
    assert place.count() == 3


@pytest.mark.parametrize("place", ["work"], indirect=True)
@pytest.mark.parametrize("name", ["take_many", "ack", "nack", "release", "close"])
def test_so_is_a_call_of_the_work_on_a_queue(place: Place, name: str) -> None:
    work = place.inner
    arguments: tuple[object, ...] = {"take_many": (1,), "close": ()}.get(name, ([],))
    met = place.visited(place.engine.sync, lambda: getattr(work, name)(*arguments))
    assert isinstance(met, diskq.BusyError)


@pytest.mark.parametrize("place", ["queue"], indirect=True)
def test_the_error_says_of_what_and_what_to_do(place: Place, tmp_path: Path) -> None:
    error = place.visited(place.engine.sync, place.engine.empty)
    assert isinstance(error, diskq.BusyError)
    assert error.path == f"queue 'events' in {tmp_path}"
    assert "lock around each call" in str(error)


# --- and who may come -----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ENGINES, indirect=True)
def test_whoever_comes_when_the_other_has_gone_is_let_in(place: Place) -> None:
    place.visited(place.engine.sync, place.engine.sync)
    place.disk._visit(place.engine.sync)
    assert place.disk.met is None


@pytest.mark.parametrize("place", ENGINES, indirect=True)
def test_who_raised_inside_has_gone_out(place: Place) -> None:
    with pytest.raises((TypeError, ValueError)):
        place.put(3)
    thread = threading.Thread(target=place.put, args=(b"three",))
    thread.start()
    thread.join()
    assert place.count() == 3


@pytest.mark.parametrize("place", ENGINES, indirect=True)
def test_who_only_looks_may_come_at_any_time(place: Place) -> None:
    look = getattr(place.engine, "statistics", lambda: place.engine.unsynced_bytes)
    assert not isinstance(place.visited(place.engine.sync, look), BaseException)


@pytest.mark.parametrize("place", ["stream"], indirect=True)
def test_old_segments_are_removed_in_any_thread(place: Place) -> None:
    assert not isinstance(place.visited(place.engine.sync, place.engine.remove_old), BaseException)


@pytest.mark.parametrize("place", ["queue"], indirect=True)
def test_what_a_batch_is_made_from_may_put_itself(place: Place) -> None:
    queue = place.engine

    def bodies() -> Iterator[bytes]:
        queue.put(b"three")
        yield b"four"

    queue.put_many(bodies())
    assert queue.take_many(10) == [b"one", b"two", b"three", b"four"]


# --- every call takes its turn, or is named here ----------------------------------------------------------

BY_HAND = {
    FifoQueue: "put put_many take",
    Stream: "append append_many",
    Journal: "append append_many",
    PriorityStore: "enqueue enqueue_many dequeue dequeue_many ack ack_many nack nack_many",
    FifoWork: "take",
}
LOOKS = {
    FifoQueue: "checked deadline full_error now overhead_of peeked_ends statistics statistics_as",
    Stream: "checked checked_many deadline full_error live make_room partition_of remove_old size_of"
    " size_of_many",
    Journal: "check_offset checked checked_many deadline",
    PriorityStore: "checked deadline info is_durable queue queues snapshot_barrier statistics statistics_as",
    FifoWork: "give_up holds next_due settle statistics",
}
STEPS = {
    FifoQueue: "accept accept_many fail fetch include_memory load_from_memory note obstacle peek"
    " write_failed",
    Stream: "accept accept_many fail note obstacle write_failed",
    Journal: "accept accept_encoded accept_many fail note obstacle write_failed",
    PriorityStore: "add fail note obstacle remove write_failed",
    FifoWork: "abandon",
}
"""A channel's, in Trio's thread; and what only calls others."""


@pytest.mark.parametrize("engine", BY_HAND, ids=lambda engine: engine.__name__)
def test_a_call_without_a_turn_is_known(engine: Any) -> None:
    calls = dict(inspect.getmembers(engine, inspect.isfunction))
    bare = {name for name, call in calls.items() if name[0] != "_" and not hasattr(call, "__wrapped__")}
    assert bare == {*BY_HAND[engine].split(), *LOOKS[engine].split(), *STEPS[engine].split()}
