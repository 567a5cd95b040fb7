# The loop of committed offsets. Law: commits become durable, and only a caller of `sync` waits for that.

from __future__ import annotations

from typing import Protocol, TypeVar

from diskq.channels.core.commit_loop import CommitLoop, Engine
from diskq.channels.core.sync_executor import SyncExecutor
from diskq.engine.log.committed_offset import CommittedOffset
from diskq.engine.log.sync import Sync
from diskq.errors import DiskFullError, FullError
from diskq.storage.barrier import NO_ROOM

__all__ = ["OffsetLoop"]


class Offsets(Engine, Protocol):
    """Committed offsets that are driven as one engine."""

    def moved(self, committed_offset: CommittedOffset) -> None: ...


E = TypeVar("E", bound=Offsets)


class OffsetLoop(CommitLoop[E]):
    """Committed offsets, and the task that syncs them."""

    def __init__(self, engine: E, executor: SyncExecutor, path: str) -> None:
        self._path = path
        super().__init__(engine, executor)

    def move(
        self,
        committed_offset: CommittedOffset,
        offset: int | None,
        *,
        seek: bool = False,
        is_written: bool = True,
    ) -> None:
        """Commit `offset`; the next sync makes it durable. Raises what `CommittedOffset.move` does."""
        self.engine.moved(committed_offset)
        if committed_offset.move(offset, seek=seek, is_written=is_written) or not self._has_deadline:
            self._after()

    def _after(self) -> None:
        if self._failure is None and not self.is_closing:
            self._open_gates()

    def _narrow_gates(self) -> None:
        """Do nothing: this loop has no gates."""

    def _not_durable(self, sync: Sync, is_replaced: bool) -> FullError | None:
        return None if is_replaced else DiskFullError(self._path, f"{NO_ROOM}: commits are not durable")
