# The tail of a queue: where messages are accepted and written. Law: a message comes after all that were
# accepted before it, and a file ends only where go-diskqueue would begin the next one, or to free space.
#
# With `memory_size` a memory tier follows the files: it holds younger messages, which go to the end of the
# files when memory is used up, or when a sync is to cover them. No message is in both.
#
# The tail asks the quota, and does what that says would free space, at either end of the queue. So it calls
# the head (head.py), which calls nothing of the tail.

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from diskq._native.core.thread_guard import ThreadGuard
from diskq._native.queue.append_buffer import NsqAppender, NsqGathering
from diskq._native.queue.memory_tier import PLACE_SIZE, TierAppender
from diskq.engine.log.engine import MODES, Admission, Mode, admission
from diskq.engine.log.message_checks import as_body
from diskq.engine.log.sync import exclusive
from diskq.engine.queue.files import QueuePosition
from diskq.engine.queue.head import FifoHead
from diskq.engine.queue.quota import Act, Obstacle, QueueParts
from diskq.errors import FullError, MessageSizeError
from diskq.options import Durability
from diskq.storage.fs import FULL_DISK_ERRNOS

__all__ = ["Body", "FifoTail"]

Body = bytes | bytearray | memoryview
Answer = TypeVar("Answer")

# Memory goes to the files in pieces of up to this many bytes and messages: each one short system call.
_SPILL_SIZE = 128 * 1024
_SPILL_ITEMS = 4 * 1024


class FifoTail:
    """The end of an open queue at which messages are added. `begin` sets its place."""

    def __init__(self, parts: QueueParts, head: FifoHead) -> None:
        self.log = parts.log
        self.guard: ThreadGuard = parts.log.guard
        self._files = parts.files
        self._options = parts.options
        self._file_size = parts.options.roll_size
        self._framing = parts.framing
        self._gate_in = parts.gate_in
        self._gate_out = parts.gate_out
        self._append = parts.append
        self._buffer = parts.buffer
        self._ahead = parts.ahead
        self._sealed = parts.sealed
        self._quota = parts.quota
        self._head = head
        self.tier = parts.tier
        self.has_tier = parts.has_tier
        self.sealed_bytes = 0
        """Bytes accepted since the open into files before the active one."""
        self._write = parts.buffer.appender(Mode.WRITTEN, Admission.FORCED)
        self._hold = parts.buffer.appender(Mode.HELD, Admission.FORCED)
        self.append_all = self._write.append_all
        """Adds messages with one write, unless an `obstacle` is to be asked for. False: `accept_many` them.

        Raises OSError, which is for `log.append_failed`. In both cases none was added."""
        self._stage = parts.buffer.appender(Mode.STAGED, Admission.FORCED)

    def begin(self, write: QueuePosition, rows: int, *, is_there: bool) -> None:
        """Write on at `write`, in a file that `is_there` or is yet to be made. Raises OSError.

        `rows`: the size of its checksum entries, in bytes.
        """
        number = self._buffer.file_number = write.file
        if is_there:
            self._open(number, write.byte, rows)
        self.sealed_bytes = -self._buffer.end

    def _open(self, number: int, end: int = 0, rows: int = 0) -> None:
        data, checksum_file = self._files.data(number), self._files.checksum_file(number)
        self._append.begin(data, checksum_file, self.log.pending, end=end, rows=rows)

    # --- accepting --------------------------------------------------------------------------------

    def checked(self, body: Body) -> bytes:
        """Return the message as bytes. Raises TypeError and MessageSizeError before anything is written."""
        if type(body) is not bytes:
            body = as_body(body)
        if not self._framing.min_size <= len(body) <= self._framing.max_size:
            raise MessageSizeError(len(body), self._framing.min_size, self._framing.max_size)
        return body

    def overhead_of(self, is_held: bool) -> int:
        """Return the bytes that a message takes beyond its body, in memory or in a file."""
        return PLACE_SIZE if is_held and self.has_tier else self._framing.overhead

    def obstacle(self, size: int, *, is_held: bool = False) -> Obstacle | None:
        """Return what keeps `size` more bytes from being accepted, after all acts that need no waiting.

        `is_held`: they may wait in memory, if it has space for them. Messages are counted with their
        `overhead_of`.
        """
        self.log.check_usable()
        writes = self._bytes_written_for(size, is_held) if self.has_tier else size
        if writes > 0 and self.log.is_too_much_unsynced(writes):
            return "unsynced"
        if not self._quota.is_bounded:
            return None
        return self._carry_out(self._quota.obstacle(size, self._head.position))

    def _carry_out(self, acts: Generator[Act, QueuePosition, Answer]) -> Answer:
        """Do what the quota says would free space, one act after the other. Returns its answer.

        Raises DiskFullError and OSError if the disk refuses an act.
        """
        try:
            act = next(acts)
            while True:
                match act:
                    case "roll":
                        self._roll()
                    case "drop_consumed":
                        self._head.drop_consumed()
                    case "drop_oldest":
                        self._head.drop_oldest()
                    case "spill":
                        self.spill()
                act = acts.send(self._head.position)
        except StopIteration as answered:
            answer: Answer = answered.value
            return answer

    def accept(self, body: bytes, *, is_held: bool) -> None:
        """Add one message that was `checked` and has no `obstacle`. Raises DiskFullError, OSError."""
        if self.has_tier:
            self.accept_many([body], 0, is_held=is_held)
            return
        self._open_file_for(len(body) + self._framing.overhead)
        try:
            is_in = (self._hold if is_held else self._write).append(body)
        except OSError as failure:
            self.log.append_failed(failure)
        assert is_in

    def accept_many(self, bodies: list[bytes], start: int, *, is_held: bool) -> int:
        """Add bodies[start:] as far as one file and the bounds allow. Returns the index of the next one."""
        if not self.has_tier:
            return self.write_many(bodies, start, is_held)
        self.tier.limit = self._quota.memory_limit
        done = self.tier.append_many(bodies, start) if is_held else start
        if done == start:
            try:
                done = self._bypass_memory(bodies, start, is_held)
            finally:
                self.tier.limit = self._quota.memory_limit
        return done

    def write_many(self, bodies: list[bytes], start: int, is_held: bool) -> int:
        """Add bodies to the files, otherwise as `accept_many`."""
        self._open_file_for(len(bodies[start]) + self._framing.overhead)
        before = self._buffer.records
        try:
            return self._buffer.append_many(bodies, start, Mode.HELD if is_held else Mode.WRITTEN)
        except OSError as failure:
            self.log.append_failed(failure, self._buffer.records - before)

    def appender(self, word: Durability, *, can_yield: bool = True) -> NsqAppender | TierAppender:
        """Return the fast path for messages of that durability, while the gate is open; it judges nothing.

        The caller syncs. `can_yield`: it also refuses when the caller's time slice is over.
        """
        if word == "memory" and self.has_tier:
            return self.tier.appender(admission(can_yield))
        return self._buffer.appender(MODES[word], admission(can_yield))

    def gathering(self, current_task: Callable[[], Any], largest: int) -> NsqGathering:
        """Return what gathers messages for `accept_many`: simple ones of `largest` bytes at most."""
        return self._buffer.gathering(current_task, largest)

    def stage(self, body: Body) -> bool:
        """Accept a message on the write-ahead log, for a caller that has it written soon after.

        False, and not accepted: the gate is shut or the message needs judgement. Raises OSError; the message
        is then not accepted.
        """
        return self._gate_in.left > 0 and self._stage.append(body)

    @exclusive
    def pass_on(self, bodies: list[bytes]) -> bool:
        """Put messages into an empty queue and take them out again, for a receiver that waits for them.

        They go into the file as every message does, but need not be read back; with a memory tier they
        need not even go there. False, and nothing done: the queue is not empty or a message needs judgement.
        Raises OSError; none of them is then in the queue.
        """
        head, buffer = self._head, self._buffer
        if head.is_reserved or self.log.failure is not None:
            return False
        if self.has_tier:
            return self.tier.is_next and not self.tier.count and self.tier.pass_on(bodies)
        if (
            self._ahead.position != buffer.end
            or head.reader.file != buffer.file_number
            or not self._append.is_ready
            or not self._write.append_all(bodies)
        ):
            return False
        self._ahead.pass_over(buffer.end, len(bodies))
        return True

    # --- from file to file ------------------------------------------------------------------------

    def _open_file_for(self, size: int) -> None:
        """Have a file open in which `size` more bytes belong, as go-diskqueue would choose it."""
        self.tier.is_next = False
        end = self._buffer.end if self._append.is_open else 0
        if end and end + size > self._file_size:
            self._roll()
        try:
            if not self._append.is_open:
                self._open(self._buffer.file_number)
            if self._append.needs_room:
                self._append.prepare()
        except OSError as failure:
            self.log.append_failed(failure)
        self._set_limit(size)

    def renew_limits(self) -> None:
        """Set the limits of the fast paths anew, after a sync, or after space was freed."""
        if self._append.is_open:
            self._set_limit(0)
        self.tier.limit = self._quota.memory_limit

    def _set_limit(self, size: int) -> None:
        """Set how far the fast paths may write without asking: `size` bytes at least."""
        end = self._buffer.end
        unsynced = self.log.unsynced_bytes + size
        most = min(size + self.log.policy.bytes_until_check(unsynced), self._append.room)
        limit = min(self._file_size, end + self._quota.left(most))
        self._buffer.limit = max(limit, end + size)

    def _roll(self, *, is_removed: bool = False) -> None:
        """End the active file; the next message begins the next one.

        `is_removed`: the next barrier removes it, so nothing more is written to it.
        """
        try:
            number, end = self._buffer.file_number, self._buffer.end
            self._buffer.flush()
        except OSError as failure:
            self.log.append_failed(failure)
        try:
            checksum_bytes = self._append.finish(self.log.pending, is_removed=is_removed)
        except OSError as failure:
            if failure.errno in FULL_DISK_ERRNOS:
                self.log.append_failed(failure)
            self.log.fail(failure)
        self._sealed.add(number, end, checksum_bytes)
        self.sealed_bytes += end
        self.log.was_refused = False
        self._buffer.retarget(-1, 0, 0)
        self._buffer.file_number = number + 1
        self.log.policy.force()
        self.log.bound_waiting()
        self._quota.note_oldest(self._head.position)

    def end_oversized_file(self) -> None:
        """End a file that one message has made larger than the limit, before metadata names a byte of it.

        go-diskqueue 1.0 leaves it after that message, whatever the metadata says: it would then look for
        files after the one that is written to, forever, and a message that it has appended would be lost.
        """
        if self._append.is_open and self._buffer.end > self._file_size:
            self._roll()

    @exclusive
    def discard_all(self) -> None:
        """Remove all messages, as `Queue.clear`; durable with the next barrier."""
        self.log.check_usable()
        if self._append.is_open:
            self._roll()
        else:
            self._buffer.file_number += 1
        self._head.skip_all()
        self.log.policy.force()

    # --- freeing space ----------------------------------------------------------------------------

    @property
    def can_end_consumed_file(self) -> bool:
        """True if the disk was full and the active file is consumed: the next barrier removes it."""
        return (
            self.log.was_refused
            and self._head.worker is None
            and self._append.is_open
            and self._buffer.end > 0
            and self._head.position == self.position
        )

    def end_consumed_file(self) -> None:
        """End the active file if the disk is full and all of it is consumed: it may be the cause."""
        if self.can_end_consumed_file:
            # What is on the write-ahead log has been taken, too.
            if self.log.wals is not None:
                self.log.wals.give_up()
            try:
                self._append.make_room_for_rows()
                self._roll()
            except (FullError, OSError) as failure:
                if isinstance(failure, OSError) and failure.errno not in FULL_DISK_ERRNOS:
                    raise
                # Where even its checksums cannot be completed: they go with it.
                if self._append.is_open and self._buffer.flushed == self._buffer.end:
                    self._roll(is_removed=True)

    @exclusive
    def relieve(self) -> None:
        """Free what is not needed here for other members of the budget; the next barrier removes it.

        Raises DiskFullError and OSError if the active file could not be ended, StorageFailedError.
        """
        if self._quota.share is None or self.log.failure is not None or self.log.is_closed:
            return
        self._carry_out(self._quota.relief(self._head.position))
        self.renew_limits()

    # --- memory first -----------------------------------------------------------------------------

    def _bytes_written_for(self, size: int, is_held: bool) -> int:
        """Return about how many bytes would be written to accept `size` more."""
        if not is_held:
            return self.tier.size + size
        excess = self.tier.size + size - self.tier.limit
        return min(max(excess, self._spill_size), self.tier.size + size) if excess > 0 else 0

    @property
    def _spill_size(self) -> int:
        """How many bytes of messages are written to the files at once when the memory for messages is full.

        They are few, so that no caller waits for a long write, and so that a burst of messages that is a
        little larger than the memory is not written as a whole.
        """
        return min(_SPILL_SIZE, self._options.memory_size // 4)

    def _bypass_memory(self, bodies: list[bytes], start: int, is_held: bool) -> int:
        """Accept, as `accept_many`, messages that do not fit in memory, or that must be in the files at once.

        Older messages go to the files first: a few, if that frees enough memory, or all.
        """
        if is_held:
            excess = self.tier.size + len(bodies[start]) + PLACE_SIZE - self.tier.limit
            self._spill(max(excess, self._spill_size))
            self.tier.limit = self._quota.memory_limit
            if (done := self.tier.append_many(bodies, start)) > start:
                return done
        self.spill()
        return self.write_many(bodies, start, is_held=False)

    def spill(self) -> None:
        """Write all that is in memory to the end of the files. Raises as `_spill`."""
        self._spill(self.tier.size)

    def _spill(self, size: int) -> None:
        """Write the oldest messages in memory to the end of the files, until `size` bytes of it are free.

        Raises DiskFullError, OSError: those that are not in the files then are still in memory.
        """
        tier = self.tier
        goal = tier.size - size
        most = min(_SPILL_SIZE, self._file_size // 8)
        while tier.count and tier.size > goal:
            peeked = min(tier.peeked, _SPILL_ITEMS)
            bodies = tier.oldest(peeked or _SPILL_ITEMS, tier.size - goal, most)
            if peeked:
                self._head.fill()  # reading is at the end of the files, and what is written comes next
            self._open_file_for(sum(map(len, bodies)) + len(bodies) * self._framing.overhead)
            try:
                done = self._buffer.append_many(bodies, 0, Mode.WRITTEN)
            except OSError as failure:
                self.log.append_failed(failure)
            assert done == len(bodies), "the file was chosen to hold all of them"
            tier.let_go(done)
            self._gate_out.left = 0  # what is read from files is counted
            if peeked:
                self._head.mark_written_as_peeked(bodies)

    # --- where it is ------------------------------------------------------------------------------

    @property
    def position(self) -> QueuePosition:
        """The place after the last message that was accepted."""
        return QueuePosition(self._buffer.file_number, self._buffer.end)

    @property
    def written_to(self) -> QueuePosition:
        """The place up to which messages are in the page cache."""
        return QueuePosition(self._buffer.file_number, self._buffer.flushed)
