# Reading a file by stretches. Law: bytes that have a checksum are handed out only if it agrees;
# bytes that have none (a peer wrote them, or they are too block) on their framing alone; whatever
# is passed over is told, byte for byte.
#
# A checksum is in a row of the checksum file, or, of the last blocks of who writes elsewhere, on its
# write-ahead log. There it may be of a block that grows, and what is read of both in one moment need not
# belong together: bytes are called rotten when the same row and the same bytes are found again.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from diskq._native.core.read_ahead import ReadAhead
from diskq.storage.checksums import Row, Rows
from diskq.storage.closing import let_go
from diskq.storage.fs import FileSystem
from diskq.storage.write_ahead_log import row_at

__all__ = ["BlockReader", "BrokenFraming", "CorruptBlock", "Loss", "Takeable", "Unverified", "WalRows"]

STRETCH = 256 * 1024
# A block that its writer is at work on is another one each time, until it is finished.
_MOST_LOOKS = 20

WalRows = Callable[[], Sequence[Row]]
"""What there is on a write-ahead log, now: rows of one file, in no order."""

Takeable = Callable[[Row, int], Row | None]
"""Of a block on a write-ahead log, in which this byte is: the part whose records may be taken; None: none of
them.
"""


@dataclass(frozen=True, slots=True)
class Loss:
    """Bytes start:end of a file were passed over."""

    start: int
    end: int
    records: int | None
    """How many records they held; None where nothing tells."""
    reason: str
    is_torn: bool = False
    """Does it look like a write that was not finished?"""


class CorruptBlock(NamedTuple):
    """A block that was passed over: its checksum does not hold, or it holds and its framing does not."""

    loss: Loss
    row: Row


class Unverified(NamedTuple):
    """Bytes `position`:`end` of the file, for which no checksum vouches."""

    position: int
    end: int
    lost_end: int
    """If they are broken, all up to here is lost."""
    cut_short: Row | None = None
    """The block here, which cannot be verified because the file ends inside it."""
    why: str | None = None
    claimed: int | None = None
    """`ahead.why` and `ahead.claimed` as they were before the bytes were loaded; None: as they are now."""


class BrokenFraming(NamedTuple):
    """No record begins at `position`. The other fields are those of `Unverified` and of `Loss`."""

    position: int
    lost_end: int
    cut_short: Row | None
    reason: str
    is_torn: bool = False


class _WalBlock(NamedTuple):
    """A block whose checksum is on a write-ahead log."""

    row: Row
    part: Row
    """Of it what may be taken."""


class BlockReader:
    """One file, read forward through `ahead`; by framing alone where `checksum_file` is None.

    `shown` are checksums for what the checksum file has none for, and `takeable` tells what may be taken of
    their blocks: by default all.

    Who believes the framing of bytes without checksums calls `fill`. Who knows more of them calls `step`, and
    judges what it returns.
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
        """For so many of the bytes that were admitted a checksum vouches."""

    def seek(self, position: int) -> None:
        """Read on at byte `position`, where a record begins."""
        self.rows.seek(position)
        self._ahead.seek(position)
        self._verified_to = self._loaded_to = self._reported_to = position

    def close(self) -> None:
        """Let go of the files, which were only read: raises nothing. Idempotent."""
        handle, self.handle = self.handle, -1
        let_go(self._fs, handle)
        self.rows.close()

    def fill(self, readable_end: int, covered_end: int | None = None) -> Loss | None:
        """Admit the stretch at `ahead.position`, as far as `readable_end`, or pass over what is bad.

        Afterwards, if it returned None, records are there unless position has reached `readable_end`.
        `covered_end` spares looking for checksums behind the byte where the last of them ends.
        """
        found = self.step(readable_end, covered_end)
        if isinstance(found, CorruptBlock):
            return found.loss
        broken = None if found is None else self.take_framed(found)
        return None if broken is None else self._give_up(broken)

    def step(self, readable_end: int, covered_end: int | None = None) -> CorruptBlock | Unverified | None:
        """As `fill`, but nothing is done about bytes that no checksum vouches for: they are returned."""
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
                row = self.rows.first_after(position)  # it may have come while we looked elsewhere
        if row and row.start <= position:
            if row.end > readable_end:
                return Unverified(position, readable_end, readable_end, row)
            if position < self._verified_to and self._ahead.why != "END":
                return self._pass_over(row, position, "its checksum holds but its framing does not")
            return self._fill_verified(row, position, readable_end)
        end = min(row.start, readable_end) if row else readable_end
        return Unverified(position, end, end)

    def missing(self, size: int) -> Loss | None:
        """What checksums know of, past the end of a file of `size` bytes, and `fill` has not told of."""
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
            # Somebody cut the file under us.
            return Unverified(position, loaded, first.end, first, why, claimed)
        good_end = self.rows.agreeing(self._ahead.view(first.start, loaded))
        if good_end <= position:
            return self._pass_over(first, position, "checksum mismatch")
        self._ahead.admit(position, good_end, is_verified=True)
        self.verified += good_end - max(position, self._verified_to)
        self._verified_to = self._loaded_to = good_end
        return None

    # --- bytes whose checksum is on a write-ahead log -------------------------------------------------------

    def _wal_block_at(self, position: int, readable_end: int) -> _WalBlock | None:
        """Return what a write-ahead log says of the block at `position`; None: nothing that can be used."""
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
            return None  # it has a row by now, or is a peer's
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
                # Somebody cut the file under us.
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
        """Skip the rest of a block. Its first records may have been handed out before this open."""
        records: int | None = row.records
        if position > row.start:
            before = self._whole(row.start, position)
            is_exact = self._ahead.position == position and before < row.records
            records = row.records - before if is_exact else None
        self._ahead.seek(row.end)
        self._verified_to = row.end
        return CorruptBlock(Loss(position, row.end, records, reason), row)

    def _whole(self, start: int, end: int) -> int:
        """How many whole records there are in these bytes of a block. Leaves the read-ahead at their end."""
        self._ahead.load(self.handle, start, end - start)
        self._ahead.admit(start, end, is_verified=True)
        return self._ahead.count()

    def take_framed(self, unverified: Unverified) -> BrokenFraming | None:
        """Admit a stretch of these bytes by framing alone. Returns where that does not go on."""
        position, end, lost_end, cut_short, why, claimed = unverified
        why = why or self._ahead.why
        claimed = self._ahead.claimed if claimed is None else claimed
        size = STRETCH
        if why == "CORRUPT":
            return BrokenFraming(position, lost_end, cut_short, "a length that no writer wrote")
        if why == "TORN":
            if position + claimed > end or self._loaded_to >= end:
                told = f"a record of {claimed} bytes" if claimed else "a length word"
                reason = f"{told} begins, and {end - position} bytes are left"
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
        """Pass over all that is lost with it."""
        position, lost_end, cut_short, reason, is_torn = broken
        records = None
        self._reported_to = lost_end
        if cut_short is not None:
            records = max(0, cut_short.records - self._whole(cut_short.start, position))
            self._reported_to = cut_short.end
        self._ahead.seek(lost_end)
        return Loss(position, self._reported_to, records, reason, is_torn)
