# Who has something that keeps messages. Law: look, and take nothing: whoever has it does not notice.

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from diskq.engine.streamfiles import StreamFiles
from diskq.engine.streamowner import owner_state
from diskq.engine.taskfluxfiles import StoreFiles
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem
from diskq.storage.lock import Holder, parse_holder

__all__ = ["StoreOwner", "holder_of", "in_words", "owner_of", "writer_of"]

_LARGEST_LOCK = 4096
# Linux lists who holds which lock, as `1: FLOCK  ADVISORY  WRITE 4711 08:01:393220 0 EOF`.
_LOCKS = "/proc/locks"


def holder_of(fs: FileSystem, path: str) -> tuple[Holder | None, bool | None]:
    """Who signed the lock file last, and whether somebody has the lock (None: nobody can tell)."""
    if fs.size_of(path) is None:
        return None, False
    handle = fs.open(path)
    try:
        content = fs.pread(handle, _LARGEST_LOCK, 0)
        status = os.fstat(handle) if fs.native else None
    finally:
        fs.close(handle)
    holder = parse_holder(content) or Holder()
    return holder, None if status is None else _is_locked(holder, status)


def _is_locked(holder: Holder, status: os.stat_result) -> bool | None:
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    try:
        with open(_LOCKS, encoding="ascii") as lines:
            for _, kind, _, _, pid, file, *_ in map(str.split, lines):
                *listed, inode = file.rsplit(":", 1)
                # Some file systems (btrfs, overlays) give files another device than the list does.
                if (
                    kind == "FLOCK"
                    and inode == str(status.st_ino)
                    and (listed == [device] or pid == str(holder.pid))
                ):
                    return True
    except (OSError, ValueError):
        return _is_alive(holder.pid) if holder.host == socket.gethostname() else None
    # What runs in another container, or beyond a network, is not in the list.
    return False if holder.host == socket.gethostname() else None


def _is_alive(pid: int) -> bool | None:
    """Where no list tells: a process that is gone has no lock. One that runs may have it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return None


# --- what more than a lock tells of ---------------------------------------------------------------


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
