# Who has something that keeps messages. Law: look, and take nothing: whoever has it does not notice.

from __future__ import annotations

from dataclasses import dataclass

from diskq.engine.priority.files import StoreFiles
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.owner import owner_state
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem
from diskq.storage.lock import Holder, holder_of

__all__ = ["StoreOwner", "in_words", "owner_of", "writer_of"]


def in_words(holder: Holder | None, is_open: bool | None) -> str | None:
    """Who has it, by what `holder_of` found; None: nobody."""
    if is_open:
        return str(holder)
    return f"perhaps {holder}" if is_open is None and holder is not None else None


def writer_of(fs: FileSystem, files: StreamFiles) -> str | None:
    """Who writes to a stream, in words; None where nobody does. Raises OSError."""
    holder, is_held = holder_of(fs, files.lock)
    if is_held:
        return str(holder)
    state = owner_state(fs, files)
    if state in ("peer", "opening"):
        return "a go-diskq producer, or it crashed"
    return f"perhaps {holder}" if is_held is None and state == "ours" else None


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


def owner_of(path: AnyPath, *, fs: FileSystem | None = None) -> StoreOwner:
    """Who has the store at `path`. Raises FileNotFoundError where there is none, OSError."""
    disk = fs or OsFileSystem()
    files = StoreFiles.existing(disk, path)
    holder, is_open = holder_of(disk, files.lock)
    if not is_open:
        # TaskFlux takes no lock but this.
        _, is_locked = holder_of(disk, files.metadata)
        if is_locked:
            return StoreOwner(root=files.root, is_open=True, holder=None)
    return StoreOwner(root=files.root, is_open=is_open, holder=holder)
