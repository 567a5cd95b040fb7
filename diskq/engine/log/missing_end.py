# Where a partition or a journal ended, as far as checksums show. Law: they are written after the messages, so
# what they cover was there. Only they show that a file was cut, emptied or removed since.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from diskq.storage.checksums import checksummed, rows_before
from diskq.storage.fs import FileSystem
from diskq.storage.numbers import UNBOUNDED

__all__ = ["checksummed_end", "checksums_reach"]


class _EndFiles(Protocol):
    def bases(self) -> list[int]: ...

    def checksum_files(self) -> list[int]: ...

    def checksum_file(self, base: int) -> str: ...


def checksums_reach(fs: FileSystem, files: _EndFiles) -> tuple[list[int], dict[int, int]]:
    """Return the segments, and up to which byte the checksums of the last one reach, and those of later ones.

    By the offset with which each begins; O(log n) for each. A process may write meanwhile: a segment that it
    begins has no checksums here, and data that is read after this call has what these checksums cover. Raises
    OSError.
    """
    listed = files.checksum_files()  # before the segments
    bases = files.bases()
    last = bases[-1] if bases else 0
    ends = {base: rows_before(fs, files.checksum_file(base), UNBOUNDED)[1] for base in listed if base >= last}
    return bases, ends


def checksummed_end(
    fs: FileSystem,
    files: _EndFiles,
    bases: Sequence[int],
    reach: Mapping[int, int] | None = None,
    matched: tuple[int, int] = (0, 0),
) -> int:
    """Return the offset after the last message that has a checksum. Raises OSError.

    `bases`: the segments that are there. 0 if no checksum is of the last of them, or of one after it.
    `reach`: up to where `checksums_reach` found checksums; later ones do not count. `matched`: how many bytes
    at the start of the last segment match their checksums, and the number of messages in them, if that is
    known.
    """
    last = bases[-1] if bases else None
    if reach is None:
        reach = {base: UNBOUNDED for base in files.checksum_files() if base >= (last or 0)}
    for base in sorted(reach, reverse=True):
        position, counted = matched if base == last else (0, 0)
        _, records = checksummed(fs, files.checksum_file(base), position, reach[base])
        if counted + records:
            return base + counted + records
    return 0
