# How long to wait before a failed call is tried again. Law: arithmetic. It sleeps not, and logs nothing.

from __future__ import annotations

import random

from diskq.options import ReplicationOptions, SpoolOptions

__all__ = ["backoff"]

# Doubled this often, every wait is at its limit, and none is more than a float can hold.
_MOST_DOUBLINGS = 64


def backoff(failures: int, options: SpoolOptions | ReplicationOptions) -> float:
    """Return the seconds to wait after that many failures in a row: doubled each time, with jitter."""
    doubled = options.backoff_initial * 2.0 ** min(failures - 1, _MOST_DOUBLINGS)
    return min(options.backoff_max, doubled + random.uniform(0, options.backoff_jitter))
