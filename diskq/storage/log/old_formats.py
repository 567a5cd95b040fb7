# Logs of earlier versions, which are read and never written. Law: whatever only they need is here; a store
# that was killed with one is replayed from it, and has a log of today's format afterwards (format.py).
#
# The redo log (magic `diskqrd1`, at `NAME.redo`, as today's) had two halves of entries, too, whose parts were
# those of today. Its header had other fields, and the check of an entry's head covered the size.
#
# The write-ahead log was at `NAME.slate`, and is removed after its replay. It began with the boot id, and was
# in the machine's own byte order. With magic `diskqsl2` it had one entry and rows, as today; with `diskqsr1`
# rows alone; with `diskqsl1` an entry without a checksum, which stayed after its records were written, and no
# rows.

from __future__ import annotations

import struct

from diskq._native.core.log_entry import ENTRY_SIZE
from diskq.storage.checksums import Row, checksum
from diskq.storage.log.entries import DATA, EntryHead, Part, WalContent

__all__ = ["OLD_WAL_NAME", "old_redo_head_at", "old_redo_header", "old_wal_in"]

# --- the redo log -------------------------------------------------------------------------------------

# magic and version, number of the log, bytes of each half, crc32c of all before
_REDO_HEADER = struct.Struct("<8sQQI")
_REDO_MAGIC = b"diskqrd1"
_COPIES_AT = (0, 2048)

# size and 1, crc32c of the size and of the rest of this, number of the log, sequence, first sequence that is
# still needed, crc32c of the parts
_REDO_ENTRY = struct.Struct("<IIQQQI4x")
_USED = 1
_CHECKED_FROM = 8
assert _REDO_ENTRY.size == ENTRY_SIZE


def old_redo_header(head: bytes) -> tuple[int, int] | None:
    """Return the number of such a log and the size of a half, from either copy; None: it is none."""
    for at in _COPIES_AT:
        if len(head) < at + _REDO_HEADER.size:
            break
        magic, number, half_size, check = _REDO_HEADER.unpack_from(head, at)
        checked = head[at : at + _REDO_HEADER.size - 4]
        if magic == _REDO_MAGIC and check == checksum(checked) and half_size:
            return number, half_size
    return None


def old_redo_head_at(number: int, data: bytes, at: int, sequence: int | None = None) -> EntryHead | None:
    """Do what `format.head_at` does, for an entry of such a log."""
    if not 0 <= at <= len(data) - ENTRY_SIZE:
        return None
    used, check, its, seen, floor, crc = _REDO_ENTRY.unpack_from(data, at)
    if sequence is not None:
        its, seen = number, sequence
    size = used & ~_USED
    if its != number or size == used or size < ENTRY_SIZE:
        return None
    head = _REDO_ENTRY.pack(used, check, its, seen, floor, crc)
    if check != checksum(head[_CHECKED_FROM:], checksum(head[:4])):
        return None
    return EntryHead(size, seen, floor, 0, crc)


# --- the write-ahead log ------------------------------------------------------------------------------

OLD_WAL_NAME = "slate"
"""What the path of such a log ends in, instead of `wal`."""

_BOOT = 64  # bytes of the boot id, filled up
_WAL_HEADER = struct.Struct("=8sI4x")
_WAL_ENTRY = struct.Struct("=QqqII")
_WAL_ROW = struct.Struct("=qQIIII")
_WAL_ROW_COUNT = 26
_CHECKED_ENTRY, _CHECKED_ROW = 24, 28
_ENTRY_AT = _BOOT + _WAL_HEADER.size
_ROWS_AT = _ENTRY_AT + _WAL_ENTRY.size
_RECORDS_AT = 1024
_WAL_SIZE = 64 * 1024
_ROWS_SIZE = 4 * 1024
_WAL_MAGIC, _ROWS_MAGIC, _FIRST_MAGIC = b"diskqsl2", b"diskqsr1", b"diskqsl1"
_FIRST_HEADER = struct.Struct("=8sqqq")


def old_wal_in(content: bytes, boot: bytes) -> WalContent | None:
    """Return what such a log with this content holds; None: it is empty, or cut. `boot`: the boot id."""
    named = boot.ljust(_BOOT, b"\n")[:_BOOT]
    magic = content[_BOOT : _BOOT + len(_WAL_MAGIC)]
    is_for_rows = magic == _ROWS_MAGIC
    if len(content) < (_ROWS_SIZE if is_for_rows else _WAL_SIZE) or not content.strip(b"\0"):
        return None
    if magic == _FIRST_MAGIC:
        _, file, start, used = _FIRST_HEADER.unpack_from(content, _BOOT)
        records = content[_BOOT + _FIRST_HEADER.size :]
        has_entry = 0 < used <= len(records) and min(file, start) >= 0
        waiting = Part(0, DATA, file, start, records[:used]) if has_entry else None
        return WalContent(content.startswith(named), waiting, may_be_consumed=True)
    # Of the boot id and its checksum one is enough.
    magic, check = _WAL_HEADER.unpack_from(content, _BOOT)
    wanted = _ROWS_MAGIC if is_for_rows else _WAL_MAGIC
    is_of_this_run: bool | None = content.startswith(named) or check == checksum(named + wanted)
    if not is_of_this_run:
        is_whole = magic in (_WAL_MAGIC, _ROWS_MAGIC) and check == checksum(content[: _BOOT + len(magic)])
        is_of_this_run = False if is_whole else None
    if is_for_rows:
        return WalContent(is_of_this_run, rows=_old_rows_in(content), is_for_rows=True)
    waiting, unreadable = _old_entry_in(content)
    return WalContent(is_of_this_run, waiting, unreadable, _old_rows_in(content))


def _old_entry_in(content: bytes) -> tuple[Part | None, int]:
    _, file, start, size, check = _WAL_ENTRY.unpack_from(content, _ENTRY_AT)
    state = content[_ENTRY_AT + _CHECKED_ENTRY : _ENTRY_AT + _WAL_ENTRY.size]
    if not any(state):
        return None, 0
    records = content[_RECORDS_AT : _RECORDS_AT + size]
    known = checksum(content[_ENTRY_AT : _ENTRY_AT + _CHECKED_ENTRY])
    if size == len(records) > 0 and check == checksum(records, known) and min(file, start) >= 0:
        return Part(0, DATA, file, start, records), 0
    if sum(map(bool, state)) == 1:
        return None, 0  # one corrupt byte in an empty entry
    most = _WAL_SIZE - _RECORDS_AT
    return None, size if 0 < size <= most else most


def _old_rows_in(content: bytes) -> tuple[tuple[int, Row], ...]:
    found = []
    for at in range(_ROWS_AT, _ROWS_AT + _WAL_ROW_COUNT * _WAL_ROW.size, _WAL_ROW.size):
        file, end, size, records, crc, check = _WAL_ROW.unpack_from(content, at)
        if 0 < size <= end and file >= 0 and check == checksum(content[at : at + _CHECKED_ROW]):
            found.append((file, Row(end - size, end, records, crc)))
    return tuple(found)
