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

__all__ = ["Heir", "tell_of_forks"]


class Heir(Protocol):
    """What refuses calls when it is told that it is another process's."""

    def leave_to_parent(self, pid: int) -> None:
        """In a child: the process `pid` opened it, and has it."""


_heirs: WeakSet[Heir] = WeakSet()


def tell_of_forks(heir: Heir) -> None:
    """Call its `leave_to_parent` in every child of this process, as long as it lives."""
    _heirs.add(heir)


def _tell_all() -> None:
    parent = os.getppid()
    leave_guards_to(parent, ForkedError)
    for heir in list(_heirs):
        heir.leave_to_parent(parent)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell_all)
