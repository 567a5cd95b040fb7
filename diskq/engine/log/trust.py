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
# What the recovery point is, is the format's: journals and streams have points (recovery_points.py), a queue
# has its metadata, a store a point (priority/files.py). Before it everything of ours is durable.

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from diskq.engine.log.recovery_points import RecoveryPoints
from diskq.storage.fs import FileSystem
from diskq.storage.lock import Holder, read_holder
from diskq.storage.write_ahead_log import Waiting, holds_all, tells_nothing
from diskq.storage.write_ahead_logs import WriteAheadLogs, was_restarted

__all__ = ["QueueUse", "Trust", "trust_of_points", "trust_of_store"]


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


def trust_of_points(points: RecoveryPoints, partition: int, wals: WriteAheadLogs, *, was_ours: bool) -> Trust:
    """For a journal, and a partition of a stream, after what was staged was put back.

    `was_ours`: the lock, or the owner file, is as we left it.
    """
    # Where our owner file was gone once, a peer may have written, of whose bytes no checksum tells.
    is_ours = was_ours and not points.was_left
    is_restarted = is_ours and wals.was_restarted
    # Where a process was killed, points that are not there have been removed.
    was_closed = points.was_closed(partition, was_killed=wals.was_killed and not is_restarted)
    return Trust.after(was_ours=is_ours, was_restarted=is_restarted, was_closed=was_closed)


class ClosedPoint(Protocol):
    """A store's recovery point; `closed` is where its log ended when it was closed, or None."""

    @property
    def closed(self) -> object: ...


def trust_of_store(fs: FileSystem, point: ClosedPoint | None, previous: Holder | None) -> Trust:
    """For a store, of which TaskFlux has written where there is no point.

    `previous` signed its lock last. None, where nobody did or nobody asked, is as after a power cut.
    """
    is_restarted = was_restarted(fs, previous) is not False
    was_closed = point is not None and point.closed is not None
    return Trust.after(was_ours=point is not None, was_restarted=is_restarted, was_closed=was_closed)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueUse:
    """How a queue was used last, as the lock and the staging area tell before its files are read."""

    was_ours: bool
    """Has diskq had it before?"""
    was_restarted: bool
    """Was the machine, since then?"""
    was_killed: bool
    """Did a process that staged messages end without closing it?"""
    has_all_checksums: bool
    """Do checksums cover all that was written, but for what was staged?"""
    staged: Waiting | None = None
    """The staged messages that are where they belong, with or without checksums."""

    @classmethod
    def before(cls, previous: Holder | None, wals: WriteAheadLogs, *, never_empty: bool) -> QueueUse:
        """For who opens it, after what was staged was put back. `never_empty`: no message is empty."""
        is_told = never_empty or (wals.was_killed and not wals.repairs)
        return cls(
            was_ours=previous is not None,
            was_restarted=wals.was_restarted,
            was_killed=wals.was_killed,
            has_all_checksums=is_told or (previous is not None and previous.is_closed),
            staged=wals.restored.get(0),
        )

    @classmethod
    def seen(cls, fs: FileSystem, lock: str, wal: str, *, is_free: bool) -> QueueUse:
        """For who only looks. `is_free`: no process has it, for certain, so that its write-ahead log is
        complete.
        """
        holder = read_holder(fs, lock)
        is_named = holder is not None and bool(holder.staged or holder.recovering_since)
        is_told = holder is not None and (holder.is_closed or holder.never_empty)
        return cls(
            was_ours=holder is not None,
            was_restarted=was_restarted(fs, holder, [wal]) is True,
            was_killed=is_named or not tells_nothing(fs, wal),
            has_all_checksums=is_told or (is_free and holds_all(fs, wal)),
        )

    def trust(self, *, is_foreign: bool) -> Trust:
        """`is_foreign`: the metadata is another program's.

        A queue that was closed is as one that was killed and has all checksums: where its metadata is gone,
        they tell how much there was.
        """
        return Trust.after(was_ours=self.was_ours and not is_foreign, was_restarted=self.was_restarted)

    @property
    def has_all_files(self) -> bool:
        """Should all files be there that the killed process had? A power cut may have taken some."""
        return self.was_killed and not self.was_restarted
