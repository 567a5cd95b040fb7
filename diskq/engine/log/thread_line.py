# Lines of threads that wait for something: a message, or space. Law: a thread joins the line before it looks
# for the last time, and the line is woken after there is something; so no wake-up is lost. One that came to a
# thread which did not use it is passed on.
#
# No lock: joining, leaving and waking are single steps of the interpreter. The thread guard is not held by a
# thread that waits here.

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import TypeVar

__all__ = ["ThreadLine", "ThreadLines", "deadline", "now"]

T = TypeVar("T")


def now() -> float:
    """Return the seconds by which a line measures timeouts."""
    return monotonic()


def deadline(timeout: float | None) -> float:
    """Return the end of a timeout, by `now`; infinity for None. Raises ValueError for one below 0."""
    if timeout is None:
        return math.inf
    if timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
    return now() + timeout


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
        end = deadline(timeout)
        has_place = False  # it was the first one before
        while True:
            sleeper = Lock()
            sleeper.acquire()
            is_used = False
            try:
                self._sleepers.insert(0 if has_place else len(self._sleepers), sleeper)
                left = end - now()
                found = look()
                is_used = found is None and left > 0 and _slept(sleeper, left)
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


def _slept(sleeper: Lock, seconds: float) -> bool:
    """Sleep, at most so long. True if it was woken."""
    return sleeper.acquire(timeout=-1.0 if seconds == math.inf else seconds)


class ThreadLines:
    """The lines of one queue."""

    def __init__(self) -> None:
        self.for_messages = ThreadLine()
        self.for_space = ThreadLine()
        self.for_end = ThreadLine()
        """Those that wait until there is no message left."""

    def note_taken(self, count: int) -> None:
        """Let those look again that wait for `count` messages to be taken."""
        self.for_space.wake(count)
        self.for_end.wake(len(self.for_end))

    def wake_all(self) -> None:
        """Let all threads look again: what they wait for cannot come any more."""
        self.for_messages.wake(len(self.for_messages))
        self.note_taken(len(self.for_space))
