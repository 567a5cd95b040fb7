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

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from diskq.errors import UnsupportedFormatError
from diskq.storage.barrier import write_all
from diskq.storage.checksums import checksum
from diskq.storage.closing import let_go
from diskq.storage.fs import FileSystem
from diskq.storage.log.entries import Part

__all__ = [
    "LEAST_SIZE",
    "RedoContent",
    "RedoEntry",
    "RedoLog",
    "read_redo",
    "redo_path",
]

LEAST_SIZE = 64 * 1024
"""The size of a log when it is made, in bytes."""

_MAGIC = b"diskqrd"
_VERSION = b"1"
# magic and version, number of the log, bytes of each half, crc32c of all before
_HEADER = struct.Struct("<8sQQI")
_CHECKED = _HEADER.size - 4
_COPY_AT = 2048
_HALVES_AT = 4096

# size and 1, crc32c of the size and of the rest of this, number of the log, sequence, first sequence that is
# still needed, crc32c of the parts
_ENTRY = struct.Struct("<IIQQQI4x")
_SIZE = struct.Struct("<I")
_HEADER_CHECKED_FROM = 8
_ALIGNMENT = 8
_USED = 1  # in the size, which is a multiple of _ALIGNMENT: its first byte is 0 only if nothing is here
# Left at the end of each half, for an entry that says that nothing is needed.
_RESERVE = _ENTRY.size
# group, what it is of, file, position, bytes
_PART = struct.Struct("<IIqqI4x")
_LARGEST = 1024 * 1024 * 1024
# The entries of one half, and torn ones whose sizes reach into others, have at most so many times its size.
_MOST_OVERLAPPING = 8


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
        self._half_size = (size - _HALVES_AT) // 2
        self.largest = self._half_size // 2
        """The most bytes of content that an entry of a few parts may have."""
        self._half = 0
        self._at = 0  # in the half
        self._next = sequence
        self._floor = sequence  # entries before this are durable in their files
        self._noted = sequence  # so many of them are, by an entry that is durable before the next one
        self._last = [0, 0]  # the sequence of the last entry in each half
        self._is_marked = True  # no entry is needed, and the log says so
        self.handle = fs.open(path, write=True, create=True)
        try:
            if fs.size(self.handle):
                fs.truncate(self.handle, 0)
            fields = _HEADER.pack(_MAGIC + _VERSION, number, self._half_size, 0)[:_CHECKED]
            header = (fields + checksum(fields).to_bytes(4, "little")).ljust(_COPY_AT, b"\0")
            # Real zeros: an entry must not change anything of the file but bytes.
            write_all(fs, self.handle, header * 2 + bytes(size - _HALVES_AT), 0)
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
        pieces = []
        for part in parts:
            pieces.append(_PART.pack(*part[:4], len(part.content)))
            pieces.append(part.content)
        content = b"".join(pieces)
        content += bytes(-len(content) % _ALIGNMENT)
        size = _ENTRY.size + len(content)
        if not self._find_space(size):
            return False
        self._write(content, self._floor)
        self._at += size
        self._last[self._half] = self._next
        self._next += 1
        self._noted = self._floor
        self._is_marked = False
        return True

    def _write(self, content: bytes, floor: int) -> None:
        size = (_ENTRY.size + len(content)) | _USED
        fields = _ENTRY.pack(size, 0, self.number, self._next, floor, checksum(content))
        first, rest = fields[: _SIZE.size], fields[_HEADER_CHECKED_FROM:]
        entry = b"".join((first, _SIZE.pack(checksum(rest, checksum(first))), rest, content))
        write_all(self._fs, self.handle, entry, _HALVES_AT + self._half * self._half_size + self._at)

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
            self._write(b"", self._next + 1)  # it is not needed itself
            self._is_marked = True

    def close(self) -> None:
        """Close the file. Idempotent."""
        handle, self.handle = self.handle, -1
        let_go(self._fs, handle)


def redo_path(path: str) -> str:
    """Return the path at which a log is made that will be renamed to `path`."""
    return f"{path}.new"


# --- reading it -----------------------------------------------------------------------------------


class RedoEntry(NamedTuple):
    """One entry."""

    sequence: int
    parts: tuple[Part, ...]


@dataclass(slots=True)
class RedoContent:
    """What a redo log holds."""

    number: int | None
    """The number of the log; None if its header is unreadable."""
    entries: list[RedoEntry] = field(default_factory=list)
    """Those that are still needed, in order."""
    unreadable: int = 0
    """Bytes of entries that were durable, and are unreadable or missing now, at least."""
    torn_at: int = 0
    """The byte of the file at which the last entry begins, if that is not whole; 0: it is."""
    torn: bytes = b""
    """Its bytes. They were never durable, or they were and are damaged: nothing tells the two apart."""


def read_redo(fs: FileSystem, path: str) -> RedoContent | None:
    """Read the log at `path`; None if there is no file, or an empty one.

    Raises UnsupportedFormatError for a log of another format version; NotAFileError, OSError.
    """
    if fs.size_of(path) is None:
        return None
    handle = fs.open(path)
    try:
        size = fs.size(handle)
        if not size:
            return None
        head = fs.pread(handle, _HALVES_AT, 0)
        number, half_size = _header_in(path, head)
        if number is None:
            return RedoContent(None, unreadable=size)
        halves = [fs.pread(handle, half_size, _HALVES_AT + half * half_size) for half in (0, 1)]
    finally:
        let_go(fs, handle)
    return _content(number, halves, half_size)


def _header_in(path: str, head: bytes) -> tuple[int | None, int]:
    """Return the log's number and the size of a half, from either copy; no number if both are unreadable.

    Raises UnsupportedFormatError.
    """
    versions: list[bytes] = []
    for at in (0, _COPY_AT):
        if len(head) < at + _HEADER.size:
            break
        magic, number, half_size, check = _HEADER.unpack_from(head, at)
        is_checked = check == checksum(head[at : at + _CHECKED])
        if magic == _MAGIC + _VERSION:
            if is_checked and 0 < half_size <= _LARGEST:
                return number, half_size
        elif magic.startswith(_MAGIC):
            # Another version's header may be another one, too: two such bytes alike are no damage.
            versions += [magic[-1:]] * (1 + is_checked)
    for version in versions:
        if versions.count(version) > 1:
            found = f"a redo log of format version {version.decode('ascii', 'replace')!r}"
            raise UnsupportedFormatError(path, found, f"version {_VERSION.decode()!r}")
    return None, 0


class _Header(NamedTuple):
    """The header of an entry."""

    size: int
    sequence: int
    floor: int
    """The first sequence that is still needed."""
    check: int
    """crc32c of the parts."""


class _Chain(NamedTuple):
    """The entries at the beginning of a half."""

    entries: list[RedoEntry]
    floor: int
    end: int
    """The byte after them."""

    @property
    def last(self) -> int:
        """The sequence of the last one; 0: there is none."""
        return self.entries[-1].sequence if self.entries else 0


def _content(number: int, halves: Sequence[bytes], half_size: int) -> RedoContent:
    found = RedoContent(number)
    chains = [_chain(number, half) for half in halves]
    older, latest = sorted(chains, key=lambda chain: chain.last)
    found.entries = [entry for entry in older.entries + latest.entries if entry.sequence >= latest.floor]
    if not _is_complete(found.entries, latest.floor, latest.last):
        found.unreadable += half_size - older.end
    for half, chain in zip(halves, chains, strict=True):
        if len(half) < half_size or _needs_more(number, half, chain.end, latest.last):
            found.unreadable += half_size - chain.end
    if not found.unreadable:
        is_first_round = not halves[1].strip(b"\0")
        for index, (half, chain) in enumerate(zip(halves, chains, strict=True)):
            # The next entry comes after the latest one, or first in the other half.
            if chain is latest or not chain.end:
                torn = _torn(number, half, chain.end, latest.last, is_first_round=is_first_round)
                if torn:
                    found.torn_at, found.torn = _HALVES_AT + index * half_size + chain.end, torn
    return found


def _torn(number: int, half: bytes, at: int, last: int, *, is_first_round: bool) -> bytes:
    """Return the bytes of an entry later than `last` that begins at this byte, and is not whole; b"": none.

    In the first round there are zeros after the last entry; later the bytes of earlier ones, and an entry
    shows itself by its header alone.
    """
    head, rest = half[at : at + _ENTRY.size], half[at:].rstrip(b"\0")
    if len(head) < _ENTRY.size:
        return b""
    used, check, _, _, floor, content = _ENTRY.unpack(head)
    # If its number or its sequence is what is damaged, the rest of the header fits to the right one.
    for mended in (head, _ENTRY.pack(used, check, number, last + 1, floor, content)):
        if (header := _header_at(number, mended, 0)) is not None:
            return half[at : at + header.size] if header.sequence > last else b""
    its, sequence = struct.unpack_from("<QQ", head, _HEADER_CHECKED_FROM)
    is_begun = its == number and sequence == last + 1
    return rest if is_begun or is_first_round else b""


def _is_complete(entries: Sequence[RedoEntry], first: int, last: int) -> bool:
    """True if these are the entries from `first` to `last`, in order; there are none if `last` is less."""
    if len(entries) != max(0, last - first + 1):
        return False  # the numbers of a damaged log may be far apart
    return all(entry.sequence == sequence for sequence, entry in enumerate(entries, first))


def _chain(number: int, half: bytes) -> _Chain:
    entries: list[RedoEntry] = []
    at, floor = 0, 1
    while (header := _header_at(number, half, at)) is not None:
        entry = _entry_at(header, half, at)
        if entry is None or (entries and entry.sequence != entries[-1].sequence + 1):
            break
        entries.append(entry)
        at += header.size
        floor = header.floor
    return _Chain(entries, floor, at)


def _header_at(number: int, half: bytes, at: int) -> _Header | None:
    """Return the header of an entry at this byte, of this log; None: there is none, or it is torn."""
    if not 0 <= at <= len(half) - _ENTRY.size:
        return None
    used, check, its, sequence, floor, content = _ENTRY.unpack_from(half, at)
    size = used & ~_USED
    if its != number or size == used or size < _ENTRY.size or size % _ALIGNMENT:
        return None
    rest = half[at + _HEADER_CHECKED_FROM : at + _ENTRY.size]
    if check != checksum(rest, checksum(half[at : at + _SIZE.size])):
        return None
    return _Header(size, sequence, floor, content)


def _entry_at(header: _Header, half: bytes, at: int) -> RedoEntry | None:
    """Return the entry with this header; None: the rest of it is torn."""
    content = half[at + _ENTRY.size : at + header.size]
    if len(content) < header.size - _ENTRY.size or header.check != checksum(content):
        return None
    return RedoEntry(header.sequence, tuple(_parts(content)))


def _parts(content: bytes) -> Iterator[Part]:
    at = 0
    while at + _PART.size <= len(content):
        group, kind, file, position, size = _PART.unpack_from(content, at)
        at += _PART.size
        yield Part(group, kind, file, position, content[at : at + size])
        at += size


def _needs_more(number: int, half: bytes, start: int, last: int) -> bool:
    """True if a whole entry after byte `start` is later than `last`: the one before it was durable then.

    None is written before the one before it is durable, so only the last one may be torn. Only the mark that
    nothing is needed may come earlier. Also true if there are more headers than entries have space: no writer
    has made them.
    """
    mark = number.to_bytes(8, "little")
    is_needed = False
    left = _MOST_OVERLAPPING * len(half)
    at = start + _HEADER_CHECKED_FROM - 1
    while (at := half.find(mark, at + 1)) >= 0:
        place = at - _HEADER_CHECKED_FROM
        header = _header_at(number, half, place)
        if header is None or header.sequence <= last:
            continue
        left -= header.size
        if left < 0:
            return True
        if _entry_at(header, half, place):
            last, is_needed = header.sequence, header.floor <= header.sequence
    return is_needed
