# A channel belongs to the thread of its event loop. Law: a call from any other thread is refused before
# anything is touched. The compiled paths refuse it with the guard of their gates, which is bound to the
# thread; this module refuses all other calls.
#
# Trio refuses to wake a task from another thread, but too late: the message would already be in the store,
# and the waiting task half woken.

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Protocol

from diskq.errors import BusyError, ForkedError
from diskq.storage.forks import notify_on_fork

__all__ = ["OwnProcess", "OwnThread", "OwnThreadGuard"]


class OwnThreadGuard(Protocol):
    """A thread guard of an engine (diskq.engine.log.exclusive)."""

    def bind(self, busy: Callable[[], Exception], /) -> None: ...

    def unbind(self) -> None: ...

    def check(self) -> None: ...


class OwnProcess:
    """The process in which this is made, in any thread."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parent: int | None = None  # in a child of a fork
        notify_on_fork(self)

    def leave_to_parent(self, pid: int) -> None:
        """In a child of a fork, refuse all calls."""
        self._parent = pid

    def check(self) -> None:
        """Raises ForkedError in a child of a fork."""
        if self._parent is not None:
            raise ForkedError(self._title, self._parent)


class OwnThread:
    """The thread in which this is made. `guard`, if given, is bound to that thread until `let_go`."""

    def __init__(self, title: str, guard: OwnThreadGuard | None = None) -> None:
        self._title = title
        self._thread = get_ident()
        self._guard = guard
        self.check: Callable[[], None] = self._check
        """Raises BusyError in every other thread, and ForkedError in a child of a fork."""
        if guard is None:
            notify_on_fork(self)
        else:
            guard.bind(self._error)
            self.check = guard.check  # the same, compiled

    def let_go(self) -> None:
        """Unbind the guard, so that any thread may use the engine again. Idempotent."""
        guard, self._guard = self._guard, None
        if guard is not None:
            self.check = self._check
            guard.unbind()

    def leave_to_parent(self, pid: int) -> None:
        """In a child of a fork, refuse all calls: the channel belongs to the parent."""

        def refuse() -> None:
            raise ForkedError(self._title, pid)

        self.check = refuse

    def _check(self) -> None:
        if get_ident() != self._thread:
            raise self._error()

    def _error(self) -> BusyError:
        return BusyError(self._title, is_channel=True)
