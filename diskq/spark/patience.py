# Waiting for a stream that another process has open. Law: up to the given time; the error then names the
# holder. And for a machine that was too busy to start a Python worker: a pipeline that follows goes on.

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from diskq.engine.stream.settings import settings_at
from diskq.errors import LockedError
from diskq.options import StreamOptions
from diskq.spark.errors import classify

if TYPE_CHECKING:
    from diskq.engine.stream.stream import Stream

__all__ = ["LOCK_TIMEOUT", "is_repeated", "open_patiently"]

logger = logging.getLogger("diskq.spark")

LOCK_TIMEOUT = 30.0
"""The default, in seconds."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5


def open_patiently(path: str, options: StreamOptions, *, timeout: float, fs: Any = None) -> Stream:
    """Return the stream, open for writing. Raises LockedError after `timeout` seconds, and as `Stream`.

    `options` are those of a new stream. One that another process creates meanwhile keeps its own.
    """
    from diskq.engine.stream.stream import Stream  # takes half of a sink's imports, and a task opens none

    deadline = time.monotonic() + timeout
    pause = _FIRST_PAUSE
    while True:
        is_new = settings_at(path) is None
        try:
            return Stream(path, options=options if is_new else None, fs=fs)
        except LockedError:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)


def is_repeated(error: BaseException, follow: float | None) -> bool:
    """True if what failed is to be done again: DISKQ_WORKER_LATE in a pipeline that follows, not otherwise.

    Returns after a pause of `follow` seconds then. Spark has waited 10 s before, which is a pause, too.
    """
    fault = classify(error)
    if follow is None or fault is None or fault.code != "DISKQ_WORKER_LATE":
        return False
    logger.warning("%s: %s (the pipeline follows: it goes on)", *fault)
    time.sleep(follow)
    return True
