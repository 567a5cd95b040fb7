# A program that was started without stdin, stdout and stderr: the kernel gives their numbers to the files
# that it opens first, and what a C library prints on stderr would then be in a store.

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diskq.storage.fs import OsFileSystem
from tests.contract.kinds import Kind, engines

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="asks /proc what is open")

STANDARD = range(3)


@contextmanager
def none_open() -> Iterator[None]:
    kept = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 100) for number in STANDARD]
    try:
        for number in STANDARD:
            os.close(number)
        yield
    finally:
        for number, copy in zip(STANDARD, kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)


def open_ones() -> list[str]:
    """Return the files that have these numbers now.

    A thread may be looking at a directory, to which nothing can be written; or at source text, for an error
    that it logs.
    """
    found = []
    for number in STANDARD:
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{number}")
            if not stat.S_ISDIR(os.fstat(number).st_mode) and not path.endswith(".py"):
                found.append(path)
    return found


@pytest.mark.parametrize("kind", engines(), ids=str)
def test_no_file_of_a_store_gets_a_standard_descriptor(kind: Kind, tmp_path: Path):
    with none_open(), kind.open(tmp_path, wal=True) as store:
        store.put(b"one", "synced")
        found = open_ones()
    assert found == []


def test_memory_that_is_shared_with_a_file_keeps_no_standard_descriptor(tmp_path: Path):
    fs = OsFileSystem()
    handle = fs.open(str(tmp_path / "file"), write=True, create=True)
    fs.truncate(handle, 4096)
    with none_open():
        memory = fs.share_memory(handle, 4096)
        found = open_ones()
    memory.release()
    fs.close(handle)
    assert found == []
