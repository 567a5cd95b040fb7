# A queue as its files show it. Law: no lock is taken and no file is changed; a process that has the queue
# open does not notice.
#
# So it shows what was last recorded: while a process has the queue open, its metadata is as old as the last
# full barrier. If no process has it, and the files are not what the metadata says, it is opened, in memory:
# what is shown is then what the next open finds.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from diskq._native.queue.codec import MAX_BODY
from diskq.engine import layouts
from diskq.engine.log.reader import SkippedBytes
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.queue.files import QueueFiles, QueueMetadata, QueuePosition
from diskq.engine.queue.replayed import queue_replay
from diskq.engine.queue.snapshot import QueueSnapshot, SnapshotReader, values_of
from diskq.options import QueueOptions
from diskq.storage.fs import FileSystem, OsFileSystem, join
from diskq.storage.lock import Holder, holder_of
from diskq.storage.log.format import read_wal
from diskq.storage.numbered_files import names_in, set_aside_from
from diskq.tools.look import look_at

__all__ = ["FirstMessages", "QueueView", "look", "look_at_first", "queue_names"]

# More bytes than this are not read to count the messages that no metadata counts.
_READ_UP_TO = 64 * 1024 * 1024
_AT_ONCE = 1024 * 1024
_ANY_SIZE = QueueOptions(max_message_size=MAX_BODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """What the files of a queue show. Sizes in bytes."""

    name: str
    depth: int | None
    """Messages: as the next open counts them if `is_exact`, else as last recorded; None: nothing is recorded.
    """
    is_exact: bool
    """False if more was written than is recorded: by its owner, or too much to be counted."""
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


def look(directory: str, name: str, *, fs: FileSystem | None = None, opens: bool = True) -> QueueView:
    """Return the queue as it is now, or was a moment ago.

    Without `opens` it is not opened in memory, and shows what was last recorded also after a kill.
    Raises OSError, QueueNameError, and UnsupportedFormatError for its redo log.
    """
    fs = queue_replay(fs or OsFileSystem(), directory, name).shown_files()
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
    names = names_in(fs, directory, files.naming.prefix)
    aside = [entry for entry in names if set_aside_from(entry) is not None]
    shorter = [] if metadata is None else list(_shorter(metadata, sizes))
    problems = _problems(content, metadata, sizes, shorter, unrecorded) if is_open is False else []
    view = QueueView(
        name=name,
        depth=max(0, metadata.depth) if metadata else None,
        is_exact=metadata is not None and not unrecorded,
        bytes=on_disk,
        files=len(sizes),
        read=metadata.read if metadata else QueuePosition(min(sizes, default=0), 0),
        write=max(recorded, end),
        is_open=is_open,
        holder=holder,
        problems=tuple(problems),
        aside=tuple(join(directory, entry) for entry in sorted(aside)),
    )
    has_gaps = sum(view.read.file <= number < view.write.file for number in sizes) < (
        view.write.file - view.read.file
    )
    is_as_recorded = view.is_exact and not shorter and not has_gaps and not fs.size_of(files.redo)
    is_ours = metadata is not None and metadata.is_ours
    unread = unrecorded if is_ours else _bytes_between(sizes, view.read, view.write)
    if not opens or is_open is not False or is_as_recorded or not (sizes or content) or unread > _READ_UP_TO:
        return view
    return _as_opened(fs, directory, view)


class FirstMessages(NamedTuple):
    """The first messages of a queue."""

    bodies: list[bytes]
    losses: list[SkippedBytes]
    """What could not be read before them, or among them."""


def look_at_first(directory: str, name: str, count: int, *, fs: FileSystem | None = None) -> FirstMessages:
    """Return the first `count` messages, which stay, as the next open would deliver them.

    If a process has the queue open, those that it has received since its last sync come, too. Raises as
    `QueueSnapshot`.
    """
    disk = queue_replay(fs or OsFileSystem(), directory, name).shown_files()
    snapshot = QueueSnapshot(directory, name, fs=disk)
    found = FirstMessages([], [])
    for part in snapshot.ranges(_AT_ONCE):
        with SnapshotReader(directory, name, [part], fs=disk) as reader:
            while len(found.bodies) < count and (columns := reader.columns(_AT_ONCE)) is not None:
                found.bodies.extend(values_of(columns[1])[: count - len(found.bodies)])
            found.losses.extend(reader.losses)
        if len(found.bodies) >= count:
            break
    return found


def _as_opened(fs: FileSystem, directory: str, view: QueueView) -> QueueView:
    """Return it with what the next open finds; as it is if a process has just opened it."""
    lock = QueueFiles(fs, directory, view.name).lock
    opened = partial(Queue, directory, view.name, options=_ANY_SIZE)
    with look_at(fs, lock, lambda there: opened(fs=there)) as found:
        if (queue := found.engine) is None:
            return replace(view, is_exact=False)
        if holder_of(fs, lock)[1] is not False:
            return view
        return replace(view, depth=queue.depth, is_exact=True, read=queue.head, write=queue.tail)


def _add_what_waits(fs: FileSystem, wal: str, sizes: dict[int, int]) -> None:
    """Count what was accepted and not yet written as if it were: the next open would write it."""
    waiting = read_wal(fs, wal)
    if waiting is not None and waiting.position <= sizes.get(waiting.file, -1):
        sizes[waiting.file] = max(sizes[waiting.file], waiting.end)


def _bytes_between(sizes: dict[int, int], start: QueuePosition, end: QueuePosition) -> int:
    if start >= end:
        return 0
    whole = sum(size for number, size in sizes.items() if start.file <= number <= end.file)
    return whole - start.byte


def _problems(
    content: bytes | None,
    metadata: QueueMetadata | None,
    sizes: dict[int, int],
    shorter: list[str],
    unrecorded: int,
) -> list[str]:
    if metadata is None:
        state = "missing" if content is None else "unreadable"
        return [f"the metadata is {state}: the next open takes the positions from the data"]
    found = list(shorter)
    if unrecorded:
        found.append(f"{unrecorded} bytes were written after the last record: the next open counts them")
    if consumed := sum(number < metadata.read.file for number in sizes):
        found.append(f"{consumed} consumed files are still there: the next open removes them")
    return found


def _shorter(metadata: QueueMetadata, sizes: dict[int, int]) -> Iterator[str]:
    """Yield what the metadata says of files that are shorter, or gone."""
    for what, position in (("read", metadata.read), ("written", metadata.write)):
        size = sizes.get(position.file)
        if size is not None and size < position.byte:
            yield f"byte {position.byte} of file {position.file} is recorded as {what}, but it ends at {size}"
    if metadata.read.byte and metadata.read.file not in sizes:
        yield f"file {metadata.read.file}, which is recorded as being read, is gone"
