# The loop of a priority store: sending, receiving, and the tasks that wait for each queue.
#
# Law: within a queue senders are admitted, and receivers served, in order of arrival; a receiver is woken
# with messages that are already leased to it alone. Senders that wait for a sync are served in order of
# arrival among all queues.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import outcome
import trio

from diskq.channels.core.event_loops.seam import EventLoop
from diskq.channels.core.gathering import LARGEST_GATHERED, MOST_GATHERED
from diskq.channels.core.sender_line import AdmittingLoop, Sending
from diskq.channels.core.sync_executor import SyncExecutor
from diskq.channels.core.waiting_line import Line
from diskq.channels.priority.snapshots import Snapshots
from diskq.engine.priority.state import StoredQueue
from diskq.engine.priority.steps import AddBatch, PrioritySteps, QueueCalls
from diskq.engine.priority.store import PriorityRecord
from diskq.errors import NotFoundError, StorageFailedError
from diskq.options import Durability, PriorityOptions
from diskq.storage.fs import FileSystem

__all__ = ["PriorityLoop", "QueueLines"]

T = TypeVar("T")

Want = Callable[[], list[PriorityRecord] | None]


@dataclass(slots=True)
class RecordSending(Sending):
    """The checked messages of one sender to one queue."""

    lines: QueueLines
    count: int


class QueueLines:
    """The tasks that wait for one queue."""

    def __init__(self, queue: StoredQueue, calls: QueueCalls, event_loop: EventLoop) -> None:
        self.queue = queue
        self.calls = calls
        self.senders: Line[RecordSending] = Line()
        self.receivers: Line[Want] = Line()  # each is handed what this returns
        calls.senders, calls.receivers = self.senders, self.receivers
        calls.running = event_loop.compiled_test()


class GatheredAdds(AddBatch):
    """Messages of a store that wait to be written. Each has an id once it is."""

    engine: PrioritySteps

    def write_all(self) -> None:
        self.engine.add_batch(self)

    def write_one(self, number: int) -> None:
        queue, body, key = self.message(number)
        self.set_id(number, self.engine.add(queue, [body], key, "synced")[0])

    def is_in(self, number: int) -> int:
        return self.id_of(number)


class PriorityLoop(AdmittingLoop[PrioritySteps, RecordSending]):
    """One open store: the engine, the waiting tasks, and the task that writes and syncs."""

    kind = "priority store"
    subject = "priority"
    options: PriorityOptions

    def __init__(self, engine: PrioritySteps, executor: SyncExecutor, fs: FileSystem) -> None:
        self.options = engine.options
        self._queues: dict[StoredQueue, QueueLines] = {}
        # The queues with tasks in line, and some whose line has become empty.
        self._sending: dict[QueueLines, None] = {}
        self._receiving: dict[QueueLines, None] = {}
        self._arrivals = count()
        self.gathering = self._buffer = engine.buffer
        self._waits_for_sync = False  # senders wait for the space that a sync frees
        self.snapshots = Snapshots(engine, fs, self._ring, self._ask_for_barrier)
        super().__init__(engine, executor, beside=(self.snapshots,))

    def _ring(self) -> None:
        self.task.ring(self)

    # --- queues -----------------------------------------------------------------------------------

    def lines_of(self, queue: StoredQueue) -> QueueLines:
        lines = self._queues.get(queue)
        if lines is None:
            lines = self._queues[queue] = QueueLines(
                queue, self.engine.calls(queue, LARGEST_GATHERED), self.event_loop
            )
        return lines

    @property
    def _lines(self) -> Iterable[Line[Any]]:
        return self._all_lines()

    def _all_lines(self) -> Iterator[Line[Any]]:
        for lines in self._queues.values():
            yield lines.senders
            yield lines.receivers
        yield self.snapshots.line

    async def alter(self, act: Callable[[], T], level: Durability) -> T:
        """Create a queue, or delete one. It is in the log before another task runs. Not cancellable."""
        self.check()
        try:
            self._write_before()
            altered = act()
        except StorageFailedError as failure:
            self.broke(failure)
        finally:
            if level == "memory":
                self._note_held(self.options.memory_flush)
        if level == "synced":
            await self.barrier(with_metadata=False)
        return altered

    def drop_lines(self, queue: StoredQueue) -> None:
        """Wake the tasks that wait for a deleted queue with NotFoundError."""
        lines = self._queues.pop(queue, None)
        if lines is not None:
            lines.calls.is_open = False
            for line in (lines.senders, lines.receivers):
                line.wake_all(
                    lambda: outcome.Error(
                        NotFoundError("priority queue", self.engine.path, f"there is no queue {queue.name!r}")
                    )
                )
            self._sending.pop(lines, None)
            self._receiving.pop(lines, None)
        self._after()

    # --- sending ----------------------------------------------------------------------------------

    def gather_first(self, lines: QueueLines, body: object, key: object) -> AddBatch | None:
        """Begin a batch with a synced message, whose sender then waits for a `barrier` at once.

        The senders of the batch's other messages sleep, and are woken with it. None: the message is not
        simple; `deliver` it. Raises StorageFailedError.
        """
        if self._failure is not None or self.is_closing or self._waits_for_sync or lines.senders:
            return None
        room = self.options.max_unsynced - self.engine.log.unsynced_bytes
        if room <= 0 or not self.engine.gathers or self.engine.obstacle(0):
            return None
        if self._buffer.batch is None:
            self._buffer.batch = batch = GatheredAdds(min(room, MOST_GATHERED))
            batch.engine = self.engine
        return lines.calls.gather(body, key, self.event_loop.current_task())

    def sending(
        self, lines: QueueLines, batch: list[bytes], keys: int | list[int], level: Durability
    ) -> RecordSending:
        """Return a `Sending` of checked messages, for `deliver`, which returns their ids."""
        size = sum(map(len, batch))
        return RecordSending(
            lines.senders, size, lambda: self._put_in(lines, batch, keys, level), level, lines, len(batch)
        )

    def deliver_now(self, sending: RecordSending) -> Any:
        ids = super().deliver_now(sending)
        if sending.durability == "synced":
            self._ask_for_barrier()  # they cannot be received before it
        return ids

    def _arrival(self) -> int:
        return next(self._arrivals)

    def _must_wait(self, sending: RecordSending) -> bool:
        """True if the sender must wait. Raises FullError by policy, or if it could never fit."""
        self._write_before()
        lines, count = sending.lines, sending.count
        queue = lines.queue
        is_hopeless = queue.max_messages is not None and count > queue.max_messages
        if is_hopeless or self.options.on_full == "reject":
            queue.check_room(count)
        must = bool(lines.senders) or self._waits_for_sync or self._obstacle(sending)
        if must:
            self._sending[lines] = None
        return must

    def _obstacle(self, sending: RecordSending) -> bool:
        queue = sending.lines.queue
        if not queue.has_room_for(sending.count):
            if self.options.on_full == "wait":
                return True
            queue.check_room(sending.count)
        if self.engine.obstacle(sending.size):
            self._waits_for_sync = True
            self._ask_for_barrier()  # it frees space
            return True
        return False

    def _accepted(self, sending: RecordSending) -> None:
        self._after_on(sending.lines)

    def _put_in(
        self, lines: QueueLines, batch: list[bytes], keys: int | list[int], level: Durability
    ) -> range:
        try:
            self._write_before()
            return self.engine.add(lines.queue, batch, keys, level)
        finally:
            if level == "memory":
                self._note_held(self.options.memory_flush)

    def _admit_senders(self) -> None:
        """Admit the waiting senders in order of arrival, as far as there is space."""
        self._waits_for_sync = False
        full: set[QueueLines] = set()
        while not self._waits_for_sync:
            self._sending = {lines: None for lines in self._sending if lines.senders}
            waiting = [lines for lines in self._sending if lines not in full]
            if not waiting:
                return
            lines = min(waiting, key=lambda lines: lines.senders.first.arrival)
            if self._admit_first(lines.senders):
                self._hand_out(lines)
            else:
                full.add(lines)

    # --- receiving --------------------------------------------------------------------------------

    async def take(self, lines: QueueLines, want: Want) -> list[PriorityRecord]:
        """Return what `want` takes from the queue; waits for a message and for the caller's turn.

        If `want` returns None there was no message after all, and the task waits again.

        `Cancelled` means: nothing was taken. The caller has passed a schedule point.
        """
        if not lines.receivers and (taken := want()) is not None:
            return taken
        self._receiving[lines] = None
        result: list[PriorityRecord] = await lines.receivers.wait(want)
        self.new_slice()
        return result

    def take_now(self, lines: QueueLines, want: Want) -> list[PriorityRecord]:
        """Do as `take` without waiting. Raises WouldBlock."""
        if lines.receivers or (taken := want()) is None:
            raise trio.WouldBlock
        return taken

    def _hand_out(self, lines: QueueLines) -> None:
        """Serve the waiting receivers in order, as far as there are messages."""
        while lines.receivers and lines.queue.table.ready:
            served = outcome.capture(lines.receivers.first)
            if served == outcome.Value(None):
                return
            lines.receivers.wake_first(served)

    async def acknowledge(self, lines: QueueLines, records: list[PriorityRecord], level: Durability) -> None:
        """Acknowledge the records. Not cancellable: they are acknowledged as soon as this is called."""
        self._remove(lines, records, level)
        if level == "synced" or self.engine.obstacle(0):
            await self.barrier(with_metadata=False)

    def acknowledge_now(self, lines: QueueLines, records: list[PriorityRecord], level: Durability) -> None:
        """Do as `acknowledge` without waiting. Raises WouldBlock."""
        if self.engine.obstacle(0):
            self._ask_for_barrier()
            raise trio.WouldBlock
        self._remove(lines, records, level)

    def _remove(self, lines: QueueLines, records: list[PriorityRecord], level: Durability) -> None:
        try:
            self._write_before()
            self.engine.remove(lines.queue, records, level)
        finally:
            if level == "memory":
                self._note_held(self.options.memory_flush)
            self._after_on(lines)

    def give_back(self, lines: QueueLines, records: list[PriorityRecord]) -> None:
        """Make the records ready again, each in its place."""
        self.engine.nack_many(lines.queue, records)
        self._after_on(lines)

    # --- after each act ---------------------------------------------------------------------------

    def _after_on(self, lines: QueueLines) -> None:
        """Serve the waiting tasks after a change in this queue only."""
        if self._failure is None and not self.is_closing:
            if lines.senders and not self._waits_for_sync:
                self._after()
                return
            self._hand_out(lines)
            self._open_gates()

    def _after(self) -> None:
        if self._failure is None and not self.is_closing:
            if self._sending or self._waits_for_sync:
                try:
                    self._admit_senders()
                except StorageFailedError as failure:
                    self._break(failure)
                    return
            if self._receiving:
                self._receiving = {lines: None for lines in self._receiving if lines.receivers}
                for lines in self._receiving:
                    self._hand_out(lines)
            self._open_gates()

    def _narrow_gates(self) -> None:
        if self.is_closing:
            self._shut_gates()

    # --- the end ----------------------------------------------------------------------------------

    def begin_to_close(self) -> None:
        if self._buffer.batch is not None:
            self._buffer.batch.room = -1
        super().begin_to_close()

    # --- for statistics ---------------------------------------------------------------------------

    def _waiting_for_room(self) -> int:
        return sum(len(lines.senders) for lines in tuple(self._sending))

    @property
    def tasks_waiting_receive(self) -> int:
        return sum(len(lines.receivers) for lines in tuple(self._receiving))
