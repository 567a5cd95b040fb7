# How many files and functions of diskq a reader passes who follows one call. Law: no more than today.
#
# What is counted is what runs: a profiler notes each Python function of diskq. Compiled ones are not seen.

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio

import diskq
from diskq.testing import CrashFS
from tests.contract.counting import without_collections
from tests.contract.kinds import Kind, engines
from tests.contract.lives import PATH, disk

ROOT = str(Path(diskq.__file__).parent)


class Calls:
    """The functions of diskq that run in a block, in all threads that begin there, and in this one."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()
        """File and qualified name of each."""

    @property
    def files(self) -> set[str]:
        return {path for path, _ in self.functions}

    def __enter__(self) -> Calls:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            path = code.co_filename.removeprefix(ROOT).lstrip("/")
            if not path.startswith("testing"):
                self.functions.add((path, code.co_qualname))


async def test_a_synced_send_of_sixteen_tasks(tmp_path: Path) -> None:
    async with diskq.open_queue(tmp_path, "events") as queue:
        tries = []
        for _ in range(10):
            with without_collections(), Calls() as calls:
                async with trio.open_nursery() as nursery:
                    for _ in range(16):
                        nursery.start_soon(lambda: queue.send(bytes(100), durability="synced"))
            tries.append(calls)
    # Beside other work a sync of the files may be due, too.
    calls = min(tries, key=lambda each: len(each.functions))
    assert len(calls.files) <= 15, sorted(calls.files)
    assert len(calls.functions) <= 66, sorted(calls.functions)


def _fifo(fs: CrashFS) -> diskq.Queue:
    return diskq.Queue("/k", "events", fs=fs)


def _stream(fs: CrashFS) -> diskq.Stream:
    return diskq.Stream("/k", options=diskq.StreamOptions(partition_count=2), fs=fs)


@pytest.mark.parametrize("open_it, most", [(_fifo, 24), (_stream, 28)], ids=["queue", "stream"])
def test_an_open_after_a_power_cut(
    open_it: Callable[[CrashFS], diskq.Queue | diskq.Stream], most: int
) -> None:
    fs = CrashFS()
    fs.make_directory_durably("/k")
    store = open_it(fs)
    put = store.put if isinstance(store, diskq.Queue) else store.append
    for number in range(20):
        put(b"message %d" % number, durability="synced" if number % 3 else "written")
    after = fs.crash(random.Random(1))
    store.close()
    with without_collections(), Calls() as calls:
        store = open_it(after)
    store.close()
    assert len(calls.files) <= most, sorted(calls.files)


@pytest.mark.parametrize("kind", engines(), ids=str)
def test_each_kind_is_opened_by_the_same_steps(kind: Kind) -> None:
    fs = disk()
    with Calls() as calls:
        store = kind.open(PATH, fs=fs)
    store.close()
    assert ("engine/log/opening.py", "LogOpening.run") in calls.functions
