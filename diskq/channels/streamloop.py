# The loop behind a stream's producer: what is its own beside sending: rows in indexes, and a budget's room.

from __future__ import annotations

from typing import TypeVar

import outcome

from diskq.channels.barrierthread import BarrierThread
from diskq.channels.budgetplace import BudgetPlace, shared_bound
from diskq.channels.neighbours import Neighbours
from diskq.channels.sendingloop import SendingLoop
from diskq.engine.logtail import Lending
from diskq.engine.retention import RetentionReport
from diskq.engine.stream import Stream
from diskq.errors import DiskqError
from diskq.messages import Position
from diskq.storage.fs import FileSystem
from diskq.storage.logs import Log
from diskq.storage.statusnote import Bound

__all__ = ["StreamLoop"]

log = Log("stream")

R = TypeVar("R")


class StreamLoop(SendingLoop[Stream, Position]):
    """One stream open for writing."""

    kind = "stream"
    subject = "stream"

    def __init__(self, engine: Stream, thread: BarrierThread, neighbours: Neighbours, fs: FileSystem) -> None:
        self.fs = fs
        door = self._rows = engine.door
        self._is_dropping = False  # old segments are being removed
        self._place = BudgetPlace(engine.share, self._hear_of_budget)
        super().__init__(engine, thread, neighbours, door, engine.options, door.put_untimed, door.put_through)

    def live(self, partition: int) -> Lending | None:
        return self.engine.live(partition)

    # --- sending ----------------------------------------------------------------------------------

    def _write_rest(self) -> None:
        self._rows.write_rows()

    def partition_of(self, position: Position) -> int:
        return position.partition

    def _arrival(self) -> int:
        return self._place.arrival()

    def _obstacle(self, size: int) -> bool:
        obstacle = self.engine.obstacle(size)
        self._place.is_wanted = obstacle in ("over_budget", "others")
        if obstacle == "over_budget" and self.engine.options.on_full != "wait":
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
            name = self.engine.name
            log.tell(
                "removal_failed",
                "stream %r: old segments could not be removed: %s",
                name,
                failure,
                path=name,
                error=failure,
            )
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

    def _bound(self) -> Bound:
        return shared_bound(self.engine.share)

    # --- after each act ---------------------------------------------------------------------------

    def _narrow_gates(self) -> None:
        super()._narrow_gates()
        self._place.take(self._senders.first[2] if self._senders and not self.is_closing else None)

    def _break(self, failure: BaseException) -> None:
        super()._break(failure)
        self._place.take(None)
