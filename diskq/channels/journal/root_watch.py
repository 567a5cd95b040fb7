# Journals as they appear below a directory. Law: each is reported once while it exists; one that was removed
# and made again is reported again. If the kernel reports changes, nothing is read while nothing changes.

from __future__ import annotations

from collections import deque

import outcome
import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.core.event_loops.seam import running_event_loop
from diskq.channels.core.leaving import Leaving
from diskq.channels.core.own_thread import OwnThread
from diskq.channels.core.waiting_line import Line
from diskq.channels.core.watch import listen
from diskq.engine.journal.shards import journals_below
from diskq.storage.closing import Closing
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path

__all__ = ["JournalRootWatch", "open_root_watch"]


def open_root_watch(root: AnyPath, *, fs: FileSystem | None = None) -> JournalRootWatch:
    """Watch for journals at `root` and directly below it: gives the paths of present and of later ones.

    A receive channel that never ends:
    `async with open_root_watch("journals") as found: async for path in found:`. The root need not exist yet.
    Call this in a task. Raises OSError.
    """
    return JournalRootWatch(fs or OsFileSystem(), as_path(root))


class JournalRootWatch(Leaving, trio.abc.ReceiveChannel[str], Closing):
    """Receives the paths of journals. Made by `open_root_watch`."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root
        self._known: set[str] = set()
        self._found: deque[str] = deque()
        self._waiting: Line[None] = Line()
        self._failure: OSError | None = None
        self._candidates: set[str] = set()
        self._is_closed = False
        self._own_thread = OwnThread(f"the watch of {root!r}")
        self._listener = listen(fs, self._notice)
        self._listener.add_directory(root)
        try:
            self._look()
        except BaseException:
            self._listener.close()
            raise

    @enable_ki_protection
    async def receive(self) -> str:
        """Return the next path; waits for one. `Cancelled` means: nothing was received. Raises OSError."""
        self._own_thread.check()
        await running_event_loop().checkpoint()
        if not self._waiting and (self._found or self._failure is not None or self._is_closed):
            return self._take()
        path: str = await self._waiting.wait(None, on_arrival=self._begin_to_wait, on_leave=self._settle)
        self._settle()
        return path

    def receive_nowait(self) -> str:
        """Do as `receive` without waiting; raises trio.WouldBlock if no path is available now."""
        self._own_thread.check()
        if not self._found and self._failure is None and not self._is_closed:
            self._look()
        if self._waiting or not (self._found or self._failure is not None or self._is_closed):
            raise trio.WouldBlock
        return self._take()

    def _take(self) -> str:
        if self._is_closed:
            raise trio.ClosedResourceError("this watch was closed")
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return self._found.popleft()

    def _look(self) -> None:
        found, others = journals_below(self._fs, self._root, self._known)
        for path in set(others) - self._candidates:
            self._listener.add_directory(path)  # the journal in it is made later
        for path in self._candidates - set(others):
            self._listener.remove(path)
        is_more = set(others) - self._candidates
        self._candidates = set(others)
        self._found += [path for path in found if path not in self._known]
        self._known = set(found)
        if is_more:
            self._look()  # for changes before the watches began

    def _begin_to_wait(self) -> None:
        self._listener.begin_to_wait()

    def _settle(self) -> None:
        if not self._waiting:
            self._listener.end_waiting()

    def _notice(self, path: str | None) -> bool:
        if path is None:
            self._listener.add_directory(self._root)  # it may exist now
        before = len(self._found)
        try:
            self._look()
        except OSError as failure:
            self._failure = failure
        has_found = len(self._found) > before
        while self._waiting and (self._found or self._failure is not None):
            self._waiting.wake_first(outcome.capture(self._take))
        return has_found

    def close(self) -> None:
        """End the watch, and wake waiting tasks with ClosedResourceError. Idempotent."""
        self._own_thread.check()
        if not self._is_closed:
            self._is_closed = True
            self._listener.close()
            self._waiting.wake_all(lambda: outcome.Error(trio.ClosedResourceError("this watch was closed")))
