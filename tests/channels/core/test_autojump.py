# The clock of our tests: see tests/jumping_clock.py.

from __future__ import annotations

import time

import trio

import diskq
from diskq.storage.fs import OsFileSystem
from diskq.testing import FaultFS


async def test_the_clock_does_not_jump_while_a_thread_works(autojump_clock):
    with trio.move_on_after(3600) as scope:
        await trio.to_thread.run_sync(time.sleep, 0.05)
        assert trio.current_time() == 0
        await trio.sleep(1800)
    assert trio.current_time() == 1800
    assert not scope.cancelled_caught


async def test_the_clock_does_not_jump_during_a_sync(autojump_clock, tmp_path):
    fs = FaultFS(OsFileSystem())
    async with diskq.open_queue(tmp_path, "q", fs=fs) as queue:
        fs.delay("sync_files", 0.05)
        with trio.move_on_after(1.9) as scope:  # before the sync that `sync_timeout` asks for
            await queue.send(b"message", durability="synced")
        assert trio.current_time() == 0
    assert not scope.cancelled_caught
