# The files of a growing log, sampled repeatedly. Law: a complete file is asked for its size once; a directory
# is listed again only when it has changed.

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from diskq.storage.fs import FileSystem, Stamp

__all__ = ["Growth", "SegmentList"]

# A directory that changed less than this long ago may get the same stamp at its next change.
_SETTLED_NS = 10**9
# The last segments may yet change: the active one grows, the one before it is being sealed.
_YOUNG = 2


class Growth:
    """Counts written bytes by the sizes of files that only grow, and are removed."""

    def __init__(self) -> None:
        self._sizes: dict[Any, int] | None = None
        self.total = 0
        """Bytes written since the first look."""

    def look(self, sizes: Mapping[Any, int]) -> int:
        """Take the files' present sizes. Returns the total."""
        if self._sizes is not None:
            before = self._sizes
            self.total += sum(max(0, size - before.get(name, 0)) for name, size in sizes.items())
        self._sizes = dict(sizes)
        return self.total


class SegmentList:
    """The segments of one log, and the size of each."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        listed: Callable[[], list[int]],
        files_of: Callable[[int], tuple[str, ...]],
    ) -> None:
        """`files_of(base)`: the paths of a segment's files, the data first. `listed` raises as it likes."""
        self._fs = fs
        self._directory = directory
        self._list = listed
        self._files_of = files_of
        self._stamp: Stamp | None = None
        self.bases: list[int] = []
        self.sizes: dict[int, int] = {}
        """Bytes of their data."""
        self._whole: dict[int, int] = {}

    @property
    def size(self) -> int:
        """Return the bytes of all their files."""
        return sum(self._whole.values())

    def look(self) -> None:
        """Update the list. Raises OSError, and what `listed` raises."""
        fs = self._fs
        stamp = fs.stamp_of(self._directory)
        if stamp is None or stamp != self._stamp:
            self.bases = self._list()
            is_settled = stamp is not None and fs.wall_clock() * 10**9 - stamp.modified_ns > _SETTLED_NS
            self._stamp = stamp if is_settled else None
        young = set(self.bases[-_YOUNG:])
        known = {base for base in self.bases if base in self.sizes and base not in young}
        self.sizes = {base: self.sizes[base] for base in known}
        self._whole = {base: self._whole[base] for base in known}
        for base in self.bases:
            if base not in known:
                data, *others = self._files_of(base)
                self.sizes[base] = fs.size_of(data) or 0
                self._whole[base] = self.sizes[base] + sum(fs.size_of(path) or 0 for path in others)
