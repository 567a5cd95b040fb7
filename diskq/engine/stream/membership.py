# A member of a group: its claims of partitions, and their committed offsets. Law: a committed offset is
# written, or given up, before its claim is released. They are driven as log/committed_offsets.py says.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from diskq.engine.log.committed_offsets import CommittedOffsets
from diskq.engine.stream.committed_offset import GroupOffset
from diskq.engine.stream.group_members import GroupMembers
from diskq.engine.stream.groups import Claim, ConsumerGroup
from diskq.options import StreamConsumerOptions
from diskq.storage.log_events import Log

__all__ = ["Membership"]

log = Log("offsets")

# Claim intervals after which a member that still has less than its share tells who keeps it.
_PATIENCE = 10


class Membership(CommittedOffsets):
    """One member of a group, and the partitions that it has claimed. For one thread at a time."""

    def __init__(
        self,
        group: ConsumerGroup,
        options: StreamConsumerOptions,
        clock: Callable[[], float] | None = None,
        *,
        members: GroupMembers | None = None,
    ) -> None:
        """`members`: those with whom it shares all partitions; None: it claims all that it is asked to."""
        super().__init__(group.name)
        self.options = options
        self._group = group
        self._clock = clock
        self._has: dict[int, tuple[Claim, GroupOffset]] = {}
        self._members = members
        self._short_since: float | None = None  # it has fewer than its share since then
        self._is_told = False

    def claim(self, partition: int) -> GroupOffset | None:
        """Claim a partition and open its committed offset; None if another member has it.

        Raises DiskFullError, OSError.
        """
        if partition in self._has:
            return self._has[partition][1]
        claim = self._group.claim(partition)
        if claim is None:
            return None
        try:
            committed_offset = self._group.committed_offset(
                partition,
                sync_every=self.options.sync_every,
                sync_timeout=self.options.sync_timeout,
                clock=self._clock,
            )
        except BaseException:
            claim.release()
            raise
        self._has[partition] = (claim, committed_offset)
        self.moved(committed_offset)
        return committed_offset

    def share(self, partitions: int) -> int:
        """Return this member's share of `partitions`, a number of them, as it is now. Raises OSError."""
        return partitions if self._members is None else self._members.share(partitions)

    @property
    def claimed(self) -> int:
        """The number of partitions that it has."""
        return len(self._has)

    def release(self, partition: int) -> None:
        """Give up a partition that `may_release`; the next claimant continues after its last commit."""
        claim, committed_offset = self._has.pop(partition)
        self._moved.pop(committed_offset, None)
        try:
            committed_offset.abandon()
        finally:
            claim.release()

    def may_release(self, partition: int, position: int, start: int) -> bool:
        """True if nothing of the partition is in hand, and its last commit survives this process.

        The member reads on at `position`, and has begun at `start`.
        """
        committed_offset = self._has[partition][1]
        begun = start if committed_offset.next_offset is None else committed_offset.next_offset
        return position <= begun and committed_offset.is_written and committed_offset.is_idle

    def note_shortage(self, share: int, partitions: Iterable[int]) -> None:
        """Log which processes hold partitions of this member's share, once it has waited long for them."""
        now = self._group.now()
        if len(self._has) >= share:
            self._short_since, self._is_told = None, False
        elif self._short_since is None:
            self._short_since = now
        elif not self._is_told and now >= self._short_since + _PATIENCE * self.options.claim_interval:
            self._is_told = True
            kept = [index for index in partitions if index not in self._has]
            holders = sorted({self._group.holder(index) for index in kept})
            log.report(
                "share_kept",
                "group %r: %d of the %d partitions that this member should have are kept by %s",
                self.name,
                share - len(self._has),
                share,
                ", ".join(holders),
                path=self._group.path,
                count=share - len(self._has),
            )

    def committed_offset(self, partition: int) -> GroupOffset | None:
        """Return the committed offset of a partition that this member has claimed, else None."""
        had = self._has.get(partition)
        return had[1] if had else None

    def close(self) -> None:
        """Sync all committed offsets, and release the claims. Idempotent.

        Raises DiskFullError if there was no space for the last commits, and StorageFailedError; all is
        released then, too.
        """
        if self._members is not None:
            self._members.close()
        had = list(self._has.values())
        self._has.clear()
        self._moved.clear()
        with contextlib.ExitStack() as stack:  # all of them, whatever one of them raises
            for claim, committed_offset in had:
                stack.callback(claim.release)
                stack.callback(committed_offset.close)

    def _committed_offsets(self) -> Iterable[GroupOffset]:
        return [committed_offset for _, committed_offset in self._has.values()]
