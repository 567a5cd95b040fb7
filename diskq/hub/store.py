# The journals of a hub. Law: the check and the append of a request are one step, under the lock of its
# journal; and no answer is given before everything in the journal is synced.
#
# Synchronous, for any number of threads: requests for one journal run one after the other; those for several
# journals sync at the same time, and the file system makes one commit of these syncs. A journal is opened at
# its first request; when another needs its place, the unused journal that was used least recently is closed.

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from diskq._native.hub import wire as hubwire
from diskq._native.journal.codec import JournalColumns
from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader import JournalReader
from diskq.errors import (
    ForkedError,
    FullError,
    HubError,
    LockedError,
    NotFoundError,
    OffsetOutOfRangeError,
    StorageFailedError,
)
from diskq.hub.names import checked_client, checked_journal, directory_name, parted
from diskq.options import HubOptions
from diskq.storage.forks import notify_on_fork
from diskq.storage.fs import FileSystem, join
from diskq.storage.log_events import Log
from diskq.storage.numbers import NO_NUMBER

__all__ = ["HubJournal", "HubStatistics", "HubStore", "Range"]

log = Log("hub")


class Range(NamedTuple):
    """The offsets of a journal: that of its first message, and the one that it expects next."""

    first_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HubJournal:
    """One journal of a hub."""

    client: str
    journal: str
    first_offset: int
    """The offset of the first message."""
    next_offset: int
    """The offset that is expected next."""
    bytes_on_disk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HubStatistics:
    """Figures of a hub since it was opened."""

    puts: int
    gets: int
    accepted: int
    """Messages that were appended and synced."""
    written_bytes: int
    """The bytes of their records."""
    duplicates: int
    """Messages that were put and already there."""
    delivered: int
    """Messages returned by `Get`."""
    gaps: int
    """Requests refused because their messages did not follow those of the journal."""
    refused: int
    """Requests refused for any other reason."""
    under_way: int
    """Requests under way now."""
    open_journals: int


@dataclass(eq=False, slots=True)
class _JournalPlace:
    """One journal's directory, and its users."""

    client: str
    name: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    used_at: float = 0.0
    journal: Journal | None = None
    reader: JournalReader | None = None
    first: int | None = None
    """The first offset at the last look; None: look again."""

    def close(self) -> None:
        journal, reader = self.journal, self.reader
        self.journal = self.reader = None
        with contextlib.ExitStack() as stack:
            if journal is not None:
                stack.callback(journal.close)
            if reader is not None:
                stack.callback(reader.close)


class HubStore:
    """The journals below one root."""

    def __init__(self, root: str, options: HubOptions, fs: FileSystem) -> None:
        self.root = root
        self.options = options
        self._fs = fs
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self._places: dict[str, _JournalPlace] = {}
        self._used: dict[str, int] = {}  # bytes of each client, if there is a quota
        self._is_closed = False
        self._parent: int | None = None  # in a child of a fork: the process that opened it
        notify_on_fork(self)
        self.counts = dict.fromkeys(
            ("puts", "gets", "accepted", "written_bytes", "duplicates", "delivered", "gaps", "refused"), 0
        )

    # --- requests ---------------------------------------------------------------------------------

    def put(self, request: bytes, *, allows: Allows, timeout: float, first: int | None = None) -> Range:
        """Append and sync the messages of a PutRequest that are not there yet. Returns the journal's range
        then.

        `first` is the first offset of a journal that does not exist yet. Without messages nothing is made.
        Raises HubError: with `expected` if messages do not follow; those before the gap are in, and synced.
        If a message has the offset of a different one in the journal, none is appended.
        """
        if first is not None and not 0 <= first < NO_NUMBER:
            raise HubError("a journal begins at an offset below 2^62", code="INVALID_ARGUMENT")
        asked = self._asked(hubwire.read_put, request)
        client, name = self._names(asked, allows)
        if asked.messages > self.options.max_batch_messages:
            raise HubError(
                f"{asked.messages} messages in one request: {self.options.max_batch_messages} are allowed",
                code="INVALID_ARGUMENT",
            )
        most = self.options.journal.max_message_size
        if asked.largest > most:
            raise HubError(f"a value of {asked.largest} bytes: {most} are allowed", code="INVALID_ARGUMENT")
        self._count(puts=1)
        if not asked.messages and not self._is_there(client, name):
            return Range(0, 0)
        with self._place(client, name, timeout) as place:
            if not asked.messages:
                place.first = None  # a bare query lists the directory again; a batch does not
            return self._append(place, request, first)

    def _append(self, place: _JournalPlace, request: bytes, first: int | None) -> Range:
        journal = self._journal(place, first or 0)
        records = hubwire.records(request, hubwire.OF_PUT, journal.next_offset)
        if records.skipped:
            self._compare(place, journal, request)
        self._check_quota(place.client, len(records.data))
        before = journal.next_offset
        try:
            journal.append_encoded(records.data)
        except FullError as full:
            self._sync(place, journal)
            raise self._error(
                place, f"no room: {full.reason}", "RESOURCE_EXHAUSTED", is_temporary=True
            ) from full
        self._sync(place, journal)
        self._count(
            accepted=journal.next_offset - before, written_bytes=len(records.data), duplicates=records.skipped
        )
        with self._lock:
            if place.client in self._used:
                self._used[place.client] += len(records.data)
        if records.gap is not None:
            self._count(gaps=1)
            raise self._error(
                place,
                f"message {records.gap} does not follow: {journal.next_offset} is expected",
                "FAILED_PRECONDITION",
            )
        return self._range(place, journal)

    def _compare(self, place: _JournalPlace, journal: Journal, request: bytes) -> None:
        """Compare the present messages with those of the request. Raises HubError if one differs.

        A message that was removed, or lost to damage, is not compared.
        """
        reader = self._reader(place)
        first, end = self._range(place, journal)
        asked = [each for each in hubwire.messages(request, hubwire.OF_PUT) if first <= each.offset < end]
        for each in sorted(asked, key=lambda message: message.offset):
            try:
                if reader.position != each.offset:
                    reader.seek(each.offset)
                found = reader.read()
            except OffsetOutOfRangeError:
                continue  # another process has just removed it
            if found is not None and found.offset == each.offset and found != each:
                reason = f"message {each.offset} is already there, and differs"
                raise self._error(place, reason, "ALREADY_EXISTS")
        reader.losses.clear()

    def _sync(self, place: _JournalPlace, journal: Journal) -> None:
        """Sync before any answer, also what an interrupted request left. Raises HubError on a full disk."""
        if journal.synced_offset < journal.next_offset:
            try:
                journal.sync()
            except FullError as full:
                raise self._error(
                    place, f"no room: {full.reason}", "RESOURCE_EXHAUSTED", is_temporary=True
                ) from full

    def get(self, request: bytes, *, allows: Allows, timeout: float) -> tuple[JournalColumns | None, Range]:
        """Return the messages that a GetRequest asks for, or None if there is none yet; and the journal's
        range.

        Raises HubError with OUT_OF_RANGE and the range if the offset was removed or is beyond the end.
        """
        asked = self._asked(hubwire.read_get, request)
        client, name = self._names(asked, allows)
        self._count(gets=1)
        if not self._is_there(client, name):
            if asked.offset:
                raise _out_of_range(asked.offset, Range(0, 0))
            return None, Range(0, 0)
        with self._place(client, name, timeout) as place:
            journal = self._journal(place, 0)
            place.first = None
            there = self._range(place, journal)
            if not there.first_offset <= asked.offset <= there.next_offset:
                raise _out_of_range(asked.offset, there)
            if asked.offset == there.next_offset:
                return None, there
            columns = self._read(place, asked.offset)
        if columns is not None:
            self._count(delivered=columns.records)
        return columns, there

    def _read(self, place: _JournalPlace, offset: int) -> JournalColumns | None:
        reader = self._reader(place)
        try:
            if reader.position != offset:
                reader.seek(offset)
            reader.losses.clear()
            if not reader.fill():
                return None
            # Up to the limit of an answer: the client asks for the rest next.
            return reader.ahead.take_columns(self.options.max_batch_messages, self.options.max_get_size)
        except OffsetOutOfRangeError as gone:
            raise _out_of_range(offset, Range(gone.first_offset, gone.next_offset)) from gone

    def _reader(self, place: _JournalPlace) -> JournalReader:
        if place.reader is None:
            place.reader = JournalReader(self._path(place.client, place.name), fs=self._fs)
        return place.reader

    def journals(self, allows: Allows) -> list[HubJournal]:
        """Return the existing journals, by name. Reads each, so that other processes' writes are seen."""
        self._check_own()
        found = []
        for name in sorted(self._listed()):
            parts = parted(name)
            if parts is None or not allows(parts[0]):
                continue
            path = join(self.root, name)
            if self._link_at(path) is not None:
                continue
            try:
                with JournalReader(path, fs=self._fs) as reader:
                    first, following = reader.first_offset(), reader.next_offset()
            except (NotFoundError, OSError):
                continue
            found.append(
                HubJournal(
                    client=parts[0],
                    journal=parts[1],
                    first_offset=first,
                    next_offset=following,
                    bytes_on_disk=self._size(path),
                )
            )
        return found

    def statistics(self) -> HubStatistics:
        with self._lock:
            places = list(self._places.values())
            return HubStatistics(
                **self.counts,
                under_way=sum(place.users for place in places),
                open_journals=sum(place.journal is not None for place in places),
            )

    # --- journals, open and closed ----------------------------------------------------------------

    @contextlib.contextmanager
    def _place(self, client: str, name: str, timeout: float) -> Iterator[_JournalPlace]:
        """Lock the journal's place for a block. Raises HubError if that takes more than `timeout` seconds."""
        deadline = self._fs.monotonic() + timeout
        place = self._claim(client, name, deadline)
        try:
            if not place.lock.acquire(timeout=max(0.0, deadline - self._fs.monotonic())):
                raise HubError("this journal is busy", code="UNAVAILABLE", is_temporary=True)
            try:
                yield place
            except StorageFailedError as failure:
                # The next open recovers it.
                with contextlib.suppress(StorageFailedError):
                    place.close()
                log.report(
                    "hub_disk_failed", "hub: %s", failure, path=directory_name(client, name), error=failure
                )
                raise HubError("the disk failed", code="UNAVAILABLE", is_temporary=True) from failure
            except OSError as failure:
                path = directory_name(client, name)
                log.report("hub_disk_failed", "hub: %s: %s", path, failure, path=path, error=failure)
                raise HubError(
                    f"the hub's disk: {failure.strerror}", code="UNAVAILABLE", is_temporary=True
                ) from failure
            finally:
                place.lock.release()
        finally:
            with self._lock:
                place.users -= 1
                place.used_at = self._fs.monotonic()
                self._freed.notify_all()

    def _claim(self, client: str, name: str, deadline: float) -> _JournalPlace:
        """Count a user of the place, so that it stays open. Closes an unused one if the place is new."""
        key = directory_name(client, name)
        with self._lock:
            while True:
                if self._is_closed:
                    raise HubError("the hub is closing", code="UNAVAILABLE", is_temporary=True)
                place = self._places.get(key)
                if place is not None or len(self._places) < self.options.max_open_journals:
                    break
                idle = [each for each in self._places.values() if not each.users]
                if idle:
                    self._close(min(idle, key=lambda each: each.used_at))
                elif not self._freed.wait(deadline - self._fs.monotonic()):
                    raise HubError("too many journals are in use", code="UNAVAILABLE", is_temporary=True)
            if place is None:
                place = self._places[key] = _JournalPlace(client, name)
            place.users += 1
            return place

    def _journal(self, place: _JournalPlace, first: int) -> Journal:
        """Return the journal, opened if it is not open. Raises HubError, OSError."""
        if place.journal is None:
            path = self._path(place.client, place.name)
            try:
                place.journal = Journal(path, options=self.options.journal, fs=self._fs, first_offset=first)
            except LockedError as locked:
                raise HubError(str(locked), code="UNAVAILABLE", is_temporary=True) from locked
            except FullError as full:
                raise HubError(
                    f"no room: {full.reason}", code="RESOURCE_EXHAUSTED", is_temporary=True
                ) from full
        return place.journal

    def _close(self, place: _JournalPlace) -> None:
        """Close a place without users. The caller holds the lock."""
        del self._places[directory_name(place.client, place.name)]
        try:
            place.close()
        except (StorageFailedError, FullError, OSError) as failure:
            log.report(
                "close_failed",
                "hub: %s could not be closed cleanly: %s",
                place.name,
                failure,
                path=place.name,
                error=failure,
            )

    def close_idle(self) -> None:
        """Close the journals that were not used for `idle_timeout`."""
        self._check_own()
        with self._lock:
            before = self._fs.monotonic() - self.options.idle_timeout
            for place in list(self._places.values()):
                if not place.users and place.used_at <= before:
                    self._close(place)

    def close(self) -> None:
        """Wait until no journal has a user, then close all. Idempotent."""
        self._check_own()
        with self._lock:
            self._is_closed = True
            while any(place.users for place in self._places.values()):
                self._freed.wait()
            for place in list(self._places.values()):
                self._close(place)

    # --- inside -----------------------------------------------------------------------------------

    def leave_to_parent(self, pid: int) -> None:
        """In a child of a fork, refuse all calls: the store and its locks belong to the parent."""
        self._parent = pid

    def _check_own(self) -> None:
        if self._parent is not None:
            raise ForkedError(self.root, self._parent)

    def _asked(self, read: Callable[[bytes], hubwire.Request], request: bytes) -> hubwire.Request:
        self._check_own()
        try:
            return read(request)
        except ValueError as wrong:
            raise HubError(str(wrong), code="INVALID_ARGUMENT") from wrong

    def _names(self, asked: hubwire.Request, allows: Allows) -> tuple[str, str]:
        try:
            client, name = checked_client(asked.client), checked_journal(asked.journal)
        except ValueError as wrong:
            raise HubError(str(wrong), code="INVALID_ARGUMENT") from wrong
        if not allows(client):
            raise HubError(f"this token is not for client {client!r}", code="PERMISSION_DENIED")
        return client, name

    def _path(self, client: str, name: str) -> str:
        """Return the journal's directory. Raises HubError if a symbolic link would lead elsewhere."""
        path = join(self.root, directory_name(client, name))
        if (link := self._link_at(path)) is not None:
            link = link.removeprefix(self.root).lstrip("/")
            raise HubError(
                f"{link} is a symbolic link, which a hub does not follow: put the journal there itself",
                code="PERMISSION_DENIED",
            )
        return path

    def _link_at(self, path: str) -> str | None:
        """Return a symbolic link that would lead writes out of a journal's directory, or None."""
        files = JournalFiles(self._fs, path)
        inside = (path, files.directory, files.private)
        return next((place for place in inside if self._fs.is_link(place)), None)

    def _is_there(self, client: str, name: str) -> bool:
        files = JournalFiles(self._fs, self._path(client, name))
        try:
            return bool(files.bases())
        except NotFoundError:
            return False

    def _range(self, place: _JournalPlace, journal: Journal) -> Range:
        if place.first is None:
            place.first = min(journal.files.bases(), default=0)
        # Messages that found no space are only in memory, and not counted.
        return Range(place.first, journal.synced_offset)

    def _error(self, place: _JournalPlace, reason: str, code: str, *, is_temporary: bool = False) -> HubError:
        """Return a HubError with the journal's range, all of which is synced."""
        assert place.journal is not None
        there = self._range(place, place.journal)
        return HubError(
            reason,
            code=code,
            expected=there.next_offset,
            first_offset=there.first_offset,
            is_temporary=is_temporary,
        )

    def _check_quota(self, client: str, more: int) -> None:
        quota = self.options.quota
        if quota is None or not more:
            return
        with self._lock:
            used = self._used.get(client)
        if used is None or used + more > quota:
            # The first time; or above the quota: another process may have removed old segments.
            used = sum(
                self._size(join(self.root, name))
                for name in self._listed()
                if (parts := parted(name)) is not None and parts[0] == client
            )
            with self._lock:
                self._used[client] = used
        if used + more > quota:
            raise HubError(
                f"client {client!r} has {used} bytes of journals: {quota} are allowed",
                code="RESOURCE_EXHAUSTED",
            )

    def _listed(self) -> list[str]:
        try:
            return self._fs.list_directory(self.root)
        except FileNotFoundError:
            return []

    def _size(self, path: str) -> int:
        if self._link_at(path) is not None:
            return 0
        files = JournalFiles(self._fs, path)
        try:
            return sum(self._fs.size_of(files.data(base)) or 0 for base in files.bases())
        except NotFoundError:
            return 0

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, number in more.items():
                self.counts[name] += number

    def count_refused(self) -> None:
        """Count a request that was refused for a reason other than a gap."""
        self._count(refused=1)


Allows = Callable[[str], bool]
"""True if the request may act for this client."""


def _out_of_range(offset: int, there: Range) -> HubError:
    return HubError(
        f"no message {offset}: the first is {there.first_offset}, the next is {there.next_offset}",
        code="OUT_OF_RANGE",
        expected=there.next_offset,
        first_offset=there.first_offset,
    )
