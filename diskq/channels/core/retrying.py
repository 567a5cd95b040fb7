# Retries. Law: stamina decides how long to wait; diskq decides what is logged: one record for each kind of
# failure, and one when it is over.
#
# stamina logs every single retry as a warning, which goes to standard error if no logging is set up. A filter
# drops its records of diskq's retries, whatever logging the program set up; those of other retries stay.

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable

import stamina
from stamina import Attempt

from diskq.options import ReplicationOptions, SpoolOptions

__all__ = ["Again", "Attempt", "tries"]


class Again(Exception):
    """Makes stamina try again `after` that many seconds; None: as the back-off says."""

    def __init__(self, after: float | None = None) -> None:
        super().__init__("diskq tries again")
        self.after = after


def tries(
    on: type[Again] | Callable[[Exception], bool | float], options: SpoolOptions | ReplicationOptions
) -> AsyncIterator[Attempt]:
    """Return attempts without end. After a failure that `on` accepts they wait as `options` says."""
    return stamina.retry_context(
        on=on,
        attempts=None,
        timeout=None,
        wait_initial=options.backoff_initial,
        wait_max=options.backoff_max,
        wait_jitter=options.backoff_jitter,
    ).__aiter__()


_OWN_CAUSE = repr(Again())


def _is_foreign(record: logging.LogRecord) -> bool:
    return record.__dict__.get("stamina.caused_by") != _OWN_CAUSE


logging.getLogger("stamina").addFilter(_is_foreign)
