# The offsets of a named reader, one in each journal that it reads. They are driven as
# log/committed_offsets.py says.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from diskq.engine.journal.reader_offset import JournalCommittedOffset
from diskq.engine.log.committed_offsets import CommittedOffsets
from diskq.options import JournalScannerOptions
from diskq.storage.fs import FileSystem
from diskq.storage.repairs import Repair

__all__ = ["ReaderOffsets"]


class ReaderOffsets(CommittedOffsets):
    """The offsets of the reader `name`, in journals that have numbers. For one thread at a time."""

    def __init__(
        self, name: str, options: JournalScannerOptions, clock: Callable[[], float] | None = None
    ) -> None:
        super().__init__(name)
        self.options = options
        self._clock = clock
        self._has: dict[int, JournalCommittedOffset] = {}

    def claim(self, number: int, path: str, from_newest: bool, fs: FileSystem) -> JournalCommittedOffset:
        """Claim the reader's offset in the journal at `path`. Raises as `JournalCommittedOffset`."""
        offset = JournalCommittedOffset(
            path,
            self.name,
            "newest" if from_newest else "oldest",
            sync_every=self.options.sync_every,
            sync_timeout=self.options.sync_timeout,
            fs=fs,
            clock=self._clock,
        )
        self._has[number] = offset
        self.moved(offset)
        return offset

    def committed_offset(self, number: int) -> JournalCommittedOffset | None:
        """Return the offset in the journal of that number; None if it is not read."""
        return self._has.get(number)

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """What was wrong with them when they were opened."""
        return tuple(repair for offset in self._has.values() for repair in offset.repairs)

    def close(self) -> None:
        """Sync all, and release them. Idempotent.

        Raises DiskFullError if there was no space for the last commits, and StorageFailedError; all are
        released then, too.
        """
        had = list(self._has.values())
        self._has.clear()
        self._moved.clear()
        with contextlib.ExitStack() as stack:  # all of them, whatever one of them raises
            for offset in had:
                stack.callback(offset.close)

    def _committed_offsets(self) -> Iterable[JournalCommittedOffset]:
        return list(self._has.values())
