# A member of a group: its claims of partitions, and their committed offsets. Law: a committed offset is
# durable, or given up, before its claim is released. They are driven as log/committed_offsets.py says.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from diskq.engine.log.committed_offsets import CommittedOffsets
from diskq.engine.stream.committed_offset import GroupOffset
from diskq.engine.stream.groups import Claim, ConsumerGroup
from diskq.options import StreamConsumerOptions

__all__ = ["Membership"]


class Membership(CommittedOffsets):
    """One member of a group, and the partitions that it has claimed. For one thread at a time."""

    def __init__(
        self, group: ConsumerGroup, options: StreamConsumerOptions, clock: Callable[[], float] | None = None
    ) -> None:
        super().__init__(group.name)
        self.options = options
        self._group = group
        self._clock = clock
        self._has: dict[int, tuple[Claim, GroupOffset]] = {}

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

    def committed_offset(self, partition: int) -> GroupOffset | None:
        """Return the committed offset of a partition that this member has claimed, else None."""
        had = self._has.get(partition)
        return had[1] if had else None

    def close(self) -> None:
        """Sync all committed offsets, and release the claims. Idempotent.

        Raises DiskFullError if there was no space for the last commits, and StorageFailedError; all is
        released then, too.
        """
        had = list(self._has.values())
        self._has.clear()
        self._moved.clear()
        with contextlib.ExitStack() as stack:  # all of them, whatever one of them raises
            for claim, committed_offset in had:
                stack.callback(claim.release)
                stack.callback(committed_offset.close)

    def _committed_offsets(self) -> Iterable[GroupOffset]:
        return [committed_offset for _, committed_offset in self._has.values()]
