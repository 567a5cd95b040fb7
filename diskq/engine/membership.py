# What a member of a group has: claims of partitions, and the markers in which it says how far it has come.
#
# Law: a marker is durable, or given up, before its claim is released. All markers that are due are
# replaced by one barrier, as an engine's files are; so whoever drives engines drives this one.

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

from diskq.engine.groups import Claim, ConsumerGroup
from diskq.engine.offsets import MarkerTicket, OffsetMarker, joined
from diskq.errors import DiskFullError, StorageFailedError
from diskq.options import ConsumerOptions
from diskq.storage.barrier import Barrier

__all__ = ["GroupTicket", "Membership"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTicket:
    """A barrier over several markers, taken and not yet paid."""

    barrier: Barrier
    tickets: tuple[tuple[OffsetMarker, MarkerTicket], ...]
    left_out: DiskFullError | None = None


class Membership:
    """One member of a group, and the partitions that it has claimed. For one thread at a time."""

    gates = ()
    is_flushed = True

    def __init__(
        self, group: ConsumerGroup, options: ConsumerOptions, clock: Callable[[], float] | None = None
    ) -> None:
        self.name = group.name
        self.options = options
        self._group = group
        self._clock = clock
        self._has: dict[int, tuple[Claim, OffsetMarker]] = {}
        self._failure: StorageFailedError | None = None

    def claim(self, partition: int) -> OffsetMarker | None:
        """Have a partition to ourselves, and know where to go on; None where another member has it.

        Raises DiskFullError, OSError.
        """
        if partition in self._has:
            return self._has[partition][1]
        claim = self._group.claim(partition)
        if claim is None:
            return None
        try:
            marker = self._group.marker(
                partition,
                sync_every=self.options.sync_every,
                sync_timeout=self.options.sync_timeout,
                clock=self._clock,
            )
        except BaseException:
            claim.release()
            raise
        self._has[partition] = (claim, marker)
        return marker

    def marker(self, partition: int) -> OffsetMarker | None:
        """Of a partition that we have; None: we have not."""
        had = self._has.get(partition)
        return had[1] if had else None

    def close(self) -> None:
        """Sync all markers, and release what was claimed. Idempotent.

        Raises DiskFullError where the last commits found no room, and StorageFailedError; all is released
        then, too.
        """
        failed: DiskFullError | StorageFailedError | None = None
        for claim, marker in self._has.values():
            try:
                marker.close()
            except (DiskFullError, StorageFailedError) as failure:
                failed = failed or failure
            finally:
                claim.release()
        self._has.clear()
        if failed is not None:
            raise failed

    # --- for who drives it ------------------------------------------------------------------------

    def note(self) -> bool:
        """Is a sync due?"""
        return self._failure is None and any(marker.note() for marker in self._markers())

    def deadline(self) -> float:
        """When one is due at the latest."""
        return min((marker.deadline() for marker in self._markers()), default=float("inf"))

    def flush(self) -> None:
        """Nothing waits to be written but what a barrier writes."""

    def take_ticket(self, *, with_metadata: bool) -> GroupTicket:
        """A barrier for all commits so far. Pay it; then `mark` it, or `fail`."""
        if self._failure is not None:
            raise self._failure
        taken = ((marker, marker.take_ticket()) for marker in self._markers())
        tickets = tuple((marker, ticket) for marker, ticket in taken if ticket is not None)
        return GroupTicket(barrier=joined(ticket for _, ticket in tickets), tickets=tickets)

    def mark(self, ticket: GroupTicket, is_replaced: bool) -> None:
        """The barrier is paid."""
        for marker, own in ticket.tickets:
            marker.mark(own, is_replaced)

    def fail(self, failure: BaseException) -> NoReturn:
        """A promise of the disk was broken: nothing is promised from here on."""
        for marker in self._markers():
            try:
                marker.fail(failure)
            except StorageFailedError as failed:
                self._failure = failed
        if self._failure is None:
            self._failure = StorageFailedError(self.name)
        raise self._failure from failure

    def _markers(self) -> Iterable[OffsetMarker]:
        return [marker for _, marker in self._has.values()]
