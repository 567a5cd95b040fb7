# Recovery points: up to where each partition was on stable storage at the last full barrier, its first
# segment then, and whether the stream was closed since. They are a hint with a checksum: without it recovery
# looks at everything. A journal has one point, as if it were partition 0 of a stream.
#
# Text, a line for each partition, in `.diskq/state`, after its sector. Format: docs/format/state.md.
#
# Points and checksums together show what is missing. Checksums are written after the messages, so what they
# cover was there: only they show that a file was cut, emptied or removed since. diskq's retention removes a
# segment together with its checksums, and notes first where the log begins from then on. So if the first
# segment of the point is missing, or the first checksums have no segment, another program or a person removed
# segments: by hand, by a peer's retention, or by accident. It may be meant: nothing is refused, and it is
# reported once.

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from diskq.errors import DiskFullError
from diskq.storage.barrier import NO_ROOM, Barrier, write_over
from diskq.storage.checksums import checked, checksummed, is_checked, rows_before
from diskq.storage.fs import FileSystem
from diskq.storage.numbers import UNBOUNDED
from diskq.storage.repairs import Repair, RepairKind
from diskq.storage.state import StateFiles, StoreState, read_rest

__all__ = [
    "RecoveryPoint",
    "RecoveryPoints",
    "checksummed_end",
    "checksums_reach",
    "leave_points",
    "missing_start",
    "read_points",
]

# Earlier versions named the write-ahead logs here, too.
_HEAD = re.compile(rb"diskq points 1 (open|closed|left)(?: staged [0-9]{1,20})?\n")
_LINE = re.compile(rb"([0-9]{1,6}) ([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19})(?: ([0-9]{1,19}))?\n")


class _Files(Protocol):
    path: str


class RecoveryPoint(NamedTuple):
    """A place in a partition: the first offset of its segment, a byte of the data, the next offset there."""

    base: int
    end: int
    next_offset: int
    first: int | None = None
    """The first segment there was; None if unknown."""


@dataclass(frozen=True, slots=True)
class RecoveryPoints:
    """The recovery points of all partitions: everything before them is durable."""

    is_closed: bool
    """True if nothing was written after them."""
    partitions: Mapping[int, RecoveryPoint]
    is_readable: bool = True
    """False if there are points, but they cannot be read."""
    was_left: bool = False
    """True if diskq's owner file was gone since. A peer may have written then, without checksums."""

    @property
    def is_left_open(self) -> bool:
        """True if a writer that did not close left them, and no peer is noted to have written since."""
        return self.is_readable and not self.is_closed and not self.was_left

    def was_closed(self, partition: int, *, was_killed: bool = False) -> bool:
        """True if all that diskq wrote to the partition is durable; also if the points do not list it.

        If `was_killed` and there are no points at all, it is False: their file has been removed.
        """
        if was_killed and not self.partitions:
            return False
        return self.is_closed or (self.is_readable and partition not in self.partitions)

    def cover(self, partition: int, base: int, end: int) -> bool:
        """True if byte `end` of the segment `base` of the partition is durable by its point."""
        point = self.partitions.get(partition)
        return point is not None and (base, end) <= (point.base, point.end)

    def with_other_starts(self, partitions: Iterable[int]) -> RecoveryPoints:
        """Return the same points, with the first segments of these partitions unknown."""
        others = {index: self.partitions[index]._replace(first=None) for index in partitions}
        return replace(self, partitions={**self.partitions, **others})

    def render(self) -> bytes:
        word = "closed" if self.is_closed else "left" if self.was_left else "open"
        lines = [f"diskq points 1 {word}\n"]
        for index, point in self.partitions.items():
            place = " ".join(str(number) for number in point if number is not None)
            lines.append(f"{index} {place}\n")
        return checked("".join(lines).encode())

    @classmethod
    def parse(cls, content: bytes) -> RecoveryPoints | None:
        """Parse what `render` returns. None for any other bytes."""
        head = _HEAD.match(content)
        if head is None:
            return None
        at = head.end()
        partitions = {}
        while (line := _LINE.match(content, at)) is not None:
            index, *place = (int(number) for number in line.groups() if number is not None)
            partitions[index] = RecoveryPoint(*place)
            at = line.end()
        if not is_checked(content, at):
            return None
        return cls(head[1] == b"closed", partitions, was_left=head[1] == b"left")


def read_points(fs: FileSystem, files: StateFiles) -> RecoveryPoints:
    """Read the points. Without any, diskq has written nothing yet: the first barrier makes them."""
    content = read_rest(fs, files)
    if content is None:
        return RecoveryPoints(True, {})
    return RecoveryPoints.parse(content) or RecoveryPoints(False, {}, is_readable=False)


def leave_points(fs: FileSystem, files: _Files, state: StoreState, points: RecoveryPoints) -> None:
    """Note that a peer may have written since, before any file shows that diskq is here.

    Raises DiskFullError and OSError.
    """
    if not points.is_left_open:
        return
    left = replace(points, was_left=True)
    replacement = state.replacing(left.render())
    if not Barrier(replacements=(replacement,)).execute(fs) and not write_over(fs, replacement):
        raise DiskFullError(files.path, NO_ROOM)


# --- what is missing ----------------------------------------------------------------------------------


def missing_start(
    bases: list[int],
    checksum_files: Iterable[int],
    data: Callable[[int], str],
    *,
    noted: int | None,
    first: int = 0,
) -> Repair | None:
    """Return what is missing before the first of the segments; None if nothing is.

    `checksum_files` are the segments that have checksums, `data` names a segment's file, `noted` is the first
    segment as the recovery point has it (None: unknown), and `first` is the segment before which retention
    has removed all. If no segment is left, the recovery point shows that.
    """
    if not bases:
        return None
    begun = checksum_files if noted is None else (*checksum_files, max(noted, first))
    gone = [base for base in begun if first <= base < bases[0]]
    if not gone:
        return None
    start, now = min(gone), bases[0]
    return Repair(
        path=data(start),
        kind=RepairKind.LOST,
        kept=0,
        dropped=0,
        reason=f"it begins with message {now}, but began with {start}: diskq did not remove the others",
        records=now - start,
    )


class _EndFiles(Protocol):
    def bases(self) -> list[int]: ...

    def checksum_files(self) -> list[int]: ...

    def checksum_file(self, base: int) -> str: ...


def checksums_reach(fs: FileSystem, files: _EndFiles) -> tuple[list[int], dict[int, int]]:
    """Return the first offsets of the segments, and the byte that the last segment's checksums reach.

    The second value is a mapping by first offset; it also has checksum files after the last segment. O(log n)
    for each. A process may write meanwhile: a segment that it begins has no checksums here, and data that is
    read after this call contains all bytes that these checksums cover. Raises OSError.
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
