# The loop of a log's senders: sending, waiting for space, and the writes that follow a send.
#
# Law: when a send returns, its record is in the page cache; the rest (index entries, checksums) is written
# before the sender lets other tasks run, or as soon as the loop runs, which is then awake.

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from diskq.channels.core.commit_loop import Beside, Engine
from diskq.channels.core.event_loops.seam import Task, running_event_loop
from diskq.channels.core.gathering import LARGEST_GATHERED, MOST_GATHERED, Gathered
from diskq.channels.core.notifier import Notifier, WrittenPartitions
from diskq.channels.core.sender_line import AdmittingLoop, Sending, SendingOptions
from diskq.channels.core.sync_executor import SyncExecutor
from diskq.channels.core.waiting_line import Line
from diskq.engine.log.engine import Admission, Mode
from diskq.errors import DiskqError
from diskq.options import Durability
from diskq.storage.budget import BudgetShare
from diskq.storage.fs import FileSystem

__all__ = ["FastAppend", "GatheredRecords", "LogAppends", "SendingLoop"]

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)
R = TypeVar("R")


class Appender(Protocol[P_co]):
    """Appends one message at a time."""

    @property
    def append(self) -> Callable[..., P_co | None]:
        """Return the appended message's position; None: not simple, or the gate is shut. Raises OSError."""


class Gatherer(Protocol):
    """Adds messages to a batch."""

    batch: Any

    @property
    def add(self) -> Callable[..., int]:
        """Return the added message's number; -1: not simple, or there is no batch, or no space in it."""


class SentTo(Engine, Protocol):
    """A log that messages are sent to."""

    @property
    def options(self) -> SendingOptions: ...


class FastAppend(Protocol):
    """The compiled fast path into the log."""

    is_awake: bool
    """True if the loop is awake and will soon write what is staged."""

    def appender(self, mode: Mode, admission: Admission) -> Appender[Any]: ...

    def gathering(self, current_task: Callable[[], Task], largest: int) -> Gatherer:
        """Return what adds the running task's messages to a batch."""

    @property
    def records(self) -> int:
        """Records that were appended through it."""

    def flush(self) -> None:
        """Write what is staged. Raises OSError."""


E = TypeVar("E", bound=SentTo)


class GatheredRecords(Gathered[P]):
    """Messages of a log that wait to be written through its fast path. A subclass appends them."""

    __slots__ = ("_fast",)

    def __init__(self, room: int, fast: FastAppend) -> None:
        """`room`: about how many bytes fit in all."""
        super().__init__(min(room, MOST_GATHERED))
        self._fast = fast

    @abstractmethod
    def _append_all(self) -> None:
        """Append all messages, and set `places`, also if it fails."""

    @abstractmethod
    def _append_one(self, number: int) -> P:
        """Append that message, and return its position."""

    def write_all(self) -> None:
        with self._written_at_once():
            self._append_all()

    def _write_one(self, number: int) -> P:
        with self._written_at_once():
            return self._append_one(number)

    @contextlib.contextmanager
    def _written_at_once(self) -> Iterator[None]:
        """Let nothing stay in the write-ahead log: a sender must get the error if the disk is full."""
        fast = self._fast
        is_awake, fast.is_awake = fast.is_awake, False
        try:
            yield
        finally:
            fast.is_awake = is_awake


class LogAppends(ABC, Generic[P]):
    """What a loop has to append to a log of its kind. `P` is the position that a message gets."""

    fast: FastAppend

    @abstractmethod
    def new_batch(self) -> Gathered[P]:
        """Return an empty batch that holds as much as the fast path's buffer."""

    @abstractmethod
    def write_rest(self) -> None:
        """Write the rest of the written records, such as index entries. Raises OSError."""

    def partition_of(self, position: P) -> int:
        """Return the partition of a position."""
        return 0

    @abstractmethod
    def live(self, partition: int) -> Any:
        """Return the object by which readers of this run see the partition's newest messages at once."""

    def changes(self) -> WrittenPartitions | None:
        """Return the object that notes which partitions were written to; None if there is only one."""
        return None


class SendingLoop(AdmittingLoop[E, Sending], Generic[E, P]):
    """One log open for writing: the engine, the waiting senders, and the task that writes and syncs.

    It has its kind's `LogAppends`. A subclass defines what keeps senders waiting.
    """

    def __init__(
        self,
        engine: E,
        executor: SyncExecutor,
        notifier: Notifier,
        fs: FileSystem,
        appends: LogAppends[P],
        share: BudgetShare | None = None,
        beside: Iterable[Beside] = (),
    ) -> None:
        self.options = engine.options
        self.fs = fs
        self.appends = appends
        self.fast_append = fast_append = appends.fast
        staged = fast_append.appender(Mode.STAGED, Admission.COUNTED)
        written = fast_append.appender(Mode.WRITTEN, Admission.COUNTED)
        self._put_untimed: Callable[..., P | None] = staged.append
        self._put_through: Callable[..., P | None] = written.append
        self._notifier = notifier
        self.waiting = notifier.waiting
        self._senders: Line[Sending] = Line()
        self._slice = -1  # the last slice in which it was used, and what was done in it:
        self._has_written = False  # something was written; or the slice before asked the loop for the rest
        self._has_asked = False  # the loop was asked to write the rest
        # While there is a batch, no message passes a gate.
        self.gathering = fast_append.gathering(running_event_loop().current_task, LARGEST_GATHERED)
        super().__init__(engine, executor, (self._senders,), (), share, beside)
        notifier.writer_comes(appends)

    def _note_slice(self) -> None:
        """Note whether another slice than the last one runs."""
        if self._slice != self._clock.slices:
            self._slice = self._clock.slices
            self._has_written = self._has_asked
            self._has_asked = False

    # --- sending ----------------------------------------------------------------------------------

    def send_simply(self, *message: Any) -> P | None:
        """Append a message that the fast path refused, if it is a simple case. Returns its position.

        The first message of a slice is written at once, with its index entry; later ones of the same slice
        are staged, and the loop, which was woken, writes them together when the running task lets other tasks
        run. None: the case is not simple; `deliver` the message. Raises OSError; the message is then not in.
        """
        self.own_thread.check()
        fast = self.fast_append
        if self.gathering.batch is not None:
            self._write_gathered()
            self._open_gates()
        self._note_slice()
        if self._has_written and not self.waiting:
            self._ask_for_rest()
            return self._put_untimed(*message)
        fast.is_awake = True
        position = None
        try:
            position = self._put_through(*message)
        finally:
            if position is None:
                fast.is_awake = False
        if position is None:
            return None
        if self.waiting:
            self.notify_readers(self.appends.partition_of(position))
        self._follow_up()
        return position

    def send_through(self, *message: Any) -> P | None:
        """Write one message through the fast path, for a caller that then waits for a `barrier`.

        None: it is not simple; `deliver` it. Raises OSError; the message is then not in.
        """
        fast = self.fast_append
        is_awake, fast.is_awake = fast.is_awake, True  # the loop need not be: nothing is left to write
        try:
            position = self._put_through(*message)
        finally:
            fast.is_awake = is_awake
        if position is not None and self.waiting:
            self.notify_readers(self.appends.partition_of(position))
        return position

    def _begin_gathering(self) -> Gathered[P] | None:
        for gate in self._gates:
            if gate.left <= 0:
                return None
        return self.appends.new_batch()

    def _written(self) -> None:
        if self.waiting:
            self.notify_readers()

    def notify_readers(self, partition: int | None = None) -> None:
        """Call the waiting readers: something was sent, only to `partition` if it is given."""
        try:
            self.fast_append.flush()
        except OSError:
            self._ask_for_rest()  # the message is in: the loop tries again, and reports a full disk
        self._notifier.notify(partition)

    def _follow_up(self) -> None:
        """Write the rest of the written records: at once, or together with others of this slice."""
        self._note_slice()
        if self._has_written and not self.waiting:
            self._ask_for_rest()
            return
        self._has_written = True
        try:
            self.appends.write_rest()
        except OSError:
            self._ask_for_rest()  # the records are in: the loop writes the rest, and reports a full disk

    def _ask_for_rest(self) -> None:
        self._note_slice()
        self._has_asked = True
        self.fast_append.is_awake = True
        self._ask_for_flush()

    def sending(self, size: int, put_in: Callable[[], Any], level: Durability) -> Sending:
        """Return a `Sending` of checked messages of `size` bytes, for `deliver`."""
        return Sending(self._senders, size, lambda: self._put_in(put_in, level), level)

    def _put_in(self, put_in: Callable[[], R], level: Durability) -> R:
        if level == "synced":
            # It is written now, so that the sender gets the error of a full disk.
            self.fast_append.is_awake = False
        try:
            return put_in()
        finally:
            if level == "memory":
                self._note_held(self.options.memory_flush)
            elif not self._writer.is_flushed:
                self._follow_up()

    # --- after each act ---------------------------------------------------------------------------

    def _after(self) -> None:
        if self._failure is None and not self.is_closing:
            self._write_gathered()
            self._admit(self._senders)
            if self.waiting:
                self.notify_readers()
            self._open_gates()

    def _narrow_gates(self) -> None:
        has_first = self._senders or self.gathering.batch is not None  # they go before one that comes now
        if has_first or self.is_closing or (self._is_full and not self._writer.is_flushed):
            self._shut_gates()
        if self._place is not None:
            self._place.stand_for(self._senders, is_closing=self.is_closing)

    # --- for the readers of this run --------------------------------------------------------------

    def begin_to_close(self) -> None:
        """Begin to close as the base class; readers of this run go by the files from here on."""
        self._write_gathered()
        super().begin_to_close()
        if self._failure is None:
            # The last sync meets the same failure, and reports it.
            with contextlib.suppress(DiskqError, OSError):
                self._writer.flush()
        self._notifier.writer_leaves()

    def _flush_held(self) -> None:
        super()._flush_held()
        if self.waiting:
            self.notify_readers()  # messages that were only in memory are readable now
