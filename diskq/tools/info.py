# Kind, size, age and owner of a store. Law: nothing is locked or changed, and no message is read without
# need: a figure that would take reading everything is given as far as it is known, and marked as such.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader import JournalReader
from diskq.engine.journal.reader_offset import read_journal_offsets
from diskq.engine.log.recovery_points import RecoveryPoints, read_points
from diskq.engine.priority.files import StoreFiles
from diskq.engine.priority.view import try_opening
from diskq.engine.queue.files import QueueFiles
from diskq.engine.spool.files import DEAD, SPOOL
from diskq.engine.stream.files import PartitionFiles, StreamFiles
from diskq.engine.stream.groups import groups
from diskq.engine.stream.settings import StreamSettings, read_settings
from diskq.engine.stream.statistics import stream_statistics
from diskq.engine.stream.stream import Stream
from diskq.errors import NotFoundError
from diskq.storage.fs import FileSystem, OsFileSystem, base_name, join
from diskq.storage.lock import holder_of
from diskq.storage.numbered_files import set_aside_from
from diskq.tools.holders import owner_of, writer_of
from diskq.tools.look import look_at
from diskq.tools.redo_logs import RedoLogInfo, RedoLogs
from diskq.tools.stores import Kind, Store
from diskq.tools.view.queue import QueueView, look, queue_names
from diskq.tools.view.spool import look_at_spool

__all__ = ["FORMATS", "Info", "info"]

FORMATS: Mapping[Kind, str] = MappingProxyType(
    {"queue": "nsq", "spool": "nsq", "stream": "triplet", "journal": "sej", "jobs": "taskflux"}
)
"""The file format of each kind."""

# A priority store with more bytes than this is not read for `info`, nor what another one has after its last
# recovery point.
_READ_UP_TO = 64 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Info:
    """A store at one moment, as its files show it. Sizes in bytes, times in nanoseconds since 1970."""

    store: Store
    format: str
    messages: int | None = None
    """None: not known without reading everything."""
    is_exact: bool = True
    """True if the number is exact; else it is the least number."""
    bytes: int = 0
    """Bytes of all files, diskq's own ones included."""
    files: int = 0
    segments: int = 0
    """Files with messages."""
    oldest_ns: int | None = None
    newest_ns: int | None = None
    times_of: str = "messages"
    """The source of these times: "messages", or, if they have none, "files": the time of the last write."""
    holder: str | None = None
    """The process that has it open; None: none, as far as it is known."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts that only its kind has."""
    redo_logs: list[RedoLogInfo] = field(default_factory=list)
    """The redo logs that exist, and have not been emptied by a close."""
    leftovers: list[str] = field(default_factory=list)
    """Files of bytes that could not be read, kept aside, and what a crash left."""
    next_open: list[str] = field(default_factory=list)
    """What the next open would find and repair; empty: nothing."""


def info(store: Store, *, fs: FileSystem | None = None) -> Info:
    """Look at a store, which may be in use.

    Raises OSError; UnsupportedFormatError and CorruptionError if its settings, its metadata or its redo log
    cannot be read.
    """
    logs = RedoLogs(fs or OsFileSystem(), store)
    found = Info(store=store, format=FORMATS[store.kind], redo_logs=logs.found)
    _LOOKS[store.kind](logs.fs, store, found)
    found.next_open += (f"{repair.path}: {repair.reason}" for repair in logs.repairs)
    return found


# --- queues and spools ----------------------------------------------------------------------------


def _look_at_queue(fs: FileSystem, store: Store, found: Info) -> None:
    view = look(store.path, store.name, fs=fs)
    _take_queue(fs, store, view, found)
    found.messages, found.is_exact = view.depth, view.is_exact
    found.facts = _places(view)


def _places(view: QueueView) -> dict[str, Any]:
    return {
        "read_at": f"{view.read.file}:{view.read.byte}",
        "write_at": f"{view.write.file}:{view.write.byte}",
    }


def _take_queue(fs: FileSystem, store: Store, view: QueueView, found: Info) -> None:
    files = QueueFiles(fs, store.path, view.name)
    beside = [files.metadata, files.lock, files.wal, files.redo, *map(files.ack_log, _ack_logs(fs, files))]
    beside += map(files.checksum_file, files.checksum_files())
    segments = list(map(files.data, files.numbers()))
    _count_files(fs, [*segments, *beside], found)
    found.segments += len(segments)
    _take_ages(fs, segments, found)
    found.holder = found.holder or _held(view.is_open, str(view.holder))
    found.leftovers += view.aside
    found.next_open += view.problems


def _ack_logs(fs: FileSystem, files: QueueFiles) -> list[int]:
    return [] if fs.size_of(files.private) is None else files.ack_logs()


def _look_at_spool(fs: FileSystem, store: Store, found: Info) -> None:
    view = look_at_spool(store.path, fs=fs)
    for name in (SPOOL, DEAD):
        if name in queue_names(store.path, fs=fs):
            queue = look(store.path, name, fs=fs)
            _take_queue(fs, store, queue, found)
    status = view.status
    found.messages, found.is_exact = status.depth, view.is_exact
    found.facts = {
        "dead_letters": status.dead_letters,
        "is_delivering": view.is_at_work,
        "is_paused": status.is_paused,
        "last_error": status.last_error,
        **_places(view.queue),
    }


# --- streams --------------------------------------------------------------------------------------


def _look_at_stream(fs: FileSystem, store: Store, found: Info) -> None:
    files = StreamFiles(fs, store.path)
    settings = read_settings(fs, files) or StreamSettings()
    with _as_left(fs, files, lambda there: Stream(store.path, fs=there)) as there:
        statistics = stream_statistics(there, StreamFiles(there, store.path))
    _count_files(fs, _below(fs, store.path), found)
    found.messages = statistics.messages
    found.segments = sum(partition.segments for partition in statistics.partitions)
    times = [p.oldest_timestamp_ns for p in statistics.partitions if p.oldest_timestamp_ns is not None]
    found.oldest_ns = min(times, default=None)
    times = [p.newest_timestamp_ns for p in statistics.partitions if p.newest_timestamp_ns is not None]
    found.newest_ns = max(times, default=None)
    found.holder = writer_of(fs, files)
    following = {partition.partition: partition.next_offset for partition in statistics.partitions}
    found.facts = {
        "partitions": len(statistics.partitions),
        "encoding": settings.encoding,
        "segment_size": settings.roll_size,
        "offsets": {
            str(partition.partition): [partition.oldest_offset, partition.next_offset]
            for partition in statistics.partitions
        },
        "groups": {
            group.name: {
                "offsets": {str(partition): offset for partition, offset in group.offsets.items()},
                "behind": sum(
                    max(0, following.get(partition, 0) - (0 if offset is None else offset + 1))
                    for partition, offset in group.offsets.items()
                ),
            }
            for group in groups(fs, files)
        },
    }
    found.leftovers = _kept(fs, store.path)
    if fs.size_of(files.intent) is not None:
        found.next_open.append("a transaction is pending: it is finished or rolled back")
    if found.holder is None and fs.size_of(files.owner) is not None:
        found.next_open.append("the owner file of a producer that died exists: it is taken over")


# --- journals -------------------------------------------------------------------------------------


def _look_at_journal(fs: FileSystem, store: Store, found: Info) -> None:
    files = JournalFiles(fs, store.path)
    with (
        _as_left(fs, files, lambda there: Journal(store.path, fs=there)) as there,
        JournalReader(store.path, fs=there) as reader,
    ):
        bases = reader.files.bases()
        first, following = reader.first_offset(), reader.next_offset()
        reader.seek(first)
        oldest = reader.read()
        reader.seek(following)
        newest = reader.read_back(1)
    _count_files(fs, _below(fs, store.path), found)
    found.segments = len(bases)
    found.messages = following - first
    found.oldest_ns = None if oldest is None else oldest.timestamp_ns
    found.newest_ns = newest[0].timestamp_ns if newest else None
    holder, is_held = holder_of(fs, files.lock)
    found.holder = _held(
        is_held, "sej, or another program" if holder is None or not holder.pid else str(holder)
    )
    readers = read_journal_offsets(store.path, fs=fs)
    found.facts = {
        "offsets": [first, following],
        "readers": {each.name: each.offset for each in readers},
    }
    found.leftovers = _kept(fs, store.path)
    found.next_open = [
        f"reader {each.name}: {each.repair.reason}" for each in readers if each.repair is not None
    ]


# --- jobs -----------------------------------------------------------------------------------------


def _look_at_priority(fs: FileSystem, store: Store, found: Info) -> None:
    files = StoreFiles.existing(fs, store.path)
    segments = [files.segment(base) for base in files.segments()]
    _count_files(fs, _below(fs, files.root), found)
    found.segments = len(segments)
    _take_ages(fs, [*segments, *([files.snapshot] if fs.size_of(files.snapshot) else [])], found)
    owner = owner_of(store.path, fs=fs)
    found.holder = _held(owner.is_open, str(owner))
    found.facts["files_in"] = files.root
    found.leftovers = _kept(fs, files.root)
    size = sum(fs.size_of(path) or 0 for path in [*segments, files.snapshot])
    if size > _READ_UP_TO:
        found.facts["not_read"] = f"{size} bytes of commands and snapshot: diskq priority queues reads them"
        return
    opening = try_opening(store.path, fs=fs)
    found.facts["next_open"] = opening.outcome
    if opening.refusal is not None:
        found.next_open.append(str(opening.refusal))
        return
    found.messages = sum(queue.stored for queue in opening.queues)
    found.facts["layout"] = opening.layout
    found.facts["queues"] = {queue.name: queue.stored for queue in opening.queues}
    found.next_open += map(str, opening.repairs)


# --- after a kill ---------------------------------------------------------------------------------


@contextmanager
def _as_left(
    fs: FileSystem,
    files: StreamFiles | JournalFiles,
    opened: Callable[[FileSystem], AbstractContextManager[object]],
) -> Iterator[FileSystem]:
    """Return the files of a stream or journal that was not closed as the next open leaves them.

    The files themselves are returned if it was closed, diskq never had it, a process may have it open, the
    open is refused, or would look at too many bytes.
    """
    points = read_points(fs, files)
    was_closed = points.is_closed and bool(points.partitions) and not fs.size_of(files.redo)
    was_never_ours = fs.size_of(files.lock) is None
    if was_closed or was_never_ours or _unrecorded(fs, files, points) > _READ_UP_TO:
        yield fs
        return
    with look_at(fs, files.lock, opened) as look:
        yield look.fs


def _unrecorded(fs: FileSystem, files: StreamFiles | JournalFiles, points: RecoveryPoints) -> int:
    """Return how many bytes of data come after the recovery points."""
    logs: dict[int, PartitionFiles | JournalFiles] = {}
    if isinstance(files, JournalFiles):
        logs[0] = files
    else:
        logs |= {index: files.partition(index) for index in files.partitions()}
    found = 0
    for index, log in logs.items():
        point = points.partitions.get(index)
        base, end = (0, 0) if point is None else (point.base, point.end)
        with contextlib.suppress(NotFoundError):
            found += sum(fs.size_of(log.data(each)) or 0 for each in log.bases() if each >= base) - end
    return found


# --- files ----------------------------------------------------------------------------------------


def _held(is_open: bool | None, holder: str) -> str | None:
    if is_open is None:
        return f"perhaps {holder}"
    return holder if is_open else None


def _below(fs: FileSystem, path: str) -> Iterator[str]:
    """Yield all files in the directory and below it."""
    try:
        names = fs.list_directory(path)
    except NotADirectoryError:
        yield path
        return
    except FileNotFoundError:
        return  # removed meanwhile
    for name in names:
        yield from _below(fs, join(path, name))


def _count_files(fs: FileSystem, paths: Iterator[str] | list[str], found: Info) -> None:
    for path in paths:
        if (size := fs.size_of(path)) is not None:
            found.files += 1
            found.bytes += size


def _take_ages(fs: FileSystem, paths: list[str], found: Info) -> None:
    """Take the times at which files were written last, if messages have no times."""
    found.times_of = "files"
    stamps = [stamp.modified_ns for path in paths if (stamp := fs.stamp_of(path)) is not None]
    stamps += [each for each in (found.oldest_ns, found.newest_ns) if each is not None]
    found.oldest_ns, found.newest_ns = min(stamps, default=None), max(stamps, default=None)


def _kept(fs: FileSystem, path: str) -> list[str]:
    """Return the names of the files that repairs set aside."""
    return sorted(each for each in _below(fs, path) if set_aside_from(base_name(each)) is not None)


_LOOKS: Mapping[Kind, Callable[[FileSystem, Store, Info], None]] = MappingProxyType(
    {
        "queue": _look_at_queue,
        "spool": _look_at_spool,
        "stream": _look_at_stream,
        "journal": _look_at_journal,
        "jobs": _look_at_priority,
    }
)
