# The targets of conversions, written by the usual engines. Law: messages are written as they come, and synced
# once, at the end.

from __future__ import annotations

import errno
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress

from diskq._native.core.message import NULL_TIMESTAMP
from diskq._native.stream import codec as stream_codec
from diskq.engine.journal.journal import Journal
from diskq.engine.layouts import queue_names
from diskq.engine.priority.state import DEFAULT, StoredQueue
from diskq.engine.priority.store import PriorityQueueInfo, PriorityStore
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.stream.stream import Stream
from diskq.errors import (
    DiskqError,
    FullError,
    MessageSizeError,
)
from diskq.options import (
    LARGEST_PAYLOAD,
    JournalOptions,
    PriorityOptions,
    QueueOptions,
    StreamOptions,
)
from diskq.storage.barrier import Barrier, write_all
from diskq.storage.closing import Closing
from diskq.storage.fs import FileSystem, directory_of
from diskq.storage.numbers import UNBOUNDED
from diskq.tools.convert.field_mapping import FieldMapper, Format
from diskq.tools.entries import EntryBatch
from diskq.tools.json_lines import to_lines
from diskq.tools.stores import stores_at

__all__ = ["LinesOut", "Target", "check_there", "open_target"]

_LARGEST = 2**31 - 1
# No caller waits for a sync before the end.
_A_YEAR = 365 * 86_400.0


class Target(Closing):
    """Writes what a `FieldMapper` returns. `close` syncs everything; `abandon` promises nothing."""

    def admit(self, batch: EntryBatch, mapper: FieldMapper) -> None:
        """Check that the batch can be written after those admitted before. Raises ConversionError if not."""

    @abstractmethod
    def write(self, batch: EntryBatch) -> None:
        """Write a batch. Raises
        DiskFullError, StorageFailedError, OSError: a part may be written then."""

    def abandon(self) -> None:
        """Close the target, and ignore errors."""
        with suppress(DiskqError, OSError):
            self.close()


def open_target(
    fs: FileSystem,
    to: Format,
    path: str,
    *,
    partitions: int | None = None,
    queues: Sequence[PriorityQueueInfo] = (),
    default_queue: str = DEFAULT,
    text: bool = False,
) -> Target:
    """Open the store at `path`, or make it. Raises LockedError, OSError, and as the engines."""
    if to == "nsq":
        return _Queues(fs, path, default_queue)
    if to == "triplet":
        return _Stream(fs, path, partitions)
    if to == "sej":
        return _Journal(fs, path)
    if to == "taskflux":
        return _Store(fs, path, queues)
    return _LinesFile(fs, path, text=text)


def check_there(fs: FileSystem, to: Format, path: str) -> None:
    """Check that a store to append to exists at `path`.

    A directory may get a queue that it does not have yet. Raises FileNotFoundError, and FileExistsError
    for a store of another kind.
    """
    if fs.size_of(path) is None:
        raise FileNotFoundError(errno.ENOENT, "there is nothing to append to", path)
    kinds = {"nsq": "queue", "triplet": "stream", "sej": "journal", "taskflux": "jobs"}
    if to == "jsonl":
        fs.close(fs.open(path, write=True))
        return
    found = {store.kind for store in stores_at(path, fs=fs) if store.path == path}
    if kinds[to] not in found and not (to == "nsq" and not found):
        there = ", ".join(sorted(found)) or "nothing"
        raise FileExistsError(errno.EEXIST, f"no {kinds[to]} is here to append to, but {there}", path)


# --- each of them -------------------------------------------------------------------------------------


def _by_name(batch: EntryBatch) -> Iterator[tuple[str, EntryBatch]]:
    """Yield the messages of each queue, in their order."""
    queues = batch.queues or [DEFAULT] * len(batch)
    names = dict.fromkeys(queues)
    if len(names) == 1:
        yield str(queues[0]), batch
        return
    for name in names:
        yield str(name), batch.chosen([at for at, each in enumerate(queues) if each == name])


class _Queues(Target):
    """The queues in a directory, each opened at its first message."""

    def __init__(self, fs: FileSystem, path: str, default: str) -> None:
        """The queue `default` is made even without a message."""
        self._fs = fs
        self._path = path
        self._default = default
        self._queues: dict[str, Queue] = {}
        self._options = QueueOptions(
            max_message_size=_LARGEST, sync_every=UNBOUNDED, sync_timeout=_A_YEAR, max_unsynced=UNBOUNDED
        )

    def write(self, batch: EntryBatch) -> None:
        for name, part in _by_name(batch):
            self._queue(name).put_many(part.values)

    def _queue(self, name: str) -> Queue:
        if name not in self._queues:
            self._queues[name] = Queue(self._path, name, options=self._options, fs=self._fs)
        return self._queues[name]

    def admit(self, batch: EntryBatch, mapper: FieldMapper) -> None:
        """Lock the queues that exist."""
        for name, _ in _by_name(batch):
            if name in queue_names(self._fs, self._path):
                self._queue(name)

    def close(self) -> None:
        if not queue_names(self._fs, self._path):
            self._queue(self._default)
        self._let_go()

    def abandon(self) -> None:
        with suppress(DiskqError, OSError):
            self._let_go()

    def _let_go(self) -> None:
        queues, self._queues = self._queues, {}
        with ExitStack() as stack:
            for queue in queues.values():
                stack.callback(queue.close)


class _Stream(Target):
    def __init__(self, fs: FileSystem, path: str, partitions: int | None) -> None:
        options = StreamOptions(
            partition_count=partitions,
            max_message_size=UNBOUNDED,
            max_key_size=stream_codec.MAX_KEY,
            sync_every=UNBOUNDED,
            sync_timeout=_A_YEAR,
            max_unsynced=UNBOUNDED,
        )
        self._stream = Stream(path, options=options, fs=fs)
        self._varuint = self._stream.settings.encoding == "varuint"

    @property
    def partition_count(self) -> int:
        return self._stream.partition_count

    def write(self, batch: EntryBatch) -> None:
        assert batch.keys is not None
        assert batch.timestamps is not None
        assert batch.partitions is not None
        parts: dict[int | None, list[tuple[bytes | None, int | None, bytes]]] = {}
        rows = zip(batch.keys, batch.timestamps, batch.values, strict=True)
        if len(set(batch.partitions)) == 1:
            parts[batch.partitions[0]] = list(rows)
        else:
            for partition, row in zip(batch.partitions, rows, strict=True):
                parts.setdefault(partition, []).append(row)
        for partition, messages in parts.items():
            assert partition is not None
            encoded = stream_codec.encode(messages, varuint=self._varuint)  # type: ignore[arg-type]
            self._stream.steps.accept_encoded(partition, encoded.data)
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


class _Journal(Target):
    def __init__(self, fs: FileSystem, path: str) -> None:
        options = JournalOptions(
            max_message_size=_LARGEST, sync_every=UNBOUNDED, sync_timeout=_A_YEAR, max_unsynced=UNBOUNDED
        )
        self._journal = Journal(path, options=options, fs=fs)

    def write(self, batch: EntryBatch) -> None:
        assert batch.keys is not None
        assert batch.types is not None
        times = batch.timestamps or [NULL_TIMESTAMP] * len(batch)
        if None in times:
            times = [NULL_TIMESTAMP if time is None else time for time in times]
        self._journal.append_many(zip(batch.keys, batch.values, times, batch.types, strict=True))  # type: ignore[arg-type]

    def close(self) -> None:
        self._journal.close()


class _Store(Target):
    def __init__(self, fs: FileSystem, path: str, queues: Sequence[PriorityQueueInfo]) -> None:
        options = PriorityOptions(
            max_message_size=LARGEST_PAYLOAD,
            sync_every=UNBOUNDED,
            sync_timeout=_A_YEAR,
            max_unsynced=UNBOUNDED,
        )
        self._store = PriorityStore(path, options=options, fs=fs)
        self._there = {info.name for info in self._store.queues()}
        self._admitted: dict[str, int] = {}
        try:
            for info in queues:
                self._make(info)
        except BaseException:
            self.abandon()
            raise

    def _make(self, info: PriorityQueueInfo) -> None:
        """Make a queue like the source's, if it does not exist."""
        if info.name in self._there:
            return
        self._store.create_queue(
            info.name,
            implementation=info.implementation,  # type: ignore[arg-type]
            max_messages=info.max_messages,
            max_message_size=info.max_message_size,
            priority_range=info.priority_range,
        )
        self._there.add(info.name)

    def _queue(self, name: str) -> StoredQueue:
        if name not in self._there:
            self._there.add(name)
            return self._store.create_queue(name)
        return self._store.queue(name)

    def admit(self, batch: EntryBatch, mapper: FieldMapper) -> None:
        assert batch.priorities is not None
        for name, part in _by_name(batch):
            if name not in self._there:
                continue
            queue = self._store.queue(name)
            self._admitted[name] = self._admitted.get(name, 0) + len(part)
            try:
                queue.check_room(self._admitted[name])
                self._store.steps.checked(queue, part.values, list(part.priorities or ()))  # type: ignore[arg-type]
            except (FullError, MessageSizeError, ValueError) as failure:
                at = self._first_bad(queue, part)
                raise mapper.refuse(
                    part, at, f"{failure}; the queue in the target does not accept it"
                ) from None

    def _first_bad(self, queue: StoredQueue, part: EntryBatch) -> int:
        for at, priority in enumerate(part.priorities or ()):
            try:
                self._store.steps.checked(queue, part.values[at : at + 1], [priority or 0])
            except ValueError:
                return at
        return len(part) - 1

    def write(self, batch: EntryBatch) -> None:
        for name, part in _by_name(batch):
            priorities = part.priorities or ()
            self._store.put_many(self._queue(name), part.values, priorities)  # type: ignore[arg-type]

    def close(self) -> None:
        self._store.close()


class _LinesFile(Target):
    """A file of lines of JSON; lines appended to an existing file are removed again after an error."""

    def __init__(self, fs: FileSystem, path: str, *, text: bool) -> None:
        self._fs = fs
        self._path = path
        self._text = text
        is_new = fs.size_of(path) is None
        self._handle = fs.open(path, write=True, create=True)
        self._start = self._at = fs.size(self._handle)
        self._is_locked = fs.try_lock(self._handle)
        if not self._is_locked:
            self.abandon()
            raise FileExistsError(errno.EEXIST, "another process writes to it", path)
        if not is_new and self._start and fs.pread(self._handle, 1, self._start - 1) != b"\n":
            self._put(b"\n")

    def write(self, batch: EntryBatch) -> None:
        self._put(to_lines(batch, text=self._text))

    def _put(self, data: bytes) -> None:
        write_all(self._fs, self._handle, data, self._at)
        self._at += len(data)

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            above = directory_of(self._path)
            Barrier(files=(handle,), directories=(above,), closing=(handle,)).execute(self._fs)

    def abandon(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            try:
                if self._is_locked:
                    self._fs.truncate(handle, self._start)
            finally:
                self._fs.close(handle)


class LinesOut(Target):
    """Lines of JSON that are passed to a function, and cannot be taken back."""

    def __init__(self, take: Callable[[bytes], object], *, text: bool) -> None:
        self._take = take
        self._text = text

    def write(self, batch: EntryBatch) -> None:
        self._take(to_lines(batch, text=self._text))

    def close(self) -> None:
        pass
