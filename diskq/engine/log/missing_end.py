# Where a partition or a journal ended, as far as checksums show. Law: they are written after the messages, so
# what they cover was there. Only they show that a file was cut, emptied or removed since.

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from diskq.storage.checksums import checksummed
from diskq.storage.fs import FileSystem

__all__ = ["checksummed_end"]


class _EndFiles(Protocol):
    def checksum_files(self) -> list[int]: ...

    def checksum_file(self, base: int) -> str: ...


def checksummed_end(fs: FileSystem, files: _EndFiles, bases: Sequence[int]) -> int:
    """Return the offset after the last message that has a checksum. Raises OSError.

    `bases`: the segments that are there. 0 if no checksum is of the last of them, or of one after it.
    """
    last = bases[-1] if bases else 0
    for base in reversed(files.checksum_files()):
        if base < last:
            break
        _, records = checksummed(fs, files.checksum_file(base))
        if records:
            return base + records
    return 0
