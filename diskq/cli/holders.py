# Who holds a lock. Law: look, and take nothing: whoever has it does not notice.

from __future__ import annotations

import contextlib
import json
import os
import socket

from diskq.storage.fs import OsFileSystem
from diskq.storage.lock import Holder

__all__ = ["holder_of"]

_LARGEST_LOCK = 4096
# Linux lists who holds which lock, as `1: FLOCK  ADVISORY  WRITE 4711 08:01:393220 0 EOF`.
_LOCKS = "/proc/locks"


def holder_of(fs: OsFileSystem, path: str) -> tuple[Holder | None, bool | None]:
    """Who signed the lock file last, and whether somebody has the lock (None: nobody can tell)."""
    if fs.size_of(path) is None:
        return None, False
    handle = fs.open(path)
    try:
        content = fs.pread(handle, _LARGEST_LOCK, 0)
        status = os.fstat(handle)
    finally:
        fs.close(handle)
    holder = Holder()
    with contextlib.suppress(ValueError, TypeError):
        holder = Holder(**json.loads(content))
    return holder, _is_locked(holder, status)


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
