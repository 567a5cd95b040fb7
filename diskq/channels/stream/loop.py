# The loop of a stream's producer: what all senders share, and also index entries and the disk budget.

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import outcome

from diskq.channels.core.budget_place import shared_bound
from diskq.channels.core.commit_loop import Beside
from diskq.channels.core.notifier import Notifier, WrittenPartitions
from diskq.channels.core.sender_line import Sending
from diskq.channels.core.sending_loop import GatheredRecords, LogAppends, SendingLoop
from diskq.channels.core.sync_executor import SyncExecutor
from diskq.engine.log.tail import BufferedEnd
from diskq.engine.stream.retention import RetentionReport
from diskq.engine.stream.steps import StreamSteps
from diskq.errors import DiskqError
from diskq.messages import Position
from diskq.storage.fs import FileSystem
from diskq.storage.log_events import Log
from diskq.storage.status_file import DiskBound

__all__ = ["StreamLoop"]

log = Log("stream")

R = TypeVar("R")


class GatheredStreamMessages(GatheredRecords[Position]):
    """Messages of a stream that wait to be written. Each gets a position."""

    __slots__ = ("_engine",)

    def __init__(self, engine: StreamSteps) -> None:
        super().__init__(engine.router.room, engine.router)
        self._engine = engine

    def _append_all(self) -> None:
        try:
            self._engine.accept_many(self.messages, None, None, is_held=False)
        finally:
            # If some messages of a partition are not in, they are its last ones.
            router = self._engine.router
            following, taken = dict(router.batch_starts), router.taken()
            ends = {partition: first + taken.get(partition, 0) for partition, first in following.items()}
            found: list[Position | None] = []
            for partition in router.routed_to():
                offset = following[partition]
                found.append(Position(partition, offset) if offset < ends[partition] else None)
                following[partition] = offset + 1
            self.places = found + [None] * (len(self.messages) - len(found))

    def _append_one(self, number: int) -> Position:
        key, value, timestamp = self.messages[number]
        return self._engine.accept(value, key, timestamp, is_held=False)


class StreamAppends(LogAppends[Position]):
    """How a stream's loop appends."""

    def __init__(self, engine: StreamSteps) -> None:
        self._engine = engine
        self.fast = self._router = engine.router

    def new_batch(self) -> GatheredStreamMessages:
        return GatheredStreamMessages(self._engine)

    def write_rest(self) -> None:
        self._router.write_rows()

    def partition_of(self, position: Position) -> int:
        return position.partition

    def live(self, partition: int) -> BufferedEnd | None:
        return self._engine.live(partition)

    def changes(self) -> WrittenPartitions:
        return self._router.changes()


class AgeAlarm(Beside):
    """Has the loop look, in time, at segments that end by their age."""

    def __init__(self, engine: StreamSteps, set_alarm: Callable[[float], None]) -> None:
        self._engine = engine
        self._set_alarm = set_alarm

    def go_on(self) -> None:
        self._set_alarm(self._engine.segment_due)


class StreamLoop(SendingLoop[StreamSteps, Position]):
    """One stream open for writing."""

    kind = "stream"
    subject = "stream"

    def __init__(
        self, engine: StreamSteps, executor: SyncExecutor, notifier: Notifier, fs: FileSystem
    ) -> None:
        self._is_dropping = False  # old segments are being removed
        beside = (AgeAlarm(engine, self._set_alarm),)
        super().__init__(engine, executor, notifier, fs, StreamAppends(engine), engine.share, beside)

    # --- sending ----------------------------------------------------------------------------------

    def _obstacle(self, sending: Sending) -> bool:
        obstacle = self.engine.obstacle(sending.size)
        if self._place is not None:
            self._place.note(obstacle)
        if obstacle == "over_budget" and self.engine.options.on_full != "wait":
            raise self.engine.full_error(sending.size)
        if obstacle == "unsynced":
            self._ask_for_barrier()  # it frees space
        elif obstacle == "droppable":
            self._make_room()
        return obstacle is not None

    # --- segments by age --------------------------------------------------------------------------

    def _after(self) -> None:
        if self._failure is None and not self.is_closing:
            self.engine.seal_aged()
        super()._after()

    # --- the budget -------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Remove old segments in a thread that executes barriers, because removal takes syncs."""
        if not self._is_dropping:
            self._is_dropping = True
            wanted = self.engine.missing
            self._executor.do(lambda: self.engine.make_room(wanted), self._note_dropped)

    def _note_dropped(self, dropped: outcome.Outcome[RetentionReport]) -> None:
        self._is_dropping = False
        try:
            report = dropped.unwrap()
        except (OSError, DiskqError) as failure:
            # A failed removal is only logged; waiting senders are refused.
            name = self.engine.name
            log.report(
                "removal_failed",
                "stream %r: old segments could not be removed: %s",
                name,
                failure,
                path=name,
                error=failure,
            )
            report = RetentionReport(partitions=())
        if self._failure is None and not self.is_closing:
            self._write_gathered()  # it was admitted for the space before the removal
            self.engine.dropped(report)
            self._after()

    def _relieve(self) -> None:
        self._write_gathered()
        if self.engine.is_contended:
            self._make_room()
        self.engine.relieve()

    def _bound(self) -> DiskBound:
        return shared_bound(self.engine.share)
