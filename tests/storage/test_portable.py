# The file system of Python's own calls, which is Windows': the same but for what docs/platforms.md says.

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio

import diskq
from diskq.errors import LockedError
from diskq.storage.fs import FileSystem, PortableFileSystem

ROOT = Path(__file__).parent.parent.parent
BODIES = [b"message %d" % number for number in range(200)]

# What Windows' `os` has not.
NOT_THERE = ("pread", "pwrite", "fdatasync", "O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY", "killpg", "fork")


@pytest.fixture
def fs(monkeypatch):
    for name in NOT_THERE:
        monkeypatch.delattr(os, name)
    return PortableFileSystem()


# --- its operations -------------------------------------------------------------------------------


def test_it_has_every_operation_of_a_file_system():
    verbs = {name for name in vars(FileSystem) if not name.startswith("_")}
    assert verbs - {"native"} <= set(dir(PortableFileSystem))
    assert not PortableFileSystem.native


def test_bytes_are_written_and_read_where_they_belong(fs, tmp_path):
    handle = fs.open(str(tmp_path / "f"), write=True, create=True)
    assert fs.pwrite(handle, b"world", 6) == 5
    assert fs.pwrite(handle, b"hello ", 0) == 6
    assert fs.pread(handle, 100, 3) == b"lo world"
    assert fs.pread(handle, 3, 100) == b""
    assert (fs.size(handle), fs.size_of(str(tmp_path / "f")), fs.has_name(handle)) == (11, 11, True)
    fs.sync_files([handle])
    fs.close(handle)


def test_a_file_that_is_not_there_has_no_size(fs, tmp_path):
    assert fs.size_of(str(tmp_path / "f")) is None
    assert fs.stamp_of(str(tmp_path / "f")) is None


def test_a_rename_replaces_what_is_there(fs, tmp_path):
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "old").write_bytes(b"old")
    fs.rename(str(tmp_path / "new"), str(tmp_path / "old"))
    fs.sync_directory(str(tmp_path))
    assert (tmp_path / "old").read_bytes() == b"new"


def test_a_directory_that_is_not_there_cannot_be_synced(fs, tmp_path):
    with pytest.raises(FileNotFoundError):
        fs.sync_directory(str(tmp_path / "gone"))


def test_threads_read_one_handle_without_getting_each_others_bytes(fs, tmp_path):
    (tmp_path / "f").write_bytes(bytes(range(256)) * 64)
    handle = fs.open(str(tmp_path / "f"))
    wrong: list[int] = []

    def read(first: int) -> None:
        for turn in range(300):
            offset = (first + turn) % 256
            if fs.pread(handle, 1, offset) != bytes([offset]):
                wrong.append(offset)

    threads = [threading.Thread(target=read, args=(number * 50,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fs.close(handle)
    assert wrong == []


# --- everything on it -----------------------------------------------------------------------------


async def test_a_queue_is_written_rolled_and_read_again(fs, tmp_path):
    async with diskq.open_queue(tmp_path, "q", fs=fs, segment_size=1024) as queue:
        await queue.send_many(BODIES[:100])
        for body in BODIES[100:]:
            await queue.send(body)
        await queue.sync()
    async with diskq.open_queue(tmp_path, "q", fs=fs, segment_size=1024) as queue:
        assert [await queue.receive() for _ in BODIES] == BODIES


async def test_a_stream_is_followed_by_looking_now_and_then(fs, tmp_path):
    stream = tmp_path / "s"
    with diskq.Stream(
        stream, options=diskq.StreamOptions(partition_count=1, segment_size=1024), fs=fs
    ) as producer:
        producer.append(b"first")
        producer.flush()
        async with diskq.open_consumer(stream, group="g", fs=fs) as consumer:
            assert (await consumer.receive()).value == b"first"
            for body in BODIES:
                producer.append(body)
            producer.flush()
            with trio.fail_after(30):
                assert [(await consumer.receive()).value for _ in BODIES] == BODIES
            await consumer.commit()


async def test_a_journal_a_store_and_a_spool(fs, tmp_path):
    got: list[bytes] = []

    async def deliver(batch: diskq.Batch) -> None:
        got.extend(batch)

    async with diskq.open_journal(tmp_path / "j", fs=fs, segment_size=1024) as journal:
        for body in BODIES:
            await journal.send(body)
        async with journal.open_scanner("oldest", end="close") as scanner:
            assert [message.value async for message in scanner] == BODIES
    async with diskq.open_priority_store(tmp_path / "p", fs=fs) as store:
        mail = await store.create_queue("mail")
        await mail.send(b"later", priority=2)
        await mail.send(b"now", priority=1)
    async with (
        diskq.open_priority_store(tmp_path / "p", fs=fs) as store,
        store.queue("mail").receiving() as record,
    ):
        assert record.body == b"now"
    async with diskq.open_spool(tmp_path / "spool", deliver, fs=fs) as spool:
        for body in BODIES:
            await spool.send(body)
        await spool.drained()
    assert got == BODIES


def test_two_do_not_write_to_one_queue(fs, tmp_path):
    with diskq.Queue(tmp_path, "q", fs=fs), pytest.raises(LockedError):
        diskq.Queue(tmp_path, "q", fs=fs)


def test_a_torn_tail_is_cut_and_kept_aside(fs, tmp_path):
    with diskq.Queue(tmp_path, "q", fs=fs) as queue:
        queue.put(b"whole")
    (data,) = tmp_path.glob("q.diskqueue.0*.dat")
    data.write_bytes(data.read_bytes() + b"\0\0\0\5to")
    with diskq.Queue(tmp_path, "q", fs=fs) as queue:
        assert queue.peek_many(10) == [b"whole"]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_tests_of_the_real_disk_pass_on_it():
    files = [
        "tests/storage/test_fs.py",
        "tests/storage/test_lock.py",
        "tests/engine/queue/test_fifo_queue.py",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *files]
    environment = {**os.environ, "DISKQ_PORTABLE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
