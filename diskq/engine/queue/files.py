# The files of one NSQ queue: their names, the content of its metadata, and those that are full.
#
# The metadata is three lines, `depth`, `read file,read position`, `write file,write position`,
# which go-diskqueue reads with a scanner that stops there. diskq adds a last one, `crc32c <8 hex>` over those
# before it, which go-diskqueue never reads: without it one flipped digit would lose messages silently. Where
# bytes are damaged that `depth` does not count, a line before it says so. Format: docs/format/nsq.md.
#
# The law of the full ones: they are removed whole, the oldest first, and count as disk space until a barrier
# has removed them. What could not be read is not deleted: a file that lost bytes is set aside when it is
# consumed, by whichever process sees that.

from __future__ import annotations

import contextlib
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from diskq.errors import QueueNameError
from diskq.storage.barrier import PendingSyncs, Replacement, opened
from diskq.storage.block_reader import Loss
from diskq.storage.checksums import checked, is_checked
from diskq.storage.fs import AnyPath, FileSystem, as_path, base_name, join
from diskq.storage.log.entries import Staging
from diskq.storage.numbered_files import (
    Naming,
    checksum_file_path,
    free_aside,
    listed_as,
    names_in,
    private_path,
    told_apart,
)
from diskq.storage.numbers import NO_NUMBER
from diskq.storage.repairs import Repair

__all__ = [
    "DamagedFiles",
    "QueueFiles",
    "QueueMetadata",
    "QueuePosition",
    "SealedFiles",
    "Stretch",
    "check_name",
    "directory_and_name",
    "is_within",
    "joined",
]

# With the longest suffix a queue's files have, a name stays within the 255 bytes of a file name.
_LONGEST_NAME = 200
_LARGEST_METADATA = 1024
# Of stretches with uncounted damage: of the largest numbers they are 720 bytes.
_MOST_STRETCHES = 8

_NUMBER = rb"(-?[0-9]{1,19})"
_TEMPORARY = re.compile(r"[0-9]{1,19}\.tmp")
_LINES = re.compile(rb"%s\n%s,%s\n%s,%s\n" % ((_NUMBER,) * 5))
_UNCOUNTED = re.compile(rb"uncounted %s,%s %s,%s\n" % ((_NUMBER,) * 4))


def directory_and_name(path: AnyPath, name: str | None) -> tuple[AnyPath, str]:
    """Return the directory and the name of a queue, which is the last part of its path if it is not given.

    Raises QueueNameError for a path that ends with a slash, and as `as_path`.
    """
    if name is not None:
        return path, name
    directory, slash, name = as_path(path).rpartition("/")
    if not name:
        raise QueueNameError(name, f"{path!s} has no last part")
    return directory or (slash or "."), name


class QueuePosition(NamedTuple):
    """A place in a queue: the number of a file, and a byte in it. Ordered as the queue is."""

    file: int
    byte: int


Stretch = tuple[QueuePosition, QueuePosition]
"""What lies between two places of a queue."""


def is_within(place: QueuePosition, stretches: Iterable[Stretch]) -> bool:
    """True if the place is in one of the stretches."""
    return any(start <= place < end for start, end in stretches)


def joined(stretches: Iterable[Stretch]) -> tuple[Stretch, ...]:
    """Return the stretches in order; if they are more than metadata has space for, the first ones as one.

    If bytes between those are damaged later, the depth keeps their messages until all others are read.
    """
    in_order = sorted(stretches)
    if len(in_order) <= _MOST_STRETCHES:
        return tuple(in_order)
    first, last = in_order[: 1 - _MOST_STRETCHES], in_order[1 - _MOST_STRETCHES :]
    return ((first[0][0], max(end for _, end in first)), *last)


@dataclass(frozen=True, slots=True)
class QueueMetadata:
    """Where the queue is read and written, and how many messages lie between."""

    depth: int
    read: QueuePosition
    write: QueuePosition
    is_ours: bool
    """True if diskq wrote it, so that its checksum agrees; False if a peer did."""
    uncounted: tuple[Stretch, ...] = ()
    """Where messages are lost to damage that `depth` has not. It has those that are lost elsewhere."""

    @classmethod
    def parse(cls, content: bytes) -> QueueMetadata | None:
        """Parse metadata. None for bytes that no writer wrote."""
        lines = _LINES.match(content)
        if lines is None:
            return None
        depth, read_file, read_byte, write_file, write_byte = map(int, lines.groups())
        end = lines.end()
        is_ours = len(content) > end
        uncounted: list[Stretch] = []
        while (line := _UNCOUNTED.match(content, end)) is not None:
            file, byte, end_file, end_byte = map(int, line.groups())
            uncounted.append((QueuePosition(file, byte), QueuePosition(end_file, end_byte)))
            end = line.end()
        if is_ours and not is_checked(content, end):
            return None
        metadata = cls(
            depth,
            QueuePosition(read_file, read_byte),
            QueuePosition(write_file, write_byte),
            is_ours,
            tuple(uncounted),
        )
        numbers = (read_file, read_byte, write_file, write_byte)
        is_sane = min(numbers) >= 0 and max(numbers) < NO_NUMBER and metadata.read <= metadata.write
        return metadata if is_sane else None

    def render(self) -> bytes:
        lines = f"{self.depth}\n{self.read.file},{self.read.byte}\n{self.write.file},{self.write.byte}\n"
        for start, end in self.uncounted:
            lines += f"uncounted {start.file},{start.byte} {end.file},{end.byte}\n"
        return checked(lines.encode())


class QueueFiles:
    """The paths of one queue in its directory. They are made when needed, since there may be many queues."""

    __slots__ = ("_fs", "directory", "name")

    def __init__(self, fs: FileSystem, directory: str, name: str) -> None:
        check_name(name)
        self._fs = fs
        self.directory = directory
        self.name = name

    @property
    def what(self) -> str:
        """The queue in errors."""
        return f"queue {self.name!r} in {self.directory}"

    @property
    def naming(self) -> Naming:
        """The names of the data files."""
        return Naming(f"{self.name}.diskqueue.", 6, ".dat")

    @property
    def _checksum_files(self) -> Naming:
        return Naming(f"{self.name}.diskqueue.", 6, ".dat.sums")

    @property
    def _marks(self) -> Naming:
        return Naming(f"{self.name}.diskqueue.", 6, ".dat.damaged")

    @property
    def _ack_logs(self) -> Naming:
        return Naming(f"{self.name}.", 6, ".acks")

    @property
    def metadata(self) -> str:
        return join(self.directory, f"{self.name}.diskqueue.meta.dat")

    @property
    def private(self) -> str:
        return private_path(self.directory, "")[:-1]

    @property
    def lock(self) -> str:
        return private_path(self.directory, f"{self.name}.lock")

    @property
    def state(self) -> str:
        return private_path(self.directory, f"{self.name}.queue.state")

    old_points = None

    def state_temporary(self, number: int) -> str:
        return f"{self.state}.{number}.tmp"

    @property
    def wal(self) -> str:
        return private_path(self.directory, f"{self.name}.wal")

    @property
    def redo(self) -> str:
        return private_path(self.directory, f"{self.name}.redo")

    @property
    def swap(self) -> str:
        """The name of a directory in the private directory."""
        return f"{self.name}.repair"

    @property
    def status(self) -> str:
        return private_path(self.directory, f"{self.name}.status")

    @property
    def staging(self) -> Staging:
        """The write-ahead log, and the files that it belongs to.

        Records may follow in a file that is not the last one, too.
        """
        return Staging(self.wal, self.data, self.checksum_file, has_file=self.has_file)

    def has_file(self, name: str) -> bool:
        """True if a file with this name is the queue's: the directory may have several queues."""
        namings = (self.naming, self._checksum_files, self._ack_logs)
        others = map(base_name, (self.metadata, self.wal, self.redo))
        return name in others or any(naming.parse(name) is not None for naming in namings)

    def data(self, number: int) -> str:
        return join(self.directory, self.naming.name(number))

    def checksum_file(self, number: int) -> str:
        return checksum_file_path(self.directory, self.naming.name(number))

    def mark(self, number: int) -> str:
        """Return the path of an empty file that marks a data file: it lost bytes, keep it when consumed."""
        return private_path(self.directory, self._marks.name(number))

    def numbers(self) -> list[int]:
        """Return the numbers of the existing data files, ascending."""
        return self.naming.listed(self._fs, self.directory)

    def checksum_files(self) -> list[int]:
        """Return the numbers of the data files that have, or had, checksum files, ascending."""
        if self._fs.size_of(self.private) is None:
            return []  # a peer's queue
        return self._checksum_files.listed(self._fs, self.private)

    def marked(self) -> list[int]:
        """Return the numbers of the data files that are to be kept when they are consumed, ascending."""
        return self._marks.listed(self._fs, self.private)

    def ack_log(self, number: int) -> str:
        """Return the path of an ack log; the one with the highest number is being written."""
        return private_path(self.directory, self._ack_logs.name(number))

    def ack_logs(self) -> list[int]:
        """Return the numbers of the existing ack logs, ascending."""
        return self._ack_logs.listed(self._fs, self.private)

    def leftovers(self, numbers: list[int], missing: range = range(0)) -> list[str]:
        """Return files of diskq that a crash left: temporary metadata, and files whose data file is gone.

        Of the `missing` data files, diskq has removed none: their checksums show what is lost, and stay.
        """
        start = f"{self.name}.diskqueue.meta.dat."
        temporaries = [
            join(self.directory, name)
            for name in names_in(self._fs, self.directory, start)
            if _TEMPORARY.fullmatch(name, len(start))
        ]
        temporaries += self._state_temporaries()
        orphans = {number for number in self.checksum_files() if number not in missing} - set(numbers)
        marks = set(self.marked()) - set(numbers)
        return [*temporaries, *map(self.checksum_file, sorted(orphans)), *map(self.mark, sorted(marks))]

    def _state_temporaries(self) -> list[str]:
        start = f"{self.name}.queue.state."
        if self._fs.size_of(self.private) is None:
            return []
        names = names_in(self._fs, self.private, start)
        return [join(self.private, name) for name in names if _TEMPORARY.fullmatch(name, len(start))]

    def check_apart(self) -> None:
        """Raise QueueNameError if a queue whose name differs in case alone has the same files."""
        for path, end in ((self.lock, ".lock"), (self.metadata, ".diskqueue.meta.dat")):
            if (other := listed_as(self._fs, path)) is not None:
                raise QueueNameError(self.name, told_apart(f"queue {other.removesuffix(end)!r}"))

    def exist(self) -> bool:
        """True if the queue has files. Raises OSError."""
        try:
            names = self._fs.list_directory(self.directory)
        except FileNotFoundError:
            return False
        return any(name.startswith(f"{self.name}.diskqueue.") for name in names)

    def read_metadata(self) -> bytes | None:
        """Return the content of the metadata; None if there is none."""
        if self._fs.size_of(self.metadata) is None:
            return None
        with opened(self._fs, self.metadata) as handle:
            return self._fs.pread(handle, _LARGEST_METADATA, 0)

    def metadata_as(self, metadata: QueueMetadata) -> Replacement:
        return Replacement(self.metadata, metadata.render(), lambda number: f"{self.metadata}.{number}.tmp")


def check_name(name: str) -> None:
    """Raise QueueNameError unless `name` can be a part of file names, here and for nsqd."""
    if not isinstance(name, str):
        raise TypeError(f"a queue's name is a str, not {type(name).__name__}")
    if not name:
        raise QueueNameError(name, "it is empty")
    if "/" in name or ".." in name or name.startswith("."):
        raise QueueNameError(name, "it may not contain '/' or '..' nor begin with '.'")
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        raise QueueNameError(name, "it may not contain NUL, newlines or other control characters")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise QueueNameError(name, "it cannot be encoded") from None
    if size > _LONGEST_NAME:
        raise QueueNameError(name, f"it is {size} bytes long, at most {_LONGEST_NAME} fit a file name")


# --- the files that nothing is appended to any more -----------------------------------------------


class SealedFiles(Mapping[int, int]):
    """The end of the messages in each file, in bytes, by file number, the oldest first."""

    __slots__ = ("_checksum_bytes", "_ends", "_files", "_fs", "damaged", "kept", "leaving")

    def __init__(self, fs: FileSystem, files: QueueFiles) -> None:
        self._fs = fs
        self._files = files
        self._ends: dict[int, int] = {}
        self._checksum_bytes: dict[int, int] = {}
        self.damaged = DamagedFiles(fs, files)
        """The files that lost bytes; the active one may be among them."""
        self.kept = 0
        """Bytes of the files that are not consumed: data and checksums."""
        self.leaving = 0
        """Bytes of the consumed files, until the barrier that removes them was executed."""

    def __getitem__(self, number: int) -> int:
        return self._ends[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ends)

    def __len__(self) -> int:
        return len(self._ends)

    def find(self, sizes: Mapping[int, int], active: int) -> None:
        """Add the files found, with their sizes, except `active`. Raises OSError."""
        self.damaged.find_marked(sizes)
        for number, end in sizes.items():
            if number != active:
                self.add(number, end, self._fs.size_of(self._files.checksum_file(number)) or 0)

    def add(self, number: int, end: int, checksum_bytes: int) -> None:
        """Add the youngest file, of `end` bytes, with `checksum_bytes` bytes of checksums."""
        self._ends[number] = end
        self._checksum_bytes[number] = checksum_bytes
        self.kept += end + checksum_bytes

    def after(self, number: int) -> int | None:
        """Return the first file after that one; None if there is none."""
        if number + 1 in self._ends:
            return number + 1
        return next((later for later in self._ends if later > number), None)

    def consume(self, before: int, pending_syncs: PendingSyncs) -> bool:
        """Let the next barrier remove the files before that one. False if there are none."""
        consumed = list(takewhile(lambda number: number < before, self._ends))
        for number in consumed:
            size = self._ends.pop(number) + self._checksum_bytes.pop(number)
            self.kept -= size
            self.leaving += size
            self.damaged.let_go(number, pending_syncs)
        return bool(consumed)

    def removed(self, size: int) -> None:
        """Note that a barrier has removed `size` bytes of consumed files."""
        self.leaving -= size


class DamagedFiles:
    """Data files that are to be kept when they are consumed, by number."""

    __slots__ = ("_asides", "_files", "_fs", "_reported")

    def __init__(self, fs: FileSystem, files: QueueFiles) -> None:
        self._fs = fs
        self._files = files
        self._asides: dict[int, str] = {}  # their new names
        # Losses, by file and byte: some ranges are read twice. A set takes three times as much while empty.
        self._reported: dict[tuple[int, int], None] = {}

    def find_marked(self, there: Container[int]) -> None:
        """Add the files in `there` that an earlier process marked. Raises OSError."""
        for number in self._files.marked():
            if number in there:
                self._asides[number] = free_aside(self._fs, self._files.data(number))

    def was_reported(self, number: int, loss: Loss) -> bool:
        """True if the loss was noted before."""
        return (number, loss.start) in self._reported

    def note(self, number: int, loss: Loss, pending_syncs: PendingSyncs) -> Repair:
        """Note that bytes of this file were passed over, and mark the file. Returns the report."""
        path = self._files.data(number)
        if number not in self._asides:
            self._asides[number] = free_aside(self._fs, path)
            self._mark(number, pending_syncs)
        self._reported[number, loss.start] = None
        return loss.as_repair(path, self._asides[number])

    def _mark(self, number: int, pending_syncs: PendingSyncs) -> None:
        """Mark the file for the next process, in case this one does not see it consumed."""
        # If the disk is full, only this process knows.
        with contextlib.suppress(OSError):
            self._fs.close(self._fs.open(self._files.mark(number), write=True, create=True))
            pending_syncs.directories[self._files.private] = None

    def let_go(self, number: int, pending_syncs: PendingSyncs) -> None:
        """Let the next barrier remove a consumed file and what belongs to it, or set it aside."""
        data, checksum_file = self._files.data(number), self._files.checksum_file(number)
        if number in self._asides:
            # Its lost bytes were never delivered: they are kept for `diskq repair`.
            pending_syncs.asides.append((data, self._asides.pop(number)))
            pending_syncs.removals += [checksum_file, self._files.mark(number)]
        else:
            # In this order: checksums without their file would mean that it was removed by hand or by a peer.
            pending_syncs.removals += [checksum_file, data]
