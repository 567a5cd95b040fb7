# What a child of a fork inherits. Law: an open store belongs to the process that opened it, and a child's
# calls on it touch no file.
#
# A child's memory says that it holds locks, and where files end; its parent's says the same, and goes on.
# So in a child every existing object is made unusable at once (os.register_at_fork), and no call has to
# check: thread guards are held for ever (_native/core/thread_guard.pyx), file systems refuse every operation
# (fs.py), and objects that use neither with each call register here.

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

from diskq._native.core.thread_guard import leave_guards_to
from diskq.errors import ForkedError

__all__ = ["ForkListener", "notify_on_fork"]


class ForkListener(Protocol):
    """An object that refuses calls once it belongs to another process."""

    def leave_to_parent(self, pid: int) -> None:
        """Called in a child: the process `pid` opened this object, and keeps it."""


_listeners: WeakSet[ForkListener] = WeakSet()


def notify_on_fork(listener: ForkListener) -> None:
    """Call the listener's `leave_to_parent` in every child of this process, while the listener exists."""
    _listeners.add(listener)


def _notify_all() -> None:
    parent = os.getppid()
    leave_guards_to(parent, ForkedError)
    for listener in list(_listeners):
        listener.leave_to_parent(parent)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_notify_all)
