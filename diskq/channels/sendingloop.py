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

from diskq.channels.barrierthread import BarrierThread
from diskq.channels.commitloop import CommitLoop, Engine
from diskq.channels.gathering import Gathered
from diskq.channels.neighbours import Neighbours
from diskq.channels.parking import Line
from diskq.errors import DiskqError, StorageFailedError
from diskq.options import Durability

__all__ = ["Door", "GatheredMessages", "SendingLoop", "SendingOptions"]

E = TypeVar("E", bound=Engine[Any])
P = TypeVar("P")
R = TypeVar("R")


class Door(Protocol):
    """The compiled way into the log."""

    is_awake: bool
    """Does somebody see to it that what waits is written soon?"""

    def flush(self) -> None:
        """Write what waits. Raises OSError."""


class SendingOptions(Protocol):
    @property
    def durability(self) -> Durability: ...

    @property
    def checkpoint_slice(self) -> float: ...

    @property
    def memory_flush(self) -> float: ...


class GatheredMessages(Gathered[P]):
    """Messages of a log that wait to be written."""

    __slots__ = ()

    @abstractmethod
    def add(self, message: tuple[Any, ...], task: trio.lowlevel.Task) -> int:
        """Take a message along. Returns its number; -1: it needs judgement, or does not fit."""


class SendingLoop(CommitLoop[E], Generic[E, P]):
    """One log open for writing: the engine, who waits for room, and the task that keeps its promises.

    `P` is what a message gets: where it is. A subclass says what keeps senders waiting, and how one message
    goes through the compiled doors.
    """

    def __init__(
        self,
        engine: E,
        thread: BarrierThread,
        neighbours: Neighbours,
        door: Door,
        options: SendingOptions,
        put_untimed: Callable[..., P | None],
        put_through: Callable[..., P | None],
    ) -> None:
        self.options = options
        self.door = door
        self._put_untimed = put_untimed
        self._put_through = put_through
        self._neighbours = neighbours
        self.waiting = neighbours.waiting
        # So many bytes, which this puts in; and when he came, among all who wait for the same room.
        self._senders: Line[tuple[int, Callable[[], Any], int]] = Line()
        self._has_written = False  # in the running slice; or much is written, slice by slice
        self._has_asked = False  # the loop for the rest, in this slice
        self.gathered: GatheredMessages[P] | None = None
        """What waits to be written before the next barrier. Nothing passes a gate meanwhile."""
        super().__init__(engine, thread, (self._senders,))
        neighbours.writer_comes(self)

    def new_slice(self) -> None:
        self._has_written = self._has_asked
        self._has_asked = False
        super().new_slice()

    # --- for the subclass -------------------------------------------------------------------------

    @abstractmethod
    def _obstacle(self, size: int) -> bool:
        """Must somebody who brings `size` bytes wait? Raises DiskFullError where that is the policy."""

    def _arrival(self) -> int:
        """The place of somebody who begins to wait, among all who wait for the same room."""
        return 0

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
        if self._ticket is None and not self._unsynced:
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
        # It is not to wait on the slate: that it finds no room is for who sent it.
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
        self._neighbours.tell(partition)

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

    async def deliver(self, size: int, put_in: Callable[[], R], word: Durability) -> R:
        """Add checked messages of `size` bytes, all together, after waiting until there is room for them.

        `Cancelled` means: none of them is in. The caller has passed a schedule point.
        """
        self._write_gathered()
        if self._senders or self._obstacle(size):
            # Whoever makes room puts them in for us, or somebody who comes later would get before us.
            result: R = await self._senders.wait(
                (size, lambda: self._put_in(put_in, word), self._arrival()),
                on_arrival=self._narrow_gates,
                on_leave=self._after,
            )
            self.new_slice()
        else:
            result = self._accept(put_in, word)
        if word == "synced":
            await self.barrier(with_metadata=False)
        return result

    def deliver_now(self, size: int, put_in: Callable[[], R], word: Durability) -> R:
        """As `deliver`, for a caller that will not wait. Raises WouldBlock."""
        self._write_gathered()
        if self._senders or self._obstacle(size):
            raise trio.WouldBlock
        return self._accept(put_in, word)

    def _accept(self, put_in: Callable[[], R], word: Durability) -> R:
        try:
            return self._put_in(put_in, word)
        finally:
            self._after()

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

    def _admit_senders(self) -> None:
        """Let in who waits, in order, as far as there is room."""
        while self._senders:
            size, put_in, _ = self._senders.first
            has_obstacle = outcome.capture(self._obstacle, size)
            if has_obstacle == outcome.Value(True):
                break
            if isinstance(has_obstacle, outcome.Error):
                self._senders.wake_first(has_obstacle)
            else:
                self._senders.wake_first(outcome.capture(put_in))

    # --- after each act ---------------------------------------------------------------------------

    def _after(self) -> None:
        if self._failure is None and not self.is_closing:
            self._write_gathered()
            self._admit_senders()
            if self.waiting:
                self.tell()
            self._open_gates()

    def _narrow_gates(self) -> None:
        has_first = self._senders or self.gathered is not None  # who goes before who comes now
        if has_first or self.is_closing or (self._is_full and not self._writer.is_flushed):
            self._shut_gates()

    def _begin_barrier(self) -> None:
        self._write_gathered()
        super()._begin_barrier()

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
        self._neighbours.writer_leaves()

    def _flush_held(self) -> None:
        super()._flush_held()
        if self.waiting:
            self.tell()  # of what was in memory only

    # --- for statistics ---------------------------------------------------------------------------

    @property
    def tasks_waiting_send(self) -> int:
        return len(self._senders) + len(self._unsynced) + len(self._syncing)
