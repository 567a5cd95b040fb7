# Reading a stream without an event loop. Law: each message is handed to one caller, and those of a partition
# in order; a call that waits looks at the files after each change that the kernel reports: it misses none.
#
# There is no task beside the callers: what a group needs from time to time, to sync what was committed and to
# claim what other members released, is done by the calls that read or wait. Where threads wait is
# log/file_line.py; what is read, and from where on, is subscription.py.

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TypeVar, Unpack

from diskq._native.core.message import Message
from diskq._native.core.thread_guard import ThreadGuard
from diskq.engine.log.file_line import FileLine
from diskq.engine.log.gaps import report_gap, unreached_end
from diskq.engine.log.reader import MessagePlace, SkippedBytes, places_to_commit
from diskq.engine.log.start import End, Start, checked_start
from diskq.engine.log.sync import exclusive
from diskq.engine.log.thread_line import now
from diskq.engine.stream.subscription import OpenPartition, Subscription
from diskq.errors import BusyError, DiskqError, OffsetOutOfRangeError
from diskq.keywords import StreamConsumerKeywords
from diskq.options import Durability, StreamConsumerOptions, checked_durability, chosen_options
from diskq.storage.arguments import whole_number
from diskq.storage.closing import Closing, Dropped
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path
from diskq.storage.numbers import UNBOUNDED

__all__ = ["StreamReader"]

T = TypeVar("T")

# Messages of one partition before it is the next one's turn.
_TURN = 256


class _ReadPartition:
    """A partition that is read."""

    def __init__(self, opened: OpenPartition) -> None:
        self.files = opened.files
        self.index = opened.files.index
        self.reader = opened.reader
        self.ahead = opened.reader.ahead
        self.limit = opened.limit
        self.start = opened.reader.position
        self.is_leaving = False
        """True if it is given up for another member, once nothing of it is in hand: no more of it is read."""
        self.watched = ""
        """The file that grows with each message of the segment that is read; "" for none."""
        self.is_watched = False
        """True if the kernel reports when it grows."""

    @property
    def position(self) -> int:
        return self.reader.position


class StreamReader(Closing, Dropped):
    """Reads a stream in a synchronous program: `for message in reader`, or one by one.

    All partitions take turns, each partition's messages come in order, and each message is handed to one
    caller. Threads may share it: calls wait for each other, and those that wait for messages are served in
    order of arrival. It needs no lock of the stream: any number of readers may be open, in any process.
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
        """Open the stream at `path` for reading.

        `partitions` are the partitions to read, by default all, with those that are made later. `start` is
        "oldest", "newest" (the last message), "active" (the beginning of the segment that is written to), an
        offset, a moment (an aware datetime: the first later message), or a mapping of partitions to these.
        `end` is "wait" for more, "close" after the present messages, or the last offset to read. `create`
        makes an empty stream where there is none: for a reader that starts before the first producer.

        With a `group` the partitions are shared among its members, in any number of processes, with and
        without an event loop. Each partition is read by one member, which continues after the group's
        committed offset, or at `start` if there is none. What a member left is taken over within
        `claim_interval` by another one that reads, or waits for a message, by then.

        Raises NotFoundError, OffsetOutOfRangeError for an offset that does not exist, GroupNameError,
        TypeError or ValueError (a naive datetime), UnsupportedFormatError, OSError.

        Options (`StreamConsumerOptions`). Durations in seconds.

        - `sync_every=2500`: Sync after this many messages were written, consumed, or (of one partition)
          committed; in a priority store, after this many commands. 1: each time. (nsqd's default.)
        - `sync_timeout=2.0`: Sync this many seconds after the first unsynced message, commit or command at
          the latest (nsqd's default).
        - `checkpoint_slice=100e-6`: A task whose calls never have to wait yields to others after this many
          seconds; 0: in every call.
        - `autocommit=False`: In a group: the next receive, and the end of the block, commit what was received
          before.
        - `claim_interval=1.0`: In a group: seconds between two attempts to claim partitions that other
          members have.
        """
        chosen = chosen_options(StreamReader, options, StreamConsumerOptions, changes)
        self.path: str = as_path(path)
        self.guard: ThreadGuard = ThreadGuard(lambda: BusyError(self.path))
        self._fs = fs or OsFileSystem()
        self._wanted = Subscription(self.path, partitions, group, start, end, chosen, self._fs, create=create)
        self._parts: dict[int, _ReadPartition] = {}
        self._turns: deque[_ReadPartition] = deque()  # those that may have messages; the first has its turn
        self._idle: dict[_ReadPartition, None] = {}  # those that have none, until a change is reported
        self._left = 0  # messages of the first one before it is the next one's turn
        self._unprocessed: set[_ReadPartition] = set()  # with autocommit: those of the last read
        self._moved: set[_ReadPartition] = set()  # those read from since all was committed
        self._losses: list[SkippedBytes] = []
        self._line: FileLine | None = None  # made for the first call that waits
        self._by_path: dict[str, _ReadPartition] = {}
        self._has_listed = True
        self._claim_at = now() + chosen.claim_interval
        self._is_closed = False
        for opened in self._wanted.open(guard=self.guard):
            self._add(opened)
        self._has_others = self._wanted.membership is not None and self._wanted.end == "wait"

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<StreamReader {self.path!r}: partitions {', '.join(map(str, self.partitions))}, {state}>"

    def close(self) -> None:
        """Sync the commits, give back claimed partitions, and close the files. Idempotent.

        Threads that wait for a message get ValueError. Raises DiskFullError if there was no space for the
        last commits, and StorageFailedError; it is closed all the same.
        """
        with self.guard:
            if self._is_closed:
                return
            self._is_closed = True
            if self._line is not None:
                self._line.close()
            self._wanted.abandon(
                OpenPartition(part.files, part.reader, part.limit) for part in self._parts.values()
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._unprocessed and not self._is_closed:
            with self.guard:
                self._commit_read()
        super().__exit__(kind, error, trace)

    def _unclosed(self) -> tuple[FileSystem, str] | None:
        is_open = not self._is_closed and self._line is not None and self._line.holds_watch
        return (self._fs, f"reader of {self.path}") if is_open else None

    def _let_go_dropped(self) -> None:
        if self._line is not None:
            self._line.let_go()

    # --- reading ----------------------------------------------------------------------------------

    def read(self, timeout: float | None = None) -> Message | None:
        """Return the next message; wait for one up to `timeout` seconds (None: without limit; 0: not at all).

        None if there is none then, or nothing is left before `end`. Raises OffsetOutOfRangeError if the next
        message was removed meanwhile (then `seek`), OSError if the files cannot be read, and ValueError after
        `close`. After an error nothing was read, and the caller may try again.
        """
        message = self._first_look(self._take_one)
        return self._waited(self._take_one, timeout) if message is None else message

    def read_many(
        self, max_messages: int, *, max_bytes: int = UNBOUNDED, timeout: float | None = None
    ) -> list[Message]:
        """Return the next messages, at least one; wait and raise as `read`. Empty where that returns None.

        At most `max_messages` messages, with keys and values of up to `max_bytes` together; the first one may
        be larger.
        """
        if whole_number("max_messages", max_messages) < 1:
            raise ValueError(f"max_messages is at least 1, got {max_messages}")
        whole_number("max_bytes", max_bytes)

        def take() -> list[Message] | None:
            return self._take_many(max_messages, max_bytes) or None

        messages = self._first_look(take)
        return messages or self._waited(take, timeout) or []

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """Return the next message; waits for one. It ends where nothing is left before `end`."""
        message = self.read()
        if message is None:
            raise StopIteration
        return message

    def _first_look(self, take: Callable[[], T | None]) -> T | None:
        with self.guard:
            self._check()
            if self._unprocessed:
                self._commit_read()
            if self._line is not None and self._line.has_waiting:
                return None  # those that came before are served first
            return take()

    def _waited(self, take: Callable[[], T | None], timeout: float | None) -> T | None:
        if timeout == 0:
            return None

        def look() -> T | object | None:
            with self.guard:
                self._check()
                found = take()
                return _END if found is None and self.has_ended else found

        with self.guard:
            if self._line is None:
                self._line = FileLine(self._fs)
                if self._wanted.partitions is None:
                    self._line.add_directory(self._wanted.stream.files.parts)
                # Changes before the watch began are not reported.
                self._has_listed = False
                self._wake_all()
            line = self._line
        found = line.wait(look, timeout, self._alarm)
        return None if found is _END else found  # type: ignore[return-value]

    @property
    def has_ended(self) -> bool:
        """True if all messages before `end` were read; never with "wait"."""
        if self._wanted.end == "wait":
            return False
        return not self._turns and all(part.position >= part.limit for part in self._idle)

    def _take_one(self) -> Message | None:
        turns = self._turns
        if self._left > 0 and turns and turns[0].position < turns[0].limit:
            message = turns[0].ahead.take_now()
            if message is not None:
                self._note_taken(turns[0], 1)
                return message
        part = self._find()
        if part is None:
            return None
        message = part.ahead.take_now()
        assert message is not None, "one was found"
        self._note_taken(part, 1)
        return message

    def _note_taken(self, part: _ReadPartition, count: int) -> None:
        self._left -= count
        self._moved.add(part)
        if self._wanted.options.autocommit:
            self._unprocessed.add(part)

    def _take_many(self, max_messages: int, max_bytes: int) -> list[Message]:
        messages: list[Message] = []
        left = max_bytes
        part = self._find()
        while part is not None and (not messages or part.ahead.next_size <= left):
            most = min(max_messages - len(messages), part.limit - part.position)
            more = part.ahead.take_many(int(most), left)
            self._note_taken(part, len(more))
            left -= sum(len(message.key) + len(message.value) for message in more)
            messages += more
            if len(messages) == max_messages:
                break
            try:
                part = self._find()
            except (DiskqError, OSError):
                break  # the next call raises it again
        return messages

    def _find(self) -> _ReadPartition | None:
        """Return the partition whose turn it is, with a message read ahead. Raises the errors of reading."""
        self._hear()
        turns = self._turns
        if self._left <= 0 and turns:
            turns.rotate(-1)
            self._left = _TURN
        while turns:
            part = turns[0]
            if part.position >= part.limit:
                turns.popleft()
                part.reader.close()
                self._unwatch(part)
            elif self._fill(part):
                return part
            elif self._wanted.end != "close":
                turns.popleft()
                self._idle[part] = None
            elif not self._fill(part):  # asked again: a moment ago may have been too early
                if part.position < part.limit:
                    self._give_up_rest(part)
                continue
            self._left = _TURN
        return None

    def _fill(self, part: _ReadPartition) -> bool:
        try:
            has_more = part.reader.fill()
            while not has_more and self._watch(part):
                has_more = part.reader.fill()
        except BaseException:
            self._turns.rotate(-1)  # so that the others get their turn as well
            raise
        finally:
            for gap in part.reader.losses:
                report_gap(gap)
            self._losses += part.reader.losses
            part.reader.losses.clear()
        return has_more

    def _give_up_rest(self, part: _ReadPartition) -> None:
        base = part.reader.base
        path = part.files.directory if base is None else part.files.index_of(base)
        gap = unreached_end(path, part.ahead.position, part.position, int(part.limit))
        report_gap(gap)
        self._losses.append(gap)
        part.limit = part.position

    # --- news -------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """Note what has changed, and do what is due for the group."""
        line = self._line
        if line is None or line.is_polled:
            self._has_listed = False
            self._wake_all()
        else:
            for path in line.changes():
                if (part := self._by_path.get(path)) is not None:
                    self._wake(part)
                else:
                    self._has_listed = False
        membership = self._wanted.membership
        if membership is not None and membership.note():
            membership.sync(self._fs)
        is_due = self._has_others and self._claim_at <= now()
        if is_due or (not self._has_listed and self._wanted.partitions is None):
            self._has_listed = True
            self._claim_at = now() + self._wanted.options.claim_interval
            if self._wanted.end == "wait":
                for opened in self._wanted.more(self._parts):
                    self._add(opened)
                self._give_up_excess()

    def _give_up_excess(self) -> None:
        """Stop reading partitions beyond this member's share, and give up those with nothing in hand."""
        if not self._has_others:
            return
        leaving = [part for part in self._parts.values() if part.is_leaving]
        excess = len(self._parts) - self._wanted.share
        for part in leaving[max(0, excess) :]:
            part.is_leaving, part.limit = False, math.inf  # its share has grown again
            self._turns.append(part)
        staying = [part for part in self._parts.values() if not part.is_leaving]
        for part in sorted(staying, key=lambda part: (part not in self._idle, -part.index)):
            if len(self._parts) - len(staying) >= excess:
                break
            part.is_leaving, part.limit = True, part.position
            staying.remove(part)
        self._release_left()

    def _release_left(self) -> None:
        membership = self._wanted.membership
        for part in [part for part in self._parts.values() if part.is_leaving]:
            if membership is not None and membership.may_release(part.index, part.position, part.start):
                del self._parts[part.index]
                self._idle.pop(part, None)
                if part in self._turns:
                    self._turns.remove(part)
                self._moved.discard(part)
                part.reader.close()
                self._unwatch(part)
                membership.release(part.index)

    def _alarm(self) -> float:
        """Return when a call that waits has something to do for the group, by `now`."""
        membership = self._wanted.membership
        if membership is None:
            return math.inf
        sync_in = membership.deadline() - self._fs.monotonic()
        return min(now() + max(0.0, sync_in), self._claim_at if self._has_others else math.inf)

    def _add(self, opened: OpenPartition) -> None:
        part = self._parts[opened.files.index] = _ReadPartition(opened)
        self._turns.append(part)

    def _wake(self, part: _ReadPartition) -> None:
        if part in self._idle:
            del self._idle[part]
            self._turns.append(part)

    def _wake_all(self) -> None:
        for part in list(self._idle):
            self._wake(part)

    def _watch(self, part: _ReadPartition) -> bool:
        """Watch a partition that has no more messages. True: the watch began only now, so look again."""
        line = self._line
        if line is None:
            return False
        is_new = False
        directory, base = part.files.directory, part.reader.base
        if directory not in self._by_path:
            self._by_path[directory] = part
            is_new = line.add_directory(directory)
        growing = "" if base is None else part.files.index_of(base)
        if growing != part.watched:
            self._unwatch_file(part)
            part.watched = growing
            if growing:
                self._by_path[growing] = part
        if growing and not part.is_watched:
            part.is_watched = line.add_file(growing)
            is_new |= part.is_watched
        return is_new

    def _unwatch(self, part: _ReadPartition) -> None:
        self._unwatch_file(part)
        if self._line is not None and self._by_path.pop(part.files.directory, None) is not None:
            self._line.remove(part.files.directory)

    def _unwatch_file(self, part: _ReadPartition) -> None:
        if part.watched and self._line is not None:
            self._line.remove(part.watched)
            del self._by_path[part.watched]
        part.watched, part.is_watched = "", False

    # --- committing -------------------------------------------------------------------------------

    @exclusive
    def commit(self, *processed: MessagePlace, durability: Durability = "written") -> None:
        """Commit for the group all messages up to and including these, each in its partition, as processed.

        Without arguments it commits all that was read. It moves only forward. Returns when the commit is
        `written`: it survives a kill of the process. It is `synced` within `sync_timeout` if the reader is
        used meanwhile, after `sync`, when it is closed, or on return with `durability="synced"`; with
        "memory" it is written by the next sync. Raises ValueError without a group, and if another member has
        the partition; DiskFullError and StorageFailedError as `sync`.
        """
        self._check()
        checked_durability(durability)
        if not processed:
            for part in self._moved:
                self._commit_to(part.index, part.position - 1, durability)
            self._moved.clear()
        for index, offset in places_to_commit(processed, "read"):
            self._commit_to(index, offset, durability)
        if durability == "synced":
            self.sync()
        if self._has_others:
            if self._claim_at <= now():
                self._hear()
            self._release_left()

    @exclusive
    def sync(self) -> None:
        """Return when all commits are on stable storage.

        Raises ValueError without a group; DiskFullError if there is no space: the commits are still pending;
        StorageFailedError, after which only reading goes on.
        """
        self._check()
        membership = self._wanted.membership
        if membership is None:
            raise ValueError(_NO_GROUP)
        membership.sync(self._fs)

    def _commit_read(self) -> None:
        for part in self._unprocessed:
            self._commit_to(part.index, part.position - 1)
        self._unprocessed.clear()
        self._release_left()

    def _commit_to(
        self, index: int, offset: int | None, durability: Durability = "written", *, seek: bool = False
    ) -> None:
        membership = self._wanted.membership
        if membership is None:
            raise ValueError(_NO_GROUP)
        committed_offset = membership.committed_offset(index)
        if committed_offset is None:
            raise ValueError(f"partition {index} is not one that this member of the group has claimed")
        membership.moved(committed_offset)
        if committed_offset.move(offset, seek=seek, is_written=durability != "memory"):
            membership.sync(self._fs)

    # --- where it is ------------------------------------------------------------------------------

    @exclusive
    def seek(self, start: Start | Mapping[int, Start], *, partition: int | None = None) -> None:
        """Continue at `start`: in all partitions that are read, in one, or in each as a mapping says.

        `start` is as at the open. In a group, the group's committed offset moves. Raises
        OffsetOutOfRangeError, and ValueError for a partition that is not read. Partitions are moved one after
        the other: after an error some may have moved.
        """
        self._check()
        if isinstance(start, Mapping):
            starts = {index: checked_start(each) for index, each in start.items()}
        else:
            starts = dict.fromkeys(self._parts if partition is None else [partition], checked_start(start))
        for index in starts:
            if index not in self._parts:
                raise ValueError(f"partition {index} is not read by this reader")
        for index, each in starts.items():
            self._go(self._parts[index], each)

    def _go(self, part: _ReadPartition, start: Start) -> None:
        while True:
            offset = self._wanted.offset_of(part.index, start)
            try:
                part.reader.seek(offset)
                break
            except OffsetOutOfRangeError:
                if isinstance(start, int):
                    raise  # otherwise it was removed meanwhile: `start` now means a later one
        self._idle.pop(part, None)
        if part not in self._turns:
            self._turns.append(part)
        self._unwatch(part)  # which a thread that waits hears, and looks
        self._unprocessed.discard(part)
        if self._wanted.membership is not None:
            self._commit_to(part.index, offset - 1 if offset else None, seek=True)

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that are read; in a group, those that this member has claimed."""
        return tuple(sorted(self._parts))

    @property
    def position(self) -> dict[int, int]:
        """The offset of the next message, by partition."""
        return {index: self._parts[index].position for index in self.partitions}

    @exclusive
    def lag(self) -> dict[int, int]:
        """Return the number of messages not read yet, by partition: looks at the files. Raises OSError."""
        self._check()
        return {index: max(0, part.reader.next_offset() - part.position) for index, part in self._each()}

    @property
    def committed(self) -> dict[int, int | None]:
        """The last offset that the group has processed, by partition (None: none yet). Empty: no group."""
        membership = self._wanted.membership
        if membership is None:
            return {}
        found = ((index, membership.committed_offset(index)) for index in self.partitions)
        return {index: offset.committed for index, offset in found if offset is not None}

    @property
    def losses(self) -> tuple[SkippedBytes, ...]:
        """The damaged ranges that were passed over since the open."""
        return tuple(self._losses)

    def _each(self) -> list[tuple[int, _ReadPartition]]:
        return sorted(self._parts.items())

    def _check(self) -> None:
        if self._is_closed:
            raise ValueError(f"the reader of {self.path} is closed")


_END = object()
_NO_GROUP = "this reader is in no group: open it with group=..."
