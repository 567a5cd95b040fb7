# asyncio's own ways: its timeouts and groups, its end, its signals, and its turns.

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import diskq
from diskq.storage.fs import OsFileSystem
from tests.channels.rig import PatientDisk, crash_disk, left_in, opened
from tests.loops import each_asyncio_loop, run_on


async def blocked() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


# --- cancellations ----------------------------------------------------------------------------------------


@each_asyncio_loop
async def test_a_task_that_is_cancelled_and_then_woken_returns_its_message() -> None:
    async with opened(crash_disk()) as queue:
        task = asyncio.create_task(queue.receive())
        await blocked()
        task.cancel()
        queue.send_nowait(b"x")  # before the task has heard of it
        assert await task == b"x"


@each_asyncio_loop
async def test_a_task_that_is_woken_and_then_cancelled_returns_its_message_and_is_cancelled_next() -> None:
    async with opened(crash_disk()) as queue:
        found: list[bytes] = []

        async def receive_all() -> None:
            while True:
                found.append(await queue.receive())

        task = asyncio.create_task(receive_all())
        await blocked()
        queue.send_nowait(b"x")
        task.cancel("why")
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        assert found == [b"x"]
        assert cancelled.value.args in [("why",), ()]
        assert queue.statistics().tasks_waiting_receive == 0


@each_asyncio_loop
async def test_a_timeout_that_comes_too_late_is_taken_back() -> None:
    disk = PatientDisk()
    async with opened(disk, durability="synced") as queue:
        await queue.send(b"first")
        disk.hold()
        async with asyncio.timeout(0.01) as timeout:
            expires_at = timeout.when()
            assert expires_at is not None
            asyncio.get_running_loop().call_at(expires_at + 0.04, disk.let_go)  # after it, however late
            await queue.send(b"x")  # waits for the disk, and returns
        assert timeout.expired()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0.001)  # it is not cancelled any more
        assert queue.depth == 2


@each_asyncio_loop
async def test_a_cancellation_that_comes_too_late_comes_at_the_next_pause() -> None:
    disk = PatientDisk()
    async with opened(disk, durability="synced") as queue:
        await queue.send(b"first")
        disk.hold()
        steps: list[str] = []

        async def send() -> None:
            await queue.send(b"x")
            steps.append("sent")
            await asyncio.sleep(60)

        task = asyncio.create_task(send())
        await blocked()
        task.cancel()
        await blocked()
        disk.let_go()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert steps == ["sent"]


@each_asyncio_loop
async def test_a_block_that_is_cancelled_while_it_closes_is_closed_first(tmp_path: Path) -> None:
    async def use() -> None:
        async with diskq.open_queue(tmp_path, "q") as queue:
            await queue.send(b"x")
        await asyncio.sleep(60)

    for delay in range(20):
        task = asyncio.create_task(use())
        await asyncio.sleep(delay / 5_000)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with diskq.Queue(tmp_path, "q"):
            pass


@each_asyncio_loop
async def test_who_cancels_all_tasks_still_closes_the_stores() -> None:
    disk = crash_disk()

    async def use() -> None:
        async with opened(disk) as queue:
            await queue.send(b"x", durability="memory")
            await queue.receive()
            await queue.send(b"y", durability="memory")
            is_open.set()
            await asyncio.sleep(60)

    is_open = asyncio.Event()
    task = asyncio.create_task(use())
    await is_open.wait()
    for each in asyncio.all_tasks() - {asyncio.current_task()}:
        each.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left_in(disk) == [b"y"]


# --- the end of a loop ------------------------------------------------------------------------------------


LEAVES_OPEN = """
    import asyncio, sys, threading, diskq

    async def main():
        queue = await diskq.open_queue(sys.argv[1], "q").__aenter__()
        await queue.send(b"x", durability="synced")

    asyncio.run(main())
    for thread in threading.enumerate():
        if thread.name.startswith("diskq"):
            thread.join(20)
            print("still there" if thread.is_alive() else "ended")
"""


def test_a_block_that_is_not_left_keeps_no_thread_after_the_loop(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(LEAVES_OPEN), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout in ("ended\n", "")
    assert done.stderr == ""


PROGRAM = """
    import asyncio, sys, diskq

    async def main():
        async with diskq.open_queue(sys.argv[1], "q") as queue:
            print("open", flush=True)
            number = 0
            while True:
                await queue.send(b"%d" % number, durability="synced" if number % 7 == 0 else None)
                number += 1

    asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_closes_the_queue(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in printed
    with diskq.Queue(tmp_path, "q") as queue:
        assert queue.repairs == ()
        found = queue.get_many(10**6)
    assert found == [b"%d" % number for number in range(len(found))]


@pytest.mark.parametrize("event_loop", ["asyncio"])
def test_loops_one_after_the_other_have_their_own(event_loop: str, tmp_path: Path) -> None:
    async def use(number: int) -> None:
        async with diskq.open_queue(tmp_path, "q") as queue:
            await queue.send(b"%d" % number, durability="synced")
            assert queue.depth == number + 1

    for number in range(5):
        run_on("trio" if number % 2 else event_loop, use, number)


def test_a_loop_on_each_side_at_the_same_time(tmp_path: Path) -> None:
    async def use(name: str) -> None:
        async with diskq.open_queue(tmp_path, name) as queue:
            for number in range(50):
                await queue.send(b"%d" % number, durability="synced")
                assert await queue.receive() == b"%d" % number

    threads = [threading.Thread(target=run_on, args=(loop, use, loop)) for loop in ("trio", "asyncio")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_without_a_loop_it_says_so(tmp_path: Path) -> None:
    coroutine = diskq.open_queue(tmp_path, "q").__aenter__()
    with pytest.raises(RuntimeError, match="async context"):
        coroutine.send(None)


# --- turns ------------------------------------------------------------------------------------------------


@each_asyncio_loop
async def test_a_task_that_never_waits_lets_others_run(tmp_path: Path) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with diskq.open_queue(tmp_path, "q") as queue:
        counting = asyncio.create_task(count())
        for number in range(5_000):
            await queue.send(b"%d" % number)
        for _ in range(5_000):
            await queue.receive()
        counting.cancel()
    assert turns >= 10


@each_asyncio_loop
async def test_a_callback_that_is_always_due_does_not_keep_diskq_waiting(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    goes_on = True

    def again() -> None:
        if goes_on:
            loop.call_soon(again)

    again()
    async with diskq.open_queue(tmp_path, "q") as queue:
        async with asyncio.timeout(30):
            for number in range(20):
                await queue.send(b"%d" % number, durability="synced")
    goes_on = False


@each_asyncio_loop
async def test_what_was_written_is_in_its_file_when_the_turn_ends(tmp_path: Path) -> None:
    async with diskq.open_queue(tmp_path, "q") as queue:
        for _ in range(3):
            queue.send_nowait(b"x" * 100)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert OsFileSystem().size_of(str(tmp_path / "q.diskqueue.000000.dat")) == 3 * 104


@each_asyncio_loop
async def test_messages_of_a_slice_are_synced_by_the_policy(tmp_path: Path) -> None:
    async with diskq.open_queue(tmp_path, "q", sync_timeout=0.5, fs=OsFileSystem()) as queue:
        await queue.send(b"x")
        assert queue.statistics().unsynced_bytes
        for _ in range(1_000):
            if not queue.statistics().unsynced_bytes:
                break
            await asyncio.sleep(0.005)
        assert not queue.statistics().unsynced_bytes
