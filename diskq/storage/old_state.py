# What earlier versions left behind for recovery: in the lock file, and in `.diskq/points`. Law: it is read as
# long as there is no `.diskq/state` that can be read. Nothing here writes.
#
# There the lock file named more than its holder: the holder's write-ahead logs, its redo log, a recovery that
# was not finished. The points of a stream or a journal were a file of their own.

from __future__ import annotations

import re

from diskq.storage.barrier import read_small
from diskq.storage.checksums import checksum
from diskq.storage.fs import FileSystem

__all__ = ["old_fields", "old_points"]

_LARGEST_POINTS = 64 * 1024 * 1024
_CHECK = re.compile(rb'\{"check": "(?P<check>[0-9a-f]{8})", (?P<rest>.*\}) *\n', re.DOTALL)


def old_fields(content: bytes | None) -> bytes | None:
    """Return the JSON in the lock file of an earlier version with this content; b"" if it is unreadable.

    None if there is no such file, or it is empty, as a peer leaves it.
    """
    if not content:
        return None
    if b'"check"' not in content:
        return content  # the oldest had none
    found = _CHECK.fullmatch(content)
    if found is None or int(found["check"], 16) != checksum(found["rest"]):
        return b""
    return b"{" + found["rest"]


def old_points(fs: FileSystem, path: str | None) -> bytes | None:
    """Return the content of the recovery points of an earlier version; None if there are none."""
    return None if path is None else read_small(fs, path, _LARGEST_POINTS)
