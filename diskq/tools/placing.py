# A target is built under another name, and renamed when it is whole. Law: under the final name there is
# nothing or all of it; a conversion that gives up leaves nothing, and the next one removes what a killed one
# left.
#
#   .NAME.converting        what is being built: a directory, or a file
#   .NAME.converting.lock   locked while it is
#
# Both are in the target's own directory, where a rename is atomic.

from __future__ import annotations

import errno
from contextlib import suppress

from diskq.storage.barrier import Barrier
from diskq.storage.directories import make_directories, remove_tree
from diskq.storage.fs import FileSystem, base_name, directory_of, join
from diskq.storage.lock import Lock

__all__ = ["Place", "check_free"]


def check_free(fs: FileSystem, target: str) -> None:
    """Check that a store can be made at `target`. An empty directory is no obstacle.

    Raises FileExistsError, and FileNotFoundError if the parent directory does not exist.
    """
    above = directory_of(target.rstrip("/"))
    if fs.size_of(above) is None:
        raise FileNotFoundError(errno.ENOENT, "no such directory", above)
    if fs.size_of(target) is None:
        return
    with suppress(NotADirectoryError):
        if not fs.list_directory(target):
            return
    reason = "it exists already: append to it, or convert into another place"
    raise FileExistsError(errno.EEXIST, reason, target)


class Place:
    """The place where a target is built: at `path`, until `put` or `give_up`."""

    def __init__(self, fs: FileSystem, target: str, *, is_file: bool = False) -> None:
        """Remove remains; make a directory unless `is_file`. Raises LockedError, OSError, as `check_free`."""
        check_free(fs, target)
        self._fs = fs
        self._target = target.rstrip("/")
        name = base_name(self._target)
        self.path = join(directory_of(self._target), f".{name}.converting")
        self._lock = Lock(fs, f"{self.path}.lock", f"the conversion into {self._target}")
        try:
            remove_tree(fs, self.path)
            if not is_file:
                make_directories(fs, self.path)
        except BaseException:
            self.give_up()
            raise

    def put(self) -> None:
        """Give the target, which is whole and durable, its name. Raises OSError, as `check_free`."""
        check_free(self._fs, self._target)
        Barrier(installs=((self.path, self._target),), removals=(self._lock.path,)).execute(self._fs)
        self._lock.release()

    def give_up(self) -> None:
        """Remove what was built. Raises OSError."""
        try:
            remove_tree(self._fs, self.path)
            Barrier(removals=(self._lock.path,)).execute(self._fs)
        finally:
            self._lock.release()
