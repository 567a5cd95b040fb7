# Bounds of the disk. Law: what is counted is what is on the disk, logs and metadata included; so nothing
# passes a bound, and what can never fit is refused when it is opened, with a sentence.
from __future__ import annotations

import contextlib
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

import diskq
from tests.loops import each_loop

KIB = 1024
BOUNDS = [64 * KIB, 256 * KIB, 1024 * KIB, 4 * 1024 * KIB]


def on_disk(root: Path) -> int:
    """Of the files that are there: a sync may remove one while this looks."""
    total = 0
    for each in root.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += each.stat().st_size if each.is_file() else 0
    return total


async def filled(sender: Any, root: Path, most: int) -> int:
    """Send until it is refused, or twice the bound was sent. Returns the most bytes that were on the disk."""
    largest = sent = 0
    with contextlib.suppress(diskq.FullError):
        while sent < 2 * most:
            await sender.send_many([b"x" * 4000] * max(2, most // 400_000))
            sent += 4000 * max(2, most // 400_000)
            largest = max(largest, on_disk(root))
    await sender.sync()
    return max(largest, on_disk(root))


@pytest.mark.parametrize("sync_to", ["log", "files"])
@pytest.mark.parametrize("on_full", ["reject", "drop_oldest"])
@pytest.mark.parametrize("bound", BOUNDS)
@each_loop
async def test_a_queue_never_takes_more_than_its_max_bytes(
    bound: int, on_full: Any, sync_to: Any, tmp_path: Path
) -> None:
    how: Any = {"max_bytes": bound, "on_full": on_full, "sync_to": sync_to}
    async with diskq.open_queue(tmp_path, "q", **how) as queue:
        await queue.send(b"x", durability="synced")
        assert await filled(queue, tmp_path, bound) <= bound
        assert queue.statistics().depth > bound // 16_000, "most of it is for messages"
    assert on_disk(tmp_path) <= bound


@pytest.mark.parametrize("bound", [256 * KIB, 1024 * KIB, 4 * 1024 * KIB])
@each_loop
async def test_members_of_all_kinds_never_take_more_than_their_budget(bound: int, tmp_path: Path) -> None:
    budget = diskq.DiskBudget(bound)

    async def never(batch: diskq.Batch) -> None:
        await anyio.sleep_forever()

    how: Any = {"budget": budget, "on_full": "reject"}
    async with (
        diskq.open_queue(tmp_path, "q", **how) as queue,
        diskq.open_producer(tmp_path / "s", partition_count=1, **how) as producer,
        diskq.open_spool(tmp_path / "spool", never, queue=diskq.QueueOptions(**how)) as spool,
    ):
        for sender in (queue, producer, spool):
            await sender.send(b"first")
        for sender in (queue, producer, spool):
            assert await filled(sender, tmp_path, bound) <= bound
        statistics = budget.statistics()
        assert statistics.used <= bound
        assert on_disk(tmp_path) <= statistics.used + statistics.headroom


@each_loop
async def test_eight_empty_queues_leave_most_of_a_small_budget_for_messages(tmp_path: Path) -> None:
    budget = diskq.DiskBudget(1024 * KIB)
    async with AsyncExitStack() as opened:
        queues = [
            await opened.enter_async_context(
                diskq.open_queue(tmp_path, f"q{number}", budget=budget, on_full="reject")
            )
            for number in range(8)
        ]
        assert budget.statistics().used <= 300 * KIB
        for queue in queues:
            await queue.send(b"x" * 50_000)
        assert on_disk(tmp_path) <= budget.statistics().granted <= budget.max_bytes


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_a_store_that_can_never_hold_a_message_is_refused_at_its_open(kind: str, tmp_path: Path) -> None:
    budget = diskq.DiskBudget(256 * KIB)

    def make(number: int) -> Any:
        if kind == "queue":
            queue_options = diskq.QueueOptions(budget=budget, on_full="reject")
            return diskq.Queue(tmp_path, f"q{number}", options=queue_options)
        options = diskq.StreamOptions(budget=budget, on_full="reject", partition_count=1)
        return diskq.Stream(tmp_path / f"s{number}", options=options)

    with ExitStack() as opened:
        refused = None
        for number in range(100):
            there = sorted(tmp_path.rglob("*"))
            try:
                opened.enter_context(make(number))
            except diskq.FullError as error:
                refused = str(error)
                break
        assert refused is not None
        assert "bytes for its own files and a first message, and the" in refused
        assert "enlarge the budget, or share it among fewer" in refused
        assert len(budget.statistics().members) >= 1
        assert on_disk(tmp_path) <= budget.max_bytes
        if kind == "queue":
            assert sorted(tmp_path.rglob("*")) == there


def test_a_queue_that_exists_opens_all_the_same_and_can_be_drained(tmp_path: Path) -> None:
    for number in range(20):
        with diskq.Queue(tmp_path, f"q{number}") as queue:
            queue.put(b"x")
    budget = diskq.DiskBudget(64 * KIB)
    with ExitStack() as opened:
        for number in range(20):
            options = diskq.QueueOptions(budget=budget, on_full="reject")
            queue = opened.enter_context(diskq.Queue(tmp_path, f"q{number}", options=options))
            assert queue.get() == b"x"
