# Many markers, driven as one engine. Law: all that are due are replaced by one barrier, so whoever drives
# engines drives these.

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn, Self

from diskq.engine.offsets import Marker, MarkerTicket, joined
from diskq.errors import DiskFullError, StorageFailedError
from diskq.storage.barrier import Barrier

__all__ = ["Markers", "MarkersTicket"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersTicket:
    """A barrier over several markers, taken and not yet paid."""

    barrier: Barrier
    tickets: tuple[tuple[Marker, MarkerTicket], ...]
    left_out: DiskFullError | None = None


class Markers:
    """Markers that one commits to. For one thread at a time. A subclass says which they are.

    They are driven as the log of an engine is: see log/writer.py.
    """

    gates = ()
    is_flushed = True
    is_half_unsynced = False

    def __init__(self, name: str) -> None:
        self.name = name
        self._failure: StorageFailedError | None = None

    @abstractmethod
    def _markers(self) -> Iterable[Marker]:
        """Those that there are now."""

    @property
    def log(self) -> Self:
        return self

    def note(self) -> bool:
        """Is a sync due?"""
        return self._failure is None and any(marker.note() for marker in self._markers())

    def deadline(self) -> float:
        """When one is due at the latest."""
        return min((marker.deadline() for marker in self._markers()), default=float("inf"))

    def flush(self) -> None:
        """Nothing waits to be written but what a barrier writes."""

    def prepare(self, *, full: bool) -> MarkersTicket:
        """A barrier for all commits so far. Have it executed; then `complete` it, or `fail`."""
        if self._failure is not None:
            raise self._failure
        taken = ((marker, marker.take_ticket()) for marker in self._markers())
        tickets = tuple((marker, ticket) for marker, ticket in taken if ticket is not None)
        return MarkersTicket(barrier=joined(ticket for _, ticket in tickets), tickets=tickets)

    def complete(self, sync: MarkersTicket, is_replaced: bool) -> None:
        """It was executed."""
        for marker, own in sync.tickets:
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
