"""The messages of streams and journals, and a spool's batches.

Messages are compiled, as one is made for each record that is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

from diskq._native.core.message import NULL_TIMESTAMP, JournalMessage, Message, Position

__all__ = ["NULL_TIMESTAMP", "Batch", "JournalMessage", "Message", "Position"]


class Batch(Sequence[bytes]):
    """Messages that a spool delivers together, oldest first. Immutable."""

    __slots__ = ("_bodies", "_find_ids", "_ids", "attempts")

    attempts: int
    """The number of this try: 1 for the first. The count goes on after a restart."""

    def __init__(
        self, bodies: Sequence[bytes], attempts: int, find_ids: Callable[[], tuple[str, ...]]
    ) -> None:
        """`find_ids` is called when `ids` is read for the first time."""
        self._bodies = bodies
        self._find_ids = find_ids
        self._ids: tuple[str, ...] | None = None
        self.attempts = attempts

    @property
    def ids(self) -> tuple[str, ...]:
        """A unique id for each message: the same in each try, also after a restart.

        A destination that remembers them can drop the messages that it gets twice.
        """
        if self._ids is None:
            self._ids = self._find_ids()
        return self._ids

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        return self._bodies[index]

    def __len__(self) -> int:
        return len(self._bodies)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._bodies)

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} messages, attempt {self.attempts}>"
