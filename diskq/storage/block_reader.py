# Reading a file in stretches. Law: bytes with a checksum are delivered only if it matches; bytes without one
# (a peer wrote them, or they are too recent) are delivered by their framing alone; every skipped byte is
# reported.
#
# A checksum is in a row of the checksum file; for the last blocks of another process's writer it is in the
# write-ahead log. There it may belong to a block that grows, and row and bytes read at one moment need not
# belong together: bytes are called corrupt only when the same row and the same bytes are found again.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from diskq._native.core.read_ahead import ReadAhead
from diskq.storage.barrier import let_go
from diskq.storage.checksums import Row, Rows
from diskq.storage.fs import FileSystem
from diskq.storage.log.replay import row_at
from diskq.storage.repairs import Repair, RepairKind

__all__ = ["BlockReader", "BrokenFraming", "CorruptBlock", "Loss", "Takeable", "Unverified", "WalRows"]

STRETCH = 256 * 1024
# The block that its writer is filling changes with each look, until it is finished.
_MOST_LOOKS = 20

WalRows = Callable[[], Sequence[Row]]
"""Returns the rows that a write-ahead log holds now for one file, in no order."""

Takeable = Callable[[Row, int], Row | None]
"""Given a block from a write-ahead log and a byte in it, returns the part whose records may be delivered;
None: no part.
"""


@dataclass(frozen=True, slots=True)
class Loss:
    """Bytes start:end of a file, which were skipped."""

    start: int
    end: int
    records: int | None
    """Number of records in them; None if unknown."""
    reason: str
    is_torn: bool = False
    """True if they look like a write that was not finished."""

    @property
    def kind(self) -> RepairKind:
        """What a repair of them is about."""
        return RepairKind.TORN if self.is_torn else RepairKind.CORRUPT

    def as_repair(self, path: str, saved_as: str | None) -> Repair:
        """Return the repair of the file at `path` that passed over them, and kept them at `saved_as`."""
        return Repair.of_bytes(path, self.kind, self.start, self.end, self.reason, self.records, saved_as)


class CorruptBlock(NamedTuple):
    """A block that was skipped: its checksum does not match, or it matches and the framing is broken."""

    loss: Loss
    row: Row


class Unverified(NamedTuple):
    """Bytes `position`:`end` of the file, which no checksum covers."""

    position: int
    end: int
    lost_end: int
    """If they are broken, everything up to here is lost."""
    cut_short: Row | None = None
    """The block at `position`, if it cannot be verified because the file ends inside it."""
    why: str | None = None
    claimed: int | None = None
    """`why` and `claimed` are those of `ahead` before the bytes were loaded; None: the current ones."""


class BrokenFraming(NamedTuple):
    """No record begins at `position`. `Unverified` and `Loss` describe the other fields."""

    position: int
    lost_end: int
    cut_short: Row | None
    reason: str
    is_torn: bool = False


class _WalBlock(NamedTuple):
    """A block whose checksum is in a write-ahead log."""

    row: Row
    part: Row
    """The part of it that may be delivered."""


class BlockReader:
    """Reads one file forward through `ahead`; by framing alone if `checksum_file` is None.

    `wal_rows` returns checksums that the checksum file lacks, and `takeable` which part of their blocks may
    be delivered: by default all.

    A caller that trusts the framing of bytes without checksums calls `fill`. One that knows more about them
    calls `step`, and judges what it returns.
    """

    def __init__(
        self,
        fs: FileSystem,
        ahead: ReadAhead,
        path: str,
        checksum_file: str | None,
        position: int,
        wal_rows: WalRows | None = None,
        takeable: Takeable | None = None,
    ) -> None:
        self._fs = fs
        self._ahead = ahead
        self._wal_rows = wal_rows
        self._takeable = takeable
        self.path = path
        self.rows = Rows(fs, None)
        self.handle = fs.open(path)
        try:
            self.rows = Rows(fs, checksum_file)
            self.seek(position)
        except BaseException:
            self.close()
            raise
        self.verified = 0
        """Number of admitted bytes that a checksum covers."""

    def seek(self, position: int) -> None:
        """Continue at byte `position`, where a record begins."""
        self.rows.seek(position)
        self._ahead.seek(position)
        self._verified_to = self._loaded_to = self._reported_to = position

    def close(self) -> None:
        """Close the files, which were only read: raises nothing. Idempotent."""
        handle, self.handle = self.handle, -1
        let_go(self._fs, handle)
        self.rows.close()

    def fill(self, readable_end: int, covered_end: int | None = None) -> Loss | None:
        """Admit the stretch at `ahead.position`, up to `readable_end`, or skip bad bytes and return the loss.

        If it returns None, records are available, unless the position has reached `readable_end`.
        `covered_end`, if given, is the byte where the last checksum ends: after it none is looked for.
        """
        found = self.step(readable_end, covered_end)
        if isinstance(found, CorruptBlock):
            return found.loss
        broken = None if found is None else self.take_framed(found)
        return None if broken is None else self._give_up(broken)

    def step(self, readable_end: int, covered_end: int | None = None) -> CorruptBlock | Unverified | None:
        """Do as `fill`, but return bytes that no checksum covers instead of judging them."""
        position = self._ahead.position
        if position >= readable_end:
            return None
        row: Row | None = None
        if covered_end is None or position < covered_end:
            row = self.rows.first_after(position)
            if self._wal_rows is not None and (row is None or row.start <= position < readable_end < row.end):
                block = self._wal_block_at(position, readable_end)
                if block is not None:
                    return self._fill_from_wal(block, position, readable_end)
                row = self.rows.first_after(position)  # it may have been written in the meantime
        if row and row.start <= position:
            if row.end > readable_end:
                return Unverified(position, readable_end, readable_end, row)
            if position < self._verified_to and self._ahead.why != "END":
                return self._pass_over(row, position, "its checksum holds but its framing does not")
            return self._fill_verified(row, position, readable_end)
        end = min(row.start, readable_end) if row else readable_end
        return Unverified(position, end, end)

    def missing(self, size: int) -> Loss | None:
        """Return what checksums cover past the end of a file of `size` bytes, unless `fill` returned it."""
        start = end = max(size, self._reported_to)
        records = 0
        while rows := self.rows.covering(end, STRETCH):
            end = rows[-1].end
            records += sum(row.records for row in rows)
            if rows[0].start < size:
                records -= self._whole(rows[0].start, size)
        if end == start:
            return None
        return Loss(start, end, records, f"the file ends at byte {size}, its checksums at {end}")

    def _fill_verified(
        self, first: Row, position: int, readable_end: int
    ) -> CorruptBlock | Unverified | None:
        why, claimed = self._ahead.why, self._ahead.claimed
        end = self.rows.reach(STRETCH, readable_end)
        assert end is not None, "the first row's block at least"
        loaded = first.start + self._ahead.load(self.handle, first.start, end - first.start)
        if loaded < first.end:
            # Another process cut the file just now.
            return Unverified(position, loaded, first.end, first, why, claimed)
        good_end = self.rows.matching_end(self._ahead.view(first.start, loaded))
        if good_end <= position:
            return self._pass_over(first, position, "checksum mismatch")
        self._ahead.admit(position, good_end, is_verified=True)
        self.verified += good_end - max(position, self._verified_to)
        self._verified_to = self._loaded_to = good_end
        return None

    # --- bytes whose checksum is in a write-ahead log -------------------------------------------------------

    def _wal_block_at(self, position: int, readable_end: int) -> _WalBlock | None:
        """Return the block at `position` as a write-ahead log describes it; None: nothing usable."""
        assert self._wal_rows is not None
        wal_rows = [row for row in self._wal_rows() if row.end <= readable_end]
        if not any(row.end > position for row in wal_rows):
            return None
        covering = self.rows.first_after(position)
        last = self.rows.last
        if covering is None:
            if last is not None and last.is_seal:
                return None
        elif covering.start > position or covering.end <= readable_end:
            return None  # it has a row by now, or a peer wrote it
        covered = self.rows.last_end if covering is None else covering.start
        row = row_at(wal_rows, covered, position)
        if row is None:
            return None
        part = row if self._takeable is None else self._takeable(row, position)
        return None if part is None else _WalBlock(row, part)

    def _fill_from_wal(
        self, block: _WalBlock, position: int, readable_end: int
    ) -> CorruptBlock | Unverified | None:
        why, claimed = self._ahead.why, self._ahead.claimed
        for _ in range(_MOST_LOOKS):
            row, part = block
            if position < self._verified_to and why != "END":
                return self._pass_over(part, position, "its checksum holds but its framing does not")
            size = row.end - row.start
            if self._ahead.load(self.handle, row.start, size) < size:
                # Another process cut the file just now.
                return Unverified(position, readable_end, readable_end, None, why, claimed)
            data = bytes(self._ahead.view(row.start, row.end))
            if row.matches(data):
                self._ahead.admit(position, part.end, is_verified=True)
                self.verified += part.end - max(position, self._verified_to)
                self._verified_to = self._loaded_to = part.end
                return None
            again = self._wal_block_at(position, readable_end)
            if again == block and self._fs.pread(self.handle, size, row.start) == data:
                break
            self._ahead.seek(position)
            if again is None:
                return self.step(readable_end)
            block = again
        return self._pass_over(block.part, position, "checksum mismatch")

    # --- what is bad ------------------------------------------------------------------------------

    def _pass_over(self, row: Row, position: int, reason: str) -> CorruptBlock:
        """Skip the rest of a block. Its first records may have been delivered before this open."""
        records: int | None = row.records
        if position > row.start:
            before = self._whole(row.start, position)
            is_exact = self._ahead.position == position and before < row.records
            records = row.records - before if is_exact else None
        self._ahead.seek(row.end)
        self._verified_to = row.end
        return CorruptBlock(Loss(position, row.end, records, reason), row)

    def _whole(self, start: int, end: int) -> int:
        """Return how many whole records these bytes of a block hold. Leaves the read-ahead at their end."""
        self._ahead.load(self.handle, start, end - start)
        self._ahead.admit(start, end, is_verified=True)
        return self._ahead.count()

    def take_framed(self, unverified: Unverified) -> BrokenFraming | None:
        """Admit a stretch of these bytes by framing alone. Returns where the framing breaks, if it does."""
        position, end, lost_end, cut_short, why, claimed = unverified
        why = why or self._ahead.why
        claimed = self._ahead.claimed if claimed is None else claimed
        size = STRETCH
        if why == "CORRUPT":
            return BrokenFraming(position, lost_end, cut_short, "a length that no writer wrote")
        if why == "TORN":
            if position + claimed > end or self._loaded_to >= end:
                what = f"a record of {claimed} bytes" if claimed else "a length word"
                reason = f"{what} begins, and {end - position} bytes are left"
                return BrokenFraming(position, lost_end, cut_short, reason, is_torn=True)
            size = max(size, claimed)
        asked = max(0, min(size, end - position))
        loaded = self._ahead.load(self.handle, position, asked)
        if not loaded:
            return BrokenFraming(position, lost_end, cut_short, "the file is shorter than it was")
        self._loaded_to = position + loaded if loaded == asked else end
        self._ahead.admit(position, position + loaded)
        return None

    def _give_up(self, broken: BrokenFraming) -> Loss:
        """Skip everything that is lost with it."""
        position, lost_end, cut_short, reason, is_torn = broken
        records = None
        self._reported_to = lost_end
        if cut_short is not None:
            records = max(0, cut_short.records - self._whole(cut_short.start, position))
            self._reported_to = cut_short.end
        self._ahead.seek(lost_end)
        return Loss(position, self._reported_to, records, reason, is_torn)
