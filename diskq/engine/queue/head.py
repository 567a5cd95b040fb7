# The head of a queue: where messages are read and removed. Law: what is handed out has left the queue, what
# is peeked at has not; what was lost on the way is reported.
#
# Its reader goes from file to file. What was written a moment ago and is still in memory it does not read
# from the disk.
#
# Messages come from the files, through the read-ahead, and then from the memory tier, if there is one. A
# worker may read beyond the head; it is then the only reader, and determines where the head is. The head
# looks at the end of the files, and calls nothing of the tail (tail.py).

from __future__ import annotations

import contextlib
from collections import deque
from itertools import islice
from typing import NamedTuple, Protocol

from diskq._native.core.gate import Gate
from diskq._native.core.read_ahead import ReadAhead
from diskq._native.core.thread_guard import ThreadGuard
from diskq.engine.log.sync import exclusive
from diskq.engine.queue.ack_log import AckLog, Known, read_ack_logs
from diskq.engine.queue.files import QueuePosition, Stretch, is_within, joined
from diskq.engine.queue.quota import QueueParts
from diskq.errors import CorruptionError, DiskqError
from diskq.storage.block_reader import BlockReader, Loss
from diskq.storage.log_events import Log
from diskq.storage.numbers import UNBOUNDED

__all__ = ["FifoHead", "FileLoss", "QueueReader", "Worker"]

log = Log("queue")

# Of every head that has not been peeked at yet, since a deque takes as much memory as 60 messages. Nothing is
# added to it.
_NOTHING_PEEKED: deque[tuple[bytes, QueuePosition]] = deque()


class Worker(Protocol):
    """The only reader beyond the head: what was read stays in the queue until the worker is done with it."""

    @property
    def head(self) -> QueuePosition | None:
        """The first message that it is not done with; None if it is done with all that it has read."""

    @property
    def kept(self) -> int:
        """The number of messages from there up to where it reads on."""

    @property
    def done(self) -> int:
        """The number of those that it is done with."""

    def give_up(self, file: int, *, is_drop: bool) -> tuple[int, int]:
        """Drop the messages up to the end of this file that are not acknowledged.

        Returns how many of them were not leased, and how many are leased and may still be acknowledged. With
        `is_drop` the worker reports by `note_in_hand` what became of the leased ones.
        """

    def settle(self) -> tuple[int, ...]:
        """Write what it knows. Returns the handles to sync before the metadata is synced. Raises OSError."""

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Release its files, without a promise."""


class FifoHead:
    """The end of an open queue at which messages leave it. `begin` sets its place."""

    def __init__(self, parts: QueueParts) -> None:
        self.log = parts.log
        self.guard: ThreadGuard = parts.log.guard
        self._parts = parts
        self._fs = parts.fs
        self._files = parts.files
        self._overhead = parts.framing.overhead
        self._gate = parts.gate_out
        self._buffer = parts.buffer
        self._ahead = parts.ahead
        self._tier = parts.tier
        self._sealed = parts.sealed
        self.reader = QueueReader(parts)
        """The reader, at the place up to which messages were read."""
        self._peeked = _NOTHING_PEEKED
        self._committed = QueuePosition(0, 0)  # where the head is, while something is peeked at
        self._forgotten = 0  # messages of the last peek that were dropped since
        self._dropped_in_hand = 0  # those of them that `advance` may still report as processed
        self._unreceived = 0  # messages of all peeks that were never received
        self._recounted = 0  # records that are read again, and are not counted twice
        self._depth_at_open = 0
        self._uncounted: tuple[Stretch, ...] = ()
        self.worker: Worker | None = None
        self.dropped = self.lost = 0

    def begin(self, read: QueuePosition, depth: int, *, uncounted: tuple[Stretch, ...]) -> None:
        """Read on at `read`; `depth` messages lie between there and the end of the files.

        `depth` has none of the messages that are lost to damage in the `uncounted` stretches.
        """
        self._depth_at_open = depth
        self._uncounted = joined(uncounted)
        self.reader.seek(read)

    def release(self) -> None:
        """Close the files, and release the worker, without a promise."""
        worker, self.worker = self.worker, None
        try:
            if worker is not None:
                worker.abandon()
        finally:
            self.reader.close()

    # --- taking -----------------------------------------------------------------------------------

    def fetch(self, max_messages: int, max_bytes: int = UNBOUNDED) -> list[bytes]:
        """Take messages as `Queue.get_many`, leaving the sync policy to the caller."""
        self._check_reader()
        if self._peeked:
            bodies = self.peek_many(max_messages, max_bytes)
            self.advance(len(bodies))
            return bodies
        bodies = self._fetch(max_messages, max_bytes)
        if bodies:
            self._moved()
        return bodies

    @exclusive
    def peek_many(self, max_messages: int, max_bytes: int = UNBOUNDED) -> list[bytes]:
        """Return messages as `Queue.get_many`, but leave them. `advance` removes them."""
        self._check_reader()
        self.settle_in_hand()
        self._forgotten = 0
        missing = max_messages - len(self._peeked)
        left = max_bytes - sum(len(body) for body, _ in self._peeked)
        while missing > 0 and left > 0:
            if not self._peeked:
                self._committed = self.reader.position
            if not (bodies := self._fetch_loaded(missing, left)):
                break
            self._keep_peeked(bodies, self._ahead.position)
            left -= sum(map(len, bodies))
            missing -= len(bodies)
        self._gate.left = 0  # what was peeked at comes first: the fast path must not overtake it
        first = [body for body, _ in self._first_peeked(max_messages, max_bytes)]
        if self._tier.is_next and len(first) == len(self._peeked):
            left = max_bytes - sum(map(len, first))
            first += self._tier.peek_many(max_messages - len(first), left, bool(first))
        return first

    def _keep_peeked(self, bodies: list[bytes], end: int) -> None:
        """Add peeked messages; they are adjacent in the file being read, up to byte `end`."""
        at = end - self._size_of(bodies)
        for body in bodies:
            at += len(body) + self._overhead
            self._note_peeked(body, QueuePosition(self.reader.file, at))

    def _note_peeked(self, body: bytes, end: QueuePosition) -> None:
        if self._peeked is _NOTHING_PEEKED:
            self._peeked = deque()
        self._peeked.append((body, end))

    def _size_of(self, bodies: list[bytes]) -> int:
        """Return the bytes that they take in a file."""
        return sum(map(len, bodies)) + len(bodies) * self._overhead

    def _first_peeked(self, max_messages: int, max_bytes: int) -> list[tuple[bytes, QueuePosition]]:
        first: list[tuple[bytes, QueuePosition]] = []
        size = 0
        for item in self._peeked:
            size += len(item[0])
            if len(first) >= max_messages or (size > max_bytes and first):
                break
            first.append(item)
        return first

    @exclusive
    def advance(self, count: int) -> None:
        """Remove the first `count` messages that were peeked at. Raises ValueError for more than that."""
        self.log.check_usable()
        peeked = self._forgotten + len(self._peeked) + self._tier.peeked
        if not 0 <= count <= peeked:
            raise ValueError(f"cannot advance over {count} messages: {peeked} were peeked at")
        # What was dropped in the hands of the caller was processed all the same.
        processed = min(count, self._dropped_in_hand)
        self._dropped_in_hand -= processed
        self._unreceived -= processed
        dropped = min(count, self._forgotten)
        self._forgotten -= dropped
        count -= dropped
        in_files = min(count, len(self._peeked))
        for _ in range(in_files):
            _, self._committed = self._peeked.popleft()
        if in_files:
            self._moved()
        self._tier.advance(count - in_files)

    def settle_in_hand(self) -> None:
        """Count as dropped what was dropped in the hands of a caller who has not processed it."""
        self.dropped += self._dropped_in_hand
        self._dropped_in_hand = 0

    def note_in_hand(self, *, processed: int = 0, dropped: int = 0) -> None:
        """Count messages that were given up while a worker held them: `processed` by it, or `dropped`."""
        self._unreceived -= processed
        self.dropped += dropped

    def peeked_ends(self, count: int) -> list[QueuePosition]:
        """Return the place just after each of the first `count` messages that were peeked at.

        Those that `on_full="drop_oldest"` gave up since are left out.
        """
        return [end for _, end in islice(self._peeked, count)]

    def mark_written_as_peeked(self, bodies: list[bytes]) -> None:
        """Treat what was just written at the end as read: it was peeked at in memory."""
        if self.reader.file != self._buffer.file_number:
            self.reader.next_file()
        self._keep_peeked(bodies, self._buffer.end)
        self._ahead.pass_over(self._buffer.end, len(bodies))
        self._gate.left = 0

    # --- reading beyond it ------------------------------------------------------------------------

    @exclusive
    def attach(self, worker: Worker) -> tuple[AckLog, Known]:
        """Let this worker be the only reader. Returns its ack log, and what was known before.

        Raises ValueError if another worker reads, and with `memory_size`; OSError.
        """
        self._check_reader()
        if self._parts.has_tier:
            raise ValueError(
                "leases need places in the files, and messages in memory have none: set no memory_size"
            )
        known = read_ack_logs(self._fs, self._files)
        ack_log = AckLog(self._fs, self._files, self.log.pending)
        if self._peeked:
            try:
                self._read_again(self._committed, len(self._peeked))
            except BaseException:
                ack_log.abandon()
                raise
            self._peeked.clear()
        self.worker = worker
        self._gate.left = 0
        return ack_log, known

    @exclusive
    def detach(self) -> None:
        """Release the worker: what it is not done with, and all after it, is at the head again."""
        worker, self.worker = self.worker, None
        if worker is not None and (head := worker.head) is not None:
            self._read_again(head, worker.kept)
            self._recounted -= worker.done

    def _read_again(self, position: QueuePosition, count: int) -> None:
        """Go back to `position`, from where `count` messages were read."""
        self.reader.seek(position)
        self._depth_at_open += count
        self._unreceived += count
        self._recounted += count

    @exclusive
    def read_on(self, max_messages: int, max_bytes: int) -> tuple[QueuePosition, list[bytes]]:
        """Return to a worker the next messages after those that were read, and where the first one begins.

        They are adjacent in one file; the list is empty if there are no more. Raises as `get_many`.
        """
        self.log.check_usable()
        bodies = self._fetch_loaded(max_messages, max_bytes)
        return QueuePosition(self.reader.file, self._ahead.position - self._size_of(bodies)), bodies

    @exclusive
    def note_worker_moved(self) -> None:
        """Note that the worker's head moved on: the next barrier removes files before it."""
        self._moved()

    def _check_reader(self) -> None:
        self.log.check_usable()
        if self.worker is not None:
            raise ValueError(f"queue {self._files.name!r} is being worked on: close the work first")

    # --- reading ahead ----------------------------------------------------------------------------

    @exclusive
    def has_message(self) -> bool:
        """True if there is a message to get. Reads ahead to find out. Raises as `get_many`."""
        return bool(self._peeked) or self.fill() or self._tier.count > 0

    @exclusive
    def is_empty(self) -> bool:
        """True if there is no message, as `Queue.empty`: neither to be read nor with the worker."""
        self.log.check_usable()
        has_kept = self.worker is not None and self.worker.kept > 0
        return not has_kept and not self.has_message()

    def _fetch(self, max_messages: int, max_bytes: int) -> list[bytes]:
        bodies = self._fetch_from_files(max_messages, max_bytes)
        if self._tier.is_next and len(bodies) < max_messages:
            left = max_bytes - sum(map(len, bodies))
            bodies += self._tier.take_many(max_messages - len(bodies), left, bool(bodies))
        return bodies

    def _fetch_from_files(self, max_messages: int, max_bytes: int) -> list[bytes]:
        bodies = self._fetch_loaded(max_messages, max_bytes)
        size = sum(map(len, bodies)) if max_bytes < UNBOUNDED else 0
        while bodies and len(bodies) < max_messages and size < max_bytes:
            # Messages already read must not be lost to a later error: the next call meets that again.
            before = self.reader.position
            try:
                more = self._fetch_loaded(max_messages - len(bodies), max_bytes - size)
            except (OSError, DiskqError):
                break
            if not more:
                break
            if max_bytes < UNBOUNDED and size + len(more[0]) > max_bytes:
                # The first one of a read may be too large here. It stays, and comes first the next time.
                self._committed = before
                self._note_peeked(more[0], self.reader.position)
                self._gate.left = 0
                break
            bodies += more
            size += sum(map(len, more)) if max_bytes < UNBOUNDED else 0
        return bodies

    def _fetch_loaded(self, max_messages: int, max_bytes: int) -> list[bytes]:
        """Return bodies that are loaded, after loading more if they are used up. Empty: no messages."""
        while not (bodies := self._ahead.take_many(max_messages, max_bytes)):
            if max_messages <= 0 or not self.fill():
                break
        return bodies

    def fill(self) -> bool:
        """Load messages into the read-ahead. False if there are no more messages in the files."""
        while isinstance(filled := self.reader.fill(), FileLoss):
            self._note_loss(filled)
        if not filled:
            # At the end of the files the depth is 0, whatever the metadata said.
            self._depth_at_open -= self._unread
            self._tier.is_next = self._parts.has_tier
        return filled

    def load_from_memory(self) -> bool:
        """Load what was accepted a moment ago into the read-ahead, if it comes next there."""
        return self.reader.load_from_memory()

    def _note_loss(self, found: FileLoss) -> None:
        number, loss = found
        if self._sealed.damaged.was_reported(number, loss):
            return
        if self._parts.options.strict:
            damaged = CorruptionError(self._files.data(number), loss.start, loss.reason)
            self.log.refuse(damaged)
            raise damaged
        repair = self._sealed.damaged.note(number, loss, self.log.pending)
        self.log.repairs.append(repair)
        log.report_repair(repair)
        self.lost += loss.records or 0
        if counted := self._counted_in(found):
            self._depth_at_open -= counted
            stretch = QueuePosition(number, loss.start), QueuePosition(number, loss.start + 1)
            self._uncounted = joined((*self.uncounted, stretch))

    def _counted_in(self, found: FileLoss) -> int:
        """Return how many of the lost messages the depth has."""
        place = QueuePosition(found.file, found.loss.start)
        return 0 if is_within(place, self._uncounted) else found.loss.records or 0

    # --- giving up --------------------------------------------------------------------------------

    def drop_oldest(self) -> None:
        """Give up what is left of the oldest file, which must be sealed."""
        oldest = self.position.file
        unread = 0
        if self.reader.file == oldest:
            unread, losses = self.reader.count_on()
            # No reader meets them any more.
            unread += sum(self._counted_in(FileLoss(oldest, loss)) for loss in losses)
        peeked = sum(position.file == oldest for _, position in self._peeked)
        self._forget_peeked(peeked)
        self._dropped_in_hand += peeked
        kept = self._give_up_kept(oldest, is_drop=True)
        if self._peeked:
            self._committed = QueuePosition(self._peeked[0][1].file, 0)
        if self.reader.file == oldest:
            self.reader.next_file()
        self._depth_at_open -= unread
        self.dropped += kept + unread
        self.drop_consumed()

    def skip_all(self) -> None:
        """Pass over all messages: the file that is written next holds none."""
        self._forget_peeked(len(self._peeked))
        self._forgotten += self._tier.peeked
        self._tier.clear()
        self._give_up_kept(self._buffer.file_number, is_drop=False)
        self.reader.seek(QueuePosition(self._buffer.file_number, 0))
        self.drop_consumed()
        self._depth_at_open -= self._records_left

    def _forget_peeked(self, count: int) -> None:
        """Give up the first peeked messages; `advance` will pass over them."""
        for _ in range(count):
            self._peeked.popleft()
        self._forgotten += count
        self._unreceived += count

    def _give_up_kept(self, file: int, *, is_drop: bool) -> int:
        """Give up the messages that the worker has. Returns how many of them were not leased."""
        if self.worker is None:
            return 0
        dropped, in_hand = self.worker.give_up(file, is_drop=is_drop)
        self._unreceived += dropped + in_hand
        return dropped

    def _moved(self) -> None:
        if self.position.file != next(iter(self._sealed), self._buffer.file_number):
            self.drop_consumed()

    def drop_consumed(self) -> None:
        """Let the next barrier remove the files that are read to their end."""
        if not self._peeked and self.reader.ends_file():
            # The caller wants space, or has messages in hand: the next reader meets an error that occurs
            # here, and raises it.
            with contextlib.suppress(OSError, DiskqError):
                self.fill()
        if self._sealed.consume(self.position.file, self.log.pending):
            self.log.policy.force()
            self._parts.quota.note_oldest(self.position)

    # --- where it is ------------------------------------------------------------------------------

    @property
    def position(self) -> QueuePosition:
        """The place after the last message that has left the queue."""
        if self.worker is not None:
            return self.worker.head or self.reader.position
        return self._committed if self._peeked else self.reader.position

    @property
    def uncounted(self) -> tuple[Stretch, ...]:
        """The stretches after the head where messages are lost to damage that the depth has not."""
        return tuple(stretch for stretch in self._uncounted if self.position < stretch[1])

    @property
    def is_reserved(self) -> bool:
        """True if only `peek_many`, `advance` or a worker may go on here: the fast path must not."""
        return bool(self._peeked) or self.worker is not None

    @property
    def depth(self) -> int:
        """The number of messages that can be taken."""
        return self.depth_of_files + self._tier.count

    @property
    def depth_of_files(self) -> int:
        """The number of those that are in the files, or wait to be written there."""
        return max(0, self._records_left)

    @property
    def _records_left(self) -> int:
        """The same; below 0 if the metadata that was found counted too few."""
        kept = self.worker.kept if self.worker is not None else len(self._peeked)
        return self._unread + kept

    @property
    def _unread(self) -> int:
        return self._depth_at_open + self._buffer.records - self._ahead.records

    @property
    def _in_hand(self) -> int:
        """The number of messages that were read, and are not consumed."""
        return self.worker.kept - self.worker.done if self.worker is not None else len(self._peeked)

    @property
    def consumed(self) -> int:
        """The number of messages of the files consumed since the open; one that is read again counts once."""
        return self._ahead.records - self._in_hand - self._recounted

    @property
    def received(self) -> int:
        """The number of messages received since the open."""
        return self._ahead.records + self._tier.taken - self._in_hand - self._unreceived


# --- reading file after file ----------------------------------------------------------------------


class FileLoss(NamedTuple):
    """Bytes of one file that were passed over."""

    file: int
    loss: Loss


class QueueReader:
    """Fills the read-ahead with the next messages. The file that is being written may not exist yet."""

    def __init__(self, parts: QueueParts) -> None:
        self._parts = parts
        self._fs = parts.fs
        self._files = parts.files
        self._ahead = parts.ahead
        self._sealed = parts.sealed
        self._append = parts.append
        self._reader: BlockReader | None = None  # of `file`
        self.file = 0
        """The number of the file that is being read."""

    @property
    def position(self) -> QueuePosition:
        """The place up to which messages have been read."""
        return QueuePosition(self.file, self._ahead.position)

    def seek(self, position: QueuePosition) -> None:
        """Read on at `position`."""
        self.close()
        self.file = position.file
        self._ahead.seek(position.byte)

    def next_file(self) -> None:
        """Read on at the beginning of the next existing file."""
        later = self._sealed.after(self.file)
        self.seek(QueuePosition(self._append.buffer.file_number if later is None else later, 0))

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def fill(self) -> bool | FileLoss:
        """Load messages into the read-ahead. False if there are no more messages in the files.

        Lost bytes are passed over and returned: call it again to go on after them. Raises OSError.
        """
        ahead = self._ahead
        while not ahead.is_ready or ahead.why != "END":
            is_active = self.file == self._append.buffer.file_number
            if is_active and ahead.position >= self._append.buffer.end:
                return False
            if self.load_from_memory():
                return True
            if self._reader is None:
                self._reader = self._open(ahead, self.position)
            covered = None
            if is_active:
                covered = self._append.show_rows(ahead.position)
                end = self._append.buffer.flushed
            else:
                end = self._sealed[self.file]
            number = self.file
            loss = self._reader.fill(end, covered)
            if loss is None and ahead.position >= end and not is_active:
                loss = self._reader.missing(end)
                self.next_file()
            if loss is not None:
                return FileLoss(number, loss)
        return True

    def load_from_memory(self) -> bool:
        """Load what was accepted a moment ago into the read-ahead, if it comes next there.

        It is still in memory, and need not be read from a file. Nothing is taken yet.
        """
        buffer = self._append.buffer
        return self.file == buffer.file_number and not self._ahead.is_ready and buffer.lend(self._ahead)

    def ends_file(self) -> bool:
        """True if the file was read to its end, and nothing is appended to it any more."""
        end = self._sealed.get(self.file)
        ahead = self._ahead
        return end is not None and not ahead.is_ready and ahead.position >= end and ahead.why == "END"

    def count_on(self) -> tuple[int, list[Loss]]:
        """Return how many messages that file, which must be sealed, has from here on, and what is lost there.

        Raises OSError.
        """
        ahead = ReadAhead(self._fs, self._parts.framing, Gate(), self._parts.any_size)
        reader = self._open(ahead, self.position)
        end = self._sealed[self.file]
        counted = 0
        losses: list[Loss | None] = []
        try:
            while ahead.position < end:
                losses.append(reader.fill(end))
                counted += ahead.count()
            losses.append(reader.missing(end))
        finally:
            reader.close()
        return counted, [loss for loss in losses if loss is not None]

    def _open(self, ahead: ReadAhead, position: QueuePosition) -> BlockReader:
        number = position.file
        path, checksum_file = self._files.data(number), self._files.checksum_file(number)
        return BlockReader(self._fs, ahead, path, checksum_file, position.byte)
