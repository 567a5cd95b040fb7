# Staged files that become segments: the index, the timeindex and the checksums of one. Law: the name of the
# data comes last of all that recovery needs, and before the names of the index, which readers need.
#
#     1  the partition's last segment is complete: sealed, as at each roll
#     2  checksums, under their names; timeindex and index, under temporary ones
#     3  all of that is durable, and so is the data: a task has synced it
#     4  the data is renamed, then the timeindex, then the index
#
# So the partition is at any time as a roll leaves it. A kill before the rename leaves checksums without data,
# which the next open removes; one after it, data whose index the open makes, as it does after any kill. The
# staged file is then gone: what the intent says of it is true of the segment.

from __future__ import annotations

import contextlib
from typing import NamedTuple

from diskq._native.stream.codec import INDEX_ROW_SIZE, TIMEINDEX_ROW_SIZE, TripletFraming
from diskq._native.stream.index_entries import checksum_rows, rows_of
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.transactions.staging import Extent, StagedReader
from diskq.storage.append_file import ChecksumFile
from diskq.storage.barrier import Barrier, PendingSyncs, close_all, start_writeback, write_all
from diskq.storage.fs import FileSystem

__all__ = ["Adoption", "describe"]


class Adoption(NamedTuple):
    """A staged file that has all it needs to become the segment `base` of its partition."""

    extent: Extent
    base: int
    checksum_bytes: int
    """The size of the segment's checksum file."""
    installs: tuple[tuple[str, str], ...]
    """The renames, in order: see `Barrier`."""


def describe(
    fs: FileSystem,
    files: StreamFiles,
    reader: StagedReader,
    extent: Extent,
    base: int,
    pending: PendingSyncs,
    *,
    varuint: bool,
) -> Adoption:
    """Write checksums and entries of the staged records, the first of which gets offset `base`.

    The next barrier syncs them. Raises CorruptionError, OSError, after which nothing of it is left.
    """
    partition, framing = files.partition(extent.partition), TripletFraming(varuint=varuint)
    data, index, timeindex = partition.segment(base)
    checksum_file = partition.checksum_file(base)
    temporaries = [files.temporary(path)(fs.unique_number()) for path in (timeindex, index)]
    handles: list[int] = []
    try:
        sums = ChecksumFile.open(fs, checksum_file, 0, covered=0)
        handles.append(sums.handle)
        for path in temporaries:
            handles.append(fs.open(path, write=True, create=True, exclusive=True))
        records = position = checksum_bytes = 0
        for stretch, _ in reader.stretches(extent):
            made = rows_of(framing, stretch, base + records, position)
            checksums = checksum_rows(stretch, made.index_rows, position)
            write_all(fs, handles[0], checksums, checksum_bytes)
            write_all(fs, handles[1], made.timeindex_rows, records * TIMEINDEX_ROW_SIZE)
            write_all(fs, handles[2], made.index_rows, records * INDEX_ROW_SIZE)
            records += made.records
            position += made.valid_end
            checksum_bytes += len(checksums)
            for handle in handles:
                start_writeback(fs, handle)
    except BaseException:
        with contextlib.suppress(OSError):
            close_all(fs, handles)
        with contextlib.suppress(OSError):
            Barrier(removals=(checksum_file, *temporaries)).execute(fs)
        raise
    pending.sync_and_close(*handles)
    pending.directories[partition.private] = None
    renames = ((reader.path, data), *zip(temporaries, (timeindex, index), strict=True))
    return Adoption(extent, base, checksum_bytes, renames)
