# Lines of threads that wait for something: a message, or space. Law: a thread joins the line before it looks
# for the last time, and the line is woken after there is something; so no wake-up is lost. One that came to a
# thread which did not use it is passed on.
#
# No lock: joining, leaving and waking are single steps of the interpreter. The thread guard is not held by a
# thread that waits here.

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import TypeVar

__all__ = ["ThreadLine", "ThreadLines"]

T = TypeVar("T")


class ThreadLine:
    """Threads that wait, in order of arrival."""

    def __init__(self) -> None:
        self._sleepers: list[Lock] = []

    def __len__(self) -> int:
        return len(self._sleepers)

    def wake(self, count: int = 1) -> None:
        """Let the first `count` threads look again."""
        while count > 0 and self._sleepers:
            try:
                sleeper = self._sleepers.pop(0)
            except IndexError:  # another thread has woken it
                return
            sleeper.release()
            count -= 1

    def wait(self, look: Callable[[], T | None], timeout: float | None) -> T | None:
        """Return what `look` returns, once that is not None; None after `timeout` seconds (None: no limit).

        Raises ValueError for a timeout below 0, and what `look` raises.
        """
        if timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        end = None if timeout is None else monotonic() + timeout
        has_place = False  # it was the first one before
        while True:
            sleeper = Lock()
            sleeper.acquire()
            is_used = False
            try:
                self._sleepers.insert(0 if has_place else len(self._sleepers), sleeper)
                left = -1.0 if end is None else end - monotonic()
                found = look()
                is_used = found is None and (left > 0 or end is None) and sleeper.acquire(timeout=left)
            finally:
                was_woken = not self._leave(sleeper)
                if was_woken and not is_used:
                    self.wake()
            if found is not None:
                return found
            if not is_used and not was_woken:
                return None
            has_place = True

    def _leave(self, sleeper: Lock) -> bool:
        """Leave the line. False: it was woken."""
        try:
            self._sleepers.remove(sleeper)
        except ValueError:
            return False
        return True


class ThreadLines:
    """The lines of one queue."""

    def __init__(self) -> None:
        self.for_messages = ThreadLine()
        self.for_space = ThreadLine()

    def wake_all(self) -> None:
        """Let all threads look again: what they wait for cannot come any more."""
        self.for_messages.wake(len(self.for_messages))
        self.for_space.wake(len(self.for_space))
