# Reads the messages of a store for a conversion. Law: no lock is taken, no file is changed, no message is
# consumed. What is read is fixed when the source is opened: reading again gives the same messages, whatever
# was written meanwhile. What a killed writer has left in its write-ahead log is part of it.
#
# Messages come in batches, by column, and only one batch is in memory; but a store of priority queues keeps
# its whole state in memory. A queue is read from its head on, a stream partition by partition, a journal by
# offset, a priority store queue by queue in the order of delivery.

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from diskq._native.core.message import JournalMessage, Message
from diskq.engine.journal.reader import JournalReader
from diskq.engine.journal.time_lookup import JournalTimes
from diskq.engine.log.reader import LogReader, SkippedBytes
from diskq.engine.priority.store import PriorityQueueInfo
from diskq.engine.priority.view import StoreLook, look_at_store
from diskq.engine.queue.snapshot import QueueSnapshot, SnapshotReader, values_of
from diskq.engine.spool.files import DEAD, SPOOL
from diskq.engine.stream.reader import ReadableStream
from diskq.engine.stream.time_lookup import TimeLookup
from diskq.errors import NotFoundError, QueueMovedError
from diskq.storage.closing import Closing
from diskq.storage.fs import FileSystem, OsFileSystem
from diskq.storage.repairs import Repair
from diskq.tools.entries import Entry, EntryBatch
from diskq.tools.json_lines import read_lines
from diskq.tools.last_slice import with_last_slice
from diskq.tools.stores import Store

__all__ = [
    "FIELDS",
    "LinesFile",
    "MessageSource",
    "Selection",
    "Source",
    "entries",
    "kind_of",
    "open_reading",
]

M = TypeVar("M", Message, JournalMessage)

_MANY = 4096
_BYTES = 1024 * 1024


class LinesFile(NamedTuple):
    """A file of messages as lines of JSON (json_lines.py)."""

    path: str
    label: str = ""
    """Its name in texts; empty: its path."""

    def __str__(self) -> str:
        return self.label or f"JSON lines {self.path}"


Source = Store | LinesFile

FIELDS: dict[str, frozenset[str]] = {
    "queue": frozenset({"queue"}),
    "spool": frozenset({"queue"}),
    "stream": frozenset({"key", "timestamp_ns", "partition", "offset"}),
    "journal": frozenset({"key", "timestamp_ns", "type", "offset"}),
    "jobs": frozenset({"priority", "queue", "id"}),
    "lines": frozenset(Entry._fields) - {"value"},
}
"""The fields that messages of each kind have, besides their value; messages of lines may have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The messages that are wanted. Times are nanoseconds since 1970; None bounds nothing."""

    since: int | None = None
    """From this time on; excludes messages without a time."""
    until: int | None = None
    """Before this time; excludes messages without a time."""
    start: int | None = None
    """From this offset on, in each partition."""
    end: int | None = None
    """Up to and including this offset, in each partition."""
    max_messages: int | None = None
    """Up to this many messages, the first ones."""
    queues: tuple[str, ...] = ()
    """Only messages of these queues; (): of all."""

    def check(self, source: Source) -> None:
        """Raise ValueError if it selects by fields that the messages of `source` do not have."""
        kind = kind_of(source)
        has = FIELDS[kind]
        if "timestamp_ns" not in has and (self.since, self.until) != (None, None):
            raise ValueError(
                f"{source}: its messages have no times: since and until are for streams, journals"
            )
        if "offset" not in has and (self.start, self.end) != (None, None):
            raise ValueError(f"{source}: its messages have no offsets: choose their number with a limit")
        if "queue" not in has and self.queues:
            raise ValueError(f"{source}: it has no queues to choose from")


_ALL = Selection()


def kind_of(source: Source) -> str:
    return "lines" if isinstance(source, LinesFile) else source.kind


class MessageSource(Closing):
    """The messages that a store had when this was made: `batches` may be called repeatedly."""

    def __init__(self, source: Source, fs: FileSystem) -> None:
        self.source = source
        self.fs = fs
        self.losses: list[SkippedBytes] = []
        """The losses of the last `batches`, in order."""

    @property
    def fields(self) -> frozenset[str]:
        """The fields that its messages may have, besides their value."""
        return FIELDS[kind_of(self.source)]

    @property
    def queues(self) -> Sequence[PriorityQueueInfo]:
        """The queues of a priority store, and what they allow."""
        return ()

    @property
    def partitions(self) -> int | None:
        """The number of partitions of a stream, else None."""
        return None

    @property
    def total(self) -> int | None:
        """The largest possible number of messages; None: not known."""
        return None

    @abstractmethod
    def batches(self) -> Iterator[EntryBatch]:
        """Yield all messages in order, from the first one on. Only one call may be in progress at a time.

        Raises DiskqError and OSError; QueueMovedError and OffsetOutOfRangeError if messages were consumed or
        removed meanwhile.
        """

    def close(self) -> None:
        """Idempotent."""


def open_reading(
    source: Source, selection: Selection = _ALL, *, fs: FileSystem | None = None
) -> MessageSource:
    """Open the messages that `source` holds now and `selection` wants. A spool has two queues.

    Raises ValueError for a selection by fields that the messages do not have, NotFoundError, and as
    `MessageSource.batches`.
    """
    disk = fs or OsFileSystem()
    selection.check(source)
    opened = _open(source, selection, disk)
    is_cut = (selection.since, selection.until, selection.max_messages) != (None, None, None)
    is_cut = is_cut or (isinstance(source, LinesFile) and selection != _ALL)
    return _Selected(opened, selection) if is_cut else opened


def _open(source: Source, selection: Selection, fs: FileSystem) -> MessageSource:
    if isinstance(source, LinesFile):
        return _LinesReading(source, fs)
    if source.kind == "stream":
        return _StreamReading(source, selection, fs)
    if source.kind == "journal":
        return _JournalReading(source, selection, fs)
    if source.kind == "jobs":
        return _StoreReading(source, selection, fs)
    names = (SPOOL, DEAD) if source.kind == "spool" else (source.name,)
    wanted = [name for name in names if not selection.queues or name in selection.queues]
    if selection.queues and not wanted:
        raise NotFoundError("priority queue", source.path, f"there is no queue {selection.queues[0]!r}")
    return _QueueReading(source, wanted, fs)


def entries(
    source: Source,
    selection: Selection = _ALL,
    *,
    fs: FileSystem | None = None,
    losses: list[SkippedBytes] | None = None,
) -> Iterator[Entry]:
    """Yield the messages of `source` one by one. Unreadable messages are added to `losses` at the end.

    Raises as `open_reading`.
    """
    with open_reading(source, selection, fs=fs) as reading:
        for batch in reading.batches():
            yield from batch.entries()
        if losses is not None:
            losses += reading.losses


# --- queues ---------------------------------------------------------------------------------------


class _QueueReading(MessageSource):
    """One or several queues, read one after the other."""

    def __init__(self, source: Store, names: Sequence[str], fs: FileSystem) -> None:
        super().__init__(source, fs)
        self._path = source.path
        with ExitStack() as opened:
            self._disk, self._repairs = opened.enter_context(with_last_slice(fs, source))
            snapshots = [(name, QueueSnapshot(source.path, name, fs=self._disk)) for name in names]
            self._plans = [(name, list(chain.from_iterable(its.plan()))) for name, its in snapshots]
            found = chain.from_iterable(its.repairs for _, its in snapshots)
            self._gaps = [_as_gap(repair) for repair in found if repair.records != 0]
            self._opened = opened.pop_all()

    @property
    def total(self) -> int:
        return sum(each.records for _, ranges in self._plans for each in ranges)

    def batches(self) -> Iterator[EntryBatch]:
        self.losses = list(self._gaps)
        for name, ranges in self._plans:
            with SnapshotReader(self._path, name, ranges, fs=self._disk) as reader:
                while (found := reader.columns(_BYTES)) is not None:
                    values = values_of(found[1])
                    yield EntryBatch(values=values, queues=[name] * len(values))
                self.losses += reader.losses
        self.losses += _unmentioned(self._repairs, self.losses)

    def close(self) -> None:
        self._opened.close()


def _as_gap(repair: Repair) -> SkippedBytes:
    return SkippedBytes(
        path=repair.path,
        start=repair.kept,
        end=repair.kept + repair.dropped,
        offset=0,
        count=repair.records or 0,
        reason=repair.reason,
    )


# --- streams and journals -------------------------------------------------------------------------


class _StreamReading(MessageSource):
    def __init__(self, source: Store, selection: Selection, fs: FileSystem) -> None:
        super().__init__(source, fs)
        with ExitStack() as opened:
            disk, self._repairs = opened.enter_context(with_last_slice(fs, source))
            self._look_at(ReadableStream(source.path, fs=disk), selection)
            self._opened = opened.pop_all()

    def _look_at(self, stream: ReadableStream, selection: Selection) -> None:
        self._stream = stream
        self._bounds: list[tuple[int, int, int]] = []
        self._partitions = self._stream.partitions()
        for partition in self._partitions:
            with self._stream.open(partition) as reader:
                end = reader.next_offset()
                start = max(reader.first_offset(), selection.start or 0)
            if selection.end is not None:
                end = min(end, selection.end + 1)
            if selection.since is not None:
                files = self._stream.files.partition(partition)
                with TimeLookup(self._stream.fs, files) as lookup:
                    found = lookup.offset_at_or_after(selection.since)
                start = end if found is None else max(start, found)
            if start < end:
                self._bounds.append((partition, start, end))

    @property
    def partitions(self) -> int:
        return max(self._partitions, default=-1) + 1

    @property
    def total(self) -> int:
        return sum(end - start for _, start, end in self._bounds)

    def batches(self) -> Iterator[EntryBatch]:
        self.losses = []
        for partition, start, end in self._bounds:
            with self._stream.open(partition) as reader:
                reader.seek(start)
                for messages in _taken(reader, end):
                    yield EntryBatch(
                        values=[each.value for each in messages],
                        keys=[each.key for each in messages],
                        timestamps=[each.timestamp_ns for each in messages],
                        partitions=[partition] * len(messages),
                        offsets=[each.offset for each in messages],
                    )
                self.losses += (gap for gap in reader.losses if gap.offset < end)
        self.losses += _unmentioned(self._repairs, self.losses)

    def close(self) -> None:
        self._opened.close()


def _unmentioned(repairs: Iterable[Repair], losses: Sequence[SkippedBytes]) -> list[SkippedBytes]:
    """Return what an open found missing, and a reader did not: a reader skips what stays in its place."""
    gaps = [_as_gap(repair) for repair in repairs if repair.records != 0]
    return [
        gap
        for gap in gaps
        if not any(gap.path == it.path and gap.start <= it.end and it.start <= gap.end for it in losses)
    ]


def _taken(reader: LogReader[M, Any, Any], end: int) -> Iterator[list[M]]:
    """Yield the messages of a log before offset `end`, in batches; losses may make it step over `end`."""
    while reader.position < end:
        found = reader.read_many(min(_MANY, end - reader.position), max_bytes=_BYTES)
        if not found:
            break
        yield [each for each in found if each.offset < end] if reader.losses else found


class _JournalReading(MessageSource):
    def __init__(self, source: Store, selection: Selection, fs: FileSystem) -> None:
        super().__init__(source, fs)
        self._path = source.path
        with ExitStack() as opened:
            self._disk, self._repairs = opened.enter_context(with_last_slice(fs, source))
            self._look_at(selection)
            self._opened = opened.pop_all()

    def _look_at(self, selection: Selection) -> None:
        with JournalReader(self._path, fs=self._disk) as reader:
            self._end = reader.next_offset()
            self._start = max(reader.first_offset(), selection.start or 0)
        if selection.end is not None:
            self._end = min(self._end, selection.end + 1)
        if selection.since is not None:
            with JournalTimes(self._path, fs=self._disk) as times:
                found = times.offset_at_or_after(selection.since)
            self._start = self._end if found is None else max(self._start, found)

    @property
    def total(self) -> int:
        return max(0, self._end - self._start)

    def batches(self) -> Iterator[EntryBatch]:
        self.losses = []
        end = self._end
        if self._start < end:
            with JournalReader(self._path, fs=self._disk) as reader:
                reader.seek(self._start)
                for messages in _taken(reader, end):
                    yield EntryBatch(
                        values=[each.value for each in messages],
                        keys=[each.key for each in messages],
                        timestamps=[each.timestamp_ns for each in messages],
                        types=[each.type for each in messages],
                        offsets=[each.offset for each in messages],
                    )
                self.losses += (gap for gap in reader.losses if gap.offset < end)
        self.losses += _unmentioned(self._repairs, self.losses)

    def close(self) -> None:
        self._opened.close()


# --- stores ---------------------------------------------------------------------------------------


class _StoreReading(MessageSource):
    def __init__(self, source: Store, selection: Selection, fs: FileSystem) -> None:
        super().__init__(source, fs)
        self._path = source.path
        look: StoreLook | None = look_at_store(source.path, fs=fs)
        assert look is not None
        self._look: StoreLook | None = look
        self._lsn = look.lsn
        wanted = selection.queues
        for name in wanted:
            if name not in look.queues:
                raise NotFoundError("priority queue", source.path, f"there is no queue {name!r}")
        self._infos = [info for info in look.infos() if not wanted or info.name in wanted]

    @property
    def queues(self) -> Sequence[PriorityQueueInfo]:
        return self._infos

    @property
    def total(self) -> int:
        return sum(info.stored for info in self._infos)

    def batches(self) -> Iterator[EntryBatch]:
        look, self._look = self._look, None
        if look is None:
            look = look_at_store(self._path, fs=self.fs, until=self._lsn)
            if look.lsn != self._lsn:
                reason = "a snapshot was taken meanwhile: the store's earlier state cannot be read any more"
                raise QueueMovedError(self._path, reason)
        for info in self._infos:
            table = look.queues[info.name].table
            while records := table.take(_MANY, _BYTES):
                yield EntryBatch(
                    values=[each.body for each in records],
                    priorities=[each.priority for each in records],
                    queues=[info.name] * len(records),
                    ids=[each.id for each in records],
                )


# --- lines, and selections ------------------------------------------------------------------------


class _LinesReading(MessageSource):
    def __init__(self, source: LinesFile, fs: FileSystem) -> None:
        super().__init__(source, fs)
        self._path = source.path
        fs.close(fs.open(source.path))

    def batches(self) -> Iterator[EntryBatch]:
        return read_lines(self._path, fs=self.fs, label=str(self.source))


class _Selected(MessageSource):
    """The wanted messages of another source."""

    def __init__(self, inner: MessageSource, selection: Selection) -> None:
        super().__init__(inner.source, inner.fs)
        self._inner = inner
        self._selection = selection

    @property
    def queues(self) -> Sequence[PriorityQueueInfo]:
        return self._inner.queues

    @property
    def partitions(self) -> int | None:
        return self._inner.partitions

    @property
    def total(self) -> int | None:
        counts = [count for count in (self._inner.total, self._selection.max_messages) if count is not None]
        return min(counts, default=None)

    def close(self) -> None:
        self._inner.close()

    def batches(self) -> Iterator[EntryBatch]:
        left = self._selection.max_messages
        for batch in self._inner.batches():
            found = self._wanted(batch)
            if left is not None:
                found = found.cut(0, left) if len(found) > left else found
                left -= len(found)
            if len(found):
                yield found
            if left == 0:
                break
        self.losses = self._inner.losses

    def _wanted(self, batch: EntryBatch) -> EntryBatch:
        wanted = self._selection
        places: Iterable[int] = range(len(batch))
        if wanted.since is not None or wanted.until is not None:
            times = batch.timestamps or [None] * len(batch)
            since = -(2**63) if wanted.since is None else wanted.since
            until = 2**63 if wanted.until is None else wanted.until
            places = [at for at in places if (time := times[at]) is not None and since <= time < until]
        if isinstance(self.source, LinesFile):
            places = _among(batch, places, wanted)
        return batch.chosen(list(places))


def _among(batch: EntryBatch, places: Iterable[int], wanted: Selection) -> Iterable[int]:
    """Yield the places that are wanted. Lines may have an offset and a queue, or none."""
    if wanted.queues:
        queues = batch.queues or [None] * len(batch)
        places = [at for at in places if queues[at] in wanted.queues]
    if (wanted.start, wanted.end) != (None, None):
        start, end = wanted.start or 0, 2**63 if wanted.end is None else wanted.end
        offsets = batch.offsets or [None] * len(batch)
        places = [at for at in places if (offset := offsets[at]) is not None and start <= offset < end]
    return places
