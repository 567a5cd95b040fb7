# What a spool says about itself, to its program and in its status file. Law: nothing is decided by it.

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, TypeVar

from diskq.engine.queue.steps import QueueSteps
from diskq.engine.spool.delivery_cursor import DeliveryCursor
from diskq.engine.spool.files import SpoolStatus
from diskq.engine.spool.trial import Pace, Trial
from diskq.storage.fs import FileSystem
from diskq.storage.repairs import Repair
from diskq.storage.sync_times import Durations

__all__ = ["TICK", "SpoolFigures", "SpoolStatistics"]

TICK = 1.0
"""Seconds: the status is written at most once in this time, and ages are accurate to it."""
# The number of ticks over which rates are computed.
_RATED = 10

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStatistics:
    """Figures of a spool at one moment. Durations are in seconds."""

    depth: int
    """Messages that wait to be delivered, including those of the batch that is being tried."""
    bytes_on_disk: int
    """Bytes on disk, without the dead letters."""
    oldest_age: float | None
    """How long the oldest message has waited: never too low, and too high by up to a second or, after a long
    time, some percent. None: no message waits."""
    delivered: int
    """Messages since the open; `accepted`, `buried` and `failed_tries` count since then as well."""
    accepted: int
    buried: int
    """Messages that became dead letters."""
    failed_tries: int
    dead_letters: int
    """The number of dead letters now."""
    failures: int
    """Failures in a row up to now."""
    attempts: int
    """Tries of the first batch so far."""
    last_error: str | None
    """The text of the last failure. None: the last try succeeded, or there was none."""
    is_paused: bool
    """Paused by hand, or because too many tries in a row failed."""
    next_try_in: float | None
    """Seconds until the next try at the earliest. None: nothing delays it, or it is paused by hand."""
    arrival_rate: float
    """Messages accepted per second, over about the last ten seconds."""
    delivery_rate: float
    """Messages delivered per second, over about the last ten seconds."""
    repairs: tuple[Repair, ...]
    barrier_seconds: Durations
    """How long barriers took on the disk: each is one or several syncs of files and directories."""


class SpoolFigures:
    """The figures of one open spool."""

    def __init__(
        self,
        queue: QueueSteps,
        cursor: DeliveryCursor,
        dead_letters: Sized,
        trial: Trial,
        pace: Pace,
        fs: FileSystem,
    ) -> None:
        self._queue = queue
        self._cursor = cursor
        self._dead_letters = dead_letters
        self._trial = trial
        self._pace = pace
        self._fs = fs
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=_RATED)  # (time, accepted, delivered)

    def sample(self) -> None:
        """Take a sample for the rates: once per tick."""
        now = self._queue.log.clock()
        self._samples.append((now, self._queue.accepted_total, self._trial.delivered))

    def statistics(self, repairs: tuple[Repair, ...], barrier_seconds: Durations) -> SpoolStatistics:
        accepted_at, wait = self._cursor.accepted_at(), self._wait()
        return self._figures_as(
            SpoolStatistics,
            oldest_age=None if accepted_at is None else max(0.0, self._fs.wall_clock() - accepted_at),
            next_try_in=None if wait is None else max(0.0, wait),
            accepted=self._queue.accepted_total,
            bytes_on_disk=self._queue.quota.on_disk,
            repairs=repairs,
            barrier_seconds=barrier_seconds,
        )

    def status(self) -> SpoolStatus:
        now, wait = self._fs.wall_clock(), self._wait()
        return self._figures_as(
            SpoolStatus,
            bytes=self._queue.quota.on_disk,  # the word that the file has
            written_at=now,
            accepted_at=self._cursor.accepted_at(),
            next_try_at=None if wait is None else now + wait,
        )

    def _wait(self) -> float | None:
        """Return the seconds until the next try; negative if that time has passed."""
        next_try_at = self._pace.next_try_at
        return None if next_try_at is None else next_try_at - self._queue.log.clock()

    def _figures_as(self, kind: Callable[..., T], **more: Any) -> T:
        """Return an object of `kind` with the figures of statistics and status; `more` are its own fields."""
        trial, queue, pace = self._trial, self._queue, self._pace
        arrivals, deliveries = self._rates()
        return kind(
            depth=queue.head.depth,
            delivered=trial.delivered,
            buried=trial.buried,
            failed_tries=trial.failed_tries,
            dead_letters=len(self._dead_letters),
            failures=pace.failures,
            attempts=self._cursor.attempts,
            last_error=trial.last_error,
            is_paused=pace.is_paused,
            arrival_rate=arrivals,
            delivery_rate=deliveries,
            **more,
        )

    def _rates(self) -> tuple[float, float]:
        """Return the messages accepted, and delivered, per second."""
        if not self._samples:
            return 0.0, 0.0
        then, accepted, delivered = self._samples[0]
        seconds = max(self._queue.log.clock() - then, TICK)
        return (
            (self._queue.accepted_total - accepted) / seconds,
            (self._trial.delivered - delivered) / seconds,
        )
