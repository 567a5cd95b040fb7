# Transactions: the messages that many tasks have staged are in a stream once, all of them. Law: the intent is
# the commit point. Before it is durable nothing has happened; after it the transaction is in the stream, even
# if a later open has to append it.
#
# A sink commits epochs, each of which is one transaction, in ascending order. A process that does not know
# whether an epoch was committed commits it again: the stream appends it once.
#
#     .diskq/intent             the pending transaction: its files, and their offsets (`Intent`)
#     .diskq/<sink>.committed   the sink's last commit (`Committed`)
#
# Both are text with a checksum, and are replaced, never changed. How an intent is carried out:
# roll_forward.py.
# Format: docs/format/transactions.md.

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.transactions.staging import (
    Abandoned,
    Extent,
    StagedFile,
    StagedName,
    abandoned_names,
    check_epoch,
    check_sink_name,
    make_staging,
    staged_names,
)
from diskq.errors import CorruptionError
from diskq.storage.barrier import Barrier, Replacement, read_small
from diskq.storage.callbacks import check_plain, check_result
from diskq.storage.checksums import checked, is_checked
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path
from diskq.storage.lock import Lock

__all__ = [
    "Committed",
    "Intent",
    "PartitionShare",
    "Transaction",
    "abandon",
    "committed",
    "forget_finished",
    "forget_sinks",
    "pending",
    "read_intent",
    "sweep_staging",
]

_QUERY = re.compile(r"[ -~]{0,200}")

_COMMITTED = re.compile(rb"diskq committed 1\nepoch ([0-9]{1,19})\nquery ([ -~]{0,200})\n")
_LARGEST_COMMITTED = 400
_INTENT = re.compile(
    rb"diskq intent 1\nsink ([A-Za-z0-9_.]{1,100})\nepoch ([0-9]{1,19})\nquery ([ -~]{0,200})\n"
)
_SHARE = re.compile(rb"partition ([0-9]{1,6}) ([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19})\n")
_FILE = re.compile(rb"file ([A-Za-z0-9_.-]{1,200})\n")
_EXTENT = re.compile(rb"extent ([0-9]{1,6}) ([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19}) ([0-9a-f]{8})\n")


@dataclass(frozen=True, slots=True)
class Transaction:
    """Staged files that a sink commits together, in the order in which they are to be appended."""

    sink: str
    epoch: int
    query: str
    """The id of the query that has the sink, different from any other query's, or empty."""
    staged: tuple[StagedFile, ...]

    def check(self) -> None:
        """Raises SinkNameError, TypeError, ValueError."""
        check_sink_name(self.sink)
        check_epoch(self.epoch)
        if not isinstance(self.query, str):
            raise TypeError(f"a query is a str, not {type(self.query).__name__}")
        if not _QUERY.fullmatch(self.query):
            raise ValueError(f"a query is up to 200 printable characters of ASCII, got {self.query!r}")


@dataclass(frozen=True, slots=True)
class Committed:
    """A sink's last commit."""

    epoch: int
    query: str

    def replacing(self, files: StreamFiles, sink: str) -> Replacement:
        path = files.committed(sink)
        content = f"diskq committed 1\nepoch {self.epoch}\nquery {self.query}\n".encode()
        return Replacement(path, checked(content), files.temporary(path))


def committed(fs: FileSystem, files: StreamFiles, sink: str) -> Committed | None:
    """Return the sink's last commit; None if it has none. Raises CorruptionError if unreadable, OSError."""
    path = files.committed(sink)
    content = read_small(fs, path, _LARGEST_COMMITTED)
    if content is None:
        return None
    found = _COMMITTED.match(content)
    if found is None or not is_checked(content, found.end()):
        raise CorruptionError(path, 0, "damaged commit file: which epochs are committed is unknown")
    return Committed(int(found[1]), found[2].decode())


# --- the intent -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionShare:
    """The records of a transaction for one partition: the staged ones after the first `skip`, at `start`."""

    start: int
    """The offset of the first of them."""
    skip: int
    """How many are in the stream already, at other offsets: a peer has written since."""
    records: int
    """How many are staged for the partition."""

    @property
    def offsets(self) -> range:
        return range(self.start, self.start + self.records - self.skip)


@dataclass(frozen=True, slots=True)
class Intent:
    """A committed transaction, and the places of its records."""

    sink: str
    epoch: int
    query: str
    shares: dict[int, PartitionShare]
    """By partition."""
    staged: tuple[StagedFile, ...]

    def render(self) -> bytes:
        lines = [f"diskq intent 1\nsink {self.sink}\nepoch {self.epoch}\nquery {self.query}\n"]
        lines += [f"partition {p} {s.start} {s.skip} {s.records}\n" for p, s in sorted(self.shares.items())]
        for file in self.staged:
            lines.append(f"file {file.name}\n")
            lines += [
                f"extent {e.partition} {e.start} {e.size} {e.records} {e.crc:08x}\n" for e in file.extents
            ]
        return checked("".join(lines).encode())

    @classmethod
    def parse(cls, content: bytes) -> Intent | None:
        """Return the intent; None if its format or checksum is wrong."""
        head = _INTENT.match(content)
        if head is None:
            return None
        at = head.end()
        shares: dict[int, PartitionShare] = {}
        while (line := _SHARE.match(content, at)) is not None:
            partition, start, skip, records = map(int, line.groups())
            shares[partition] = PartitionShare(start, skip, records)
            at = line.end()
        staged: list[StagedFile] = []
        while (line := _FILE.match(content, at)) is not None:
            name, at = line[1].decode(), line.end()
            extents: list[Extent] = []
            while (line := _EXTENT.match(content, at)) is not None:
                partition, start, size, records = map(int, line.groups()[:4])
                extents.append(Extent(partition, start, size, records, int(line[5], 16)))
                at = line.end()
            staged.append(StagedFile(name, tuple(extents)))
        if not is_checked(content, at):
            return None
        return cls(head[1].decode(), int(head[2]), head[3].decode(), shares, tuple(staged))

    def replacing(self, files: StreamFiles) -> Replacement:
        return Replacement(files.intent, self.render(), files.temporary(files.intent))


def read_intent(fs: FileSystem, files: StreamFiles) -> Intent | None:
    """Return the intent, or None if there is none. Raises CorruptionError if it cannot be read, OSError."""
    size = fs.size_of(files.intent)
    if size is None:
        return None
    intent = Intent.parse(read_small(fs, files.intent, size) or b"")
    if intent is None:
        raise CorruptionError(files.intent, 0, "damaged intent: a committed transaction cannot be read")
    return intent


def pending(fs: FileSystem, files: StreamFiles) -> Intent | None:
    """Return the transaction that is committed and may not be in the stream yet. Raises as `read_intent`."""
    intent = read_intent(fs, files)
    if intent is None:
        return None
    try:
        last = committed(fs, files, intent.sink)
    except CorruptionError:
        return intent  # the stream's messages show what is missing, and the commit is noted again
    return None if last is not None and last.epoch >= intent.epoch else intent


# --- abandoned transactions -----------------------------------------------------------------------


def abandon(
    path: AnyPath, sink: str, epoch: int, *, for_good: bool = False, fs: FileSystem | None = None
) -> list[str]:
    """Remove the files staged for a transaction that will not be committed. Returns their names.

    `for_good`: an epoch of this number will never be committed for this sink, so files that its tasks are
    still staging are refused when they are finished. A mark records that, until the sink's files are swept.

    Only for a caller that knows that no process is about to commit it; the stream may then be open anywhere.
    Nothing is removed of a transaction that is committed and pending: the next open carries it out. Raises
    CorruptionError, OSError.
    """
    fs = fs or OsFileSystem()
    files = StreamFiles(fs, as_path(path))
    if for_good:
        make_staging(fs, files.staging)
        fs.close(fs.open(files.staged(str(Abandoned(sink, epoch))), write=True, create=True))
    return _sweep(fs, files, lambda name: (name.sink, name.epoch) == (sink, epoch))


def sweep_staging(
    path: AnyPath, is_orphan: Callable[[StagedName | Abandoned], bool], *, fs: FileSystem | None = None
) -> list[str]:
    """Remove staged files that are no longer needed, as `is_orphan` says. Any process may call it.

    `is_orphan` is also called for the marks of `abandon`, which are removed with the files. Raises as
    `abandon`, and LockedError if a process has the stream open: it may be about to commit them.
    """
    check_plain("is_orphan", is_orphan)
    fs = fs or OsFileSystem()
    files = StreamFiles(fs, as_path(path))
    if not staged_names(fs, files) and not abandoned_names(fs, files):
        return []
    lock = Lock(fs, files.lock, f"stream {files.path}", brief=files.redo)
    try:
        gone = _sweep(fs, files, is_orphan)
        # After the files: a file may be new.
        marks = abandoned_names(fs, files)
        over = [mark for mark in marks if check_result("is_orphan", is_orphan, is_orphan(mark))]
        Barrier(removals=tuple(files.staged(str(mark)) for mark in over)).execute(fs)
        return gone
    finally:
        lock.release()


def _sweep(fs: FileSystem, files: StreamFiles, is_orphan: Callable[[StagedName], bool]) -> list[str]:
    intent = read_intent(fs, files)
    kept = {file.name for file in intent.staged} if intent is not None else set()
    orphans = [
        name
        for name in staged_names(fs, files)
        if str(name) not in kept and check_result("is_orphan", is_orphan, is_orphan(name))
    ]
    Barrier(removals=tuple(files.staged(str(name)) for name in orphans)).execute(fs)
    return [str(name) for name in orphans]


def forget_sinks(path: AnyPath, is_over: Callable[[str], bool], *, fs: FileSystem | None = None) -> list[str]:
    """Remove the notes on the last commit of each sink that has ended. Returns the names of these sinks.

    `is_over` gets the name of a sink and returns True if the sink has ended. A sink without such a note that
    commits an epoch again appends the same messages twice. Raises LockedError, OSError.
    """
    check_plain("is_over", is_over)
    fs = fs or OsFileSystem()
    files = StreamFiles(fs, as_path(path))
    over = [sink for sink in files.sinks() if check_result("is_over", is_over, is_over(sink))]
    if not over:
        return []
    lock = Lock(fs, files.lock, f"stream {files.path}", brief=files.redo)
    try:
        intent = read_intent(fs, files)
        forgotten = [sink for sink in over if intent is None or intent.sink != sink]
        # The removal of an intent has to be durable first: if a power cut brought it back, the next open
        # would carry it out.
        paths = tuple(files.committed(sink) for sink in forgotten)
        Barrier(directories=(files.private,), removals=paths).execute(fs)
        return forgotten
    finally:
        lock.release()


def finished(fs: FileSystem, files: StreamFiles) -> list[str]:
    """Return the paths of staged files of committed epochs, which are no longer needed.

    For the holder of the lock, while no transaction is pending. Raises OSError.
    """
    if fs.size_of(files.staging) is None:
        return []  # most streams
    names = staged_names(fs, files)
    epochs = {sink: _last_epoch(fs, files, sink) for sink in {name.sink for name in names}}
    return [files.staged(str(name)) for name in names if name.epoch <= epochs[name.sink]]


def _last_epoch(fs: FileSystem, files: StreamFiles, sink: str) -> int:
    try:
        last = committed(fs, files, sink)
    except CorruptionError:
        return -1  # the sink's next commit raises the error
    return -1 if last is None else last.epoch


def shares_of(staged: Iterable[StagedFile]) -> dict[int, int]:
    """Return how many records each partition gets."""
    records: dict[int, int] = {}
    for file in staged:
        for extent in file.extents:
            records[extent.partition] = records.get(extent.partition, 0) + extent.records
    return records


def forget_finished(fs: FileSystem, files: StreamFiles) -> None:
    """Remove an intent that is carried out, and the files staged for committed epochs.

    The commits are noted durably, so it does no harm if a power cut brings some of these files back.
    """
    removals = [files.intent] if fs.size_of(files.intent) is not None else []
    Barrier(removals=(*removals, *finished(fs, files))).execute(fs)
