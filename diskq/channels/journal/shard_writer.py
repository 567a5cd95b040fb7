# Several journals written as one: each message goes to the journal that its key belongs to.
#
# A task holds each open journal open. A send waits for its journal, which is opened when it is first needed,
# and synced and closed when another journal needs its place. Law: `Cancelled` means that nothing was sent.

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Unpack

import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.core.event_loops.seam import EventLoop, running_event_loop
from diskq.channels.core.opening import Opening
from diskq.channels.core.own_thread import OwnThread
from diskq.channels.core.waiting_line import NOTHING, Line
from diskq.channels.journal.writer import JournalWriter, JournalWriterStatistics, open_journal
from diskq.engine.journal.journal import Item, Key, Value, When
from diskq.engine.journal.shards import ShardSet, key_hash
from diskq.keywords import JournalKeywords
from diskq.messages import Position
from diskq.options import Durability, JournalOptions, chosen_options
from diskq.storage.callbacks import check_plain
from diskq.storage.fs import AnyPath, FileSystem, as_path
from diskq.storage.lock import checked_wait
from diskq.storage.log_events import Log

__all__ = ["JournalShardWriter", "open_shards"]

log = Log("journal")


class _ShardPlace:
    """One journal that is being opened, is open, or is being closed."""

    def __init__(self, event_loop: EventLoop) -> None:
        self.is_open = event_loop.event()
        self.is_left = event_loop.event()  # it is to be closed
        self.is_over = event_loop.event()
        self.users = 0
        self.writer: JournalWriter | None = None
        self.failure: Exception | None = None  # why it could not be opened


class JournalShardWriter:
    """Sends each message to the journal of its key. Made by `open_shards`. Any number of tasks may send."""

    def __init__(
        self, loop: ShardLoop, shards: ShardSet, hash: Callable[[bytes], int], max_open: int
    ) -> None:
        self._loop = loop
        self._shards = shards
        self._hash = hash
        self._max_open = max_open
        self._places = loop.places
        self._own_thread = OwnThread(loop.title)
        self._is_closed = False

    def shard_of(self, key: Key) -> int:
        """Return the number of the shard that messages with this key go to."""
        data = key.encode() if isinstance(key, str) else key or b""
        return self._hash(data) & self._shards.mask

    @enable_ki_protection
    async def send(
        self,
        value: Value,
        key: Key = None,
        timestamp: When = None,
        type: int = 0,
        *,
        durability: Durability | None = None,
    ) -> Position:
        """Add a message to its key's journal; returns the shard, and the offset there.

        As `JournalWriter.send`. It also waits until its journal is open; if `max_open` journals are open, it
        waits for one without senders, which is closed. `Cancelled` means: nothing was sent. Raises the errors
        of `open_journal`, for example LockedError: nothing was sent.
        """
        async with self._using(self.shard_of(key)) as (shard, writer):
            offset = await writer.send(value, key, timestamp, type, durability=durability)
            return Position(shard, offset)

    @enable_ki_protection
    async def send_many(
        self, messages: Iterable[Item], *, durability: Durability | None = None
    ) -> dict[int, range]:
        """Add messages, each shard's in order. Returns their offsets, by shard.

        Items are as in `JournalWriter.send_many`. `Cancelled` means that none is in: after the first
        journal's messages are in, the call is not cancelled. If a later journal raises, the messages sent
        before are in.
        """
        groups: dict[int, list[Item]] = {}
        for item in messages:
            key = item[0] if isinstance(item, tuple) else None
            groups.setdefault(self.shard_of(key), []).append(item)
        offsets: dict[int, range] = {}
        await self._loop.event_loop.checkpoint_if_cancelled()
        for index, group in sorted(groups.items()):
            send = partial(self._send_group, index, group, durability)
            offsets[index] = await (self._loop.event_loop.shielded(send) if offsets else send())
        return offsets

    async def _send_group(self, index: int, group: list[Item], durability: Durability | None) -> range:
        async with self._using(index) as (_, writer):
            return await writer.send_many(group, durability=durability)

    async def sync(self) -> None:
        """Return when all messages sent are on stable storage.

        Raises trio.BrokenResourceError if a disk failed, and DiskFullError, also for journals that were
        closed meanwhile. `Cancelled` means: some journals may not be synced; the messages stay in.
        """
        self._check()
        await self._loop.event_loop.checkpoint()
        for index in list(self._places):
            if index in self._places:
                async with self._using(index) as (_, writer):
                    await writer.sync()
        self._loop.check_end()

    def statistics(self) -> dict[int, JournalWriterStatistics]:
        """Return the figures of each open journal, by its number. Cheap, and from any thread."""
        writers = [(index, place.writer) for index, place in sorted(self._places.items())]
        return {index: writer.statistics() for index, writer in writers if writer is not None}

    # --- opening journals -------------------------------------------------------------------------

    @asynccontextmanager
    async def _using(self, index: int) -> AsyncIterator[tuple[int, JournalWriter]]:
        place = await self._find(index)
        place.users += 1
        try:
            await place.is_open.wait()
            if place.failure is not None:
                raise place.failure
            assert place.writer is not None
            yield index, place.writer
        finally:
            place.users -= 1
            if not place.users:
                self._loop.wake_waiting()

    async def _find(self, index: int) -> _ShardPlace:
        while True:
            self._check()
            place = self._places.get(index)
            if place is not None and not place.is_left.is_set():
                self._places.move_to_end(index)
                return place
            if place is not None:
                await place.is_over.wait()  # it has the lock until then
            elif len(self._places) < self._max_open:
                return self._loop.open(index)
            else:
                await self._make_room()

    async def _make_room(self) -> None:
        leaving = [place for place in self._places.values() if place.is_left.is_set()]
        idle = [place for place in self._places.values() if not place.users]
        if leaving:
            await leaving[0].is_over.wait()
        elif idle:
            idle[0].is_left.set()
            await idle[0].is_over.wait()
        else:
            await self._loop.room.wait(None)

    def _check(self) -> None:
        self._own_thread.check()
        if self._is_closed:
            raise trio.ClosedResourceError("these shards were closed")

    def close(self) -> None:
        """Refuse further messages. The journals are closed when the block is left."""
        self._own_thread.check()
        self._is_closed = True
        self._loop.wake_waiting()


class ShardLoop:
    """Holds journals open, each in a task."""

    is_broken = False

    def __init__(self, shards: ShardSet, opened: Callable[[str], open_journal]) -> None:
        self.title = f"shards below {shards.root}"
        self.places: OrderedDict[int, _ShardPlace] = OrderedDict()  # least recently used first
        self.room: Line[None] = Line()
        """The tasks that wait for a journal without senders."""
        self.failures: list[Exception] = []
        """The errors of journals that were closed meanwhile."""
        self.is_closing = False
        self._shards = shards
        self._opened = opened
        self.event_loop = running_event_loop()
        self._asked = self.event_loop.event()  # something is to be opened, or all is to be closed
        self._wanted: list[int] = []

    def open(self, index: int) -> _ShardPlace:
        """Begin to open a journal."""
        place = self.places[index] = _ShardPlace(self.event_loop)
        self._wanted.append(index)
        self._asked.set()
        return place

    def begin(self) -> bool:
        """Return False: the journals are opened and closed in tasks of its own."""
        return False

    @enable_ki_protection
    async def run(self) -> None:
        """Open the wanted journals until `begin_to_close`; then sync and close all. Never raises."""
        with self.event_loop.scope(shield=True):
            async with self.event_loop.open_nursery() as nursery:
                while not self.is_closing:
                    await self._asked.wait()
                    self._asked = self.event_loop.event()
                    while self._wanted:
                        index = self._wanted.pop()
                        place = self.places[index]
                        self.event_loop.start(nursery, self._hold, index, place, name=f"shard {index}")

    def wake_waiting(self) -> None:
        """Wake the tasks that wait for room: each looks again."""
        self.room.wake_all(lambda: NOTHING)

    @enable_ki_protection  # an interrupt comes to the main task: here it would wait for the end of the block
    async def _hold(self, index: int, place: _ShardPlace) -> None:
        try:
            async with self._opened(self._shards.path(index)) as place.writer:
                place.is_open.set()
                await place.is_left.wait()
        except Exception as failure:
            if place.writer is None:
                place.failure = failure
            else:
                path = self._shards.path(index)
                log.report(
                    "close_failed",
                    "%s could not be closed cleanly: %s",
                    path,
                    failure,
                    path=path,
                    error=failure,
                )
                self.failures.append(failure)
        finally:
            del self.places[index]
            place.is_left.set()
            place.is_open.set()
            place.is_over.set()
            self.wake_waiting()

    def begin_to_close(self) -> None:
        self.is_closing = True
        for place in self.places.values():
            place.is_left.set()
        self.wake_waiting()
        self._asked.set()

    def check_end(self) -> None:
        """Raise the next error of a journal that was closed, each once."""
        if self.failures:
            raise self.failures.pop(0)


class open_shards(Opening[JournalShardWriter]):  # noqa: N801 (it is used as a function)
    """Open the 2**`bits` journals of `prefix` below `root` for writing, each at its first message.

    An async context manager that gives a `JournalShardWriter`. `prefix` consists of letters, digits, _ and -;
    `bits` is 0 to 10. `hash` returns a key's number, whose lowest bits are its shard; the default is 32-bit
    FNV-1a with its halves xored. At most `max_open` journals are open at once. A journal that does not exist
    is made (`create=False`: its first message raises NotFoundError). The options apply to each journal.

    Raises ShardNameError, TypeError, ValueError. Leaving the block syncs and closes all journals, also when
    it was cancelled, and raises the errors of that; an exception of the block itself is raised instead.

    Options (`JournalOptions`). Sizes in bytes, durations in seconds. No option is part of the format: a
    journal may be reopened with other options at any time.

    - `sync_every=2500`: Sync after this many messages were written, consumed, or (of one partition)
      committed; in a priority store, after this many commands. 1: each time. (nsqd's default.)
    - `sync_timeout=2.0`: Sync this many seconds after the first unsynced message, commit or command at the
      latest (nsqd's default).
    - `checkpoint_slice=100e-6`: A task whose calls never have to wait yields to others after this many
      seconds; 0: in every call.
    - `durability="written"`: What a call that writes (`send`, `put`, `append`, `ack` of a priority store)
      waits for: the process's memory, the page cache, or the disk.
    - `max_unsynced=64 * 1024 * 1024`: Senders wait while this many bytes are not synced. A channel begins a
      sync at half of it.
    - `memory_flush=0.01`: `memory` messages are written to the page cache after this many seconds at the
      latest; in a queue only if it has no `memory_size`.
    - `sync_to="log"`: Where `synced` messages are on stable storage when the call returns: in the redo `log`,
      by one sync, and in their files by the sync policy; or in their `files`, by two. After a power cut
      another program finds what is in the log alone only after diskq has opened the store.
    - `redo_log_size=4 * 1024 * 1024`: The redo log grows up to this size; it begins with 64 KiB.
    - `segment_size=1024 * 1024 * 1024`: A new file starts after the message with which the current one
      reaches this size (sej's default).
    - `min_message_size=0`: Smaller values are refused.
    - `max_message_size=16 * 1024 * 1024`: Larger values are refused. Larger ones that are already in the
      files are delivered.
    - `max_key_size=127`: Longer keys are refused; the format allows up to 127 bytes.
    - `strict=False`: Raise `CorruptionError` at damage, at open, instead of reporting it and going on.
    """

    def __init__(
        self,
        root: AnyPath,
        prefix: str = "",
        bits: int = 3,
        *,
        hash: Callable[[bytes], int] = key_hash,
        max_open: int = 64,
        create: bool = True,
        wait: float = 0.0,
        options: JournalOptions | None = None,
        fs: FileSystem | None = None,
        **changes: Unpack[JournalKeywords],
    ) -> None:
        if max_open < 1:
            raise ValueError(f"max_open is at least 1, got {max_open}")
        self._shards = ShardSet(as_path(root), prefix, bits)
        self._hash = check_plain("hash", hash)
        self._max_open = max_open
        checked = chosen_options(open_shards, options, JournalOptions, changes)
        self._opened = partial(open_journal, create=create, options=checked, fs=fs, wait=checked_wait(wait))

    async def _open(self) -> tuple[ShardLoop, JournalShardWriter]:
        loop = ShardLoop(self._shards, self._opened)
        return loop, JournalShardWriter(loop, self._shards, self._hash, self._max_open)
