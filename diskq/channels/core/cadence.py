# Who begins the next sync of messages, and who waits for it awake: the choice between the latency of one
# sender and what several can share.
#
#   last sync woke       the next one is begun by            and is waited for awake by
#   one task, no more    that task, as it sends (LONE)       that task: to sleep and to be woken takes longer
#   several              the next turn of the loop, when     the loop (`CommitLoop.stay_awake`)
#                        all of them have sent (SHARED)
#   some; others wait    the turn after that, so that all    the loop
#                        share one (JOINED)
#
# Awake means `SyncExecutor.spin`: for two slices at most, and only while no other task is ready to run. After
# a sync that takes longer, spins are left out, ever more of them; so does a thread of `SyncQueue` that waits
# awake for the next sync in vain.

from __future__ import annotations

from enum import Enum, auto

__all__ = ["Cadence"]


class Cadence(Enum):
    """Who begins the next sync for tasks that wait."""

    LONE = auto()
    """The task that waits: it alone was woken by the last one."""
    SHARED = auto()
    """A turn of the loop: those that were woken may send again before it."""
    JOINED = auto()
    """A turn after those that were woken have run, since others wait already; then it is SHARED."""
