# The redo log: bytes that are durable here before they are durable in their files. Law: an entry names its
# files and places itself, and is durable once the log is synced; space is used again only when everything in
# it is durable in its files.
#
# `synced` messages would need two syncs, of the data file, which grows, and of its checksum file. Instead,
# the bytes that were written to both since the last time are written once more, as one entry, over the
# preallocated bytes of this file, and only it is synced. The files follow with the next full sync. After a
# power cut the next open writes to the files what they may lack (log/replay.py).
#
# The file has a header in its first 4 KiB, twice, and two halves. An entry is written after the one before
# it, once that one is durable; when a half is full, the other one is used. Sequence numbers tell the order,
# and an entry that is left from an earlier round. A log is made under another name and renamed, so that it
# never has a header that is not whole.
#
# Each entry says which ones are still needed. What the last durable entry says is true of the bytes there
# until a later one is durable: so a power cut may tear the entry that is being written, and nothing that is
# needed. Anything else that cannot be read is damage, and is reported. That one may be damaged, too, which
# nothing shows: so it is reported as what it is, not whole.
#
# After a kill it is not needed: the page cache has all that was written to the files.
# Format: docs/format/redo.md.

from __future__ import annotations

from collections.abc import Sequence

from diskq._native.core.log_entry import ENTRY_SIZE, encode_entry, entry_size
from diskq.storage.barrier import let_go, write_all
from diskq.storage.fs import FileSystem
from diskq.storage.log.entries import LogHeader, Part
from diskq.storage.log.format import HALVES_AT, HEADER_SIZE, SYNCED, encode_header

__all__ = ["LEAST_SIZE", "RedoLog"]

LEAST_SIZE = 64 * 1024
"""The size of a log when it is made, in bytes."""

# Left at the end of each half, for an entry that says that nothing is needed.
_RESERVE = ENTRY_SIZE


class RedoLog:
    """A redo log that is written."""

    def __init__(self, fs: FileSystem, path: str, number: int, size: int, *, sequence: int = 1) -> None:
        """Write an empty log of `size` bytes to the file at `path`, which is made or replaced.

        The caller syncs it, and gives it its name. `number` is unique; `sequence` is that of the first entry.
        Raises OSError, also if the disk is full; there may then be a file at `path`.
        """
        self._fs = fs
        self.number = number
        self.size = size
        """Bytes on the disk."""
        self._half_size = (size - HALVES_AT) // 2
        self.largest = self._half_size // 2
        """The most bytes of content that an entry of a few parts may have."""
        self._half = 0
        self._at = 0  # in the half
        self._next = sequence
        self._floor = sequence  # entries before this are durable in their files
        self._noted = sequence  # up to which they are, as an entry says that is durable before the next one
        self._last = [0, 0]  # the sequence of the last entry in each half
        self._is_marked = True  # no entry is needed, and the log says so
        self.handle = fs.open(path, write=True, create=True)
        try:
            if fs.size(self.handle):
                fs.truncate(self.handle, 0)
            header = encode_header(LogHeader(SYNCED, number, b"", HALVES_AT, 2, self._half_size))
            head = header.ljust(HALVES_AT - HEADER_SIZE, b"\0") + header
            # Real zeros: an entry must not change anything of the file but bytes.
            write_all(fs, self.handle, head + bytes(size - HALVES_AT), 0)
        except BaseException:
            self.close()
            raise

    @property
    def next_sequence(self) -> int:
        """The sequence of the next entry."""
        return self._next

    @property
    def is_needed(self) -> bool:
        """True if it holds bytes that are not durable elsewhere."""
        return self._floor < self._next

    def add(self, parts: Sequence[Part]) -> bool:
        """Write an entry, durable with the next sync of `handle`. False: there is no space for it.

        Raises OSError.
        """
        size = entry_size(parts)
        if not self._find_space(size):
            return False
        self._write(encode_entry(self.number, self._next, self._floor, parts))
        self._at += size
        self._last[self._half] = self._next
        self._next += 1
        self._noted = self._floor
        self._is_marked = False
        return True

    def _write(self, entry: bytes) -> None:
        write_all(self._fs, self.handle, entry, HALVES_AT + self._half * self._half_size + self._at)

    def _find_space(self, size: int) -> bool:
        if self._at + size + _RESERVE <= self._half_size:
            return True
        other = 1 - self._half
        # A power cut may tear what is written there: the entry before it must not need anything of it.
        if size + _RESERVE > self._half_size or self._last[other] >= self._noted:
            return False
        if self._is_marked:
            self._next += 1  # the mark has this number
            self._floor = self._next
        self._half, self._at = other, 0
        return True

    @property
    def needs_sync(self) -> bool:
        """True if there is space, once the mark that nothing is needed is durable: see `note_synced`."""
        return self._is_marked and self._noted < self._floor

    def note_synced(self, floor: int) -> None:
        """Note that the mark is durable which was there when `floor` was the next sequence."""
        self._noted = max(self._noted, floor)

    def release(self, sequence: int) -> None:
        """Note that all entries before `sequence` are durable in their files.

        If these are all, an entry says so that the next one will replace. It is not synced: after a power cut
        entries may be read that are not needed. Raises OSError.
        """
        self._floor = max(self._floor, sequence)
        if not self.is_needed and not self._is_marked:
            # It is not needed itself.
            self._write(encode_entry(self.number, self._next, self._next + 1, ()))
            self._is_marked = True

    def close(self) -> None:
        """Close the file. Idempotent."""
        handle, self.handle = self.handle, -1
        let_go(self._fs, handle)
