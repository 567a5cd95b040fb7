# Journals as they appear below a directory. Law: each is told once, while it is there; one that was removed
# and comes again is told again. Nothing is asked while nothing changes, where the kernel tells.

from __future__ import annotations

from collections import deque

import outcome
import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.core.leaving import Leaving
from diskq.channels.core.own_thread import OwnThread
from diskq.channels.core.waiting_line import Line
from diskq.channels.core.watch import listen
from diskq.engine.journal.shards import journals_below
from diskq.storage.closing import Closing
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path

__all__ = ["RootWatch", "watch_root"]


def watch_root(root: AnyPath, *, fs: FileSystem | None = None) -> RootWatch:
    """The paths of journals at `root` and right below it: those that are there, and those that come.

    A receive channel that never ends: `async with watch_root("journals") as found: async for path in found:`.
    The root need not be there yet. Call it in a Trio task. Raises OSError.
    """
    return RootWatch(fs or OsFileSystem(), as_path(root))


class RootWatch(Leaving, trio.abc.ReceiveChannel[str], Closing):
    """Made by `watch_root`."""

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
        """The next journal's path; waits for one. `Cancelled` means: nothing was received. Raises OSError."""
        await trio.lowlevel.checkpoint()
        self._own_thread.check()
        if not self._waiting and (self._found or self._failure is not None or self._is_closed):
            return self._take()
        path: str = await self._waiting.wait(None, on_arrival=self._begin_to_wait, on_leave=self._settle)
        self._settle()
        return path

    def receive_nowait(self) -> str:
        """As `receive`; raises trio.WouldBlock where there is none now."""
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
            self._listener.add_directory(path)  # its journal comes after it
        for path in self._candidates - set(others):
            self._listener.remove(path)
        is_more = set(others) - self._candidates
        self._candidates = set(others)
        self._found += [path for path in found if path not in self._known]
        self._known = set(found)
        if is_more:
            self._look()  # what came before they were watched

    def _begin_to_wait(self) -> None:
        self._listener.begin_to_wait()

    def _settle(self) -> None:
        if not self._waiting:
            self._listener.end_waiting()

    def _notice(self, path: str | None) -> bool:
        if path is None:
            self._listener.add_directory(self._root)  # it may have come
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
        """Watch no more, and wake who waits with ClosedResourceError. Idempotent."""
        if not self._is_closed:
            self._own_thread.check()
            self._is_closed = True
            self._listener.close()
            self._waiting.wake_all(lambda: outcome.Error(trio.ClosedResourceError("this watch was closed")))
