# Receivers that commit their position: a consumer for its group, a scanner for a named reader.
#
# Law: a commit moves only forward, a `seek` moves anywhere; both are durable within `sync_timeout`, and only
# a caller of `sync` waits for the disk. A subclass defines which value is committed, and whether it can be.

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from trio.lowlevel import enable_ki_protection

from diskq.channels.core.offset_loop import OffsetLoop
from diskq.channels.core.receiving import TailReceiver
from diskq.channels.core.tail import Tail, TailPart
from diskq.engine.log.committed_offset import CommittedOffset
from diskq.engine.log.reader import MessagePlace, Sized, places_to_commit
from diskq.errors import OffsetOutOfRangeError, StorageFailedError
from diskq.options import Durability, checked_durability

__all__ = ["CommittingReceiver"]

M = TypeVar("M", bound=Sized)


class CommittingReceiver(TailReceiver[M]):
    """Receives from a tail, and commits what was processed if it has a group or a reader's name."""

    _no_commits = ""
    """The error text for a receiver without a group or a name."""

    def __init__(self, tail: Tail, commits: OffsetLoop[Any] | None, *, autocommit: bool) -> None:
        self._commits = commits
        super().__init__(tail, autocommit=autocommit)

    # --- for the subclass -------------------------------------------------------------------------

    @abstractmethod
    def _value_to_commit(self, next_offset: int) -> int | None:
        """Return the value to commit when `next_offset` is the next message to process; None: nothing."""

    @abstractmethod
    def _not_here(self, index: int) -> str:
        """Return the error text for a partition or journal in which this receiver cannot commit."""

    # --- committing -------------------------------------------------------------------------------

    @enable_ki_protection
    async def commit(self, *processed: MessagePlace, durability: Durability = "written") -> None:
        """Commit all messages up to and including these, each in its partition or journal, as processed.

        The commit is the group's, or the named reader's. Without arguments it commits all that was received.
        It moves only forward. Returns when the commit is `written`: it survives a kill of the process, and is
        `synced` within `sync_timeout`, when the block is left, or after `sync`. With `durability="synced"` it
        returns when that is so; with "memory" it is written with the next sync. `Cancelled` means: nothing
        was committed. Raises ValueError if there is no group and no name, or if
        another member has the partition; trio.BrokenResourceError after the disk failed.
        """
        await self._begin()
        checked_durability(durability)
        moved: list[CommittedOffset] = []
        if not processed:
            moved += self._commit_parts(self._tail.moved_parts, durability)
            self._tail.settle_moved()
        for index, offset in places_to_commit(processed, "received"):
            moved.append(self._commit_value(index, self._value_to_commit(offset + 1), durability))
        # Where no note can be written (a full disk), a commit is written by a sync.
        if durability == "synced" or (durability == "written" and not all(each.is_written for each in moved)):
            await self._committing().barrier(with_metadata=True)

    @enable_ki_protection
    async def sync(self) -> None:
        """Return when all commits are on stable storage. Raises as `commit`, and DiskFullError.

        `Cancelled` is raised only before the sync begins; the commits stay.
        """
        await self._begin()
        await self._committing().barrier(with_metadata=True)

    def _committed(self, index: int) -> int | None:
        """Return the committed value; None: nothing is committed, or nothing can be."""
        committed_offset = self._commits.engine.committed_offset(index) if self._commits is not None else None
        return committed_offset.committed if committed_offset is not None else None

    def _commit_received(self) -> None:
        self._commit_parts(self._unprocessed)
        self._unprocessed.clear()

    def _commit_block(self, parts: Iterable[TailPart]) -> None:
        if self._commits is not None:
            self._check()
            self._commit_parts(parts)

    def _commit_parts(
        self, parts: Iterable[TailPart], durability: Durability = "written"
    ) -> list[CommittedOffset]:
        self._committing()
        values = [(part.index, self._value_to_commit(part.position)) for part in parts]
        return [self._commit_value(index, value, durability) for index, value in values if value is not None]

    def _check_commits(self) -> None:
        if self._commits is not None:
            self._commits.check()

    def _commit_value(
        self, index: int, value: int | None, durability: Durability = "written", *, seek: bool = False
    ) -> CommittedOffset:
        commits = self._committing()
        committed_offset: CommittedOffset | None = commits.engine.committed_offset(index)
        if committed_offset is None:
            raise ValueError(self._not_here(index))
        try:
            commits.move(committed_offset, value, seek=seek, is_written=durability != "memory")
        except StorageFailedError as failure:
            commits.broke(failure)
        return committed_offset

    def _committing(self) -> OffsetLoop[Any]:
        if self._commits is None:
            raise ValueError(self._no_commits)
        return self._commits

    # --- seeking ----------------------------------------------------------------------------------

    async def _go(self, part: TailPart, start: object, find: Callable[[], int]) -> None:
        """Continue at `start`, which `find` looks up in a thread. The commit moves there as well."""
        while True:
            offset = await self._tail.event_loop.run_in_thread(find)
            self._check()
            try:
                part.reader.seek(offset)
            except OffsetOutOfRangeError:
                if isinstance(start, int):
                    raise
                continue  # that offset was removed meanwhile: `start` now means a later one
            break
        self._tail.moved(part)
        self._unprocessed.discard(part)
        if self._commits is not None:
            self._commit_value(part.index, self._value_to_commit(offset), seek=True)
