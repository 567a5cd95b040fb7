# Notification of file changes. Law: a notification is a hint, never the truth: the woken reader looks itself.
#
# A path is reported if it changed after it was added; so the caller adds it first, looks then, and
# waits last. If the kernel's event queue overflowed, every path is reported.

from __future__ import annotations

import contextlib
import math
import select
from collections import defaultdict
from typing import Protocol

from diskq._native.core import inotify

__all__ = ["FileWatch", "open_inotify"]


class FileWatch(Protocol):
    """Reports changed files. Its descriptor becomes readable when there are changes."""

    def fileno(self) -> int: ...

    def add_file(self, path: str) -> None:
        """Report writes to the file. Raises OSError if it does not exist, or there are too many watches."""

    def add_directory(self, path: str) -> None:
        """Report names created, removed or changed in the directory. Raises as `add_file`."""

    def remove(self, path: str) -> None:
        """Stop reporting the path. Idempotent."""

    def wait(self, seconds: float) -> None:
        """Return when there are changes, or after this many seconds; infinity: no limit."""

    def drain(self) -> set[str]:
        """Return the paths that have changed since they were added. Never waits."""

    def close(self) -> None: ...


def open_inotify() -> FileWatch | None:
    """Return a watch; None if the kernel has no inotify, or this user has reached its limit."""
    with contextlib.suppress(OSError):
        return _Inotify(inotify.init())
    return None


class _Inotify:
    """One inotify descriptor. Two paths may lead to one file, which has one watch."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._watches: dict[str, int] = {}
        self._paths: defaultdict[int, set[str]] = defaultdict(set)

    def fileno(self) -> int:
        return self._descriptor

    def add_file(self, path: str) -> None:
        self._add(path, inotify.MODIFY)

    def add_directory(self, path: str) -> None:
        self._add(path, inotify.NAMES)

    def _add(self, path: str, mask: int) -> None:
        watch = inotify.add_watch(self._descriptor, path, mask)
        if self._watches.get(path, watch) != watch:
            self.remove(path)  # another file has this name now
        self._watches[path] = watch
        self._paths[watch].add(path)

    def remove(self, path: str) -> None:
        watch = self._watches.pop(path, None)
        if watch is None:
            return
        self._paths[watch].discard(path)
        if not self._paths[watch]:
            del self._paths[watch]
            inotify.rm_watch(self._descriptor, watch)

    def wait(self, seconds: float) -> None:
        changes = select.poll()  # `select` has no descriptors above 1023
        changes.register(self._descriptor, select.POLLIN)
        changes.poll(None if seconds == math.inf else math.ceil(seconds * 1000))

    def drain(self) -> set[str]:
        changed: set[str] = set()
        for watch, mask in inotify.read_events(self._descriptor):
            if mask & inotify.OVERFLOW:
                changed.update(self._watches)
            changed |= self._paths.get(watch, set())
            if mask & inotify.IGNORED:  # the file is gone, and its watch with it
                for path in self._paths.pop(watch, ()):
                    del self._watches[path]
        return changed

    def close(self) -> None:
        inotify.close(self._descriptor)
