# The barrier behind a call that has done its work. Law: what was accepted is in, so a full disk that leaves
# some of it waiting in memory is no error of this call: whoever repeated it would have the message twice.
# `sync`, `close` and the next message that has to be written tell of it.

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from diskq.options import Durability

__all__ = ["sync_if_due"]

T = TypeVar("T", covariant=True)


class TakesTickets(Protocol[T]):
    """An engine that is synced: its policy, and its barriers."""

    def note(self) -> bool: ...

    def prepare(self, *, full: bool) -> T: ...


def sync_if_due(
    engine: TakesTickets[T], pay: Callable[[T], object], durability: Durability = "written"
) -> bool:
    """A barrier, paid with `pay`, if the engine's policy or the `durability` of what was accepted wants one.

    True: the policy did. Raises StorageFailedError, and never DiskFullError.
    """
    is_due = engine.note()
    if is_due or durability == "synced":
        pay(engine.prepare(full=is_due))
    return is_due
