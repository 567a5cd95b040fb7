# The lock. Law: the lock decides, its content only informs.

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diskq.errors import LockedError
from diskq.storage.fs import (
    IS_PORTABLE,
    FileSystem,
    Identity,
    OsFileSystem,
    PortableFileSystem,
    PosixFileSystem,
)
from diskq.storage.lock import Lock, holder_of, may_be_open, read_holder

HOLD = """
import sys
from diskq.storage.fs import OsFileSystem
from diskq.storage.lock import Lock
lock = Lock(OsFileSystem(), sys.argv[1], "the queue")
if sys.argv[2] == "signed":
    lock.sign()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "q.lock")


def locked(path: str) -> Lock:
    return Lock(OsFileSystem(), path, "the queue")


@contextmanager
def another_process(path: str, how: str = "signed") -> Iterator[subprocess.Popen[str]]:
    """A process that has the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


POSIX, PORTABLE = PosixFileSystem(), PortableFileSystem()


@pytest.mark.skipif(sys.platform == "win32", reason="flock(2) is not Windows'")
@pytest.mark.parametrize("first, second", [(POSIX, PORTABLE), (PORTABLE, POSIX)], ids=["posix", "portable"])
def test_a_lock_taken_by_either_file_system_excludes_the_other(path, first: FileSystem, second: FileSystem):
    lock = Lock(first, path, "the queue")
    with pytest.raises(LockedError):
        Lock(second, path, "the queue")
    lock.release()
    Lock(second, path, "the queue").release()


def test_the_second_process_gets_an_error_that_names_the_holder(path):
    with another_process(path) as process:
        with pytest.raises(LockedError) as refused:
            locked(path)
        assert f"process {process.pid} on {socket.gethostname()} since 2" in refused.value.holder
        assert "the queue is in use by" in str(refused.value)


def test_one_that_has_not_signed_yet_is_another_process(path):
    with another_process(path, "unsigned"), pytest.raises(LockedError) as refused:
        locked(path)
    assert refused.value.holder == "another process"


def test_the_lock_of_a_killed_process_is_taken_over(path):
    with another_process(path) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        lock = locked(path)
        assert lock.previous is not None
        assert lock.previous.pid == process.pid
        assert lock.previous.is_of_this_boot(OsFileSystem())
        lock.release()


def test_one_process_has_it_once(path):
    first = locked(path)
    with pytest.raises(LockedError):
        locked(path)
    first.release()
    locked(path).release()


def test_release_may_be_called_twice_and_leaves_the_file(path):
    lock = locked(path)
    lock.sign()
    lock.release()
    lock.release()
    assert os.path.getsize(path) == 512


def test_a_refused_process_does_not_sign(path):
    first = locked(path)
    first.sign()
    before = Path(path).read_bytes()
    with pytest.raises(LockedError):
        locked(path)
    assert Path(path).read_bytes() == before
    first.release()


def test_the_signature_is_for_people_and_for_recovery(path):
    lock = locked(path)
    lock.sign()
    lock.release()
    content = json.loads(Path(path).read_text())
    assert sorted(content) == ["boot_id", "check", "has_state", "host", "pid", "since"]
    assert content["pid"] == os.getpid()
    assert content["since"].endswith("+00:00")


GARBAGE = [
    b"\0" * 512,
    b"not json",
    b"[]",
    b"7",
    b'{"pid": 7}',
    b'{"pid": "seven", "host": "", "since": "", "boot_id": ""}',
    b'{"pid": Infinity, "host": "", "since": "", "boot_id": ""}',
    b'{"pid": 1e999, "host": "", "since": "", "boot_id": ""}',
    b"\xff\xfe\xfd",
    b"[" * 512,
    b"x" * 100_000,
]


@pytest.mark.parametrize("content", GARBAGE, ids=range(len(GARBAGE)))
def test_any_content_of_the_file_leads_to_a_lock_or_a_refusal(path, content):
    with open(path, "wb") as file:
        file.write(content)
    lock = locked(path)
    assert str(lock.previous) == "another process"
    with pytest.raises(LockedError):
        locked(path)
    lock.release()


def test_a_new_lock_has_no_previous_holder(path):
    lock = locked(path)
    assert lock.previous is None
    lock.release()


def test_a_planted_link_is_not_followed(path, tmp_path):
    (tmp_path / "victim").write_bytes(b"precious")
    os.symlink(tmp_path / "victim", path)
    with pytest.raises(OSError, match="symbolic"):
        locked(path)
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_only_the_owner_may_read_the_file(path):
    before = os.umask(0)
    try:
        locked(path).release()
    finally:
        os.umask(before)
    assert os.stat(path).st_mode & 0o777 == 0o600


# --- pid namespaces -------------------------------------------------------------------------------


class Contained(OsFileSystem):
    """The file system as a process in another container of this machine uses it."""

    def __init__(self, namespace: int) -> None:
        super().__init__()
        self._namespace = namespace

    def identity(self) -> Identity:
        return dataclasses.replace(super().identity(), pid=1, pid_namespace=self._namespace)


ONE, OTHER, MACHINE = Contained(4026532001), Contained(4026532002), Contained(0)


has_list_of_locks = pytest.mark.skipif(
    IS_PORTABLE or not os.path.exists("/proc/locks"), reason="here is no list of locks"
)


@pytest.fixture
def left(path: str) -> Lock:
    """A lock that its process in the container ONE does not hold any more, and has not closed."""
    lock = Lock(ONE, path, "the queue")
    lock.sign()
    lock.release()
    return lock


@has_list_of_locks
@pytest.mark.parametrize("seen_from, is_held", [(ONE, False), (MACHINE, False), (OTHER, None)])
def test_a_holder_is_called_dead_only_where_it_would_be_seen(path, left, seen_from, is_held):
    assert holder_of(seen_from, path)[1] is is_held
    assert may_be_open(seen_from, path) is (is_held is None)


@has_list_of_locks
def test_a_holder_elsewhere_that_has_closed_is_not_called_alive(path):
    lock = Lock(ONE, path, "the queue")
    lock.sign()
    lock.note_closed()
    lock.release()
    assert not may_be_open(OTHER, path)


@has_list_of_locks
def test_a_holder_of_an_earlier_boot_is_dead_wherever_it_was(path, left, monkeypatch):
    monkeypatch.setattr("diskq.storage.fs._boot_id", lambda: "another")
    assert holder_of(OTHER, path)[1] is False


def test_a_holder_in_a_container_is_named_with_its_namespace_start_and_boot(path, left):
    holder = read_holder(OTHER, path)
    me = ONE.identity()
    assert str(holder).startswith(f"process 1 on {me.host} since ")
    assert "(in pid namespace 4026532001, started 20" in str(holder)
    assert str(holder).endswith(f", boot {me.boot_id[:8]})")
    lock = Lock(ONE, path, "the queue")
    with pytest.raises(LockedError, match="in pid namespace 4026532001"):
        Lock(OTHER, path, "the queue")
    lock.release()


HOLD_A_STREAM = """
import os, sys, diskq
options = diskq.StreamOptions(partition_count=1)
with diskq.Stream(sys.argv[1], options=options) as stream, diskq.Queue(sys.argv[2], "q") as queue:
    stream.append(b"one", b"k")
    queue.put(b"one")
    print("held", flush=True)
    sys.stdin.read()
"""
LOOK = """
import sys
from diskq.cli import main
for words in (["info", *sys.argv[1:]], ["queue", "info", sys.argv[2], "q"]):
    main(words)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root makes pid namespaces")
def test_a_writer_in_a_sibling_container_is_not_called_dead(tmp_path):
    (tmp_path / "data").mkdir()
    container = ["unshare", "--fork", "--pid", "--mount-proc", sys.executable, "-c"]
    if subprocess.run([*container, ""], check=False, capture_output=True).returncode:
        pytest.skip("no pid namespaces here")
    paths = [str(tmp_path / "stream"), str(tmp_path / "data")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*container, HOLD_A_STREAM, *paths], **pipes) as writer:  # type: ignore[call-overload]
        assert writer.stdout.readline() == "held\n"
        seen = subprocess.run([*container, LOOK, *paths], capture_output=True, text=True, check=True)
        writer.stdin.close()
    assert seen.stdout.count("perhaps process 1 on") == 3
    assert "died" not in seen.stdout + seen.stderr
    assert "next open" not in seen.stdout + seen.stderr
