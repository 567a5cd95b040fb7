# Files small enough to be read in one piece: settings, identities, markers.
# They are written as `barrier.Replacement`, whole or not at all.

from __future__ import annotations

from diskq.storage.fs import FileSystem

__all__ = ["read_small"]


def read_small(fs: FileSystem, path: str, most: int) -> bytes | None:
    """The first `most` bytes of the file at `path`; None where there is none. Raises OSError."""
    try:
        handle = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        return fs.pread(handle, most, 0)
    finally:
        fs.close(handle)
