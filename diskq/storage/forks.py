# What a child of a fork inherits. Law: what was opened is its process's alone, and a child's calls on it
# touch no file.
#
# The memory of a child says that it holds locks, and where files end; its parent says the same, and goes on.
# So in a child all that there was is made unusable at once (os.register_at_fork), and nobody has to ask at
# each call: turns are taken for good (_native/core/thread_guard.pyx), file systems refuse every verb (fs.py),
# and who neither takes a turn nor touches a file with each call is told here.

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

from diskq._native.core.thread_guard import leave_guards_to
from diskq.errors import ForkedError

__all__ = ["ForkListener", "notify_on_fork"]


class ForkListener(Protocol):
    """What refuses calls when it is told that it is another process's."""

    def leave_to_parent(self, pid: int) -> None:
        """In a child: the process `pid` opened it, and has it."""


_listeners: WeakSet[ForkListener] = WeakSet()


def notify_on_fork(listener: ForkListener) -> None:
    """Call its `leave_to_parent` in every child of this process, as long as it lives."""
    _listeners.add(listener)


def _notify_all() -> None:
    parent = os.getppid()
    leave_guards_to(parent, ForkedError)
    for listener in list(_listeners):
        listener.leave_to_parent(parent)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_notify_all)
