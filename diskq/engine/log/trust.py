# What recovery trusts. Law: it is decided once in each open, here, from what the last writer left behind; no
# format's recovery asks again who wrote last, or whether the machine was restarted.
#
#   CLOSED      All of ours is durable, up to the recovery point, and nothing of ours is behind it. What is
#               there all the same is another program's: its framing is believed.
#   KILLED      The machine ran on, so the page cache survived: framing is believed. What is behind the
#               recovery point may not be durable, and is synced again.
#   POWER_CUT   Behind the recovery point nothing is believed but what an agreeing checksum vouches for: there
#               may be zeros behind a good length.
#   PEER_WROTE  Another program has written since we did, of whose bytes no checksum tells: framing is
#               believed, also after a power cut.
#
# What the recovery point is, is the format's: journals and streams have points (streampoints.py), a queue has
# its metadata, a store a point (taskfluxfiles.py). Before it everything of ours is durable.

from __future__ import annotations

import enum

from diskq.engine.streampoints import Points
from diskq.storage.slates import Slates

__all__ = ["Trust", "trust_of_points"]


class Trust(enum.Enum):
    """What of the bytes behind the recovery point may be believed, as the head of this module tells."""

    CLOSED = enum.auto()
    KILLED = enum.auto()
    POWER_CUT = enum.auto()
    PEER_WROTE = enum.auto()

    @classmethod
    def after(cls, *, was_ours: bool, was_restarted: bool, was_closed: bool = False) -> Trust:
        """`was_ours`: nobody else has written since we last did; `was_restarted`: the machine was, since.

        `was_closed`: the recovery point says that nothing of ours is behind it.
        """
        if was_closed:
            return cls.CLOSED
        if not was_ours:
            return cls.PEER_WROTE
        return cls.POWER_CUT if was_restarted else cls.KILLED


def trust_of_points(points: Points, partition: int, slates: Slates, *, was_ours: bool) -> Trust:
    """For a journal, and a partition of a stream, after what was staged was put back.

    `was_ours`: the lock, or the owner file, is as we left it.
    """
    # Where our owner file was gone once, a peer may have written, of whose bytes no checksum tells.
    is_ours = was_ours and not points.was_left
    is_restarted = is_ours and slates.was_restarted
    # Where a process was killed, points that are not there have been removed.
    was_closed = points.was_closed(partition, was_killed=slates.was_killed and not is_restarted)
    return Trust.after(was_ours=is_ours, was_restarted=is_restarted, was_closed=was_closed)
