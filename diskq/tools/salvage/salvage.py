# What can still be read, carried out of a damaged thing. Law: the thing is left as it is; a message is told
# once; and what is there and nobody can read is told, byte for byte.
#
# A repair is carried out in memory: then everything is either where readers find it, or in a file whose name
# ends in `.bad`, with those that earlier opens, earlier repairs, and go-diskqueue have left. In these, whole
# messages are looked for: from the beginning, and behind what is broken, where the format allows to know
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
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path, base_name, directory_of, join
from diskq.storage.numbered_files import private_path
from diskq.storage.overlay import OverlayFS
from diskq.tools.convert.sources import open_reading
from diskq.tools.entries import Entry, EntryBatch
from diskq.tools.json_lines import to_lines
from diskq.tools.repair.repair import mend
from diskq.tools.salvage.fragments import Scraps, jobs_scraps, journal_scraps, queue_scraps, stream_scraps
from diskq.tools.stores import Thing

__all__ = ["Salvaged", "Unread", "new_file", "salvage"]

_LARGEST = 4 * 1024 * 1024 * 1024
_QUARANTINED = re.compile(r"(.+)\.bad(?:-[0-9]+)?", re.DOTALL)
_OF_A_QUEUE = re.compile(r"(.+)\.diskqueue\.[0-9]{6,19}\.dat", re.DOTALL)
_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Unread:
    """Bytes of which nobody can tell what they were."""

    path: str
    size: int

    def __str__(self) -> str:
        return f"{self.path}: {self.size} bytes hold no message that can be told"


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvaged:
    """What was carried out."""

    thing: Thing
    messages: int
    """Those that are where readers find them."""
    scraps: int
    """Those that were found in what nobody reads any more. No checksum vouches for them."""
    unread: tuple[Unread, ...]


@dataclass(slots=True)
class _Scrap:
    """A file of bytes that were set aside, as it was taken apart."""

    path: str
    found: Scraps


def salvage(
    thing: Thing, write: Callable[[bytes], object], *, take_over: bool = False, fs: FileSystem | None = None
) -> Salvaged:
    """Give `write` every message of the thing that can be read, as lines of JSON (json_lines.py).

    First what its readers get, in order; then what is found in files set aside. Changes nothing. What is
    written anew to leave damage out is held in memory. Raises LockedError where somebody has it, DiskqError,
    OSError.
    """
    check_plain("write", write)
    disk = fs or OsFileSystem()
    with OverlayFS(disk, locks=True) as overlay:
        mend(overlay, thing, take_over=take_over)
        scraps = _scraps_of(overlay, thing)
        rare = {entry for scrap in scraps for entry in scrap.found.entries} if _has_places(thing) else set()
        is_store = thing.kind == "jobs"
        is_read: Counter[Entry] = Counter()
        messages = 0
        with open_reading(thing, fs=overlay) as reading:
            for batch in reading.batches():
                write(to_lines(batch))
                messages += len(batch)
                if rare:
                    rare -= {_placeless(entry, thing) for entry in batch.entries()}
                if is_store and scraps:
                    is_read.update(map(_as_in_a_log, batch.entries()))
    told = 0
    seen: set[Entry] = set()
    for scrap in scraps:
        entries = [entry for entry in scrap.found.entries if not _has_places(thing) or entry in rare - seen]
        if _has_places(thing):
            entries = list(dict.fromkeys(entries))
            seen.update(entries)
        if is_store:
            # What is whole of a damaged log is carried on with, and its file is kept aside as it was.
            entries, is_read = _without(entries, is_read)
        for at in range(0, len(entries), _AT_ONCE):
            write(to_lines(EntryBatch.of(entries[at : at + _AT_ONCE])))
        told += len(entries)
    unread = tuple(Unread(scrap.path, scrap.found.unread) for scrap in scraps if scrap.found.unread)
    return Salvaged(thing=thing, messages=messages, scraps=told, unread=unread)


def _as_in_a_log(entry: Entry) -> Entry:
    """As a store's log tells of a message."""
    return Entry(entry.value, priority=entry.priority, queue=entry.queue)


def _without(entries: list[Entry], is_read: Counter[Entry]) -> tuple[list[Entry], Counter[Entry]]:
    """The entries but for as many of each as were read; and of those that were, what is left."""
    rest = is_read.copy()
    left = []
    for entry in entries:
        if rest[entry] > 0:
            rest[entry] -= 1
        else:
            left.append(entry)
    return left, rest


def _has_places(thing: Thing) -> bool:
    """Do a message's time, or offset, tell it from another one that says the same?"""
    return thing.kind in ("stream", "journal")


def _placeless(entry: Entry, thing: Thing) -> Entry:
    """As scraps tell it: in a stream's files a record does not say its offset."""
    return entry._replace(offset=None) if thing.kind == "stream" else entry


@contextlib.contextmanager
def new_file(path: AnyPath) -> Iterator[Callable[[bytes], object]]:
    """Makes a file, to which what is given is appended, and which is on the platter in the end.

    Where something goes wrong on the way there is none. Raises FileExistsError, OSError.
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
        Barrier(files=(handle,), directories=(above,), closing=(handle,)).pay(disk)
    except BaseException:
        Barrier(removals=(text,)).pay(disk)
        raise


# --- what was set aside ---------------------------------------------------------------------------


def _scraps_of(fs: FileSystem, thing: Thing) -> list[_Scrap]:
    """The files that were set aside, taken apart; of several that are the same, one."""
    seen: set[tuple[str, int]] = set()
    scraps = []
    for path, of, take_apart in _set_aside(fs, thing):
        content = _content(fs, path)
        known = (of, checksum(content))
        if content.strip(b"\0") and known not in seen:
            scraps.append(_Scrap(path, take_apart(content)))
        seen.add(known)
    return scraps


def _set_aside(fs: FileSystem, thing: Thing) -> Iterator[tuple[str, str, Callable[[bytes], Scraps]]]:
    """Their paths, of which file each is, and how it is taken apart."""
    if thing.kind in ("queue", "spool"):
        names = (SPOOL, DEAD) if thing.kind == "spool" else (thing.name,)
        for path, of in _quarantined(fs, thing.path):
            match = _OF_A_QUEUE.fullmatch(of)
            if match is not None and match[1] in names:
                yield path, of, lambda content, name=match[1]: queue_scraps(content, name)  # type: ignore[misc]
    elif thing.kind == "stream":
        files = StreamFiles(fs, thing.path)
        settings = read_settings(fs, files)
        is_varuint = settings is not None and settings.encoding == "varuint"
        for partition in files.partitions():
            for path, of in _quarantined(fs, files.partition(partition).private):
                if of.endswith(".data"):
                    yield path, of, lambda content, p=partition: stream_scraps(content, p, is_varuint)  # type: ignore[misc]
    elif thing.kind == "journal":
        for directory in JournalFiles(fs, thing.path).data_places():
            for path, of in _quarantined(fs, directory):
                yield path, of, journal_scraps
    else:
        root = StoreFiles.existing(fs, thing.path).root
        for path, of in _quarantined(fs, private_path(root, "")[:-1]):
            if of.endswith(".log"):
                yield path, of, jobs_scraps


def _quarantined(fs: FileSystem, directory: str) -> list[tuple[str, str]]:
    """The files there that were set aside, and of which file each is."""
    if fs.size_of(directory) is None:
        return []
    matches = (_QUARANTINED.fullmatch(name) for name in sorted(fs.list_directory(directory)))
    return [(join(directory, match[0]), base_name(match[1])) for match in matches if match]


def _content(fs: FileSystem, path: str) -> bytes:
    handle = fs.open(path)
    try:
        return fs.pread(handle, min(fs.size(handle), _LARGEST), 0)
    finally:
        fs.close(handle)
