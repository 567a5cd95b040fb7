# Repairs. Law: a repair destroys nothing. Bytes cut from a file are first durable in a file beside it.

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from diskq.storage.barrier import Barrier, write_all
from diskq.storage.fs import FileSystem, directory_of
from diskq.storage.numbered_files import free_aside

__all__ = ["Repair", "RepairKind", "cut_tail", "keep_content", "keep_copy", "last_byte"]

_PIECE = 1024 * 1024


class RepairKind(enum.StrEnum):
    """What a repair is about. Each value is its name in lower case, as in JSON."""

    TORN = "torn"
    """The end of a write that was not complete: it was never acknowledged."""
    UNSYNCED = "unsynced"
    """Not synced before the machine stopped: never acknowledged as synced."""
    UNWRITTEN = "unwritten"
    """Zeros, and what follows them, where a disk went away before it had written all."""
    LOST = "lost"
    """Messages that should be there and are missing, perhaps with their file."""
    CORRUPT = "corrupt"
    """Bytes that are not the ones that were written."""
    DISPLACED = "displaced"
    """Accepted messages, with other bytes in their place: they are appended again, or kept aside."""
    FOREIGN = "foreign"
    """Messages of another program: they stay where they are, perhaps with other offsets."""
    STALE = "stale"
    """Bytes or entries that belong to no message."""
    REBUILT = "rebuilt"
    """Metadata, entries, settings or an offset that was missing or wrong: it is made anew."""
    KEPT_ASIDE = "kept aside"
    """Bytes that an earlier open or repair kept aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A damage found in a file, and what was done about it: for people, logs and statistics."""

    path: str
    kind: RepairKind
    kept: int
    """The byte at which the damage begins."""
    dropped: int
    """Bytes from there on that are not delivered."""
    reason: str
    records: int | None = 0
    """Number of lost messages; None if unknown."""
    saved_as: str | None = None
    """The path of the file with the dropped bytes."""

    @classmethod
    def of_bytes(
        cls,
        path: str,
        kind: RepairKind,
        start: int,
        end: int,
        reason: str,
        records: int | None = 0,
        saved_as: str | None = None,
    ) -> Repair:
        """Return the repair of bytes start:end of a file, with which `records` messages were lost."""
        return cls(
            path=path,
            kind=kind,
            kept=start,
            dropped=end - start,
            reason=reason,
            records=records,
            saved_as=saved_as,
        )

    def __str__(self) -> str:
        lost = "an unknown number of" if self.records is None else str(self.records)
        where = f", kept in {self.saved_as}" if self.saved_as else ""
        dropped = f"{self.dropped} bytes from {self.kept} dropped ({lost} messages)"
        return f"{self.path}: {self.reason}; {dropped}{where}"


def cut_tail(
    fs: FileSystem,
    handle: int,
    path: str,
    end: int,
    kind: RepairKind,
    reason: str,
    records: int | None,
    *,
    aside_base: str | None = None,
    is_kept: bool = True,
) -> Repair:
    """Shorten the file to `end` bytes, after the rest is durable in a file of its own.

    That file is `path.bad`, or `aside_base.bad` if no file may be put beside `path`; with `is_kept` False
    there is none. Raises OSError, also for a full disk; the file is then unchanged.
    """
    size = fs.size(handle)
    aside = keep_copy(fs, handle, aside_base or path, end) if is_kept else None
    fs.truncate(handle, end)
    return Repair(
        path=path, kind=kind, kept=end, dropped=size - end, reason=reason, records=records, saved_as=aside
    )


def keep_copy(fs: FileSystem, handle: int, aside_base: str, start: int = 0, end: int | None = None) -> str:
    """Copy the file's bytes start:end durably into a new file `aside_base.bad`, and return its path.

    Raises OSError; there is then no such file.
    """
    size = fs.size(handle) if end is None else end

    def pieces() -> Iterator[bytes]:
        for at in range(start, size, _PIECE):
            yield fs.pread(handle, min(_PIECE, size - at), at)

    return _keep(fs, aside_base, pieces())


def keep_content(fs: FileSystem, aside_base: str, content: bytes) -> str:
    """Write these bytes durably into a new file `aside_base.bad`, and return its path.

    Raises OSError; there is then no such file.
    """
    return _keep(fs, aside_base, [content])


def _keep(fs: FileSystem, aside_base: str, pieces: Iterable[bytes]) -> str:
    aside = free_aside(fs, aside_base)
    copy = fs.open(aside, write=True, create=True, exclusive=True)
    try:
        try:
            end = 0
            for piece in pieces:
                write_all(fs, copy, piece, end)
                end += len(piece)
            Barrier(files=(copy,), directories=(directory_of(aside),)).execute(fs)
        finally:
            fs.close(copy)
    except OSError:
        with contextlib.suppress(OSError):
            Barrier(removals=(aside,)).execute(fs)
        raise
    return aside


def last_byte(fs: FileSystem, handle: int, start: int) -> int | None:
    """Return the position of the last nonzero byte from `start` on; None if there is none."""
    size = fs.size(handle)
    found = None
    for at in range(start, size, _PIECE):
        window = fs.pread(handle, min(_PIECE, size - at), at)
        stripped = len(window.rstrip(b"\0"))
        if stripped:
            found = at + stripped - 1
    return found
