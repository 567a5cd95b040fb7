# The names of a table's files. Law: the list of names is the table. A file appears under its name whole, by a
# rename, and never changes; so whoever can list a directory knows which messages the table has.
#
#   <into>/topic=<topic>/                 or <into>/host=<host>/topic=<topic>/
#     partition=<number>/                 decimal, as engines parse it
#       %020d-%020d.parquet               the first offset, and the one after the last: a half-open range
#     .diskq/                             private: readers of Parquet pass over names that begin with a dot
#       table.lock                        flock(2): who updates the table
#       <number>.tmp                      files that are being written
#
# A file whose range is within the range of another one is superseded: compaction writes the larger file
# before it removes the smaller ones. Without superseded files, ranges touch: where one ends the next begins.
#
# Format: docs/format/table.md.

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import unquote

from diskq.errors import ForeignFilesError, TableGapError
from diskq.storage.fs import FileSystem, base_name, directory_of, join
from diskq.storage.numbered_files import Naming, private_path
from diskq.storage.numbers import NO_NUMBER

__all__ = ["Listing", "TableFile", "TableFiles"]

_TOPIC, _HOST = "topic=", "host="
_PARTITION = Naming("partition=", 1, "")
_NAME = re.compile(r"([0-9]{20})-([0-9]{20})\.parquet")
_TEMPORARY = re.compile(r"[0-9]{1,19}\.tmp")
# What Hive, and all who read its directories, take for themselves: written as %XX. So is a space.
_ESCAPED = re.compile(r"[\x00-\x20\"#%'*/:=?\\\x7f{}\[\]^<>|&;,+]")
# Readers of directories of Parquet files pass over these: a marker of a job, the checksum of a file.
_IGNORED = (".", "_")

_NOT_OURS = "is not a file of this table, and whoever reads the directory would read it: move it elsewhere"


@dataclass(frozen=True, slots=True, order=True)
class TableFile:
    """One Parquet file of a table: messages `first_offset` to `next_offset` - 1 of a partition."""

    partition: int
    first_offset: int
    """The first offset of the range."""
    next_offset: int
    """The offset after the range."""
    path: str


class Listing(NamedTuple):
    """The files of one partition of a table, in the order of offsets."""

    files: list[TableFile]
    """The table: their ranges touch, and none is within another."""
    superseded: list[TableFile]
    """Files whose messages a larger file has, too."""

    @property
    def end(self) -> int | None:
        """The offset after the last message of the partition; None if there is no file."""
        return self.files[-1].next_offset if self.files else None


class TableFiles:
    """The paths of the table of one stream or journal below the directory `into`."""

    def __init__(self, fs: FileSystem, into: str, topic: str, host: str | None = None) -> None:
        self._fs = fs
        self.into = into if host is None else join(into, _HOST + _escaped(host))
        self.topic = topic
        self.directory = join(self.into, _TOPIC + _escaped(topic))
        self.private = private_path(self.directory, "")[:-1]
        self.lock = join(self.private, "table.lock")

    @classmethod
    def at(cls, fs: FileSystem, directory: str) -> TableFiles | None:
        """Return the paths of the table in this directory; None if it has not the name of one."""
        into, name = directory_of(directory), base_name(directory)
        return cls(fs, into, unquote(name.removeprefix(_TOPIC))) if name.startswith(_TOPIC) else None

    def partition(self, index: int) -> str:
        """Return the directory of a partition's files."""
        return join(self.directory, _PARTITION.name(index))

    def file(self, partition: int, first: int, next_offset: int) -> TableFile:
        name = f"{first:020d}-{next_offset:020d}.parquet"
        return TableFile(partition, first, next_offset, join(self.partition(partition), name))

    def temporary(self) -> str:
        """Return an unused path for a file that is being written."""
        return join(self.private, f"{self._fs.unique_number()}.tmp")

    def leftovers(self) -> list[str]:
        """Return files that a killed process has left half written. For the holder of the lock."""
        names = self._fs.list_directory(self.private)
        return [join(self.private, name) for name in names if _TEMPORARY.fullmatch(name)]

    def partitions(self) -> list[int]:
        """Return the partitions that have a directory, ascending; none if there is no table.

        Raises ForeignFilesError for other names, OSError.
        """
        try:
            names = self._fs.list_directory(self.directory)
        except FileNotFoundError:
            return []
        found = {name: _PARTITION.parse(name) for name in names if not name.startswith(_IGNORED)}
        if foreign := sorted(name for name, index in found.items() if index is None):
            raise ForeignFilesError(self.directory, foreign, _NOT_OURS)
        return sorted(index for index in found.values() if index is not None)

    def listing(self, partition: int) -> Listing:
        """Return the files of a partition, exactly, also while it is updated and compacted.

        Raises ForeignFilesError for names of no file of a table, and for ranges that overlap; TableGapError
        if messages are missing between two files; OSError.
        """
        # A listing is no snapshot: it may lack a file that was renamed, and those that were removed for it.
        before: list[str] | None = None
        while True:
            names = self._names(partition)
            found = resolved(self._parsed(partition, names))
            gap = _gap(found.files)
            if gap is None:
                return found
            if names == before:
                reason = f"{base_name(gap[0].path)} and {base_name(gap[1].path)} do not touch"
                raise TableGapError(
                    self.directory, partition, gap[0].next_offset, gap[1].first_offset, reason
                )
            before = names

    def _names(self, partition: int) -> list[str]:
        try:
            names = self._fs.list_directory(self.partition(partition))
        except FileNotFoundError:
            return []
        return sorted(name for name in names if not name.startswith(_IGNORED))

    def _parsed(self, partition: int, names: list[str]) -> list[TableFile]:
        ranges = {name: _range(name) for name in names}
        if foreign := [name for name, found in ranges.items() if found is None]:
            raise ForeignFilesError(self.partition(partition), foreign, _NOT_OURS)
        directory = self.partition(partition)
        return [
            TableFile(partition, *found, join(directory, name)) for name, found in ranges.items() if found
        ]

    def files(self) -> list[TableFile]:
        """Return the files of all partitions, in their order. Raises as `listing`."""
        return [file for partition in self.partitions() for file in self.listing(partition).files]


def _escaped(name: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", name)


def _range(name: str) -> tuple[int, int] | None:
    """Return the first and the next offset in the name of a file; None if it is no such name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    first, next_offset = int(match[1]), int(match[2])
    return (first, next_offset) if first < next_offset < NO_NUMBER else None


def resolved(found: Iterable[TableFile]) -> Listing:
    """Return which of these files of a partition are the table: of each message the largest that has it.

    Raises ForeignFilesError if two ranges overlap and neither is within the other: no updater makes such.
    """
    files: list[TableFile] = []
    superseded: list[TableFile] = []
    for file in sorted(found, key=lambda file: (file.first_offset, -file.next_offset)):
        end = files[-1].next_offset if files else 0
        if file.next_offset <= end:
            superseded.append(file)
        elif file.first_offset < end:
            names = [base_name(files[-1].path), base_name(file.path)]
            reason = "overlap, and no updater makes such files: remove the one that does not belong here"
            raise ForeignFilesError(file.path.rpartition("/")[0], names, reason)
        else:
            files.append(file)
    return Listing(files, superseded)


def _gap(files: list[TableFile]) -> tuple[TableFile, TableFile] | None:
    """Return the first two files in a row that do not touch."""
    return next(
        ((one, other) for one, other in pairwise(files) if one.next_offset != other.first_offset), None
    )
