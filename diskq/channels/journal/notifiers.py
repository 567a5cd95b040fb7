# The notifiers of several journals, for the tail that reads them all. Law: as core/notifier.py, for each.

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from diskq.channels.core.notifier import NotifiedReader, Notifier, NotifyingWriter, WrittenPartitions

__all__ = ["Notifiers"]


class Notifiers:
    """Combines the notifiers of several numbered journals; the tail sees one writer of all of them."""

    def __init__(self) -> None:
        self._tail: NotifiedReader | None = None
        self._each: dict[int, _One] = {}
        self._writers: dict[int, NotifyingWriter] = {}
        self._is_waiting = False
        self._unregistered: set[int] = set()
        """The journals that do not report the next message. It is left to each of them until it has one."""

    def add(self, number: int, notifier: Notifier) -> None:
        """Add a journal. Call this before the tail reads it."""
        one = self._each[number] = _One(self, number, notifier)
        self._unregistered.add(number)
        notifier.reader_comes(one)

    # --- for the tail -----------------------------------------------------------------------------

    @property
    def writer(self) -> NotifyingWriter | None:
        return self if self._writers else None

    def live(self, partition: int) -> Any:
        """Return the live end of the journal with that number, as `NotifyingWriter.live`."""
        writer = self._writers.get(partition)
        return None if writer is None else writer.live(0)

    def reader_comes(self, tail: NotifiedReader) -> None:
        self._tail = tail

    def reader_leaves(self, tail: NotifiedReader) -> None:
        for one in self._each.values():
            one.notifier.reader_leaves(one)

    def begin_to_wait(self, tail: NotifiedReader) -> None:
        self._is_waiting = True
        while self._unregistered:
            one = self._each[self._unregistered.pop()]
            one.notifier.begin_to_wait(one)

    def end_waiting(self, tail: NotifiedReader) -> None:
        self._is_waiting = False

    def changes(self) -> WrittenPartitions:
        return self

    def take(self) -> Iterable[int]:
        """Return the journals that may have messages that were not reported."""
        return [number for number in self._unregistered if number in self._writers]

    def close(self) -> None:
        """Do nothing: the journals are left with `reader_leaves`."""

    # --- calls from the journals ------------------------------------------------------------------

    def look_at(self, number: int) -> None:
        if not self._is_waiting:
            one = self._each[number]
            one.notifier.end_waiting(one)
            self._unregistered.add(number)
        elif self._tail is not None:
            self._tail.look_at(number)

    def writer_came(self, number: int, writer: NotifyingWriter) -> None:
        self._writers[number] = writer
        if self._tail is not None:
            self._tail.writer_came(self)

    def writer_left(self, number: int) -> None:
        del self._writers[number]
        if self._tail is None:
            return
        if self._writers:
            self._tail.writer_came(self)
        else:
            self._tail.writer_left()


class _One:
    """The tail as the reader of one journal."""

    def __init__(self, all_of_them: Notifiers, number: int, notifier: Notifier) -> None:
        self._all = all_of_them
        self._number = number
        self.notifier = notifier

    def look(self) -> None:
        self._all.look_at(self._number)

    def look_at(self, partition: int) -> None:
        self._all.look_at(self._number)

    def writer_came(self, writer: NotifyingWriter) -> None:
        self._all.writer_came(self._number, writer)

    def writer_left(self) -> None:
        self._all.writer_left(self._number)
