# The files of a priority store, and the contents of the small ones. Law: files that TaskFlux lists are
# TaskFlux's; diskq's private files are under `.diskq/`.

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from diskq.errors import CorruptionError
from diskq.storage.barrier import Replacement, read_small
from diskq.storage.checksums import CHECK_SIZE, checked, is_checked
from diskq.storage.fs import AnyPath, FileSystem, as_path, join
from diskq.storage.numbered_files import Naming, private_path

__all__ = ["SETTINGS", "StoreFiles", "StorePoint", "StoreSettings", "read_settings"]

SETTINGS = "taskflux.settings.json"
# Below the directory that its settings name, TaskFlux has its files here.
_DATA = "data"
_SEGMENTS = Naming("", 19, ".log")
# The document's name, which new temporary files get, and the program's.
_TEMPORARY = ("temp", "temporary")
_LARGEST_SETTINGS = 1024 * 1024
_LARGEST_POINT = 256
_NUMBER = rb"([0-9]{1,19})\n"
_POINT = re.compile(rb"segment %b(?:closed %b(?:next %bstored %b)?)?" % (_NUMBER, _NUMBER, _NUMBER, _NUMBER))


class StoreFiles:
    """The paths of a store."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self.root = root
        self.metadata = join(root, "tflux.metadata")
        self.snapshot = join(root, "tflux.snapshot")
        self.log = join(root, "log")
        self.temporaries = tuple(join(root, name) for name in _TEMPORARY)
        self.temporary = self.temporaries[0]
        self.private = private_path(root, "")[:-1]
        self.lock = private_path(root, "lock")
        self.state = private_path(root, "state")
        self.old_points = self.swap = self.redo = None  # see engine/log/opening.py: there are none
        self.point = private_path(root, "point")
        self.status = private_path(root, "status")

    @classmethod
    def found(cls, fs: FileSystem, path: str, data_directory: str | None = None) -> StoreFiles:
        """Return the files of the store at `path`: in the directory itself, or in TaskFlux's directory below.

        A new store is made below. `data_directory` is what the settings at `path` name, if they name one.
        """
        if data_directory is not None:
            is_absolute = data_directory.startswith("/")
            return cls(fs, join(data_directory if is_absolute else join(path, data_directory), _DATA))
        here = cls(fs, path)
        names = (here.metadata, here.snapshot, here.log, here.private)
        if any(fs.size_of(name) is not None for name in names):
            return here
        return cls(fs, join(path, _DATA))

    @classmethod
    def existing(cls, fs: FileSystem, path: AnyPath) -> StoreFiles:
        """Return the files of the store at `path`. Raises FileNotFoundError, CorruptionError (settings)."""
        text = as_path(path)
        files = cls.found(fs, text, read_settings(fs, text).data_directory)
        if not files.are_there:
            raise FileNotFoundError(errno.ENOENT, "there is no store of priority queues here", text)
        return files

    @property
    def are_there(self) -> bool:
        """True if there is a store."""
        if any(self._fs.size_of(name) is not None for name in (self.metadata, self.snapshot)):
            return True
        # A directory called log alone proves nothing.
        return self._fs.size_of(self.log) is not None and bool(self.segments())

    def segment(self, base: int) -> str:
        return join(self.log, _SEGMENTS.name(base))

    def segments(self) -> list[int]:
        """Return the numbers of the first records of the existing segments, ascending."""
        return _SEGMENTS.listed(self._fs, self.log)

    def aside(self, base: int) -> str:
        """Return the path from which names for bytes that are cut from a segment are made."""
        return private_path(self.root, _SEGMENTS.name(base))

    def new_temporary(self, number: int) -> str:
        return join(self.temporary, f"{number:016x}")

    def leftovers(self) -> Iterator[str]:
        """Yield temporary files of processes that had the store before: there is one process at a time."""
        for directory in self.temporaries:
            if self._fs.size_of(directory) is not None:
                yield from (join(directory, left) for left in self._fs.list_directory(directory))

    def state_temporary(self, number: int) -> str:
        return self.new_temporary(number)

    def metadata_as(self, content: bytes) -> Replacement:
        return Replacement(self.metadata, content, self.new_temporary)


# --- up to where it is durable --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StorePoint:
    """The recovery point of a store: every segment before `base` is on stable storage.

    So faults there are damage. From `base` on they may be what a power cut left, even if segments that
    were begun later got further. `closed` is the end of segment `base`, the last one, if the store was
    closed: all of it is on stable storage then.
    """

    base: int
    closed: int | None = None
    next_lsn: int | None = None
    """The number of the next command, if the store was closed."""
    stored: int | None = None
    """The number of messages in the store, if it was closed."""

    @classmethod
    def read(cls, fs: FileSystem, files: StoreFiles) -> StorePoint | None:
        """Return the recovery point; None if there is none with a right checksum."""
        content = read_small(fs, files.point, _LARGEST_POINT)
        if content is None or not is_checked(content, len(content) - CHECK_SIZE):
            return None
        parsed = _POINT.match(content)
        if parsed is None:
            return None
        base, *more = parsed.groups()
        return cls(int(base), *(None if each is None else int(each) for each in more))

    def replacing(self, files: StoreFiles) -> Replacement:
        content = b"segment %d\n" % self.base
        if self.closed is not None:
            content += b"closed %d\n" % self.closed
        if self.next_lsn is not None and self.stored is not None:
            content += b"next %d\nstored %d\n" % (self.next_lsn, self.stored)
        return Replacement(files.point, checked(content), files.new_temporary)


# --- TaskFlux's settings --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The part of TaskFlux's settings that concerns a store. Limits in bytes."""

    soft_limit: int = 16 * 1024 * 1024
    hard_limit: int = 32 * 1024 * 1024
    snapshot_segments: int = 5
    data_directory: str | None = None


_KEYS = {
    "logfilesoftlimit": "soft_limit",
    "logfilehardlimit": "hard_limit",
    "snapshotcreationsegmentsthreshold": "snapshot_segments",
    "datadirectory": "data_directory",
}
_STRING = r'"(?:\\.|[^"\\])*"'


def read_settings(fs: FileSystem, path: str) -> StoreSettings:
    """Return the settings in `taskflux.settings.json` in `path`, read as .NET does, or the defaults.

    Keys are compared in any case, numbers may be strings, comments and trailing commas are ignored.
    Raises CorruptionError if the file is not such JSON, and OSError.
    """
    file = join(path, SETTINGS)
    content = read_small(fs, file, _LARGEST_SETTINGS)
    if content is None:
        return StoreSettings()
    try:
        text = content.decode("utf-8-sig")
        text = re.sub(
            rf"({_STRING})|//[^\n]*|/\*.*?\*/", lambda found: found[1] or " ", text, flags=re.DOTALL
        )
        text = re.sub(rf"({_STRING})|,(?=\s*[}}\]])", lambda found: found[1] or "", text)
        parsed = json.loads(text)
        if not isinstance(parsed, dict):
            raise ValueError("no object")
        found: dict[str, Any] = {}
        for key, value in parsed.items():
            name = _KEYS.get(key.lower())
            if name == "data_directory":
                found[name] = str(value)
            elif name is not None:
                found[name] = _natural(key, value)
        return StoreSettings(**found)
    except (ValueError, RecursionError) as failure:
        raise CorruptionError(file, 0, f"not TaskFlux's settings: {failure}") from failure


def _natural(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{key} is {value!r}")
    number = int(value)
    if number < 0:
        raise ValueError(f"{key} is {number}")
    return number
