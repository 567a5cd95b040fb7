# A queue as its files show it. Law: no lock is taken and no file is changed; a process that has the queue
# open does not notice.
#
# So it shows what was last recorded: while a process has the queue open, its metadata is as old as the last
# full barrier.

from __future__ import annotations

from dataclasses import dataclass

from diskq.engine import layouts
from diskq.engine.queue.files import QueueFiles, QueueMetadata, QueuePosition
from diskq.engine.queue.redo_source import queue_as_replayed
from diskq.storage.fs import FileSystem, OsFileSystem, join
from diskq.storage.listings import names_in
from diskq.storage.lock import Holder, holder_of
from diskq.storage.write_ahead_log import read_wal

__all__ = ["QueueView", "look", "queue_names"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """What the files of a queue show. Sizes in bytes."""

    name: str
    depth: int | None
    """Messages, as last recorded; None if nothing is recorded."""
    is_exact: bool
    """True if nothing was written after what is recorded, so that `depth` is right."""
    bytes: int
    """All data files and their checksums."""
    files: int
    read: QueuePosition
    write: QueuePosition
    """The position after the last byte."""
    is_open: bool | None
    """True if a process has it open; None: not known from here."""
    holder: Holder | None
    """The process that has it open, or had it last; None if diskq never had it."""
    problems: tuple[str, ...]
    """What the next open will find and repair."""
    aside: tuple[str, ...]
    """Files of bytes that could not be read, kept for `diskq repair`."""

    @property
    def has_messages(self) -> bool:
        return self.read < self.write


def queue_names(directory: str, *, fs: FileSystem | None = None) -> list[str]:
    """Return the names of the queues that have files in `directory`, sorted. Raises OSError."""
    return layouts.queue_names(fs or OsFileSystem(), directory)


def look(directory: str, name: str, *, fs: FileSystem | None = None) -> QueueView:
    """Return the queue as it is now, or was a moment ago. Raises OSError, QueueNameError."""
    fs = queue_as_replayed(fs or OsFileSystem(), directory, name)
    files = QueueFiles(fs, directory, name)
    content = files.read_metadata()
    metadata = QueueMetadata.parse(content) if content is not None else None
    sizes = {number: fs.size_of(files.data(number)) or 0 for number in files.numbers()}
    sums = sum(fs.size_of(files.checksum_file(number)) or 0 for number in sizes)
    on_disk = sum(sizes.values()) + sums
    holder, is_open = holder_of(fs, files.lock)
    if holder is not None and holder.is_of_this_boot(fs):
        _add_what_waits(fs, files.wal, sizes)
    end = QueuePosition(max(sizes), sizes[max(sizes)]) if sizes else QueuePosition(0, 0)
    recorded = metadata.write if metadata else QueuePosition(0, 0)
    unrecorded = _bytes_between(sizes, recorded, end)
    aside = [entry for entry in names_in(fs, directory, files.naming.prefix) if ".bad" in entry]
    return QueueView(
        name=name,
        depth=max(0, metadata.depth) if metadata else None,
        is_exact=metadata is not None and not unrecorded,
        bytes=on_disk,
        files=len(sizes),
        read=metadata.read if metadata else QueuePosition(min(sizes, default=0), 0),
        write=max(recorded, end),
        is_open=is_open,
        holder=holder,
        problems=() if is_open is not False else tuple(_problems(content, metadata, sizes, unrecorded)),
        aside=tuple(join(directory, entry) for entry in sorted(aside)),
    )


def _add_what_waits(fs: FileSystem, wal: str, sizes: dict[int, int]) -> None:
    """Count what was accepted and not yet written as if it were: the next open would write it."""
    waiting = read_wal(fs, wal)
    if waiting is not None and waiting.start <= sizes.get(waiting.file, -1):
        sizes[waiting.file] = max(sizes[waiting.file], waiting.start + len(waiting.records))


def _bytes_between(sizes: dict[int, int], start: QueuePosition, end: QueuePosition) -> int:
    if start >= end:
        return 0
    whole = sum(size for number, size in sizes.items() if start.file <= number <= end.file)
    return whole - start.byte


def _problems(
    content: bytes | None, metadata: QueueMetadata | None, sizes: dict[int, int], unrecorded: int
) -> list[str]:
    if metadata is None:
        state = "missing" if content is None else "unreadable"
        return [f"the metadata is {state}: the next open takes the positions from the data"]
    found = []
    for what, position in (("read", metadata.read), ("written", metadata.write)):
        size = sizes.get(position.file)
        if size is not None and size < position.byte:
            found.append(
                f"byte {position.byte} of file {position.file} is recorded as {what}, but it ends at {size}"
            )
    if metadata.read.byte and metadata.read.file not in sizes:
        found.append(f"file {metadata.read.file}, which is recorded as being read, is gone")
    if unrecorded:
        found.append(f"{unrecorded} bytes were written after the last record: the next open counts them")
    if consumed := sum(number < metadata.read.file for number in sizes):
        found.append(f"{consumed} consumed files are still there: the next open removes them")
    return found
