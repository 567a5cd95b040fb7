# The reading side of a stream as a Trio channel.
#
# Messages are taken in core/receiving.py; a group's claims and commits are made in its loop.

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Unpack

from trio.lowlevel import enable_ki_protection

from diskq.channels.core.committing import CommittingReceiver
from diskq.channels.core.notifier import notifier_of
from diskq.channels.core.receiving import End, OpeningReceiver
from diskq.channels.core.sync_executor import SyncExecutor
from diskq.channels.core.tail import Tail, TailPart
from diskq.channels.stream.group_loop import GroupLoop
from diskq.engine.log.start import Start, checked_start
from diskq.engine.stream.subscription import OpenPartition, Subscription
from diskq.errors import DiskqError
from diskq.keywords import StreamConsumerKeywords
from diskq.messages import Message
from diskq.options import StreamConsumerOptions, chosen_options
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem

__all__ = ["End", "PartitionLag", "StreamConsumer", "StreamConsumerStatistics", "open_consumer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """The progress of a consumer in one partition."""

    position: int
    """The offset of the next message."""
    lag: int | None
    """The number of messages not received yet: now, if the writer is in this Trio run; else at the last
    `look`. None before the first `look`."""
    committed: int | None
    """The last offset that the group has processed; None: none, or no group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConsumerStatistics:
    """Figures of a consumer at one moment."""

    partitions: dict[int, PartitionLag]
    """The partitions that are read; in a group, those that the consumer has claimed."""
    lost: int
    """Messages known to be lost to damage since the open; `losses` has the places."""
    tasks_waiting_receive: int


class StreamConsumer(CommittingReceiver[Message]):
    """Receives messages of a stream: all partitions in turn, each partition's messages in order.

    Made by `open_consumer`. Any number of tasks may receive at once; each message is handed to one of
    them. Every async method is a cancellation point, and a schedule point once per `checkpoint_slice`;
    if one raises `Cancelled`, nothing was received.
    """

    _closed_text = "this consumer was closed"
    _no_commits = "this consumer is in no group: open it with group=..."

    def __init__(self, wanted: Subscription, tail: Tail, group: GroupLoop | None) -> None:
        self._subscription = wanted
        super().__init__(tail, group, autocommit=wanted.options.autocommit)

    def _value_to_commit(self, next_offset: int) -> int | None:
        return next_offset - 1 if next_offset else None  # the last one that was processed

    def _not_here(self, index: int) -> str:
        return f"partition {index} is not one that this member of the group has claimed"

    def __repr__(self) -> str:
        parts = ", ".join(map(str, sorted(self._tail.parts))) or "none"
        state = "closed" if self._is_closed else "open"
        return f"<StreamConsumer {self._subscription.stream.path!r}: partitions {parts}, {state}>"

    # --- the consumer as a whole ------------------------------------------------------------------

    @enable_ki_protection
    async def seek(self, start: Start | Mapping[int, Start], *, partition: int | None = None) -> None:
        """Continue at `start`: in all partitions that are read, in one, or in each as a mapping says.

        `start` is as in `open_consumer`. In a group, the group's committed offset moves. Raises
        OffsetOutOfRangeError, ValueError for a partition that is not read. Partitions are moved one after the
        other: after an error or `Cancelled` some may have moved, each of them completely.
        """
        await self._begin()
        if isinstance(start, Mapping):
            starts = {index: checked_start(each) for index, each in start.items()}
        else:
            checked = checked_start(start)
            starts = dict.fromkeys(self._tail.parts if partition is None else [partition], checked)
        for index in starts:
            if index not in self._tail.parts:
                raise ValueError(f"partition {index} is not read by this consumer")
        for index, each in starts.items():
            await self._go(self._tail.parts[index], each, partial(self._subscription.offset_of, index, each))
        self._tail.look()

    @property
    def position(self) -> dict[int, int]:
        """The offset of the next message, by partition, of the partitions that are read."""
        return {index: part.position for index, part in sorted(self._tail.parts.items())}

    def statistics(self) -> StreamConsumerStatistics:
        """Return figures of the consumer. Cheap, and from any thread: looks at no file, see `lag`."""
        parts = dict(self._tail.parts)
        partitions = {
            index: PartitionLag(position=part.position, lag=part.lag, committed=self._committed(index))
            for index, part in sorted(parts.items())
        }
        return StreamConsumerStatistics(
            partitions=partitions,
            lost=sum(part.lost for part in parts.values()),
            tasks_waiting_receive=self._tail.tasks_waiting_receive,
        )

    def look(self) -> StreamConsumerStatistics:
        """Look at the files, then do as `statistics`. From any thread. Raises DiskqError, OSError."""
        for part in tuple(self._tail.parts.values()):
            part.look()
        return self.statistics()


class open_consumer(OpeningReceiver[StreamConsumer]):  # noqa: N801 (it is used as a function)
    """Open the stream at `path` for reading: an async context manager that gives a `StreamConsumer`.

    `partitions` are the partitions to read, by default all, with those that are made later. `start` is
    "oldest", "newest" (the last message; the next one if the active segment is empty, as in go-diskq),
    "active" (the beginning of the segment that is written to), an offset, a moment (an aware datetime: the
    first later message), or a mapping of partitions to these; partitions that it does not name, and those
    made later, begin with their oldest message. `end` is "wait" for more, "close" after the present messages,
    or the last offset to deliver. `create` makes an empty stream where there is none: for a consumer that
    starts before the first producer.

    With a `group` the partitions are shared among its members, in any number of processes. Each partition is
    read by one member, which continues after the group's committed offset, or at `start` if there is none. A
    partition whose member left or died is taken over by another one within `claim_interval`; a member with
    more than its share gives up partitions once all that was received of them is committed. With `partitions`
    or an `end` other than "wait", the consumer claims what it can, and keeps it.

    Options may be given as a `StreamConsumerOptions`, or one by one. Entering the block raises
    NotFoundError, OffsetOutOfRangeError for an offset that does not exist, GroupNameError, TypeError
    or ValueError (a naive datetime), UnsupportedFormatError, OSError. Leaving it syncs a group's commits,
    and raises trio.BrokenResourceError or DiskFullError if that fails; an exception of the block is raised
    instead.

    Options (`StreamConsumerOptions`). Durations in seconds.

    - `sync_every=2500`: Sync after this many messages were written, consumed, or (of one partition)
      committed; in a priority store, after this many commands. 1: each time. (nsqd's default.)
    - `sync_timeout=2.0`: Sync this many seconds after the first unsynced message, commit or command at the
      latest (nsqd's default).
    - `checkpoint_slice=100e-6`: A task whose calls never have to wait yields to others after this many
      seconds; 0: in every call.
    - `autocommit=False`: In a group: the next receive, and the end of the block, commit what was received
      before.
    - `claim_interval=1.0`: In a group: seconds between two attempts to claim partitions that other members
      have.
    """

    def __init__(
        self,
        path: AnyPath,
        partitions: Iterable[int] | None = None,
        *,
        group: str | None = None,
        start: Start | Mapping[int, Start] = "oldest",
        end: End = "wait",
        create: bool = False,
        options: StreamConsumerOptions | None = None,
        fs: FileSystem | None = None,
        **changes: Unpack[StreamConsumerKeywords],
    ) -> None:
        chosen = chosen_options(open_consumer, options, StreamConsumerOptions, changes)
        self._fs = fs or OsFileSystem()
        self._subscription = Subscription(
            path, partitions, group, start, end, chosen, self._fs, create=create
        )
        self._leaving: list[TailPart] = []
        self._next_look = 0.0

    async def _open(self) -> tuple[GroupLoop | None, StreamConsumer]:
        wanted = self._subscription
        open_files = partial(
            wanted.open,
            time_slice=wanted.options.checkpoint_slice,
            clock=self._event_loop.clock,
        )
        parts = await self._event_loop.run_in_thread(open_files)
        stream = wanted.stream
        with contextlib.ExitStack() as opened:  # everything is closed again if a step fails
            opened.callback(wanted.abandon, parts)
            notifier = notifier_of(self._fs, stream.path)
            tail = self._tail = Tail(
                self._fs, stream.gate, notifier, "consumer", wanted.options.checkpoint_slice
            )
            opened.callback(tail.close)
            for part in parts:
                tail.add(_tail_part(part))
            tail.ends_at_limits = wanted.end == "close"
            if wanted.end == "wait":
                tail.is_open_ended = True
                if wanted.partitions is None:
                    tail.on_new_partitions = self._add_more
                    tail.watch_for_partitions(stream.files.parts)
            loop = None
            if wanted.membership is not None:
                executor = SyncExecutor(self._fs, stream.path)
                loop = GroupLoop(wanted.membership, executor, stream.path, self._try_to_add_more)
            consumer = StreamConsumer(wanted, tail, loop)
            opened.pop_all()
        return loop, consumer

    def _add_more(self) -> None:
        """Add new partitions, and those that another member released. Raises DiskqError, OSError."""
        for part in self._subscription.more(self._tail.parts):
            self._tail.add(_tail_part(part))

    def _try_to_add_more(self) -> bool:
        """Claim partitions up to this member's share, and give up those beyond it. True: look again soon."""
        wanted = self._subscription
        if wanted.end != "wait":
            return False
        clock = self._event_loop.clock()
        try:
            if clock >= self._next_look:
                self._next_look = clock + wanted.options.claim_interval
                self._add_more()
                self._leave_excess()
            self._release_left()
        except (DiskqError, OSError) as failure:
            self._tail.fail(failure)
        else:
            self._tail.look()
        return bool(self._leaving)

    def _leave_excess(self) -> None:
        """Stop reading partitions beyond this member's share."""
        tail, share = self._tail, self._subscription.share
        if self._subscription.membership is None or self._subscription.partitions is not None:
            return
        excess = max(0, len(tail.parts) - share)
        for part in self._leaving[excess:]:
            tail.take_back(part)  # its share has grown again
        del self._leaving[excess:]
        staying = [part for part in tail.parts.values() if part not in self._leaving]
        for part in sorted(staying, key=lambda part: (tail.is_idle(part) is False, -part.index)):
            if len(self._leaving) >= excess:
                break
            tail.retire(part)
            self._leaving.append(part)

    def _release_left(self) -> None:
        """Give up the partitions that are left, and of which nothing is in hand."""
        membership = self._subscription.membership
        for part in tuple(self._leaving):
            if membership is not None and membership.may_release(part.index, part.position, part.start):
                self._leaving.remove(part)
                self._tail.drop(part)
                membership.release(part.index)


def _tail_part(part: OpenPartition) -> TailPart:
    files = part.files
    return TailPart(files.index, files.directory, files.index_of, part.reader, part.limit)
