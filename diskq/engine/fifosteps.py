# What a queue does in steps: for a channel, which waits where a synchronous caller cannot, and for the
# queue's writer, whose format it is. Law: what is handed out has left the queue, what is peeked at has not,
# and no recorded position runs ahead of synced bytes; and a call here never waits for a sync, but where it
# says so.
#
# With `memory_size` there is a memory tier behind the files: younger messages, that go to their end
# when memory is used up, or somebody wants them there. No message is in both.

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

from diskq._native.memorytier import PLACE_SIZE, MemoryTier, TierAppender
from diskq._native.nsq import MAX_BODY, NsqFraming, scan
from diskq._native.nsqbuffer import NsqAppender, NsqBuffer
from diskq._native.readahead import ReadAhead
from diskq.engine.ackjournal import AckJournal, Known, mend_journals, read_journals
from diskq.engine.alone import alone
from diskq.engine.appending import MODES, Admission, Mode, admission
from diskq.engine.contents import as_body
from diskq.engine.fifoquota import Act, FifoQuota, Obstacle
from diskq.engine.fiforeader import FifoReader, FileLoss
from diskq.engine.fiforecovery import recover
from diskq.engine.log.steps import LogSteps
from diskq.engine.log.trust import QueueUse
from diskq.engine.log.writer import LogWriter
from diskq.engine.nsqfiles import Metadata, Position, QueueFiles
from diskq.engine.sealedfiles import SealedFiles
from diskq.errors import CorruptionError, DiskFullError, DiskqError, MessageSizeError
from diskq.options import Durability, QueueOptions, checked_options
from diskq.storage.appendfile import AppendFile
from diskq.storage.barrier import Replacement
from diskq.storage.budget import Share
from diskq.storage.fs import FULL_DISK_ERRNOS, AnyPath, FileSystem, OsFileSystem, as_path
from diskq.storage.lock import Lock
from diskq.storage.logs import Log
from diskq.storage.numbers import UNBOUNDED
from diskq.storage.recovery import Repair, keep_content
from diskq.storage.slates import Displaced, Slates
from diskq.storage.swap import finish_swap

__all__ = ["Body", "FifoSteps", "Obstacle", "QueueStatistics", "Worker"]

log = Log("queue")

Body = bytes | bytearray | memoryview

# So many handles of files may wait to be synced and closed: each file that is left makes a sync due.
_MOST_WAITING = 64
# Memory goes to the files in pieces of so many bytes and messages: one system call, and a short one.
_SPILL_SIZE = 128 * 1024
_SPILL_ITEMS = 4 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatistics:
    """A queue at one moment. All but `depth`, `bytes`, `files`, `unsynced_bytes` and
    `memory_bytes` count since the open."""

    depth: int
    """Messages that can be received."""
    bytes: int
    """On disk: data and checksums, those of consumed files until a sync has removed them."""
    files: int
    written_bytes: int
    """Of the messages that came to the files, with their framing."""
    unsynced_bytes: int
    """Accepted, not yet on the platter, and more than in memory only."""
    memory_bytes: int
    """Of memory, taken by messages that are nowhere else: `memory_size` bounds them."""
    sent: int
    received: int
    dropped: int
    """Messages that `on_full="drop_oldest"` gave up."""
    lost: int
    """Messages known to be lost to damage: `repairs` tells where."""
    barriers: int
    repairs: tuple[Repair, ...]


Statistics = TypeVar("Statistics", bound=QueueStatistics)
Answer = TypeVar("Answer")


class Worker(Protocol):
    """Who reads beyond the head, alone: what was read stays in the queue until he has done with it."""

    @property
    def head(self) -> Position | None:
        """The first message he has not done with; None: he has done with all he has read."""

    @property
    def kept(self) -> int:
        """Messages from there up to where he reads on."""

    @property
    def done(self) -> int:
        """So many of those he has done with."""

    def give_up(self, file: int) -> int:
        """Messages up to the end of this file are dropped. Returns how many he had not done with."""

    def settle(self) -> tuple[int, ...]:
        """What he knows, written: the handles to be synced before the metadata is. Raises OSError."""

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Let go of his files, without a promise."""


class FifoSteps(LogSteps):
    """A queue's messages on their way into its files and out of them, and the format of its writer.

    It is opened by `FifoQueue`, and closed by its `log`.
    """

    def __init__(
        self,
        directory: AnyPath,
        name: str,
        options: QueueOptions | None,
        fs: FileSystem | None,
        clock: Callable[[], float] | None,
        time_slice: float | None,
        uses_slate: bool,
        never_empty: bool,
    ) -> None:
        self.options = checked_options(options, QueueOptions)
        self._fs: FileSystem = fs or OsFileSystem()
        self._files = QueueFiles(self._fs, as_path(directory), name)
        self.name = name
        self.log = LogWriter(
            self._fs,
            self,
            self.options,
            log,
            path=self._files.directory,
            what=f"queue {name!r}",
            where=self._files.what,
            clock=clock,
            time_slice=time_slice,
            most_waiting=_MOST_WAITING,
        )
        self.turn = self.log.turn
        self.gate_in = self.log.new_gate()
        self.gate_out = self.log.new_gate()
        self._framing = NsqFraming(self.options.min_message_size, self.options.max_message_size)
        self._any_size = NsqFraming(0, MAX_BODY)  # for what is ours for certain: limits may have changed
        self._append = AppendFile(
            self._fs, self.gate_in, lambda tell: NsqBuffer(self._fs, self._framing, self.gate_in, tell)
        )
        self.ahead = ReadAhead(self._fs, self._framing, self.gate_out, self._any_size)
        self.tier = MemoryTier(self._framing, self.gate_in, self.gate_out, self.ahead)
        self.tier.limit = self.options.memory_size
        self.has_tier = self.options.memory_size > 0
        self._is_spill_due = False  # the next barrier is to include what waits in memory
        self._peeked: deque[tuple[bytes, Position]] = deque()
        self._forgotten = 0  # of what was peeked at last, so many were dropped since
        self._unreceived = 0  # of all that was peeked at, so many were
        self._recounted = 0  # records that are read again, and are not counted twice
        self._worker: Worker | None = None
        self._sealed_bytes = 0  # accepted before the active file, since the open
        self._dropped = self._lost = 0
        self.buffer = self._append.buffer
        self._write = self.buffer.appender(Mode.WRITTEN, Admission.FORCED)
        self._hold = self.buffer.appender(Mode.HELD, Admission.FORCED)
        self._stage = self.buffer.appender(Mode.STAGED, Admission.FORCED)
        self._uses_slate = uses_slate
        self._is_open = False
        self._never_empty = never_empty
        self._sealed = SealedFiles(self._fs, self._files)
        self._reader = FifoReader(self._fs, self._files, self.ahead, self._sealed, self._append)
        self._quota = FifoQuota(self._fs, self._files, self.options, self._sealed, self._append, self.tier)

    # --- from open to close -----------------------------------------------------------------------

    def open(self) -> None:
        """Lock it, mend what a crash has left, and go on behind the last message. Raises as `FifoQueue`."""
        fs, files, writer = self._fs, self._files, self.log
        if fs.make_directory(files.private):
            writer.pending.directories[files.directory] = None
        writer.pending.directories[files.private] = None
        writer.on_release(self._quota.close)
        lock = writer.hold(Lock(fs, files.lock, files.what))
        writer.on_release(self._append.abandon)
        finish_swap(fs, files.directory, files.swap)
        slates = writer.use_slates(Slates(fs, lock, {0: files.staging}))
        writer.on_release(self._reader.close)
        writer.on_release(self._abandon_worker)
        slates.put_back()
        found = recover(
            fs,
            files,
            self._framing,
            self._any_size,
            writer.pending,
            use=QueueUse.before(lock.previous, slates, never_empty=self._never_empty),
            strict=self.options.strict,
            tell=log.repaired,
        )
        writer.sign_lock()
        if self._never_empty:
            lock.note_never_empty()
        mend_journals(fs, files, found.read, found.write, writer.pending, is_ours=found.is_ours)
        self._sealed.find(found.sizes, found.write.file)
        self._committed = found.read
        self._write_file = found.write.file
        self._depth_at_open = found.depth
        writer.repairs += [*slates.untold, *slates.repairs, *found.repairs]
        self._lost = sum(repair.records or 0 for repair in writer.repairs)
        self._reader.seek(found.read)
        if self._write_file in found.sizes:
            self.buffer.file_number = self._write_file
            self._append.begin(
                files.data(self._write_file),
                files.sidecar(self._write_file),
                writer.pending,
                end=found.write.byte,
                rows=found.rows,
            )
        self._sealed_bytes = -self.buffer.end
        told = log.all_repaired(writer.repairs, told=found.told)
        self.sync()
        for displaced in slates.displaced:
            self._append_again(displaced)
        slates.clear()
        # Only now, with what stood on the old one written, may there be a new one.
        self._is_open = True
        self._take_slate()
        self._quota.join(self._position())
        log.all_repaired(writer.repairs, told)

    def _abandon_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.abandon()

    def _take_slate(self) -> None:
        slates = self.log.slates
        assert slates is not None
        slates.open({0: self.buffer}, is_for_rows=not self._uses_slate)
        self._quota.slate_size = slates.size
        if self._uses_slate and not slates:
            self.log.was_refused = True

    def _append_again(self, displaced: Displaced) -> None:
        """Another program has taken the place of accepted messages: append them again, durably."""
        path, waiting = displaced.path, displaced.waiting
        bodies = scan(waiting.records).bodies
        least, most = self.options.min_message_size, self.options.max_message_size
        fitting = [body for body in bodies if least <= len(body) <= most]
        done = 0
        while done < len(fitting):
            done = self._write_many(fitting, done, is_held=True)
        self.sync()
        reason = (
            f"its bytes from {waiting.start} on are not what was accepted there: {len(fitting)} messages "
        )
        reason += "are appended again at the end"
        aside = None
        if others := len(bodies) - len(fitting):
            aside = keep_content(self._fs, self._files.slate, waiting.records)
            reason += f", {others} are not of the sizes that are allowed now"
        self._lost += others
        self.log.repairs.append(
            Repair(path=path, kept=waiting.start, dropped=0, reason=reason, records=others, saved_as=aside)
        )

    @alone
    def delete(self) -> None:
        """As `FifoQueue.delete`."""
        if self._worker is not None:
            self._worker.close()
        self.empty()
        self.log.check_usable()
        self.log.pending.removals.append(self._files.metadata)
        self.log.pending.removals += map(self._files.ack_journal, self._files.ack_journals())
        if self.log.slates is not None:
            self.log.slates.give_up()
        self.log.pending.removals.append(self._files.slate)
        self.log.commit()
        self.log.release()

    # --- accepting --------------------------------------------------------------------------------

    def checked(self, body: Body) -> bytes:
        """The message as bytes. Raises TypeError and MessageSizeError before anything is written."""
        if type(body) is not bytes:
            body = as_body(body)
        if not self._framing.min_size <= len(body) <= self._framing.max_size:
            raise MessageSizeError(len(body), self._framing.min_size, self._framing.max_size)
        return body

    def obstacle(self, size: int, *, is_held: bool = False) -> Obstacle | None:
        """What keeps `size` more bytes from being accepted now, after all that helps without waiting.

        `is_held`: they may wait in memory, if that has room for them. Messages are counted with their
        `overhead`.
        """
        self.log.check_usable()
        writes = self._writes_for(size, is_held) if self.has_tier else size
        if writes > 0 and self.log.is_too_much_unsynced(writes):
            return "unsynced"
        if not self._quota.is_bounded:
            return None
        return self._carry_out(self._quota.obstacle(size, self._position()))

    def _carry_out(self, acts: Generator[Act, Position, Answer]) -> Answer:
        """Do what the quota says would make room, one act after the other. Returns its answer.

        Raises DiskFullError and OSError where the disk refuses an act.
        """
        try:
            act = next(acts)
            while True:
                match act:
                    case "roll":
                        self._roll()
                    case "drop_consumed":
                        self._drop_consumed()
                    case "drop_oldest":
                        self._drop_oldest()
                    case "spill":
                        self._spill(self.tier.size)
                act = acts.send(self._position())
        except StopIteration as answered:
            answer: Answer = answered.value
            return answer

    def full_error(self, size: int, obstacle: Obstacle = "full") -> DiskFullError:
        """What an obstacle that no sync does away with means to a caller that will not wait."""
        return self._quota.full_error(size, obstacle)

    def accept(self, body: bytes, *, is_held: bool) -> None:
        """Add one message that was `checked` and has no `obstacle`. Raises DiskFullError, OSError."""
        if self.has_tier:
            self.accept_many([body], 0, is_held=is_held)
            return
        self._make_way(len(body) + self._framing.overhead)
        try:
            is_in = (self._hold if is_held else self._write).append(body)
        except OSError as failure:
            self.log.append_failed(failure)
        assert is_in

    def accept_many(self, bodies: list[bytes], start: int, *, is_held: bool) -> int:
        """Add bodies[start:] as far as one file and the bounds go: the index of the first left out."""
        if not self.has_tier:
            return self._write_many(bodies, start, is_held)
        self.tier.limit = self._quota.memory_limit
        done = self.tier.append_many(bodies, start) if is_held else start
        if done == start:
            try:
                done = self._pass_by(bodies, start, is_held)
            finally:
                self.tier.limit = self._quota.memory_limit
        return done

    def _write_many(self, bodies: list[bytes], start: int, is_held: bool) -> int:
        """As `accept_many`, into the files."""
        self._make_way(len(bodies[start]) + self._framing.overhead)
        before = self.buffer.records
        try:
            return self.buffer.append_many(bodies, start, Mode.HELD if is_held else Mode.WRITTEN)
        except OSError as failure:
            self.log.append_failed(failure, self.buffer.records - before)

    def appender(self, word: Durability, *, can_yield: bool = True) -> NsqAppender | TierAppender:
        """The fast path of messages of that durability, while the gate is open; it judges nothing.

        The caller syncs. `can_yield`: it refuses when the caller's time slice is over, too.
        """
        if word == "memory" and self.has_tier:
            return self.tier.appender(admission(can_yield))
        return self.buffer.appender(MODES[word], admission(can_yield))

    def stage(self, body: Body) -> bool:
        """Accept a message on the slate, for a caller who sees to it that it is written soon.

        False: not done, the gate is shut or the message needs judgement. Raises OSError; it is then not in.
        """
        return self.gate_in.left > 0 and self._stage.append(body)

    @alone
    def pass_on(self, bodies: list[bytes]) -> bool:
        """Put messages into an empty queue and take them out again, for somebody who waits for them.

        They go into the file as every message does, but need not be read back; with a memory tier they
        need not even go there. False: not done, the queue is not empty or a message needs judgement.
        Raises OSError; none of them is then in.
        """
        if self.has_tier:
            is_empty = self.tier.is_next and not self.tier.count and not self._peeked
            return is_empty and self.log.failure is None and self.tier.pass_on(bodies)
        if (
            self.ahead.position != self.buffer.end
            or self._reader.file != self._write_file
            or self._peeked
            or self._worker is not None
            or not self._append.is_ready
            or self.log.failure is not None
            or not self._write.append_all(bodies)
        ):
            return False
        self.ahead.pass_over(self.buffer.end, len(bodies))
        return True

    def _make_way(self, size: int) -> None:
        """Have a file open in which `size` more bytes belong, as go-diskqueue would choose it."""
        self.tier.is_next = False
        end = self.buffer.end if self._append.is_open else 0
        if end and end + size > self.options.file_size:
            self._roll()
            end = 0
        try:
            if not self._append.is_open:
                number = self.buffer.file_number = self._write_file
                self._append.begin(self._files.data(number), self._files.sidecar(number), self.log.pending)
            self._append.make_room_for_rows()
        except OSError as failure:
            self.log.append_failed(failure)
        self._set_limit(size)

    def _set_limit(self, size: int) -> None:
        """Up to where the fast doors may write without asking; `size` bytes at least."""
        end = self.buffer.end
        unsynced = self.log.unsynced_bytes + size
        most = min(size + self.log.policy.unasked(unsynced), self._append.room)
        limit = min(self.options.file_size, end + self._quota.left(most))
        self.buffer.limit = max(limit, end + size)

    def _roll(self) -> None:
        """Leave the active file; the next message begins the next one."""
        try:
            number, end = self._write_file, self.buffer.end
            self.buffer.flush()
        except OSError as failure:
            self.log.append_failed(failure)
        try:
            beside = self._append.finish(self.log.pending)
        except OSError as failure:
            if failure.errno in FULL_DISK_ERRNOS:
                self.log.append_failed(failure)
            self.log.fail(failure)
        self._sealed.add(number, end, beside)
        self._sealed_bytes += end
        self.log.was_refused = False
        self.buffer.retarget(-1, 0, 0)
        self._write_file = number + 1
        self.log.policy.force()
        self.log.bound_waiting()
        self._quota.note_oldest(self._position())

    def _leave_oversized(self) -> None:
        """Leave a file that one message has made larger than the limit, before metadata names a byte of it.

        go-diskqueue 1.0 leaves it behind that message, whatever the metadata says: it would then look for
        files behind the one that is written to, for ever, and a message that it has appended would be lost.
        """
        if self._append.is_open and self.buffer.end > self.options.file_size:
            self._roll()

    @property
    def can_give_way(self) -> bool:
        """Did the disk have no room, and is all of the active file consumed? The next barrier removes it."""
        return (
            self.log.was_refused
            and self._worker is None
            and self._append.is_open
            and self.buffer.end > 0
            and self._position() == Position(self._write_file, self.buffer.end)
        )

    def _give_way(self) -> None:
        """Where the disk is full: leave the active file if all of it is consumed. It may be what fills it."""
        if self.can_give_way:
            # What stands on the slate has been taken, too.
            if self.log.slates is not None:
                self._quota.slate_size = 0
                self.log.slates.give_up()
            try:
                self._append.make_room_for_rows()
                self._roll()
            except DiskFullError:
                return  # the next barrier tries again
            except OSError as failure:
                if failure.errno not in FULL_DISK_ERRNOS:
                    raise

    def _drop_oldest(self) -> None:
        """Give up what is left of the oldest file, to which nothing is appended any more."""
        oldest = self._position().file
        unread = self._reader.count_on(self._framing, self._any_size) if self._reader.file == oldest else 0
        peeked = sum(position.file == oldest for _, position in self._peeked)
        self._forget_peeked(peeked)
        peeked += self._give_up_kept(oldest)
        if self._peeked:
            self._committed = Position(self._peeked[0][1].file, 0)
        if self._reader.file == oldest:
            self._reader.next_file(self._write_file)
        self._depth_at_open -= unread
        self._dropped += peeked + unread
        self._drop_consumed()

    def _forget_peeked(self, count: int) -> None:
        """The first of what was peeked at are given up; `advance` will pass over them."""
        for _ in range(count):
            self._peeked.popleft()
        self._forgotten += count
        self._unreceived += count

    def _give_up_kept(self, file: int) -> int:
        dropped = self._worker.give_up(file) if self._worker is not None else 0
        self._unreceived += dropped
        return dropped

    @property
    def share(self) -> Share | None:
        """What it has of a budget."""
        return self._quota.share

    @alone
    def relieve(self) -> None:
        """Others want room in the budget: give what is not needed here; the next barrier removes it.

        Raises DiskFullError and OSError where the active file could not be left, StorageFailedError.
        """
        if self.share is None or self.log.failure is not None or self.log.is_closed:
            return
        self._carry_out(self._quota.relief(self._position()))
        if self._append.is_open:
            self._set_limit(0)
        self.tier.limit = self._quota.memory_limit

    # --- memory first -----------------------------------------------------------------------------

    def _writes_for(self, size: int, is_held: bool) -> int:
        """So many bytes, about, would be written to accept `size` more."""
        if not is_held:
            return self.tier.size + size
        excess = self.tier.size + size - self.tier.limit
        return min(max(excess, self._spill_size), self.tier.size + size) if excess > 0 else 0

    @property
    def _spill_size(self) -> int:
        """So much memory is freed when it is used up: little, so that nobody waits for a long write.

        And a burst that memory does not quite hold should not be written as a whole.
        """
        return min(_SPILL_SIZE, self.options.memory_size // 4)

    def _pass_by(self, bodies: list[bytes], start: int, is_held: bool) -> int:
        """As `accept_many`, for what finds no room in memory, or is to be in the files at once.

        Older messages go there before it: a few, if that makes room in memory, or all.
        """
        if is_held:
            excess = self.tier.size + len(bodies[start]) + PLACE_SIZE - self.tier.limit
            self._spill(max(excess, self._spill_size))
            self.tier.limit = self._quota.memory_limit
            if (done := self.tier.append_many(bodies, start)) > start:
                return done
        self._spill(self.tier.size)
        return self._write_many(bodies, start, is_held=False)

    def _spill(self, size: int) -> None:
        """Write the oldest messages in memory to the end of the files, until `size` bytes of it are free.

        Raises DiskFullError, OSError: those that are not in the files then are still in memory.
        """
        tier = self.tier
        goal = tier.size - size
        most = min(_SPILL_SIZE, self.options.file_size // 8)
        while tier.count and tier.size > goal:
            peeked = min(tier.peeked, _SPILL_ITEMS)
            bodies = tier.oldest(peeked or _SPILL_ITEMS, tier.size - goal, most)
            if peeked:
                self._fill()  # reading stands at the end of the files, and what is written comes next
            self._make_way(sum(map(len, bodies)) + len(bodies) * self._framing.overhead)
            try:
                done = self.buffer.append_many(bodies, 0, Mode.WRITTEN)
            except OSError as failure:
                self.log.append_failed(failure)
            assert done == len(bodies), "the way was made for all of them"
            tier.let_go(done)
            self.gate_out.left = 0  # what is read from files is counted
            if peeked:
                self._pass_over_peeked(bodies)

    def _pass_over_peeked(self, bodies: list[bytes]) -> None:
        """What was just written had been peeked at in memory: go on as if it had been in the file."""
        if self._reader.file != self._write_file:
            self._reader.next_file(self._write_file)
        end = self.buffer.end - sum(map(len, bodies)) - len(bodies) * self._framing.overhead
        self._keep_peeked(bodies, end)
        self.ahead.pass_over(self.buffer.end, len(bodies))
        self.gate_out.left = 0

    # --- taking -----------------------------------------------------------------------------------

    def fetch(self, max_items: int, max_bytes: int = UNBOUNDED) -> list[bytes]:
        """As `FifoQueue.take_many`, leaving the sync policy to the caller."""
        self._check_reader()
        if self._peeked:
            bodies = self.peek_many(max_items, max_bytes)
            self.advance(len(bodies))
            return bodies
        bodies = self._fetch(max_items, max_bytes)
        if bodies:
            self._taken()
        return bodies

    @alone
    def peek_many(self, max_items: int, max_bytes: int = UNBOUNDED) -> list[bytes]:
        """As `take_many`, but they stay. `advance` removes them."""
        self._check_reader()
        self._forgotten = 0
        missing = max_items - len(self._peeked)
        left = max_bytes - sum(len(body) for body, _ in self._peeked)
        while missing > 0 and left > 0:
            if not self._peeked:
                self._committed = self._reader.position
            if not (bodies := self._fetch_stretch(missing, left)):
                break
            size = sum(map(len, bodies))
            self._keep_peeked(bodies, self.ahead.position - size - len(bodies) * self._framing.overhead)
            left -= size
            missing -= len(bodies)
        self.gate_out.left = 0  # what was peeked at comes first: nothing may pass by it
        first = [body for body, _ in self._first_peeked(max_items, max_bytes)]
        if self.tier.is_next and len(first) == len(self._peeked):
            left = max_bytes - sum(map(len, first))
            first += self.tier.peek_many(max_items - len(first), left, bool(first))
        return first

    def _keep_peeked(self, bodies: list[bytes], start: int) -> None:
        """These are peeked at; they lie next to each other in the file being read, from byte `start` on."""
        for body in bodies:
            start += len(body) + self._framing.overhead
            self._peeked.append((body, Position(self._reader.file, start)))

    @alone
    def advance(self, count: int) -> None:
        """Remove the first `count` messages that were peeked at. Raises ValueError for more than that."""
        self.log.check_usable()
        peeked = self._forgotten + len(self._peeked) + self.tier.peeked
        if not 0 <= count <= peeked:
            raise ValueError(f"cannot advance over {count} messages: {peeked} were peeked at")
        dropped = min(count, self._forgotten)
        self._forgotten -= dropped
        count -= dropped
        in_files = min(count, len(self._peeked))
        for _ in range(in_files):
            _, self._committed = self._peeked.popleft()
        if in_files:
            self._taken()
        self.tier.advance(count - in_files)

    def peeked_ends(self, count: int) -> list[Position]:
        """Of the first `count` messages that were peeked at, the place just behind each.

        None of those that `on_full="drop_oldest"` gave up since.
        """
        return [end for _, end in islice(self._peeked, count)]

    @alone
    def empty(self) -> None:
        """Remove all messages, durably: metadata that says so first, then the files."""
        self.forget_all()
        self.sync()

    @alone
    def forget_all(self) -> None:
        """As `empty`; durable with the next barrier."""
        self.log.check_usable()
        if self._append.is_open:
            self._roll()
        else:
            self._write_file += 1
        self._forget_peeked(len(self._peeked))
        self._forgotten += self.tier.peeked
        self.tier.clear()
        self._give_up_kept(self._write_file)
        self._reader.seek(Position(self._write_file, 0))
        self._drop_consumed()
        self._depth_at_open -= self.depth
        self.log.policy.force()

    # --- reading beyond the head ------------------------------------------------------------------

    @alone
    def attach(self, worker: Worker) -> tuple[AckJournal, Known]:
        """Let somebody read beyond the head, and nobody else: his journal, and what was known before.

        Raises ValueError where somebody does, and with `memory_size`; OSError.
        """
        self._check_reader()
        if self.has_tier:
            raise ValueError("leases go by places in the files, which messages in memory do not have")
        known = read_journals(self._fs, self._files)
        journal = AckJournal(self._fs, self._files, self.log.pending)
        if self._peeked:
            try:
                self._read_again(self._committed, len(self._peeked))
            except BaseException:
                journal.abandon()
                raise
            self._peeked.clear()
        self._worker = worker
        self.gate_out.left = 0
        return journal, known

    @alone
    def detach(self) -> None:
        """The worker has gone: what he has not done with is at the head again, and all behind it."""
        worker, self._worker = self._worker, None
        if worker is not None and (head := worker.head) is not None:
            self._read_again(head, worker.kept)
            self._recounted -= worker.done

    @alone
    def read_on(self, max_items: int, max_bytes: int) -> tuple[Position, list[bytes]]:
        """For a worker: the next messages behind those that were read, and where the first one begins.

        They lie in one file, next to each other; none: there are no more. Raises as `take_many`.
        """
        self.log.check_usable()
        bodies = self._fetch_stretch(max_items, max_bytes)
        size = sum(map(len, bodies)) + self._framing.overhead * len(bodies)
        return Position(self._reader.file, self.ahead.position - size), bodies

    @alone
    def head_moved(self) -> None:
        """The worker's head is further on: files before it are owed to the next barrier."""
        self._taken()

    @property
    def read_to(self) -> Position:
        """Up to where messages were read."""
        return self._reader.position

    @property
    def written_to(self) -> Position:
        """Up to where messages are in the page cache."""
        return Position(self._write_file, self.buffer.flushed)

    def now(self) -> float:
        """On the sync policy's clock."""
        return self.log.clock()

    def _read_again(self, position: Position, count: int) -> None:
        """Be back at `position`, from where `count` messages were read."""
        self._reader.seek(position)
        self._depth_at_open += count
        self._unreceived += count
        self._recounted += count

    def _check_reader(self) -> None:
        self.log.check_usable()
        if self._worker is not None:
            raise ValueError(f"queue {self.name!r} is being worked on: close that first")

    @alone
    def has_message(self) -> bool:
        """Is there one to take? Reads ahead to find out. Raises as `take_many`."""
        return bool(self._peeked) or self._fill() or self.tier.count > 0

    def _fetch(self, max_items: int, max_bytes: int) -> list[bytes]:
        bodies = self._fetch_from_files(max_items, max_bytes)
        if self.tier.is_next and len(bodies) < max_items:
            left = max_bytes - sum(map(len, bodies))
            bodies += self.tier.take_many(max_items - len(bodies), left, bool(bodies))
        return bodies

    def _fetch_from_files(self, max_items: int, max_bytes: int) -> list[bytes]:
        bodies = self._fetch_stretch(max_items, max_bytes)
        size = sum(map(len, bodies)) if max_bytes < UNBOUNDED else 0
        while bodies and len(bodies) < max_items and size < max_bytes:
            # What is in hand must not be lost to an error further on: it comes up again next time.
            before = self._reader.position
            try:
                more = self._fetch_stretch(max_items - len(bodies), max_bytes - size)
            except (OSError, DiskqError):
                break
            if not more:
                break
            if max_bytes < UNBOUNDED and size + len(more[0]) > max_bytes:
                # One is read however large. It stays, and comes first the next time.
                self._committed = before
                self._peeked.append((more[0], self._reader.position))
                self.gate_out.left = 0
                break
            bodies += more
            size += sum(map(len, more)) if max_bytes < UNBOUNDED else 0
        return bodies

    def _fetch_stretch(self, max_items: int, max_bytes: int) -> list[bytes]:
        """Bodies from what is loaded, after loading more where that is used up. Empty: no messages."""
        while not (bodies := self.ahead.take_many(max_items, max_bytes)):
            if max_items <= 0 or not self._fill():
                break
        return bodies

    def _fill(self) -> bool:
        """Have something admitted in the read-ahead. False: there are no more messages in the files."""
        while isinstance(filled := self._reader.fill(self._write_file), FileLoss):
            self._note_loss(filled)
        if filled:
            return True
        self._settle_depth()
        self.tier.is_next = self.has_tier
        return False

    def load_from_memory(self) -> bool:
        """Have in the read-ahead what was accepted a moment ago, if it is what comes next there."""
        return self._reader.load_from_memory(self._write_file)

    def _note_loss(self, found: FileLoss) -> None:
        number, loss = found
        if self._sealed.damaged.is_told(number, loss):
            return
        if self.options.strict:
            damaged = CorruptionError(self._files.data(number), loss.start, loss.reason)
            self.log.refuse(damaged)
            raise damaged
        repair = self._sealed.damaged.note(number, loss, self.log.pending)
        self.log.repairs.append(repair)
        log.repaired(repair)
        self._lost += loss.records or 0
        self._depth_at_open -= loss.records or 0

    def _settle_depth(self) -> None:
        """At the end of the queue its depth is 0, whatever the metadata had said."""
        self._depth_at_open -= self._unfetched

    @property
    def _unfetched(self) -> int:
        return self._depth_at_open + self.buffer.records - self.ahead.records

    def _first_peeked(self, max_items: int, max_bytes: int) -> list[tuple[bytes, Position]]:
        first: list[tuple[bytes, Position]] = []
        size = 0
        for item in self._peeked:
            size += len(item[0])
            if len(first) >= max_items or (size > max_bytes and first):
                break
            first.append(item)
        return first

    # --- where it is ------------------------------------------------------------------------------

    def _position(self) -> Position:
        """Up to where messages have left the queue."""
        if self._worker is not None:
            return self._worker.head or self._reader.position
        return self._committed if self._peeked else self._reader.position

    def _taken(self) -> None:
        if self._position().file != self._first_file():
            self._drop_consumed()

    def _first_file(self) -> int:
        return next(iter(self._sealed), self._write_file)

    def _drop_consumed(self) -> None:
        """Owe the removal of the files that nothing will be read from any more."""
        if not self._peeked and self._reader.ends_file():
            # Whoever came here wants room, or has messages in hand: an error that reading on meets is
            # for the next one who reads.
            with contextlib.suppress(OSError, DiskqError):
                self._fill()
        if self._sealed.consume(self._position().file, self.log.pending):
            self.log.policy.force()
            self._quota.note_oldest(self._position())

    @property
    def head(self) -> Position:
        """The place behind the last message that has left the queue."""
        return self._position()

    @property
    def tail(self) -> Position:
        """The place behind the last message that was accepted."""
        return Position(self._write_file, self.buffer.end)

    @property
    def overhead(self) -> int:
        """Bytes that a message takes beyond its body."""
        return self._framing.overhead

    def overhead_of(self, is_held: bool) -> int:
        """The same, of the memory that may hold it, or of a file."""
        return PLACE_SIZE if is_held and self.has_tier else self._framing.overhead

    @property
    def depth(self) -> int:
        """Messages that can be taken."""
        return self._depth_of_files + self.tier.count

    @property
    def _depth_of_files(self) -> int:
        kept = self._worker.kept if self._worker is not None else len(self._peeked)
        return max(0, self._unfetched + kept)

    @property
    def _in_hand(self) -> int:
        """Messages that were read, and are not consumed."""
        return self._worker.kept - self._worker.done if self._worker is not None else len(self._peeked)

    @property
    def status_path(self) -> str:
        """Where who keeps it open tells how it is doing."""
        return self._files.status

    @property
    def bytes_on_disk(self) -> int:
        """Data and checksums, those of consumed files until a barrier has removed them."""
        return self._quota.on_disk

    @property
    def accepted_total(self) -> int:
        """Messages accepted since the open."""
        return self.buffer.records + self.tier.accepted

    def statistics_as(self, kind: type[Statistics], **more: Any) -> Statistics:
        """The same in a class that has `more` fields, in one step."""
        return kind(
            depth=self.depth,
            bytes=self.bytes_on_disk,
            files=len(self._sealed) + self._append.is_open,
            written_bytes=self.accepted_bytes,
            unsynced_bytes=self.log.unsynced_bytes,
            memory_bytes=self.tier.size,
            sent=self.accepted_total,
            received=self.ahead.records + self.tier.taken - self._in_hand - self._unreceived,
            dropped=self._dropped,
            lost=self._lost,
            barriers=self.log.syncs,
            repairs=self.repairs,
            **more,
        )

    # --- syncing ----------------------------------------------------------------------------------

    @alone
    def sync(self) -> None:
        """Return when every message accepted and the read position are on the platter.

        Raises DiskFullError where messages held in memory find no room; all others are then. Raises
        StorageFailedError, after which the queue is of no use but to be closed.
        """
        self.include_memory()
        self.sync_without_memory()

    def include_memory(self) -> None:
        """Let the next barrier be for the messages in the memory tier, too: it writes them."""
        self._is_spill_due = True

    def sync_without_memory(self) -> None:
        """As `sync`, for all but the messages in the memory tier."""
        sync = self.log.prepare(full=True)
        if not self.log.run(sync) and self.can_give_way:
            sync = self.log.prepare(full=True)
            self.log.run(sync)
        if sync.left_out is not None:
            raise sync.left_out

    @alone
    def sync_if_due(self, word: Durability = "written") -> None:
        """A barrier, if it is time or the `word` wants one; and let go of what others of the budget want.

        For what is done already: what waits in memory and finds no room waits on. Raises StorageFailedError.
        """
        if self.log.after_append(word) and self.share is not None and self.share.is_pressed:
            with contextlib.suppress(DiskFullError):
                self.relieve()
            if self._sealed.leaving:
                self.log.run(self.log.prepare(full=True))

    # --- the format of its writer: see format.py --------------------------------------------------

    @property
    def passed(self) -> int:
        return self.buffer.records + self.ahead.records - self._in_hand - self._recounted

    @property
    def accepted_bytes(self) -> int:
        return self._sealed_bytes + self.buffer.end

    @property
    def waiting_bytes(self) -> int:
        return self.buffer.end - self.buffer.flushed

    def open_gates(self, left: int, unsynced: int) -> None:
        # What comes to memory, or from it, is not counted: there is nothing to be synced.
        self.gate_in.left = UNBOUNDED if self.has_tier else left if self._append.is_ready else 0
        is_shut = self._peeked or self._worker is not None
        self.gate_out.left = 0 if is_shut else UNBOUNDED if self.tier.is_next else left

    @property
    def is_flushed(self) -> bool:
        return self.buffer.flushed == self.buffer.end

    def flush(self) -> None:
        self.buffer.flush()

    def cut_back(self) -> None:
        if self._append.is_open:
            self._append.cut_back()

    @property
    def failure(self) -> OSError | None:
        return self._append.failure

    def gather(self, full: bool) -> None:
        """What is in the memory tier stays there, unless somebody asked to `include_memory`."""
        is_spill_due, self._is_spill_due = self._is_spill_due, False
        try:
            self._give_way()
            self._drop_consumed()
            if is_spill_due:
                self._spill(self.tier.size)
            self.log.flush()
            if self.wants_metadata(full):
                self._leave_oversized()
        except DiskFullError:
            self._is_spill_due = is_spill_due and self.can_give_way
            if self.tier.count or self._position() < self.tail:
                raise  # else it has been taken, and nobody needs it in a file

    def wants_metadata(self, full: bool) -> bool:
        """Without it a sync is enough for a message to be found again; with it the read position is durable
        too, consumed files go, and a peer may open the directory."""
        return full or bool(self.log.pending.removals or self.log.pending.asides)

    def settle(self, with_metadata: bool) -> tuple[int, ...]:
        active = self._append.settle()
        if with_metadata and self._worker is not None:
            active += self._worker.settle()
        return active

    def metadata(self) -> tuple[Replacement, ...]:
        write = self.written_to
        unwritten = self.buffer.records - self.buffer.records_written
        # What was received from memory may be more than what is left of the written.
        depth = max(0, self._depth_of_files - unwritten)
        told = Metadata(depth=depth, read=min(self._position(), write), write=write, is_ours=True)
        return (self._files.metadata_as(told),)

    def state(self) -> int:
        """Bytes of consumed files that are gone when the sync is complete."""
        return self._sealed.leaving

    def completed(self, state: int, is_replaced: bool) -> None:
        self._sealed.removed(state)
        slates = self.log.slates
        if state and self._is_open and slates is not None and not slates.size:
            with contextlib.suppress(OSError):  # it can do without
                self._take_slate()
        self._quota.settle()
        if self._append.is_open:
            self._set_limit(0)
        self.tier.limit = self._quota.memory_limit

    def finish(self) -> None:
        writer = self.log
        if self._worker is not None:
            self._worker.close()
        self.sync()
        if writer.was_refused:
            self.sync()  # what gave way was gone only after the metadata had found no room
        if writer.slates is not None:
            writer.slates.retire()
        if not self._append.owes_rows:
            with contextlib.suppress(OSError):
                writer.lock.note_closed()
