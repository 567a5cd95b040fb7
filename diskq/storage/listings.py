# Listings of directories with the files of many stores. Law: what is listed is what is there; a directory is
# listed again once it has changed.
#
# Hundreds of queues may share a directory, as nsqd has them. A tool that looks at all of them would list all
# names for each of them, and take ever longer: so it lists a directory once, and takes from the sorted names
# those of each queue.

from __future__ import annotations

from bisect import bisect_left

from diskq.storage.fs import OsFileSystem, Stamp, join

__all__ = ["ListedFileSystem"]

# A directory that changed less than this long ago may get the same stamp at its next change.
_SETTLED_NS = 10**9
_LAST = "\U0010ffff"


class ListedFileSystem(OsFileSystem):
    """The file system of the operating system, for a look at many stores in one directory."""

    def __init__(self) -> None:
        super().__init__()
        self._listed: dict[str, tuple[Stamp, list[str]]] = {}

    def list_directory(self, path: str) -> list[str]:
        return list(self._names(path))

    def names_in(self, directory: str, prefix: str) -> list[str]:
        """Return the names in the directory that begin with `prefix`, sorted. Raises OSError."""
        names = self._names(directory)
        start = bisect_left(names, prefix)
        return names[start : bisect_left(names, prefix + _LAST, start)]

    def _names(self, path: str) -> list[str]:
        """Return all names, sorted. If the directory has not changed, the last listing is returned again."""
        stamp = self.stamp_of(join(path, "."))  # of the directory, if there is a link to it
        if stamp is not None and (known := self._listed.get(path)) is not None and known[0] == stamp:
            return known[1]
        names = sorted(super().list_directory(path))
        if stamp is not None and self.wall_clock() * 10**9 - stamp.modified_ns > _SETTLED_NS:
            self._listed[path] = stamp, names
        return names
