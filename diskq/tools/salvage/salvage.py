# Copies everything that can still be read out of a damaged store. Law: the store does not change; a message
# is written once; and every byte that cannot be read is reported.
#
# A repair is carried out in memory. Then everything is either where readers find it, or in a file whose name
# ends in `.bad`, as are those that earlier opens, earlier repairs and go-diskqueue left. In these files,
# whole messages are looked for: from the beginning, and after broken bytes, if the format makes them certain
# (fragments.py).

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from diskq.engine.journal.files import JournalFiles
from diskq.engine.priority.files import StoreFiles
from diskq.engine.spool.files import DEAD, SPOOL
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.settings import read_settings
from diskq.storage.barrier import Barrier, write_all
from diskq.storage.callbacks import check_plain
from diskq.storage.checksums import checksum
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path, directory_of, join
from diskq.storage.numbered_files import names_in, private_path, set_aside_from
from diskq.storage.overlay import OverlayFS
from diskq.tools.convert.sources import open_reading
from diskq.tools.entries import Entry, EntryBatch
from diskq.tools.json_lines import to_lines
from diskq.tools.repair.repair import repair_in
from diskq.tools.salvage.fragments import (
    Fragments,
    journal_fragments,
    priority_fragments,
    queue_fragments,
    stream_fragments,
)
from diskq.tools.stores import Store

__all__ = ["Salvaged", "Unread", "new_file", "salvage"]

_LARGEST = 4 * 1024 * 1024 * 1024
_OF_A_QUEUE = re.compile(r"(.+)\.diskqueue\.[0-9]{6,19}\.dat", re.DOTALL)
_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Unread:
    """Bytes that cannot be read as messages."""

    path: str
    size: int

    def __str__(self) -> str:
        return f"{self.path}: {self.size} bytes hold no message that can be recognised"


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvaged:
    """The result of a salvage."""

    store: Store
    messages: int
    """Messages where readers find them."""
    fragments: int
    """Messages found in files that were set aside. No checksum covers them."""
    unread: tuple[Unread, ...]


@dataclass(slots=True)
class _Fragment:
    """A file that was set aside, and the messages found in it."""

    path: str
    found: Fragments


def salvage(
    store: Store, write: Callable[[bytes], object], *, take_over: bool = False, fs: FileSystem | None = None
) -> Salvaged:
    """Pass every message of the store that can be read to `write`, as lines of JSON (json_lines.py).

    First come the messages that its readers get, in order; then those found in files set aside. Changes
    nothing. Files that a repair rewrites are held in memory. Raises LockedError if a process has the store
    open, DiskqError, OSError.
    """
    check_plain("write", write)
    disk = fs or OsFileSystem()
    with OverlayFS(disk, locks=True) as overlay:
        repair_in(overlay, store, take_over=take_over)
        fragments = _fragments_of(overlay, store)
        rare = (
            {entry for fragment in fragments for entry in fragment.found.entries}
            if _has_places(store)
            else set()
        )
        is_store = store.kind == "jobs"
        is_read: Counter[Entry] = Counter()
        messages = 0
        with open_reading(store, fs=overlay) as reading:
            for batch in reading.batches():
                write(to_lines(batch))
                messages += len(batch)
                if rare:
                    rare -= {_placeless(entry, store) for entry in batch.entries()}
                if is_store and fragments:
                    is_read.update(map(_as_in_a_log, batch.entries()))
    found = 0
    seen: set[Entry] = set()
    for fragment in fragments:
        entries = [
            entry for entry in fragment.found.entries if not _has_places(store) or entry in rare - seen
        ]
        if _has_places(store):
            entries = list(dict.fromkeys(entries))
            seen.update(entries)
        if is_store:
            # The whole part of a damaged log stays in use, and its file was kept aside as it was.
            entries, is_read = _without(entries, is_read)
        for at in range(0, len(entries), _AT_ONCE):
            write(to_lines(EntryBatch.of(entries[at : at + _AT_ONCE])))
        found += len(entries)
    unread = tuple(
        Unread(fragment.path, fragment.found.unread) for fragment in fragments if fragment.found.unread
    )
    return Salvaged(store=store, messages=messages, fragments=found, unread=unread)


def _as_in_a_log(entry: Entry) -> Entry:
    """Return the entry with the fields that a store's log has."""
    return Entry(entry.value, priority=entry.priority, queue=entry.queue)


def _without(entries: list[Entry], is_read: Counter[Entry]) -> tuple[list[Entry], Counter[Entry]]:
    """Return the entries without as many of each as were read; and the read ones that remain."""
    rest = is_read.copy()
    left = []
    for entry in entries:
        if rest[entry] > 0:
            rest[entry] -= 1
        else:
            left.append(entry)
    return left, rest


def _has_places(store: Store) -> bool:
    """True if a message's time or offset distinguishes it from another one with the same value."""
    return store.kind in ("stream", "journal")


def _placeless(entry: Entry, store: Store) -> Entry:
    """Return the entry, without its offset if it is a stream's: a record there does not contain one."""
    return entry._replace(offset=None) if store.kind == "stream" else entry


@contextlib.contextmanager
def new_file(path: AnyPath) -> Iterator[Callable[[bytes], object]]:
    """Make a file, and yield a function that appends to it. The file is on stable storage at the end.

    After an error there is no file. Raises FileExistsError, OSError.
    """
    disk, text = OsFileSystem(), as_path(path)
    handle = disk.open(text, write=True, create=True, exclusive=True)
    end = 0

    def write(data: bytes) -> None:
        nonlocal end
        write_all(disk, handle, data, end)
        end += len(data)

    try:
        yield write
        above = directory_of(text) if "/" in text.rstrip("/") else "."
        Barrier(files=(handle,), directories=(above,), closing=(handle,)).execute(disk)
    except BaseException:
        Barrier(removals=(text,)).execute(disk)
        raise


# --- what was set aside ---------------------------------------------------------------------------


def _fragments_of(fs: FileSystem, store: Store) -> list[_Fragment]:
    """Return the files that were set aside with their messages; of several equal files, one."""
    seen: set[tuple[str, int]] = set()
    fragments = []
    for path, of, take_apart in _set_aside(fs, store):
        content = _content(fs, path)
        known = (of, checksum(content))
        if content.strip(b"\0") and known not in seen:
            fragments.append(_Fragment(path, take_apart(content)))
        seen.add(known)
    return fragments


def _set_aside(fs: FileSystem, store: Store) -> Iterator[tuple[str, str, Callable[[bytes], Fragments]]]:
    """Yield their paths, the file that each is from, and the function that finds its messages."""
    if store.kind in ("queue", "spool"):
        names = (SPOOL, DEAD) if store.kind == "spool" else (store.name,)
        for path, of in (
            each for name in names for each in _quarantined(fs, store.path, f"{name}.diskqueue.")
        ):
            match = _OF_A_QUEUE.fullmatch(of)
            if match is not None and match[1] in names:
                yield path, of, lambda content, name=match[1]: queue_fragments(content, name)  # type: ignore[misc]
    elif store.kind == "stream":
        files = StreamFiles(fs, store.path)
        settings = read_settings(fs, files)
        is_varuint = settings is not None and settings.encoding == "varuint"
        for partition in files.partitions():
            for path, of in _quarantined(fs, files.partition(partition).private):
                if of.endswith(".data"):
                    yield path, of, lambda content, p=partition: stream_fragments(content, p, is_varuint)  # type: ignore[misc]
    elif store.kind == "journal":
        for directory in JournalFiles(fs, store.path).data_places():
            for path, of in _quarantined(fs, directory):
                yield path, of, journal_fragments
    else:
        root = StoreFiles.existing(fs, store.path).root
        for path, of in _quarantined(fs, private_path(root, "")[:-1]):
            if of.endswith(".log"):
                yield path, of, priority_fragments


def _quarantined(fs: FileSystem, directory: str, prefix: str = "") -> list[tuple[str, str]]:
    """Return the files there that were set aside, and the file that each is from."""

    if fs.size_of(directory) is None:
        return []
    names = {name: set_aside_from(name) for name in sorted(names_in(fs, directory, prefix))}
    return [(join(directory, name), original) for name, original in names.items() if original is not None]


def _content(fs: FileSystem, path: str) -> bytes:
    handle = fs.open(path)
    try:
        return fs.pread(handle, min(fs.size(handle), _LARGEST), 0)
    finally:
        fs.close(handle)
