# The reading side of a stream as a Trio channel.
#
# `receive` tries a compiled door first: a cancellation point, one call, done. Where the door refuses
# (the slice is over, it is another partition's turn, there is nothing to take) the tail decides; a
# group's claims and commits are its loop's.

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import trio
from trio.lowlevel import checkpoint_if_cancelled, current_task, enable_ki_protection

from diskq.channels.barrierthread import BarrierThread
from diskq.channels.cancellation import cancellation_test
from diskq.channels.grouploop import GroupLoop
from diskq.channels.neighbours import neighbours_of
from diskq.channels.opening import Opening
from diskq.channels.tail import Part, Tail, take_one
from diskq.engine.groups import ConsumerGroup
from diskq.engine.membership import Membership
from diskq.engine.offsets import OffsetMarker
from diskq.engine.partitionreader import Gap
from diskq.engine.streamreader import Start, StreamReader, checked_start
from diskq.errors import DiskqError, OffsetOutOfRangeError, StorageFailedError
from diskq.messages import Message, Position
from diskq.options import ConsumerOptions
from diskq.storage.closing import Closing
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem

__all__ = ["ConsumerStatistics", "End", "PartitionLag", "StreamConsumer", "open_consumer"]

T = TypeVar("T")

End = Literal["wait", "close"] | int
_MANY_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far a consumer is in one partition."""

    position: int
    """The offset of the message that comes next."""
    lag: int
    """Messages that are there and were not received yet."""
    committed: int | None
    """The last offset that the group has processed; None: none, or no group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """A consumer at one moment."""

    partitions: dict[int, PartitionLag]
    """Those that are read; in a group, those that it has claimed."""
    lost: int
    """Messages known to be lost to damage since the open: `losses` tells where."""
    tasks_waiting_receive: int


class _Batch:
    """Messages that were taken together, and from where: so that they can be put back, or committed."""

    def __init__(self, tail: Tail, max_items: int, max_bytes: int) -> None:
        self.messages: list[Message] = []
        self.starts: dict[Part, int] = {}
        self._tail = tail
        self._max_items = max_items
        self._left = max_bytes

    def fetch(self, part: Part) -> _Batch:
        """Take what is there: of this partition, then of the others in turn."""
        turn: Part | None = part
        while turn is not None and self.has_room:
            ahead = turn.ahead
            if self.messages and ahead.next_size > self._left:
                self._left = 0
                break
            self.starts.setdefault(turn, turn.position)
            most = min(self._max_items - len(self.messages), self._tail.gate.left)
            more = ahead.take_many(most, self._left)
            self._left -= sum(len(message.key) + len(message.value) for message in more)
            self.messages += more
            if self.has_room:
                turn = self._tail.find_more()
        return self

    @property
    def has_room(self) -> bool:
        return len(self.messages) < self._max_items and self._left > 0

    def put_back(self) -> None:
        """Let them be received again."""
        for part, start in self.starts.items():
            self._tail.rewind(part, start)


class StreamConsumer(trio.abc.ReceiveChannel[Message], Closing):
    """Receives messages of a stream, each partition's in order, of all its partitions in turn.

    Made by `open_consumer`. Any number of tasks may receive at once; each message is handed to one of
    them. Every async method is a cancellation point, and a schedule point once per `checkpoint_slice`;
    where one raises `Cancelled`, nothing was received.
    """

    def __init__(self, tail: Tail, options: ConsumerOptions) -> None:
        self._tail = tail
        self._gate = tail.gate
        self._options = options
        self._loop: GroupLoop | None = None
        self._is_closed = False
        self._tasks: set[trio.lowlevel.Task] = set()  # those that may be waiting
        is_strict = options.checkpoint_slice == 0
        # In strict mode every call passes a full checkpoint; then one cancellation point is enough.
        self._first_point = trio.lowlevel.checkpoint if is_strict else checkpoint_if_cancelled
        self._needs_point: Any = _always if is_strict else cancellation_test()
        self._take: Callable[[], Message | None] = _refuse
        self._take_now: Callable[[], Message | None] = _refuse
        self._take_some: Callable[[int, int], list[Message] | None] = _refuse
        self._unprocessed: set[Part] = set()  # what was received last is of these: with autocommit
        tail.on_turn = self._count_turn if options.autocommit else self._open_doors
        tail.gate.restart()

    def _open_doors(self, part: Part) -> None:
        ahead = part.ahead
        self._take, self._take_now, self._take_some = ahead.take, ahead.take_untimed, ahead.take_some

    def _count_turn(self, part: Part) -> None:
        # No fast doors: each call is to say that what was received before is processed.
        self._unprocessed.add(part)

    # --- receiving --------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """The next message; waits for one. Receivers are served in order of arrival.

        `Cancelled` means: nothing was received. Raises trio.EndOfChannel behind the last message that was
        asked for, OffsetOutOfRangeError where retention has overtaken the consumer (then `seek`), OSError
        where the files cannot be read: nothing was received then, either, and it may be tried again.
        """
        return await self._receive(trio.EndOfChannel)

    @enable_ki_protection
    async def _receive(self, ended: type[Exception]) -> Message:
        if self._needs_point(current_task()):
            await self._first_point()
        if (message := self._take()) is not None:
            return message
        await self._schedule_point()
        if (message := self._take()) is not None:
            return message
        self._begin()
        try:
            return await self._waiting(self._tail.take, take_one)
        except trio.EndOfChannel:
            raise ended from None

    @enable_ki_protection
    def receive_nowait(self) -> Message:
        """As `receive`; raises trio.WouldBlock where there is no message for us now."""
        if (message := self._take_now()) is not None:
            return message
        self._begin()
        return self._tail.take_now(take_one)

    @enable_ki_protection
    async def receive_many(
        self, max_items: int, *, max_bytes: int = _MANY_BYTES, linger: float = 0.0
    ) -> list[Message]:
        """The next messages, at least one, which it waits for.

        At most `max_items`, keys and values of together at most `max_bytes`, but one however large. With
        `linger` it waits so many seconds more for `max_items` to be there; others wait meanwhile. Raises as
        `receive`; `Cancelled` means: nothing was received.
        """
        if linger == 0 and max_items > 0:
            if self._needs_point(current_task()):
                await self._first_point()
            if (messages := self._take_some(max_items, max_bytes)) is not None:
                return messages
            await self._schedule_point()
            if (messages := self._take_some(max_items, max_bytes)) is not None:
                return messages
            self._begin()
            batch = _Batch(self._tail, max_items, max_bytes)
            return (await self._waiting(self._tail.take, batch.fetch)).messages
        batch = await self._lease(max_items, max_bytes, linger)
        self._tail.release()
        return batch.messages

    @enable_ki_protection
    async def receive_if(self, may_take: Callable[[], bool]) -> list[Message]:
        """The next message, alone in a list, if `may_take()` says so when it is our turn; else [].

        So `select` asks. Waits and raises as `receive`; `Cancelled` means: nothing was received.
        """
        await self._first_point()
        await self._schedule_point()
        self._begin()
        return await self._waiting(self._tail.take, lambda part: [take_one(part)] if may_take() else [])

    @enable_ki_protection
    async def peek(self) -> Message:
        """The next message, which stays; waits for one. Raises as `receive`."""
        await self._first_point()
        await self._schedule_point()
        self._begin()
        return await self._waiting(self._tail.take, _peek)

    @asynccontextmanager
    @enable_ki_protection
    async def receiving(
        self, max_items: int, *, max_bytes: int = _MANY_BYTES, linger: float = 0.0
    ) -> AsyncIterator[list[Message]]:
        """The next messages, for the length of a block, which is the unit of work.

        Takes what `receive_many` takes. Leaving the block cleanly commits them, where there is a group. An
        exception, `Cancelled` among them, puts them back, to be received again. Meanwhile other receivers
        wait.
        """
        batch = await self._lease(max_items, max_bytes, linger)
        try:
            yield batch.messages
        except BaseException:
            if not self._is_closed:
                batch.put_back()
            raise
        else:
            if self._is_closed:
                raise trio.ClosedResourceError("this consumer was closed, and this block was not committed")
            if self._loop is not None:
                self._check()
                for part in batch.starts:
                    self._move(part.index, part.position - 1)
        finally:
            self._unprocessed.clear()
            if not self._is_closed:
                self._tail.release()

    async def _lease(self, max_items: int, max_bytes: int, linger: float) -> _Batch:
        """Take a batch, and keep everybody else from taking."""
        await self._first_point()
        await self._schedule_point()
        if max_items < 1:
            raise ValueError(f"max_items is at least 1, got {max_items}")
        self._begin()
        batch = _Batch(self._tail, max_items, max_bytes)

        def begin(part: Part) -> _Batch:
            batch.fetch(part)
            self._tail.lease()
            return batch

        await self._waiting(self._tail.take, begin)
        try:
            with trio.move_on_after(linger):
                while linger and batch.has_room:
                    await self._waiting(self._tail.take_leased, batch.fetch)
        except trio.EndOfChannel:
            pass
        except BaseException:
            if not self._is_closed:
                batch.put_back()
                self._tail.release()
            raise
        return batch

    async def _waiting(
        self, call: Callable[[Callable[[Part], T]], Awaitable[T]], want: Callable[[Part], T]
    ) -> T:
        """Call what may wait, so that closing this consumer ends it."""
        task = trio.lowlevel.current_task()
        self._tasks.add(task)
        try:
            return await call(want)
        finally:
            self._tasks.discard(task)

    async def _schedule_point(self) -> None:
        if self._gate.is_slice_over:
            await trio.lowlevel.checkpoint()
            self._gate.restart()

    def _begin(self) -> None:
        """The doors were shut. With autocommit they always are, and what was received before is processed."""
        self._check()
        if self._unprocessed:
            self._commit_received()

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Any:
        # No coroutine of its own: one layer between the user and Trio is enough.
        return self._receive(StopAsyncIteration)

    # --- a group's place --------------------------------------------------------------------------

    @enable_ki_protection
    async def commit(self, *processed: Message | Position) -> None:
        """All messages up to these, each in its partition, are processed by the group.

        With no argument: all that was received. It goes forward only. Durable within `sync_timeout`, when
        the block is left, or with `sync`. Raises ValueError where there is no group, or another member has
        the partition; trio.BrokenResourceError after the disk failed.
        """
        if self._needs_point(current_task()):
            await self._first_point()
        await self._schedule_point()
        self._check()
        if not processed:
            for part in self._tail.parts.values():
                if part.position:
                    self._move(part.index, part.position - 1)
        for one in processed:
            self._move(one.partition, one.offset)

    @enable_ki_protection
    async def sync(self) -> None:
        """Return when all commits are on the platter. Raises as `commit`, and DiskFullError."""
        await self._first_point()
        self._check()
        await self._group().barrier(with_metadata=True)

    def _commit_received(self) -> None:
        for part in self._unprocessed:
            if part.position:
                self._move(part.index, part.position - 1)
        self._unprocessed.clear()

    def _move(self, partition: int, offset: int | None, *, seek: bool = False) -> None:
        loop = self._group()
        marker = loop.engine.marker(partition)
        if marker is None:
            raise ValueError(f"partition {partition} is not one that this member of the group has claimed")
        try:
            loop.move(marker, offset, seek=seek)
        except StorageFailedError as failure:
            loop.broke(failure)

    def _group(self) -> GroupLoop:
        if self._loop is None:
            raise ValueError("this consumer is in no group: open it with group=...")
        return self._loop

    # --- the consumer as a whole ------------------------------------------------------------------

    @enable_ki_protection
    async def seek(self, start: Start | Mapping[int, Start], *, partition: int | None = None) -> None:
        """Go on elsewhere: in all partitions that are read, in one, or in each as the mapping says.

        `start` is as `open_consumer` has it. In a group, it is the group's place that moves. Raises
        OffsetOutOfRangeError, ValueError for a partition that is not read; partitions are moved one after
        the other, and those before it have moved then.
        """
        await self._first_point()
        self._check()
        if isinstance(start, Mapping):
            starts = {index: checked_start(each) for index, each in start.items()}
        else:
            checked = checked_start(start)
            starts = dict.fromkeys(self._tail.parts if partition is None else [partition], checked)
        for index in starts:
            if index not in self._tail.parts:
                raise ValueError(f"partition {index} is not read by this consumer")
        for index, each in starts.items():
            offset = await self._find(index, each)
            part = self._tail.parts[index]
            self._tail.moved(part)
            self._unprocessed.discard(part)
            if self._loop is not None:
                self._move(index, offset - 1 if offset else None, seek=True)
        self._tail.look()

    async def _find(self, index: int, start: Start) -> int:
        """Have the partition's reader at `start`; returns which offset that is."""
        while True:
            offset = await trio.to_thread.run_sync(_offset_of, self._tail.stream, index, start)
            self._check()
            try:
                self._tail.parts[index].reader.seek(offset)
            except OffsetOutOfRangeError:
                if isinstance(start, int):
                    raise
                continue  # retention took it away meanwhile: what was meant is further on now
            return offset

    @property
    def position(self) -> dict[int, int]:
        """Of each partition that is read: the offset of the message that comes next."""
        return {index: part.position for index, part in sorted(self._tail.parts.items())}

    @property
    def losses(self) -> tuple[Gap, ...]:
        """What could not be read since the open, because it was damaged."""
        return tuple(self._tail.losses)

    def statistics(self) -> ConsumerStatistics:
        """The consumer as it is now. Looks at the files of each partition. Raises OSError."""
        self._check()
        engine = self._loop.engine if self._loop is not None else None
        partitions = {}
        for index, part in sorted(self._tail.parts.items()):
            marker = engine.marker(index) if engine is not None else None
            partitions[index] = PartitionLag(
                position=part.position,
                lag=max(0, part.reader.next_offset() - part.position),
                committed=marker.committed if marker is not None else None,
            )
        return ConsumerStatistics(
            partitions=partitions,
            lost=sum(gap.count for gap in self._tail.losses),
            tasks_waiting_receive=self._tail.tasks_waiting_receive,
        )

    def finish(self) -> None:
        """The block was left cleanly: with autocommit, what was received in it is processed."""
        if self._unprocessed and not self._is_closed:
            # What is broken is told when the block is left.
            with contextlib.suppress(trio.BrokenResourceError):
                self._commit_received()

    def close(self) -> None:
        """Let go of the files, and wake who waits with ClosedResourceError. Idempotent.

        A group's last commits are synced, and its claims released, when the block is left.
        """
        if not self._is_closed:
            self._is_closed = True
            self._take = self._take_now = self._take_some = _refuse
            self._tail.dismiss(self._tasks)
            self._tail.close()

    async def aclose(self) -> None:
        """As `close`, and a checkpoint."""
        self.close()
        await trio.lowlevel.checkpoint()

    def _check(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("this consumer was closed")
        if self._loop is not None:
            self._loop.check()


def _peek(part: Part) -> Message:
    message = part.ahead.peek()
    assert message is not None, "the tail found one"
    return message


def _offset_of(stream: StreamReader, partition: int, start: Start) -> int:
    with stream.open(partition) as reader:
        stream.seek(reader, partition, start)
        return reader.position


def _checked_end(end: End) -> End:
    if isinstance(end, str):
        if end not in ("wait", "close"):
            raise ValueError(f'end is "wait", "close" or an offset, got {end!r}')
    elif isinstance(end, bool) or not isinstance(end, int):
        raise TypeError(f"end is a word or an offset, not {type(end).__name__}")
    elif end < 0:
        raise ValueError(f"an offset is 0 or more, got {end}")
    return end


def _refuse(*_: object) -> None:
    return None


def _always(_: object) -> bool:
    return True


class open_consumer(Opening[StreamConsumer]):  # noqa: N801 (it is used as a function)
    """Open the stream at `path` for reading: an async context manager that gives a `StreamConsumer`.

    `partitions` are those to be read, by default all, and those that are made later. `start` is "oldest",
    "newest" (the last message there is), "active" (the segment that is written to), an offset, or a moment
    (an aware datetime: the first message that is later), or a mapping of partitions to such; those that it
    does not name, and partitions that are made later, begin with their oldest message. `end` is "wait" for
    more, "close" behind what is there now, or the last offset to be delivered.

    With a `group` the partitions are shared among its members, in as many processes as they like: each is
    read by one of them, who goes on behind what the group has committed, or at `start` where that is
    nothing. What a member leaves or dies with is taken over by another one within `claim_interval`. With
    another `end` than "wait", what other members have is not waited for.

    Options may be given as a `ConsumerOptions`, or one by one. Entering the block raises
    StreamNotFoundError, OffsetOutOfRangeError for an offset that is not there, GroupNameError, TypeError
    or ValueError (a naive datetime), UnsupportedFormatError, OSError. Leaving it syncs a group's commits,
    and raises trio.BrokenResourceError or DiskFullError where that fails; what the block raises goes first.
    """

    def __init__(
        self,
        path: AnyPath,
        partitions: Iterable[int] | None = None,
        *,
        group: str | None = None,
        start: Start | Mapping[int, Start] = "oldest",
        end: End = "wait",
        options: ConsumerOptions | None = None,
        fs: FileSystem | None = None,
        **changes: Any,
    ) -> None:
        self._path = path
        self._partitions = None if partitions is None else tuple(dict.fromkeys(partitions))
        self._group = group
        self._starts: dict[int, Start] = {}
        self._start: Start = "oldest"
        if isinstance(start, Mapping):
            self._starts = {index: checked_start(each) for index, each in start.items()}
        else:
            self._start = checked_start(start)
        self._end = _checked_end(end)
        self._options = dataclasses.replace(options or ConsumerOptions(), **changes)
        if self._options.autocommit and group is None:
            raise ValueError("autocommit is for a group: open it with group=...")
        self._fs = fs or OsFileSystem()
        self._membership: Membership | None = None
        self._there_at_open: set[int] = set()

    async def _open(self) -> tuple[GroupLoop | None, StreamConsumer]:
        clock = trio.lowlevel.current_clock()
        stream, parts = await trio.to_thread.run_sync(self._open_files, clock.current_time)
        try:
            tail = self._tail = Tail(stream, neighbours_of(self._fs, stream.path))
        except BaseException:
            self._abandon(parts)
            raise
        for part in parts:
            tail.add(part)
        if self._end == "wait":
            tail.is_open_ended = True
            if self._partitions is None:
                tail.on_new_partitions = self._add_more
                tail.watch_for_partitions()
        consumer = StreamConsumer(tail, self._options)
        if self._membership is None:
            return None, consumer
        thread = BarrierThread(self._fs, f"group {self._group}")
        consumer._loop = GroupLoop(self._membership, thread, stream.path, self._try_to_add_more)
        return consumer._loop, consumer

    @enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is None:
            self._handle.finish()
        await super().__aexit__(kind, value, trace)

    def _open_files(self, clock: Callable[[], float]) -> tuple[StreamReader, list[Part]]:
        stream = StreamReader(self._path, fs=self._fs, time_slice=self._options.checkpoint_slice)
        parts: list[Part] = []
        try:
            if self._group is not None:
                group = ConsumerGroup(self._fs, stream.files, self._group)
                self._membership = Membership(group, self._options, clock)
            wanted = stream.partitions() if self._partitions is None else self._partitions
            self._there_at_open.update(wanted)
            for index in wanted:
                if (part := self._open_part(stream, index)) is not None:
                    parts.append(part)
        except BaseException:
            self._abandon(parts)
            raise
        return stream, parts

    def _open_part(self, stream: StreamReader, index: int) -> Part | None:
        """None: another member of the group has it."""
        reader = stream.open(index)
        marker: OffsetMarker | None = None
        if self._membership is not None and (marker := self._membership.claim(index)) is None:
            return None
        if marker is not None and marker.next_offset is not None:
            # Whether it is there is found out when it is received: others may be read all the same.
            reader.ahead.next_offset = marker.next_offset
        else:
            stream.seek(reader, index, self._start_of(index))
        if isinstance(self._end, int):
            return Part(stream.files.partition(index), reader, self._end + 1)
        limit = reader.next_offset() if self._end == "close" else math.inf
        return Part(stream.files.partition(index), reader, limit)

    def _start_of(self, index: int) -> Start:
        if index in self._starts:
            return self._starts[index]
        if index in self._there_at_open or isinstance(self._start, datetime):
            return self._start
        return "oldest"  # it was made since: nothing in it is older than this consumer

    def _abandon(self, parts: list[Part]) -> None:
        for part in parts:
            part.reader.close()
        if self._membership is not None:
            self._membership.close()

    def _add_more(self) -> None:
        """Read what was not there yet, or another member of the group had. Raises DiskqError, OSError."""
        stream, tail = self._tail.stream, self._tail
        for index in stream.partitions() if self._partitions is None else self._partitions:
            if index not in tail.parts and (part := self._open_part(stream, index)) is not None:
                tail.add(part)

    def _try_to_add_more(self) -> None:
        if self._end != "wait":
            return
        try:
            self._add_more()
        except (DiskqError, OSError) as failure:
            self._tail.fail(failure)
        else:
            self._tail.look()
