# Handles for sending, on every kind of store. Law: each is closed separately, and wakes only the tasks that
# wait through it.

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

import diskq
from diskq.testing import CrashFS
from tests.channels.rig import Tasks, blocked, crash_disk


@asynccontextmanager
async def a_priority_queue(fs: CrashFS, **options: Any) -> AsyncIterator[diskq.PriorityQueueChannel]:
    async with diskq.open_priority_store("/q/p", fs=fs, preallocate=False, **options) as store:
        yield await store.create_queue("bounded", max_messages=1)


OPENED: dict[str, Callable[..., Any]] = {
    "queue": lambda fs, **options: diskq.open_queue("/q", "name", fs=fs, **options),
    "stream": lambda fs, **options: diskq.open_producer("/q/s", partition_count=1, fs=fs, **options),
    "journal": lambda fs, **options: diskq.open_journal("/q/j", fs=fs, **options),
    "priority": a_priority_queue,
}


@pytest.mark.parametrize("kind", OPENED)
async def test_a_clone_is_closed_on_its_own(kind: str) -> None:
    async with OPENED[kind](crash_disk()) as handle:
        clone = handle.clone()
        clone.close()
        await handle.send(b"through the one that is open")
        with pytest.raises(trio.ClosedResourceError, match="this handle was closed"):
            await clone.send(b"through the other one")
        with pytest.raises(trio.ClosedResourceError):
            clone.clone()


async def test_closing_a_clone_wakes_only_the_tasks_that_wait_through_it() -> None:
    async with a_priority_queue(crash_disk(), on_full="wait") as queue:
        clone = queue.clone()
        await queue.send(b"takes the room")
        async with trio.open_nursery() as nursery:
            tasks = Tasks(nursery)
            await tasks.start("queue", queue.send, b"waits")
            await tasks.start("clone", clone.send, b"waits, too")
            clone.close()
            await blocked()
            assert isinstance(tasks["clone"], trio.ClosedResourceError)
            assert "queue" not in tasks
            await queue.ack(await queue.receive())
        assert tasks["queue"] == 2
