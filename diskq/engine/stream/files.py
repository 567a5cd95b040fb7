# The files of a stream: what they are called, and where what is ours alone lies beside them.
#
#   settings.json                       see streamsettings
#   owner                               16 raw bytes, while a producer is open
#   parts/000000/                       one directory for each partition
#     %020d.data .index .timeindex      a segment, named by the offset of its first message
#   groups/<group>/000000               a group's offset marker: the last offset it has processed
#   .diskq/                             ours: the lock, recovery's points, our owner's id, the pending
#                                       transaction's intent, what each sink has committed last,
#     repair/                           while one is carried out: files that are to take others' places
#     gaps                              offsets whose messages a repair could not save
#     staging/                          what is to be committed (see staging), and by partition
#     parts/000000/%020d.data.sums      checksums of a data file, %020d.marks of a timeindex, `sealed`,
#                                       the write-ahead log, and what repairs set aside
#     groups/<group>/000000.claim .mark who has the partition, and the shadow copy of the group's marker
#
# A temporary of any of them is `.diskq/<name>.<number>.tmp`, or stands beside the shadow copy of its marker.
#
# Format: docs/format/triplet.md.

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable

from diskq.errors import ForeignFilesError, StreamNotFoundError
from diskq.storage.fs import FileSystem, base_name, join
from diskq.storage.numbered_files import Naming, private_path
from diskq.storage.write_ahead_log import Staging

__all__ = ["PartitionFiles", "StreamFiles"]

_PARTITION = Naming("", 6, "")
_DATA = Naming("", 20, ".data")
_INDEX = Naming("", 20, ".index")
_TIMEINDEX = Naming("", 20, ".timeindex")
_SUMS = Naming("", 20, ".data.sums")
_MARKS = Naming("", 20, ".marks")
_CLAIM = Naming("", 6, ".claim")
_SHADOW = Naming("", 6, ".mark")
_COMMITTED = ".committed"
_TEMPORARY = re.compile(r"(.+)\.[0-9]{1,19}\.tmp", re.DOTALL)


class StreamFiles:
    """The paths of one stream in its directory."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self.path = path
        self.settings = join(path, "settings.json")
        self.owner = join(path, "owner")
        self.parts = join(path, "parts")
        self.groups = join(path, "groups")
        self.private = private_path(path, "")[:-1]
        self.lock = private_path(path, "stream.lock")
        self.points = private_path(path, "points")
        self.gaps = private_path(path, "gaps")
        self.owner_id = private_path(path, "owner")
        self.intent = private_path(path, "intent")
        self.staging = private_path(path, "staging")
        self.swap = "repair"  # a directory of that name, among what is private
        self.status = private_path(path, "status")

    def partition(self, index: int) -> PartitionFiles:
        return PartitionFiles(self._fs, self, index)

    def partitions(self) -> list[int]:
        """The partitions there are, ascending. Raises StreamNotFoundError where there is no stream."""
        if self._fs.size_of(self.parts) is None:
            raise StreamNotFoundError(self.path, "there is no stream here")
        return _PARTITION.listed(self._fs, self.parts)

    def group(self, name: str) -> str:
        """The directory of a group's markers."""
        return join(self.groups, name)

    def private_group(self, name: str) -> str:
        """The directory of what is ours of a group."""
        return join(self.private, "groups", name)

    def committed_offset(self, group: str, partition: int) -> str:
        """What a group has processed of a partition."""
        return join(self.group(group), _PARTITION.name(partition))

    def committed_partitions(self, group: str) -> list[int]:
        """The partitions of which a group has a marker, ascending; none where there is no such group."""
        try:
            return _PARTITION.listed(self._fs, self.group(group))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def shadow(self, group: str, partition: int) -> str:
        """What our last marker said, so that a rotten one is told from one that a peer has moved."""
        return join(self.private_group(group), _SHADOW.name(partition))

    def claim(self, group: str, partition: int) -> str:
        """The lock of who processes a partition for a group."""
        return join(self.private_group(group), _CLAIM.name(partition))

    def committed(self, sink: str) -> str:
        """What a sink has committed last."""
        return join(self.private, sink + _COMMITTED)

    def sinks(self) -> list[str]:
        """Those that have committed something, sorted; none where there is no stream."""
        try:
            names = self._fs.list_directory(self.private)
        except FileNotFoundError:
            return []
        return sorted(name.removesuffix(_COMMITTED) for name in names if name.endswith(_COMMITTED))

    def staged(self, name: str) -> str:
        """A staged file, by its name."""
        return join(self.staging, name)

    def temporary(self, path: str) -> Callable[[int], str]:
        """How the temporaries of a file in the root, or in its private directory, are called."""
        return lambda number: f"{join(self.private, base_name(path))}.{number}.tmp"

    def committed_offset_temporary(self, group: str, partition: int) -> Callable[[int], str]:
        name = join(self.private_group(group), _PARTITION.name(partition))
        return lambda number: f"{name}.{number}.tmp"

    def leftovers(self) -> list[str]:
        """Temporaries in the private directory that a crash left, if asked by who holds the lock."""
        return [join(self.private, name) for name in self._temporaries(self.private)]

    def committed_offset_leftovers(self, group: str, partition: int) -> list[str]:
        """The same of one marker, if asked by who holds the claim."""
        directory, mine = self.private_group(group), _PARTITION.name(partition)
        return [join(directory, name) for name, of in self._temporaries(directory).items() if of == mine]

    def _temporaries(self, directory: str) -> dict[str, str]:
        """The names of temporaries, and what they are temporaries of."""
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
        self.wal = join(self.private, "slate")
        self.first = join(self.private, "first")

    @property
    def staging(self) -> Staging:
        """The write-ahead log, and what it tells of."""
        return Staging(
            self.wal, self.data, self.checksum_file, lambda base: base >= max(self.bases(), default=0)
        )

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
        """How the temporaries of a file of ours in this partition are called."""
        return lambda number: f"{path}.{number}.tmp"

    def segment(self, base: int) -> tuple[str, str, str]:
        """The three files in the order in which they are made, and removed: readers list data files only."""
        return self.data(base), self.index_of(base), self.timeindex(base)

    def private_files(self, base: int) -> tuple[str, str]:
        """What is ours beside a segment."""
        return self.checksum_file(base), self.marks(base)

    def kept(self, path: str) -> str:
        """Beside what, out of the peer's sight, bytes of a file of this partition are kept."""
        return join(self.private, base_name(path))

    def bases(self) -> list[int]:
        """The segments there are, ascending; the last one is active. Raises StreamNotFoundError.

        None that is there is missing between two others, also while a producer makes more of them.
        """
        # A listing is no snapshot: it may have a segment, and not one that was made before it. What it
        # has was there, and all before it, when the second listing began, which therefore has them all.
        last = max(self._listed(), default=-1)
        return [base for base in self._listed() if base <= last]

    def _listed(self) -> list[int]:
        try:
            return _DATA.listed(self._fs, self.directory)
        except FileNotFoundError:
            raise self._not_found() from None

    def bases_after(self, base: int) -> list[int]:
        """The segments behind `base`, ascending, as `bases`: without a look at all that lie before it."""
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

    def _not_found(self) -> StreamNotFoundError:
        return StreamNotFoundError(self.stream.path, f"there is no partition {self.index}")

    def marked(self) -> list[int]:
        """The segments that have, or had, marks beside them, ascending."""
        try:
            return _MARKS.listed(self._fs, self.private)
        except FileNotFoundError:
            return []

    def checksum_files(self) -> list[int]:
        """The segments of which checksums are there, ascending."""
        try:
            return _SUMS.listed(self._fs, self.private)
        except FileNotFoundError:
            return []

    def orphans(self, bases: Iterable[int], before: int | None = None) -> list[str]:
        """Files whose segment is gone: a removal was cut short, or a peer removed what it knows of.

        Of segments `before` that one only, where a producer may be making new ones meanwhile.
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
        """Those of the segments whose index or timeindex is not there."""
        names = set(self._fs.list_directory(self.directory))
        return [base for base in bases if not names.issuperset({_INDEX.name(base), _TIMEINDEX.name(base)})]

    def check_names(self) -> None:
        """Raises ForeignFilesError where there is a file in the directory that no producer made."""
        namings = (_DATA, _INDEX, _TIMEINDEX)
        names = self._fs.list_directory(self.directory)
        if foreign := sorted(n for n in names if all(naming.parse(n) is None for naming in namings)):
            raise ForeignFilesError(self.directory, foreign)
