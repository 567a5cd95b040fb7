# Slots: the stores of several processes below one directory. Law: a process has the first slot that is free,
# by its lock; so the slot of a dead process is taken by the next one that opens.
#
#     slot.000/  slot.001/ ...     each a store of its own, like any other of its kind

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

from diskq.errors import LockedError
from diskq.storage.fs import FileSystem, join
from diskq.storage.numbered_files import Naming

__all__ = ["open_slot", "slots_in"]

T = TypeVar("T")

_SLOT = Naming("slot.", 3, "")
# More processes than this do not share a directory.
_MOST = 1000


def open_slot(path: str, opened: Callable[[str], T]) -> T:
    """Return what `opened` returns for the directory of the first slot below `path` that is not locked.

    Raises what it raises, and LockedError if no slot is free.
    """
    for number in range(_MOST):
        try:
            return opened(join(path, _SLOT.name(number)))
        except LockedError as refusal:
            last = refusal
    raise LockedError(path, last.holder, f"all {_MOST} slots are in use")


def slots_in(fs: FileSystem, path: str) -> list[str]:
    """Return the directories of the slots below `path`, by number; none if there is no such directory."""
    try:
        numbers = _SLOT.listed(fs, path)
    except OSError as failure:
        if failure.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        return []
    return [join(path, _SLOT.name(number)) for number in numbers]
