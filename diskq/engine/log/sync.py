# A sync, when it is due and how long it takes, and an object with at most one of each sort in flight. Law: a
# sync is prepared in the thread that writes, executed in any thread, and completed in the first one again; a
# failed one is final.
#
# There are syncs of the files, and syncs of the redo log, which make records durable without the files. One
# of each may be in flight at the same time.
#
#     open      all calls are allowed
#     failed    every call raises the failure, and nothing is promised; `close` releases what it holds. A
#               sync in this thread that Ctrl-C has interrupted is failed, too: some of it may be done.
#     closed    every call but `close` raises ValueError
#
# A log's writer (writer.py) and a committed offset (committed_offset.py) are such objects.
#
# One thread at a time is inside of them. A call that comes while another thread is inside waits before
# anything is read or changed; so what was acknowledged is stored, from whichever thread it was called. What a
# call looks at before it holds the guard may be changed when it does: it checks there again.
#
# Every call of an engine that changes something enters the thread guard: the hottest ones by hand, all
# others through `exclusive`; the compiled fast paths check it themselves. Calls that only look (statistics),
# and those documented for any thread, do not. Nor do the steps with which a channel drives an engine
# (`obstacle`, `accept`, `note`, ...), which run once a message: a channel belongs to Trio's thread alone.

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

from diskq._native.core.thread_guard import ThreadGuard
from diskq.errors import DiskqError, FullError, StorageFailedError
from diskq.storage.barrier import NO_ROOM, Barrier
from diskq.storage.fs import FileSystem
from diskq.storage.log_events import Log
from diskq.storage.sync_times import BOUNDS, Durations

__all__ = ["DurationCounter", "Exclusive", "Sync", "SyncPolicy", "Synced", "exclusive"]


@dataclass(slots=True)
class SyncPolicy:
    """When a sync is due: arithmetic, with the time as an argument. No loop, no sleep, no disk, no clock.

    A barrier after `every` records (written or consumed), or `timeout` seconds after the first.

    go-diskqueue counts the same way, but asks for equality, so a count that jumps past is missed.
    """

    every: int
    timeout: float
    max_unsynced: int = sys.maxsize
    """Bytes. After more than half of them, a barrier should begin if possible: what is written while it runs
    goes into the other half. So the disk works before any sender has to wait for it."""
    half: int = field(init=False)
    """Half of `max_unsynced`."""
    pending: int = 0
    due_at: float = math.inf
    """When a barrier is due at the latest, on the clock of `now`; infinity: nothing is pending."""
    is_forced: bool = False

    def __post_init__(self) -> None:
        self.half = self.max_unsynced // 2

    def count(self, records: int, now: float) -> int:
        """Count `records` that were written or consumed since the last call, at the time `now` in seconds.

        Returns how many more may pass before a barrier is due; 0: one is due now.
        """
        if records:
            if not self.pending:
                self.due_at = now + self.timeout
            self.pending += records
        if self.is_forced or self.pending >= self.every or now >= self.due_at:
            return 0
        return self.every - self.pending

    def force(self) -> None:
        """Make a barrier due now, since a file was used up, or rolled."""
        self.is_forced = True

    def bytes_until_check(self, unsynced: int) -> int:
        """Return the bytes that may be written before the caller must check against half or all of them."""
        return (self.max_unsynced if unsynced > self.half else self.half) - unsynced

    def prepared(self) -> None:
        """Note that a barrier was prepared, which covers everything so far."""
        self.pending = 0
        self.due_at = math.inf
        self.is_forced = False


class DurationCounter:
    """Counts durations, in seconds. One thread at a time calls it, but for `now`. No number decreases."""

    __slots__ = ("_buckets", "_longest", "_seconds")

    def __init__(self) -> None:
        self._seconds = self._longest = 0.0
        self._buckets = [0] * (len(BOUNDS) + 1)

    def count(self, seconds: float) -> None:
        """Count one more operation, which took `seconds`."""
        self._seconds += seconds
        self._longest = max(self._longest, seconds)
        self._buckets[bisect_left(BOUNDS, seconds)] += 1

    def take_longest(self) -> float:
        """Return the longest duration since the last call."""
        longest, self._longest = self._longest, 0.0
        return longest

    def now(self) -> Durations:
        """Return the counts, in any thread."""
        buckets = tuple(self._buckets)
        return Durations(count=sum(buckets), seconds=self._seconds, buckets=buckets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A sync that is prepared, as data: any thread may execute it, by `barrier.execute`."""

    barrier: Barrier
    state: Any
    """What is durable once it is complete, in a form that only the code that prepared it reads."""
    left_out: FullError | None = None
    """If set, there was no space to write some of what was accepted: it will not be durable."""
    written: int = 0
    """The number of bytes, of all ever accepted, that are durable once it is complete."""
    has_metadata: bool = True
    redo: Any = None
    """What of the redo log is not needed any more once it is complete."""
    is_of_log: bool = False
    """True if it syncs the redo log, and not the files; no name comes or goes with it."""
    has_rest: bool = False
    """True if something that recovery can make again is not written yet: `flush` it while the disk works."""


class Synced(ABC):
    """It is open, failed or closed, and has at most one sync of its files in flight.

    For one thread at a time.
    """

    __slots__ = (
        "__weakref__",
        "_fs",
        "_in_flight",
        "_log_in_flight",
        "_topic",
        "_what",
        "clock",
        "failure",
        "is_closed",
        "path",
        "policy",
    )

    def __init__(
        self, fs: FileSystem, topic: Log, path: str, what: str, policy: SyncPolicy, clock: Callable[[], float]
    ) -> None:
        """`path` and `what` appear in errors. The `policy` says when to sync, by the `clock`."""
        self._fs = fs
        self._topic = topic
        self.path = path
        self._what = what
        self.policy = policy
        self.clock = clock
        """The sync policy's clock, in seconds."""
        self.failure: DiskqError | None = None
        """The error that every call raises, once something has failed for good."""
        self.is_closed = False
        self._in_flight: Sync | None = None
        self._log_in_flight: Sync | None = None

    def check_usable(self) -> None:
        """Raise the failure, or ValueError if it is closed."""
        if self.failure is not None:
            raise self.failure
        if self.is_closed:
            raise ValueError(f"{self._what} is closed")

    @property
    def condition(self) -> str:
        """The word for its state: open, failed or closed."""
        return "closed" if self.is_closed else "open" if self.failure is None else "failed"

    def refuse(self, failure: DiskqError) -> None:
        """Make every call from now on raise `failure`."""
        self.failure = failure

    def fail(self, failure: BaseException) -> NoReturn:
        """Refuse all further calls: the disk broke a promise. Raises StorageFailedError."""
        error = self._failed_by(failure)
        self.refuse(error)
        raise error from failure

    def _failed_by(self, failure: BaseException) -> StorageFailedError:
        self._in_flight = self._log_in_flight = None
        error = StorageFailedError(self.path)
        error.__cause__ = failure
        return error

    def run(self, sync: Sync) -> bool:
        """Execute it here, and complete it. Returns as `Barrier.execute`. Raises StorageFailedError."""
        try:
            try:
                is_replaced = sync.barrier.execute(self._fs)
            except OSError as failure:
                self.fail(failure)
            self.complete(sync, is_replaced)
        except Exception:
            raise
        except BaseException as interrupt:
            self.refuse(self._failed_by(interrupt))
            raise
        return is_replaced

    @abstractmethod
    def complete(self, sync: Sync, is_replaced: bool) -> None:
        """Note that it was executed; `is_replaced` is what `Barrier.execute` returned."""

    # --- for the subclass -------------------------------------------------------------------------

    def _check_idle(self) -> None:
        assert self._in_flight is None, "one sync at a time"

    def _end_flight(self, sync: Sync) -> None:
        assert sync is self._in_flight, "not the sync that was prepared"
        self._in_flight = None

    def _note_not_replaced(self, path: str) -> None:
        """Log that the disk has no space for the small file `path`, which is still pending."""
        self._topic.report("disk_full", f"%s: {NO_ROOM}, it will be written later", path, path=path)
        self.policy.count(1, self.clock())


# --- one thread at a time -----------------------------------------------------------------------------


class Exclusive(Protocol):
    """An object that one thread at a time may be inside of."""

    @property
    def guard(self) -> ThreadGuard: ...


S = TypeVar("S", bound=Exclusive)
P = ParamSpec("P")
R = TypeVar("R")


def exclusive(call: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Hold the thread guard while the method runs; the same thread may enter again, others wait."""

    @wraps(call)
    def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.guard:
            return call(self, *args, **kwargs)

    return guarded
