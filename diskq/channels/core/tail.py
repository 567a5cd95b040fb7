# The partitions that a consumer reads, or the journals that a scanner does: whose turn it is, which have
# caught up, and who waits.
#
# Law: a partition that has caught up is looked at again only after somebody told of a change, and
# nobody's change can fall between the last look and the wait: first it is watched, then looked at,
# then left. Partitions with messages take turns. Whoever waits is woken in order of arrival, with
# what he waits for in his hands.
#
# Who tells: the writer, if it is in this run (neighbours); else the kernel, of the file that is read (of a
# stream, its index) and of the directory it is in (watch); else nobody, and all are looked at now and then.

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, Protocol, TypeVar

import outcome
import trio

from diskq.channels.core.commit_loop import EngineGate
from diskq.channels.core.notifier import Beside, NotifyingWriter
from diskq.channels.core.own_thread import OwnThread
from diskq.channels.core.waiting_line import Line
from diskq.channels.core.watch import Listener, listen
from diskq.engine.log.reader import LiveEnd, SkippedBytes
from diskq.errors import DiskqError, StorageFailedError
from diskq.storage.fs import FileSystem
from diskq.storage.log_events import Log

__all__ = ["Tail", "TailPart", "TailReader", "take_one"]

log = Log("reading")

T = TypeVar("T")

# So many messages of one partition, then it is the next one's turn.
_TURN = 256


class TailReader(Protocol):
    """A log's reader whose writer, if it is in this thread, comes and goes while it reads."""

    losses: list[SkippedBytes]

    @property
    def ahead(self) -> Any:
        """What was read and is not handed out yet, with its compiled doors."""

    @property
    def live(self) -> LiveEnd | None:
        """Where its writer is; None: not in this thread."""

    @property
    def base(self) -> int | None:
        """The segment that it is in; None: it has none open."""

    def produced_by(self, live: Any) -> None:
        """From now on, somebody in this thread writes there; None: nobody does any more."""

    def fill(self) -> bool:
        """Have messages behind the fast doors. False: there are none now."""

    def catch_up(self) -> bool:
        """The same, of what its writer has just written. False: `fill`, or wait."""

    def follow(self) -> bool:
        """The same, of what a writer elsewhere has."""

    def next_offset(self) -> int:
        """The offset behind the last message there is."""

    def seek(self, offset: int) -> None:
        """Be at that message. Raises OffsetOutOfRangeError, OSError."""

    def close(self) -> None:
        """Hold nothing open, and stay at the position."""


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
        """Segments are in `directory`; `growing(base)` is the file that grows with each message of one."""
        self.index = index
        self.directory = directory
        self.growing = growing
        self.reader = reader
        self.ahead = reader.ahead
        self.limit = limit
        """The offset behind the last message that is to be delivered."""
        self.watched = ""
        """The file that is watched,"""
        self.watched_base: int | None = None
        """and its segment."""
        self.is_told = False
        """Is somebody told when it grows?"""
        self.lost = 0
        """Messages known to be lost to damage."""
        self._seen_end: int | None = None

    @property
    def position(self) -> int:
        """The offset of the message that comes next."""
        return self.ahead.next_offset  # type: ignore[no-any-return]

    @property
    def lag(self) -> int | None:
        """Messages that are there and were not handed out, as far as is known. Looks at no file."""
        live = self.reader.live
        end = self._seen_end if live is None else live.next_offset
        return None if end is None else max(0, end - self.position)

    def look(self) -> None:
        """Know of what is there now. Looks at the files, in any thread. Raises DiskqError, OSError."""
        self._seen_end = self.reader.next_offset()


class Tail:
    """The partitions of one open consumer. Its state is touched by Trio's thread only."""

    def __init__(
        self, fs: FileSystem, gate: EngineGate, notifier: Beside, kind: str, checkpoint_slice: float
    ) -> None:
        """`gate` is that of all readers' fast doors; `kind` is what people call who reads."""
        self.is_strict = checkpoint_slice == 0
        self.parts: dict[int, TailPart] = {}
        self.losses: list[SkippedBytes] = []
        self.gate = gate
        self.on_turn: Callable[[TailPart], None] = _do_nothing
        """Called with the partition whose fast doors are open."""
        self.on_new_partitions: Callable[[], None] | None = None
        """Called when there may be partitions that nobody has added. May raise DiskqError, OSError."""
        self.is_open_ended = False
        """May there be partitions later that are to be read? Then it does not end with those there are."""
        self._notifier = notifier
        self._turns: deque[TailPart] = deque()  # those that may have messages; the first has its turn
        self._served: TailPart | None = None  # whose turn it was last
        self._idle: dict[TailPart, None] = {}  # those that have none, until somebody tells of a change
        self._receivers: Line[Callable[[TailPart], Any]] = Line()  # each is handed what this returns
        self._lessee: Line[Callable[[TailPart], Any]] = Line()  # who keeps the others waiting, waits for more
        self._failures: deque[DiskqError | OSError] = deque()  # met while nobody asked
        self._is_leased = False
        self._is_closed = False
        self._has_listed = True
        self._listener: Listener = listen(fs, self._notice)
        self._directories: dict[str, TailPart | None] = {}  # that are watched; None: that of all partitions
        self._of_path: dict[str, TailPart] = {}
        self.own_thread = OwnThread(f"this {kind}", gate.guard)
        notifier.reader_comes(self)

    # --- which partitions -------------------------------------------------------------------------

    def add(self, part: TailPart) -> None:
        self.parts[part.index] = part
        writer = self._notifier.writer
        part.reader.produced_by(writer.live(part.index) if writer is not None else None)
        self._idle[part] = None
        self.wake(part)

    def watch_for_partitions(self, directory: str) -> None:
        """Call `on_new_partitions` when there may be any: something has come in their directory, or gone."""
        self._watch_directory(directory, None)
        self._has_listed = False  # what came before it was watched, nobody tells of

    def wake(self, part: TailPart) -> None:
        """It may have messages."""
        if part in self._idle:
            del self._idle[part]
            self._turns.append(part)

    def moved(self, part: TailPart) -> None:
        """Somebody has put its reader elsewhere: look at it anew."""
        self.gate.left = 0
        self._idle.pop(part, None)
        if part not in self._turns:
            self._turns.append(part)

    def rewind(self, part: TailPart, offset: int) -> None:
        """Go on at `offset`; whether it is still there is found out when it is read."""
        part.reader.close()
        part.reader.ahead.next_offset = offset
        self.moved(part)

    # --- for the handle ---------------------------------------------------------------------------

    async def schedule_point(self) -> None:
        """Let others run if the running task's slice is over."""
        if self.gate.is_slice_over:
            await trio.lowlevel.checkpoint()
            self.gate.restart()

    def check(self) -> None:
        """Raises BusyError in another thread than its own."""
        self.own_thread.check()

    def broke(self, failure: StorageFailedError) -> NoReturn:
        """It was a writer's in this run, who tells its own callers: the reader's stays as it is."""
        raise failure

    # --- taking -----------------------------------------------------------------------------------

    async def take(self, want: Callable[[TailPart], T]) -> T:
        """What `want` takes from a partition that has messages, when it is our turn.

        `Cancelled` means: nothing was taken. Raises EndOfChannel where all have ended, and what reading
        raises. The caller has passed a schedule point.
        """
        if not self._receivers and not self._is_leased:
            self._wake_written()
            if (part := self._find()) is not None:
                return want(part)
            self._check_end()
        return await self._wait(self._receivers, want)

    async def take_leased(self, want: Callable[[TailPart], T]) -> T:
        """As `take`, for who has the lease."""
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
        self.gate.restart()
        return result

    def take_now(self, want: Callable[[TailPart], T]) -> T:
        """As `take`, for a caller that will not wait. Raises WouldBlock."""
        if not self._receivers and not self._is_leased:
            self._wake_written()
            if (part := self._find()) is not None:
                return want(part)
            self._check_end()
        raise trio.WouldBlock

    def _find(self) -> TailPart | None:
        """The partition whose turn it is, with a message behind its fast doors. Raises what reading does."""
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
                self.on_turn(part)
                return part
            else:
                turns.popleft()
                self._idle[part] = None
            gate.left = 0
        return None

    def find_more(self) -> TailPart | None:
        """As `take` finds one, for who has messages in hand: what goes wrong the next one will meet."""
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
            self._turns.rotate(-1)  # the others are to be heard as well
            self._served = None
            self.gate.left = 0
            raise
        finally:
            if part.reader.losses:
                self._note_losses(part)
        return has_more

    def _wake_written(self) -> None:
        """What the writer in this run has written without anybody waiting for it."""
        if self._notifier.writer is not None:
            for part in [part for part in self._idle if _has_news(part)]:
                self.wake(part)

    def _note_losses(self, part: TailPart) -> None:
        for gap in part.reader.losses:
            log.report(
                "gap",
                "%s",
                gap,
                path=gap.path,
                offset=gap.offset,
                count=gap.count,
                dropped_bytes=gap.end - gap.start,
                reason=gap.reason,
            )
            part.lost += gap.count
        self.losses += part.reader.losses
        part.reader.losses.clear()

    @property
    def has_ended(self) -> bool:
        """Has everything been delivered that is to be?"""
        return not self.is_open_ended and not self._turns and all(_is_over(part) for part in self._idle)

    def _check_end(self) -> None:
        if self.has_ended:
            raise trio.EndOfChannel

    def lease(self) -> None:
        """Keep everybody else from taking, until `release`."""
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
        """The short way, for a message that is waited for: True if there was one, and no more was ready."""
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
            return False  # who reads it next meets it again, and tells
        self.on_turn(part)
        self.gate.left = 0
        self._receivers.wake_first(outcome.Value(take_one(part)))
        return not part.ahead.is_ready

    def _hand_out(self) -> None:
        """Give those who wait what they wait for, in order, as far as the messages go."""
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

    # --- who tells of changes ---------------------------------------------------------------------

    def _watch(self, part: TailPart) -> bool:
        """Be told of what comes in a partition that has caught up. True: only from now on, so look again."""
        if part.reader.live is not None:
            return False
        base = part.reader.base
        if base == part.watched_base and part.is_told:
            return False
        is_new = self._watch_directory(part.directory, part)
        if base != part.watched_base:
            self._unwatch_file(part)
            if base is not None:
                part.watched, part.watched_base = part.growing(base), base
                self._of_path[part.watched] = part
        if part.watched and not part.is_told:
            part.is_told = self._listener.add_file(part.watched)
            is_new |= part.is_told
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
            part.is_told = False

    def _notice(self, path: str | None) -> bool:
        """A change of files was told, or it is time to look. True: there is something new."""
        waiting = self.tasks_waiting_receive
        if path is None:
            self._has_listed = False
            for part in list(self._idle):
                self.wake(part)
        elif path in self._of_path:
            part = self._of_path[path]
            self._hand_over(part, part.reader.follow)
            self.wake(part)  # there may be more, of which less is certain
        elif (of_directory := self._directories.get(path)) is not None:
            self.wake(of_directory)
        else:
            self._has_listed = False
        self.look()
        return self.tasks_waiting_receive < waiting

    def writer_came(self, writer: NotifyingWriter) -> None:
        for part in self.parts.values():
            part.reader.produced_by(writer.live(part.index))
            if part.reader.live is not None:
                self._unwatch(part)
        self._look_at_all()
        if self.tasks_waiting_receive:
            self._begin_to_wait()

    def writer_left(self) -> None:
        for part in self.parts.values():
            part.reader.produced_by(None)
        self._look_at_all()

    def _look_at_all(self) -> None:
        self._has_listed = False
        for part in list(self._idle):
            self.wake(part)
        self.look()

    def fail(self, failure: DiskqError | OSError) -> None:
        """Something went wrong behind everybody's back: who asks next is told."""
        self._failures.append(failure)
        self.look()

    # --- the end ----------------------------------------------------------------------------------

    def dismiss(self, tasks: Iterable[trio.lowlevel.Task], why: str) -> None:
        """Wake those of the tasks that wait: their handle was closed."""
        for line in (self._receivers, self._lessee):
            line.dismiss(tasks, why)
        self._settle()

    def close(self) -> None:
        """Let go of everything. Idempotent."""
        self._is_closed = True
        self.gate.left = 0
        self._notifier.reader_leaves(self)
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
    """For `take`: the next message."""
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
