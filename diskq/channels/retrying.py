# Trying again. Law: how long to wait is stamina's to say, what is logged of it is ours: once for each kind of
# failure, and once when it is over.
#
# stamina logs every single retry, as a warning, and where no logging is set up that comes to standard error.
# Its records of what is ours are left out, whoever set up what; those of other retries are not touched.

from __future__ import annotations

import logging

__all__ = ["Again"]


class Again(Exception):
    """What stamina sees of a failure: try it again, in so many seconds; None: as the back-off says."""

    def __init__(self, after: float | None = None) -> None:
        super().__init__("diskq tries again")
        self.after = after


_OURS = repr(Again())


def _is_not_ours(record: logging.LogRecord) -> bool:
    return record.__dict__.get("stamina.caused_by") != _OURS


logging.getLogger("stamina").addFilter(_is_not_ours)
