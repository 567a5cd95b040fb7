# A writer's status file for other processes: how long its barriers take, and its bound on the disk. Law:
# no code decides by it or waits for it, and its loss affects no message.
#
# A file of one fixed size, overwritten in place without a sync: at most once a second, after a barrier that
# was due anyway, by the thread that executed it. An idle writer writes nothing, and one that is open for less
# than a second creates no such file.
# Format: docs/format/status.md.

from __future__ import annotations

import contextlib
import struct
from typing import NamedTuple

from diskq.storage.barrier import read_small, write_all
from diskq.storage.checksums import checksum
from diskq.storage.fs import FileSystem
from diskq.storage.sync_times import Durations

__all__ = ["DiskBound", "StatusBoard", "StatusNote", "read_status"]

_NOTE = struct.Struct("<8s8qI")
_MAGIC = b"dqstate\x01"
_PERIOD = 1.0
_SECOND = 10**9


class DiskBound(NamedTuple):
    """The bound on a writer's bytes on the disk. Sizes in bytes."""

    max_bytes: int = -1
    """-1: no bound but free space."""
    used: int = 0
    """Bytes that count towards it: those of all members, if the bound is shared."""
    is_shared: bool = False
    """True if it is the bound of a budget, of which the writer is a member."""


class StatusNote(NamedTuple):
    """The last content of a writer's status file."""

    pid: int
    written_at_ns: int
    """Since the Unix epoch."""
    barriers: int
    """Number of barriers executed since the open."""
    spent_ns: int
    """Their total duration."""
    longest_ns: int
    """The longest of those since the previous note."""
    bound: DiskBound

    def pack(self) -> bytes:
        fields = (self.pid, self.written_at_ns, self.barriers, self.spent_ns, self.longest_ns, *self.bound)
        row = _NOTE.pack(_MAGIC, *fields, 0)[:-4]
        return row + checksum(row).to_bytes(4, "little")

    @classmethod
    def unpack(cls, row: bytes) -> StatusNote | None:
        """Return the note in these bytes; None if they are no note, or a torn or corrupt one."""
        if len(row) != _NOTE.size or checksum(row[:-4]) != int.from_bytes(row[-4:], "little"):
            return None
        magic, pid, at, barriers, spent, longest, max_bytes, used, is_shared, _ = _NOTE.unpack(row)
        if magic != _MAGIC:
            return None
        return cls(pid, at, barriers, spent, longest, DiskBound(max_bytes, used, bool(is_shared)))


def read_status(fs: FileSystem, path: str) -> StatusNote | None:
    """Return the note in the status file at `path`; None if there is no valid one. Raises OSError."""
    return StatusNote.unpack(read_small(fs, path, _NOTE.size) or b"")


class StatusBoard:
    """Writes one writer's status file, in the thread of a barrier. What does not write is for any thread."""

    __slots__ = ("_fs", "_handle", "_path", "_pid", "bound", "due_at")

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._handle = -1
        self._pid = 0  # set with the first note
        self.due_at = fs.monotonic() + _PERIOD
        """A note follows the first barrier after this time (`fs.monotonic`)."""
        self.bound = DiskBound()
        """Goes into the next note."""

    def write(self, now: float, durations: Durations, longest: float) -> None:
        """Write how long all barriers took, and the longest since the last note, in seconds.

        Without space for the note, or a descriptor, it is left out. The next one is due a second after `now`.
        """
        self.due_at = now + _PERIOD
        with contextlib.suppress(OSError):
            self._write(durations, longest)

    def _write(self, durations: Durations, longest: float) -> None:
        fs = self._fs
        if self._handle < 0:
            self._pid = fs.identity().pid
            self._handle = fs.open(self._path, write=True, create=True)
        note = StatusNote(
            pid=self._pid,
            written_at_ns=int(fs.wall_clock() * _SECOND),
            barriers=durations.count,
            spent_ns=int(durations.seconds * _SECOND),
            longest_ns=int(longest * _SECOND),
            bound=self.bound,
        )
        write_all(fs, self._handle, note.pack(), 0)

    def close(self) -> None:
        """Close the file. Idempotent. The note stays, and names a process that no longer has the writer."""
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            self._fs.close(handle)
