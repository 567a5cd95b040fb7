# What is dropped without `close`. Law: it warns as Python's own files do, and lets go of its descriptors and
# its lock; nothing that was promised is lost, as after a kill; a child of a fork lets go of nothing.

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import diskq
from diskq.engine.queue.snapshot import QueueSnapshot, SnapshotReader
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.groups import ConsumerGroup
from diskq.engine.stream.reader import ReadableStream
from diskq.engine.stream.time_lookup import TimeLookup
from diskq.storage.budget import DiskBudget
from diskq.storage.fs import OsFileSystem
from tests.contract.kinds import ENGINES, NAME, ChannelKind, Kind, bodies, channels, engines
from tests.loops import INSTALLED, LOOPS, run_on

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")


@pytest.fixture(autouse=True, scope="module")
def _only_new_garbage_is_looked_for() -> None:
    """Else each test would look at all that is left in this process, for a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _each_loop_has_run_before() -> None:
    """The first loop of uvloop in a process opens a pipe, which all later ones use."""

    async def nothing() -> None: ...

    for loop in INSTALLED:
        run_on(loop, nothing)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def dropped(make: Callable[[], object], *, is_inherited: bool = False) -> list[str]:
    """What is warned when the result of `make` is dropped; all its descriptors are closed then.

    Of what was inherited none need be, but that of a mapping is, with the mapping.
    """
    gc.collect()
    before = descriptors()
    warned: list[tuple[type[Warning], str]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        # One that is recorded keeps its object, and what that refers to.
        warnings.showwarning = lambda message, category, *_: warned.append((category, str(message)))
        make()
        gc.collect()
    assert descriptors() <= before if is_inherited else descriptors() == before
    assert {category for category, _ in warned} <= {ResourceWarning}
    return [text for _, text in warned]


@pytest.mark.parametrize("wal", [False, True], ids=["as engine", "as its channel"])
@pytest.mark.parametrize("kind", engines("leases", "spool", "threaded spool"), ids=str)  # its thread has it
def test_an_engine_warns_and_lets_go_and_its_messages_are_there(
    kind: Kind, wal: bool, tmp_path: Path
) -> None:
    sent = bodies(6)

    def use() -> None:
        store = kind.open(tmp_path, wal=wal, **kind.small)
        store.put_many(sent[:3])
        store.put(sent[3], "synced")
        store.put_many(sent[4:])

    (warned,) = dropped(use)
    assert warned.startswith("unclosed ")
    assert str(tmp_path) in warned
    assert kind.read(tmp_path) == sent


def test_leases_that_are_dropped_come_again_and_what_was_acknowledged_does_not(tmp_path: Path) -> None:
    sent = bodies(6)

    def use() -> None:
        store: Any = ENGINES["leases"].open(tmp_path)
        store.put_many(sent, "synced")
        assert [store.take(), store.take()] == sent[:2]
        assert len(store.work.get_many(2)) == 2

    (warned,) = dropped(use)
    assert warned.startswith("unclosed queue")
    assert str(tmp_path) in warned
    assert ENGINES["leases"].read(tmp_path) == sent[2:]


def test_the_files_of_a_dropped_spool_are_let_go_and_what_was_not_delivered_is_there(tmp_path: Path) -> None:
    sent = bodies(6)

    def use() -> None:
        store = ENGINES["spool"].open(tmp_path)
        store.put_many(sent, "synced")
        assert [store.take(), store.take()] == sent[:2]

    warned = dropped(use)
    assert sorted(text.partition(" in ")[0].partition(" of ")[0] for text in warned) == [
        "unclosed delivery cursor",
        "unclosed queue 'dead'",
        "unclosed queue 'spool'",
    ]
    assert all(str(tmp_path) in text for text in warned)
    assert ENGINES["spool"].read(tmp_path) == sent[2:]


@pytest.mark.parametrize("kind", engines("leases"), ids=str)
def test_the_error_says_that_the_store_is_open_in_this_very_process(kind: Kind, tmp_path: Path) -> None:
    with kind.open(tmp_path), pytest.raises(diskq.LockedError) as raised:
        kind.open(tmp_path)
    assert "this process has it open already: close it first; dropped unclosed, it" in str(raised.value)


@pytest.mark.parametrize("kind", engines(), ids=str)
def test_what_was_closed_or_could_not_be_opened_warns_of_nothing(kind: Kind, tmp_path: Path) -> None:
    def use() -> None:
        with kind.open(tmp_path) as store:
            store.put(b"x")
            with pytest.raises(diskq.LockedError):
                kind.open(tmp_path)

    assert dropped(use) == []


READERS: dict[str, Callable[[Path], Any]] = {
    "stream": lambda root: ReadableStream(root / "s").open(0).seek_oldest(),
    "journal": lambda root: diskq.JournalReader(root / "j").seek_oldest(),
    "snapshot": lambda root: SnapshotReader(root, NAME, QueueSnapshot(root, NAME).plan(1)[0]).columns(1),
    "time lookup": lambda root: TimeLookup(
        OsFileSystem(), StreamFiles(OsFileSystem(), str(root / "s")).partition(0)
    ).offset_after(0),
    "claim of a group": lambda root: ConsumerGroup(
        OsFileSystem(), StreamFiles(OsFileSystem(), str(root / "s")), "g"
    ).claim(0),
    "committed offset of a journal": lambda root: diskq.JournalReaderOffset(root / "j", "reader"),
}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_warns_and_lets_go(name: str, tmp_path: Path) -> None:
    with diskq.Queue(tmp_path, NAME) as queue:
        queue.put_many(bodies(3))
    with diskq.Stream(tmp_path / "s", options=diskq.StreamOptions(partition_count=1)) as stream:
        stream.append_many(bodies(3))
    with diskq.Journal(tmp_path / "j") as journal:
        journal.append_many(bodies(3))
    for _ in range(2):  # the second one finds no lock
        (warned,) = dropped(lambda: READERS[name](tmp_path))
        assert warned.startswith("unclosed ")
        assert str(tmp_path) in warned


RECEIVERS: dict[str, Callable[[Path], Any]] = {
    "consumer": lambda root: diskq.open_consumer(root / "s"),
    "scanner": lambda root: diskq.open_scanner(root / "j"),
    "scanner of shards": lambda root: diskq.open_shard_scanner(root, "many", 1),
}
"""Those without a task of their own: Trio lets no task end that has left one behind."""


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", RECEIVERS)
def test_a_receiver_whose_block_was_never_left_warns_and_lets_go(
    name: str, loop: str, tmp_path: Path
) -> None:
    with diskq.Stream(tmp_path / "s", options=diskq.StreamOptions(partition_count=1)) as stream:
        stream.append_many(bodies(3))
    for directory in ("j", "many.1.000"):
        with diskq.Journal(tmp_path / directory) as journal:
            journal.append_many(bodies(3))

    async def use() -> None:
        receiver = await RECEIVERS[name](tmp_path).__aenter__()
        assert (await receiver.receive()).value == bodies(3)[0]

    warned = dropped(lambda: run_on(loop, use))
    assert warned
    assert all(text.startswith("unclosed ") and str(tmp_path) in text for text in warned)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", channels("spool"), ids=str)
def test_a_channel_whose_block_was_never_left_warns_and_lets_go(
    kind: ChannelKind, loop: str, tmp_path: Path
) -> None:
    async def use() -> None:
        opened = await kind.opening(tmp_path).__aenter__()
        await (opened.queue() if kind.name == "priority" else opened).send(b"x")

    (warned,) = dropped(lambda: run_on(loop, use))
    assert warned.startswith("unclosed ")
    assert kind.read(tmp_path) == [b"x"]
    for thread in threading.enumerate():
        if thread.name.startswith("diskq sync"):
            thread.join(60)
            assert not thread.is_alive(), "it waits for work that nobody can give it"


@pytest.mark.parametrize("kind", engines("leases", "spool", "threaded spool"), ids=str)
def test_a_child_of_a_fork_that_drops_it_warns_of_nothing_and_its_parent_goes_on(
    kind: Kind, tmp_path: Path
) -> None:
    stores = [kind.open(tmp_path)]
    if (child := os.fork()) == 0:
        failures = dropped(stores.clear, is_inherited=True)
        os._exit(len(failures))
    assert os.waitpid(child, 0)[1] == 0
    (store,) = stores
    with store:
        store.put(b"x", "synced")
    assert kind.read(tmp_path) == [b"x"]


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_a_dropped_member_leaves_its_budget(kind: str, tmp_path: Path) -> None:
    budget = DiskBudget(1024 * 1024)

    def use() -> object:
        if kind == "queue":
            return diskq.Queue(tmp_path, NAME, options=diskq.QueueOptions(budget=budget))
        return diskq.Stream(tmp_path, options=diskq.StreamOptions(partition_count=1, budget=budget))

    assert len(dropped(use)) == 1
    assert budget.statistics().members == ()
    assert budget.statistics().used == 0


def test_a_store_that_is_open_at_the_end_of_the_process_raises_nothing(tmp_path: Path) -> None:
    program = f"""
import diskq
queue = diskq.Queue({str(tmp_path)!r}, "e")
queue.put(b"x")
"""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "unclosed queue" in done.stderr
    with diskq.Queue(tmp_path, "e") as queue:
        assert queue.get() == b"x"
