# The journals of a hub. Law: what is looked at and what is appended is one act, under the lock of its
# journal; and no answer is given before all that the journal has is synced.
#
# Synchronous, for any number of threads: requests for one journal come one after the other, those for
# several sync at the same time, and the file system makes one commit of theirs. A journal is opened when it
# is first asked for; of those that nobody uses the one that was not used for longest is closed for the next.

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
    DiskFullError,
    ForkedError,
    HubError,
    JournalNotFoundError,
    LockedError,
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
    """Where a journal begins and ends: the offset of its first message, and of the next one."""

    first: int
    next: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HubJournal:
    """One journal of a hub."""

    client: str
    journal: str
    first: int
    """Offset of the first message that is there."""
    next: int
    """The offset that is expected next."""
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HubStatistics:
    """What a hub has done since it was opened."""

    puts: int
    gets: int
    messages: int
    """That were appended, and synced."""
    bytes: int
    """Of their records."""
    duplicates: int
    """That were there already."""
    sent: int
    """Messages that `Get` has answered with."""
    gaps: int
    """Requests whose messages did not follow what is there."""
    refused: int
    """Requests for any other reason."""
    under_way: int
    """Requests, now."""
    open_journals: int


@dataclass(eq=False, slots=True)
class _JournalPlace:
    """One journal's directory, and who has it."""

    client: str
    name: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    used_at: float = 0.0
    journal: Journal | None = None
    reader: JournalReader | None = None
    first: int | None = None
    """The first offset that is there, when it was last looked for."""

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
        self._used: dict[str, int] = {}  # bytes of each client, where there is a quota
        self._is_closed = False
        self._parent: int | None = None  # who opened it, where that was before a fork
        notify_on_fork(self)
        self.counts = dict.fromkeys(
            ("puts", "gets", "messages", "bytes", "duplicates", "sent", "gaps", "refused"), 0
        )

    # --- what is asked of it ----------------------------------------------------------------------

    def put(self, request: bytes, *, allows: Allows, timeout: float, first: int | None = None) -> Range:
        """Append the messages of a PutRequest that are not there yet, synced. Returns what is there then.

        `first`: where a journal that is not there is to begin. Without messages nothing is made. Raises
        HubError: with `expected`, where messages do not follow; those before the gap are in, and synced. None
        is in where one has the offset of another message that is there.
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
                place.first = None  # who asks is to know; a batch is not worth two listings
            return self._append(place, request, first)

    def _append(self, place: _JournalPlace, request: bytes, first: int | None) -> Range:
        journal = self._journal(place, first or 0)
        told = hubwire.records(request, hubwire.OF_PUT, journal.next_offset)
        if told.skipped:
            self._compare(place, journal, request)
        self._check_quota(place.client, len(told.data))
        before = journal.next_offset
        try:
            journal.append_encoded(told.data)
        except DiskFullError as full:
            self._sync(place, journal)
            raise self._error(
                place, f"no room: {full.reason}", "RESOURCE_EXHAUSTED", is_temporary=True
            ) from full
        self._sync(place, journal)
        self._count(messages=journal.next_offset - before, bytes=len(told.data), duplicates=told.skipped)
        with self._lock:
            if place.client in self._used:
                self._used[place.client] += len(told.data)
        if told.gap is not None:
            self._count(gaps=1)
            raise self._error(
                place,
                f"message {told.gap} does not follow: {journal.next_offset} is expected",
                "FAILED_PRECONDITION",
            )
        return self._range(place, journal)

    def _compare(self, place: _JournalPlace, journal: Journal, request: bytes) -> None:
        """Are the messages that are there already the same ones? Raises HubError where one is not.

        One that is gone, or lost to damage, is any message: nobody knows.
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
                continue  # somebody has removed it in this moment
            if found is not None and found.offset == each.offset and found != each:
                reason = f"message {each.offset} is there already, and is another one"
                raise self._error(place, reason, "ALREADY_EXISTS")
        reader.losses.clear()

    def _sync(self, place: _JournalPlace, journal: Journal) -> None:
        """Before any answer: what an interrupted request has left is not synced, either."""
        if journal.synced_offset < journal.next_offset:
            try:
                journal.sync()
            except DiskFullError as full:
                raise self._error(
                    place, f"no room: {full.reason}", "RESOURCE_EXHAUSTED", is_temporary=True
                ) from full

    def get(self, request: bytes, *, allows: Allows, timeout: float) -> tuple[JournalColumns | None, Range]:
        """Messages from the offset on that a GetRequest asks for; None: there is none yet. And what there is.

        Raises HubError, OUT_OF_RANGE with what there is, where the offset is gone or beyond the end.
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
            if not there.first <= asked.offset <= there.next:
                raise _out_of_range(asked.offset, there)
            if asked.offset == there.next:
                return None, there
            columns = self._read(place, asked.offset)
        if columns is not None:
            self._count(sent=columns.records)
        return columns, there

    def _read(self, place: _JournalPlace, offset: int) -> JournalColumns | None:
        reader = self._reader(place)
        try:
            if reader.position != offset:
                reader.seek(offset)
            reader.losses.clear()
            if not reader.fill():
                return None
            # Not more than an answer may have: what is left over is asked for next.
            return reader.ahead.take_columns(self.options.max_batch_messages, self.options.max_get_size)
        except OffsetOutOfRangeError as gone:
            raise _out_of_range(offset, Range(gone.first, gone.next)) from gone

    def _reader(self, place: _JournalPlace) -> JournalReader:
        if place.reader is None:
            place.reader = JournalReader(self._path(place.client, place.name), fs=self._fs)
        return place.reader

    def journals(self, allows: Allows) -> list[HubJournal]:
        """Those that there are, by name. Looks into each: what another process writes is found as well."""
        self._check_own()
        found = []
        for name in sorted(self._listed()):
            told = parted(name)
            if told is None or not allows(told[0]):
                continue
            path = join(self.root, name)
            if self._link_at(path) is not None:
                continue
            try:
                with JournalReader(path, fs=self._fs) as reader:
                    first, following = reader.first_offset(), reader.next_offset()
            except (JournalNotFoundError, OSError):
                continue
            found.append(
                HubJournal(
                    client=told[0], journal=told[1], first=first, next=following, bytes=self._size(path)
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
        """The journal's place, for us alone. Raises HubError where that takes more than `timeout` seconds."""
        deadline = self._fs.monotonic() + timeout
        place = self._claim(client, name, deadline)
        try:
            if not place.lock.acquire(timeout=max(0.0, deadline - self._fs.monotonic())):
                raise HubError("others have this journal", code="UNAVAILABLE", is_temporary=True)
            try:
                yield place
            except StorageFailedError as failure:
                # Opened again, it is recovered.
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
        """Count us among its users, whom nobody closes it under. Makes room for it where it is new."""
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
        """The journal, opened where it is not. Raises HubError, OSError."""
        if place.journal is None:
            path = self._path(place.client, place.name)
            try:
                place.journal = Journal(path, self.options.journal, fs=self._fs, first_offset=first)
            except LockedError as locked:
                raise HubError(str(locked), code="UNAVAILABLE", is_temporary=True) from locked
            except DiskFullError as full:
                raise HubError(
                    f"no room: {full.reason}", code="RESOURCE_EXHAUSTED", is_temporary=True
                ) from full
        return place.journal

    def _close(self, place: _JournalPlace) -> None:
        """Under our lock, with no user."""
        del self._places[directory_name(place.client, place.name)]
        try:
            place.close()
        except (StorageFailedError, DiskFullError, OSError) as failure:
            log.report(
                "close_failed",
                "hub: %s could not be closed cleanly: %s",
                place.name,
                failure,
                path=place.name,
                error=failure,
            )

    def close_idle(self) -> None:
        """Close those that were not used for `idle_timeout`."""
        self._check_own()
        with self._lock:
            before = self._fs.monotonic() - self.options.idle_timeout
            for place in list(self._places.values()):
                if not place.users and place.used_at <= before:
                    self._close(place)

    def close(self) -> None:
        """Close them all, when nobody uses them any more. Idempotent."""
        self._check_own()
        with self._lock:
            self._is_closed = True
            while any(place.users for place in self._places.values()):
                self._freed.wait()
            for place in list(self._places.values()):
                self._close(place)

    # --- inside -----------------------------------------------------------------------------------

    def leave_to_parent(self, pid: int) -> None:
        """In a child of a fork: it is the parent's, locks that its threads may have had included."""
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
        """The journal's directory. Raises HubError where a link would lead elsewhere."""
        path = join(self.root, directory_name(client, name))
        if (link := self._link_at(path)) is not None:
            link = link.removeprefix(self.root).lstrip("/")
            raise HubError(
                f"{link} is a symbolic link, which a hub does not follow: put the journal there itself",
                code="PERMISSION_DENIED",
            )
        return path

    def _link_at(self, path: str) -> str | None:
        """The link that would lead elsewhere who works in a journal's directory; None: there is none."""
        files = JournalFiles(self._fs, path)
        inside = (path, files.directory, files.private)
        return next((place for place in inside if self._fs.is_link(place)), None)

    def _is_there(self, client: str, name: str) -> bool:
        files = JournalFiles(self._fs, self._path(client, name))
        try:
            return bool(files.bases())
        except JournalNotFoundError:
            return False

    def _range(self, place: _JournalPlace, journal: Journal) -> Range:
        if place.first is None:
            place.first = min(journal.files.bases(), default=0)
        # What found no room waits in memory, and is not there.
        return Range(place.first, journal.synced_offset)

    def _error(self, place: _JournalPlace, reason: str, code: str, *, is_temporary: bool = False) -> HubError:
        """With what the journal expects, all of which is synced."""
        assert place.journal is not None
        there = self._range(place, place.journal)
        return HubError(reason, code=code, expected=there.next, first=there.first, is_temporary=is_temporary)

    def _check_quota(self, client: str, more: int) -> None:
        quota = self.options.quota
        if quota is None or not more:
            return
        with self._lock:
            used = self._used.get(client)
        if used is None or used + more > quota:
            # The first time; or it would be too much: somebody may have removed old segments.
            used = sum(
                self._size(join(self.root, name))
                for name in self._listed()
                if (told := parted(name)) is not None and told[0] == client
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
        except JournalNotFoundError:
            return 0

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, number in more.items():
                self.counts[name] += number

    def count_refused(self) -> None:
        """A request got an error that was no gap."""
        self._count(refused=1)


Allows = Callable[[str], bool]
"""May it be done for this client?"""


def _out_of_range(offset: int, there: Range) -> HubError:
    return HubError(
        f"no message {offset}: the first is {there.first}, the next is {there.next}",
        code="OUT_OF_RANGE",
        expected=there.next,
        first=there.first,
    )
