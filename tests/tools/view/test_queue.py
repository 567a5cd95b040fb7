# Looking takes no lock and touches nothing; what it says is what an open would find.

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diskq import Queue, QueueOptions
from diskq.tools.view.queue import look, queue_names
from tests.cli.conftest import fill


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    return directory


def data_file(directory: Path, number: int = 0) -> Path:
    return directory / f"q.diskqueue.{number:06}.dat"


def metadata_file(directory: Path) -> Path:
    return directory / "q.diskqueue.meta.dat"


def snapshot(directory: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_names_are_those_of_files_of_queues_and_of_nothing_else(data):
    for name in (
        "a.diskqueue.000000.dat",
        "b.diskqueue.meta.dat",
        "b.diskqueue.000001.dat",
        "c.diskqueue.000000.dat.bad",
        "d.diskqueue.meta.dat.77.tmp",
        "e.diskqueue.1.dat",
        ".diskqueue.000000.dat",
        "notes.txt",
    ):
        (data / name).touch()
    assert queue_names(str(data)) == ["a", "b"]


def test_a_closed_queue_is_exactly_what_its_files_say(data):
    with Queue(data, "q", options=QueueOptions(segment_size=30)) as queue:
        queue.put_many([b"x" * 10] * 5)
        queue.get_many(3)
    view = look(str(data), "q")
    assert (view.depth, view.is_exact, view.files) == (2, True, 2)
    assert (view.read, view.write) == ((1, 14), (2, 14))
    assert view.has_messages
    assert view.is_open is False
    assert view.problems == ()


def test_an_open_queue_names_its_holder_and_is_as_old_as_its_last_sync(data):
    with Queue(data, "q") as queue:
        queue.put(b"one")
        queue.sync()
        queue.put(b"two")
        view = look(str(data), "q")
    assert view.is_open is True
    assert view.holder is not None
    assert view.holder.pid == os.getpid()
    assert (view.depth, view.is_exact, view.write) == (1, False, (0, 14))
    assert view.problems == ()


def test_what_a_killed_process_had_not_written_is_there_all_the_same(data):
    killed = (
        "import diskq, os, signal, trio, trio.testing\n"
        "async def main():\n"
        f"    async with diskq.open_queue({str(data)!r}, 'q', checkpoint_slice=60.0) as queue:\n"
        "        await queue.send(b'one')\n"
        "        await trio.testing.wait_all_tasks_blocked()\n"
        "        for _ in range(9): await queue.send(b'one')\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "trio.run(main)"
    )
    subprocess.run([sys.executable, "-c", killed], check=False)
    assert data_file(data).stat().st_size < 70, "nothing stands on the write-ahead log: this shows nothing"
    view = look(str(data), "q")
    assert (view.depth, view.is_exact, view.is_open) == (10, True, False)
    assert (view.read, view.write) == ((0, 0), (0, 70))
    assert view.has_messages
    assert view.problems == ("70 bytes were written after the last record: the next open counts them",)


def test_looking_changes_nothing(data):
    fill(data, b"one")
    with data_file(data).open("ab") as file:
        file.write(b"\0\0\0\7torn")
    before = snapshot(data)
    look(str(data), "q")
    assert snapshot(data) == before


def test_a_queue_of_a_peer_has_no_holder(data):
    data_file(data).write_bytes(b"\0\0\0\3one")
    metadata_file(data).write_bytes(b"1\n0,0\n0,7\n")
    view = look(str(data), "q")
    assert (view.depth, view.holder, view.is_open, view.problems) == (1, None, False, ())


def test_a_queue_that_is_not_there_is_empty(data):
    view = look(str(data), "q")
    assert (view.depth, view.files, view.has_messages) == (None, 0, False)


@pytest.mark.parametrize(
    "damage, told",
    [
        (lambda data: metadata_file(data).unlink(), "the metadata is missing"),
        (lambda data: metadata_file(data).write_bytes(bytes(40)), "the metadata is unreadable"),
        (
            lambda data: os.truncate(data_file(data), 5),
            "byte 14 of file 0 is recorded as written, but it ends at 5",
        ),
        (lambda data: data_file(data).write_bytes(bytes(99)), "85 bytes were written after the last record"),
    ],
)
def test_what_the_next_open_will_repair_is_reported(data, damage, told):
    fill(data, b"one", b"two")
    damage(data)
    (problem,) = look(str(data), "q").problems
    assert problem.startswith(told)


def test_a_missing_file_and_consumed_ones_are_reported(data):
    data_file(data, 0).write_bytes(b"\0\0\0\3one")
    metadata_file(data).write_bytes(b"1\n1,7\n1,14\n")
    gone, consumed = look(str(data), "q").problems
    assert gone == "file 1, which is recorded as being read, is gone"
    assert consumed.startswith("1 consumed files are still there")


def test_what_was_set_aside_is_listed(data):
    fill(data, b"one")
    aside = data_file(data).with_suffix(".dat.bad-1")
    aside.touch()
    assert look(str(data), "q").aside == (str(aside),)


def test_an_unreadable_lock_file_names_no_holder(data):
    fill(data, b"one")
    (data / ".diskq" / "q.lock").write_bytes(b"not json")
    view = look(str(data), "q")
    assert str(view.holder) == "another process"
    assert not view.is_open
