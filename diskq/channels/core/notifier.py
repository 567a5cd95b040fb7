# The in-process notifier: the writer and the readers of one stream or journal in one run of an event loop
# notify each other without the file system.
#
# Law: a waiting reader is called before the writer's `send` returns; the message is in the page cache then.

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Protocol

from diskq.channels.core.event_loops.seam import running_event_loop
from diskq.storage.fs import FileSystem

__all__ = [
    "NotifiedReader",
    "Notifier",
    "NotifyingWriter",
    "ReaderNotifier",
    "WrittenPartitions",
    "notifier_of",
]


class WrittenPartitions(Protocol):
    """The partitions that a writer in this run may have written to."""

    def take(self) -> Iterable[int]:
        """Return those since the last call."""

    def close(self) -> None:
        """Note no more. Idempotent."""


class NotifyingWriter(Protocol):
    def changes(self) -> WrittenPartitions | None:
        """Return a new object that notes the partitions written to; None: there is only one partition."""

    def live(self, partition: int) -> Any:
        """Return the live end of a partition for readers of its kind; None if it is not written to."""


class NotifiedReader(Protocol):
    def look(self) -> None:
        """Look for new messages in all partitions. Does not raise."""

    def look_at(self, partition: int) -> None:
        """Look for new messages in that partition; there are none in others. Does not raise."""

    def writer_came(self, writer: NotifyingWriter) -> None: ...

    def writer_left(self) -> None:
        """Go by the files from now on: all it wrote is there, with index entries, or never will be."""


class ReaderNotifier(Protocol):
    """The notifier as a reader sees it."""

    @property
    def writer(self) -> NotifyingWriter | None: ...

    def reader_comes(self, reader: NotifiedReader) -> None: ...

    def reader_leaves(self, reader: NotifiedReader) -> None: ...

    def begin_to_wait(self, reader: NotifiedReader) -> None: ...

    def end_waiting(self, reader: NotifiedReader) -> None: ...


class Notifier:
    """The writer and the readers of one stream or journal in this run."""

    def __init__(self, place: Hashable, all_of_run: dict[Hashable, Notifier]) -> None:
        self._place = place
        self._all_of_run = all_of_run
        self._readers: dict[NotifiedReader, None] = {}
        self.waiting: dict[NotifiedReader, None] = {}
        """The readers that `notify` calls when something was written."""
        self._writer: NotifyingWriter | None = None

    @property
    def writer(self) -> NotifyingWriter | None:
        """The writer in this run, or None."""
        return self._writer

    # --- for the writer ---------------------------------------------------------------------------

    def writer_comes(self, writer: NotifyingWriter) -> None:
        self._writer = writer
        for reader in list(self._readers):
            reader.writer_came(writer)

    def writer_leaves(self) -> None:
        """Detach the writer, and have the readers go by the files. Idempotent."""
        if self.writer is not None:
            self._writer = None
            for reader in list(self._readers):
                reader.writer_left()
            self._end_if_empty()

    def notify(self, partition: int | None = None) -> None:
        """Call the waiting readers: something was written, only in `partition` if it is given."""
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
        """Detach a reader. Idempotent."""
        self._readers.pop(reader, None)
        self.waiting.pop(reader, None)
        self._end_if_empty()

    def begin_to_wait(self, reader: NotifiedReader) -> None:
        """Call the reader's `look` after each write from now on. The reader must then look once more."""
        self.waiting[reader] = None

    def end_waiting(self, reader: NotifiedReader) -> None:
        self.waiting.pop(reader, None)

    def _end_if_empty(self) -> None:
        if self.writer is None and not self._readers:
            self._all_of_run.pop(self._place, None)


def notifier_of(fs: FileSystem, path: str) -> Notifier:
    """Return the notifier of the existing store at `path`. Call this in a task. Raises OSError."""
    place = fs.place_of(path)
    all_of_run: dict[Hashable, Notifier] = running_event_loop().local.setdefault("notifiers", {})
    if place not in all_of_run:
        all_of_run[place] = Notifier(place, all_of_run)
    return all_of_run[place]
