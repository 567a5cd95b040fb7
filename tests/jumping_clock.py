# Trio's clock that jumps to the next deadline while no task can run, and no thread works for one.
#
# Trio's own jumps then as well: how far it goes during an open or a sync depends on how busy the machine is.

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import trio.testing

from diskq.channels.core.sync_executor import OnDone, OnExecuted, SyncExecutor
from diskq.engine.log.sync import Sync
from diskq.storage.status_file import DiskBound


def jumping_clock(monkeypatch: pytest.MonkeyPatch) -> trio.testing.MockClock:
    clock = trio.testing.MockClock(autojump_threshold=0)
    jump, executing = clock._autojump, _Executing(monkeypatch)

    def jump_unless_a_thread_works() -> None:
        if executing.count or trio.to_thread.current_default_thread_limiter().borrowed_tokens:
            time.sleep(0.0001)  # the loop asks again at once
        else:
            jump()

    clock._autojump = jump_unless_a_thread_works  # type: ignore[method-assign]
    return clock


class _Executing:
    """Counts what threads of stores execute, until it is reported in the loop's thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        begin, do = SyncExecutor.begin, SyncExecutor.do

        def counted_begin(
            executor: SyncExecutor, sync: Sync, on_executed: OnExecuted, bound: Callable[[], DiskBound]
        ) -> None:
            begin(executor, sync, self._discounted(on_executed), bound)
            self.count += 1

        def counted_do(executor: SyncExecutor, job: Callable[[], Any], on_done: OnDone) -> None:
            do(executor, job, self._discounted(on_done))
            self.count += 1

        monkeypatch.setattr(SyncExecutor, "begin", counted_begin)
        monkeypatch.setattr(SyncExecutor, "do", counted_do)

    def _discounted(self, report: Callable[..., None]) -> Callable[..., None]:
        def reported(*args: Any) -> None:
            self.count -= 1
            report(*args)

        return reported
