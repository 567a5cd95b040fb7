# Where a partition begins after retention. Law: the new beginning is durable before anything is removed.
# Removals are not synced: after a power cut any part of the removed segments may be back, and must not be
# taken for the beginning of a log whose rest was lost.

from __future__ import annotations

import re

from diskq.engine.stream.files import PartitionFiles
from diskq.storage.barrier import Replacement
from diskq.storage.fs import FileSystem
from diskq.storage.small_file import checked, is_checked, read_small

__all__ = ["first_as", "read_first"]

_FIRST = re.compile(rb"diskq first 1 ([0-9]{1,19})\n")


def first_as(files: PartitionFiles, base: int) -> Replacement:
    """Return the replacement by which retention notes that all segments before `base` are to be removed."""
    content = checked(b"diskq first 1 %d\n" % base)
    return Replacement(files.first, content, files.temporary(files.first))


def read_first(fs: FileSystem, files: PartitionFiles) -> int:
    """Return the segment before which retention has removed all; 0 if it removed nothing. Raises OSError."""
    content = read_small(fs, files.first, 100) or b""
    head = _FIRST.match(content)
    return int(head[1]) if head is not None and is_checked(content, head.end()) else 0
