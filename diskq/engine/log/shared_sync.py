# Syncs that threads share. Law: a call returns when a sync that began after its bytes were written has
# ended, and waits for it outside the thread guard, so that other threads append meanwhile. A failed sync is
# raised in every call that waits.
#
# One call leads: it prepares a sync inside the guard, executes it outside, and completes it inside again. The
# others follow, and sleep. When the sync has ended, those return that were in the line when it was prepared,
# and wake one another; of the later ones the first leads the next sync, which covers all of them.
#
# At most one such sync is in flight. A thread that holds the guard and needs a sync itself (to close, to make
# room, because the policy says so) first waits until that one is executed, and completes it: its leader needs
# no guard to execute it, so that they never wait for each other.
#
# Everything but the execution is done with the guard held. A call whose thread was interrupted before it came
# to `wait` stays in the line, and never leads.

from __future__ import annotations

import contextlib
from threading import Lock, get_ident
from typing import Protocol

from diskq._native.core.chained_wait import ChainedWait, wake_all
from diskq._native.core.thread_guard import ThreadGuard
from diskq.engine.log.sync import Sync
from diskq.errors import BusyError, DiskqError, ForkedError, FullError
from diskq.storage.fs import FileSystem

__all__ = ["SharedCall", "SharedSyncs"]


class Syncing(Protocol):
    """A log's writer, as far as its syncs are shared."""

    path: str
    guard: ThreadGuard
    failure: DiskqError | None

    def check_usable(self) -> None: ...

    def prepare(self, *, full: bool) -> Sync: ...

    def prepare_log(self) -> Sync | None: ...

    def complete(self, sync: Sync, is_replaced: bool) -> None: ...

    def end_failed(self, failure: BaseException) -> None: ...


class SharedCall(ChainedWait):
    """A call that waits for a sync: a full one (`LogWriter.prepare`) if it `is_full`."""

    __slots__ = (
        "flight",
        "is_full",
        "is_over",
        "is_replaced",
        "is_waiting",
        "sync",
        "thread",
    )

    def __init__(self, is_full: bool) -> None:
        self.is_full = is_full
        self.thread = get_ident()
        self.is_waiting = False
        """True once it is in `wait`: it may lead."""
        self.is_over = False
        self.sync: Sync | None = None
        """The sync that has covered it; None if that failed."""
        self.is_replaced = False
        """What executing that has returned."""
        self.flight: _SharedFlight | None = None
        """The sync that it leads."""

    @property
    def left_out(self) -> FullError | None:
        """If set, there was no space for some messages that are held in memory: they are not durable."""
        return None if self.sync is None else self.sync.left_out


class _SharedFlight:
    """A sync that a call executes outside the guard."""

    def __init__(self, sync: Sync) -> None:
        self.sync = sync
        self.is_replaced = False
        self.failure: BaseException | None = None
        self.thread = get_ident()
        self._executed = Lock()
        self._executed.acquire()

    def execute(self, fs: FileSystem) -> None:
        """Execute it, and keep an OSError for `end`. Raises any other error."""
        try:
            self.is_replaced = self.sync.barrier.execute(fs)
        except BaseException as failure:
            self.failure = failure
            if not isinstance(failure, OSError):
                raise
        finally:
            self._executed.release()

    def give_up(self, failure: BaseException) -> None:
        """Note that it will not be executed, if it was not."""
        if not self.is_executed:
            self.failure = failure
            self._executed.release()

    @property
    def is_executed(self) -> bool:
        return not self._executed.locked()

    def wait(self) -> None:
        """Return when it is executed."""
        with self._executed:
            pass


class SharedSyncs:
    """The calls of a log that wait for a sync. With the guard held, but for `wait`."""

    def __init__(self, log: Syncing, fs: FileSystem) -> None:
        self._log = log
        self._fs = fs
        self._calls: list[SharedCall] = []  # that no prepared sync covers, in order of arrival
        self._covered: list[SharedCall] = []  # that the last prepared sync covers
        self._covering: Sync | None = None
        self._leader: SharedCall | None = None
        self._flight: _SharedFlight | None = None

    # --- for a call -------------------------------------------------------------------------------

    def join(self, *, is_full: bool) -> SharedCall:
        """Put a call in the line, whose messages are accepted. `wait` for it when the guard is given back."""
        if self._flight is not None and self._flight.thread == get_ident():
            raise BusyError(self._log.path)  # what its thread would wait for is below it
        call = SharedCall(is_full)
        self._calls.append(call)
        return call

    def wait(self, call: SharedCall) -> SharedCall:
        """Return when a sync has covered the call. Without the guard. Raises StorageFailedError."""
        try:
            with self._log.guard:
                call.is_waiting = True
                # A signal's handler does not wait for a call that it has interrupted.
                is_led = self._leader is not None and self._leader.thread != call.thread
                if not is_led and not call.is_over:
                    self._lead(call)
            if self._leader is not call and not call.is_over:
                call.sleep()
            while not call.is_over:
                if call.flight is None:
                    with self._log.guard:
                        if call.is_over:
                            break
                        self._lead(call)
                assert call.flight is not None
                call.flight.execute(self._fs)
                with self._log.guard:
                    if self._flight is call.flight:
                        self.end_flight()
                    call.flight = None
                    if call.is_over and self._leader is call:
                        self._pass_on()
            if self._leader is call:
                with self._log.guard:
                    self._pass_on()
        except BaseException as failure:
            self._withdraw(call, failure)
            raise
        if call.sync is None:
            self._log.check_usable()
            raise AssertionError("a call was ended without a sync")
        return call

    def _lead(self, call: SharedCall) -> None:
        """Let the call lead: prepare the sync that it is to execute. Raises StorageFailedError."""
        self._leader = call
        self._log.check_usable()
        sync = None
        is_full = any(each.is_full for each in self._calls)
        if not is_full:
            sync = self._log.prepare_log()
        call.flight = self._flight = _SharedFlight(sync or self._log.prepare(full=is_full))

    def _pass_on(self) -> None:
        """Let the first call that waits lead from now on."""
        self._leader = next((call for call in self._calls if call.is_waiting), None)
        if self._leader is not None:
            self._leader.wake()

    def _withdraw(self, call: SharedCall, failure: BaseException) -> None:
        """Take out a call that has failed or was interrupted, whatever interrupts that."""
        if call.flight is not None:
            call.flight.give_up(failure)
        while True:
            try:
                with self._log.guard:
                    if self._flight is not None and self._flight is call.flight:
                        with contextlib.suppress(DiskqError):
                            self.end_flight()
                    if call in self._calls:
                        self._calls.remove(call)
                    if self._leader is call:
                        self._pass_on()
                return
            except (BusyError, ForkedError):
                return
            except BaseException:
                continue

    # --- for the log ------------------------------------------------------------------------------

    def end_flight(self) -> None:
        """Wait until the sync in flight is executed, if there is one, and complete it.

        Raises StorageFailedError; BusyError if this very thread executes it.
        """
        flight = self._flight
        if flight is None:
            return
        if flight.thread == get_ident() and not flight.is_executed:
            raise BusyError(self._log.path)
        flight.wait()
        self._flight = None
        if self._log.failure is not None:
            return
        if flight.failure is None:
            self._log.complete(flight.sync, flight.is_replaced)
        else:
            self._log.end_failed(flight.failure)

    def cover(self, sync: Sync, *, is_full: bool) -> None:
        """Note that the sync, which was just prepared, covers the calls in the line."""
        self._covering = sync
        self._covered = [call for call in self._calls if is_full or not call.is_full]
        self._calls = [call for call in self._calls if call.is_full and not is_full]

    def completed(self, sync: Sync, is_replaced: bool) -> None:
        """End the calls that the sync has covered."""
        if sync is self._covering:
            covered, self._covered, self._covering = self._covered, [], None
            for call in covered:
                call.sync, call.is_replaced, call.is_over = sync, is_replaced, True
            wake_all(covered)

    def failed(self) -> None:
        """End all calls: the log has failed."""
        calls = self._covered + self._calls
        self._covered, self._calls, self._covering = [], [], None
        for call in calls:
            call.is_over = True
        wake_all(calls)
