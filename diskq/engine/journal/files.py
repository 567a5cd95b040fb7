# The files of a journal, and what is ours beside them. Law: sej reads and writes all but `.diskq/`, and
# lists none of what is there. In `jnl/` nothing is made but a segment, by its final name: a scanner of
# sej's takes anything else that comes or goes for the sign of a new file, and loses its place.
#
#   <journal>/
#     jnl.lck                         flock(2): who may write
#     jnl/%016x.jnl                   segments, by the offset of their first message
#     ofs/<name>.ofs .lck             how far a reader has come, and its lock
#     .diskq/                         ours:
#       points                          up to where everything is known to be on stable storage
#       write-ahead log                           what was accepted and waits to be written
#       repair/                         while one is carried out: files that are to take others' places
#       gaps                            offsets whose messages a repair could not save
#       journal-data/%016x.jnl.sums     checksums of a segment; and what repairs set aside
#       ofs/<name>.mark                 the shadow copy of an offset
#
# A temporary is `.diskq/<name>.<number>.tmp`, or stands beside the shadow copy of its offset.
#
# Older versions had `.diskq/jnl/` for `.diskq/journal-data/`. sej takes every directory with a `jnl/` in
# it for a journal, dot files too, and writes there. So a writer moves those files when it opens the journal,
# and who only reads looks in both places.
#
# Format: docs/format/sej.md.

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable

from diskq.errors import JournalNotFoundError, OffsetNameError
from diskq.storage.barrier import Barrier
from diskq.storage.fs import FileSystem, base_name, join
from diskq.storage.numbered_files import Naming, free_aside, private_path
from diskq.storage.write_ahead_log import Staging

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
        self.points = private_path(path, "points")
        self.gaps = private_path(path, "gaps")
        self.wal = private_path(path, "slate")
        self.swap = "repair"  # a directory of that name, among what is private
        self.status = private_path(path, "status")

    @property
    def staging(self) -> Staging:
        """The write-ahead log, and what it tells of."""
        return Staging(
            self.wal, self.data, self.checksum_file, lambda base: base >= max(self.bases(), default=0)
        )

    # --- segments ---------------------------------------------------------------------------------

    def data(self, base: int) -> str:
        return join(self.directory, _DATA.name(base))

    def checksum_file(self, base: int) -> str:
        name = _SUMS.name(base)
        old = join(self._old_data, name)
        # Where both are there, a version that knows only the old place has written after one of ours.
        return old if self._fs.size_of(old) is not None else join(self.private_data, name)

    def kept(self, path: str) -> str:
        """Beside what, out of the peer's sight, bytes of a segment are kept."""
        return join(self.private_data, base_name(path))

    def bases(self) -> list[int]:
        """The segments there are, ascending; the last one is active. Raises JournalNotFoundError.

        None that is there is missing between two others, also while somebody makes more of them.
        """
        # A listing is no snapshot: it may have a segment, and not one that was made before it. What it
        # has was there, and all before it, when the second listing began, which therefore has them all.
        last = max(self._listed(), default=-1)
        return [base for base in self._listed() if base <= last]

    def data_size(self) -> int:
        """Bytes of all segments that there are now. Raises JournalNotFoundError, OSError."""
        return sum(self._fs.size_of(self.data(base)) or 0 for base in self._listed())

    def _listed(self) -> list[int]:
        try:
            return _DATA.listed(self._fs, self.directory)
        except (FileNotFoundError, NotADirectoryError):
            raise JournalNotFoundError(self.path) from None

    def checksum_files(self) -> list[int]:
        """The segments of which checksums are there, ascending."""
        listed = (_SUMS.listed(self._fs, directory) for directory in self.data_places())
        return sorted({base for bases in listed for base in bases})

    def orphans(self, bases: Iterable[int]) -> list[str]:
        """Checksums whose segment is gone: who removes segments by hand does not know of them."""
        known = set(bases)
        return [
            join(directory, _SUMS.name(base))
            for directory in self.data_places()
            for base in _SUMS.listed(self._fs, directory)
            if base not in known
        ]

    def data_places(self) -> list[str]:
        """The directories that may have checksums and what was set aside: those of them that are there."""
        places = (self.private_data, self._old_data)
        return [directory for directory in places if self._fs.size_of(directory) is not None]

    def move_old_data(self) -> None:
        """Move what an older version left in `.diskq/jnl/`, and remove that directory. Durable then.

        For who holds the lock, before anything is read. Who is killed midway is finished by the next open.
        A file of checksums replaces the one of the same name: it was written later. What sej has written
        there is kept aside, as what repairs cut is. Raises OSError.
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
                doubled.append(path)  # a power cut has left the file both names: a rename would do nothing
                continue
            is_foreign = name.endswith(".jnl") and fs.size_of(path) != 0
            if is_foreign or (is_taken and _SUMS.parse(name) is None):
                target = free_aside(fs, target, {other for _, other in moves})
            moves.append((path, target))
        Barrier(directories=(self.private,), installs=tuple(moves), removals=tuple(doubled)).execute(fs)
        with contextlib.suppress(OSError):  # a file that came in this moment is moved by the next open
            Barrier(emptied=(old,)).execute(fs)

    # --- offsets ----------------------------------------------------------------------------------

    def offset(self, name: str) -> str:
        """How far the reader of that name has come."""
        return join(self.offsets, f"{name}{_OFFSET}")

    def offset_lock(self, name: str) -> str:
        return join(self.offsets, f"{name}.lck")

    def offset_shadow(self, name: str) -> str:
        """What our last offset said, so that a rotten one is told from one that a peer has moved."""
        return join(self.private_offsets, f"{name}.mark")

    def offset_names(self) -> list[str]:
        """The readers that there are, sorted. Raises OSError."""
        try:
            names = self._fs.list_directory(self.offsets)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name.removesuffix(_OFFSET) for name in names if name.endswith(_OFFSET))

    # --- temporaries ------------------------------------------------------------------------------

    def temporary(self, path: str) -> Callable[[int], str]:
        """How the temporaries of a file in the private directory are called."""
        return lambda number: f"{join(self.private, base_name(path))}.{number}.tmp"

    def offset_temporary(self, name: str) -> Callable[[int], str]:
        return lambda number: f"{join(self.private_offsets, name)}.{number}.tmp"

    def leftovers(self) -> list[str]:
        """Temporaries in the private directory that a crash left, if asked by who holds the lock."""
        return [join(self.private, name) for name in self._temporaries(self.private)]

    def offset_leftovers(self, name: str) -> list[str]:
        """The same of one offset, if asked by who holds its lock."""
        directory = self.private_offsets
        return [join(directory, found) for found, of in self._temporaries(directory).items() if of == name]

    def _temporaries(self, directory: str) -> dict[str, str]:
        """The names of temporaries, and what they are temporaries of."""
        found = {name: _TEMPORARY.fullmatch(name) for name in self._fs.list_directory(directory)}
        return {name: match[1] for name, match in found.items() if match is not None}


def checked_offset_name(name: object) -> str:
    """The same; raises OffsetNameError for what must not become a file name."""
    if not isinstance(name, str):
        raise OffsetNameError(name, f"a name is a str, not {type(name).__name__}")
    if not _NAME.fullmatch(name):
        raise OffsetNameError(
            name, "1 to 64 letters, digits and _ . : # - are allowed, and one of the first three comes first"
        )
    return name
