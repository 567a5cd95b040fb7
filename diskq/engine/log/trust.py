# What recovery trusts. Law: it is decided once in each open, here, from what the last writer left; no
# format's recovery asks again which program wrote last, or whether the machine was restarted.
#
#   CLOSED      All that diskq wrote is durable, up to the recovery point, and nothing after it is diskq's.
#               Any later bytes are another program's: their framing is believed.
#   KILLED      The machine ran on, so the page cache survived: framing is believed. What comes after the
#               recovery point may not be durable, and is synced again.
#   POWER_CUT   After the recovery point only bytes with an agreeing checksum are believed: there may be zeros
#               after a good length.
#   PEER_WROTE  Another program has written since diskq did, and its bytes have no checksums: framing is
#               believed, also after a power cut.
#
# The format defines the recovery point: journals and streams have points (recovery_points.py), a queue has
# its metadata, a priority store a point (priority/files.py). Before it everything that diskq wrote is
# durable.

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from diskq.engine.log.recovery_points import RecoveryPoints
from diskq.storage.fs import FileSystem
from diskq.storage.log.entries import Part
from diskq.storage.log.format import holds_all, holds_nothing
from diskq.storage.state import LastWriter, StateFiles, read_state
from diskq.storage.write_ahead_log import WriteAheadLogs, was_restarted

__all__ = ["QueueUse", "Trust", "trust_of_points", "trust_of_store"]


class Trust(enum.Enum):
    """How far the bytes after the recovery point may be believed; see the head of this module."""

    CLOSED = enum.auto()
    KILLED = enum.auto()
    POWER_CUT = enum.auto()
    PEER_WROTE = enum.auto()

    @classmethod
    def after(cls, *, was_ours: bool, was_restarted: bool, was_closed: bool = False) -> Trust:
        """Return the trust. `was_ours`: diskq was the last to write; `was_restarted`: the machine was, since.

        `was_closed`: the recovery point says that nothing that diskq wrote comes after it.
        """
        if was_closed:
            return cls.CLOSED
        if not was_ours:
            return cls.PEER_WROTE
        return cls.POWER_CUT if was_restarted else cls.KILLED


def trust_of_points(points: RecoveryPoints, partition: int, wals: WriteAheadLogs, *, was_ours: bool) -> Trust:
    """Return the trust for a journal, or a partition of a stream, after what was staged was put back.

    `was_ours`: the lock, or the owner file, is as diskq left it.
    """
    # If diskq's owner file was ever gone, a peer may have written, without checksums.
    is_ours = was_ours and not points.was_left
    is_restarted = is_ours and wals.was_restarted
    # If a process was killed and there are no points, their file has been removed.
    was_closed = points.was_closed(partition, was_killed=wals.was_killed and not is_restarted)
    return Trust.after(was_ours=is_ours, was_restarted=is_restarted, was_closed=was_closed)


class ClosedPoint(Protocol):
    """A priority store's recovery point; `closed` is where its log ended when it was closed, or None."""

    @property
    def closed(self) -> object: ...


def trust_of_store(fs: FileSystem, point: ClosedPoint | None, previous: LastWriter | None) -> Trust:
    """Return the trust for a priority store; one without a point was written by TaskFlux.

    `previous` signed its lock last. None, if there was none or it was not looked up, counts as a power cut.
    """
    is_restarted = was_restarted(fs, previous) is not False
    was_closed = point is not None and point.closed is not None
    return Trust.after(was_ours=point is not None, was_restarted=is_restarted, was_closed=was_closed)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueUse:
    """How a queue was used last, as far as the lock and the staging area show before its files are read."""

    was_ours: bool
    """True if diskq has had it before."""
    was_restarted: bool
    """True if the machine was restarted since then."""
    was_killed: bool
    """True if a process that staged messages ended without closing it, and the machine ran on until then."""
    has_all_checksums: bool
    """True if checksums cover all that was written, except what was staged."""
    was_closed: bool = False
    """True if diskq closed it, and then everything that it wrote was durable."""
    was_unlogged: bool = False
    """True if there was no space for a write-ahead log, so that the last messages may have no checksums."""
    staged: Part | None = None
    """The staged messages that are already in their files, with or without checksums."""

    @classmethod
    def before(cls, previous: LastWriter | None, wals: WriteAheadLogs, *, never_empty: bool) -> QueueUse:
        """Return it for an open, after what was staged was put back. `never_empty`: no message is empty."""
        was_killed = wals.was_killed and not wals.is_resumed
        was_closed = previous is not None and previous.is_closed
        are_complete = never_empty or (was_killed and not wals.repairs)
        return cls(
            was_ours=previous is not None,
            was_restarted=wals.was_restarted,
            was_killed=was_killed,
            has_all_checksums=are_complete or was_closed,
            was_closed=was_closed,
            was_unlogged=wals.was_unlogged,
            staged=wals.restored.get(0),
        )

    @classmethod
    def seen(cls, fs: FileSystem, files: StateFiles, wal: str, *, is_free: bool) -> QueueUse:
        """Return it for a process that only looks.

        `is_free`: certainly no process has the queue, so that its write-ahead log is complete.
        """
        left = read_state(fs, files)
        is_restarted = was_restarted(fs, left, [wal]) is True
        is_resumed = left is not None and left.has_restarted and not is_restarted
        is_named = left is not None and bool(left.staged or left.recovering_since)
        are_complete = left is not None and (left.is_closed or left.never_empty)
        return cls(
            was_ours=left is not None,
            was_restarted=is_restarted,
            was_killed=(is_named or not holds_nothing(fs, wal)) and not is_resumed,
            has_all_checksums=are_complete or (is_free and holds_all(fs, wal)),
            was_closed=left is not None and left.is_closed,
            # Beside its owner the checksums of the last messages may be on their way.
            was_unlogged=not is_free or (left is not None and left.is_unlogged),
        )

    def trust(self, *, is_foreign: bool) -> Trust:
        """Return the trust. `is_foreign`: the metadata is another program's.

        A queue that was closed is treated as one that was killed and has all checksums, also after a restart:
        if its metadata is gone, the checksums show how much there was.
        """
        was_restarted = self.was_restarted and not self.was_closed
        return Trust.after(was_ours=self.was_ours and not is_foreign, was_restarted=was_restarted)
