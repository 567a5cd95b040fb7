# Replay of a log after a crash: the one table of what becomes of records that a log holds. Law: they are
# compared with the files at every open. Bytes of another program are never written over; what cannot be put
# in its place is appended again or kept aside, and reported.
#
#   in the place of the records             what is done
#   ---------------------------             ------------
#   they are there                          nothing, or they are made durable there
#   it is free: the file ends there, or     they are written
#     inside them, with their beginning
#   other bytes: another program has        these stay; the records are displaced, and all later ones of that
#     written since                         file: the engine appends them again, at the end
#   the file is gone, or ends before them   they are kept aside: to append them would hide that bytes are
#                                           missing
#
# If another program may have written since, nothing is written in place: records that are not there are
# displaced.
#
# It comes before anything else is judged. A second replay changes nothing, so an open may be killed at any
# step. What the records were promised makes three differences:
#
#                           accepted (write-ahead log)         synced (redo log)
#   they are there          enough: a kill leaves the page     they are written once more, and synced: the
#                           cache                              page cache alone may have them
#   a free place may have   nothing                            zeros: a power cut leaves them
#   and is in               the last file: one after it is     any file: a later one may be diskq's own
#                           another program's

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from diskq.storage.barrier import Barrier, write_all
from diskq.storage.closing import opened
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem
from diskq.storage.log.entries import Displaced, Part, Staging
from diskq.storage.repairs import Repair, RepairKind, keep_content

__all__ = ["LogReplay", "is_part_of"]


class LogReplay:
    """One replay of one log. Call `finish` after the last record, and `close` in any case."""

    def __init__(
        self,
        fs: FileSystem,
        stagings: Mapping[int, Staging],
        *,
        in_place: bool,
        are_synced: bool,
        on_full: Callable[[Part, bool], bool],
    ) -> None:
        """`in_place`: False if another program may have written since.

        `on_full` is called with a part for which the disk is too full, and True if it is there already.
        True: the part is left as it is. False: it is written once more, perhaps into space that was freed.
        """
        self._fs = fs
        self._stagings = stagings
        self._in_place = in_place
        self._are_synced = are_synced
        self._on_full = on_full
        self._handles: dict[str, int] = {}  # of the files that were written to
        self._displaced: dict[tuple[int, int], list[Part]] = {}  # by group and file

    def put(self, part: Part) -> bool:
        """Put records into their data file, or find them there. False: they are displaced, or kept aside."""
        place = (part.group, part.file)
        if place in self._displaced or not self._is_put(part):
            self._displaced.setdefault(place, []).append(part)
            return False
        return True

    def _is_put(self, part: Part) -> bool:
        path = self._stagings[part.group].data(part.file)
        there = self.there(part)
        if there is None:
            return False
        if there == part.content:
            if self._are_synced:
                self.write(path, part)
            return True
        if self._in_place and self._is_free(part, there):
            self.write(path, part)
            return True
        return False

    def _is_free(self, part: Part, there: bytes) -> bool:
        """True if no other program has written in the place of the records, where these bytes are."""
        if self._are_synced:
            return is_part_of(there, part.content)
        return part.content.startswith(there) and self._stagings[part.group].is_last(part.file)

    def there(self, part: Part) -> bytes | None:
        """Return the bytes in the place of the records; None if the file is gone, or ends before them."""
        path = self._stagings[part.group].data(part.file)
        size = self._fs.size_of(path)
        if size is None or size < part.position:
            return None
        with opened(self._fs, path) as handle:
            return self._fs.pread(handle, len(part.content), part.position)

    def write(self, path: str, part: Part, *, create: bool = False) -> None:
        """Write the part to the file at `path`; `finish` syncs what was synced. Raises OSError."""
        handle = self._handles.get(path)
        if handle is None:
            handle = self._handles[path] = self._fs.open(path, write=True, create=create)
        # Also over equal bytes: after a failed sync the kernel takes pages that it did not write for written.
        try:
            write_all(self._fs, handle, part.content, part.position)
        except OSError as failure:
            if failure.errno not in FULL_DISK_ERRNOS:
                raise
            # Some file systems write in other places, and need space for that.
            is_there = self._fs.pread(handle, len(part.content), part.position) == part.content
            if not self._on_full(part, is_there):
                write_all(self._fs, handle, part.content, part.position)

    def finish(self) -> tuple[list[Displaced], list[Repair]]:
        """Sync what has to be durable, and keep aside what belongs nowhere.

        Returns the records that are to be appended again, and what to report. Raises OSError.
        """
        if self._are_synced:
            Barrier(files=tuple(self._handles.values())).execute(self._fs)
        displaced: list[Displaced] = []
        lost: dict[int, list[tuple[Repair, bytes]]] = {}  # by group: one file keeps all its records
        for (group, file), parts in self._displaced.items():
            path, first = self._stagings[group].data(file), parts[0]
            records = b"".join(part.content for part in parts)
            size = self._fs.size_of(path)
            if not self._in_place or (size is not None and size >= first.position):
                displaced.append(Displaced(path, first._replace(content=records)))
            else:
                lost.setdefault(group, []).append((self._lost(path, size, first, len(records)), records))
        return displaced, [repair for group, its in lost.items() for repair in self._kept_aside(group, its)]

    def _lost(self, path: str, size: int | None, first: Part, dropped: int) -> Repair:
        ends = "is gone" if size is None else f"ends at byte {size}"
        which = "synced" if self._are_synced else "accepted"
        return Repair(
            path=path,
            kind=RepairKind.DISPLACED,
            kept=size or 0,
            dropped=dropped,
            reason=f"the file {ends}, {which} messages belong at byte {first.position}",
            records=None,
        )

    def _kept_aside(self, group: int, lost: list[tuple[Repair, bytes]]) -> Iterator[Repair]:
        records = b"".join(its for _, its in lost)
        aside = keep_content(self._fs, self._stagings[group].path, records)
        return (replace(repair, saved_as=aside) for repair, _ in lost)

    def close(self) -> None:
        """Close the files that were written to. Idempotent."""
        handles, self._handles = self._handles, {}
        Barrier(closing=tuple(handles.values())).execute(self._fs)


def is_part_of(there: bytes, content: bytes) -> bool:
    """True if each byte that is there is the one of `content`, or was never written."""
    if len(there) <= len(content) and content.startswith(there):
        return True
    return all(byte in (0, own) for byte, own in zip(there, content, strict=False))
