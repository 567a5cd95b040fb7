# The status file of an open channel: written after a barrier, once a second at most, and not while it is
# idle.

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import diskq
from diskq.storage.status_file import DiskBound, read_status
from diskq.testing import FaultFS
from tests.clock import Clock

MIB = 1024 * 1024
OPENINGS: dict[str, Any] = {
    "queue": lambda path, fs: diskq.open_queue(path, "events", fs=fs),
    "stream": lambda path, fs: diskq.open_producer(path, fs=fs),
    "journal": lambda path, fs: diskq.open_journal(path, fs=fs),
    "jobs": lambda path, fs: diskq.open_priority_store(path, fs=fs),
}


def notes_at(path: Path) -> list[str]:
    return [str(found) for found in path.rglob("*status")]


def status_of(path: Path) -> str:
    (found,) = notes_at(path)
    return found


def opened(kind: str, path: Path, fs: Any) -> AbstractAsyncContextManager[Any]:
    opening: AbstractAsyncContextManager[Any] = OPENINGS[kind](path, fs)
    return opening


@pytest.mark.parametrize("kind", OPENINGS)
async def test_after_a_barrier_the_status_has_the_duration_of_barriers(kind: str, tmp_path: Path) -> None:
    clock = Clock()
    async with opened(kind, tmp_path, clock) as channel:
        clock.now += 1
        if kind == "jobs":
            await channel.create_queue("mail", durability="synced")
        else:
            await channel.send(b"hello", durability="synced")
        note = read_status(clock, status_of(tmp_path))
    assert note is not None
    assert (note.pid, note.barriers, note.bound) == (os.getpid(), 1, DiskBound())


@pytest.mark.parametrize("kind", OPENINGS)
async def test_a_channel_open_for_a_moment_leaves_no_status(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path, Clock()):
        pass
    assert not notes_at(tmp_path)


async def test_an_idle_channel_writes_no_status(tmp_path: Path) -> None:
    clock = Clock()
    disk = FaultFS(clock)
    async with diskq.open_queue(tmp_path, "events", fs=disk) as queue:
        await queue.send(b"hello", durability="synced")
        disk.calls.clear()
        clock.now += 60
        await queue.send_many([])
        assert not [call for call in disk.calls if call.verb == "pwrite"]


async def test_it_says_which_bound_a_queue_has(tmp_path: Path) -> None:
    clock = Clock()
    async with diskq.open_queue(tmp_path, "events", fs=clock, max_bytes=MIB) as queue:
        clock.now += 1
        await queue.send(bytes(1000), durability="synced")
        note = read_status(clock, status_of(tmp_path))
    assert note is not None
    assert note.bound.max_bytes == MIB
    assert 1000 < note.bound.used < MIB


async def test_a_budget_is_reported_with_the_bytes_of_all_members(tmp_path: Path) -> None:
    clock, budget = Clock(), diskq.DiskBudget(10 * MIB)
    for name in "ab":
        (tmp_path / name).mkdir()
    async with (
        diskq.open_queue(tmp_path / "a", "events", fs=clock, budget=budget) as queue,
        diskq.open_producer(tmp_path / "b", fs=clock, budget=budget) as producer,
    ):
        await producer.send(bytes(1000), durability="synced")
        clock.now += 1
        await queue.send(b"hello", durability="synced")
        note = read_status(clock, status_of(tmp_path / "a"))
        used = sum(member.used for member in budget.statistics().members)
    assert note is not None
    assert note.bound.is_shared
    assert note.bound.max_bytes == 10 * MIB
    assert 0 < note.bound.used <= used + MIB
