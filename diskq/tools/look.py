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
    """A store as the next open leaves it, if that could be tried."""

    fs: FileSystem
    """The files as the open left them, until the end of the block; else the store's files themselves."""
    engine: E | None = None
    """What was opened; it is closed again, and has the repairs of the open. None: nothing was opened."""
    refusal: DiskqError | OSError | None = None
    """Why the open failed."""


@contextmanager
def look_at(
    fs: FileSystem, lock: str, opened: Callable[[FileSystem], AbstractContextManager[E]]
) -> Iterator[Look[E]]:
    """Open a store in memory, which `opened` does, and close it.

    `lock` is the store's lock file. Nothing is opened if a process may have the store open. Raises OSError.
    """
    if may_be_open(fs, lock):
        yield Look(fs)
        return
    with OverlayFS(fs) as overlay:
        try:
            with nothing_logged(), opened(overlay) as engine:
                pass
            found = Look(overlay, engine)
        except (DiskqError, OSError) as refusal:
            found = Look(fs, refusal=refusal)
        yield found
