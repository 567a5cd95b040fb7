# Files small enough to be read in one piece: settings, identities, committed offsets. Law: they are written
# as `barrier.Replacement`, whole or not at all. diskq's text files end with a line that is their checksum.

from __future__ import annotations

import re

from diskq.storage.checksums import checksum
from diskq.storage.closing import let_go
from diskq.storage.fs import FileSystem

__all__ = ["CHECK_SIZE", "checked", "is_checked", "read_small"]

_CHECK = re.compile(rb"crc32c ([0-9a-f]{8})\n")
CHECK_SIZE = len(b"crc32c 00000000\n")
"""Size of that last line in bytes."""


def checked(content: bytes) -> bytes:
    """Return `content` with a last line that is its checksum."""
    return content + f"crc32c {checksum(content):08x}\n".encode()


def is_checked(content: bytes, end: int) -> bool:
    """True if the checksum line of the first `end` bytes follows them, and nothing else."""
    last = _CHECK.fullmatch(content, end)
    return last is not None and int(last[1], 16) == checksum(content[:end])


def read_small(fs: FileSystem, path: str, most: int) -> bytes | None:
    """Return the first `most` bytes of the file at `path`; None if there is none. Raises OSError."""
    try:
        handle = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        return fs.pread(handle, most, 0)
    finally:
        let_go(fs, handle)
