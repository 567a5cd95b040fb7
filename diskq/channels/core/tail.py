# The partitions that a consumer reads, or the journals that a scanner reads: whose turn it is, which have
# caught up, and which tasks wait.
#
# Law: a partition that has caught up is looked at again only after a change was reported, and no change can
# fall between the last look and the wait: the partition is first watched, then looked at, then left.
# Partitions with messages take turns. Waiting tasks are woken in order of arrival, with their messages.
#
# Changes are reported by the writer, if it is in this run (notifier.py); else by the kernel, for the file
# that is read (of a stream, its index) and for its directory (watch.py); else all partitions are polled.

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, Protocol, TypeVar

import outcome
import trio

from diskq.channels.core.commit_loop import EngineGate
from diskq.channels.core.event_loops.seam import Task, running_event_loop
from diskq.channels.core.notifier import NotifyingWriter, ReaderNotifier, WrittenPartitions
from diskq.channels.core.own_thread import OwnThread
from diskq.channels.core.slices import share_clock
from diskq.channels.core.waiting_line import Line
from diskq.channels.core.watch import Listener, listen
from diskq.engine.log.gaps import report_gap, unreached_end
from diskq.engine.log.reader import LiveEnd, SkippedBytes
from diskq.errors import DiskqError, StorageFailedError
from diskq.storage.fs import FileSystem

__all__ = ["Tail", "TailPart", "TailReader", "take_one"]

T = TypeVar("T")

# Messages of one partition before it is the next one's turn.
_TURN = 256


class TailReader(Protocol):
    """A log's reader. Its writer may come and go in the same thread while it reads."""

    losses: list[SkippedBytes]

    @property
    def ahead(self) -> Any:
        """The messages read ahead and not handed out yet, with the compiled fast path."""

    @property
    def live(self) -> LiveEnd | None:
        """The live end of its writer; None: the writer is not in this thread."""

    @property
    def base(self) -> int | None:
        """The base offset of the open segment; None: none is open."""

    def set_live(self, live: Any) -> None:
        """Note the writer in this thread; None: there is none any more."""

    def fill(self) -> bool:
        """Read messages ahead for the fast path. False: there are none now."""

    def catch_up(self) -> bool:
        """Read ahead only what its writer in this thread has just written. False: `fill`, or wait."""

    def follow(self) -> bool:
        """Read ahead only what a writer elsewhere has just written. False: `fill`, or wait."""

    def next_offset(self) -> int:
        """Return the offset after the last message."""

    def seek(self, offset: int) -> None:
        """Move to that message. Raises OffsetOutOfRangeError, OSError."""

    def close(self) -> None:
        """Close all files, and keep the position."""


class TailPart:
    """One partition, or one journal, that is read."""

    def __init__(
        self,
        index: int,
        directory: str,
        growing: Callable[[int], str],
        reader: TailReader,
        limit: float = math.inf,
    ) -> None:
        """`directory` holds the segments; `growing(base)` is the file that grows with each message of one."""
        self.index = index
        self.directory = directory
        self.growing = growing
        self.reader = reader
        self.ahead = reader.ahead
        self.limit = limit
        """The offset after the last message to deliver."""
        self.start = self.ahead.next_offset
        """The offset of the first message to deliver."""
        self.watched = ""
        """The file that is watched; "" for none."""
        self.watched_base: int | None = None
        """The base offset of its segment."""
        self.is_watched = False
        """True if the kernel reports when that file grows."""
        self.lost = 0
        """Messages known to be lost to damage."""
        self._seen_end: int | None = None

    @property
    def position(self) -> int:
        """The offset of the next message."""
        return self.ahead.next_offset  # type: ignore[no-any-return]

    @property
    def lag(self) -> int | None:
        """The number of messages not handed out yet; None: unknown. Looks at no file."""
        live = self.reader.live
        end = self._seen_end if live is None else live.next_offset
        return None if end is None else max(0, end - self.position)

    def look(self) -> None:
        """Look at the files for the latest end, in any thread. Raises DiskqError, OSError."""
        self._seen_end = self.reader.next_offset()


class Tail:
    """The partitions of one open consumer. Its state is touched by the loop's thread only."""

    def __init__(
        self, fs: FileSystem, gate: EngineGate, notifier: ReaderNotifier, kind: str, checkpoint_slice: float
    ) -> None:
        """`gate` opens and shuts the fast paths of all readers; `kind` names the receiver in messages."""
        self.is_strict = checkpoint_slice == 0
        self.parts: dict[int, TailPart] = {}
        self.losses: list[SkippedBytes] = []
        self.event_loop = running_event_loop()
        self.gate = gate
        self._clock = share_clock(self.event_loop, (gate,))
        self.on_turn: Callable[[TailPart], None] = _do_nothing
        """Called with the partition whose turn begins: its fast path is open."""
        self.on_new_partitions: Callable[[], None] | None = None
        """Called when there may be partitions that were not added yet. May raise DiskqError, OSError."""
        self.is_open_ended = False
        """True if partitions may be added later: then the tail does not end with the present ones."""
        self.ends_at_limits = False
        """True if all messages before the limits were there at the open: then none of them is waited for."""
        self.moved_parts: set[TailPart] = set()
        """Those whose position may have changed since `settle_moved`."""
        self._notifier = notifier
        self._changes: WrittenPartitions | None = None  # of a writer in this run with many partitions
        self._turns: deque[TailPart] = deque()  # those that may have messages; the first has its turn
        self._served: TailPart | None = None  # whose turn it was last
        self._idle: dict[TailPart, None] = {}  # those that have none, until a change is reported
        self._receivers: Line[Callable[[TailPart], Any]] = Line()  # each is handed what this returns
        self._lessee: Line[Callable[[TailPart], Any]] = Line()  # the task that has the lease, if it waits
        self._failures: deque[DiskqError | OSError] = deque()  # met while no task was receiving
        self._is_leased = False
        self._is_closed = False
        self._has_listed = True
        self._listener: Listener = listen(fs, self._notice)
        self._directories: dict[str, TailPart | None] = {}  # the watched ones; None: that of all partitions
        self._of_path: dict[str, TailPart] = {}
        self.own_thread = OwnThread(f"this {kind}", gate.guard)
        notifier.reader_comes(self)

    # --- which partitions -------------------------------------------------------------------------

    def add(self, part: TailPart) -> None:
        self.parts[part.index] = part
        writer = self._notifier.writer
        part.reader.set_live(writer.live(part.index) if writer is not None else None)
        self._idle[part] = None
        self.moved_parts.add(part)
        self.wake(part)

    def watch_for_partitions(self, directory: str) -> None:
        """Call `on_new_partitions` whenever names appear or disappear in `directory`."""
        self._watch_directory(directory, None)
        self._has_listed = False  # changes before the watch began are not reported

    def is_idle(self, part: TailPart) -> bool:
        """True if the partition has no messages, as far as is known."""
        return part in self._idle

    def wake(self, part: TailPart) -> None:
        """Look at that partition again: it may have messages."""
        if part in self._idle:
            del self._idle[part]
            self._turns.append(part)

    def moved(self, part: TailPart) -> None:
        """Look at that partition again: its reader was moved."""
        self.gate.left = 0
        self.moved_parts.add(part)
        self._idle.pop(part, None)
        if part not in self._turns:
            self._turns.append(part)

    def settle_moved(self) -> None:
        """Empty `moved_parts`, but for the partition whose turn it is: its fast path moves it on."""
        self.moved_parts.clear()
        if self._served is not None:
            self.moved_parts.add(self._served)

    def rewind(self, part: TailPart, offset: int) -> None:
        """Continue at `offset`. Whether it still exists is found out when it is read."""
        part.reader.close()
        part.reader.ahead.next_offset = offset
        self.moved(part)

    def retire(self, part: TailPart) -> None:
        """Hand out no more messages of that partition, but those that are put back."""
        part.limit = part.position
        self.gate.left = 0

    def take_back(self, part: TailPart) -> None:
        """Hand out messages of a retired partition again."""
        part.limit = math.inf
        self.moved(part)

    def drop(self, part: TailPart) -> None:
        """Close a retired partition, and forget it."""
        del self.parts[part.index]
        self._idle.pop(part, None)
        if part in self._turns:
            self._turns.remove(part)
        self.moved_parts.discard(part)
        if self._served is part:
            self._served = None
        self.gate.left = 0
        part.reader.close()
        self._unwatch(part)

    # --- for the handle ---------------------------------------------------------------------------

    async def schedule_point(self) -> None:
        """Let others run if the running task's slice is over."""
        if self.gate.is_slice_over:
            self.own_thread.check()
            await self.event_loop.checkpoint()
            self._clock.restart()

    def check(self) -> None:
        """Raise BusyError in any thread but its own."""
        self.own_thread.check()

    def broke(self, failure: StorageFailedError) -> NoReturn:
        """Raise the failure of a writer in this run. The writer reports it itself; the tail stays usable."""
        raise failure

    # --- taking -----------------------------------------------------------------------------------

    async def take(self, want: Callable[[TailPart], T]) -> T:
        """Return what `want` takes from a partition that has messages; waits for the caller's turn.

        `Cancelled` means: nothing was taken. Raises EndOfChannel if all partitions have ended, and the errors
        of reading. The caller has passed a schedule point.
        """
        if not self._receivers and not self._is_leased:
            self._wake_written()
            if (part := self._find()) is not None:
                return want(part)
            self._check_end()
        return await self._wait(self._receivers, want)

    async def take_leased(self, want: Callable[[TailPart], T]) -> T:
        """Do as `take`, for the task that has the lease. `Cancelled` means: nothing was taken."""
        self._wake_written()
        if (part := self._find()) is not None:
            try:
                return want(part)
            finally:
                self.gate.left = 0
        self._check_end()
        return await self._wait(self._lessee, want)

    async def _wait(self, line: Line[Callable[[TailPart], Any]], want: Callable[[TailPart], T]) -> T:
        try:
            result: T = await line.wait(want, on_arrival=self._begin_to_wait)
        finally:
            self._settle()
        self._clock.restart()
        return result

    def take_now(self, want: Callable[[TailPart], T]) -> T:
        """Do as `take` without waiting. Raises WouldBlock."""
        if not self._receivers and not self._is_leased:
            self._wake_written()
            if (part := self._find()) is not None:
                return want(part)
            self._check_end()
        raise trio.WouldBlock

    def _find(self) -> TailPart | None:
        """Return the partition whose turn it is, with a message read ahead. Raises the errors of reading."""
        if self._failures:
            raise self._failures.popleft()
        if not self._has_listed and self.on_new_partitions is not None:
            self._has_listed = True
            self.on_new_partitions()
        return self._find_turn()

    def _find_turn(self) -> TailPart | None:
        gate, turns = self.gate, self._turns
        if gate.left <= 0 and turns and turns[0] is self._served:
            turns.rotate(-1)
        while turns:
            part = turns[0]
            if part.ahead.next_offset >= part.limit:
                turns.popleft()  # it has ended
                part.reader.close()
                self._unwatch(part)
            elif self._fill(part):
                left = min(_TURN, part.limit - part.ahead.next_offset)
                if not 0 < gate.left <= left:
                    gate.left = int(left)
                self._served = part
                self.moved_parts.add(part)
                self.on_turn(part)
                return part
            elif not self.ends_at_limits:
                turns.popleft()
                self._idle[part] = None
            elif not self._fill(part):  # asked again: a moment ago may have been too early
                if part.position < part.limit:  # else the reader has reported what is missing up to there
                    self._give_up_rest(part)
                continue
            gate.left = 0
        return None

    def _give_up_rest(self, part: TailPart) -> None:
        """End a partition that cannot be read up to its limit, although all of that was there at the open."""
        path = part.directory if part.reader.base is None else part.growing(part.reader.base)
        gap = unreached_end(path, part.ahead.position, part.position, int(part.limit))
        part.reader.losses.append(gap)
        self._note_losses(part)
        part.limit = part.position

    def find_more(self) -> TailPart | None:
        """Return the next partition with messages. Errors are left to the next call: some are taken."""
        try:
            self._wake_written()
            return self._find_turn()
        except (DiskqError, OSError):
            return None

    def _fill(self, part: TailPart) -> bool:
        try:
            has_more = part.reader.fill()
            while not has_more and self._watch(part):
                has_more = part.reader.fill()
        except BaseException:
            self._turns.rotate(-1)  # so that the others get their turn as well
            self._served = None
            self.gate.left = 0
            raise
        finally:
            if part.reader.losses:
                self._note_losses(part)
        return has_more

    def _wake_written(self) -> None:
        """Wake the partitions to which the writer in this run wrote while no task waited."""
        if self._changes is not None:
            changed = [self.parts[index] for index in self._changes.take() if index in self.parts]
            written = [part for part in changed if part in self._idle and _has_news(part)]
        elif self._notifier.writer is not None:
            written = [part for part in self._idle if _has_news(part)]
        else:
            return
        for part in written:
            self.wake(part)

    def _note_losses(self, part: TailPart) -> None:
        for gap in part.reader.losses:
            report_gap(gap)
            part.lost += gap.count
        self.losses += part.reader.losses
        part.reader.losses.clear()

    @property
    def has_ended(self) -> bool:
        """True if everything up to the limits was delivered, and no partition can be added."""
        return not self.is_open_ended and not self._turns and all(_is_over(part) for part in self._idle)

    def _check_end(self) -> None:
        if self.has_ended:
            raise trio.EndOfChannel

    def lease(self) -> None:
        """Keep all other tasks from taking, until `release`."""
        self._is_leased = True
        self.gate.left = 0

    def release(self) -> None:
        self._is_leased = False
        self.gate.left = 0
        self.look()

    # --- waiting ----------------------------------------------------------------------------------

    def look(self) -> None:
        self._wake_written()
        self._hand_out()

    def look_at(self, partition: int) -> None:
        part = self.parts.get(partition)
        if part is not None and not self._hand_over(part, part.reader.catch_up):
            self.wake(part)
            self._hand_out()

    def _hand_over(self, part: TailPart, fill: Callable[[], bool]) -> bool:
        """Hand one message to the first waiting task: True if there was one, and no more was ready."""
        if (
            part not in self._idle
            or not self._receivers
            or self._receivers.first is not take_one
            or self._is_leased
            or self._failures
            or part.ahead.next_offset >= part.limit
        ):
            return False
        try:
            if not fill():
                return False
        except OSError:
            return False  # the next read meets the same error, and raises it
        self.moved_parts.add(part)
        self.on_turn(part)
        self.gate.left = 0
        self._receivers.wake_first(outcome.Value(take_one(part)))
        return not part.ahead.is_ready

    def _hand_out(self) -> None:
        """Serve the waiting tasks in order, as far as there are messages."""
        while True:
            line = self._lessee if self._is_leased else self._receivers
            if not line or self._is_closed:
                break
            served: outcome.Outcome[Any]
            try:
                part = self._find()
                if part is not None:
                    served = outcome.Value(line.first(part))
                elif self.has_ended:
                    served = outcome.Error(trio.EndOfChannel())
                else:
                    break
            except Exception as failure:
                served = outcome.Error(failure)
            line.wake_first(served)
            if self._is_leased:
                self.gate.left = 0

    def _begin_to_wait(self) -> None:
        if self._notifier.writer is not None:
            self._notifier.begin_to_wait(self)
        self._listener.begin_to_wait()

    def _settle(self) -> None:
        if not self._receivers and not self._lessee:
            self._notifier.end_waiting(self)
            self._listener.end_waiting()

    # --- reports of changes -----------------------------------------------------------------------

    def _watch(self, part: TailPart) -> bool:
        """Watch a partition that has caught up. True: the watch began only now, so look again."""
        if part.reader.live is not None:
            return False
        base = part.reader.base
        if base == part.watched_base and part.is_watched:
            return False
        is_new = self._watch_directory(part.directory, part)
        if base != part.watched_base:
            self._unwatch_file(part)
            if base is not None:
                part.watched, part.watched_base = part.growing(base), base
                self._of_path[part.watched] = part
        if part.watched and not part.is_watched:
            part.is_watched = self._listener.add_file(part.watched)
            is_new |= part.is_watched
        return is_new

    def _watch_directory(self, path: str, part: TailPart | None) -> bool:
        if path in self._directories:
            return False
        self._directories[path] = part
        self._listener.add_directory(path)
        return True

    def _unwatch(self, part: TailPart) -> None:
        self._unwatch_file(part)
        if self._directories.pop(part.directory, None) is not None:
            self._listener.remove(part.directory)

    def _unwatch_file(self, part: TailPart) -> None:
        if part.watched:
            self._listener.remove(part.watched)
            del self._of_path[part.watched]
            part.watched = ""
            part.watched_base = None
            part.is_watched = False

    def _notice(self, path: str | None) -> bool:
        """Look for messages after a change of files was reported, or as a poll. True: a task was served."""
        waiting = self.tasks_waiting_receive
        if path is None:
            self._has_listed = False
            for part in list(self._idle):
                self.wake(part)
        elif path in self._of_path:
            part = self._of_path[path]
            self._hand_over(part, part.reader.follow)
            self.wake(part)  # there may be more than `follow` reads
        elif (of_directory := self._directories.get(path)) is not None:
            self.wake(of_directory)
        else:
            self._has_listed = False
        self.look()
        return self.tasks_waiting_receive < waiting

    def writer_came(self, writer: NotifyingWriter) -> None:
        self._drop_changes()
        self._changes = writer.changes()
        for part in self.parts.values():
            part.reader.set_live(writer.live(part.index))
            if part.reader.live is not None:
                self._unwatch(part)
        self._look_at_all()
        if self.tasks_waiting_receive:
            self._begin_to_wait()

    def writer_left(self) -> None:
        self._drop_changes()
        for part in self.parts.values():
            part.reader.set_live(None)
        self._look_at_all()

    def _drop_changes(self) -> None:
        changes, self._changes = self._changes, None
        if changes is not None:
            changes.close()

    def _look_at_all(self) -> None:
        self._has_listed = False
        for part in list(self._idle):
            self.wake(part)
        self.look()

    def fail(self, failure: DiskqError | OSError) -> None:
        """Keep a failure that no call has met; the next receiver gets it."""
        self._failures.append(failure)
        self.look()

    # --- the end ----------------------------------------------------------------------------------

    def dismiss(self, tasks: Iterable[Task], why: str) -> None:
        """Wake the waiting ones of `tasks`, whose handle was closed."""
        for line in (self._receivers, self._lessee):
            line.dismiss(tasks, why)
        self._settle()

    def close(self) -> None:
        """Release everything. Idempotent."""
        self._is_closed = True
        self.gate.left = 0
        self._notifier.reader_leaves(self)
        self._drop_changes()
        self._listener.close()
        for part in self.parts.values():
            part.reader.close()
        self._turns.clear()
        self._idle.clear()
        self.own_thread.let_go()

    @property
    def tasks_waiting_receive(self) -> int:
        return len(self._receivers) + len(self._lessee)


def take_one(part: TailPart) -> Any:
    """Take the next message of `part`; for `take`."""
    message = part.ahead.take_now()
    assert message is not None, "the tail found one"
    return message


def _do_nothing(_: TailPart) -> None:
    return None


def _has_news(part: TailPart) -> bool:
    live = part.reader.live
    return live is not None and live.next_offset > part.position


def _is_over(part: TailPart) -> bool:
    return part.position >= part.limit
