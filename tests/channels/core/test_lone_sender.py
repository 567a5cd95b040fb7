# A task that alone waits for syncs. Law: it may wait for its sync awake, for two slices at most, and every
# other task runs between two of its calls.

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest
import trio

import diskq
from diskq.channels.core import sync_executor
from diskq.channels.core.sync_executor import SyncExecutor, SyncPool
from diskq.storage.fs import OsFileSystem

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="syncs are executed by Python there")

BODY = b"x" * 100


@pytest.fixture
def spins(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each spin has met the end of a sync."""
    found: list[bool] = []
    spin = SyncPool.spin

    def noted(pool: SyncPool, nanoseconds: int) -> bool:
        found.append(spin(pool, nanoseconds))
        return found[-1]

    monkeypatch.setattr(SyncPool, "spin", noted)
    monkeypatch.setattr(sync_executor, "_CAN_SPIN", True)
    return found


async def test_a_lone_sender_is_served_without_sleeping(
    tmp_path: Path, spins: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_executor, "_LONGEST_SPIN", 10**10)  # whatever the disk takes here
    async with diskq.open_queue(tmp_path, "q", durability="synced") as queue:
        for _ in range(50):
            await queue.send(BODY)
        assert queue.statistics().unsynced_bytes == 0
    # The first syncs are of the files, and make the redo log.
    assert spins.count(True) > 40


async def test_where_the_disk_takes_longer_it_sleeps_and_tries_again_ever_more_rarely(
    tmp_path: Path, spins: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_vain(pool: SyncPool, nanoseconds: int) -> bool:
        spins.append(False)  # the sync ends after it, however fast this disk is
        return False

    monkeypatch.setattr(SyncPool, "spin", in_vain)
    async with diskq.open_queue(tmp_path, "q", durability="synced") as queue:
        for _ in range(150):
            await queue.send(BODY)
        assert queue.statistics().unsynced_bytes == 0
    assert 1 <= len(spins) < 20


async def test_a_task_that_is_ready_runs_between_two_sends(tmp_path: Path, spins: list[bool]) -> None:
    turns = 0
    async with (
        diskq.open_queue(tmp_path, "q", durability="synced", checkpoint_slice=1e-6) as queue,
        trio.open_nursery() as nursery,
    ):

        async def always_ready() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        nursery.start_soon(always_ready)
        for _ in range(100):
            before = turns
            await queue.send(BODY)
            await queue.send(BODY)
            assert turns > before
        nursery.cancel_scope.cancel()


async def test_other_tasks_get_their_turn_beside_it(tmp_path: Path, spins: list[bool]) -> None:
    turns = 0
    async with (
        diskq.open_queue(tmp_path, "q", durability="synced") as queue,
        trio.open_nursery() as nursery,
    ):

        async def every_so_often() -> None:
            nonlocal turns
            while True:
                await trio.sleep(0.0005)
                turns += 1

        nursery.start_soon(every_so_often)
        sends = 0
        while turns <= 20 and sends < 5_000:
            await queue.send(BODY)
            sends += 1
        assert turns > 20, f"{turns} turns beside {sends} sends"
        nursery.cancel_scope.cancel()


async def test_a_failed_sync_that_it_waits_for_awake_breaks_the_channel(
    tmp_path: Path, spins: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_executor, "_LONGEST_SPIN", 10**10)
    executed = sync_executor._Lane.executed

    def executed_badly(lane: sync_executor._Lane, failure: OSError | None, took: int) -> None:
        executed(lane, OSError(errno.EIO, "the disk is broken"), took)

    async def send_until_it_fails() -> None:
        async with diskq.open_queue(tmp_path, "q", durability="synced") as queue:
            for _ in range(10):
                await queue.send(BODY)
            monkeypatch.setattr(sync_executor._Lane, "executed", executed_badly)
            with pytest.raises(trio.BrokenResourceError):
                await queue.send(BODY)

    with pytest.raises(trio.BrokenResourceError):  # at the end of the block, too
        await send_until_it_fails()
    assert True in spins


async def test_without_a_sync_of_the_log_there_is_nothing_to_wait_for(spins: list[bool]) -> None:
    executor = SyncExecutor(OsFileSystem(), ".")
    executor.spin()
    await trio.to_thread.run_sync(executor.stop)
    assert spins == []
