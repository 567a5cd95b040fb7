# The content of a disk, and what a power cut leaves of it. Law: bytes and names that were synced are
# never harmed; of the others any part may be there that the law in `crash_fs.py` allows.
#
# Pure state: no paths, no handles, no counting. A file has the bytes that programs see, the bytes on
# stable storage, and the changes between the two, oldest first; a directory is the same with names.

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from typing import Literal, TypeAlias, TypeVar

__all__ = [
    "Directory",
    "File",
    "InodeNumbers",
    "NameChange",
    "Severity",
    "after_power_cut",
    "commit",
    "copied",
    "set_entry",
]

SECTOR = 512

ByteChange: TypeAlias = tuple[int, bytes | None]
"""(offset, bytes written there), or (size, None): the file was cut or extended to that size."""

Severity: TypeAlias = Literal["none", "all", "mixed"]
"""How much of what is pending survives: "mixed" draws anew for each file and each directory."""

Entries: TypeAlias = "dict[str, File | Directory]"
T = TypeVar("T")


class InodeNumbers:
    """Inode numbers: each file gets the lowest number that no other file has, as on ext4."""

    _push = staticmethod(heapq.heappush)  # found when a process ends, too

    def __init__(self) -> None:
        self._files: dict[int, int] = {}
        self._free: list[int] = []

    def draw(self) -> int:
        number = heapq.heappop(self._free) if self._free else len(self._files) + 1
        self._files[number] = 0
        return number

    def hold(self, number: int) -> None:
        """Count one more file with this number: the same file, on another disk."""
        self._files[number] = self._files.get(number, 0) + 1

    def settle(self) -> None:
        """Free the unused numbers, once all files of a copied disk have theirs."""
        self._free = [number for number in range(1, max(self._files, default=0)) if number not in self._files]

    def release(self, number: int) -> None:
        self._files[number] -= 1
        if not self._files[number]:
            del self._files[number]
            self._push(self._free, number)


class File:
    """One file, whatever its name."""

    __slots__ = (
        *("durable", "is_shared", "locked_by", "modified", "modified_durably", "now", "number"),
        *("_numbers", "pending"),
    )

    def __init__(
        self,
        numbers: InodeNumbers,
        modified: int,
        now: bytes | bytearray = b"",
        durable: bytes | bytearray = b"",
        *,
        number: int | None = None,
    ) -> None:
        self.now = bytearray(now)
        self.durable = bytearray(durable)
        self.modified = self.modified_durably = modified
        """When it was made or written (nanoseconds); and the oldest such time that a power cut may leave."""
        self._numbers = numbers
        self.number = numbers.draw() if number is None else number
        numbers.hold(self.number)
        self.pending: list[ByteChange] = []
        self.locked_by: int | None = None
        self.is_shared = False
        """True if it was mapped into memory. A store there changes `now` without a `change`."""

    def __del__(self) -> None:
        # It has no name and no handle any more, and no power cut can bring it back.
        self._numbers.release(self.number)

    def change(self, change: ByteChange, at: int) -> None:
        """Change the bytes, at this time (nanoseconds)."""
        _apply(self.now, change)
        self.pending.append(change)
        self.modified = at

    def sync(self) -> None:
        self.modified_durably = self.modified
        for change in self.pending:
            _apply(self.durable, change)
        self.pending.clear()

    def fail_to_sync(self) -> None:
        """Lose the unsynced bytes, as a kernel does that could not write them and now holds them for clean.

        They stay readable, and no later sync writes them. The size is different: it is metadata, so a later
        sync makes the file as long as it looks, with zeros for the lost bytes.
        """
        sizes: list[ByteChange] = []
        size = len(self.durable)
        for at, data in self.pending:
            end = at if data is None else max(size, at + len(data))
            if end != size:
                sizes.append((end, None))
            size = end
        self.pending = sizes

    def after(self, data: bytearray, times: random.Random) -> File:
        """Return the file after a power cut, with `data`: its time may be as old as its last sync."""
        modified = times.choice((self.modified_durably, self.modified))
        return File(self._numbers, modified, data, data, number=self.number)

    def copy(self, numbers: InodeNumbers) -> File:
        shadow = File(numbers, self.modified, self.now, self.durable, number=self.number)
        shadow.modified_durably = self.modified_durably
        shadow.pending = self.pending.copy()
        shadow.is_shared = self.is_shared
        return shadow


class Directory:
    """Names, and the files and directories that have them."""

    __slots__ = ("durable", "now")

    def __init__(self) -> None:
        self.now: Entries = {}
        self.durable: Entries = {}


def set_entry(entries: Entries, name: str, node: File | Directory | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


NameChange: TypeAlias = tuple[tuple[Directory, str, File | Directory | None], ...]
"""Entries set, or removed (None), in one indivisible step: a rename removes one and sets one."""


def copied(
    root: Directory, pending: list[NameChange], numbers: InodeNumbers
) -> tuple[Directory, list[NameChange]]:
    """Copy the whole tree, with what is pending: a change of one tree does not affect the other.

    Its files keep their numbers, which are counted in `numbers`.
    """
    shadows: dict[int, File | Directory] = {}

    def directory(node: Directory) -> Directory:
        shadow = shadows.get(id(node))
        if shadow is None:
            shadow = shadows[id(node)] = Directory()
            shadow.now = {name: either(inner) for name, inner in node.now.items()}
            shadow.durable = {name: either(inner) for name, inner in node.durable.items()}
        assert isinstance(shadow, Directory)
        return shadow

    def either(node: File | Directory) -> File | Directory:
        if isinstance(node, Directory):
            return directory(node)
        if id(node) not in shadows:
            shadows[id(node)] = node.copy(numbers)
        return shadows[id(node)]

    shadow = (
        directory(root),
        [
            tuple((directory(where), name, node and either(node)) for where, name, node in change)
            for change in pending
        ],
    )
    numbers.settle()
    return shadow


def commit(pending: list[NameChange], directory: Directory) -> list[NameChange]:
    """Sync one directory's names; returns what is pending still.

    A rename between two directories cannot be half durable, so it takes along everything that
    happened in the other one before it.
    """
    involved = {id(directory)}
    durable: list[NameChange] = []
    later: list[NameChange] = []
    for change in reversed(pending):
        touched = {id(where) for where, _, _ in change}
        if touched & involved:
            involved |= touched
            durable.append(change)
        else:
            later.append(change)
    for change in reversed(durable):
        for where, name, node in change:
            set_entry(where.durable, name, node)
    later.reverse()
    return later


# --- after a power cut ----------------------------------------------------------------------------


def after_power_cut(
    root: Directory, pending: list[NameChange], rng: random.Random, of_bytes: Severity, of_names: Severity
) -> Directory:
    """Return the root after a power cut, all of it durable."""
    # Times are drawn separately, so that the other draws do not depend on them.
    times = random.Random()
    times.setstate(rng.getstate())
    found: dict[int, Entries] = {}
    for change in surviving_changes(pending, rng, of_names):
        for directory, name, node in change:
            set_entry(found.setdefault(id(directory), directory.durable.copy()), name, node)

    files: dict[int, File] = {}  # one file under two names is one still

    def rebuilt(directory: Directory) -> Directory:
        after = Directory()
        for name, node in found.get(id(directory), directory.durable).items():
            if isinstance(node, Directory):
                after.now[name] = rebuilt(node)
            else:
                if id(node) not in files:
                    files[id(node)] = node.after(surviving_bytes(node, rng, of_bytes), times)
                after.now[name] = files[id(node)]
        after.durable = after.now.copy()
        return after

    return rebuilt(root)


def surviving_bytes(file: File, rng: random.Random, how_much: Severity) -> bytearray:
    """Return the file's bytes after a power cut."""
    if file.is_shared and how_much != "none":
        return _surviving_pages(file, rng)
    if how_much == "none" or not file.pending:
        return bytearray(file.durable)
    damage = "whole" if how_much == "all" else rng.choice(("whole", "torn", "zeroed", "holes"))
    changes = list(_choose(file.pending, rng, how_much))
    if damage == "torn":
        _tear(changes, rng)
    data = bytearray(file.durable)
    # Bytes from here on had no place on stable storage before: they may read as zeros.
    fresh = len(data)
    for change in changes:
        _apply(data, change)
        if change[1] is None:
            fresh = min(fresh, change[0])
    if damage == "zeroed" and fresh < len(data):
        start = fresh if rng.random() < 0.5 else rng.randrange(fresh, len(data))
        data[start:] = bytes(len(data) - start)
    elif damage == "holes":
        _punch(data, file.durable[:fresh], changes, rng)
    return data


def _surviving_pages(file: File, rng: random.Random) -> bytearray:
    """Return the bytes of a mapped file: the kernel may have written any of its pages, at any time."""
    data = bytearray(file.now)
    for start in range(0, len(data), SECTOR):
        if rng.random() < 0.5:
            old = file.durable[start : start + SECTOR]
            data[start : start + SECTOR] = old + bytes(len(data[start : start + SECTOR]) - len(old))
    return data


def surviving_changes(pending: list[NameChange], rng: random.Random, how_much: Severity) -> list[NameChange]:
    """Return the pending name changes that a power cut finds on stable storage, oldest first.

    Directories are independent of each other, and so are names; the changes of one name are not.
    """
    by_directory: dict[int, list[int]] = {}
    for number, change in enumerate(pending):
        by_directory.setdefault(id(change[-1][0]), []).append(number)
    chosen = {number for numbers in by_directory.values() for number in _choose(numbers, rng, how_much)}
    # What was done to a name before a chosen change was done as well: without it a rename whose
    # source was overwritten since would leave its file without a name.
    decided: set[tuple[int, str]] = set()
    for number in reversed(range(len(pending))):
        touched = {(id(directory), name) for directory, name, _ in pending[number]}
        if number in chosen or touched & decided:
            chosen.add(number)
            decided |= touched
    return [pending[number] for number in sorted(chosen)]


def _choose(items: list[T], rng: random.Random, how_much: Severity) -> Iterator[T]:
    match rng.choice(("none", "all", "first", "some")) if how_much == "mixed" else how_much:
        case "all":
            yield from items
        case "first":
            yield from items[: rng.randint(0, len(items))]
        case "some":
            yield from (item for item in items if rng.random() < 0.5)


def _tear(changes: list[ByteChange], rng: random.Random) -> None:
    """Shorten the last change, if it is a write, to fewer bytes or to whole sectors."""
    if not changes or changes[-1][1] is None:
        return
    at, data = changes[-1]
    assert data is not None
    end = at + rng.randrange(len(data))
    if rng.random() < 0.5:
        end = max(at, end // SECTOR * SECTOR)
    changes[-1] = (at, data[: end - at])


def _punch(data: bytearray, before: bytearray, changes: list[ByteChange], rng: random.Random) -> None:
    """Give some of the written sectors back their old bytes, or zeros if they had none."""
    for at, written in changes:
        if written is None:
            continue
        for start in range(at // SECTOR * SECTOR, at + len(written), SECTOR):
            if rng.random() < 0.3:
                old = before[start : start + SECTOR].ljust(SECTOR, b"\0")
                end = min(start + SECTOR, len(data))
                data[start:end] = old[: max(0, end - start)]


def _apply(data: bytearray, change: ByteChange) -> None:
    at, written = change
    if len(data) < at:
        data.extend(bytes(at - len(data)))
    if written is None:
        del data[at:]
    else:
        data[at : at + len(written)] = written
