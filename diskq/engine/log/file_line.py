# Threads that wait until files change. Law: one of them watches, and looks at each change; the others sleep
# until then, and the next one looks as soon as the first has found what it wants, or gives up.
#
# So each change is drained by a thread that looks afterwards, and none waits for what is there already.

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar

from diskq.engine.log.thread_line import ThreadLine, deadline, now
from diskq.storage.fs import FileSystem

__all__ = ["FileLine"]

T = TypeVar("T")

# Seconds between two looks where the kernel does not report changes: they double while nothing comes.
_SOON = 0.010
_SELDOM = 0.250


class FileLine:
    """Threads that wait for one reader's files, in order of arrival.

    The reader holds its guard in all calls but `wait`, whose `look` takes it.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._watch = fs.open_watch()
        self._has_lead = Lock()
        self._behind = ThreadLine()
        self._bell = Lock()  # it ends the sleep of a thread that polls
        self._bell.acquire()
        self._paths: set[str] = set()
        self._unwatched: set[str] = set()
        self._is_closed = False

    @property
    def is_polled(self) -> bool:
        """True if the kernel does not report changes of all paths: any may have changed."""
        return self._watch is None or bool(self._unwatched)

    def add_file(self, path: str) -> bool:
        """Wake a thread when the file was written to. False: it is only polled, until it is added again."""
        return self._add(path, is_directory=False)

    def add_directory(self, path: str) -> bool:
        """Wake a thread when names come or go in the directory. False: as `add_file`."""
        return self._add(path, is_directory=True)

    def _add(self, path: str, *, is_directory: bool) -> bool:
        self._paths.add(path)
        if self._watch is None:
            return False
        try:
            (self._watch.add_directory if is_directory else self._watch.add_file)(path)
        except OSError:
            # It is missing (then its directory's watch reports it), or the kernel has no more watches.
            self._unwatched.add(path)
            return False
        self._unwatched.discard(path)
        return True

    def remove(self, path: str) -> None:
        """Do not wait for that path any more. Idempotent."""
        self._paths.discard(path)
        self._unwatched.discard(path)
        if self._watch is not None:
            self._watch.remove(path)

    def changes(self) -> set[str]:
        """Return the paths that the kernel has reported since the last call. Never waits."""
        return set() if self._watch is None else self._watch.drain()

    def wait(
        self, look: Callable[[], T | None], timeout: float | None, alarm: Callable[[], float]
    ) -> T | None:
        """Return what `look` returns, once that is not None; None after `timeout` seconds (None: no limit).

        It looks again after each change, and when it is `alarm()` by the time of `now`. Raises ValueError for
        a timeout below 0, and what `look` raises.
        """
        end = deadline(timeout)
        while True:
            if self._has_lead.acquire(blocking=False):
                try:
                    return self._lead(look, end, alarm)
                finally:
                    self._has_lead.release()
                    if self._is_closed:
                        self._let_go_unless_led()
                    self._behind.wake()
            left = None if end == math.inf else max(0.0, end - now())
            found: Any = self._behind.wait(lambda: _LEADS if self._can_lead else look(), left)
            if found is not _LEADS:
                return found  # type: ignore[no-any-return]

    @property
    def _can_lead(self) -> bool:
        return not self._has_lead.locked()

    def _lead(self, look: Callable[[], T | None], end: float, alarm: Callable[[], float]) -> T | None:
        interval = _SOON
        while True:
            found = look()
            left = min(end, alarm()) - now()
            if found is not None or end <= now():
                return found
            if self.is_polled:
                left = min(left, interval)
                interval = min(2 * interval, _SELDOM)
            if left > 0:
                self._sleep(left)

    def _sleep(self, seconds: float) -> None:
        if self._watch is not None:
            self._watch.wait(seconds)
        elif self._bell.acquire(timeout=seconds):
            self._bell.release()  # it was closed: nobody sleeps any more

    def close(self) -> None:
        """Let all threads look: what they wait for cannot come. The last one closes the watch. Idempotent."""
        self._is_closed = True
        if self._bell.locked():
            self._bell.release()
        for path in list(self._paths):
            self.remove(path)  # the kernel reports that, too
        self._let_go_unless_led()
        self._behind.wake(len(self._behind))

    def _let_go_unless_led(self) -> None:
        if self._has_lead.acquire(blocking=False):
            try:
                self.let_go()
            finally:
                self._has_lead.release()

    def let_go(self) -> None:
        """Close the watch. Idempotent."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    @property
    def has_waiting(self) -> bool:
        """True if a thread waits, or is about to look."""
        return self._has_lead.locked() or len(self._behind) > 0

    @property
    def holds_watch(self) -> bool:
        return self._watch is not None


_LEADS = object()
