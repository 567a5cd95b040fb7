# Who has one stream, or journal, open in one Trio run: they need no file system to hear of each other.
#
# Law: a reader that waits is called before the writer's `send` returns, with what was sent in the
# page cache.

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

import trio

from diskq.storage.fs import FileSystem

__all__ = ["Beside", "NotifiedReader", "Notifier", "NotifyingWriter", "notifier_of"]


class NotifyingWriter(Protocol):
    def live(self, partition: int) -> Any:
        """Where a partition is written, for readers of its kind; None where it is not written to."""


class NotifiedReader(Protocol):
    def look(self) -> None:
        """There may be more to read. Does not raise."""

    def look_at(self, partition: int) -> None:
        """There is more to read in that partition, and nothing new in others. Does not raise."""

    def writer_came(self, writer: NotifyingWriter) -> None: ...

    def writer_left(self) -> None:
        """All that it wrote is in the files, rows and all, or never will be."""


class Beside(Protocol):
    """What a reader asks of its neighbours."""

    @property
    def writer(self) -> NotifyingWriter | None: ...

    def reader_comes(self, reader: NotifiedReader) -> None: ...

    def reader_leaves(self, reader: NotifiedReader) -> None: ...

    def begin_to_wait(self, reader: NotifiedReader) -> None: ...

    def end_waiting(self, reader: NotifiedReader) -> None: ...


class Notifier:
    """The writer and the readers of one stream or journal, as far as they are in this run."""

    def __init__(self, place: Hashable, all_of_run: dict[Hashable, Notifier]) -> None:
        self._place = place
        self._all_of_run = all_of_run
        self._readers: dict[NotifiedReader, None] = {}
        self.waiting: dict[NotifiedReader, None] = {}
        """Those to be called when something was written: `tell`."""
        self._writer: NotifyingWriter | None = None

    @property
    def writer(self) -> NotifyingWriter | None:
        """Who writes; None: nobody in this run."""
        return self._writer

    # --- for the writer ---------------------------------------------------------------------------

    def writer_comes(self, writer: NotifyingWriter) -> None:
        self._writer = writer
        for reader in list(self._readers):
            reader.writer_came(writer)

    def writer_leaves(self) -> None:
        """Idempotent."""
        if self.writer is not None:
            self._writer = None
            for reader in list(self._readers):
                reader.writer_left()
            self._end_if_empty()

    def tell(self, partition: int | None = None) -> None:
        """Something was written, in that partition only if it is given: call those who wait."""
        for reader in list(self.waiting):
            if partition is None:
                reader.look()
            else:
                reader.look_at(partition)

    # --- for readers ------------------------------------------------------------------------------

    def reader_comes(self, reader: NotifiedReader) -> None:
        self._readers[reader] = None
        if self.writer is not None:
            reader.writer_came(self.writer)

    def reader_leaves(self, reader: NotifiedReader) -> None:
        """Idempotent."""
        self._readers.pop(reader, None)
        self.waiting.pop(reader, None)
        self._end_if_empty()

    def begin_to_wait(self, reader: NotifiedReader) -> None:
        """From now on `look` is called after each write. Look once more after this."""
        self.waiting[reader] = None

    def end_waiting(self, reader: NotifiedReader) -> None:
        self.waiting.pop(reader, None)

    def _end_if_empty(self) -> None:
        if self.writer is None and not self._readers:
            self._all_of_run.pop(self._place, None)


def notifier_of(fs: FileSystem, path: str) -> Notifier:
    """Those of the stream or journal at `path`, which is there. Call it in a Trio task. Raises OSError."""
    place = fs.place_of(path)
    all_of_run = _notifier.get(None)
    if all_of_run is None:
        all_of_run = {}
        _notifier.set(all_of_run)
    if place not in all_of_run:
        all_of_run[place] = Notifier(place, all_of_run)
    return all_of_run[place]


_notifier: trio.lowlevel.RunVar[dict[Hashable, Notifier] | None] = trio.lowlevel.RunVar(
    "diskq neighbours", None
)
