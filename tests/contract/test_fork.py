# A child of a fork may not use what its parent opened. Law: each call on it raises ForkedError and changes
# nothing; the parent goes on as if there were no child, and so do its locks.

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import outcome
import pytest

import diskq
from diskq import ForkedError, LockedError
from diskq.engine.queue.snapshot import QueueSnapshot, SnapshotReader
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.groups import ConsumerGroup
from diskq.engine.stream.reader import ReadableStream
from diskq.hub.store import HubStore
from diskq.storage.fs import OsFileSystem
from tests.contract.channels import Handle, disk, handles, left
from tests.contract.kinds import ENGINES, NAME, ChannelKind, Kind, Opened, bodies, body, channels, engines
from tests.hub.rig import get, message, put
from tests.loops import each_loop

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

BY_THREADS = ("spool.state", "spool.note")
"""What the thread of a spool writes down, now and then, of its tries."""


class Child:
    """A forked process that calls `act`, sends back the result, and waits until `end`."""

    def __init__(self, act: Callable[[], object]) -> None:
        results, told = os.pipe()
        wait, go_on = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(go_on)
                os.write(told, pickle.dumps(act()))
                os.close(told)
                os.read(wait, 1)
            except BaseException as failure:
                os.write(told, pickle.dumps(repr(failure)))
            finally:
                os._exit(0)
        os.close(told)
        os.close(wait)
        self._go_on = go_on
        with open(results, "rb") as file:
            self.result: Any = pickle.loads(file.read())

    def end(self) -> None:
        os.close(self._go_on)
        os.waitpid(self.pid, 0)


def in_child(act: Callable[[], object]) -> Any:
    child = Child(act)
    child.end()
    return child.result


def outcomes(calls: Iterator[tuple[str, Callable[[], object]]]) -> dict[str, str]:
    """What each call raises, by its name."""
    raised = {}
    for name, call in calls:
        try:
            call()
        except BaseException as failure:
            raised[name] = type(failure).__name__
        else:
            raised[name] = "nothing"
    return raised


def calls_of(store: Opened) -> Iterator[tuple[str, Callable[[], object]]]:
    yield from store.calls().items()
    yield "close", store.engine.close


def all_forked(told: dict[str, str]) -> bool:
    assert told == dict.fromkeys(told, "ForkedError")
    return bool(told)


def content(path: Path) -> dict[str, bytes]:
    files = (each for each in path.rglob("*") if each.is_file() and not each.name.startswith(BY_THREADS))
    return {str(file): file.read_bytes() for file in sorted(files)}


@pytest.mark.parametrize("kind", engines(), ids=str)
@pytest.mark.parametrize("wal", [False, True], ids=["as engine", "as its channel"])
def test_each_call_of_a_child_raises_and_touches_no_file(kind: Kind, wal: bool, tmp_path: Path) -> None:
    sent = bodies(6)
    with kind.open(tmp_path, wal=wal, **kind.small) as store:
        store.put_many(sent[:3])
        before = content(tmp_path)
        assert all_forked(in_child(lambda: outcomes(calls_of(store))))
        assert content(tmp_path) == before
        store.put_many(sent[3:])
        store.sync()
        store.put(b"last")
    assert kind.read_with_repairs(tmp_path) == ([*sent, b"last"], ())


@pytest.mark.parametrize("kind", engines(), ids=str)
def test_a_child_that_leaves_the_block_lets_go_of_nothing(kind: Kind, tmp_path: Path) -> None:
    store = kind.open(tmp_path)
    engine = store.engine

    def leave() -> str:
        with engine:
            pass
        return "left"

    def forget() -> str:
        nonlocal store, engine
        del store, engine
        gc.collect()
        return "forgotten"

    assert in_child(leave) == "left"
    assert in_child(forget) == "forgotten"
    with pytest.raises(LockedError):
        kind.open(tmp_path)
    store.put(b"one")
    store.close()
    assert kind.read(tmp_path) == [b"one"]


@pytest.mark.parametrize("kind", engines(), ids=str)
def test_a_child_keeps_no_lock_of_a_parent_that_has_closed(kind: Kind, tmp_path: Path) -> None:
    store = kind.open(tmp_path)
    child = Child(lambda: outcomes(iter([("close", store.close)])))
    store.put(b"one")
    store.close()
    with kind.open(tmp_path) as again:
        again.put(b"two")
    child.end()
    assert kind.read(tmp_path) == [b"one", b"two"]


@pytest.mark.parametrize("kind", engines(), ids=str)
def test_a_child_opens_what_is_closed(kind: Kind, tmp_path: Path) -> None:
    store = kind.open(tmp_path)
    store.put(b"one")

    def try_to_open() -> str:
        try:
            kind.open(tmp_path)
        except LockedError:
            return "locked"
        return "open"

    def go_on() -> str:
        with kind.open(tmp_path) as own:
            own.put(b"two", "synced")
            told: dict[str, str] = in_child(lambda: outcomes(calls_of(own)))
            return told["close"]

    assert in_child(try_to_open) == "locked"
    store.close()
    assert in_child(go_on) == "ForkedError"
    assert kind.read(tmp_path) == [b"one", b"two"]


def test_the_error_names_the_process_that_has_it(tmp_path: Path) -> None:
    with ENGINES["queue"].open(tmp_path) as store:

        def put() -> tuple[str, int]:
            try:
                store.put(b"x")
            except ForkedError as error:
                return str(error), error.pid
            return "", 0

        told, pid = in_child(put)
    assert pid == os.getpid()
    assert told.startswith(f"queue {NAME!r} in {tmp_path}: opened before a fork by process {pid}")


def steps(call: Callable[[Any], Any], its: Any) -> Callable[[], object]:
    """Run an awaitable as if the run of the parent went on, which it does not in a child."""

    def run() -> None:
        waiting = call(its)
        waiting.send(None)
        for _ in range(100):
            waiting.send(outcome.Value(None))
        raise AssertionError("it goes on and on")

    return run


CLOSED_APART = ("merge", "replay", "watch of a root")
"""They have no store that is closed with them."""

threads_beside = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@threads_beside
@pytest.mark.parametrize("handle", handles("sender from threads"), ids=str)
@each_loop
async def test_each_call_of_a_child_on_what_is_open_in_an_event_loop_raises_and_touches_no_file(
    handle: Handle,
) -> None:
    fs = disk()
    async with handle.open(fs) as its:
        calls: dict[str, Callable[[], object]] = {
            name: partial(call, its) for name, call in handle.plain.items() if name != "close"
        }
        calls |= {f"{name}, awaited": steps(call, its) for name, call in handle.awaited.items()}
        calls |= {"close": partial(handle.plain["close"], its)} if "close" in handle.plain else {}
        calls |= {"aclose": steps(lambda its: its.aclose(), its)} if hasattr(its, "aclose") else {}

        def act() -> tuple[dict[str, str], bool]:
            before = fs.files(), fs.open_files()
            return outcomes(iter(calls.items())), (fs.files(), fs.open_files()) == before

        told, is_untouched = in_child(act)
        assert all_forked(told)
        assert is_untouched
        if "send" in handle.awaited:
            await its.send(b"x")
    assert ("send" in handle.awaited) == (b"x" in left(fs, handle.kind)[handle.kind])


@threads_beside
@pytest.mark.parametrize("handle", [each for each in handles() if each.name in CLOSED_APART], ids=str)
@each_loop
async def test_a_child_does_not_close_again_what_its_parent_has_closed(handle: Handle) -> None:
    async with handle.open(disk()) as its:
        its.close()
        calls = {"close": its.close, "aclose": steps(lambda its: its.aclose(), its)}
        assert all_forked(in_child(lambda: outcomes(iter(calls.items()))))


@threads_beside
@pytest.mark.parametrize("kind", channels(), ids=str)
@each_loop
async def test_a_channel_is_its_parents(kind: ChannelKind, tmp_path: Path) -> None:
    async with kind.open(tmp_path) as channel:
        await channel.send(b"one")
        before = content(tmp_path)
        calls = {
            "send_nowait": lambda: channel.send_nowait(b"x"),
            "send": steps(lambda _: channel.send(b"x"), None),
            "sync": steps(lambda _: channel.sync(), None),
            "close": channel.handle.close,
        }
        assert all_forked(in_child(lambda: outcomes(iter(calls.items()))))
        assert content(tmp_path) == before
        await channel.send(b"two", "synced")
    assert kind.read(tmp_path) == [b"one", b"two"]


def test_readers_are_their_parents(tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("queue", "stream", "journal", "hub")}
    for name, place in places.items():
        place.mkdir()
        if name != "hub":
            with ENGINES[name].open(place) as store:
                store.put_many(bodies(9))
    fs = OsFileSystem()
    part = QueueSnapshot(places["queue"], NAME).plan()[0]
    group = ConsumerGroup(fs, StreamFiles(fs, str(places["stream"])), "g")
    with (
        SnapshotReader(places["queue"], NAME, part) as snapshot,
        ReadableStream(places["stream"]).open(0) as stream,
        diskq.JournalReader(places["journal"]) as journal,
        diskq.JournalReaderOffset(places["journal"], "me") as offset,
        group.committed_offset(0) as committed_offset,
        closing(HubStore(str(places["hub"]), diskq.HubOptions(), OsFileSystem())) as hub,
    ):
        for reader in (stream, journal):
            reader.seek_oldest()
            assert reader.read() is not None
        assert put(hub, [message(0)]).next_offset == 1
        before = content(tmp_path)
        calls: dict[str, Callable[[], object]] = {
            "snapshot": snapshot.columns,
            "stream": stream.read,
            "stream, elsewhere": stream.seek_newest,
            "journal": journal.read,
            "journal, elsewhere": journal.seek_newest,
            "offset": lambda: offset.commit(5),
            "offset, closed": offset.close,
            "committed offset": lambda: committed_offset.commit(5),
            "committed offset, closed": committed_offset.close,
            "hub, put": lambda: put(hub, [message(1)]),
            "hub, get": lambda: get(hub),
            "hub, closed": hub.close,
        }
        assert all_forked(in_child(lambda: outcomes(iter(calls.items()))))
        assert content(tmp_path) == before
        offset.commit(3)
        committed_offset.commit(4)
        assert put(hub, [message(1)]).next_offset == 2
        assert [message.value for message in journal.read_many(99)] == bodies(8, start=1)
        assert [message.value for message in stream.read_many(99)] == bodies(8, start=1)
        assert body(8) in snapshot.columns()[1].values  # type: ignore[index]
