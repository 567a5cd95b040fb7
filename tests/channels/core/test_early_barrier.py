"""At half of what may be unsynced a barrier begins, and senders go on into the other half meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

import diskq
from diskq.storage.fs import FileSystem
from tests.channels.journal_rig import writing
from tests.channels.rig import PatientDisk, blocked, fault_disk, opened, until
from tests.channels.stream_rig import producing

KIB = 1024
BOUND = 64 * KIB
NEVER: dict[str, Any] = {"sync_every": 10**9, "sync_timeout": 10**9, "max_unsynced": BOUND}
Sender = tuple[Any, Callable[[bytes], Awaitable[Any]], Callable[[bytes], Any]]


async def queue(fs: FileSystem) -> AsyncIterator[Sender]:
    async with opened(fs, **NEVER) as queue:
        yield queue, queue.send, queue.send_nowait


async def queue_in_batches(fs: FileSystem) -> AsyncIterator[Sender]:
    async with opened(fs, **NEVER) as queue:
        yield queue, lambda body: queue.send_many([body]), queue.send_nowait


async def strict_queue(fs: FileSystem) -> AsyncIterator[Sender]:
    async with opened(fs, **NEVER, checkpoint_slice=0) as queue:
        yield queue, queue.send, queue.send_nowait


async def stream(fs: FileSystem) -> AsyncIterator[Sender]:
    async with producing(fs, **NEVER) as producer:
        yield producer, producer.send, producer.send_nowait


async def journal(fs: FileSystem) -> AsyncIterator[Sender]:
    async with writing(fs, **NEVER) as journal:
        yield journal, journal.send, journal.send_nowait


async def store(fs: FileSystem) -> AsyncIterator[Sender]:
    async with diskq.open_priority_store("/jobs", fs=fs, preallocate=False, **NEVER) as store:
        jobs = store.queue()
        await store.sync()
        yield store, jobs.send, jobs.send_nowait


KINDS = [queue, queue_in_batches, strict_queue, stream, journal, store]
NAMES = [kind.__name__ for kind in KINDS]
each_kind = pytest.mark.parametrize("kind", [asynccontextmanager(kind) for kind in KINDS], ids=NAMES)


def unsynced(channel: Any) -> int:
    return int(channel.statistics().unsynced_bytes)


@each_kind
async def test_no_sender_waits_while_the_first_half_is_synced(kind):
    disk = PatientDisk()
    async with kind(disk) as (channel, send, send_nowait):
        disk.hold()
        while unsynced(channel) <= BOUND // 2:
            assert disk.waiting == 0
            await send(b"x" * 1000)
        await until(lambda: disk.waiting == 1)
        while unsynced(channel) <= BOUND - 2 * KIB:
            send_nowait(b"x" * 1000)
        with pytest.raises(trio.WouldBlock):
            send_nowait(b"x" * 2 * KIB)
        disk.let_go()
        await until(lambda: unsynced(channel) == 0)  # what came meanwhile was over half again


@each_kind
async def test_at_half_no_barrier_has_begun_yet(kind):
    disk = PatientDisk()
    async with kind(disk) as (channel, send, _):
        disk.hold()
        while unsynced(channel) <= BOUND // 2 - 2 * KIB:
            await send(b"x" * 1000)
        await blocked(0.01)
        assert disk.waiting == 0
        disk.let_go()


async def test_what_finds_no_room_on_the_disk_is_not_asked_for_again_and_again():
    disk = fault_disk()
    options = NEVER | {"max_unsynced": 2000, "durability": "memory", "memory_flush": 1000}
    async with opened(disk, **options) as queue:
        await queue.send(b"first")
        disk.capacity(0)
        began = trio.current_time()
        await queue.send_many([b"x" * 200] * 9)
        assert unsynced(queue) > 1000
        await trio.sleep(0.25)
        # Each tenth of a second, the first one, and the last one.
        assert 1 <= queue.statistics().barriers <= (trio.current_time() - began) * 10 + 2
        disk.heal()
