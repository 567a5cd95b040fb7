# From a moment to an offset, without an open consumer.

from __future__ import annotations

from datetime import datetime

from diskq.channels.core.event_loops.seam import running_event_loop
from diskq.engine.log.timestamps import as_timestamp
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.replayed import stream_replay
from diskq.engine.stream.time_lookup import TimeLookup
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path

__all__ = ["offset_after", "offset_at_or_after"]


async def offset_after(
    path: AnyPath, partition: int, timestamp: datetime | int, *, fs: FileSystem | None = None
) -> int | None:
    """Return the first offset of a partition, in their order, whose message is later than `timestamp`.

    `timestamp` is an aware datetime or nanoseconds since the Unix epoch. Returns None if no message is later.
    The result is exact, also if timestamps repeat or step back. It takes tens of microseconds on a stream
    that diskq wrote. Another program's stream is read once for it, in a thread, as the redo log is after a
    crash. `Cancelled` changes nothing.

    Raises ValueError for a naive datetime, NotFoundError if there is no such partition,
    UnsupportedFormatError and OSError.
    """
    return await _first_from(path, partition, as_timestamp(timestamp) + 1, fs)


async def offset_at_or_after(
    path: AnyPath, partition: int, timestamp: datetime | int, *, fs: FileSystem | None = None
) -> int | None:
    """Return the first offset of a partition whose message is not earlier than `timestamp`.

    Otherwise as `offset_after`.
    """
    return await _first_from(path, partition, as_timestamp(timestamp), fs)


async def _first_from(path: AnyPath, partition: int, bound: int, fs: FileSystem | None) -> int | None:
    event_loop = running_event_loop()
    await event_loop.checkpoint()
    shown = fs or OsFileSystem()
    replay = stream_replay(shown, as_path(path))
    if replay.is_due:  # after a crash, until a writer has come
        shown = await event_loop.run_in_thread(replay.files_to_read)
    with TimeLookup(shown, StreamFiles(shown, as_path(path)).partition(partition)) as lookup:
        if lookup.is_quick:
            return lookup.offset_at_or_after(bound)
        return await event_loop.run_in_thread(lookup.offset_at_or_after, bound)
