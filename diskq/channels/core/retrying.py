# Trying again. Law: how long to wait is stamina's to say, what is logged of it is ours: once for each kind of
# failure, and once when it is over.
#
# stamina logs every single retry, as a warning, and where no logging is set up that comes to standard error.
# Its records of what is ours are left out, whoever set up what; those of other retries are not touched.

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable

import stamina
from stamina import Attempt

from diskq.options import ReplicationOptions, SpoolOptions

__all__ = ["Again", "Attempt", "tries"]


class Again(Exception):
    """What stamina sees of a failure: try it again, in so many seconds; None: as the back-off says."""

    def __init__(self, after: float | None = None) -> None:
        super().__init__("diskq tries again")
        self.after = after


def tries(
    on: type[Again] | Callable[[Exception], bool | float], options: SpoolOptions | ReplicationOptions
) -> AsyncIterator[Attempt]:
    """Tries without end: each after a failure that `on` takes waits as the back-off of `options` says."""
    return stamina.retry_context(
        on=on,
        attempts=None,
        timeout=None,
        wait_initial=options.backoff_initial,
        wait_max=options.backoff_max,
        wait_jitter=options.backoff_jitter,
    ).__aiter__()


_OURS = repr(Again())


def _is_not_ours(record: logging.LogRecord) -> bool:
    return record.__dict__.get("stamina.caused_by") != _OURS


logging.getLogger("stamina").addFilter(_is_not_ours)
