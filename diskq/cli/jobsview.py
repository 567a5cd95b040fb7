# A store of priority queues as its files show it. Law: look, and touch nothing: no lock is taken, no file
# is changed, whoever has it open does not notice.

from __future__ import annotations

from dataclasses import dataclass

from diskq.cli.directories import check_directory
from diskq.cli.holders import holder_of
from diskq.cli.parsing import CommandError
from diskq.engine.taskfluxfiles import StoreFiles
from diskq.storage.fs import OsFileSystem
from diskq.storage.lock import Holder

__all__ = ["StoreOwner", "check_store", "is_store", "owner_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOwner:
    """Who has a store."""

    root: str
    """The directory of its files."""
    is_open: bool | None
    """Does a process have it? None: it cannot be told from here."""
    holder: Holder | None
    """Who has it, or had it last; None where diskq never had it."""

    def __str__(self) -> str:
        if self.is_open is None:
            return f"perhaps {self.holder}"
        if not self.is_open:
            return "-"
        return "TaskFlux, or another program" if self.holder is None else str(self.holder)


def is_store(path: str) -> bool:
    """Is there a store at `path`? Raises CorruptionError for TaskFlux's settings, OSError."""
    try:
        StoreFiles.existing(OsFileSystem(), path)
    except FileNotFoundError:
        return False
    return True


def check_store(path: str, advice: str = "") -> None:
    """Raises CommandError unless there is a store at `path`."""
    check_directory(path, advice)
    if not is_store(path):
        raise CommandError(f"{path}: there is no store of priority queues here{advice}")


def owner_of(path: str) -> StoreOwner:
    """Who has the store at `path`. Raises OSError."""
    fs = OsFileSystem()
    files = StoreFiles.existing(fs, path)
    holder, is_open = holder_of(fs, files.lock)
    if not is_open:
        # TaskFlux takes no lock but this.
        _, is_locked = holder_of(fs, files.metadata)
        if is_locked:
            return StoreOwner(root=files.root, is_open=True, holder=None)
    return StoreOwner(root=files.root, is_open=is_open, holder=holder)
