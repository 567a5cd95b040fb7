# Acknowledging out of order: several workers on one FIFO queue. Law: a message leaves the queue when it and
# all before it are acknowledged; until then it is handed out again, whatever happened.
#
# Messages are numbered as they are read, from the head on. The window holds their places, from the first
# one that is not acknowledged up to where reading goes on; the queue's read position, which goes into
# NSQ's metadata, is the window's beginning. A message in the window is
#
#     in flight     handed out: its lease is with a worker
#     returned      to be handed out again (or for the first time), before any that is not read yet
#     delayed       the same, when its time has come
#     done          acknowledged; only its place is still kept
#
# Events beyond the read position are written to the ack log (ack_log.py) before a caller sees them: a
# hand-out before the message is returned, an acknowledgement before `ack` returns. Both then survive a kill;
# a power cut from the next executed barrier on. If the ack log is lost, messages are delivered again, nothing
# worse.

from __future__ import annotations

import contextlib
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Unpack

from diskq._native.core.thread_guard import ThreadGuard
from diskq.engine.log.sync import exclusive
from diskq.engine.log.thread_line import deadline, now
from diskq.engine.queue.ack_log import (
    LONGEST_DELAY,
    AckLog,
    Known,
    Place,
    acked_rows,
    handed_row,
    tried_row,
)
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.queue.files import QueuePosition
from diskq.engine.queue.queue_errors import QueueEmptyError
from diskq.engine.queue.steps import QueueSteps
from diskq.errors import DiskqError, FullError, LeaseError
from diskq.keywords import QueueWorkKeywords
from diskq.options import QueueWorkOptions, chosen_options
from diskq.storage.arguments import check_is
from diskq.storage.callbacks import check_plain, check_result
from diskq.storage.closing import Closing
from diskq.storage.numbers import UNBOUNDED

__all__ = ["Exhausted", "Lease", "MessageId", "QueueWork", "QueueWorkStatistics"]

# Messages that the ack log may know are read in portions of this many.
_PORTION = 256


class MessageId(NamedTuple):
    """A message's place in NSQ's files: the same after every restart, and greater than the earlier ones.

    As a str it is `file:byte`.
    """

    file: int
    """The number of the data file."""
    byte: int
    """The byte of that file where the message's record begins."""

    def __str__(self) -> str:
        return f"{self.file}:{self.byte}"


class Lease:
    """A message that was handed out, until it is acknowledged or given back."""

    __slots__ = ("_number", "_place", "attempts", "body")

    body: bytes
    attempts: int
    """How often it was handed out by now, this time included: 1 is the first."""

    def __init__(self, body: bytes, attempts: int, number: int, place: Place) -> None:
        self.body = body
        self.attempts = attempts
        self._number = number
        self._place = place

    @property
    def id(self) -> MessageId:
        return MessageId(self._place[0], self._place[1])

    def __repr__(self) -> str:
        return f"<Lease of message {self.id}, {len(self.body)} bytes, attempts={self.attempts}>"


Exhausted = Callable[[Lease], object]
"""Receives a message that was handed out `max_attempts` times. Once it returns the message is acknowledged:
it must be safe elsewhere by then. If it raises, the message stays, and the call that caused it raises
that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueWorkStatistics:
    """The work on a queue at one moment. `delivered` and the counts after it are since the work began."""

    in_flight: int
    """Messages that are with workers."""
    returned: int
    """Messages that are to be handed out again, at once."""
    delayed: int
    """Messages that are to be handed out again, later."""
    done: int
    """Acknowledged messages after one that is not."""
    ahead: int
    """The sum of the above: messages from the queue's head up to where reading goes on."""
    ahead_bytes: int
    delivered: int
    redelivered: int
    acknowledged: int
    given_back: int
    """Messages returned by `nack`."""
    exhausted: int
    """Messages taken out after `max_attempts`."""
    most_attempts: int
    """The most attempts of any message that is in flight, returned or delayed."""
    ack_log_bytes: int


class QueueWork(Closing):
    """The work on a `Queue`: messages are handed out as leases, and acknowledged in any order.

    Threads may share the work and its queue: a call waits while another thread is inside one. Until `close`
    there is no other reader of the queue. Delivery is at least once: after a crash what was in flight is
    handed out again, with one attempt more.
    """

    def __init__(
        self,
        queue: Queue | QueueSteps,
        *,
        exhausted: Exhausted | None = None,
        options: QueueWorkOptions | None = None,
        **changes: Unpack[QueueWorkKeywords],
    ) -> None:
        """Begin at the queue's head, with what is known from the work before.

        `exhausted` receives messages after `options.max_attempts`. Raises ValueError if the queue has another
        worker, is closed, or has a memory tier; TypeError if `exhausted` is async; OSError.

        Options (`QueueWorkOptions`). Sizes in bytes.

        - `max_in_flight=1000`: Up to this many messages are leased and not yet acknowledged; then workers
          wait for the next one.
        - `max_attempts=None`: After this many attempts a message is not delivered again, but given to
          `exhausted`; without an `exhausted`, and with None, it is delivered again without limit.
        - `max_ahead=100_000`: Up to this many messages after the oldest unacknowledged one are read,
          acknowledged or not.
        - `max_ahead_bytes=64 * 1024 * 1024`: The same in bytes, plus one message: the most that is held in
          memory.
        """
        check_is("queue", queue, (Queue, QueueSteps), "a Queue")
        self.options: QueueWorkOptions = chosen_options(QueueWork, options, QueueWorkOptions, changes)
        self._exhausted = None if exhausted is None else check_plain("exhausted", exhausted)
        self._queue = queue.steps if isinstance(queue, Queue) else queue
        self._head = self._queue.head
        self.guard: ThreadGuard = queue.guard
        self._overhead = self._queue.overhead
        self._window: deque[Place] = deque()
        self._first = 0  # the number of the message at the window's beginning
        self._bytes = 0  # the size of the window's messages
        self._done: set[int] = set()
        self._in_flight: dict[int, Lease] = {}
        self._dropped_in_flight: set[int] = set()  # dropped for space meanwhile; they may yet be acknowledged
        self._returned: list[tuple[int, int, bytes]] = []  # a heap: number, attempts, body
        self._delayed: list[tuple[float, int, int, bytes]] = []  # the same, after the time when it is due
        self._pending_acks: list[Place] = []  # acknowledged, and not yet in the ack log
        self._handed_out = self._again = self._acked = self._given_back = self._taken_out = 0
        self._is_closed = False
        self._ack_log: AckLog
        self._ack_log, known = self._head.attach(WorkerOfQueue(self))
        self._handed = known.handed  # all messages before it were handed out
        self._known_to = known.end
        self._known: Known | None = known if self._head.reader.position < self._known_to else None
        try:
            self._pass_known()
        except BaseException:
            self.close()
            raise

    # --- handing out ------------------------------------------------------------------------------

    def get(self, block: bool = True, timeout: float | None = None) -> Lease:
        """Return the next message; if none may be handed out now, wait until one may.

        Waits up to `timeout` seconds (None: without limit), and not at all without `block`. Raises
        QueueEmptyError, which is a `queue.Empty`, if there is none then, and as `get_many`.
        """
        lease = self._get_one()
        if lease is None and block:
            lease = self._wait(timeout)
        if lease is None:
            raise QueueEmptyError(self._queue.name)
        return lease

    def get_nowait(self) -> Lease:
        """Return the next message. Raises QueueEmptyError if none may be handed out, and as `get_many`."""
        return self.get(False)

    @exclusive
    def _get_one(self) -> Lease | None:
        leases = self.get_many(1)
        return leases[0] if leases else None

    def _wait(self, timeout: float | None) -> Lease | None:
        """Wait for a message, at most until the next delayed one is due; then again."""
        line = self._queue.log.thread_lines.for_messages
        end = deadline(timeout)
        while True:
            with self.guard:
                if self.guard.depth > 1:
                    return None  # a call within a call: nobody could put meanwhile
                due = self._next_due()
                until_due = max(0.0, due - self._queue.log.clock())
            left = min(until_due, max(0.0, end - now()))
            found = line.wait(partial(self._look, due), None if left == math.inf else left)
            if isinstance(found, Lease):
                return found
            if found is None and left < until_due:
                return None

    @exclusive
    def _look(self, due: float) -> Lease | float | None:
        """Return the next message, or when the next delayed one is due if that is before `due`."""
        lease = self._get_one()
        if lease is None and (sooner := self._next_due()) < due:
            return sooner
        return lease

    @exclusive
    def get_many(self, max_messages: int, *, max_bytes: int = UNBOUNDED) -> list[Lease]:
        """Return the next messages: up to `max_messages`, of up to `max_bytes` together; the first may be
        larger.

        Raises OSError if the files cannot be read, and what `exhausted` raises; nothing is handed out then.
        Raises StorageFailedError if a due sync fails.
        """
        self._check()
        self._sync_if_due()
        return self._fetch(max_messages, max_bytes)

    @exclusive
    def _fetch(self, max_messages: int, max_bytes: int = UNBOUNDED) -> list[Lease]:
        """Return messages as `get_many`, leaving the sync policy to the caller."""
        self._check()
        self._wake_delayed()
        leases: list[Lease] = []
        rows: list[bytes] = []
        most = min(max_messages, self.options.max_in_flight - len(self._in_flight))
        left = max_bytes
        try:
            while len(leases) < most:
                if self._returned:
                    if leases and len(self._returned[0][2]) > left:
                        break
                    if (lease := self._take_returned()) is None:
                        continue
                    rows.append(tried_row(*lease._place[:2], lease.attempts))
                    leases.append(lease)
                    self._again += lease.attempts > 1
                    left -= len(lease.body)
                elif self._known is not None:
                    if not self._read_known():
                        break
                else:
                    before = len(leases)
                    left = self._take_fresh(leases, most, left)
                    if len(leases) == before:
                        break
        except Exception:
            # Leases already made are handed out; the next call meets the error again.
            if not leases:
                raise
        if leases:
            self._handed_out += len(leases)
            if (end := self._fresh_end(leases[-1])) > self._handed:
                self._handed = end
                rows.append(handed_row(end))
        self._write(rows)
        return leases

    @exclusive
    def _has_message(self) -> bool:
        """True if there may be a message to hand out. Reads ahead to find out. Raises as `get_many`."""
        self._check()
        self._wake_delayed()
        if len(self._in_flight) >= self.options.max_in_flight:
            return False
        return bool(self._returned) or (self._left_ahead > 0 and self._head.has_message())

    def _next_due(self) -> float:
        """Return when the next delayed message is due, on the queue's clock; infinity if there is none."""
        return self._delayed[0][0] if self._delayed else math.inf

    def _wake_delayed(self) -> None:
        if self._delayed:
            now = self._queue.log.clock()
            while self._delayed and self._delayed[0][0] <= now:
                heapq.heappush(self._returned, heapq.heappop(self._delayed)[1:])

    @property
    def _left_ahead(self) -> int:
        """The number of messages that may still be read."""
        if self._bytes >= self.options.max_ahead_bytes:
            return 0
        return self.options.max_ahead - len(self._window)

    def _take_returned(self) -> Lease | None:
        """Hand out the first of the returned messages; None if it was exhausted, and taken out."""
        number, attempts, body = self._returned[0]
        place = self._window[number - self._first]
        lease = Lease(body, attempts + 1, number, place)
        if self._is_exhausted(attempts):
            lease.attempts = attempts
            self._take_out(lease)
            heapq.heappop(self._returned)
            return None
        heapq.heappop(self._returned)
        self._in_flight[number] = lease
        return lease

    def _take_fresh(self, leases: list[Lease], limit: int, left: int) -> int:
        """Hand out messages that were not read before. Returns how many bytes of `left` are left."""
        items = min(limit - len(leases), self._left_ahead)
        most = min(left, self.options.max_ahead_bytes - self._bytes)
        if items <= 0 or most <= 0:
            return left
        start, bodies = self._head.read_on(items, most)
        file, at = start
        if leases and bodies and len(bodies[0]) > left:
            # The first one of a read may be too large here. It comes first the next time.
            heapq.heappush(self._returned, (self._keep((file, at, self._end(at, bodies[0]))), 0, bodies[0]))
            return left
        number = self._first + len(self._window)
        for body in bodies:
            end = at + len(body) + self._overhead
            place = (file, at, end)
            self._window.append(place)
            lease = self._in_flight[number] = Lease(body, 1, number, place)
            leases.append(lease)
            left -= len(body)
            number += 1
            at = end
        self._bytes += at - start[1] - len(bodies) * self._overhead
        return left

    def _read_known(self) -> bool:
        """Read messages that the ack log may know. False if the window is full, or there is no message."""
        assert self._known is not None
        most = self._left_ahead
        if most <= 0:
            return False
        start, bodies = self._head.read_on(min(most, _PORTION), self.options.max_ahead_bytes - self._bytes)
        file, at = start
        now, wall = self._queue.log.clock(), self._ack_log.wall_clock()
        for body in bodies:
            end = self._end(at, body)
            number = self._keep((file, at, end))
            tried = self._known.of(file, at)
            rest = min(max(tried.due - wall, 0.0), tried.delay)
            if self._known.is_acked(file, at):
                self._done.add(number)
            elif rest > 0 and not self._is_exhausted(tried.attempts):
                heapq.heappush(self._delayed, (now + rest, number, tried.attempts, body))
            else:
                heapq.heappush(self._returned, (number, tried.attempts, body))
            at = end
        self._move_head()
        if bodies and (file, at) >= self._known_to:
            self._known = None
        return bool(bodies)

    def _pass_known(self) -> None:
        """Move the head past what was acknowledged before, if the window is empty."""
        while self._known is not None and not self._window and self._read_known():
            pass

    def _keep(self, place: Place) -> int:
        """Add a message that was read to the window. Returns its number."""
        self._window.append(place)
        self._bytes += place[2] - place[1] - self._overhead
        return self._first + len(self._window) - 1

    def _end(self, start: int, body: bytes) -> int:
        return start + len(body) + self._overhead

    def _fresh_end(self, last: Lease) -> QueuePosition:
        return QueuePosition(last._place[0], last._place[2])

    # --- ending a lease ---------------------------------------------------------------------------

    @exclusive
    def ack(self, leases: Lease | Iterable[Lease]) -> None:
        """Acknowledge the messages: they are not handed out again.

        When it returns that is written: it survives a kill of the process, and a power cut from the next
        sync on. Raises LeaseError if one of the leases has ended, and nothing is done then; TypeError;
        StorageFailedError.
        """
        self._acknowledge(leases)
        self._sync_if_due()

    def task_done(self, lease: Lease) -> None:
        """Do as `ack`, by the name that it has in `queue.Queue`."""
        self.ack(lease)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until every message is acknowledged, and none is left.

        False if that is not so after `timeout` seconds (None: without limit). Raises as `get_many`.
        """
        look = self._queue.head.is_empty
        return bool(self._queue.log.thread_lines.for_end.wait(lambda: look() or None, timeout))

    @exclusive
    def nack(self, leases: Lease | Iterable[Lease], delay: float = 0.0) -> None:
        """Give the messages back, to be handed out with one attempt more, in `delay` seconds or later.

        Those that were handed out `max_attempts` times go to `exhausted` instead. Without a delay they come
        before all that was not handed out yet. Raises as `ack`, and what `exhausted` raises: the messages
        are given back then. ValueError for a delay below 0 or beyond 49 days.
        """
        self._give_back(leases, delay)
        self._sync_if_due()

    @exclusive
    def release(self, leases: Lease | Iterable[Lease]) -> None:
        """Undo the hand-out of the messages: they are handed out again, before others. Raises as `ack`."""
        ended = self._ended(leases, processed=False)
        rows = [tried_row(*lease._place[:2], lease.attempts - 1) for lease in ended]
        for lease in ended:
            heapq.heappush(self._returned, (lease._number, lease.attempts - 1, lease.body))
        self._write(rows)
        self._note_returned(len(ended))

    def _holds(self, lease: Lease) -> bool:
        """True if the lease has not ended."""
        return self._in_flight.get(lease._number) is lease

    @exclusive
    def _acknowledge(self, leases: Lease | Iterable[Lease]) -> None:
        """Acknowledge as `ack`, leaving the sync policy to the caller."""
        ended = self._ended(leases, processed=True)
        for lease in ended:
            self._done.add(lease._number)
            self._pending_acks.append(lease._place)
        self._acked += len(ended)
        self._write([])
        self._move_head()
        if (lines := self._queue.log.lines) is not None:
            lines.note_taken(len(ended))
            lines.for_messages.wake(len(ended))  # as many more may be in flight
        if self._known is not None:
            # The next call that takes messages meets an error in reading on, and raises it.
            with contextlib.suppress(OSError, DiskqError):
                self._pass_known()

    @exclusive
    def _give_back(self, leases: Lease | Iterable[Lease], delay: float = 0.0) -> None:
        """Give back as `nack`, leaving the sync policy to the caller."""
        if not 0 <= delay <= LONGEST_DELAY:
            raise ValueError(f"a delay is 0 to {LONGEST_DELAY} seconds, got {delay}")
        ended = self._ended(leases, processed=False)
        self._given_back += len(ended)
        now, wall = self._queue.log.clock(), self._ack_log.wall_clock()
        rows = []
        exhausted = []
        for lease in ended:
            if self._is_exhausted(lease.attempts):
                heapq.heappush(self._returned, (lease._number, lease.attempts, lease.body))
                exhausted.append(lease)
            elif delay:
                heapq.heappush(self._delayed, (now + delay, lease._number, lease.attempts, lease.body))
            else:
                heapq.heappush(self._returned, (lease._number, lease.attempts, lease.body))
            rows.append(tried_row(*lease._place[:2], lease.attempts, wall + delay if delay else 0.0, delay))
        self._write(rows)
        for lease in exhausted:
            self._take_out(lease)
            self._returned.remove((lease._number, lease.attempts, lease.body))
            heapq.heapify(self._returned)
        if exhausted:
            self._write([])
        self._note_returned(len(ended), is_delayed=delay > 0)

    def _note_returned(self, count: int, *, is_delayed: bool = False) -> None:
        """Let threads look again that wait for a message; all of them if another moment comes first now."""
        if (lines := self._queue.log.lines) is not None:
            lines.for_messages.wake(len(lines.for_messages) if is_delayed else count)

    @exclusive
    def close(self) -> None:
        """End all leases; what is in flight is in the queue as if it had not been handed out. Idempotent.

        What is acknowledged beyond the head is known to the next work on the queue, but not to other readers.
        """
        if self._is_closed:
            return
        try:
            if self._in_flight:
                self.release(list(self._in_flight.values()))
            self._write([])
        finally:
            self._is_closed = True
            self._in_flight.clear()
            self._head.detach()
            self._ack_log.close()
            if (lines := self._queue.log.lines) is not None:
                lines.wake_all()

    def _ended(self, leases: Lease | Iterable[Lease], *, processed: bool) -> list[Lease]:
        """End all of the leases, or none. Returns those whose messages are still there."""
        many = [leases] if isinstance(leases, Lease) else list(leases)
        ended: list[Lease] = []
        for lease in many:
            if not isinstance(lease, Lease):
                self._lease_again(ended)
                raise TypeError(f"expected a lease, got {type(lease).__name__}")
            if not self._holds(lease):
                self._lease_again(ended)
                raise LeaseError(self._queue.name, lease.id)
            del self._in_flight[lease._number]
            ended.append(lease)
        there = [lease for lease in ended if lease._number >= self._first]
        if len(there) < len(ended):
            self._note_gone([lease._number for lease in ended if lease._number < self._first], processed)
        return there

    def _note_gone(self, numbers: list[int], processed: bool) -> None:
        """Count messages that were given up while they were in flight."""
        dropped = self._dropped_in_flight.intersection(numbers)
        self._dropped_in_flight -= dropped
        if processed:
            self._head.note_in_hand(processed=len(numbers))
        else:
            self._head.note_in_hand(dropped=len(dropped))

    def _lease_again(self, leases: list[Lease]) -> None:
        self._in_flight.update((lease._number, lease) for lease in leases)

    def _is_exhausted(self, attempts: int) -> bool:
        most = self.options.max_attempts
        return self._exhausted is not None and most is not None and attempts >= most

    def _take_out(self, lease: Lease) -> None:
        """Pass the message to `exhausted`, and acknowledge it."""
        assert self._exhausted is not None
        check_result("exhausted", self._exhausted, self._exhausted(lease))
        self._taken_out += 1
        self._done.add(lease._number)
        self._pending_acks.append(lease._place)
        self._move_head()
        if (lines := self._queue.log.lines) is not None:
            lines.note_taken(1)

    # --- the head ---------------------------------------------------------------------------------

    def _move_head(self) -> None:
        if self._first in self._done:
            while self._first in self._done:
                self._pop_first()
            self._head.note_worker_moved()

    def _pop_first(self) -> None:
        _, start, end = self._window.popleft()
        self._bytes -= end - start - self._overhead
        self._done.discard(self._first)
        self._first += 1

    # --- the ack log ------------------------------------------------------------------------------

    def _write(self, rows: list[bytes]) -> None:
        """Put pending acknowledgements, and these rows, into the page cache."""
        if self._pending_acks:
            if not self._are_acked_written():
                with contextlib.suppress(FullError):
                    self._queue.log.flush()
            rows = [*self._pending_rows(), *rows]
        try:
            self._ack_log.add(b"".join(rows))
        except OSError as failure:
            self._queue.log.fail(failure)

    def _are_acked_written(self) -> bool:
        """True if all messages with pending acknowledgements are in their files."""
        written_to = self._queue.tail.written_to
        return all((file, end) <= written_to for file, _, end in self._pending_acks)

    def _pending_rows(self) -> list[bytes]:
        """Return the pending acknowledgements as rows; none if a message is not yet in its file."""
        if not self._pending_acks or not self._are_acked_written():
            return []
        rows = acked_rows(self._pending_acks)
        self._pending_acks.clear()
        return rows

    def _rows_that_matter(self) -> Iterable[bytes]:
        """Yield all that is known, as rows for a new file."""
        yield handed_row(self._handed)
        window = list(self._window)
        yield from acked_rows(window[number - self._first] for number in self._done)
        tries = [(lease._number, lease.attempts, 0.0) for lease in self._in_flight.values()]
        tries += [(number, attempts, 0.0) for number, attempts, _ in self._returned]
        now, wall = self._queue.log.clock(), self._ack_log.wall_clock()
        tries += [(number, attempts, max(0.0, due - now)) for due, number, attempts, _ in self._delayed]
        for number, attempts, rest in tries:
            if number >= self._first:
                file, start, _ = window[number - self._first]
                if rest or attempts != ((file, start) < self._handed):
                    yield tried_row(file, start, attempts, wall + rest if rest else 0.0, rest)
        if self._known is not None:
            yield from self._known.rows_from(self._head.reader.position)

    # --- for others -------------------------------------------------------------------------------

    def statistics(self) -> QueueWorkStatistics:
        """Return the work at this moment. Goes through all leases and waiting messages. From any thread."""
        attempts = [lease.attempts for lease in tuple(self._in_flight.values())]
        attempts += [item[1] for item in tuple(self._returned)]
        attempts += [item[2] for item in tuple(self._delayed)]
        return QueueWorkStatistics(
            in_flight=len(self._in_flight),
            returned=len(self._returned),
            delayed=len(self._delayed),
            done=len(self._done),
            ahead=len(self._window),
            ahead_bytes=self._bytes,
            delivered=self._handed_out,
            redelivered=self._again,
            acknowledged=self._acked,
            given_back=self._given_back,
            exhausted=self._taken_out,
            most_attempts=max(attempts, default=0),
            ack_log_bytes=self._ack_log.size,
        )

    def _sync_if_due(self) -> None:
        self._queue.sync_if_due()

    def _check(self) -> None:
        if self._is_closed:
            raise ValueError(f"the work on queue {self._queue.name!r} is over")


class WorkerOfQueue:
    """What the queue asks of the work on it: a `Worker`."""

    __slots__ = ("_work",)

    def __init__(self, work: QueueWork) -> None:
        self._work = work

    @property
    def head(self) -> QueuePosition | None:
        window = self._work._window
        return QueuePosition(*window[0][:2]) if window else None

    @property
    def kept(self) -> int:
        return len(self._work._window)

    @property
    def done(self) -> int:
        return len(self._work._done)

    def give_up(self, file: int, *, is_drop: bool) -> tuple[int, int]:
        work = self._work
        dropped = in_hand = 0
        while work._window and work._window[0][0] <= file:
            if work._first in work._in_flight:
                in_hand += 1
                if is_drop:
                    work._dropped_in_flight.add(work._first)
            elif work._first not in work._done:
                dropped += 1
            work._pop_first()
        work._returned = [item for item in work._returned if item[0] >= work._first]
        work._delayed = [item for item in work._delayed if item[1] >= work._first]
        heapq.heapify(work._returned)
        heapq.heapify(work._delayed)
        return dropped, in_hand

    def settle(self) -> tuple[int, ...]:
        work = self._work
        work._ack_log.add(b"".join(work._pending_rows()))
        return work._ack_log.settle(work._rows_that_matter())

    def close(self) -> None:
        self._work.close()

    def abandon(self) -> None:
        work = self._work
        work._is_closed = True
        work._in_flight.clear()
        work._ack_log.abandon()
