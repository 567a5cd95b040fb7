# A look at a store that no process has open: the ordinary open, in memory. Law: nothing is changed. What the
# next open replays, repairs, reports and removes is what it does here, by its own code.

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from diskq.errors import DiskqError
from diskq.storage.fs import FileSystem
from diskq.storage.lock import may_be_open
from diskq.storage.log_events import nothing_logged
from diskq.storage.overlay import OverlayFS

__all__ = ["Look", "look_at"]

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Look(Generic[E]):
    """A store after an open that has changed nothing on the disk."""

    fs: FileSystem
    """The files as the open left them, until the end of the block."""
    engine: E
    """What was opened; it is closed again. It has the repairs of the open."""


@contextmanager
def look_at(
    fs: FileSystem, lock: str, opened: Callable[[FileSystem], AbstractContextManager[E]]
) -> Iterator[Look[E] | None]:
    """Open a store in memory, which `opened` does, and close it.

    `lock` is the store's lock file. None if a process may have the store open, or has just removed one of its
    files, and if the open fails. Raises OSError.
    """
    if may_be_open(fs, lock):
        yield None
        return
    with OverlayFS(fs) as overlay:
        try:
            with nothing_logged(), opened(overlay) as engine:
                pass
            found: Look[E] | None = Look(overlay, engine)
        except (DiskqError, OSError):
            found = None
        yield found
