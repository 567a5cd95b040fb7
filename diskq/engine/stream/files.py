# The files of a stream: their names, and where diskq's private files are. Law: everything outside `.diskq/`
# is go-diskq's too.
#
#   settings.json                       see streamsettings
#   owner                               16 raw bytes, while a producer is open
#   parts/000000/                       one directory for each partition
#     %020d.data .index .timeindex      a segment, named by the offset of its first message
#   groups/<group>/000000               a group's committed offset: the last offset it has processed
#   .diskq/                             private: the lock, the state, the owner's id, the pending
#                                       transaction's intent, each sink's last commit,
#     repair/                           during a repair: files that will replace others
#     gaps                              offsets whose messages a repair could not save
#     staging/                          files of transactions before the commit (see staging)
#     parts/000000/%020d.data.sums      checksums of a data file, %020d.marks of a timeindex, `sealed`,
#                                       the write-ahead log, and what repairs set aside
#     groups/<group>/000000.claim .mark the lock of the reading process, and the offset's shadow copy
#
# A temporary file of any of them is `.diskq/<name>.<number>.tmp`, or is in the directory of the shadow copy.
#
# Format: docs/format/triplet.md.

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable

from diskq.errors import ForeignFilesError, NotFoundError
from diskq.storage.barrier import Replacement, read_small
from diskq.storage.checksums import checked, is_checked
from diskq.storage.fs import FileSystem, base_name, join
from diskq.storage.log.entries import Staging
from diskq.storage.numbered_files import Naming, is_last, private_path

__all__ = ["PartitionFiles", "StreamFiles", "first_as", "read_first"]

_PARTITION = Naming("", 6, "")
_DATA = Naming("", 20, ".data")
_INDEX = Naming("", 20, ".index")
_TIMEINDEX = Naming("", 20, ".timeindex")
_SUMS = Naming("", 20, ".data.sums")
_MARKS = Naming("", 20, ".marks")
_CLAIM = Naming("", 6, ".claim")
_SHADOW = Naming("", 6, ".mark")
_MEMBER = Naming("", 6, ".member")
_COMMITTED = ".committed"
_TEMPORARY = re.compile(r"(.+)\.[0-9]{1,19}\.tmp", re.DOTALL)


class StreamFiles:
    """The paths of one stream in its directory."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self.path = path
        public, private = join(path, ""), private_path(path, "")  # each ends with a slash
        self.settings = f"{public}settings.json"
        self.owner = f"{public}owner"
        self.parts = f"{public}parts"
        self.groups = f"{public}groups"
        self.private = private[:-1]
        self.lock = f"{private}stream.lock"
        self.state = f"{private}state"
        self.old_points: str | None = f"{private}points"
        self.gaps = f"{private}gaps"
        self.owner_id = f"{private}owner"
        self.intent = f"{private}intent"
        self.staging = f"{private}staging"
        self.redo = f"{private}redo"
        self.swap = "repair"  # the name of a directory in the private one
        self.status = f"{private}status"

    def partition(self, index: int) -> PartitionFiles:
        return PartitionFiles(self._fs, self, index)

    def exist(self) -> bool:
        """True if there is a stream. Raises OSError."""
        return self._fs.size_of(self.parts) is not None

    def partitions(self) -> list[int]:
        """Return the existing partitions, ascending. Raises NotFoundError if there is no stream."""
        if not self.exist():
            raise NotFoundError("stream", self.path, "there is no stream here")
        return _PARTITION.listed(self._fs, self.parts)

    @property
    def has_groups(self) -> bool:
        """False if no group has ever read it."""
        return self._fs.size_of(self.groups) is not None

    @property
    def has_transactions(self) -> bool:
        """False if nothing is staged or committed here, as in most streams."""
        return self._fs.size_of(self.staging) is not None or self._fs.size_of(self.intent) is not None

    def group(self, name: str) -> str:
        """Return the directory of a group's committed offsets."""
        return join(self.groups, name)

    def private_group(self, name: str) -> str:
        """Return the private directory of a group."""
        return join(self.private, "groups", name)

    def committed_offset(self, group: str, partition: int) -> str:
        """Return the path of a group's committed offset in a partition."""
        return join(self.group(group), _PARTITION.name(partition))

    def committed_partitions(self, group: str) -> list[int]:
        """Return the partitions in which a group has a committed offset, ascending."""
        try:
            return _PARTITION.listed(self._fs, self.group(group))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def shadow(self, group: str, partition: int) -> str:
        """Return the path of a committed offset's shadow copy, to distinguish rot from a peer's commit."""
        return join(self.private_group(group), _SHADOW.name(partition))

    def claim(self, group: str, partition: int) -> str:
        """Return the path of the lock of the process that reads a partition for a group."""
        return join(self.private_group(group), _CLAIM.name(partition))

    def member(self, group: str, number: int) -> str:
        """Return the path of the lock of one of the processes that share the partitions of a group."""
        return join(self.private_group(group), _MEMBER.name(number))

    def members(self, group: str) -> list[int]:
        """Return the numbers of the files of members, present or past, ascending."""
        return _MEMBER.listed(self._fs, self.private_group(group))

    def committed(self, sink: str) -> str:
        """Return the path of a sink's last commit."""
        return join(self.private, sink + _COMMITTED)

    def sinks(self) -> list[str]:
        """Return the sinks that have committed something, sorted; none if there is no stream."""
        try:
            names = self._fs.list_directory(self.private)
        except FileNotFoundError:
            return []
        return sorted(name.removesuffix(_COMMITTED) for name in names if name.endswith(_COMMITTED))

    def staged(self, name: str) -> str:
        """Return the path of a staged file, by its name."""
        return join(self.staging, name)

    def state_temporary(self, number: int) -> str:
        return self.temporary(self.state)(number)

    def temporary(self, path: str) -> Callable[[int], str]:
        """Return a function that names temporary files for a file in the root or the private directory."""
        return lambda number: f"{join(self.private, base_name(path))}.{number}.tmp"

    def committed_offset_temporary(self, group: str, partition: int) -> Callable[[int], str]:
        name = join(self.private_group(group), _PARTITION.name(partition))
        return lambda number: f"{name}.{number}.tmp"

    def leftovers(self) -> list[str]:
        """Return temporary files in the private directory that a crash left. For the holder of the lock."""
        return [join(self.private, name) for name in self._temporaries(self.private)]

    def committed_offset_leftovers(self, group: str, partition: int) -> list[str]:
        """Return temporary files of one committed offset that a crash left. For the holder of the claim."""
        directory, mine = self.private_group(group), _PARTITION.name(partition)
        return [join(directory, name) for name, of in self._temporaries(directory).items() if of == mine]

    def _temporaries(self, directory: str) -> dict[str, str]:
        """Return the names of temporary files, each with the name of its file."""
        found = {name: _TEMPORARY.fullmatch(name) for name in self._fs.list_directory(directory)}
        return {name: match[1] for name, match in found.items() if match is not None}


class PartitionFiles:
    """The paths of one partition."""

    def __init__(self, fs: FileSystem, stream: StreamFiles, index: int) -> None:
        self._fs = fs
        self.stream = stream
        self.index = index
        self.directory = join(stream.parts, _PARTITION.name(index))
        self.private = join(stream.private, "parts", _PARTITION.name(index))
        self.sealed = join(self.private, "sealed")
        self.wal = join(self.private, "wal")
        self.first = join(self.private, "first")

    @property
    def staging(self) -> Staging:
        """Return the write-ahead log, with the files whose bytes it has."""
        return Staging(self.wal, self.data, self.checksum_file, lambda base: is_last(base, self.bases()))

    def data(self, base: int) -> str:
        return join(self.directory, _DATA.name(base))

    def index_of(self, base: int) -> str:
        return join(self.directory, _INDEX.name(base))

    def timeindex(self, base: int) -> str:
        return join(self.directory, _TIMEINDEX.name(base))

    def checksum_file(self, base: int) -> str:
        return join(self.private, _SUMS.name(base))

    def marks(self, base: int) -> str:
        return join(self.private, _MARKS.name(base))

    def temporary(self, path: str) -> Callable[[int], str]:
        """Return a function that names temporary files for a private file of this partition."""
        return lambda number: f"{path}.{number}.tmp"

    def segment(self, base: int) -> tuple[str, str, str]:
        """Return the three files in the order in which they are made and removed: readers list data files."""
        return self.data(base), self.index_of(base), self.timeindex(base)

    def private_files(self, base: int) -> tuple[str, str]:
        """Return the private files of a segment: its checksum file and its marks."""
        return self.checksum_file(base), self.marks(base)

    def kept(self, path: str) -> str:
        """Return the path, outside the peer's listing, from which names for kept bytes of a file are made."""
        return join(self.private, base_name(path))

    def bases(self) -> list[int]:
        """Return the existing segments, ascending; the last one is active. Raises NotFoundError.

        No existing segment is missing between two others, also while a producer makes more of them.
        """
        # A listing is no snapshot: it may have a segment, and not one that was made before it. But all that
        # it has, and all before, existed when the second listing began, which therefore has them all.
        last = max(self._listed(), default=-1)
        return [base for base in self._listed() if base <= last]

    def _listed(self) -> list[int]:
        try:
            return _DATA.listed(self._fs, self.directory)
        except FileNotFoundError:
            raise self._not_found() from None

    def bases_after(self, base: int) -> list[int]:
        """Return the segments after `base`, ascending, as `bases`, without parsing the names before it."""
        last = max(self._listed_after(base), default=-1)
        return sorted(number for number in self._listed_after(base) if number <= last)

    def _listed_after(self, base: int) -> list[int]:
        try:
            names = self._fs.list_directory(self.directory)
        except FileNotFoundError:
            raise self._not_found() from None
        mine = _DATA.name(base)
        numbers = [_DATA.parse(name) for name in names if name > mine]
        return [number for number in numbers if number is not None]

    def _not_found(self) -> NotFoundError:
        return NotFoundError("partition", self.stream.path, f"there is no partition {self.index}")

    @property
    def has_notes(self) -> bool:
        """True if there is something of a time index summary."""
        return self._fs.size_of(self.sealed) is not None or bool(self.marked())

    def marked(self) -> list[int]:
        """Return the segments that have a file of marks, ascending."""
        try:
            return _MARKS.listed(self._fs, self.private)
        except FileNotFoundError:
            return []

    def checksum_files(self) -> list[int]:
        """Return the segments that have a checksum file, ascending."""
        try:
            return _SUMS.listed(self._fs, self.private)
        except FileNotFoundError:
            return []

    def orphans(self, bases: Iterable[int], before: int | None = None) -> list[str]:
        """Return files whose segment is gone: a removal was interrupted, or a peer removed its own files.

        With `before`, only files of segments before that one: a producer may be making new ones meanwhile.
        """
        known = set(bases)
        orphans = []
        for directory, namings in ((self.directory, (_INDEX, _TIMEINDEX)), (self.private, (_SUMS, _MARKS))):
            with contextlib.suppress(FileNotFoundError):
                for name in sorted(self._fs.list_directory(directory)):
                    numbers = [naming.parse(name) for naming in namings]
                    if any(
                        number is not None and number not in known and (before is None or number < before)
                        for number in numbers
                    ):
                        orphans.append(join(directory, name))
        return orphans

    def without_index(self, bases: Iterable[int]) -> list[int]:
        """Return the segments, of those that begin at `bases`, whose index or timeindex is missing."""
        names = set(self._fs.list_directory(self.directory))
        return [base for base in bases if not names.issuperset({_INDEX.name(base), _TIMEINDEX.name(base)})]

    def check_names(self) -> None:
        """Raises ForeignFilesError if the directory has a file that no producer made."""
        namings = (_DATA, _INDEX, _TIMEINDEX)
        names = self._fs.list_directory(self.directory)
        if foreign := sorted(n for n in names if all(naming.parse(n) is None for naming in namings)):
            raise ForeignFilesError(self.directory, foreign)


# --- where a partition begins after retention -------------------------------------------------------------
# The new beginning is durable before anything is removed. Removals are not synced: after a power cut any part
# of the removed segments may be back, and must not be taken for the beginning of a log whose rest was lost.

_FIRST = re.compile(rb"diskq first 1 ([0-9]{1,19})\n")


def first_as(files: PartitionFiles, base: int) -> Replacement:
    """Return the replacement by which retention notes that all segments before `base` are to be removed."""
    content = checked(b"diskq first 1 %d\n" % base)
    return Replacement(files.first, content, files.temporary(files.first))


def read_first(fs: FileSystem, files: PartitionFiles) -> int:
    """Return the segment before which retention has removed all; 0 if it removed nothing. Raises OSError."""
    content = read_small(fs, files.first, 100) or b""
    head = _FIRST.match(content)
    return int(head[1]) if head is not None and is_checked(content, head.end()) else 0
