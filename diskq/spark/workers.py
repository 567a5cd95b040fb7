# The Python processes that Spark starts: for tasks, for planning, for commits. Law: they serve many jobs, so
# what they have imported is walked through once.

from __future__ import annotations

import gc
import os

__all__ = ["spare_collections"]

# `gc.get_freeze_count` says it, too: it counts them one by one, for milliseconds in each task.
_are_spared = False


def spare_collections() -> None:
    """Exclude the objects that exist at the first call from the garbage collections of Spark's daemon.

    The daemon collects after all that a worker does: each task, each plan, each commit. The imported modules
    took 10 to 25 milliseconds each time. This is done only in workers that Spark uses again.
    """
    global _are_spared
    if not _are_spared and "SPARK_REUSE_WORKER" in os.environ:
        _are_spared = True
        gc.freeze()
