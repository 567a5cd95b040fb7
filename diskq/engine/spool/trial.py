# What follows from each try of a spool's batch. Law: a batch leaves after its delivery, or after its
# undeliverable messages are durable as dead letters; whatever else is raised, it stays.
#
# Rules and figures alone: who delivers (the channel's task, the thread of a synchronous spool) sleeps, calls
# `deliver`, and makes the dead letters.

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from operator import index
from typing import NamedTuple

from diskq.engine.spool.delivery_cursor import DeliveryCursor
from diskq.errors import Permanent, Retry
from diskq.messages import Batch
from diskq.options import SpoolOptions
from diskq.storage.callbacks import text_of
from diskq.storage.log_events import Log

__all__ = ["FailedTry", "Pace", "Trial", "report_end", "single_error"]

log = Log("spool")

_LONGEST_ERROR = 500
# A pause is longer by up to this fraction, so that spools that lost a destination together return one by one.
_SPREAD = 0.1


class Pace:
    """When a destination may be tried: not while paused by hand, not faster than its rate, and not for a time
    after many failures in a row (a circuit breaker that is open). Times are seconds of the caller's clock.
    """

    def __init__(self, options: SpoolOptions) -> None:
        self._options = options
        self._is_held = False  # paused by hand
        self._is_open = False  # paused by the circuit
        self._free_at = -float("inf")  # when the rate allows the next batch
        self.failures = 0
        """The number of failures in a row."""
        self.next_try_at: float | None = None
        """The time before which no try begins. None: no time is set, but the spool may be paused by hand."""

    @property
    def is_paused(self) -> bool:
        return self._is_held or self._is_open

    @property
    def is_held(self) -> bool:
        """True if it is paused by hand."""
        return self._is_held

    def pause(self) -> None:
        """Begin no further try until `resume`."""
        self._is_held = True

    def resume(self) -> None:
        """End every pause and wait: try now."""
        self._is_held = self._is_open = False

    def free_at(self, now: float) -> float | None:
        """Return when the rate allows the next batch; None: it may be tried now."""
        return None if self._options.rate is None or now >= self._free_at else self._free_at

    def begin(self, items: int, now: float) -> None:
        """Note that `items` messages are tried from now on."""
        self.next_try_at = None
        if self._options.rate is not None:
            self._free_at = max(now, self._free_at) + items / self._options.rate

    def succeeded(self) -> None:
        self.failures = 0
        self._is_open = False

    def failed(self) -> float | None:
        """Note a failure. Returns the pause in seconds before the next try; None: the back-off decides."""
        self.failures += 1
        limit = self._options.pause_after
        self._is_open = limit is not None and self.failures >= limit
        return self._options.pause * random.uniform(1, 1 + _SPREAD) if self._is_open else None


class FailedTry(NamedTuple):
    """What follows from a failed try."""

    given_up: Sequence[int]
    """Messages of the batch that become dead letters; the rest, if any, is tried at once."""
    reason: str
    after: float | None = None
    """Without such: seconds until the next try; None: the back-off decides."""
    is_by_destination: bool = False
    """True if `deliver` has named them: the try says nothing against the others."""


class Trial:
    """The tries of one spool's batches since it was opened."""

    def __init__(
        self, cursor: DeliveryCursor, options: SpoolOptions, pace: Pace, too_slow: type[Exception]
    ) -> None:
        """`too_slow` is the error of a try that took longer than `deliver_timeout`."""
        self._cursor = cursor
        self._options = options
        self._pace = pace
        retry_on = options.retry_on if isinstance(options.retry_on, tuple) else (options.retry_on,)
        self._retry_on = (Permanent, Retry, too_slow, *retry_on)
        self._name = f"spool {cursor.path!r}"
        self._complaint: tuple[type[BaseException], str] | None = None  # what was logged last
        self.delivered = self.buried = self.failed_tries = 0
        self.last_error: str | None = None

    @property
    def is_tried_enough(self) -> bool:
        limit = self._options.max_attempts
        return limit is not None and self._cursor.failed_attempts >= limit

    def succeeded(self) -> None:
        """Note that the destination has answered."""
        if self._complaint is not None:
            failures = self._pace.failures
            log.report(
                "delivery_resumed",
                "%s delivers again, after %d failures",
                self._name,
                failures,
                path=self._cursor.path,
                failures=failures,
            )
        self._complaint = self.last_error = None
        self._pace.succeeded()

    def failed(self, batch: Batch, raised: Exception) -> FailedTry:
        """Note that `deliver` raised. Raises that error if the batch is not to be tried again."""
        raised = single_error(raised)
        if isinstance(raised, Permanent) and raised.messages != ():
            try:
                items = range(len(batch)) if raised.messages is None else _places(batch, raised.messages)
            except (IndexError, TypeError) as mistake:
                # No message can be given up for it, and the others are to be delivered.
                raised = Retry(f"Permanent({raised.reason!r}): {mistake}")
            else:
                return FailedTry(items, raised.reason, is_by_destination=True)
        if not isinstance(raised, self._retry_on):
            raise raised
        self.failed_tries += 1
        self.complain(raised)
        after, pause = getattr(raised, "after", None), self._pace.failed()
        if self.is_tried_enough:
            return self.gives_up()
        waits = [seconds for seconds in (after, pause) if seconds is not None]
        return FailedTry((), "", max(waits) if waits else None)

    def gives_up(self) -> FailedTry:
        """Return that the whole batch was tried often enough."""
        batch = self._cursor.batch()
        error = self.last_error or "the process ended while it was being delivered"
        return FailedTry(range(len(batch)), f"gave up after {batch.attempts} attempts: {error}")

    def bury(self, failed: FailedTry) -> None:
        """Note that what is given up is durable as dead letters."""
        count = len(failed.given_up)
        self._cursor.bury(failed.given_up)
        self.buried += count
        log.report(
            "dead_letters",
            "%s: %d messages became dead letters: %s",
            self._name,
            count,
            failed.reason,
            path=self._cursor.path,
            count=count,
            reason=failed.reason,
        )
        if failed.is_by_destination:
            self._cursor.do_not_count_failed_try()
            self.succeeded()

    def complain(self, failure: BaseException) -> None:
        """Remember a failure, and log it if it differs from the one before."""
        text = text_of(failure)
        complaint = type(failure), text
        self.last_error = f"{type(failure).__name__}: {text}"[:_LONGEST_ERROR]
        if complaint != self._complaint:
            log.report(
                "delivery_failed",
                "%s cannot deliver: %s",
                self._name,
                self.last_error,
                path=self._cursor.path,
                error=failure,
                failures=self._pace.failures,
                exc_info=failure,
            )
        self._complaint = complaint


def report_end(path: str, failure: BaseException) -> None:
    """Log why a spool delivers no more."""
    log.report(
        "delivery_ended",
        "spool %r delivers no more: %s: %s",
        path,
        type(failure).__name__,
        text_of(failure),
        path=path,
        error=failure,
    )


def single_error(raised: Exception) -> Exception:
    """Return the single exception that a nursery inside `deliver` wrapped in a group."""
    while isinstance(raised, ExceptionGroup) and len(raised.exceptions) == 1:
        raised = raised.exceptions[0]
    return raised


def _places(batch: Batch, items: Iterable[int]) -> list[int]:
    """Return the items as sorted indexes. Raises IndexError or TypeError for one that is not in the batch."""
    places = set()
    for item in items:
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise TypeError(f"messages are places in the batch, whole numbers from 0, got {item!r}")
        if not 0 <= index(item) < len(batch):
            raise IndexError(f"messages has place {item}, and the batch has places 0 to {len(batch) - 1}")
        places.add(index(item))
    return sorted(places)
