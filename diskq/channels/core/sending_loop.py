# The loop behind who sends messages to a log: who sends, who waits for room, and what follows a send.
#
# Law: a send that returned left its record in the page cache; what belongs to it follows before the
# sender lets others run, or as soon as the loop runs, which is then awake.

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import outcome
import trio

from diskq.channels.core.barrier_thread import BarrierThread
from diskq.channels.core.commit_loop import Engine
from diskq.channels.core.gathering import Gathered
from diskq.channels.core.notifier import Notifier
from diskq.channels.core.sender_line import AdmittingLoop, Sending, SendingOptions
from diskq.channels.core.waiting_line import Line
from diskq.engine.log.append_mode import Admission, Mode
from diskq.errors import DiskqError, StorageFailedError
from diskq.options import Durability
from diskq.storage.fs import FileSystem

__all__ = ["FastAppend", "GatheredMessages", "SendingLoop"]

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)
R = TypeVar("R")


class Appender(Protocol[P_co]):
    """Appends one message at a time."""

    @property
    def append(self) -> Callable[..., P_co | None]:
        """Returns where the message is; None: it is not simple, or the gate is shut. Raises OSError."""


class SentTo(Engine, Protocol):
    """A log that messages are sent to."""

    @property
    def options(self) -> SendingOptions: ...


class FastAppend(Protocol):
    """The compiled way into the log."""

    is_awake: bool
    """Does somebody see to it that what waits is written soon?"""

    def appender(self, mode: Mode, admission: Admission) -> Appender[Any]: ...

    @property
    def records(self) -> int:
        """How many came through it."""

    def flush(self) -> None:
        """Write what waits. Raises OSError."""


class GatheredMessages(Gathered[P]):
    """Messages of a log that wait to be written."""

    __slots__ = ()

    @abstractmethod
    def add(self, message: tuple[Any, ...], task: trio.lowlevel.Task) -> int:
        """Take a message along. Returns its number; -1: it needs judgement, or does not fit."""


E = TypeVar("E", bound=SentTo)


class SendingLoop(AdmittingLoop[E, Sending], Generic[E, P]):
    """One log open for writing: the engine, who waits for room, and the task that keeps its promises.

    `P` is what a message gets: where it is. A subclass says what keeps senders waiting, and how one message
    goes through the compiled doors.
    """

    def __init__(
        self,
        engine: E,
        thread: BarrierThread,
        notifier: Notifier,
        fs: FileSystem,
        door: FastAppend,
    ) -> None:
        self.options = engine.options
        self.fs = fs
        self.door = door
        self._put_untimed: Callable[..., P | None] = door.appender(Mode.STAGED, Admission.COUNTED).append
        self._put_through: Callable[..., P | None] = door.appender(Mode.WRITTEN, Admission.COUNTED).append
        self._notifier = notifier
        self.waiting = notifier.waiting
        self._senders: Line[Sending] = Line()
        self._has_written = False  # in the running slice; or much is written, slice by slice
        self._has_asked = False  # the loop for the rest, in this slice
        self.gathered: GatheredMessages[P] | None = None
        """What waits to be written before the next barrier. Nothing passes a gate meanwhile."""
        super().__init__(engine, thread, (self._senders,))
        notifier.writer_comes(self)

    def new_slice(self) -> None:
        self._has_written = self._has_asked
        self._has_asked = False
        super().new_slice()

    # --- for the subclass -------------------------------------------------------------------------

    @abstractmethod
    def _write_rest(self) -> None:
        """Write what belongs to the records that are written. Raises OSError."""

    @abstractmethod
    def _begin_gathering(self) -> GatheredMessages[P]:
        """For what fits into the door's room."""

    def partition_of(self, position: P) -> int:
        """Which partition that is in."""
        return 0

    @abstractmethod
    def live(self, partition: int) -> Any:
        """For readers of this run: as `Writing.live`."""

    # --- sending ----------------------------------------------------------------------------------

    def send_simply(self, *message: Any) -> P | None:
        """What the compiled door refused, where it is one of the simple cases after all: where it is now.

        A single message is written at once, and what belongs to it; where there are more in a slice, they
        wait for each other, until the running task lets others run: the loop, whose bell is rung, is
        among them. None: it is not simple; `deliver` it. Raises OSError; the message is then not in.
        """
        self.own_thread.check()
        door = self.door
        if self.gathered is not None:
            self._write_gathered()
            self._open_gates()
        if self._has_written and not self.waiting:
            self._ask_for_rest()
            return self._put_untimed(*message)
        door.is_awake = True
        position = self._put_through(*message)
        if position is None:
            door.is_awake = False
            return None
        if self.waiting:
            self.tell(self.partition_of(position))
        self._follow_up()
        return position

    def send_through(self, *message: Any) -> P | None:
        """Write one message through the compiled door, for a caller who then waits for a `barrier`.

        None: it is not simple; `deliver` it. Raises OSError; the message is then not in.
        """
        door = self.door
        is_awake, door.is_awake = door.is_awake, True  # nobody need be: nothing is left to be written
        position = self._put_through(*message)
        door.is_awake = is_awake
        if position is not None and self.waiting:
            self.tell(self.partition_of(position))
        return position

    def gather(self) -> GatheredMessages[P] | None:
        """What a synced message may be added to, if its sender then waits for a `barrier` at once.

        None: it would be alone (`send_through`), or is not simple; `deliver` it.
        """
        if self._in_flight is None and not self._unsynced:
            return None
        for gate in self._gates:
            if gate.left <= 0:
                return None
        self.gathered = self._begin_gathering()
        self._shut_gates()  # who comes now writes them first
        return self.gathered

    def _write_gathered(self) -> None:
        """Write what was gathered, before anything else. Where the storage fails, the loop is broken."""
        gathered, self.gathered = self.gathered, None
        if gathered is None:
            return
        door = self.door
        # It is not to wait on the write-ahead log: that it finds no room is for who sent it.
        is_awake, door.is_awake = door.is_awake, False
        try:
            for task, failure in gathered.write():
                self._unsynced.wake(task, outcome.Error(failure))
        except StorageFailedError as failure:
            self._break(failure)
            return
        door.is_awake = is_awake
        if self.waiting:
            self.tell()

    def tell(self, partition: int | None = None) -> None:
        """Something was sent, to that partition only if it is given: call the readers who wait."""
        try:
            self.door.flush()
        except OSError:
            self._ask_for_rest()  # it is in: that it found no room is for the loop to tell
        self._notifier.tell(partition)

    def _follow_up(self) -> None:
        """Have the rest of what is written follow: at once, or with others of this slice."""
        if self._has_written and not self.waiting:
            self._ask_for_rest()
            return
        self._has_written = True
        try:
            self._write_rest()
        except OSError:
            self._ask_for_rest()  # they are in: that the rest found no room is for the loop to tell

    def _ask_for_rest(self) -> None:
        self._has_asked = True
        self.door.is_awake = True
        self._ask_for_flush()

    def sending(self, size: int, put_in: Callable[[], Any], word: Durability) -> Sending:
        """Checked messages of `size` bytes, for `deliver`."""
        return Sending(self._senders, size, lambda: self._put_in(put_in, word), word)

    def _must_wait(self, sending: Sending) -> bool:
        self._write_gathered()
        return super()._must_wait(sending)

    def _put_in(self, put_in: Callable[[], R], word: Durability) -> R:
        if word == "synced":
            self.door.is_awake = False  # it is written now: whether there is room is for its sender to hear
        try:
            return put_in()
        finally:
            if word == "memory":
                self._note_held(self.options.memory_flush)
            elif not self._writer.is_flushed:
                self._follow_up()

    # --- after each act ---------------------------------------------------------------------------

    def _after(self) -> None:
        if self._failure is None and not self.is_closing:
            self._write_gathered()
            self._admit(self._senders)
            if self.waiting:
                self.tell()
            self._open_gates()

    def _narrow_gates(self) -> None:
        has_first = self._senders or self.gathered is not None  # who goes before who comes now
        if has_first or self.is_closing or (self._is_full and not self._writer.is_flushed):
            self._shut_gates()

    def _begin_sync(self) -> None:
        self._write_gathered()
        super()._begin_sync()

    def _break(self, failure: BaseException) -> None:
        self.gathered = None  # who sent it waits for a barrier, and is told
        super()._break(failure)

    # --- for the readers of this run --------------------------------------------------------------

    def begin_to_close(self) -> None:
        """As the base's; readers of this run go by the files from here on."""
        self._write_gathered()
        super().begin_to_close()
        if self._failure is None:
            # What is met here the last sync meets too, and tells.
            with contextlib.suppress(DiskqError, OSError):
                self._writer.flush()
        self._notifier.writer_leaves()

    def _flush_held(self) -> None:
        super()._flush_held()
        if self.waiting:
            self.tell()  # of what was in memory only
