# What a writer says of itself for who passes by: how long its barriers take, and which bound it has. Law:
# nothing is decided by it, nobody waits for it, and whatever becomes of it, no message is concerned.
#
# A file of one fixed size, overwritten in place without a sync: at most once a second, behind a barrier that
# was paid anyway, by the thread that paid it. Who is idle writes nothing, and who is open for less than a
# second makes no such file.
# Format: docs/format/status.md.

from __future__ import annotations

import contextlib
import struct
from typing import NamedTuple

from diskq.storage.barrier import write_all
from diskq.storage.checksums import checksum
from diskq.storage.durations import DurationCounter, Durations
from diskq.storage.fs import FileSystem
from diskq.storage.small_file import read_small

__all__ = ["DiskBound", "StatusBoard", "StatusNote", "read_status"]

_NOTE = struct.Struct("<8s8qI")
_MAGIC = b"dqstate\x01"
_PERIOD = 1.0
_SECOND = 10**9


class DiskBound(NamedTuple):
    """How many bytes a writer may have on the disk. Sizes in bytes."""

    max_bytes: int = -1
    """-1: as many as there is room for."""
    used: int = 0
    """What counts: of all members, where the bound is shared."""
    is_shared: bool = False
    """Is it a budget's, of which the writer is a member?"""


class StatusNote(NamedTuple):
    """What a writer said of itself last."""

    pid: int
    written_at_ns: int
    """Since the Unix epoch."""
    barriers: int
    """Paid since the open,"""
    spent_ns: int
    """and what they took, together."""
    longest_ns: int
    """The longest of those since the note before."""
    bound: DiskBound

    def pack(self) -> bytes:
        told = (self.pid, self.written_at_ns, self.barriers, self.spent_ns, self.longest_ns, *self.bound)
        row = _NOTE.pack(_MAGIC, *told, 0)[:-4]
        return row + checksum(row).to_bytes(4, "little")

    @classmethod
    def unpack(cls, row: bytes) -> StatusNote | None:
        """None for bytes that are no note, or a torn or rotten one."""
        if len(row) != _NOTE.size or checksum(row[:-4]) != int.from_bytes(row[-4:], "little"):
            return None
        magic, pid, at, barriers, spent, longest, max_bytes, used, is_shared, _ = _NOTE.unpack(row)
        if magic != _MAGIC:
            return None
        return cls(pid, at, barriers, spent, longest, DiskBound(max_bytes, used, bool(is_shared)))


def read_status(fs: FileSystem, path: str) -> StatusNote | None:
    """None where there is none, or none that can be believed. Raises OSError."""
    return StatusNote.unpack(read_small(fs, path, _NOTE.size) or b"")


class StatusBoard:
    """Where one writer says it. For the thread that pays its barriers, but for `is_due` and `bound`."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._handle = -1
        self._pid = 0  # asked for when it is needed
        self._due = fs.monotonic() + _PERIOD
        self._longest = 0.0  # seconds, since the last note
        self.bound = DiskBound()
        """To be told with the next note."""

    @property
    def is_due(self) -> bool:
        """Will the next barrier be told of?"""
        return self._fs.monotonic() >= self._due

    def executed(self, now: float, seconds: float, counter: DurationCounter) -> None:
        """A barrier was paid by `now` (`fs.monotonic`), took so long, and is counted."""
        self._longest = max(self._longest, seconds)
        if now >= self._due:
            self._due = now + _PERIOD
            # On a full disk, or with too many files open, it is not said, and that is all.
            with contextlib.suppress(OSError):
                self._write(counter.now())

    def _write(self, durations: Durations) -> None:
        fs = self._fs
        if self._handle < 0:
            self._pid = fs.identity().pid
            self._handle = fs.open(self._path, write=True, create=True)
        note = StatusNote(
            pid=self._pid,
            written_at_ns=int(fs.wall_clock() * _SECOND),
            barriers=durations.count,
            spent_ns=int(durations.seconds * _SECOND),
            longest_ns=int(self._longest * _SECOND),
            bound=self.bound,
        )
        self._longest = 0.0
        write_all(fs, self._handle, note.pack(), 0)

    def close(self) -> None:
        """Idempotent. The note stays: it names a process that has the writer no more."""
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            self._fs.close(handle)
