# What the logs of a store hold, and where it belongs. Law: an entry is made of parts, and a part is bytes of
# a file and the byte where they belong; it needs no format, and means the same in each log.
#
# There are two: the write-ahead log has records that were accepted and may not be written yet
# (storage/write_ahead_log.py), the redo log those that were synced in it alone (storage/redo_log.py). One
# replay puts both into the files after a crash: replay.py.

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from diskq.storage.checksums import Row

__all__ = [
    "CHECKSUMS",
    "DATA",
    "Displaced",
    "EntryHead",
    "LogEntry",
    "LogHeader",
    "Part",
    "Staging",
    "WalContent",
    "lost_without",
]

DATA, CHECKSUMS = 0, 1
"""What a part is of: a data file, or its checksum file."""


class Part(NamedTuple):
    """Bytes of one file, from `position` on."""

    group: int
    """The number of the partition; 0 in a store without partitions."""
    kind: int
    """DATA or CHECKSUMS."""
    file: int
    """The number of the data file, whose checksum file it is if `kind` says so."""
    position: int
    content: bytes

    @property
    def end(self) -> int:
        """The byte after the last one."""
        return self.position + len(self.content)


class LogEntry(NamedTuple):
    """What was written to the log at once."""

    sequence: int
    """Ascending."""
    parts: tuple[Part, ...]


class Staging(NamedTuple):
    """The path of a write-ahead log, and of the files that it is for."""

    path: str
    data: Callable[[int], str]
    """Returns the path of a data file, given its number."""
    checksum_file: Callable[[int], str]
    """Returns the path of its checksum file."""
    is_last: Callable[[int], bool] = lambda _: True
    """True if the file with this number is the last one. Appending to another would break the order."""
    has_file: Callable[[str], bool] = lambda _: True
    """True if the file with this name, in the directory of one of these, is the same store's."""


class Displaced(NamedTuple):
    """Accepted messages whose place is used: to be appended again before the logs are cleared."""

    path: str
    """The file to which they belonged."""
    part: Part


def lost_without(
    displaced: Iterable[Displaced],
    path: str,
    start: int,
    lost: int,
    counted: Callable[[bytes], int],
    size: int = 0,
) -> int:
    """Return how many of `lost` messages, from byte `start` of a file on, are not among the displaced ones.

    `counted` returns how many messages some records are. `size`: of how many bytes they are; 0: of all.
    """
    for each in displaced:
        begin, end = start - each.part.position, len(each.part.content)
        if size:
            end = min(end, begin + size)
        if path == each.path and end > 0:
            lost -= counted(each.part.content[max(0, begin) : end])
    return max(0, lost)


# --- what is read of a log --------------------------------------------------------------------------


class LogHeader(NamedTuple):
    """What a log says of itself."""

    promise: int
    """WRITTEN or SYNCED."""
    number: int
    """Drawn at random for each log: no entry of another one is taken for one of this."""
    boot: bytes
    """The boot id of a log that means nothing after a restart of the machine; else empty."""
    start: int
    """The byte of the file at which the entries begin. The header is there twice: at 0, and just before."""
    areas: int
    """The number of areas for entries, one after the other; 0: it is for checksums alone."""
    size: int
    """Bytes of each area."""


class EntryHead(NamedTuple):
    """What an entry says before its parts, if that has the right check."""

    size: int
    """Bytes of the entry, these and the parts. The crc32c covers that many bytes, and so not this number."""
    sequence: int
    floor: int
    """The first sequence that is still needed."""
    seed: int
    """The crc32c of what comes before the parts."""
    crc: int
    """The same, continued with the parts."""


class WalContent(NamedTuple):
    """What a log of `written` messages holds."""

    is_of_this_run: bool | None
    """True if it was made since the machine was started; None if its header is unreadable."""
    waiting: Part | None = None
    """Records that may not be in their file."""
    unreadable: int = 0
    """Bytes of such records that are unreadable, at most."""
    rows: tuple[tuple[int, Row], ...] = ()
    """Checksums of blocks, each with the number of its file."""
    is_for_rows: bool = False
    """True if it is for checksums alone."""
    may_be_consumed: bool = False
    """True if its records stayed there after they were written: with their file, they are gone for good."""
