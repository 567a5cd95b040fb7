# The loop behind a stream's producer: who sends, who waits for room, and when rows are written.
#
# Law: a send that returned left its record in the page cache; its rows follow before the sender
# lets others run, or as soon as the loop runs, which is then awake.

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import outcome
import trio

from diskq.channels.barrierthread import BarrierThread
from diskq.channels.budgetplace import BudgetPlace
from diskq.channels.commitloop import CommitLoop
from diskq.channels.neighbours import Neighbours
from diskq.channels.parking import Line
from diskq.engine.retention import RetentionReport
from diskq.engine.stream import Stream
from diskq.engine.streamreader import Producing
from diskq.errors import DiskqError
from diskq.messages import Position
from diskq.options import Durability
from diskq.storage.fs import FileSystem

__all__ = ["StreamLoop"]

logger = logging.getLogger("diskq")

R = TypeVar("R")


class StreamLoop(CommitLoop[Stream]):
    """One stream open for writing: the engine, who waits for room, and the task that keeps its promises."""

    kind = "stream"

    def __init__(self, engine: Stream, thread: BarrierThread, neighbours: Neighbours, fs: FileSystem) -> None:
        self.fs = fs
        self.options = engine.options
        self.door = engine.door
        self._neighbours = neighbours
        self.waiting = neighbours.waiting
        # So many bytes, which this puts in; and when he came, among all who share the budget.
        self._senders: Line[tuple[int, Callable[[], Any], int]] = Line()
        self._is_dropping = False  # old segments are being removed
        self._place = BudgetPlace(engine.share, self._hear_of_budget)
        self._has_written = False  # in the running slice; or much is written, slice by slice
        self._has_asked = False  # the loop for rows, in this slice
        super().__init__(engine, thread, (self._senders,))
        neighbours.writer_comes(self)

    def new_slice(self) -> None:
        self._has_written = self._has_asked
        self._has_asked = False
        super().new_slice()

    # --- sending ----------------------------------------------------------------------------------

    def send_simply(self, value: Any, key: Any, timestamp: Any) -> Position | None:
        """What the compiled door refused, where it is one of the simple cases after all: its Position.

        A single message is written at once, rows and all; where there are more in a slice, their rows
        wait for each other, until the running task lets others run: the loop, whose bell is rung, is
        among them. None: it is not simple; `deliver` it. Raises OSError; the message is then not in.
        """
        door = self.door
        if self._has_written and not self.waiting:
            self._ask_for_rows()
            return door.put_untimed(value, key, timestamp)
        door.is_awake = True
        position = door.put_through(value, key, timestamp)
        if position is None:
            door.is_awake = False
            return None
        if self.waiting:
            self.tell(position.partition)
        self._write_rows()
        return position

    def tell(self, partition: int | None = None) -> None:
        """Something was sent, to that partition only if it is given: call the readers who wait."""
        try:
            self.door.flush()
        except OSError:
            self._ask_for_rows()  # it is in: that it found no room is for the loop to tell
        self._neighbours.tell(partition)

    def _write_rows(self) -> None:
        """Have the rows of what is written follow: at once, or with others of this slice."""
        if self._has_written and not self.waiting:
            self._ask_for_rows()
            return
        self._has_written = True
        try:
            self.door.write_rows()
        except OSError:
            self._ask_for_rows()  # the records are in: that their rows found no room is for the loop to tell

    def _ask_for_rows(self) -> None:
        self._has_asked = True
        self.door.is_awake = True
        self._ask_for_flush()

    async def deliver(self, size: int, put_in: Callable[[], R], word: Durability) -> R:
        """Add checked messages of `size` bytes, all together, after waiting until there is room for them.

        `Cancelled` means: none of them is in the stream. The caller has passed a schedule point.
        """
        if self._senders or self._obstacle(size):
            # Whoever makes room puts them in for us, or somebody who comes later would get before us.
            result: R = await self._senders.wait(
                (size, lambda: self._put_in(put_in, word), self._place.arrival()),
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
        if self._senders or self._obstacle(size):
            raise trio.WouldBlock
        return self._accept(put_in, word)

    def _obstacle(self, size: int) -> bool:
        """Must somebody who brings `size` bytes wait? Raises DiskFullError where that is the policy."""
        obstacle = self.engine.obstacle(size)
        self._place.is_wanted = obstacle in ("over_budget", "others")
        if obstacle == "over_budget" and self.options.on_full != "wait":
            raise self.engine.full_error(size)
        if obstacle == "unsynced":
            self._ask_for_barrier()  # room comes with it
        elif obstacle == "droppable":
            self._make_room()
        return obstacle is not None

    # --- the budget -------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Have old segments removed: it takes syncs, so the thread does it that waits for those."""
        if not self._is_dropping:
            self._is_dropping = True
            wanted = self.engine.missing
            self._thread.do(lambda: self.engine.make_room(wanted), self._note_dropped)

    def _note_dropped(self, dropped: outcome.Outcome[RetentionReport]) -> None:
        self._is_dropping = False
        try:
            report = dropped.unwrap()
        except (OSError, DiskqError) as failure:
            # Nobody is told that what was to go is there still; who waits is refused.
            logger.warning("stream %r: old segments could not be removed: %s", self.engine.name, failure)
            report = RetentionReport(partitions=())
        if self._failure is None and not self.is_closing:
            self.engine.dropped(report)
            self._after()

    def _hear_of_budget(self) -> None:
        """Room came for who waits for it, or others want some."""
        if self._failure is None and not self.is_closing:
            if self.engine.is_pressed:
                self._make_room()
            self.engine.relieve()
            self._after()

    def _accept(self, put_in: Callable[[], R], word: Durability) -> R:
        try:
            return self._put_in(put_in, word)
        finally:
            self._after()

    def _put_in(self, put_in: Callable[[], R], word: Durability) -> R:
        try:
            return put_in()
        finally:
            if word == "memory":
                self._note_held(self.options.memory_flush)
            elif not self.engine.is_flushed:
                self._write_rows()

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
            self._admit_senders()
            if self.waiting:
                self.tell()
            self._open_gates()

    def _narrow_gates(self) -> None:
        if self._senders or self.is_closing or (self._is_full and not self.engine.is_flushed):
            self._shut_gates()
        self._place.take(self._senders.first[2] if self._senders and not self.is_closing else None)

    def _break(self, failure: BaseException) -> None:
        super()._break(failure)
        self._place.take(None)

    # --- for the readers of this run --------------------------------------------------------------

    def live(self, partition: int) -> Producing | None:
        return self.engine.live(partition)

    def begin_to_close(self) -> None:
        """As the base's; readers of this run go by the files from here on."""
        super().begin_to_close()
        if self._failure is None:
            # What is met here the last sync meets too, and tells.
            with contextlib.suppress(DiskqError, OSError):
                self.engine.flush()
        self._neighbours.writer_leaves()

    def _flush_held(self) -> None:
        super()._flush_held()
        if self.waiting:
            self.tell()  # of what was in memory only

    # --- for statistics ---------------------------------------------------------------------------

    @property
    def tasks_waiting_send(self) -> int:
        return len(self._senders) + len(self._unsynced) + len(self._syncing)
