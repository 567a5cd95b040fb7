# The clock of our tests: see `autojump_clock` in tests/conftest.py.

from __future__ import annotations

import time

import trio


async def test_the_clock_does_not_jump_while_a_thread_works(autojump_clock):
    with trio.move_on_after(3600) as scope:
        await trio.to_thread.run_sync(time.sleep, 0.05)
        assert trio.current_time() == 0
        await trio.sleep(1800)
    assert trio.current_time() == 1800
    assert not scope.cancelled_caught
