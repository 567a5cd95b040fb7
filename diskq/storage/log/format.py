# The bytes of a log: its header and its entries, and the reading of both logs. Law: a log says itself what
# was promised of the messages in it, and where its entries are; a reader needs no other file.
#
# There are two kinds, of one format. A log of `written` messages is mapped into memory: it survives a kill,
# and means nothing after a restart of the machine, so it names the boot (write_ahead_log.py). A log of
# `synced` messages is synced, and means the same in each boot (redo_log.py).
#
# Format: docs/format/log.md. Logs of earlier versions: old_formats.py.

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from diskq._native.core.append_buffer import WAL_ENTRY, WAL_RECORDS, WAL_ROW_COUNT, WAL_ROWS
from diskq._native.core.log_entry import ENTRY_SIZE, decode_header, decode_parts, header_check
from diskq.errors import UnsupportedFormatError
from diskq.storage.barrier import let_go
from diskq.storage.checksums import Row, checksum
from diskq.storage.fs import FileSystem
from diskq.storage.log.entries import EntryHead, LogEntry, LogHeader, Part, WalContent
from diskq.storage.log.old_formats import OLD_WAL_NAME, old_redo_head_at, old_redo_header, old_wal_in

__all__ = [
    "HALVES_AT",
    "HEADER_SIZE",
    "ROWS_SIZE",
    "SYNCED",
    "WAL_ROWS_END",
    "WAL_SIZE",
    "WRITTEN",
    "RedoContent",
    "boot_of",
    "encode_header",
    "entry_of",
    "head_at",
    "header_in",
    "holds_all",
    "holds_nothing",
    "holds_records",
    "is_missing",
    "is_of_this_run",
    "load_wal",
    "old_wal_path",
    "read_redo",
    "read_wal",
    "redo_path",
    "rows_on",
    "shown_rows",
    "wal_place",
]

WRITTEN, SYNCED = 1, 2
"""What was promised of the messages of a log."""

HEADER_SIZE = 128

HALVES_AT = 4096
"""The byte at which the areas of a redo log begin. It has two, here called halves."""

WAL_SIZE = 64 * 1024
"""Bytes of a write-ahead log in which messages wait; all of them are mapped."""

ROWS_SIZE = 4 * 1024
"""The size of a write-ahead log for checksums only, in bytes."""

_ROW = struct.Struct("<qQIIII")
_CHECKED_ROW = 28
_LONGEST_BOOT = 64
WAL_ROWS_END = WAL_ROWS + WAL_ROW_COUNT * _ROW.size
assert WAL_ROWS == HEADER_SIZE
assert WAL_ENTRY == WAL_ROWS_END + HEADER_SIZE

_MAGIC = b"diskqlog"
_VERSION = 1
# magic, version, promise, number of the log, boot id, byte at which the areas begin, how many, bytes of each
_HEADER = struct.Struct("<8sIIQ64sIIQ20x")
_CHECK = struct.Struct("<I")
assert _HEADER.size + _CHECK.size == HEADER_SIZE
_LARGEST = 1024 * 1024 * 1024

_ALIGNMENT = 8  # of the entries of a redo log
_NUMBER_AT = 8  # of the log, in an entry
# The entries of one half, and torn ones whose sizes reach into others, have at most this many times its size.
_MOST_OVERLAPPING = 8


def encode_header(header: LogHeader) -> bytes:
    """Return the header of a log, of HEADER_SIZE bytes."""
    promise, number, boot, start, areas, size = header
    fields = _HEADER.pack(_MAGIC, _VERSION, promise, number, boot, start, areas, size)
    return fields + _CHECK.pack(checksum(fields))


def header_in(path: str, head: bytes, start: int) -> LogHeader | None:
    """Return the header of the log at `path`, from either copy; None if both are unreadable.

    `head`: the first bytes of the file; entries of such logs begin at byte `start`. Raises
    UnsupportedFormatError for a log of another format version.
    """
    versions: list[int] = []
    for at in (0, start - HEADER_SIZE):
        if len(head) < at + HEADER_SIZE:
            break
        magic, version, promise, number, boot, first, areas, size = _HEADER.unpack_from(head, at)
        if magic != _MAGIC:
            continue
        (check,) = _CHECK.unpack_from(head, at + _HEADER.size)
        is_checked = check == checksum(head[at : at + _HEADER.size])
        if version != _VERSION:
            # Another version's header may be another one, too: two such numbers alike are no damage.
            versions += [version] * (1 + is_checked)
        elif is_checked and first == start and size <= _LARGEST:
            return LogHeader(promise, number, boot.rstrip(b"\0"), first, areas, size)
    for version in versions:
        if versions.count(version) > 1:
            raise UnsupportedFormatError(path, f"a log of format version {version}", f"version {_VERSION}")
    return None


def head_at(number: int, data: bytes, at: int, sequence: int | None = None) -> EntryHead | None:
    """Return the head of an entry of this log at byte `at`; None: there is none, or it is torn.

    With `sequence`, the number and the sequence of the entry are taken to be these, whatever is there.
    """
    found = decode_header(data, at)
    if found is None:
        return None
    size, crc, its, seen, floor, check, wanted = found
    if sequence is not None:
        its, seen, wanted = number, sequence, header_check(number, sequence, floor)
    if its != number or size < ENTRY_SIZE or check != wanted:
        return None
    return EntryHead(size, seen, floor, check, crc)


def entry_of(head: EntryHead, data: bytes, at: int) -> LogEntry | None:
    """Return the entry at byte `at`, which has this head; None: the rest of it is torn."""
    content = data[at + ENTRY_SIZE : at + head.size]
    if len(content) < head.size - ENTRY_SIZE or head.crc != checksum(content, head.seed):
        return None
    return LogEntry(head.sequence, tuple(Part(*part) for part in decode_parts(content)))


def boot_of(fs: FileSystem) -> bytes:
    """Return the boot id as a header has it."""
    return fs.identity().boot_id.encode()[:_LONGEST_BOOT]


# --- a write-ahead log --------------------------------------------------------------------------------


def read_wal(fs: FileSystem, path: str) -> Part | None:
    """Return the records that wait to be written by its owner, or, after a kill, by the next open.

    None if there are none, or they are unreadable. Raises OSError.
    """
    content = load_wal(fs, path)
    return content.waiting if content is not None and content.is_of_this_run else None


def rows_on(fs: FileSystem, path: str, file: int) -> list[Row]:
    """Return the rows there of blocks of file number `file`, in no order, for readers in other processes.

    Blocks were written before their rows came into the write-ahead log. [] if there is no write-ahead log
    with a valid header of this boot. Records that wait in it are not looked at. Raises OSError.
    """
    return [row for its, row in shown_rows(fs, path) if its == file]


def shown_rows(fs: FileSystem, path: str) -> tuple[tuple[int, Row], ...]:
    """Return the rows there, each with the number of its file; else as `rows_on`. Raises OSError."""
    size = fs.size_of(path) or 0
    if size < ROWS_SIZE:
        content = None if size or wal_place(fs, path) == path else load_wal(fs, path)
        return content.rows if content is not None and content.is_of_this_run else ()
    try:
        head = _first_bytes(fs, path, WAL_ENTRY)
    except FileNotFoundError:  # it was removed just now
        return ()
    if len(head) < WAL_ENTRY or not head[WAL_ROWS:WAL_ROWS_END].strip(b"\0"):
        return ()
    header = header_in(path, head, WAL_ENTRY)
    if header is None or header.boot != boot_of(fs) or (size < WAL_SIZE and header.areas):
        return ()
    return _rows_in(head)


def is_of_this_run(fs: FileSystem, path: str) -> bool:
    """True if the write-ahead log says that it was made in this boot. Raises OSError."""
    content = load_wal(fs, path)
    return content is not None and content.is_of_this_run is True


def holds_all(fs: FileSystem, path: str) -> bool:
    """True if the write-ahead log is of this boot, and its waiting records are readable. Raises OSError."""
    content = load_wal(fs, path)
    return content is not None and content.is_of_this_run is True and not content.unreadable


def is_missing(fs: FileSystem, path: str) -> bool:
    """True if there is no write-ahead log, or only a part of one. Raises OSError."""
    return (fs.size_of(wal_place(fs, path)) or 0) < WAL_SIZE


def holds_records(fs: FileSystem, path: str) -> bool:
    """True if accepted records of this boot wait there, even if they cannot be read. Raises OSError."""
    content = load_wal(fs, path)
    if content is None or content.is_of_this_run is False:
        return False
    return content.waiting is not None or content.unreadable > 0


def holds_nothing(fs: FileSystem, path: str) -> bool:
    """True if the write-ahead log holds nothing, or nothing of this boot. Raises OSError.

    False for one that is only for checksums, even an empty one: it shows that its process was killed.
    """
    content = load_wal(fs, path)
    if content is None or content.is_of_this_run is False:
        return True
    if content.is_for_rows and content.is_of_this_run:
        return False
    return content.waiting is None and not content.unreadable and not content.rows


def load_wal(fs: FileSystem, path: str) -> WalContent | None:
    """Return what a write-ahead log holds; None if there is none, or no whole one. Raises OSError."""
    place = wal_place(fs, path)
    if (fs.size_of(place) or 0) < ROWS_SIZE:
        return None
    content = _first_bytes(fs, place, WAL_SIZE)
    if place != path:
        return old_wal_in(content, boot_of(fs))
    if not content.strip(b"\0"):
        return None
    header = header_in(path, content, WAL_ENTRY)
    is_for_rows = not header.areas if header is not None else len(content) < WAL_SIZE
    if len(content) < (ROWS_SIZE if is_for_rows else WAL_SIZE):
        return None
    is_of_this_run = None if header is None else header.boot == boot_of(fs)
    if is_for_rows:
        return WalContent(is_of_this_run, rows=_rows_in(content), is_for_rows=True)
    waiting, unreadable = _entry_in(content, None if header is None else header.number)
    return WalContent(is_of_this_run, waiting, unreadable, _rows_in(content))


def wal_place(fs: FileSystem, path: str) -> str:
    """Return where the log is: `path`, or if nothing is there the place that earlier versions had for it."""
    if not fs.size_of(path) and fs.size_of(old_wal_path(path)):
        return old_wal_path(path)
    return path


def old_wal_path(path: str) -> str:
    """Return where earlier versions had this write-ahead log."""
    return path.removesuffix("wal") + OLD_WAL_NAME


def _first_bytes(fs: FileSystem, path: str, size: int) -> bytes:
    handle = fs.open(path)
    try:
        return fs.pread(handle, size, 0)
    finally:
        let_go(fs, handle)


def _entry_in(content: bytes, number: int | None) -> tuple[Part | None, int]:
    """Return the accepted records that a write-ahead log with this `content` holds, and 0.

    If it holds none: None and 0. If they are unreadable: None and the most bytes that they can have.
    `number`: of the log; None: its header is unreadable.
    """
    state = content[WAL_ENTRY : WAL_ENTRY + 8]
    if not any(state):
        return None, 0
    found = decode_header(content, WAL_ENTRY)
    assert found is not None
    size, _, its, *_ = found
    head = head_at(its if number is None else number, content, WAL_ENTRY)
    entry = None if head is None else entry_of(head, content, WAL_ENTRY)
    if entry is not None and len(entry.parts) == 1:
        (part,) = entry.parts
        if part.content and min(part.file, part.position) >= 0:
            return part, 0
    if sum(map(bool, state)) == 1:
        return None, 0  # one corrupt byte in an empty entry
    size -= WAL_RECORDS - WAL_ENTRY
    return None, size if 0 < size <= WAL_SIZE - WAL_RECORDS else WAL_SIZE - WAL_RECORDS


def _rows_in(content: bytes) -> tuple[tuple[int, Row], ...]:
    found = []
    for at in range(WAL_ROWS, WAL_ROWS_END, _ROW.size):
        file, end, size, records, crc, check = _ROW.unpack_from(content, at)
        if 0 < size <= end and file >= 0 and check == checksum(content[at : at + _CHECKED_ROW]):
            found.append((file, Row(end - size, end, records, crc)))
    return tuple(found)


# --- a redo log -------------------------------------------------------------------------------------------


def redo_path(path: str) -> str:
    """Return the path at which a redo log is made that will be renamed to `path`."""
    return f"{path}.new"


@dataclass(slots=True)
class RedoContent:
    """What a redo log holds."""

    number: int | None
    """The number of the log; None if its header is unreadable."""
    entries: list[LogEntry] = field(default_factory=list)
    """Those that are still needed, in order."""
    unreadable: int = 0
    """Bytes of entries that were durable, and are unreadable or missing now, at least."""
    torn_at: int = 0
    """The byte of the file at which the last entry begins, if that is not whole; 0: it is."""
    torn: bytes = b""
    """Its bytes. They were never durable, or they were and are damaged: nothing tells the two apart."""


def read_redo(fs: FileSystem, path: str) -> RedoContent | None:
    """Read the redo log at `path`; None if there is no file, or an empty one.

    Raises UnsupportedFormatError for a log of another format version; NotAFileError, OSError.
    """
    if fs.size_of(path) is None:
        return None
    handle = fs.open(path)
    try:
        size = fs.size(handle)
        if not size:
            return None
        head = fs.pread(handle, HALVES_AT, 0)
        form = _form_of(path, head)
        if form is None:
            return RedoContent(None, unreadable=size)
        half_size = form.half_size
        halves = [fs.pread(handle, half_size, HALVES_AT + half * half_size) for half in (0, 1)]
    finally:
        let_go(fs, handle)
    return _content(form, halves)


class _Form(NamedTuple):
    """What is needed to read the entries of a log."""

    number: int
    half_size: int
    decode: Callable[[int, bytes, int, int | None], EntryHead | None]
    """Decodes the head of an entry, as `format.head_at`."""

    def head_at(self, half: bytes, at: int, sequence: int | None = None) -> EntryHead | None:
        head = self.decode(self.number, half, at, sequence)
        return head if head is not None and not head.size % _ALIGNMENT else None


def _form_of(path: str, head: bytes) -> _Form | None:
    """Return the form of a log that begins with these bytes; None if its header is unreadable.

    Raises UnsupportedFormatError.
    """
    header = header_in(path, head, HALVES_AT)
    if header is not None and header.promise == SYNCED and header.size:
        return _Form(header.number, header.size, head_at)
    old = old_redo_header(head)
    return None if old is None else _Form(*old, old_redo_head_at)


class _Chain(NamedTuple):
    """The entries at the beginning of a half."""

    entries: list[LogEntry]
    floor: int
    end: int
    """The byte after them."""

    @property
    def last(self) -> int:
        """The sequence of the last one; 0: there is none."""
        return self.entries[-1].sequence if self.entries else 0


def _content(form: _Form, halves: Sequence[bytes]) -> RedoContent:
    found = RedoContent(form.number)
    chains = [_chain(form, half) for half in halves]
    older, latest = sorted(chains, key=lambda chain: chain.last)
    found.entries = [entry for entry in older.entries + latest.entries if entry.sequence >= latest.floor]
    if not _is_complete(found.entries, latest.floor, latest.last):
        found.unreadable += form.half_size - older.end
    for half, chain in zip(halves, chains, strict=True):
        if len(half) < form.half_size or _needs_more(form, half, chain.end, latest.last):
            found.unreadable += form.half_size - chain.end
    if not found.unreadable:
        is_first_round = not halves[1].strip(b"\0")
        for index, (half, chain) in enumerate(zip(halves, chains, strict=True)):
            # The next entry comes after the latest one, or first in the other half.
            if chain is latest or not chain.end:
                torn = _torn(form, half, chain.end, latest.last, is_first_round=is_first_round)
                if torn:
                    found.torn_at, found.torn = HALVES_AT + index * form.half_size + chain.end, torn
    return found


def _torn(form: _Form, half: bytes, at: int, last: int, *, is_first_round: bool) -> bytes:
    """Return the bytes of an entry later than `last` that begins at this byte, and is not whole; b"": none.

    In the first round there are zeros after the last entry; later the bytes of earlier ones, and an entry
    shows itself by its head alone.
    """
    rest = half[at:].rstrip(b"\0")
    if len(half) - at < ENTRY_SIZE:
        return b""
    # If its number or its sequence is what is damaged, the rest of the head fits to the right one.
    for sequence in (None, last + 1):
        if (head := form.head_at(half, at, sequence)) is not None:
            return half[at : at + head.size] if head.sequence > last else b""
    begun = form.number.to_bytes(8, "little") + (last + 1).to_bytes(8, "little")
    is_begun = half.startswith(begun, at + _NUMBER_AT)
    return rest if is_begun or is_first_round else b""


def _is_complete(entries: Sequence[LogEntry], first: int, last: int) -> bool:
    """True if these are the entries from `first` to `last`, in order; there are none if `last` is less."""
    if len(entries) != max(0, last - first + 1):
        return False  # the numbers of a damaged log may be far apart
    return all(entry.sequence == sequence for sequence, entry in enumerate(entries, first))


def _chain(form: _Form, half: bytes) -> _Chain:
    entries: list[LogEntry] = []
    at, floor = 0, 1
    while (head := form.head_at(half, at)) is not None:
        entry = entry_of(head, half, at)
        if entry is None or (entries and entry.sequence != entries[-1].sequence + 1):
            break
        entries.append(entry)
        at += head.size
        floor = head.floor
    return _Chain(entries, floor, at)


def _needs_more(form: _Form, half: bytes, start: int, last: int) -> bool:
    """True if a whole entry after byte `start` is later than `last`: the one before it was durable then.

    None is written before the one before it is durable, so only the last one may be torn. Only the mark that
    nothing is needed may come earlier. Also true if there are more heads than entries have space: no writer
    has made them.
    """
    mark = form.number.to_bytes(8, "little")
    is_needed = False
    left = _MOST_OVERLAPPING * len(half)
    at = start + _NUMBER_AT - 1
    while (at := half.find(mark, at + 1)) >= 0:
        place = at - _NUMBER_AT
        head = form.head_at(half, place)
        if head is None or head.sequence <= last or place + head.size > len(half):
            continue
        left -= head.size
        if left < 0:
            return True
        if entry_of(head, half, place):
            last, is_needed = head.sequence, head.floor <= head.sequence
    return is_needed
