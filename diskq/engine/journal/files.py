# The files of a journal, sej's and private ones. Law: sej reads and writes all files outside `.diskq/`, and
# lists none inside. In `jnl/` only segments are made, by their final names: one of sej's scanners takes
# any other change there for a new file, and loses its place.
#
#   <journal>/
#     jnl.lck                         flock(2): who may write
#     jnl/%016x.jnl                   segments, by the offset of their first message
#     ofs/<name>.ofs .lck             how far a reader has come, and its lock
#     .diskq/                         private:
#       state                           what the last writer left, and up to where everything is durable
#       wal                             the write-ahead log: messages that are accepted and not yet written
#       redo                            the redo log: messages that are durable here before they are in jnl/
#       repair/                         during a repair: files that will replace others
#       gaps                            offsets whose messages a repair could not save
#       journal-data/%016x.jnl.sums     checksums of a segment; and bytes that repairs set aside
#       ofs/<name>.mark                 the shadow copy of an offset
#
# A temporary file is `.diskq/<name>.<number>.tmp`, or is in the directory of an offset's shadow copy.
#
# Older versions had `.diskq/jnl/` for `.diskq/journal-data/`. sej takes every directory with a `jnl/` in
# it for a journal, hidden ones too, and writes there. So a writer moves those files when it opens the
# journal, and a reader looks in both places.
#
# Format: docs/format/sej.md.

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable

from diskq.errors import NotFoundError, ReaderNameError
from diskq.storage.barrier import Barrier
from diskq.storage.fs import FileSystem, base_name, join
from diskq.storage.log.entries import Staging
from diskq.storage.numbered_files import Naming, free_aside, is_last, private_path

__all__ = ["JournalFiles"]

_DATA = Naming("", 16, ".jnl", is_hex=True)
_SUMS = Naming("", 16, ".jnl.sums", is_hex=True)
_OFFSET = ".ofs"
_TEMPORARY = re.compile(r"(.+)\.[0-9]{1,19}\.tmp", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:#-]{0,63}")


class JournalFiles:
    """The paths of one journal in its directory."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self.path = path
        self.lock = join(path, "jnl.lck")
        self.directory = join(path, "jnl")
        self.offsets = join(path, "ofs")
        self.private = private_path(path, "")[:-1]
        self.private_data = join(self.private, "journal-data")
        self._old_data = join(self.private, "jnl")
        self.private_offsets = join(self.private, "ofs")
        self.state = private_path(path, "state")
        self.old_points: str | None = private_path(path, "points")
        self.gaps = private_path(path, "gaps")
        self.wal = private_path(path, "wal")
        self.redo = private_path(path, "redo")
        self.swap = "repair"  # the name of a directory in the private one
        self.status = private_path(path, "status")

    @property
    def staging(self) -> Staging:
        """The write-ahead log, with the files whose bytes it has."""
        return Staging(self.wal, self.data, self.checksum_file, lambda base: is_last(base, self.bases()))

    # --- segments ---------------------------------------------------------------------------------

    def data(self, base: int) -> str:
        return join(self.directory, _DATA.name(base))

    def checksum_file(self, base: int) -> str:
        name = _SUMS.name(base)
        old = join(self._old_data, name)
        # If both exist, a version that knows only the old place has written last.
        return old if self._fs.size_of(old) is not None else join(self.private_data, name)

    def kept(self, path: str) -> str:
        """Return the path, unseen by the peer, from which names for kept bytes of a segment are made."""
        return join(self.private_data, base_name(path))

    def bases(self) -> list[int]:
        """Return the existing segments, ascending; the last one is active. Raises NotFoundError.

        No existing segment is missing between two others, also while a writer makes more of them.
        """
        # A listing is no snapshot: it may have a segment, and not one that was made before it. But all that
        # it has, and all before, existed when the second listing began, which therefore has them all.
        last = max(self._listed(), default=-1)
        return [base for base in self._listed() if base <= last]

    def written_at(self, base: int) -> int | None:
        """Return when the segment's file was last written (ns since 1970); None if it is gone."""
        stamp = self._fs.stamp_of(self.data(base))
        return None if stamp is None else stamp.modified_ns

    def data_size(self) -> int:
        """Return the bytes of all segments that exist now. Raises NotFoundError, OSError."""
        return sum(self._fs.size_of(self.data(base)) or 0 for base in self._listed())

    def exist(self) -> bool:
        """True if there is a journal. Raises OSError."""
        try:
            self._listed()
        except NotFoundError:
            return False
        return True

    def _listed(self) -> list[int]:
        try:
            return _DATA.listed(self._fs, self.directory)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError("journal", self.path) from None

    def checksum_files(self) -> list[int]:
        """Return the segments that have a checksum file, ascending."""
        listed = (_SUMS.listed(self._fs, directory) for directory in self.data_places())
        return sorted({base for bases in listed for base in bases})

    def orphans(self, bases: Iterable[int]) -> list[str]:
        """Return checksum files whose segment is gone: segments may be removed by hand."""
        known = set(bases)
        return [
            join(directory, _SUMS.name(base))
            for directory in self.data_places()
            for base in _SUMS.listed(self._fs, directory)
            if base not in known
        ]

    def data_places(self) -> list[str]:
        """Return the existing directories that may have checksum files and bytes that were set aside."""
        places = (self.private_data, self._old_data)
        return [directory for directory in places if self._fs.size_of(directory) is not None]

    def move_old_data(self) -> None:
        """Move the files that an older version left in `.diskq/jnl/`, durably, and remove that directory.

        For the holder of the lock, before anything is read. The next open completes an interrupted move.
        A checksum file replaces the one of the same name: it was written later. Files that sej has written
        there are kept aside, as bytes that repairs cut are. Raises OSError.
        """
        fs, old = self._fs, self._old_data
        if fs.size_of(old) is None:
            return
        moves: list[tuple[str, str]] = []
        doubled: list[str] = []
        for name in sorted(fs.list_directory(old)):
            path, target = join(old, name), join(self.private_data, name)
            is_taken = fs.size_of(target) is not None
            if is_taken and fs.place_of(path) == fs.place_of(target):
                doubled.append(path)  # a power cut has left both names: a rename would do nothing
                continue
            is_foreign = name.endswith(".jnl") and fs.size_of(path) != 0
            if is_foreign or (is_taken and _SUMS.parse(name) is None):
                target = free_aside(fs, target, {other for _, other in moves})
            moves.append((path, target))
        Barrier(directories=(self.private,), installs=tuple(moves), removals=tuple(doubled)).execute(fs)
        with contextlib.suppress(OSError):  # a file that was just made there is moved by the next open
            Barrier(emptied=(old,)).execute(fs)

    # --- offsets ----------------------------------------------------------------------------------

    def offset(self, name: str) -> str:
        """Return the path of the offset of the reader of that name."""
        return join(self.offsets, f"{name}{_OFFSET}")

    def offset_lock(self, name: str) -> str:
        return join(self.offsets, f"{name}.lck")

    def offset_shadow(self, name: str) -> str:
        """Return the path of an offset's shadow copy, to distinguish rot from a peer's commit."""
        return join(self.private_offsets, f"{name}.mark")

    def offset_names(self) -> list[str]:
        """Return the names of the readers that have an offset, sorted. Raises OSError."""
        try:
            names = self._fs.list_directory(self.offsets)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name.removesuffix(_OFFSET) for name in names if name.endswith(_OFFSET))

    # --- temporaries ------------------------------------------------------------------------------

    def state_temporary(self, number: int) -> str:
        return self.temporary(self.state)(number)

    def temporary(self, path: str) -> Callable[[int], str]:
        """Return a function that names temporary files for a file in the private directory."""
        return lambda number: f"{join(self.private, base_name(path))}.{number}.tmp"

    def offset_temporary(self, name: str) -> Callable[[int], str]:
        return lambda number: f"{join(self.private_offsets, name)}.{number}.tmp"

    def leftovers(self) -> list[str]:
        """Return temporary files in the private directory that a crash left. For the holder of the lock."""
        return [join(self.private, name) for name in self._temporaries(self.private)]

    def offset_leftovers(self, name: str) -> list[str]:
        """Return temporary files of one offset that a crash left. For the holder of its lock."""
        directory = self.private_offsets
        return [join(directory, found) for found, of in self._temporaries(directory).items() if of == name]

    def _temporaries(self, directory: str) -> dict[str, str]:
        """Return the names of temporary files, each with the name of its file."""
        found = {name: _TEMPORARY.fullmatch(name) for name in self._fs.list_directory(directory)}
        return {name: match[1] for name, match in found.items() if match is not None}


def checked_offset_name(name: object) -> str:
    """Return the name; raises ReaderNameError if it must not become a file name."""
    if not isinstance(name, str):
        raise ReaderNameError(name, f"a name is a str, not {type(name).__name__}")
    if not _NAME.fullmatch(name):
        raise ReaderNameError(
            name, "1 to 64 letters, digits and _ . : # - are allowed, and one of the first three comes first"
        )
    return name
