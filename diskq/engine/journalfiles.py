# The files of a journal, and what is ours beside them. Law: sej reads and writes all but `.diskq/`, and
# lists none of what is there. In `jnl/` nothing is made but a segment, by its final name: a scanner of
# sej's takes anything else that comes or goes for the sign of a new file, and loses its place.
#
#   <journal>/
#     jnl.lck                         flock(2): who may write
#     jnl/%016x.jnl                   segments, by the offset of their first message
#     ofs/<name>.ofs .lck             how far a reader has come, and its lock
#     .diskq/                         ours:
#       points                          up to where everything is known to be on the platter
#       slate                           what was accepted and waits to be written
#       repair/                         while one is carried out: files that are to take others' places
#       gaps                            offsets whose messages a repair could not save
#       jnl/%016x.jnl.sums              checksums of a segment; and what repairs set aside
#       ofs/<name>.mark                 the twin of an offset
#
# A temporary is `.diskq/<name>.<number>.tmp`, or stands beside the twin of its offset.
#
# Format: docs/format/sej.md.

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from diskq.errors import JournalNotFoundError, OffsetNameError
from diskq.storage.fs import FileSystem, base_name, join
from diskq.storage.segments import Naming, private_path

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
        self.private_data = join(self.private, "jnl")
        self.private_offsets = join(self.private, "ofs")
        self.points = private_path(path, "points")
        self.gaps = private_path(path, "gaps")
        self.slate = private_path(path, "slate")
        self.swap = "repair"  # a directory of that name, among what is private
        self.status = private_path(path, "status")

    # --- segments ---------------------------------------------------------------------------------

    def data(self, base: int) -> str:
        return join(self.directory, _DATA.name(base))

    def sidecar(self, base: int) -> str:
        return join(self.private_data, _SUMS.name(base))

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

    def orphans(self, bases: Iterable[int]) -> list[str]:
        """Checksums whose segment is gone: who removes segments by hand does not know of them."""
        known = set(bases)
        found = _SUMS.listed(self._fs, self.private_data)
        return [self.sidecar(base) for base in found if base not in known]

    # --- offsets ----------------------------------------------------------------------------------

    def offset(self, name: str) -> str:
        """How far the reader of that name has come."""
        return join(self.offsets, f"{name}{_OFFSET}")

    def offset_lock(self, name: str) -> str:
        return join(self.offsets, f"{name}.lck")

    def offset_twin(self, name: str) -> str:
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
