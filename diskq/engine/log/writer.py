# The writer under every kind. Law: it is open, failed or closed, and at most one sync of the files is in
# flight, and one of the redo log. A failed write is cut back, and the writer goes on; a failed sync is final;
# an accepted message is never reported as an error later, whatever its sync meets.
#
# The states and the life of a sync are in sync.py.
#
# An engine has one writer (`engine.log`), and gives it its format: what only this kind knows (format.py). A
# channel calls `prepare` and `complete` in its own thread, and has the sync executed in another between the
# two.

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

from diskq._native.core.gate import Gate
from diskq._native.core.thread_guard import ThreadGuard
from diskq.engine.log.format import Format, SyncOptions
from diskq.engine.log.redo import Redo
from diskq.engine.log.segment import SegmentedLog
from diskq.engine.log.shared_sync import SharedCall, SharedSyncs
from diskq.engine.log.sync import Sync, Synced, SyncPolicy, exclusive
from diskq.engine.log.thread_line import ThreadLines
from diskq.errors import BusyError, DiskFullError, DiskqError, FullError, LockedError
from diskq.options import DURABILITY_WORDS, Durability, checked_durability
from diskq.storage.append_file import AppendFile
from diskq.storage.barrier import NO_ROOM, Barrier, PendingSyncs, Replacement, close_all, write_over
from diskq.storage.callbacks import check_plain
from diskq.storage.closing import Dropped
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem
from diskq.storage.lock import Lock
from diskq.storage.log_events import Log
from diskq.storage.numbers import UNBOUNDED
from diskq.storage.repairs import Repair
from diskq.storage.state import StoreState
from diskq.storage.write_ahead_log import WriteAheadLogs

__all__ = ["MOST_WAITING", "LogWriter"]

_A_DAY = 86_400.0
# Up to this many handles of complete files may wait to be synced and closed, unless a format sets another
# limit.
MOST_WAITING = 256
# Up to this many bytes are looked at again after a power cut, apart from whole segments.
_POINT_EVERY = 16 * 1024 * 1024


class LogWriter(Synced, Dropped):
    """What all kinds do alike with their files. One thread at a time is inside: see sync.py."""

    # A dict of more than 30 attributes takes as much memory as three gates and their buffers.
    __slots__ = (
        "_counted",
        "_durability",
        "_format",
        "_has_old_metadata",
        "_held",
        "_keeps_time",
        "_max_unsynced",
        "_most_waiting",
        "_pointed_bytes",
        "_shared",
        "_synced_bytes",
        "_time_slice",
        "due_at",
        "gates",
        "guard",
        "is_closing",
        "is_dropped",
        "is_half_unsynced",
        "lines",
        "lock",
        "patience",
        "pending",
        "redo",
        "repairs",
        "state",
        "syncs",
        "wals",
        "was_refused",
    )

    def __init__(
        self,
        fs: FileSystem,
        form: Format,
        options: SyncOptions,
        topic: Log,
        *,
        path: str,
        what: str,
        where: str | None = None,
        clock: Callable[[], float] | None = None,
        time_slice: float | None = None,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        """`path` and `what` appear in errors: where the store is, and what it is; BusyError names `where`, by
        default `path`.

        `clock` (seconds, monotonic) is the sync policy's, by default the file system's. `time_slice`
        (seconds) shuts the gates periodically, and its caller restarts them; without it they shut when a
        sync is due. `most_waiting` handles of complete files may wait to be synced and closed; at a fourth of
        them a sync is due.
        """
        policy = SyncPolicy(options.sync_every, options.sync_timeout, options.max_unsynced)
        super().__init__(
            fs, topic, path, what, policy, fs.monotonic if clock is None else check_plain("clock", clock)
        )
        self._format = form
        self._durability = options.durability
        self._max_unsynced = options.max_unsynced
        self._most_waiting = most_waiting
        self.guard = ThreadGuard(partial(BusyError, where or path))
        """The guard of the thread that is inside."""
        self.gates: tuple[Gate, ...] = ()
        """The gates of the compiled calls, which pass messages without asking the writer."""
        self._keeps_time = time_slice is None
        self._time_slice = min(options.sync_timeout, _A_DAY) if time_slice is None else time_slice
        self.pending = PendingSyncs()
        """What the next sync has to do beyond the active files."""
        self.repairs: list[Repair] = []
        self.wals: WriteAheadLogs | None = None
        self.redo: Redo | None = None
        self.due_at = math.inf
        """When a sync is due at the latest, on the clock, as of the last `note` or `prepare`.

        Infinity: nothing is pending."""
        self.is_closing = False
        """True while the last syncs are prepared."""
        self.is_dropped = False
        """True while it is released because it was dropped unclosed: no lock may be taken."""
        self.is_half_unsynced = False
        """True if half of the allowed bytes are unsynced: a sync that begins now saves senders a wait."""
        self.was_refused = False
        """True if the disk was full; the code that frees space resets it."""
        self.syncs = 0
        """The number of complete syncs."""
        self._counted = 0  # records that the policy has counted
        self._synced_bytes = 0
        self._pointed_bytes = 0  # bytes accepted since the open that recovery need not look at
        self._has_old_metadata = False  # that of the writer before is on the disk
        self._held: list[Callable[[], object]] = []
        self._shared: SharedSyncs | None = None  # until a call asks for one
        self.lines: ThreadLines | None = None
        """The threads that wait for messages or space, if any ever did."""
        self.patience = 0.0
        """Seconds for which the open waits for the lock."""

    @property
    def thread_lines(self) -> ThreadLines:
        """The lines of threads that wait, made by the first that does."""
        with self.guard:
            if self.lines is None:
                self.lines = ThreadLines()
            return self.lines

    def new_gate(self) -> Gate:
        """Make one more gate, for the compiled calls of the format. All of them have one clock."""
        gate = Gate(self._time_slice, self.guard, self.gates[0].clock if self.gates else None)
        self.gates = (*self.gates, gate)
        return gate

    # --- from open to close -----------------------------------------------------------------------

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Release everything taken so far if the block that opens the files fails.

        Raises what the block does, and DiskFullError if the disk is full.
        """
        try:
            try:
                yield
            except BaseException:
                self.release()
                raise
        except OSError as failure:
            if failure.errno in FULL_DISK_ERRNOS:
                raise DiskFullError(self.path, f"the disk is full ({failure})") from failure
            raise

    def on_release(self, release: Callable[[], object]) -> None:
        """Call `release` when everything is released: last taken first, whatever one of the calls raises."""
        self._held.append(release)

    def hold(self, lock: Lock) -> Lock:
        """Keep the lock for as long as this is open."""
        self.lock = lock
        self.on_release(lock.release)
        self.on_release(self._close_pending)
        return lock

    def use_wals(self, wals: WriteAheadLogs) -> WriteAheadLogs:
        """Keep the write-ahead logs for as long as this is open, or until others are used."""
        self.wals = wals
        self.on_release(wals.close)
        return wals

    def use_redo(self, redo: Redo) -> Redo:
        """Keep the redo log for as long as this is open."""
        self.redo = redo
        self.on_release(redo.close)
        self.pending.removals += redo.leftovers()
        return redo

    def make_directories(self, *paths: str) -> None:
        """Make the directories that are missing; durable with the next sync. Raises OSError."""
        for path in paths:
            self._fs.make_directory(path)
            self.pending.directories[path] = None

    def use_state(self, state: StoreState) -> StoreState:
        """Keep the state for as long as this is open."""
        self.state = state
        self.on_release(state.let_go)
        return state

    def sign(self) -> None:
        """Plan the state, and sign the lock file; durable with the next sync. See `catch_up` for a full disk.

        A lock file of an earlier version has what the state of this one will have: it is signed when that is
        durable.
        """
        self.state.sign()
        if not self.state.is_old:
            self._sign_lock()

    def note_signed(self) -> None:
        """Note that the first barrier has written the state. Signs a lock file of an earlier version."""
        self.state.is_due = False
        if self.state.is_old:
            self._sign_lock()  # what it said counts if the state is ever torn

    def _sign_lock(self) -> None:
        """Sign the lock file, durably with the next sync: an empty one says that a peer has had a journal."""
        self.lock.sign(can_wait=True)
        self.pending.files.append(self.lock.handle)

    def begin(self, metadata: Sequence[Replacement], *, can_wait: bool) -> None:
        """Make durable what the open has found, and `metadata`, whose last one says where recovery begins.

        `can_wait`: on a full disk the metadata is left to `catch_up`. Raises DiskFullError and
        StorageFailedError.
        """
        if not self.commit(metadata=metadata) and not (can_wait and write_over(self._fs, metadata[-1])):
            if not can_wait:
                raise DiskFullError(self.path, NO_ROOM)
            self._has_old_metadata = True

    @property
    def is_behind(self) -> bool:
        """True if the open had no space for what must be durable before a message is written."""
        return self.lock.is_behind or self._has_old_metadata or self.state.is_pending

    def catch_up(self) -> None:
        """Write durably what the open had no space for, before the first message is written.

        Otherwise the next open would judge that message by what the writer before has left: by another boot,
        or as written after a clean close. Raises DiskFullError, OSError, StorageFailedError.
        """
        if not self.is_behind:
            return
        self._end_shared()
        self.lock.write()
        metadata: tuple[Replacement, ...] = ()
        if self._has_old_metadata:
            metadata = self._format.metadata()
        elif self.state.is_pending:
            metadata = (self.state.replacing(),)
        if metadata and self._in_flight is not None:
            raise DiskFullError(self.path, "the disk was full, and a sync is still in flight")
        try:
            is_durable = Barrier(files=(self.lock.handle,), replacements=tuple(metadata)).execute(self._fs)
            if not is_durable and not write_over(self._fs, metadata[-1]):
                raise DiskFullError(self.path, NO_ROOM)
        except OSError as failure:
            self.fail(failure)
        self.lock.is_behind = self._has_old_metadata = self.state.is_pending = False

    def catch_up_before(self, *appends: AppendFile[Any]) -> None:
        """Have the first message that comes to one of these files `catch_up`, if the open is behind."""
        if self.is_behind:
            for append in appends:
                append.wait_for(self.catch_up)

    def _close_pending(self) -> None:
        close_all(self._fs, self.pending.freeze((), ()).closing)

    @exclusive
    def close(self) -> None:
        """Sync for the last time, as the format does, and release everything. Idempotent."""
        if self.is_closed:
            return
        try:
            self._end_shared()
            if self.failure is None:
                self.is_closing = True
                if self.wals is not None:
                    self.wals.flush_to_the_end(self.flush)
                self._format.finish()
                self.clear_redo()
        finally:
            self.release()

    def clear_redo(self) -> None:
        """Empty the redo log, durably, if all of it is durable in the files. Raises StorageFailedError."""
        if self.redo is not None:
            try:
                self.redo.clear()
            except OSError as failure:
                self.fail(failure)

    def release(self) -> None:
        """Close and release everything, without a promise. Idempotent."""
        self.is_closed = True
        self.shut()
        if self.lines is not None:
            self.lines.wake_all()
        held, self._held = self._held, []
        with contextlib.ExitStack() as stack:  # only now: it is large, and there are many writers
            for release in held:
                stack.callback(release)

    def _unclosed(self) -> tuple[FileSystem, str] | None:
        return (self._fs, self.lock.guarded) if self._held else None

    def _let_go_dropped(self) -> None:
        self.is_dropped = True
        self.release()

    def shut(self) -> None:
        """Let nothing pass the gates any more."""
        for gate in self.gates:
            gate.left = 0

    def refuse(self, failure: DiskqError) -> None:
        """Make every call from now on raise `failure`."""
        super().refuse(failure)
        self.shut()
        if self._shared is not None:
            self._shared.failed()
        if self.lines is not None:
            self.lines.wake_all()

    # --- around a message -------------------------------------------------------------------------

    def durability(self, word: Durability | None) -> Durability:
        """Return the durability of one call: `word`, or else the option. Raises ValueError."""
        if word is None:
            return self._durability  # the options were checked
        return word if word in DURABILITY_WORDS else checked_durability(word)

    def is_too_much_unsynced(self, size: int) -> bool:
        """True if `size` more bytes have to wait for a sync."""
        if len(self.pending.closing) >= self._most_waiting:
            return True
        unsynced = self._format.accepted_bytes - self._synced_bytes
        return unsynced > 0 and unsynced + size > self._max_unsynced

    def after_append(self, word: Durability = "written") -> bool:
        """Sync, if the policy or the durability `word` of the append wants it. True if the policy did.

        The message is accepted: a caller that repeats the call would store it twice. So a full disk that
        leaves some of it waiting in memory is no error of this call; `sync`, `close` and the next message
        that has to be written report it. Raises StorageFailedError, and never DiskFullError.
        """
        is_due = self.note()
        if is_due:
            self.run(self.prepare(full=True))
        elif word == "synced":
            self.run(self.prepare_log() or self.prepare(full=False))
        return is_due

    def append_failed(self, failure: OSError, accepted: int = 0) -> NoReturn:
        """Cut back to whole records after a refused write, and stay usable if that works.

        Raises DiskFullError, with how many of a batch were `accepted`; OSError; StorageFailedError.
        """
        try:
            self._format.cut_back()
        except OSError as second:
            self.fail(second)
        if failure.errno in FULL_DISK_ERRNOS:
            self.was_refused = True
            raise DiskFullError(self.path, f"the disk is full ({failure})", accepted) from failure
        raise failure

    @property
    def is_flushed(self) -> bool:
        """True if every message that was accepted is in the page cache."""
        return self._format.is_flushed

    @exclusive
    def flush(self) -> None:
        """Write everything accepted that is not yet written. Raises DiskFullError, OSError."""
        self.check_usable()
        try:
            self._format.flush()
        except OSError as failure:
            self.append_failed(failure)

    # --- from one segment to the next -------------------------------------------------------------

    def roll(self, segments: SegmentedLog[Any]) -> None:
        """Go on from a full segment to the next one. Raises OSError, StorageFailedError."""
        segments.roll(self.pending)
        self.bound_waiting()

    @exclusive
    def segment_filled(self, segments: SegmentedLog[Any]) -> None:
        """Roll after a compiled call filled the segment; a failure is for the next message."""
        try:
            self.roll(segments)
        except OSError:
            self.shut()
        except DiskqError:
            pass  # `fail` has noted it

    def bound_waiting(self) -> None:
        """Limit the complete files that wait to be synced and closed.

        Raises StorageFailedError.
        """
        waiting = len(self.pending.closing)
        if waiting >= self._most_waiting // 4:
            self.policy.force()
        if waiting >= self._most_waiting:
            # One batch filled all these files: nothing else could close their handles meanwhile.
            in_flight = self._in_flight or (self._log_in_flight if self.has_one_lane else None)
            try:
                self.pending.execute(self._fs, in_flight.barrier if in_flight is not None else None)
            except OSError as failure:
                self.fail(failure)

    # --- when to sync -----------------------------------------------------------------------------

    def note(self) -> bool:
        """Report to the sync policy what passed the gates, and open them again. True if a sync is due.

        Raises StorageFailedError.
        """
        form, policy = self._format, self.policy
        now = self.clock()
        passed = form.passed
        was_idle = not policy.pending
        left = policy.count(passed - self._counted, now)
        self._counted = passed
        if self._keeps_time and was_idle and policy.pending:
            self.gates[0].restart()
        self.due_at = policy.due_at
        is_due = left == 0
        if is_due:
            left = UNBOUNDED  # the caller knows now, and needs no report at each message
        elif policy.pending:
            # Through each of the gates; the message that makes a sync due is counted here.
            left = (left - 1) // len(self.gates)
        else:
            left = 0  # the first message after a sync is counted here, too: it starts the clock
        unsynced = form.accepted_bytes - self._synced_bytes
        self.is_half_unsynced = unsynced > policy.half
        if self.failure is None and not self.is_closed:
            try:
                form.open_gates(left, unsynced)
            except OSError as failure:
                self.fail(failure)
        else:
            self.shut()
        return is_due

    @property
    def unsynced_bytes(self) -> int:
        """Bytes accepted and not yet on stable storage."""
        return self._format.accepted_bytes - self._synced_bytes

    # --- syncing ----------------------------------------------------------------------------------

    @exclusive
    def sync(self) -> None:
        """Return when everything that was accepted is on stable storage.

        Raises DiskFullError if there is no space for messages held in memory; all others are durable then.
        Raises StorageFailedError, after which only `close` is allowed.
        """
        sync = self.prepare(full=True)
        self.run(sync)
        self.raise_left_out(sync)

    # --- syncs that threads share -----------------------------------------------------------------

    def join_sync(self, *, full: bool = False) -> SharedCall | None:
        """Have all that was accepted made durable, as `prepare` says. With the guard held.

        Give that back, and `end_sync` what this returns. None: the guard is held more than once, since a call
        of the engine has made this one, and the sync is complete. Raises StorageFailedError.
        """
        if self.guard.depth > 1:
            self.run((None if full else self.prepare_log()) or self.prepare(full=full))
            return None
        if self._shared is None:
            self._shared = SharedSyncs(self, self._fs)
        return self._shared.join(is_full=full)

    def end_sync(self, call: SharedCall | None) -> None:
        """Return when a sync has covered the call. Without the guard. Raises StorageFailedError."""
        if call is not None:
            assert self._shared is not None
            self._shared.wait(call)

    def share_sync(self) -> None:
        """Do as `sync`, by a sync that threads share."""
        with self.guard:
            self.check_usable()
            if self.guard.depth > 1:
                self.sync()
                return
            call = self.join_sync(full=True)
        self.end_sync(call)
        if call is not None and call.sync is not None:
            self.raise_left_out(call.sync)

    def _end_shared(self) -> None:
        """Complete the sync that a thread executes outside the guard, if there is one."""
        if self._shared is not None:
            self._shared.end_flight()

    def end_failed(self, failure: BaseException) -> None:
        """Fail, since a sync did. Raises StorageFailedError, except for an interrupted one."""
        if isinstance(failure, OSError):
            self.fail(failure)
        self.refuse(self._failed_by(failure))

    # --- its parts --------------------------------------------------------------------------------

    def raise_left_out(self, sync: Sync) -> None:
        """Raise DiskFullError if there was no space for messages.

        For derived data, such as index entries, the error is only logged: recovery makes them again.
        """
        if sync.left_out is None:
            return
        if self._format.written_bytes < self._format.accepted_bytes:
            raise sync.left_out
        self._topic.report("disk_full", "%s", sync.left_out, path=sync.left_out.path)

    def commit(self, handles: tuple[int, ...] = (), metadata: Sequence[Replacement] = ()) -> bool:
        """Sync the pending files and the given ones at once. Returns and raises as `run`."""
        self._end_shared()
        return self.run(self._freeze(handles, tuple(metadata), None))

    @property
    def has_one_lane(self) -> bool:
        """True if a sync of `prepare_log` and one of `prepare` are of the same file.

        A kernel reports a failed write-back once: of two syncs of one file at the same time, the one that
        succeeds may not have written what the other one has lost. So at most one is in flight.
        """
        return self._format.is_log

    @property
    def is_log_ready(self) -> bool:
        """True if `prepare_log` is worth a call, and worth writing messages for that were held back."""
        redo, in_flight = self.redo, self._in_flight
        if redo is None:
            if not self._format.is_log:
                return False
        elif not redo.is_ready:
            return redo.is_due
        is_idle = self._log_in_flight is None and not any(self.pending.parts)
        return is_idle and (in_flight is None or (redo is not None and in_flight.barrier.is_plain))

    def prepare_log(self) -> Sync | None:
        """Prepare a sync of the redo log, which makes all durable that was accepted, as `prepare` does.

        So does a sync of the active file alone, in a format that is a log itself. None: it cannot, and the
        files must be synced; this one may be in flight beside such a sync, unless the writer `has_one_lane`.
        What recovery can make again may still have to be written (`Sync.has_rest`). Raises
        StorageFailedError.
        """
        with self.guard:
            form, redo, in_flight = self._format, self.redo, self._in_flight
            if self._shared is not None:
                self._shared.end_flight()
                in_flight = self._in_flight
            if self.failure is not None or self.is_closed:
                self.check_usable()
            if redo is None:
                if not form.is_log:
                    return None
            elif not redo.is_ready:
                redo.begin(self.pending)
            if (
                self._log_in_flight is not None
                or any(self.pending.parts)
                # Records that follow in a new file mean nothing without it.
                or (in_flight is not None and (redo is None or not in_flight.barrier.is_plain))
            ):
                return None
            try:
                has_rest = form.flush_records()
            except OSError as failure:
                # A sync of the files meets the same, and judges it.
                with contextlib.suppress(FullError, OSError):
                    self.append_failed(failure)
                return None
            try:
                handles = form.settle(False) if redo is None else redo.add(self.pending)
            except (LockedError, OSError) as failure:
                self.fail(failure)
            if not handles:
                return None
            self._log_in_flight = Sync(
                barrier=Barrier(files=handles),
                written=form.written_bytes,
                has_metadata=False,
                state=form.state(),
                is_of_log=True,
                has_rest=has_rest,
            )
            if self._shared is not None:
                self._shared.cover(self._log_in_flight, is_full=False)
            return self._log_in_flight

    @exclusive
    def prepare(self, *, full: bool) -> Sync:
        """Prepare a sync of all that was accepted and can be written. Execute it, then `complete` or `fail`.

        One that is not `full` is enough for messages to be found again; a full one covers all that the
        policy counts. Raises StorageFailedError.
        """
        self._end_shared()
        self.check_usable()
        left_out = None
        try:
            self._format.gather(full)
        except FullError as refused:
            left_out = refused
        except OSError as failure:
            self.fail(failure)
        has_metadata = self._format.wants_metadata(full)
        try:
            handles = self._format.settle(has_metadata)
        except (LockedError, OSError) as failure:
            self.fail(failure)
        if full or has_metadata:
            self.note()
            self.policy.prepared()
            self.note()
        sync = self._freeze(handles, self._format.metadata() if has_metadata else (), left_out)
        if self._shared is not None:
            self._shared.cover(sync, is_full=full)
        return sync

    def is_point_due(self, full: bool) -> bool:
        """True if a recovery point is worth its syncs: more is pending, or much was written."""
        if not full or self.pending or self.is_closing:
            return full
        return self._format.accepted_bytes - self._pointed_bytes >= _POINT_EVERY

    def _freeze(
        self, handles: tuple[int, ...], metadata: tuple[Replacement, ...], left_out: FullError | None
    ) -> Sync:
        self._check_idle()
        assert self._log_in_flight is None or not self.has_one_lane, "one sync of a file at a time"
        if metadata:
            self._pointed_bytes = self._format.accepted_bytes
        self._in_flight = Sync(
            barrier=self.pending.freeze(handles, metadata),
            written=self._format.written_bytes,
            has_metadata=bool(metadata),
            left_out=left_out,
            state=self._format.state(),
            redo=None if self.redo is None else self.redo.mark(),
        )
        return self._in_flight

    def complete(self, sync: Sync, is_replaced: bool) -> None:
        with self.guard:
            form = self._format
            if sync.is_of_log:
                assert sync is self._log_in_flight, "not the sync that was prepared"
                self._log_in_flight = None
            else:
                self._end_flight(sync)
            self._synced_bytes = max(self._synced_bytes, sync.written)
            self.syncs += 1
            if sync.is_of_log:
                if form.follows_log:
                    form.logged(sync.state)
            else:
                if self.redo is not None and sync.redo is not None:
                    try:
                        self.redo.release(sync.redo)
                    except OSError as failure:
                        self.fail(failure)
                if sync.has_metadata and is_replaced:
                    self.state.is_pending = False
                elif sync.has_metadata:
                    # The disk is full. Recovery will begin at an older point; the new one is still pending.
                    self.was_refused = True
                    self._note_not_replaced(sync.barrier.replacements[-1].path)
                form.completed(sync.state, is_replaced)
            if self._shared is not None:
                self._shared.completed(sync, is_replaced)
