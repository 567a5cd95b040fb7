# The thread that executes syncs. Law: this thread waits for the disk, so that the event loop never does.
#
# One thread for the life of a queue or stream: a hand-over to it costs a third of one to a pool's thread,
# and the durable latency of a single producer is mostly such hand-overs.

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

import outcome
import trio

from diskq.engine.log.sync import Sync
from diskq.storage.barrier import Barrier
from diskq.storage.durations import DurationCounter
from diskq.storage.fs import FileSystem
from diskq.storage.status_file import StatusBoard

__all__ = ["BarrierThread", "in_a_thread"]

T = TypeVar("T")


OnExecuted = Callable[[outcome.Outcome[bool]], None]
OnDone = Callable[[outcome.Outcome[Any]], None]


class BarrierThread:
    """Executes syncs, one at a time. Made in a Trio task, used by its run."""

    def __init__(self, fs: FileSystem, name: str, status: str | None = None) -> None:
        """`status` is the path of the status file for other processes (storage/status_file.py).

        Raises RuntimeError if the system can start no thread.
        """
        self._fs = fs
        self.board = None if status is None else StatusBoard(fs, status)
        self.executed = DurationCounter()
        """How long barriers took on the disk, without those that failed."""
        self._token = trio.lowlevel.current_trio_token()
        self._work: SimpleQueue[tuple[Callable[[], Any], OnDone] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"diskq barriers of {name}", daemon=True)
        self._thread.start()

    def execute(self, sync: Sync, on_executed: OnExecuted) -> None:
        """Call `on_executed` in Trio's thread with what `Barrier.execute` returned or raised."""
        self.do(lambda: self._execute(sync.barrier), on_executed)

    def execute_log(self, sync: Sync, on_executed: OnExecuted) -> None:
        """Do the same with a sync of the redo log, at the same time as one of the files."""
        self.execute(sync, on_executed)

    def do(self, job: Callable[[], Any], on_done: OnDone) -> None:
        """Run `job` after all earlier work, and call `on_done` in Trio's thread with its outcome."""
        self._work.put((job, on_done))

    def stop(self) -> None:
        """End the thread. It must have nothing left to execute."""
        self._work.put(None)
        self._thread.join()
        if self.board is not None:
            with contextlib.suppress(OSError):  # other processes only display it
                self.board.close()

    def _execute(self, barrier: Barrier) -> bool:
        began = self._fs.monotonic()
        is_replaced = barrier.execute(self._fs)
        now = self._fs.monotonic()
        self.executed.note(now - began)
        if self.board is not None:
            self.board.executed(now, now - began, self.executed)
        return is_replaced

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            job, on_done = work
            self._token.run_sync_soon(on_done, outcome.capture(job))


async def in_a_thread(act: Callable[..., T], *args: Any) -> T:
    """Run `act`, which closes files, in a worker thread; if none can be started, in Trio's own thread.

    The files must not stay open. Cancellable only before `act` begins.
    """
    has_begun = False

    def begin() -> T:
        nonlocal has_begun
        has_begun = True
        return act(*args)

    try:
        return await trio.to_thread.run_sync(begin)
    except RuntimeError:
        if has_begun:
            raise
    return act(*args)
