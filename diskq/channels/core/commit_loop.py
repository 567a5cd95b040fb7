# The loop of every channel that writes: it makes durable what its callers wrote.
#
# The way of `send(durability="synced")`, from top to bottom, with the function that does each step:
#
#   in the sender's task
#     gather or write  A message joins the batch of those that wait for a sync (`AdmittingLoop.gather`, or
#                      a compiled call). One that is alone is written at once, by the compiled fast path; one
#                      that waits for space, or needs checks, is admitted in its turn (`deliver`).
#     ask for a sync   `barrier`, for one that is alone, and for the first of a batch. Then they all sleep.
#   in a turn of the loop, or in the task of a lone sender (cadence.py says when)
#     write the batch  `_write_gathered`: one call of the system for all. A message that cannot be written is
#                      refused to its own sender.
#     log it           `LogWriter.prepare_log`: what the files got since the last time, and its checksums, are
#                      written once more, as one entry of the redo log (`Redo.add`, `RedoLog.add`). Where the
#                      log takes nothing, `LogWriter.prepare` makes a sync of the files instead.
#   in a thread
#     sync             One fdatasync, of the log (sync_executor.py).
#   in the loop's thread again
#     complete         `_complete`: the writer notes what is durable (`LogWriter.complete`), all whom the sync
#                      covers are woken, and the next sync begins, if some wait already.
#
# The files follow: the sync policy makes a sync of them due (`LogWriter.note`, in each turn), `_begin_sync`
# begins it, and when it is complete, the log's space is free again.
#
#   go-diskqueue's arm                here
#   count == syncEvery, syncTicker    `log.note()` and `log.due_at`, slept on in the loop's task
#   needSync                          the engine forces the next sync
#   exitChan                          `begin_to_close`: `run` completes the last sync, and ends
#
# Law: the state is touched by the loop's thread only; syncs are prepared and completed there, and a thread
# executes them; a task that waits for one is woken once it is complete, or has failed. A subclass defines
# what is written, and what else tasks wait for.
#
# Two lanes: one sync of the files and one of the redo log may be in flight at the same time. All syncs are
# numbered in the order in which they are prepared, and each covers all tasks that waited by then, so it does
# not matter which of two that are in flight ends first. Where the files are a log themselves, both lanes are
# of one file, and one at a time is used; a sync of the files that is wanted goes first: it covers all tasks.

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import outcome
import trio
from trio.lowlevel import enable_ki_protection

from diskq.channels.core.cadence import Cadence
from diskq.channels.core.closing import in_a_thread
from diskq.channels.core.event_loops.seam import Task, running_event_loop
from diskq.channels.core.loop_task import NO_TASK, LoopTask, OwnTask, SharedTask
from diskq.channels.core.own_thread import OwnThread, OwnThreadGuard
from diskq.channels.core.sleeping import return_at_once
from diskq.channels.core.slices import TimedGate, share_clock
from diskq.channels.core.sync_executor import SyncExecutor
from diskq.channels.core.waiting_line import NOTHING, Line
from diskq.engine.log.sync import Sync
from diskq.errors import DiskqError, ForkedError, FullError, StorageFailedError
from diskq.storage.forks import notify_on_fork
from diskq.storage.log_events import Log, Subject
from diskq.storage.status_file import DiskBound
from diskq.storage.sync_times import Durations

__all__ = ["Beside", "CommitLoop", "Engine", "EngineGate", "Options", "Writer"]

# Seconds until the next attempt, after the disk refused a write that no caller waits for.
_RETRY = 0.1

# --- what it drives -------------------------------------------------------------------------------


class EngineGate(TimedGate, Protocol):
    """Records pass it without the loop, until it is shut."""

    left: int

    @property
    def guard(self) -> OwnThreadGuard:
        """The guard of the thread that may pass."""

    @property
    def is_slice_over(self) -> bool: ...


class Options(Protocol):
    """The options of an engine that the loop reads."""

    @property
    def checkpoint_slice(self) -> float:
        """In seconds."""


class Writer(Protocol):
    """An engine's writer: synchronous, and used by one thread at a time."""

    @property
    def gates(self) -> Iterable[EngineGate]:
        """The gates that records of its compiled fast paths pass."""

    @property
    def is_flushed(self) -> bool:
        """True if everything that was accepted is in the page cache."""

    @property
    def is_half_unsynced(self) -> bool:
        """True at half of the unsynced bytes allowed: a barrier should begin before senders must wait."""

    def note(self) -> bool:
        """Count the records that passed the gates, and open them again. True: a barrier is due."""

    due_at: float
    """When a barrier is due at the latest, on the loop's clock, as of the last `note` or `prepare`.

    Infinity: nothing is pending."""

    def flush(self) -> None:
        """Write what was accepted and is not written yet. Raises DiskFullError, StorageFailedError."""

    def prepare(self, *, full: bool) -> Sync:
        """Return a sync of all that was written. Execute it; then `complete` it, or `fail`."""

    @property
    def has_one_lane(self) -> bool:
        """True if no sync of `prepare` may be in flight at the same time as one of `prepare_log`."""

    @property
    def is_log_ready(self) -> bool:
        """True if `prepare_log` may be called now; what was gathered is written before."""

    def prepare_log(self) -> Sync | None:
        """Return a sync of the redo log alone that makes durable all that was written; None: it would not.

        It may be in flight at the same time as one of `prepare`, unless the writer `has_one_lane`. Execute
        it; then `complete` it, or `fail`.
        """

    def complete(self, sync: Sync, is_replaced: bool) -> None: ...

    def fail(self, failure: BaseException) -> NoReturn:
        """Refuse all further work. Raises StorageFailedError."""

    def close(self) -> None: ...


class Engine(Protocol):
    """A store that is written to."""

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> Options: ...

    @property
    def log(self) -> Writer: ...


class Beside:
    """Work that a loop does in each turn, beside the syncs."""

    @property
    def is_busy(self) -> bool:
        """True while the loop must not end."""
        return False

    def go_on(self) -> None:
        """Do what is due. Called at the end of each turn, and after a sync was completed."""

    def begin_to_close(self) -> None:
        """Begin nothing new."""

    def close(self) -> None:
        """Release everything. Called in a thread, before the engine is closed."""


E = TypeVar("E", bound=Engine)

# --- the loop -------------------------------------------------------------------------------------


class CommitLoop(ABC, Generic[E]):
    """One open engine, the tasks that wait for its syncs, and the task that prepares and completes them.

    A subclass has a `kind`, adds the lines in which callers wait, serves these in `_after`, and shuts in
    `_narrow_gates` the gates by which later callers would go before those in line.
    """

    kind = ""
    """The name of the kind in messages."""
    subject: Subject
    """The subject of its log records."""

    # A dict of more than 30 attributes takes 1.5 KB.
    __slots__ = (
        "__weakref__",
        "_alarm_at",
        "_beside",
        "_clock",
        "_executor",
        "_failure",
        "_flush_at",
        "_gates",
        "_has_deadline",
        "_has_one_lane",
        "_in_flight",
        "_is_full",
        "_is_over",
        "_log",
        "_log_in_flight",
        "_missed",
        "_own_lines",
        "_refusal",
        "_syncing",
        "_unsynced",
        "_wants_barrier",
        "_wants_flush",
        "_wants_metadata",
        "_writer",
        "cadence",
        "due_at",
        "engine",
        "event_loop",
        "is_closing",
        "is_strict",
        "listed_at",
        "open_handles",
        "own_thread",
        "syncs_prepared",
        "task",
    )

    def __init__(
        self,
        engine: E,
        executor: SyncExecutor,
        lines: Iterable[Line[Any]] = (),
        beside: Iterable[Beside] = (),
    ) -> None:
        self.engine = engine
        self.event_loop = running_event_loop()
        self._writer: Writer = engine.log
        self.is_strict = engine.options.checkpoint_slice == 0
        self.open_handles = 0
        self.is_closing = False
        self._executor = executor
        self._log = Log(self.subject)
        self._gates = tuple(engine.log.gates)
        self._clock = share_clock(self.event_loop, self._gates)
        title = f"{self.kind} {engine.name!r}"
        self.own_thread = OwnThread(title, self._gates[0].guard if self._gates else None)
        self._own_lines = tuple(lines)
        self._beside = tuple(beside)
        # The tasks that wait until their messages are durable, in order: the number of a sync, and those whom
        # it covers.
        self._unsynced: list[tuple[int, list[Task]]] = []
        self._syncing: Line[int] = Line()  # each waits until all messages are: for the sync of this number
        self.syncs_prepared = 0
        """The number of syncs, of both lanes, and the number of the last one."""
        self._wants_barrier = False
        self._wants_metadata = False
        self._wants_flush = False  # something waits to be written as soon as the loop runs
        self._is_full = False  # it could not be written
        self._has_deadline = True  # the loop runs, or sleeps until a deadline or a barrier's end at most
        self._alarm_at = math.inf  # when the subclass wants `_after` to be called
        self._flush_at = math.inf  # when `memory` messages are to be in the page cache
        self.task: LoopTask = NO_TASK
        self.due_at = self.listed_at = math.inf
        self._is_over = False  # no sync is prepared any more
        self._failure: BaseException | None = None
        notify_on_fork(self)
        self._missed: BaseException | None = None  # by the last sync
        self._in_flight = 0  # the number of the sync of the files that is being executed; 0: none is
        self._log_in_flight = 0  # the same of the redo log
        self._has_one_lane = engine.log.has_one_lane
        self.cadence = Cadence.SHARED
        self._refusal: Exception | None = None  # of what the running task had gathered
        self.new_slice()
        self._open_gates()

    @property
    def barrier_seconds(self) -> Durations:
        """How long its barriers took on the disk."""
        return self._executor.executed.now()

    @property
    def title(self) -> str:
        """Its kind and name, for task names."""
        return f"{self.kind} {self.engine.name}"

    # --- for the subclass -------------------------------------------------------------------------

    @property
    def _lines(self) -> Iterable[Line[Any]]:
        """The lines whose tasks get ClosedResourceError when the loop is closed."""
        return self._own_lines

    def _bound(self) -> DiskBound:
        """Return how many bytes it may have on the disk, for the status file."""
        return DiskBound()

    @abstractmethod
    def _after(self) -> None:
        """Serve the waiting tasks as far as possible after a change, and open the gates again."""

    @abstractmethod
    def _narrow_gates(self) -> None:
        """Shut the gates for which tasks wait. Called after each opening, and when a task gets in line."""

    def _write_gathered(self) -> None:
        """Write the messages that were gathered for the next sync."""

    def _shut_gates(self) -> None:
        for gate in self._gates:
            gate.left = 0

    # --- schedule points --------------------------------------------------------------------------

    def new_slice(self) -> None:
        self._clock.restart()

    async def schedule_point(self) -> None:
        """Let others run if the running task's slice is over. Cancellable then, and only then.

        Every call has begun with a cancellation point of its own: without a yield in between a second one
        would find nothing new.
        """
        if self._gates and self._gates[0].is_slice_over:  # that of the others is over then, too
            self.own_thread.check()  # another run has another loop, which knows no pause of this one
            await self.event_loop.checkpoint()
            self._clock.restart()

    # --- requests to the loop ---------------------------------------------------------------------

    def barrier(self, *, with_metadata: bool) -> Awaitable[None]:
        """Wait until all that is written by now is on stable storage. Not cancellable: it is already in.

        With metadata, until all that is accepted by now is. The caller awaits what this returns at once. It
        is no coroutine: all frames of a task are passed each time it is resumed. Raises DiskFullError if it
        cannot be, and BrokenResourceError.
        """
        if self._failure is not None:
            raise self._broken()
        if self._is_over:
            raise trio.ClosedResourceError(f"the {self.kind} was closed")
        number = self.syncs_prepared + 1
        if with_metadata:
            self._wants_metadata = True
            self.task.ring(self)
            return self._syncing.wait_to_the_end(number, self._clock.restart)
        if self._unsynced:
            pass  # the loop is awake, and sees this task
        elif self.cadence is Cadence.LONE and not self._syncing and self._begin_alone():
            number = self.syncs_prepared
            self._executor.spin()
            if self._failure is not None:
                raise self._broken()
            if number not in (self._in_flight, self._log_in_flight):
                return return_at_once()  # in the same slice: the next call lets others run
        else:
            self.task.ring(self)
        self._unsynced.append((number, [self.event_loop.current_task()]))
        return self.event_loop.sleep

    def _begin_alone(self) -> bool:
        """Begin a sync for the running task, and spare a turn of the loop. False: it has to wait for another.

        Where several tasks wait for each sync, that turn is what lets them share one: it comes when all that
        were woken together have sent again. Raises BrokenResourceError, or why its message is not in.
        """
        try:
            has_begun = self._begin_log_sync()
            if not has_begun and self._can_sync_files:
                self._begin_sync()
                has_begun = True
                self._narrow_gates()
        except BaseException as failure:
            self._break(failure)
            self.task.ring(self)
            raise self._broken() from failure
        self._has_deadline = True  # the completion sets it
        refusal, self._refusal = self._refusal, None
        if self._is_full:
            self.task.ring(self)  # the write is to be tried again
        if refusal is not None:
            raise refusal
        return has_begun

    def _ask_for_barrier(self) -> None:
        self._wants_barrier = True
        if self._can_sync_files:  # else the loop will look when that one was executed
            self.task.ring(self)

    def _ask_for_flush(self) -> None:
        """Make the loop write what is staged as soon as the running task lets others run."""
        self._wants_flush = True
        self.task.ring(self)

    def _set_alarm(self, at: float) -> None:
        """Call `_after` at that time (the loop's clock), which replaces any time set before."""
        if at < self._alarm_at:
            self.task.ring(self)
        self._alarm_at = at

    def _note_held(self, seconds: float) -> None:
        """If something waits in memory, write it after `seconds` at the latest."""
        if not self._writer.is_flushed and self._flush_at == math.inf:
            self._flush_at = self.event_loop.clock() + seconds
            self.task.ring(self)

    def _open_gates(self) -> None:
        """Open the gates for messages, unless a task waits for them."""
        writer = self._writer
        try:
            # Where the disk is full, what is unsynced may be what cannot be written.
            if writer.note() or (writer.is_half_unsynced and self._can_sync_files and not self._is_full):
                self._ask_for_barrier()
            elif not self._has_deadline and writer.due_at < math.inf:
                self._has_deadline = True
                self.task.ring(self)  # the loop sleeps without a deadline, and has one now
        except DiskqError as failure:
            self._break(failure)
        else:
            self._narrow_gates()

    # --- the loop ---------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Prepare syncs when due and have them executed, in a task that other loops share, until `run`.

        True: that is enough until `begin_to_close`.
        """
        self.task = SharedTask.join(self)
        return True

    def take_turn(self) -> None:
        """Do what is due. Never raises: any failure breaks the channel."""
        if self._failure is None:
            try:
                if self._wants_flush or self.event_loop.clock() >= self._flush_at:
                    self._flush_held()
                self._begin_syncs()
                if self.event_loop.clock() >= self._alarm_at:
                    self._alarm_at = math.inf
                    self._after()
                self._open_gates()
                for act in self._beside:
                    act.go_on()
                self._set_deadline()
            except BaseException as failure:
                self._break(failure)
        if self._failure is not None:
            self._is_over = True
            self.task.wake_at(self, math.inf)

    def stay_awake(self) -> None:
        """Wait a short time for the sync of the redo log, for all tasks that wait for it. Never raises."""
        if self._unsynced and self._log_in_flight and self._failure is None:
            self._executor.spin()

    @enable_ki_protection
    async def run(self) -> None:
        """Prepare syncs when due and have them executed, until `begin_to_close`; then close the engine.

        Never raises: any failure breaks the channel, and its users get the error.
        """
        self.task.leave(self)
        self.task = task = OwnTask(self.event_loop)
        with self.event_loop.scope(shield=True):
            try:
                while not self._is_done:
                    with (
                        self.event_loop.scope() as task.scope
                    ):  # one for many turns: it costs more than a turn
                        while True:
                            self.take_turn()
                            if self._is_done:
                                break
                            await task.wait()
                            if self.cadence is Cadence.JOINED:
                                await self.event_loop.cancel_shielded_checkpoint()
                                self.cadence = Cadence.SHARED
            except BaseException as failure:
                self._break(failure)
            self._is_over = True
            while (not self.is_closing or self._has_flight) and not isinstance(self._failure, ForkedError):
                await task.wait()
            if isinstance(self._failure, ForkedError):
                return
            self._executor.stop()
            self.own_thread.let_go()
            try:
                await in_a_thread(self._close)
            except StorageFailedError as failure:
                self._break(failure)
            except BaseException as failure:
                self._log.report(
                    "close_failed",
                    "%s %r could not be closed cleanly: %s",
                    self.kind,
                    self.engine.name,
                    failure,
                    path=self.engine.name,
                    error=failure,
                )
                self._missed = failure

    def _close(self) -> None:
        for act in self._beside:
            act.close()
        self._writer.close()

    @property
    def _has_flight(self) -> bool:
        return bool(self._in_flight or self._log_in_flight)

    @property
    def _can_sync_files(self) -> bool:
        """True if no sync is in flight that a sync of the files would have to wait for."""
        return not (self._in_flight or (self._log_in_flight and self._has_one_lane))

    @property
    def _is_done(self) -> bool:
        if self._failure is not None:
            return True
        if not self.is_closing or self._unsynced or self._syncing or self._has_flight:
            return False
        return not any(act.is_busy for act in self._beside)

    def _set_deadline(self) -> None:
        """Make the loop's task wake it when something is due."""
        deadline = self._writer.due_at
        if self._can_sync_files:
            self._has_deadline = min(deadline, self._flush_at) < math.inf
        else:
            self._has_deadline = True
            if deadline <= self.event_loop.clock():
                deadline = math.inf  # it waits for the end of the sync in flight
        self.task.wake_at(self, min(deadline, self._flush_at, self._alarm_at))

    def _begin_syncs(self) -> bool:
        """Begin the syncs that are due. True if one of the files has begun, which opens the gates."""
        has_waiting = bool(self._unsynced) and self.cadence is not Cadence.JOINED
        wants_files = self._wants_barrier or bool(self._syncing)
        if has_waiting and not (wants_files and self._has_one_lane):
            self._begin_log_sync()
        needs_files = has_waiting and not self._log_in_flight
        if (needs_files or wants_files) and self._can_sync_files:
            self._begin_sync()
            return True
        return False

    def _begin_log_sync(self) -> bool:
        """Begin a sync of the redo log, if none is in flight and the log takes what was written."""
        if self._log_in_flight or not self._writer.is_log_ready:
            return False
        self._write_gathered()
        sync = self._writer.prepare_log()
        if sync is None:
            return False
        self.syncs_prepared += 1
        self._log_in_flight = self.syncs_prepared
        self._executor.begin(sync, self._complete, self._bound)
        if sync.has_rest:
            self._flush_held()  # index entries, while the disk works
        return True

    def _begin_sync(self) -> None:
        """Begin a sync of the files. None is in flight. Opens the gates: narrow them."""
        self._write_gathered()
        with_metadata = self._writer.note() or self._wants_metadata
        self._wants_barrier = self._wants_metadata = False
        sync = self._writer.prepare(full=with_metadata)
        self.syncs_prepared += 1
        self._in_flight = self.syncs_prepared
        self._note_flushed(sync.left_out)
        self._executor.begin(sync, self._complete, self._bound)

    def _complete(self, sync: Sync, executed: outcome.Outcome[bool]) -> None:
        """Complete a sync of either lane, wake those that it covers, and begin the syncs that are due now.

        Called in the loop's thread, after its execution; not in the loop's task. Never raises: any failure
        breaks the channel.
        """
        if sync.is_of_log:
            number, self._log_in_flight = self._log_in_flight, 0
        else:
            number, self._in_flight = self._in_flight, 0
        if self._failure is None:
            try:
                try:
                    is_replaced = executed.unwrap()
                except OSError as failure:
                    self._writer.fail(failure)
                self._writer.complete(sync, is_replaced)
                woken: list[Task] = []
                while self._unsynced and self._unsynced[0][0] <= number:
                    woken += self._unsynced.pop(0)[1]
                if woken:
                    self.event_loop.wake_all(woken)
                    self._clock.restart()
                    if self._unsynced:
                        self.cadence = Cadence.JOINED
                        self.task.ring(self)
                    else:
                        self.cadence = Cadence.LONE if len(woken) == 1 else Cadence.SHARED
                if not sync.is_of_log and self._syncs_again(is_replaced):
                    # The tasks that wait for everything wait for the next one.
                    self._wants_barrier = self._wants_metadata = True
                elif not sync.is_of_log:
                    while self._syncing and self._syncing.first <= number:
                        full = self._not_durable(sync, is_replaced)
                        result = outcome.Error(type(full)(full.path, full.reason)) if full else NOTHING
                        self._syncing.wake_first(result)
                self._after()
                if self._begin_syncs():
                    self._narrow_gates()
                for act in self._beside:
                    act.go_on()
                self._set_deadline()
            except BaseException as failure:
                self._break(failure)
        if self.is_closing or self._failure is not None:
            self.task.ring(self)  # the loop is to end

    def _syncs_again(self, is_replaced: bool) -> bool:
        """True if another sync may succeed in what found no space in this one."""
        return False

    def _not_durable(self, sync: Sync, is_replaced: bool) -> FullError | None:
        """Return the error for the tasks that wait for everything; None if the sync covered everything."""
        return sync.left_out

    def _flush_held(self) -> None:
        """Write what is staged; a full disk is logged."""
        try:
            self._writer.flush()
        except FullError as full:
            self._note_flushed(full)
        else:
            self._note_flushed(None)

    def _note_flushed(self, full: FullError | None) -> None:
        """Note whether the flush succeeded: after a full disk the data is kept, and tried again."""
        if full is not None and not self._is_full:
            self._log.report("disk_full", "%s", full, path=full.path)
        self._wants_flush = False
        self._is_full = full is not None
        self._flush_at = self.event_loop.clock() + _RETRY if full is not None else math.inf

    # --- the end ----------------------------------------------------------------------------------

    def begin_to_close(self) -> None:
        """Wake all waiting tasks, and make `run` sync for the last time, close the files and end."""
        self.is_closing = True
        self._narrow_gates()
        for line in self._lines:
            line.wake_all(lambda: outcome.Error(trio.ClosedResourceError(f"the {self.kind} was closed")))
        for act in self._beside:
            act.begin_to_close()
        self.task.ring(self)

    def dismiss(self, tasks: Iterable[Task], why: str) -> None:
        """Wake the waiting ones of `tasks`, whose handle was closed. Accepted messages stay in."""
        for line in self._lines:
            line.dismiss(tasks, why)
        self._after()

    def check(self) -> None:
        """Raise BrokenResourceError if it is broken, ClosedResourceError if it is being closed.

        Raises BusyError in any thread but its own. All calls check this before they touch anything.
        """
        self.own_thread.check()
        if self._failure is not None:
            raise self._broken()
        if self.is_closing:
            raise trio.ClosedResourceError(f"the {self.kind} was closed")

    @property
    def is_broken(self) -> bool:
        """True after a failure that ended all promises of durability."""
        return self._failure is not None

    def check_end(self) -> None:
        """Raise BrokenResourceError if it is broken, or the error of the last sync. Call it after `run`."""
        if self._failure is not None:
            raise self._broken()
        if self._missed is not None:
            raise self._missed

    def leave_to_parent(self, pid: int) -> None:
        """In a child of a fork, stop: the channel and its waiting tasks belong to the parent."""
        self._failure = ForkedError(self.engine.name, pid)
        self._is_over = True

    def _broken(self) -> trio.BrokenResourceError | ForkedError:
        """Return a new error object: two tasks must not raise the same one."""
        if isinstance(self._failure, ForkedError):
            return ForkedError(self._failure.path, self._failure.pid)
        error = trio.BrokenResourceError(f"{self.kind} {self.engine.name!r}: {self._failure}")
        error.__cause__ = self._failure
        return error

    def broke(self, failure: StorageFailedError) -> NoReturn:
        """Break the channel after a caller met a storage failure. Raises BrokenResourceError."""
        self._break(failure)
        raise self._broken() from failure

    def _break(self, failure: BaseException) -> None:
        if self._failure is None:
            self._failure = failure
            self._log.report(
                "broken",
                "%s %r is broken: %s",
                self.kind,
                self.engine.name,
                failure,
                path=self.engine.name,
                error=failure,
            )
            if not isinstance(failure, DiskqError):
                # It is unknown how far it got: nothing may be promised any more, not even by the last sync.
                with contextlib.suppress(StorageFailedError):
                    self._writer.fail(failure)
        self._shut_gates()
        for line in (*self._lines, self._syncing):
            line.wake_all(lambda: outcome.Error(self._broken()))
        while self._unsynced:
            for task in self._unsynced.pop(0)[1]:
                self.event_loop.wake(task, outcome.Error(self._broken()))
