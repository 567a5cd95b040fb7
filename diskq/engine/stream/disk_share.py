# The share of a disk budget that a stream uses. Law: the counted size is never less than the real one; and a
# message only checks whether it fits into the rest of the lease.
#
# Complete segments are measured once, when they are complete. The active segments are counted by their bytes
# and records: a record has an entry in the index and in the timeindex, each 4 KiB of data a checksum, each
# 256 entries a mark. Zeros ahead of the checksums, and the rest of each file's last block, are counted as
# fixed.

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

from diskq._native.stream.append_buffer import Changes, StreamRouter
from diskq._native.stream.codec import INDEX_ROW_SIZE, TIMEINDEX_ROW_SIZE
from diskq.engine.log.segment import SegmentedLog
from diskq.engine.stream.files import PartitionFiles, StreamFiles
from diskq.engine.stream.segment import TripletSegment
from diskq.errors import FullError
from diskq.options import Budget, OnFull
from diskq.storage.budget import BLOCK, BudgetShare, Refusal, check_new_member, join_budget
from diskq.storage.fs import FileSystem

__all__ = ["INDEX_BYTES", "BudgetObstacle", "StreamDiskShare", "size_on_disk"]

BudgetObstacle = Refusal

# Bytes that each record has in other files than the data, its part of a mark included.
INDEX_BYTES = INDEX_ROW_SIZE + TIMEINDEX_ROW_SIZE + 1
# Blocks of the lock, the owner's files, settings, and recovery points, which are replaced; and, of each
# partition, of the private files and of the next segment.
_FIXED_BLOCKS = 8
_BLOCKS_OF_A_PARTITION = 14
_MOST_ZEROS = 64 * 1024
# When no more than this is left of the lease, it is extended.
_LITTLE = 2 * BLOCK
# A budget holds at least this many segments of one stream, or none could be dropped while it is full.
_SEGMENTS_IN_A_BUDGET = 8


class WrittenPartition(Protocol):
    """A partition that is written to."""

    files: PartitionFiles
    segment: TripletSegment
    log: SegmentedLog[TripletSegment]


def size_on_disk(size: int, records: int) -> int:
    """Return the most that `size` bytes of `records` records take on the disk, in all files."""
    return size + (size >> 7) + records * INDEX_BYTES


class StreamDiskShare:
    """The share of a budget that a stream uses. For the thread that writes to the stream."""

    def __init__(
        self, fs: FileSystem, files: StreamFiles, budget: Budget, roll_size: int, *, has_retention: bool
    ) -> None:
        self._fs = fs
        self._files = files
        self._budget = budget
        self._partitions: Sequence[WrittenPartition] = ()
        self._complete: dict[tuple[int, int], tuple[int, int]] = {}  # a segment's bytes and time of writing
        self._complete_bytes = 0
        self._active: dict[int, tuple[int, int]] = {}  # bytes and records of each partition's active segment
        self._active_bytes = self._active_records = 0
        self._changes: Changes | None = None
        self._seen: dict[int, int] = {}  # how many segments of each partition were measured
        self.roll_size = roll_size
        self.has_retention = has_retention
        """True if the stream's settings limit what is kept."""
        self._fixed = 0
        self._lease = self._bytes = self._records = 0  # at the last measurement
        self.share: BudgetShare | None = None

    def settle_roll_size(self, partitions: int) -> int:
        """Return the size at which segments roll, limited by the budget."""
        self.roll_size = max(
            1, min(self.roll_size, self._budget.max_bytes // (_SEGMENTS_IN_A_BUDGET * max(1, partitions)))
        )
        return self.roll_size

    def _fixed_size(self, partitions: int, logs: int) -> int:
        """Return the bytes on the disk that do not depend on messages, `logs` bytes of logs included."""
        of_each = BLOCK * _BLOCKS_OF_A_PARTITION + min(_MOST_ZEROS, BLOCK + (self.roll_size >> 7))
        return _FIXED_BLOCKS * BLOCK + partitions * of_each + logs

    def check_new(self, partitions: int, logs: int) -> None:
        """Raise FullError if a new stream could never hold a message in the budget, for lack of space."""
        self.settle_roll_size(partitions)
        least = self._fixed_size(partitions, logs) + _LITTLE
        check_new_member(self._budget, f"stream {self._files.path}", self._files.path, least)

    def join(
        self, partitions: Sequence[WrittenPartition], wals: int, on_full: OnFull, router: StreamRouter
    ) -> BudgetShare:
        """Measure the stream, with the write-ahead logs' bytes, and join the budget."""
        self._partitions = partitions
        self._fixed = self._fixed_size(len(partitions), wals)
        for index in self._files.partitions():
            bases = self._files.partition(index).bases()
            if index < len(partitions):
                bases = bases[:-1] if partitions[index].segment.is_open else bases
                self._seen[index] = len(partitions[index].log.bases) - partitions[index].segment.is_open
            self._look_at(index, bases)
        self._changes = router.changes()
        for index in range(len(partitions)):
            self._measure(index)
        name = f"stream {self._files.path}"
        self.share = join_budget(self._budget, name, self._measured(router), self._fixed, on_full)
        self._note_oldest()
        return self.share

    # --- counting ---------------------------------------------------------------------------------

    def _look_at(self, index: int, bases: Iterable[int]) -> None:
        files = self._files.partition(index)
        for base in bases:
            sizes = [
                self._fs.size_of(path) or 0 for path in (*files.segment(base), *files.private_files(base))
            ]
            stamp = self._fs.stamp_of(files.data(base))
            if stamp is not None:
                on_disk = sum(-(-size // BLOCK) * BLOCK for size in sizes)
                self._forget(index, base)
                self._complete[index, base] = (on_disk, stamp.modified_ns)
                self._complete_bytes += on_disk

    def _forget(self, index: int, base: int) -> None:
        on_disk, _ = self._complete.pop((index, base), (0, 0))
        self._complete_bytes -= on_disk

    def _measure(self, index: int) -> None:
        """Note what that partition has on the disk now."""
        partition = self._partitions[index]
        bases, segment = partition.log.bases, partition.segment
        complete = len(bases) - segment.is_open
        if self._seen[index] < complete:
            self._look_at(index, bases[self._seen[index] : complete])
            self._seen[index] = complete
            self._note_oldest()
        size, records = self._active.get(index, (0, 0))
        self._active_bytes -= size
        self._active_records -= records
        size, records = segment.buffer.end, segment.buffer.next_offset - segment.base
        self._active[index] = (size, records)
        self._active_bytes += size
        self._active_records += records

    def _measured(self, router: StreamRouter) -> int:
        """Return the bytes on the disk now. Measures the partitions written to since the last time."""
        assert self._changes is not None
        for index in self._changes.take():
            self._measure(index)
        self._bytes, self._records = router.accepted_bytes, router.records
        return self._fixed + self._complete_bytes + size_on_disk(self._active_bytes, self._active_records)

    def left(self, router: StreamRouter) -> int:
        """Return how many bytes the lease has left."""
        written = router.accepted_bytes - self._bytes
        return self._lease - size_on_disk(written, router.records - self._records)

    def settle(self, router: StreamRouter) -> None:
        """Return to the budget what is not needed."""
        assert self.share is not None
        used = self._measured(router)
        self.share.settle(used)
        self._lease = self.share.granted - used

    def forget(self, gone: Iterable[tuple[int, int]]) -> None:
        """Forget these segments, which were removed."""
        for key in gone:
            self._forget(*key)
        self._note_oldest()

    def _forget_gone(self) -> bool:
        """Forget segments that another process has removed. True if there were any."""
        there = {(i, base) for i in self._files.partitions() for base in self._files.partition(i).bases()}
        gone = [key for key in self._complete if key not in there]
        self.forget(gone)
        return bool(gone)

    def _note_oldest(self) -> None:
        if self.share is not None and self.share.on_full == "drop_oldest":
            self.share.oldest = min((written for _, written in self._complete.values()), default=math.inf)

    # --- admission --------------------------------------------------------------------------------

    def obstacle(self, size: int, router: StreamRouter, *, may_drop: bool) -> BudgetObstacle | None:
        """Return what keeps `size` more bytes on disk from being accepted now; None if nothing does.

        Extends the lease if it can. `may_drop` is False after nothing could be dropped. Raises FullError
        if they will never fit.
        """
        share = self.share
        assert share is not None
        left = self.left(router)
        if size + _LITTLE <= left:
            return None
        if size <= left:
            # It fits; but the compiled router stops before the end: extend the lease for later senders.
            used = self._measured(router)
            share.reserve(used, size + _LITTLE)
            self._lease = share.granted - used
            return None
        while True:
            used = self._measured(router)
            if share.reserve(used, size):
                self._lease = share.granted - used
                return None
            if not share.covers(size):
                raise self.full_error(size)
            if not self._forget_gone():
                break
        drops = self.has_retention or share.on_full == "drop_oldest"
        return share.on_refusal(has_old=drops and may_drop and bool(self._complete))

    def full_error(self, size: int) -> FullError:
        assert self.share is not None
        return self.share.full_error(self._files.path, size)
