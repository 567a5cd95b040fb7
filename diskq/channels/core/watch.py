# Calls listeners when files change. Law: a call is only a hint, and the listener looks itself; a listener
# that adds a path first and looks at it afterwards misses no change.
#
# One task for each run of an event loop and file system. If the kernel reports changes (inotify, through
# `wait_readable`: no thread), the task sleeps until it does, and costs nothing while nothing happens.
# Otherwise, and if the kernel has no more watches to give, waiting listeners are polled: every 10 ms at
# first, and less often, down to every 250 ms, while nothing comes.

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from functools import partial

from diskq.channels.core.event_loops.seam import EventLoop, running_event_loop
from diskq.storage.fs import FileSystem, OsFileSystem

__all__ = ["Listener", "listen"]

_SOON = 0.010
_SELDOM = 0.250

Notice = Callable[[str | None], bool]
"""Called with a path that has changed, or None: anything may have changed. Returns True if it found news.

It runs in a system task: it must not raise or take long.
"""


def listen(fs: FileSystem, notice: Notice) -> Listener:
    """Return a listener whose `notice` is called when a path it added changes. Call this in a task."""
    event_loop = running_event_loop()
    watchers: dict[object, _Watcher] = event_loop.local.setdefault("watchers", {})
    key = OsFileSystem if isinstance(fs, OsFileSystem) else fs
    watcher = watchers.get(key)
    if watcher is None:
        watcher = watchers[key] = _Watcher(event_loop, fs, partial(watchers.pop, key))
    return Listener(watcher, notice)


class Listener:
    """A callback and the paths it is called for. Close it after use."""

    def __init__(self, watcher: _Watcher, notice: Notice) -> None:
        self.notice = notice
        self.is_waiting = False
        self._watcher = watcher
        self._paths: set[str] = set()
        self._unwatched: set[str] = set()
        watcher.listeners.add(self)

    @property
    def is_polled(self) -> bool:
        """True if it is polled, because the kernel does not report changes of all its paths."""
        return not self._watcher.has_kernel_watch or bool(self._unwatched)

    def add_file(self, path: str) -> bool:
        """Call the listener when the file was written to. False: it is only polled until added again."""
        return self._add(path, self._watcher.watch_file)

    def add_directory(self, path: str) -> bool:
        """Call the listener when names appear or disappear in the directory. False: as `add_file`."""
        return self._add(path, self._watcher.watch_directory)

    def _add(self, path: str, watch: Callable[[str], None]) -> bool:
        self._watcher.by_path[path].add(self)
        self._paths.add(path)
        try:
            watch(path)
        except OSError:
            # The path is missing (then its directory's watch reports it), or the kernel has no more watches.
            self._unwatched.add(path)
            return False
        self._unwatched.discard(path)
        return True

    def remove(self, path: str) -> None:
        """Stop the calls for that path. Idempotent."""
        self._paths.discard(path)
        self._unwatched.discard(path)
        self._watcher.leave(path, self)

    def begin_to_wait(self) -> None:
        """Note that a task waits for news. If the listener is polled, poll soon."""
        self.is_waiting = True
        if self.is_polled:
            self._watcher.look_soon()

    def end_waiting(self) -> None:
        self.is_waiting = False

    def close(self) -> None:
        """Stop all calls. Idempotent."""
        for path in list(self._paths):
            self.remove(path)
        self._watcher.dismiss(self)


class _Watcher:
    """The task that waits for the kernel or polls, and calls the listeners. Ends with the last of them."""

    def __init__(self, event_loop: EventLoop, fs: FileSystem, on_end: Callable[[], object]) -> None:
        self._event_loop = event_loop
        self.listeners: set[Listener] = set()
        self.by_path: defaultdict[str, set[Listener]] = defaultdict(set)
        self._on_end = on_end
        self._watch = fs.open_watch()
        self._interval = _SOON
        self._sleep = event_loop.scope()
        event_loop.spawn(self._run, name="diskq watches files")

    @property
    def has_kernel_watch(self) -> bool:
        return self._watch is not None

    def watch_file(self, path: str) -> None:
        if self._watch is not None:
            self._watch.add_file(path)

    def watch_directory(self, path: str) -> None:
        if self._watch is not None:
            self._watch.add_directory(path)

    def leave(self, path: str, listener: Listener) -> None:
        listeners = self.by_path[path]
        listeners.discard(listener)
        if not listeners:
            del self.by_path[path]
            if self._watch is not None:
                self._watch.remove(path)

    def dismiss(self, listener: Listener) -> None:
        self.listeners.discard(listener)
        if not self.listeners:
            self._sleep.cancel()

    def look_soon(self) -> None:
        self._interval = _SOON
        self._sleep.deadline = min(self._sleep.deadline, self._event_loop.clock() + _SOON)

    async def _run(self) -> None:
        try:
            while self.listeners:
                with self._event_loop.scope() as self._sleep:  # one for many turns: it costs more than a turn
                    await self._take_turns()
                self._look()
        finally:
            self._on_end()
            if self._watch is not None:
                self._watch.close()

    async def _take_turns(self) -> None:
        """Call the listeners of changed paths until it is time to poll, or no listener is left."""
        looks = any(listener.is_waiting and listener.is_polled for listener in self.listeners)
        self._sleep.deadline = self._event_loop.clock() + self._interval if looks else math.inf
        if self._watch is None:
            await self._event_loop.event().wait()  # until the deadline
            return
        watch = self._watch
        while self.listeners:
            await self._event_loop.wait_readable(watch.fileno())
            for path in watch.drain():
                for listener in list(self.by_path.get(path, ())):
                    listener.notice(path)

    def _look(self) -> None:
        has_found = False
        for listener in list(self.listeners):
            if listener.is_waiting and listener.is_polled:
                has_found |= listener.notice(None)
        self._interval = _SOON if has_found else min(2 * self._interval, _SELDOM)
