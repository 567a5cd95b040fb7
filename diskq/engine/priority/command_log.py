# Reading the command log. Law: a fault of a segment is reported with its byte and its record, and nothing is
# changed here.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from diskq._native.priority.audit import CommandTally, TallyResult
from diskq._native.priority.codec import END_MARKER, FILE_HEAD, CommandScan, has_record, scan
from diskq.storage.fs import FileSystem
from diskq.storage.repairs import last_byte

__all__ = [
    "BadCommand",
    "SegmentScan",
    "go_over_segment",
    "has_records_after",
    "is_ended",
    "read_segment",
]

# A window of a file, which grows where a record is larger. One in which records are searched for; and one of
# which all commands are read by one compiled call, which lets no other thread run.
_WINDOW = 1024 * 1024
_AT_ONCE = 256 * 1024

Apply = Callable[[list[tuple[Any, ...]]], int]


class BadCommand(Exception):
    """A whole record has no command that can be carried out.

    Arguments: the byte, the number of the record in its segment, the kind of fault, the reason.
    """


@dataclass(slots=True)
class SegmentScan:
    """The result of scanning a segment's file."""

    size: int
    """Bytes of the file."""
    end: int = len(FILE_HEAD)
    """The byte after its last whole record."""
    records: int = 0
    trouble: str | None = None
    """What is wrong with the bytes at `end`, if the log does not end there."""
    is_bad: bool = False
    """True if the fault is a whole record without a command that can be carried out."""
    is_blank: bool = False
    """True if the segment was not begun: it is empty, or has a part of its head, or zeros."""
    version: int | None = None
    """The version in its head, if that is not the supported one."""
    is_torn: bool = False
    """True if the segment has content, but its head is at most a beginning and zeros."""
    is_alien: bool = False
    """True if it does not begin with a segment's marker."""
    term: int = 0
    """The term of its last record."""
    is_narrow: bool = False
    """True if that record has its term in 4 bytes."""
    is_document: bool = False
    """True if some record has the layout of the format's document only."""
    trailing: int = 0
    """The number of commands followed by unused bytes."""

    @property
    def is_headless(self) -> bool:
        """True if the file does not begin with a segment's head."""
        return self.is_blank or self.is_alien or self.is_torn

    @property
    def ending(self) -> int:
        """The byte of the end marker: in the document's layout, after the zeros that pad a record."""
        return (self.end + 3) & ~3 if self.is_document else self.end


def read_segment(
    fs: FileSystem, handle: int, apply: Apply | None = None, skip: int = 0, *, allows_bad: bool = False
) -> SegmentScan:
    """Scan the file, and pass the commands after the first `skip` records to `apply`.

    `apply` returns how many commands it carried out. Raises OSError, and BadCommand; if `allows_bad`, an
    invalid command is reported as `trouble` instead.
    """

    def look(window: bytes, rest: int, found: SegmentScan) -> CommandScan:
        skipped = max(0, skip - found.records)
        scanned = scan(window, rest, skipped, only_records=apply is None)
        if apply is not None:
            _apply(apply, scanned.commands, window, found, skipped)
        found.trailing += scanned.trailing
        return scanned

    return _read(fs, handle, look, allows_bad=allows_bad)


def go_over_segment(
    fs: FileSystem,
    handle: int,
    tally: CommandTally,
    skip: int = 0,
    on_bytes: Callable[[int], object] | None = None,
) -> SegmentScan:
    """Check every record and command in the file, and count the messages, without the first `skip` records.

    `on_bytes` is called with numbers of bytes read. Raises OSError.
    """

    def look(window: bytes, rest: int, found: SegmentScan) -> TallyResult:
        tallied = tally.add(window, rest, max(0, skip - found.records))
        if on_bytes is not None:
            on_bytes(tallied.end)
        return tallied

    return _read(fs, handle, look, allows_bad=True)


def _read(
    fs: FileSystem,
    handle: int,
    look: Callable[[bytes, int, SegmentScan], CommandScan | TallyResult],
    *,
    allows_bad: bool,
) -> SegmentScan:
    found = SegmentScan(fs.size(handle))
    head = fs.pread(handle, len(FILE_HEAD), 0)
    if head != FILE_HEAD:
        begun = head.rstrip(b"\0")
        is_prefix = FILE_HEAD.startswith(begun)
        is_short = len(head) < len(FILE_HEAD) and FILE_HEAD.startswith(head)
        found.is_blank = is_short or (not begun and last_byte(fs, handle, 0) is None)
        found.is_torn = is_prefix and not found.is_blank
        if not found.is_blank:
            found.is_alien = head[:4] != FILE_HEAD[:4] or len(head) < len(FILE_HEAD)
            if not found.is_alien:
                found.version = int.from_bytes(head[4:], "big", signed=True)
        return found
    width = _AT_ONCE
    while True:
        window = fs.pread(handle, width, found.end)
        rest = found.size - found.end
        scanned = look(window, rest, found)
        if scanned.records:
            found.term, found.is_narrow = scanned.term, scanned.is_narrow
        found.is_document |= scanned.is_document
        found.end += scanned.end
        found.records += scanned.records
        if scanned.stop == "END":
            return found
        if scanned.stop in ("UNKNOWN", "BAD"):
            kind = "unknown_delta" if scanned.stop == "UNKNOWN" else "bad_delta"
            is_known = scanned.stop == "BAD"
            reason = "a command that is cut, or names no queue" if is_known else "an unknown command"
            if allows_bad:
                found.trouble, found.is_bad = reason, True
                return found
            raise BadCommand(found.end, found.records, kind, reason)
        if scanned.stop != "MORE":
            found.trouble = scanned.stop
            return found
        width = _AT_ONCE if scanned.end else width * 2


def _apply(
    apply: Apply, commands: list[tuple[Any, ...]], window: bytes, found: SegmentScan, skipped: int
) -> None:
    done = apply(commands)
    if done < len(commands):
        before = scan(window, most=skipped + done, only_records=True)
        implementation = commands[done][2]
        raise BadCommand(
            found.end + before.end,
            found.records + skipped + done,
            "unknown_implementation",
            f"queue implementation {implementation}",
        )


def has_records_after(fs: FileSystem, handle: int, start: int) -> bool:
    """True if there is a whole record anywhere after byte `start`."""
    size = fs.size(handle)
    width = 2 * _WINDOW
    at = start + 1
    while at < size:
        # Windows overlap: a record of up to half a window is whole in one of them.
        window = fs.pread(handle, width, at)
        if has_record(window):
            return True
        at += _WINDOW if len(window) == width else width
    return False


def is_ended(fs: FileSystem, handle: int, found: SegmentScan) -> bool:
    """True if the end marker is at its place."""
    size = found.ending - found.end + len(END_MARKER)
    return fs.pread(handle, size, found.end) == bytes(size)
