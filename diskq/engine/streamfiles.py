# The files of a stream: what they are called, and where what is ours alone lies beside them.
#
#   settings.json                       see streamsettings
#   owner                               16 raw bytes, while a producer is open
#   parts/000000/                       one directory for each partition
#     %020d.data .index .timeindex      a segment, named by the offset of its first message
#   groups/<group>/000000               a group's offset marker: the last offset it has processed
#   .diskq/                             ours: the lock, recovery's points, and by partition
#     parts/000000/%020d.data.sums      checksums of a data file, %020d.marks of a timeindex, `sealed`,
#                                       and what repairs set aside
#     groups/<group>/000000.claim .mark
#
# Format: docs/format/triplet.md.

from __future__ import annotations

from diskq.errors import ForeignFilesError, StreamNotFoundError
from diskq.storage.fs import FileSystem, join
from diskq.storage.segments import Naming, private_path

__all__ = ["PartitionFiles", "StreamFiles"]

_PARTITION = Naming("", 6, "")
_DATA = Naming("", 20, ".data")
_INDEX = Naming("", 20, ".index")
_TIMEINDEX = Naming("", 20, ".timeindex")
_SUMS = Naming("", 20, ".data.sums")
_MARKS = Naming("", 20, ".marks")


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


class PartitionFiles:
    """The paths of one partition."""

    def __init__(self, fs: FileSystem, stream: StreamFiles, index: int) -> None:
        self._fs = fs
        self.stream = stream
        self.index = index
        self.directory = join(stream.parts, _PARTITION.name(index))
        self.private = join(stream.private, "parts", _PARTITION.name(index))
        self.sealed = join(self.private, "sealed")

    def data(self, base: int) -> str:
        return join(self.directory, _DATA.name(base))

    def index_of(self, base: int) -> str:
        return join(self.directory, _INDEX.name(base))

    def timeindex(self, base: int) -> str:
        return join(self.directory, _TIMEINDEX.name(base))

    def sidecar(self, base: int) -> str:
        return join(self.private, _SUMS.name(base))

    def marks(self, base: int) -> str:
        return join(self.private, _MARKS.name(base))

    def segment(self, base: int) -> tuple[str, str, str]:
        """The three files in the order in which they are made, and removed: readers list data files only."""
        return self.data(base), self.index_of(base), self.timeindex(base)

    def beside(self, base: int) -> tuple[str, str]:
        """What is ours beside a segment."""
        return self.sidecar(base), self.marks(base)

    def bases(self) -> list[int]:
        """The segments there are, ascending; the last one is active. Raises StreamNotFoundError."""
        try:
            return _DATA.listed(self._fs, self.directory)
        except FileNotFoundError:
            raise StreamNotFoundError(self.stream.path, f"there is no partition {self.index}") from None

    def check_names(self) -> None:
        """Raises ForeignFilesError where there is a file in the directory that no producer made."""
        namings = (_DATA, _INDEX, _TIMEINDEX)
        names = self._fs.list_directory(self.directory)
        if foreign := sorted(n for n in names if all(naming.parse(n) is None for naming in namings)):
            raise ForeignFilesError(self.directory, foreign)
