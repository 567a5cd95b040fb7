# What is seen of a thing from its files: the numbers that its owner has, and nothing of it is touched.

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import diskq
from diskq import Journal, Queue, QueueOptions, Stream, StreamOptions
from diskq.engine.priority.store import PriorityStore
from diskq.engine.queue.files import QueueFiles, QueuePosition
from diskq.storage.fs import OsFileSystem
from diskq.tools.record_count import count_between
from diskq.tools.stores import Store
from diskq.tools.watch.samples import Sample
from diskq.tools.watch.segment_list import Growth
from diskq.tools.watch.watch import StoreWatch, WatchReading
from tests.clock import Clock
from tests.contract.counting import without_collections

GOLDEN = Path(__file__).parents[2] / "golden"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def sample(reading: WatchReading) -> Sample:
    assert reading.sample is not None, reading.failure
    return reading.sample


def look(watch: StoreWatch) -> WatchReading:
    (reading,) = watch.look()
    return reading


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


# --- depth ----------------------------------------------------------------------------------------


def test_a_queue_is_as_deep_as_it_was_recorded_and_what_came_since(tmp_path: Path) -> None:
    with Queue(tmp_path, "q", options=QueueOptions(sync_every=100_000, segment_size=10_000)) as queue:
        queue.put_many([b"x" * 100] * 250)
        queue.sync()
        watch = StoreWatch([tmp_path])
        assert sample(look(watch)).depth == 250
        for _ in range(3):
            queue.put_many([b"y" * 77] * 100)
            assert sample(look(watch)).depth == queue.depth
        queue.get_many(120)
        queue.sync()
        assert sample(look(watch)).depth == queue.depth == 430


def test_a_queue_that_was_emptied_is_followed_from_there(tmp_path: Path) -> None:
    with Queue(tmp_path, "q") as queue:
        queue.put_many([b"x" * 100] * 50)
        queue.sync()
        watch = StoreWatch([tmp_path])
        look(watch)
        queue.clear()
        queue.put_many([b"x" * 100] * 7)
        queue.sync()
        assert sample(look(watch)).depth == 7


def test_a_message_that_is_being_written_is_not_counted_yet(tmp_path: Path) -> None:
    with Queue(tmp_path, "q") as queue:
        queue.put_many([b"x" * 100] * 3)
    data = tmp_path / "q.diskqueue.000000.dat"
    watch = StoreWatch([tmp_path])
    look(watch)
    with data.open("ab") as file:
        file.write(b"\0\0\0\x05he")
    assert sample(look(watch)).depth == 3
    with data.open("ab") as file:
        file.write(b"llo")
    assert sample(look(watch)).depth == 4


def test_a_stream_has_what_its_indexes_say(tmp_path: Path) -> None:
    with Stream(tmp_path / "s", options=StreamOptions(partition_count=3, segment_size=4096)) as stream:
        watch = StoreWatch([tmp_path / "s"])
        for number in range(300):
            stream.append(b"value %d" % number)
        stream.flush()
        found = sample(look(watch))
    assert found.depth == 300
    assert found.segments == len([*(tmp_path / "s").rglob("*.data")])


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_journal_ends_with_its_last_message(tmp_path: Path, size: int) -> None:
    with Journal(tmp_path / "j") as journal:
        watch = StoreWatch([tmp_path / "j"])
        for number in range(1, 6):
            journal.append(bytes(size))
            journal.flush()
            assert sample(look(watch)).depth == number


def test_a_journal_whose_end_is_torn_is_walked_once(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        for _ in range(5):
            journal.append(b"hello")
    (data,) = (tmp_path / "j" / "jnl").glob("*.jnl")
    os.truncate(data, data.stat().st_size - 1)
    assert sample(look(StoreWatch([tmp_path / "j"]))).depth == 4


def test_a_store_is_read_once_and_then_followed(tmp_path: Path) -> None:
    with PriorityStore(tmp_path) as store:
        store.create_queue("mail")
        mail = store.queue("mail")
        store.put(mail, b"early", 1)
        store.sync()
        watch = StoreWatch([tmp_path])
        look(watch)
        store.put_many(mail, [b"x"] * 100, 5)
        store.sync()
        found = sample(look(watch))
    assert found.depth == 101
    assert [(part.name, part.lag) for part in found.parts] == [("", 0), ("mail", 101)]


# --- rates ----------------------------------------------------------------------------------------


def test_rates_are_differences_over_the_seconds_between(tmp_path: Path, clock: Clock) -> None:
    with Queue(tmp_path, "q") as queue:
        queue.put_many([b"x" * 96] * 10)
        queue.sync()
        watch = StoreWatch([tmp_path], fs=clock)
        assert look(watch).messages_in is None
        queue.put_many([b"x" * 96] * 200)
        queue.get_many(50)
        queue.sync()
        clock.now += 2
        found = look(watch)
    assert (found.messages_in, found.bytes_in) == (100.0, 10_000.0)
    assert (found.messages_out, found.bytes_out) == (25.0, 2_500.0)
    assert found.history == (100.0,)


def test_a_rate_is_of_the_last_seconds_only(tmp_path: Path, clock: Clock) -> None:
    with Stream(tmp_path / "s") as stream:
        stream.append(b"x")
        stream.flush()
        watch = StoreWatch([tmp_path / "s"], fs=clock)
        look(watch)
        for _ in range(1000):
            stream.append(b"x")
        stream.flush()
        for _ in range(20):
            clock.now += 1
            last = look(watch)
    assert last.messages_in == 0.0
    assert last.history[0] == 1000.0
    assert set(last.history[1:]) == {0.0}


def test_what_was_removed_was_not_written(clock: Clock) -> None:
    growth = Growth()
    growth.look({1: 1000, 2: 50})
    assert growth.look({2: 80, 3: 5}) == 35


# --- readers --------------------------------------------------------------------------------------


async def test_a_group_lags_by_what_it_has_not_committed(tmp_path: Path, clock: Clock) -> None:
    async with (
        diskq.open_producer(tmp_path / "s") as producer,
        diskq.open_consumer(tmp_path / "s", group="billing", start="oldest") as consumer,
    ):
        await producer.send_many([b"x"] * 10)
        watch = StoreWatch([tmp_path / "s"], fs=clock)
        for _ in range(4):
            message = await consumer.receive()
            await consumer.commit(message)
        await consumer.sync()
        look(watch)
        for _ in range(2):
            message = await consumer.receive()
            await consumer.commit(message)
        await consumer.sync()
        clock.now += 1
        found = look(watch)
    (part,) = sample(found).parts
    assert (part.name, part.lag) == ("billing", 4)
    assert found.parts_out == {"billing": 2.0}


def test_readers_of_journals_lag_as_well() -> None:
    found = sample(look(StoreWatch([GOLDEN / "sej" / "segments" / "data"])))
    assert [(part.name, part.lag) for part in found.parts] == [("reader1", 27), ("reader2", 44)]


async def test_a_spool_says_what_waits_and_what_is_on_its_way(tmp_path: Path) -> None:
    is_trying = trio.Event()

    async def deliver(batch: Any) -> None:
        is_trying.set()
        await trio.sleep_forever()

    async with diskq.open_spool(tmp_path, deliver=deliver) as spool:
        await spool.send(b"one")
        await is_trying.wait()
        found = sample(look(StoreWatch([tmp_path])))
        assert found.store.kind == "spool"
        assert (found.depth, found.in_flight, found.dead_letters) == (1, 1, 0)
        assert found.holder is not None


# --- ages -----------------------------------------------------------------------------------------


def test_the_age_is_the_oldest_messages_where_the_format_has_times(tmp_path: Path) -> None:
    with Stream(tmp_path / "s") as stream:
        before = time.time_ns()
        stream.append(b"x")
        after = time.time_ns()
    found = look(StoreWatch([tmp_path / "s"]))
    assert sample(found).is_oldest_exact
    assert sample(found).oldest_ns is not None
    assert before <= sample(found).oldest_ns <= after  # type: ignore[operator]


def test_or_else_the_files_and_that_is_said(tmp_path: Path) -> None:
    with Queue(tmp_path, "q") as queue:
        queue.put(b"x")
    written = time.time() - 3600
    os.utime(tmp_path / "q.diskqueue.000000.dat", (written,) * 2)
    found = look(StoreWatch([tmp_path]))
    assert not sample(found).is_oldest_exact
    assert found.age is not None
    assert 3600 <= found.age <= time.time() - written


# --- who, and what is wrong -----------------------------------------------------------------------


def test_what_is_set_aside_is_a_problem(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.append(b"hello")
    (tmp_path / "j" / ".diskq" / "journal-data" / "0000000000000000.jnl.bad").write_bytes(b"?")
    assert sample(look(StoreWatch([tmp_path / "j"]))).problems == ("0000000000000000.jnl.bad",)


def test_what_cannot_be_read_is_reported_and_the_rest_is_shown(tmp_path: Path) -> None:
    with Queue(tmp_path, "q") as queue:
        queue.put(b"x")
    (tmp_path / "log").mkdir()
    (tmp_path / "tflux.metadata").write_bytes(b"nonsense")
    (tmp_path / "tflux.snapshot").write_bytes(b"nonsense" * 100)
    failures = {reading.store.kind: reading.failure for reading in StoreWatch([tmp_path]).look()}
    assert failures["queue"] is None


def test_a_queue_that_comes_later_is_seen(tmp_path: Path, clock: Clock) -> None:
    with Queue(tmp_path, "a") as queue:
        queue.put(b"x")
    watch = StoreWatch([tmp_path], fs=clock)
    watch.look()
    with Queue(tmp_path, "b") as queue:
        queue.put(b"x")
    clock.now += 10
    assert [reading.store.name for reading in watch.look()] == ["a", "b"]


def test_what_a_killed_process_said_is_not_believed(tmp_path: Path) -> None:
    script = """
import os, signal, sys, trio, diskq
from diskq.storage.status_file import DiskBound, StatusNote
async def main():
    async with diskq.open_queue(sys.argv[1], "q") as queue:
        await queue.send(b"x" * 100, durability="synced")
        note = StatusNote(os.getpid(), 1, 4, 40_000_000, 20_000_000, DiskBound())
        open(sys.argv[1] + "/.diskq/q.status", "wb").write(note.pack())
        print("ready", flush=True)
        signal.pause()  # no task runs: the queue would write a note of its own
trio.run(main)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        watch = StoreWatch([tmp_path])
        found = look(watch)
        assert sample(found).depth == 1
        assert sample(found).holder is not None
        assert f"process {process.pid} " in str(sample(found).holder)
        assert found.sync_seconds == 0.01
        process.send_signal(signal.SIGKILL)
        process.wait()
        found = look(watch)
    assert sample(found).depth == 1
    assert (sample(found).holder, sample(found).status, found.sync_seconds) == (None, None, None)


# --- the law --------------------------------------------------------------------------------------


def filled(kind: str, path: Path) -> Path:
    if kind == "queue":
        with Queue(path, "q") as queue:
            queue.put_many([b"x"] * 10)
    elif kind == "stream":
        with Stream(path) as stream:
            stream.append(b"x")
    elif kind == "journal":
        with Journal(path) as journal:
            journal.append(b"x")
    else:
        with PriorityStore(path) as store:
            store.put(store.queue(), b"x", 1)
    return path


@pytest.mark.parametrize("kind", ["queue", "stream", "journal", "jobs"])
def test_looking_changes_nothing_and_leaves_no_file_open(kind: str, tmp_path: Path) -> None:
    path = filled(kind, tmp_path)
    with without_collections():
        before, handles = contents(path), len(os.listdir("/proc/self/fd"))
        watch = StoreWatch([path])
        for _ in range(3):
            watch.look()
        assert contents(path) == before
        assert len(os.listdir("/proc/self/fd")) == handles


def test_what_checksums_vouch_for_is_not_read(tmp_path: Path) -> None:
    with Queue(tmp_path, "q", options=QueueOptions(sync_every=10_000_000)) as queue:
        queue.put_many([b"x" * 100] * 20_000)
        queue.sync()
        fs = Counting()
        files = QueueFiles(fs, str(tmp_path), "q")
        counted = count_between(fs, files, QueuePosition(0, 0), QueuePosition(0, 20_000 * 104))
    assert counted == (20_000, QueuePosition(0, 20_000 * 104))
    assert fs.taken < 20_000 * 104 / 50


class Counting(OsFileSystem):
    """The disk, and how much is read from it."""

    taken = 0

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        data = super().pread(handle, size, offset)
        self.taken += len(data)
        return data


@pytest.mark.parametrize("start", [0, 1, 39, 41])
def test_it_is_counted_from_the_middle_of_a_block_too(tmp_path: Path, start: int) -> None:
    with Queue(tmp_path, "q") as queue:
        queue.put_many([b"x" * 96] * 1000)
    fs = OsFileSystem()
    files = QueueFiles(fs, str(tmp_path), "q")
    counted = count_between(fs, files, QueuePosition(0, start * 100), QueuePosition(0, 100_000))
    assert counted.records == 1000 - start


def test_a_message_larger_than_a_window_counts_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue(tmp_path, "q") as queue:
        queue.put_many([b"a", bytes(3 * 2**20), b"b"])
    (tmp_path / ".diskq" / "q.diskqueue.000000.dat.sums").unlink()
    fs = OsFileSystem()
    end = QueuePosition(0, (tmp_path / "q.diskqueue.000000.dat").stat().st_size)
    assert count_between(fs, QueueFiles(fs, str(tmp_path), "q"), QueuePosition(0, 0), end) == (3, end)


def golden() -> list[Any]:
    wanted: dict[str, Callable[[Path], bool]] = {
        "nsq": lambda path: True,
        "sej": lambda path: True,
        "diskq": lambda path: True,
        "taskflux": lambda path: False,
    }
    return [
        pytest.param(path / "data", id=f"{peer}-{path.name}")
        for peer, is_wanted in wanted.items()
        for path in sorted((GOLDEN / peer).iterdir())
        if (path / "data").is_dir() and is_wanted(path)
    ]


@pytest.mark.parametrize("path", golden())
def test_what_peers_left_can_be_looked_at(path: Path) -> None:
    watch = StoreWatch([path])
    for _ in range(2):
        for reading in watch.look():
            assert sample(reading).size > 0
            assert isinstance(reading.store, Store)
            assert sample(reading).holder is None or reading.store.kind in ("stream", "journal")
