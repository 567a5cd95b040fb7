# What a queue does in steps, for a channel, which waits where a synchronous caller cannot; and the format of
# the queue's writer. Law: no recorded position runs ahead of synced bytes; and a call here never waits for a
# sync, unless it says so.
#
# Messages come in at the tail (tail.py) and leave at the head (head.py); what both of them share is
# in quota.py.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from diskq._native.queue.codec import scan
from diskq.engine.log.engine import LogSteps
from diskq.engine.log.opening import LeftBehind, LogOpening, NewLogs
from diskq.engine.log.recovery import OpenRepairs, QueueUse
from diskq.engine.log.shared_sync import SharedCall
from diskq.engine.log.sync import exclusive
from diskq.engine.log.writer import LogWriter
from diskq.engine.queue.ack_log import repair_ack_logs
from diskq.engine.queue.files import QueueFiles, QueueMetadata
from diskq.engine.queue.head import FifoHead
from diskq.engine.queue.overwritten import is_of_another_program
from diskq.engine.queue.quota import QueueParts
from diskq.engine.queue.recovery import QueueRecovery, Recovered, count_records, redo_source
from diskq.engine.queue.tail import FifoTail
from diskq.errors import FullError, NotFoundError
from diskq.options import QueueOptions
from diskq.storage.append_file import AppendFile, void_rows
from diskq.storage.barrier import Replacement
from diskq.storage.directories import make_directories
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path
from diskq.storage.log.entries import Displaced
from diskq.storage.log.replay import Redone
from diskq.storage.log_events import Log
from diskq.storage.numbers import UNBOUNDED
from diskq.storage.repairs import Repair, RepairKind, keep_content

__all__ = ["QueueStatistics", "QueueSteps"]

log = Log("queue")

# Up to this many handles of files may wait to be synced and closed: each file that is left makes a sync due.
_MOST_WAITING = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatistics:
    """A queue at one moment. All but `depth`, `bytes_on_disk`, `files`, `unsynced_bytes` and
    `memory_bytes` count since the open."""

    depth: int
    """Messages that can be received."""
    bytes_on_disk: int
    """Bytes on disk: data and checksums, those of consumed files included until a sync has removed them."""
    files: int
    written_bytes: int
    """Bytes of the messages that came to the files, with their framing."""
    unsynced_bytes: int
    """Bytes accepted and not yet on stable storage, except what is in memory only."""
    memory_bytes: int
    """Bytes of memory taken by messages that are in no file: `memory_size` bounds them."""
    accepted: int
    delivered: int
    dropped: int
    """Messages that `on_full="drop_oldest"` gave up, and that no receiver had in hand and processed."""
    lost: int
    """Messages known to be lost to damage: `repairs` says where."""
    barriers: int
    repairs: tuple[Repair, ...]


Statistics = TypeVar("Statistics", bound=QueueStatistics)


class QueueSteps(LogSteps):
    """A queue's messages on their way into its files and out of them, and the format of its writer.

    `Queue` opens it; `log.close` closes it.
    """

    _recovered: tuple[QueueRecovery, Recovered]  # between two steps of an open

    def __init__(
        self,
        directory: AnyPath,
        name: str,
        options: QueueOptions,
        fs: FileSystem | None,
        clock: Callable[[], float] | None,
        time_slice: float | None,
        uses_wal: bool,
        never_empty: bool,
    ) -> None:
        self.options = options
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
        self.guard = self.log.guard
        parts = QueueParts(self._fs, self._files, self.options, self.log)
        self.gate_in, self.gate_out = parts.gate_in, parts.gate_out
        self.buffer, self.ahead, self.tier = parts.buffer, parts.ahead, parts.tier
        self.has_tier = parts.has_tier
        self.overhead: int = parts.framing.overhead
        """Bytes that a message takes in a file beyond its body."""
        self.quota = parts.quota
        self._parts = parts
        self._append, self._sealed = parts.append, parts.sealed
        self.head = FifoHead(parts)
        self.tail = FifoTail(parts, self.head)
        self._is_spill_due = False  # True if the next barrier is to include what waits in memory
        self._uses_wal = self.quota.plan_wal(is_wanted=uses_wal)
        self._is_open = False
        self._has_voided = False  # checksums where another program has written
        self._never_empty = never_empty

    # --- from open to close -----------------------------------------------------------------------

    def open(self, *, creates: bool = True) -> None:
        """Lock it, repair what a crash has left, and go on after the last message. Raises as `Queue`."""
        files = self._files
        if not creates and not files.exist():
            raise NotFoundError.with_create_false(
                "queue", files.directory, f"there is no queue {files.name!r}"
            )
        LogOpening(self._fs, self, files, log, root=files.directory, guarded=files.what).run()
        self._is_open = True
        self._note_refused_wal()
        self.quota.join(self.head.position)

    def _make_private_directory(self) -> bool:
        try:
            return self._fs.make_directory(self._files.private)
        except FileNotFoundError:  # the directory itself is missing
            make_directories(self._fs, self._files.directory)
            return self._fs.make_directory(self._files.private)

    def prepare(self) -> None:
        fs, files, writer = self._fs, self._files, self.log
        if fs.size_of(files.lock) is None and fs.size_of(files.metadata) is None:
            self.quota.check_new()
        files.check_apart()
        if self._make_private_directory():
            writer.pending.directories[files.directory] = None
        writer.pending.directories[files.private] = None
        if self.options.budget is not None:
            writer.on_release(lambda: self.quota.close(is_dropped=writer.is_dropped))

    def look(self, opening: LogOpening) -> LeftBehind:
        return LeftBehind(self, redo_source(self._files))

    def claim(self, opening: LogOpening) -> None:
        """Do nothing: nsqd looks for no sign of another program."""

    def judge(self, redone: Redone) -> None:
        """Remove checksums of displaced messages, where another program's messages are."""
        files = self._files
        for each in redone.displaced:
            if is_of_another_program(self._fs, files, each):
                void_rows(self._fs, files.checksum_file(each.part.file), each.part.position)
                redone.voided[0, each.part.file] = each.part.position
        self._has_voided = bool(redone.voided)

    def recover(self, opening: LogOpening) -> Sequence[Repair]:
        fs, files, writer, state = self._fs, self._files, self.log, opening.state
        use = QueueUse.before(state.previous, opening.wals, never_empty=self._never_empty)
        acts = OpenRepairs(fs, writer.pending, strict=self.options.strict)
        framing, any_size = self._parts.framing, self._parts.any_size
        recovery = QueueRecovery(
            fs,
            files,
            framing,
            any_size,
            use,
            acts,
            log_repair=log.report_repair,
            displaced=opening.displaced,
        )
        found = recovery.run()
        self._recovered = recovery, found
        if self._has_voided or (found.sizes and not found.is_ours):
            state.plan_foreign()
        if files.ack_logs():
            repair_ack_logs(fs, files, found.read, found.write, writer.pending, is_ours=found.is_ours)
        self._sealed.find(found.sizes, found.write.file)
        opening.note_found(found.repairs, count_records, reported=found.reported)
        lost = [repair for repair in writer.repairs if repair.kind is not RepairKind.UNSYNCED]
        self.head.lost = sum(repair.records or 0 for repair in lost)
        self.head.begin(found.read, found.depth, uncounted=found.uncounted)
        if self._never_empty:
            state.plan_never_empty()
        return found.reported

    def begin(self) -> None:
        recovery, found = self._recovered
        del self._recovered
        self.tail.begin(found.write, recovery.settle(found), is_there=found.write.file in found.sizes)
        self.sync()

    def carry_out(self) -> None:
        """Do nothing: a message of a queue is a whole transaction."""

    def new_logs(self) -> NewLogs:
        return NewLogs({0: self._files.staging}, {0: self.buffer}, is_for_rows=not self._uses_wal)

    def appends(self) -> Iterable[AppendFile[Any]]:
        return (self._append,)

    def unlogged(self) -> Iterable[tuple[int, AppendFile[Any]]]:
        return ((0, self._append),)

    def abandon(self) -> None:
        try:
            self._append.abandon()
        finally:
            self.head.release()

    @property
    def most_redo(self) -> int:
        return self.quota.most_redo

    def _take_wal(self) -> None:
        wals = self.log.wals
        assert wals is not None
        logs = self.new_logs()
        wals.open(logs.buffers, is_for_rows=logs.is_for_rows, stagings=logs.stagings)
        self._note_refused_wal()

    def _note_refused_wal(self) -> None:
        if self._uses_wal and not self.log.wals:
            self.log.was_refused = True

    def append_again(self, displaced: Displaced) -> None:
        """Append accepted messages again, durably: another program's bytes have taken their place."""
        path, part = displaced
        bodies = scan(part.content).bodies
        least, most = self.options.min_message_size, self.options.max_message_size
        fitting = [body for body in bodies if least <= len(body) <= most]
        done = 0
        while done < len(fitting):
            done = self.tail.write_many(fitting, done, is_held=True)
        self.sync()
        reason = f"its bytes from {part.position} on are not the accepted ones: "
        reason += f"{len(fitting)} messages are appended again at the end"
        aside = None
        if others := len(bodies) - len(fitting):
            aside = keep_content(self._fs, self._files.wal, part.content)
            reason += f", {others} do not have a size that is allowed now"
        self.head.lost += others
        self.log.repairs.append(
            Repair(
                path=path,
                kind=RepairKind.DISPLACED,
                kept=part.position,
                dropped=0,
                reason=reason,
                records=others,
                saved_as=aside,
            )
        )

    @exclusive
    def delete(self) -> None:
        """Close the queue and remove its files, as `Queue.delete`."""
        if self.head.worker is not None:
            self.head.worker.close()
        self.clear()
        self.log.check_usable()
        self.log.pending.removals.append(self._files.metadata)
        self.log.pending.removals += map(self._files.ack_log, self._files.ack_logs())
        if self.log.wals is not None:
            self.log.wals.give_up()
        self.log.clear_redo()
        self.log.pending.removals += (self._files.wal, self._files.redo, self._files.state)
        self.log.commit()
        self.log.release()

    # --- what another program has written ---------------------------------------------------------

    @property
    def has_foreign(self) -> bool:
        """True if it has messages of another program, which no spool has taken up since."""
        return self.log.state.has_foreign

    def note_taken_up(self) -> None:
        """Record that the spool has taken up the messages of another program. Raises OSError."""
        self.log.state.note_taken_up()

    # --- where it is ------------------------------------------------------------------------------

    @property
    def content(self) -> str:
        return f"{self.head.depth} messages"

    @property
    def status_path(self) -> str:
        """The status file, for other processes."""
        return self._files.status

    @property
    def accepted_total(self) -> int:
        """The number of messages accepted since the open."""
        return self.buffer.records + self.tier.accepted

    def statistics_as(self, kind: type[Statistics], **more: Any) -> Statistics:
        """Return the statistics in a class that has `more` fields, in one step."""
        head = self.head
        return kind(
            depth=head.depth,
            bytes_on_disk=self.quota.on_disk,
            files=len(self._sealed) + self._append.is_open,
            written_bytes=self.accepted_bytes,
            unsynced_bytes=self.log.unsynced_bytes,
            memory_bytes=self.tier.size,
            accepted=self.accepted_total,
            delivered=head.received,
            dropped=head.dropped,
            lost=head.lost,
            barriers=self.log.syncs,
            repairs=self.repairs,
            **more,
        )

    # --- syncing ----------------------------------------------------------------------------------

    @exclusive
    def clear(self) -> None:
        """Remove all messages, durably: metadata that says so first, then the files."""
        self.tail.discard_all()
        self.sync()

    @exclusive
    def sync(self) -> None:
        """Return when every message accepted and the read position are on stable storage.

        Raises DiskFullError if there is no space for messages held in memory; all others are durable then.
        Raises StorageFailedError, after which only `close` is allowed.
        """
        self.include_memory()
        self.sync_without_memory()

    def share_sync(self) -> None:
        """Do as `sync`, by a sync that threads share."""
        call = self._join_sync()
        self.log.end_sync(call)
        if call is not None and not call.is_replaced and self.tail.can_end_consumed_file:
            call = self._join_sync()
            self.log.end_sync(call)
        if call is not None and (left_out := call.left_out) is not None:
            raise left_out

    @exclusive
    def _join_sync(self) -> SharedCall | None:
        self.log.check_usable()
        self.include_memory()
        if self.guard.depth > 1:
            self.sync_without_memory()
            return None
        return self.log.join_sync(full=True)

    def include_memory(self) -> None:
        """Let the next barrier cover the messages in the memory tier, too: it writes them."""
        self._is_spill_due = True

    def sync_without_memory(self) -> None:
        """Sync all but the messages in the memory tier, as `sync`."""
        sync = self.log.prepare(full=True)
        if not self.log.run(sync) and self.tail.can_end_consumed_file:
            sync = self.log.prepare(full=True)
            self.log.run(sync)
        if sync.left_out is not None:
            raise sync.left_out

    @exclusive
    def sync_if_due(self) -> bool:
        """Sync, if it is due; and free what other members of the budget want. True if it was due.

        It is for what is accepted already: what waits in memory for disk space still waits. Raises
        StorageFailedError.
        """
        is_due = self.log.after_append()
        if is_due and (share := self.quota.share) is not None and share.is_contended:
            with contextlib.suppress(FullError):
                self.tail.relieve()
            if self._sealed.leaving:
                self.log.run(self.log.prepare(full=True))
        return is_due

    # --- the format of its writer: see format.py --------------------------------------------------

    @property
    def passed(self) -> int:
        return self.buffer.records + self.head.consumed

    @property
    def accepted_bytes(self) -> int:
        return self.tail.sealed_bytes + self.buffer.end

    @property
    def written_bytes(self) -> int:
        return self.tail.sealed_bytes + self.buffer.flushed

    def open_gates(self, left: int, unsynced: int) -> None:
        append, head = self._append, self.head
        if append.failure is not None:
            raise append.failure
        # Messages that enter or leave memory are not counted: there is nothing to be synced.
        self.gate_in.left = UNBOUNDED if self.has_tier else left if append.is_ready else 0
        self.gate_out.left = 0 if head.is_reserved else UNBOUNDED if self.tier.is_next else left

    @property
    def is_flushed(self) -> bool:
        return self.buffer.flushed == self.buffer.end

    def flush(self) -> None:
        self.buffer.flush()

    def flush_records(self) -> bool:
        self.buffer.flush()
        return False

    def cut_back(self) -> None:
        if self._append.is_open:
            self._append.cut_back()

    def gather(self, full: bool) -> None:
        """Write what the sync is to cover; the memory tier only after a call of `include_memory`."""
        is_spill_due, self._is_spill_due = self._is_spill_due, False
        try:
            self.tail.end_consumed_file()
            self.head.drop_consumed()
            if is_spill_due:
                self.tail.spill()
            self.log.flush()
            if self.wants_metadata(full):
                self.tail.end_oversized_file()
        except FullError:
            self._is_spill_due = is_spill_due and self.tail.can_end_consumed_file
            if self.tier.count or self.head.position < self.tail.position:
                raise  # otherwise all was taken, and need not be in a file

    def wants_metadata(self, full: bool) -> bool:
        """True if the sync is to write the metadata. Without it, it is enough for messages to be found again;
        with it the read position is durable too, consumed files go, and a peer may open the directory."""
        return full or bool(self.log.pending.removals or self.log.pending.asides)

    def settle(self, with_metadata: bool) -> tuple[int, ...]:
        active = self._append.settle()
        if with_metadata and self.head.worker is not None:
            active += self.head.worker.settle()
        return active

    def metadata(self) -> tuple[Replacement, ...]:
        write = self.tail.written_to
        unwritten = self.buffer.records - self.buffer.records_written
        # More messages may have been received from memory than are left in the files.
        depth = max(0, self.head.depth_of_files - unwritten)
        read = min(self.head.position, write)
        metadata = QueueMetadata(depth, read, write, is_ours=True, uncounted=self.head.uncounted)
        state = (self.log.state.replacing(),) if self.log.state.is_due else ()
        return (*state, self._files.metadata_as(metadata))

    def state(self) -> int:
        """Return the bytes of consumed files that are gone when the sync is complete."""
        return self._sealed.leaving

    def completed(self, state: int, is_replaced: bool) -> None:
        self._sealed.removed(state)
        wals = self.log.wals
        if state and self._is_open and wals is not None and not wals.size:
            with contextlib.suppress(OSError):  # the queue works without one
                self._take_wal()
        self.quota.settle()
        self.tail.renew_limits()

    def finish(self) -> None:
        writer = self.log
        if self.head.worker is not None:
            self.head.worker.close()
        self.sync()
        if writer.was_refused:
            self.sync()  # the space of removed files was free only after the metadata had been refused
        if writer.wals is not None:
            writer.wals.retire()
        if not self._append.has_pending_rows:
            with contextlib.suppress(OSError):
                writer.state.note_closed()
                writer.lock.note_closed()
