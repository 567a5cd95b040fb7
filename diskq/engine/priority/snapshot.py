# Snapshots of a store's state. Law: a snapshot is taken in the store's thread, at once, and written in any
# thread, while the state changes; it gets its name when it is durable, and only then the log that it covers
# is removed.

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from diskq._native.priority.crc32_mpeg2 import crc32_mpeg2
from diskq._native.priority.state_codec import (
    SNAPSHOT_HEAD,
    SnapshotHead,
    decode_queue_head,
    decode_snapshot_heads,
    encode_queue_head,
    encode_snapshot_head,
)
from diskq.engine.priority.files import StoreFiles
from diskq.engine.priority.state import State, StoredQueue
from diskq.errors import UnsupportedFormatError
from diskq.storage.barrier import Barrier, opened, write_all
from diskq.storage.fs import FileSystem
from diskq.storage.numbered_files import private_path
from diskq.storage.repairs import keep_copy

__all__ = ["BadSnapshot", "SnapshotStopped", "StateSnapshot", "load_snapshot", "read_head"]

_LARGEST_STATE = 2**31 - 1
_RECORD_HEAD = 20
_COUNT = 4
_CRC = 4
# Bytes that are read and decoded at once, and that are encoded at once: meanwhile no other thread runs.
_PIECE = 256 * 1024
_AT_ONCE = 64 * 1024
# Unsynced bytes of a snapshot at most: a sync of the log meanwhile has to wait for them.
_MOST_UNSYNCED = 4 * 1024 * 1024


class SnapshotStopped(Exception):
    """The snapshot that was being written is no longer wanted."""


class BadSnapshot(Exception):
    """The snapshot cannot be believed. Arguments: the byte, and the reason."""


# --- taking and writing ---------------------------------------------------------------------------


class StateSnapshot:
    """A snapshot that is being written. Made by `PriorityStore.begin_snapshot`."""

    def __init__(
        self,
        fs: FileSystem,
        files: StoreFiles,
        queues: Iterable[StoredQueue],
        *,
        lsn: int,
        term: int,
        document: bool,
        keeps_old: bool,
    ) -> None:
        """Freeze the queues. Raises UnsupportedFormatError if they are too large for the format."""
        self._fs = fs
        self._files = files
        self.lsn = lsn
        """The last record of the log that it covers."""
        self._term = term
        self._document = document
        self._keeps_old = keeps_old  # the old snapshot is unreadable
        self.path = ""
        self._is_stopped = False
        self._heads = [(_head(queue), queue.table) for queue in queues]
        bodies = sum(table.payload_bytes + _RECORD_HEAD * table.stored for _, table in self._heads)
        self.length = _COUNT + bodies + sum(len(head) for head, _ in self._heads)
        """Bytes of the state."""
        if self.length > _LARGEST_STATE:
            raise UnsupportedFormatError(
                files.snapshot, f"a state of {self.length} bytes", f"up to {_LARGEST_STATE} bytes"
            )
        for _, table in self._heads:
            table.freeze()

    def write(self) -> None:
        """Write the snapshot, durably, under a temporary name: in any thread, once.

        Raises OSError, and SnapshotStopped; the file is then removed.
        """
        fs = self._fs
        path = self._files.new_temporary(fs.unique_number())
        try:
            if self._keeps_old:
                self._keep_old()
            with opened(fs, path, write=True, create=True, exclusive=True) as handle:
                self._write_to(handle)
                Barrier(files=(handle,)).execute(fs)
        except (OSError, SnapshotStopped):
            self.path = path
            self.drop()
            raise
        finally:
            self.give_up()
        self.path = path

    def stop(self) -> None:
        """Make `write` end soon, by raising SnapshotStopped. In any thread."""
        self._is_stopped = True

    def _write_to(self, handle: int) -> None:
        head = encode_snapshot_head(self.lsn, self._term, self.length, self._document)
        write_all(self._fs, handle, head, 0)
        at = synced = len(head)
        crc = crc32_mpeg2(b"")
        for piece in self._pieces():
            crc = crc32_mpeg2(piece, crc)
            write_all(self._fs, handle, piece, at)
            at += len(piece)
            if at - synced >= _MOST_UNSYNCED:
                Barrier(files=(handle,)).execute(self._fs)
                synced = at
        assert at == len(head) + self.length
        write_all(self._fs, handle, crc.to_bytes(_CRC, "big"), at)

    def _pieces(self) -> Iterator[bytes]:
        yield len(self._heads).to_bytes(_COUNT, "big")
        for head, table in self._heads:
            yield head
            while piece := table.write_frozen(_AT_ONCE):
                if self._is_stopped:
                    raise SnapshotStopped
                yield piece

    def _keep_old(self) -> None:
        with opened(self._fs, self._files.snapshot) as old:
            keep_copy(self._fs, old, private_path(self._files.root, "tflux.snapshot"))

    def give_up(self) -> None:
        """Release the frozen queues: nothing more is written. Idempotent."""
        heads, self._heads = self._heads, []
        for _, table in heads:
            table.thaw()

    def drop(self) -> None:
        """Give up the snapshot, and remove its file."""
        self.give_up()
        path, self.path = self.path, ""
        if path:
            with contextlib.suppress(OSError):
                Barrier(removals=(path,)).execute(self._fs)

    def installing(self, covered: Iterable[int]) -> Barrier:
        """Return the barrier that gives it its name, and removes the segments of the records `covered`."""
        return Barrier(
            installs=((self.path, self._files.snapshot),),
            removals=tuple(self._files.segment(base) for base in covered),
        )


def _head(queue: StoredQueue) -> bytes:
    return encode_queue_head(
        queue.encoded_name,
        queue.implementation,
        queue.table.last_id,
        queue.max_messages,
        queue.max_message_size,
        queue.priority_range,
        queue.table.stored,
    )


# --- read -----------------------------------------------------------------------------------------


def read_head(fs: FileSystem, handle: int) -> tuple[SnapshotHead, bool] | None:
    """Return the file's head, and True if bytes follow the snapshot; None if the file is empty.

    Verifies the checksum of the state. Raises BadSnapshot, OSError.
    """
    size = fs.size(handle)
    if not size:
        return None
    heads = decode_snapshot_heads(fs.pread(handle, SNAPSHOT_HEAD, 0), size)
    for head in heads:
        crc = crc32_mpeg2(b"")
        end = head.start + head.length
        for at in range(head.start, end, _PIECE):
            crc = crc32_mpeg2(fs.pread(handle, min(_PIECE, end - at), at), crc)
        if head.length >= _COUNT and fs.pread(handle, _CRC, end) == crc.to_bytes(_CRC, "big"):
            return head, size > end + _CRC
    raise BadSnapshot(0, "the checksum disagrees" if heads else "no snapshot's head")


def load_snapshot(fs: FileSystem, path: str, state: State) -> tuple[SnapshotHead, bool] | None:
    """Read the queues of the snapshot at `path` into `state`, and return what `read_head` does.

    None if there is no snapshot. Raises BadSnapshot, UnknownImplementation, OSError; `state` is void then.
    """
    try:
        handle = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        read = read_head(fs, handle)
        if read is not None:
            _load_state(fs, handle, read[0], state)
        return read
    finally:
        fs.close(handle)


def _load_state(fs: FileSystem, handle: int, head: SnapshotHead, state: State) -> None:
    window = _Window(fs, handle, head.start, head.start + head.length)
    try:
        for _ in range(int.from_bytes(window.take(_COUNT), "big")):
            _load_queue(window, state)
    except ValueError as reason:
        raise BadSnapshot(window.at + window.position, str(reason)) from None


def _load_queue(window: _Window, state: State) -> None:
    while (parsed := decode_queue_head(window.data, window.position)) is None:
        window.extend()
    window.position = parsed.end
    table = state.add_from_snapshot(parsed).table
    left = parsed.records
    while left:
        count, window.position = table.load(window.data, window.position, left)
        left -= count
        if left:
            window.extend()
    if not table.sort_loaded():
        raise ValueError("two records of one id")


class _Window:
    """A part of the state in memory, and a position in it."""

    def __init__(self, fs: FileSystem, handle: int, start: int, end: int) -> None:
        self._fs = fs
        self._handle = handle
        self._next = start
        self._end = end
        self.at = start
        self.data = b""
        self.position = 0

    def take(self, size: int) -> bytes:
        """The next bytes. Raises ValueError at the end."""
        while len(self.data) - self.position < size:
            self.extend()
        self.position += size
        return self.data[self.position - size : self.position]

    def extend(self) -> None:
        """Forget what is before the position, and read on. Raises ValueError at the end."""
        if self._next >= self._end:
            raise ValueError("the state ends too early")
        left = self.data[self.position :]
        # A record larger than a piece is read in doubling pieces.
        piece = self._fs.pread(self._handle, min(max(_PIECE, len(left)), self._end - self._next), self._next)
        self.at += self.position
        self._next += len(piece)
        self.data = left + piece
        self.position = 0
        if not piece:
            raise ValueError("the file ends too early")
