# Opening a store that another process has. Law: with `wait` the open waits for the lock, as long as it was
# told, and a channel's can be cancelled meanwhile; the error names the way out.

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import diskq
from tests.loops import each_loop

LONG = 20.0
SOON = 0.05


async def _deliver(batch: diskq.Batch) -> None: ...


ENGINES: dict[str, Callable[..., Any]] = {
    "queue": lambda path, **how: diskq.Queue(path, "q", **how),
    "stream": lambda path, **how: diskq.Stream(path / "s", **how),
    "journal": lambda path, **how: diskq.Journal(path / "j", **how),
    "priority": lambda path, **how: diskq.PriorityStore(path / "p", **how),
    "spool": lambda path, **how: diskq.Spool(path / "sp", lambda batch: None, **how),
}
CHANNELS: dict[str, tuple[str, Callable[..., Any]]] = {
    "open_queue": ("queue", lambda path, **how: diskq.open_queue(path, "q", **how)),
    "open_producer": ("stream", lambda path, **how: diskq.open_producer(path / "s", **how)),
    "open_journal": ("journal", lambda path, **how: diskq.open_journal(path / "j", **how)),
    "open_priority_store": ("priority", lambda path, **how: diskq.open_priority_store(path / "p", **how)),
    "open_spool": ("spool", lambda path, **how: diskq.open_spool(path / "sp", _deliver, **how)),
}


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_waits_until_another_one_is_closed(kind: str, tmp_path: Path) -> None:
    first = ENGINES[kind](tmp_path)
    timer = threading.Timer(SOON, first.close)
    timer.start()
    ENGINES[kind](tmp_path, wait=LONG).close()
    timer.join()


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_waits_no_longer_than_wait(kind: str, tmp_path: Path) -> None:
    with ENGINES[kind](tmp_path):
        began = time.monotonic()
        with pytest.raises(diskq.LockedError):
            ENGINES[kind](tmp_path, wait=SOON)
        assert time.monotonic() - began >= SOON


@pytest.mark.parametrize("name", CHANNELS)
@each_loop
async def test_a_channel_waits_until_an_engine_is_closed(name: str, tmp_path: Path) -> None:
    kind, opened = CHANNELS[name]
    first = ENGINES[kind](tmp_path)
    timer = threading.Timer(SOON, first.close)
    timer.start()
    async with opened(tmp_path, wait=LONG):
        pass
    timer.join()


@pytest.mark.parametrize("name", CHANNELS)
@each_loop
async def test_a_channel_that_waits_for_a_lock_can_be_cancelled(name: str, tmp_path: Path) -> None:
    kind, opened = CHANNELS[name]
    with ENGINES[kind](tmp_path):
        with anyio.move_on_after(SOON) as limit:
            async with opened(tmp_path, wait=LONG):
                raise AssertionError("it was opened")
        assert limit.cancelled_caught
        with pytest.raises(diskq.LockedError):
            async with opened(tmp_path):
                raise AssertionError("it was opened")


@pytest.mark.parametrize("wait", [-1.0, "5", True, float("nan")])
def test_a_wait_is_a_number_of_seconds(wait: Any, tmp_path: Path) -> None:
    for opened in (*ENGINES.values(), *(opened for _, opened in CHANNELS.values())):
        with pytest.raises((TypeError, ValueError), match="wait is"):
            opened(tmp_path, wait=wait)


HOLD = "import sys, diskq\nwith diskq.Queue(sys.argv[1], 'q'):\n    print(flush=True)\n    sys.stdin.read()"


def test_the_error_about_another_process_says_that_one_can_wait(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(
            diskq.LockedError, match=f"process {holder.pid} .*; close it there first, or wait"
        ):
            diskq.Queue(tmp_path, "q")
        holder.communicate()


POOLED = """
import sys, diskq
for number in range(10):
    with diskq.Queue(sys.argv[1], "q", wait=20.0) as queue:
        queue.put(b"x")
"""


@pytest.mark.slow
def test_processes_that_open_the_store_for_one_call_each_all_get_their_turn(tmp_path: Path) -> None:
    workers = [subprocess.Popen([sys.executable, "-c", POOLED, str(tmp_path)]) for _ in range(4)]
    assert [worker.wait(60) for worker in workers] == [0] * 4
    with diskq.Queue(tmp_path, "q") as queue:
        assert queue.depth == 40


# --- consumers that come first ----------------------------------------------------------------


@each_loop
async def test_a_consumer_that_comes_first_makes_the_stream(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with (
        diskq.open_consumer(path, group="g", create=True) as consumer,
        diskq.open_producer(path, encoding="varuint") as producer,
    ):
        await producer.send_many([b"1", b"2", b"3"], key=b"k")
        got = [message.value for message in await consumer.receive_many(3)]
    assert got == [b"1", b"2", b"3"]


def test_a_reader_that_comes_first_makes_the_stream(tmp_path: Path) -> None:
    with pytest.raises(diskq.NotFoundError):
        diskq.StreamReader(tmp_path / "s")
    with diskq.StreamReader(tmp_path / "s", create=True) as reader:
        assert reader.read(0) is None
        with diskq.Stream(tmp_path / "s", encoding="varuint") as stream:
            stream.append(b"1")
            message = reader.read(LONG)
    assert message is not None
    assert message.value == b"1"
