# The process that has a store open. Law: look without taking a lock, so that the process does not notice.

from __future__ import annotations

from dataclasses import dataclass

from diskq.engine.priority.files import StoreFiles
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.owner import owner_state
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem
from diskq.storage.lock import Holder, holder_of

__all__ = ["StoreOwner", "in_words", "owner_of", "writer_of"]


def in_words(holder: Holder | None, is_open: bool | None) -> str | None:
    """Return the holder that `holder_of` found in words, or None if the store is not open."""
    if is_open:
        return str(holder)
    return f"perhaps {holder}" if is_open is None and holder is not None else None


def writer_of(fs: FileSystem, files: StreamFiles) -> str | None:
    """Return in words who writes to a stream, or None if no process does. Raises OSError."""
    holder, is_held = holder_of(fs, files.lock)
    if is_held:
        return str(holder)
    state = owner_state(fs, files)
    if state in ("peer", "opening"):
        return "a go-diskq producer, or it crashed"
    return f"perhaps {holder}" if is_held is None and state == "ours" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOwner:
    """The process that has a priority store open, as far as its files show it."""

    root: str
    """The directory of its files."""
    is_open: bool | None
    """True if a process has it open; None: not known from here."""
    holder: Holder | None
    """The process that has it open, or had it last; None if diskq never had it."""

    def __str__(self) -> str:
        if self.is_open is None:
            return f"perhaps {self.holder}"
        if not self.is_open:
            return "-"
        return "TaskFlux, or another program" if self.holder is None else str(self.holder)


def owner_of(path: AnyPath, *, fs: FileSystem | None = None) -> StoreOwner:
    """Return the owner of the store at `path`. Raises FileNotFoundError if there is no store, OSError."""
    disk = fs or OsFileSystem()
    files = StoreFiles.existing(disk, path)
    holder, is_open = holder_of(disk, files.lock)
    if not is_open:
        # TaskFlux takes no lock but this.
        _, is_locked = holder_of(disk, files.metadata)
        if is_locked:
            return StoreOwner(root=files.root, is_open=True, holder=None)
    return StoreOwner(root=files.root, is_open=is_open, holder=holder)
