# One sync fails while another one is executed. Law: what a call has returned for is durable, though the other
# sync has failed and nobody knows it yet.
#
# A kernel reports a failed write-back once: where two syncs of one file are executed at the same time, one of
# them may get the error of both, and the success of the other says nothing. This disk does the worst that is
# allowed: the sync that fails takes all that is dirty in its files until it returns, and it returns last.

from __future__ import annotations

import errno
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

import diskq
from diskq.testing import CrashFS, FaultFS
from tests.channels.rig import Tasks, blocked, until
from tests.contract.kinds import Channel, ChannelKind, body, channels
from tests.contract.lives import PATH, crash_disk
from tests.loops import each_loop

LOG_SIZE = 64 * 1024
LARGE = 12_000
"""Bytes. Two such messages fit into each half of a redo log of that size, and a small one after them."""

each_kind = pytest.mark.parametrize("kind", channels(), ids=str)


class HalfDeafDisk(FaultFS[CrashFS]):
    """A disk of which the next sync fails once it is let go, while those that begin later succeed at once."""

    def __init__(self) -> None:
        super().__init__(crash_disk())
        self.is_armed = False
        self.failing: tuple[int, ...] = ()
        self.shared: set[str] = set()
        """Files of such a sync that the one that fails has, too."""
        self._go = threading.Event()

    def sync_files(self, handles: Sequence[int]) -> None:
        if self.is_armed:
            self.is_armed, self.failing = False, tuple(handles)
            assert self._go.wait(60), "held for ever"
            self.failing = ()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if not self.failing:
            super().sync_files(handles)
            return
        for handle in self.failing:
            self.inner.mark_clean(handle)
        self.shared |= set(map(self._path, handles)) & set(map(self._path, self.failing))
        super().sync_files(handles)

    def let_go(self) -> None:
        self._go.set()


class Race:
    """Calls of a channel, of which the first one waits for the sync that fails."""

    def __init__(self, disk: HalfDeafDisk, channel: Channel, tasks: Tasks) -> None:
        self.disk = disk
        self.channel = channel
        self._tasks = tasks

    async def first(self, call: Any, *args: Any) -> None:
        self.disk.is_armed = True
        await self._tasks.start("first", call, *args)
        await until(lambda: bool(self.disk.failing))

    async def second(self, call: Any, *args: Any) -> list[bytes] | None:
        """Return what a power cut leaves once this call has returned; None if it waits for the first one."""
        await self._tasks.start("second", call, *args)
        for _ in range(100):
            if "second" in self._tasks:
                assert not isinstance(self._tasks["second"], Exception)
                return self.channel.kind.read(PATH, fs=self.disk.inner.crash())
            await blocked(0.001)
        return None


@asynccontextmanager
async def racing(kind: ChannelKind) -> AsyncIterator[Race]:
    """A channel with a message that is durable. In the end the sync fails, and each call that still waits."""
    disk = HalfDeafDisk()
    options = {} if kind.name == "priority" else {"redo_log_size": LOG_SIZE}
    with suppress(diskq.BrokenResourceError):
        async with kind.open(PATH, fs=disk, **options) as channel, anyio.create_task_group() as group:
            tasks = Tasks(group)
            await channel.send(body(0), "synced")
            await channel.send(body(1), "synced")
            try:
                yield Race(disk, channel, tasks)
            finally:
                returned = len(tasks.ended)
                disk.let_go()
            await until(lambda: len(tasks.ended) == 2)
    assert all(isinstance(result, diskq.BrokenResourceError) for _, result in tasks.ended[returned:])
    assert not disk.shared, "two syncs of one file at the same time"


@each_kind
@each_loop
async def test_sync_does_not_return_for_bytes_that_a_send_has_lost(kind: ChannelKind) -> None:
    async with racing(kind) as race:
        await race.first(race.channel.send, body(2), "synced")
        found = await race.second(race.channel.sync)
        assert found is None or found == [body(0), body(1), body(2)]


@each_kind
@each_loop
async def test_a_synced_send_does_not_return_for_bytes_that_a_sync_has_lost(kind: ChannelKind) -> None:
    async with racing(kind) as race:
        await race.channel.send(body(2))
        await race.first(race.channel.sync)
        found = await race.second(race.channel.send, body(3), "synced")
        assert found is None or found == [body(0), body(1), body(2), body(3)]


@each_kind
@each_loop
async def test_a_synced_send_waits_for_a_sync_that_is_of_the_files_and_the_log(kind: ChannelKind) -> None:
    """The log is synced with the files when a half is used again, so that it says durably what is needed."""
    async with racing(kind) as race:
        sent = [body(0), body(1)]
        for number in range(2, 6):
            sent.append(body(number, LARGE))
            await race.channel.send(sent[-1], "synced")
        await race.channel.sync()
        sent += [body(6, LARGE), body(7)]
        await race.first(race.channel.send, sent[6], "synced")
        found = await race.second(race.channel.send, sent[7], "synced")
        assert found is None or found == sent
