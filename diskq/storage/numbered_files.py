# The names of files in a directory: those with numbers, diskq's own, and those that differ only in case. Law:
# `parse` reads a name made by `name` back to the same number; every other name belongs to another program.
#
# Two names that differ only in case are two stores. A file system that does not tell case apart (vfat, exFAT,
# ext4 with casefold, macOS) takes them for one: there that is an error.

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container, Iterable
from dataclasses import dataclass

from diskq.storage.fs import FileSystem, base_name, directory_of, join
from diskq.storage.numbers import NO_NUMBER

__all__ = [
    "PRIVATE",
    "Naming",
    "free_aside",
    "is_last",
    "listed_as",
    "names_in",
    "private_path",
    "set_aside_from",
    "told_apart",
]

# diskq's own files are in this directory, below the store's root, where no peer lists its files.
PRIVATE = ".diskq"

_MOST_DIGITS = 20  # no more fit into 64 bits
_SET_ASIDE = re.compile(r"(.+)\.bad(?:-[0-9]+)?", re.DOTALL)


_SWAPPED = {code: chr(code ^ 0x20) for code in (*range(65, 91), *range(97, 123))}
"""Other letters are not folded alike everywhere."""


def names_in(fs: FileSystem, directory: str, prefix: str) -> list[str]:
    """Return the names in the directory that begin with `prefix`. Raises OSError.

    A file system that can find them without looking at all others has a method of this name.
    """
    own = getattr(fs, "names_in", None)
    if own is not None:
        found: list[str] = own(directory, prefix)
        return found
    return [name for name in fs.list_directory(directory) if name.startswith(prefix)]


@dataclass(frozen=True, slots=True)
class Naming:
    """Files `prefix` + number + `suffix`, the number decimal or hexadecimal, with `digits` digits."""

    prefix: str
    digits: int
    suffix: str
    is_hex: bool = False

    def name(self, number: int) -> str:
        return f"{self.prefix}{number:0{self.digits}{'x' if self.is_hex else 'd'}}{self.suffix}"

    def parse(self, name: str) -> int | None:
        """Return the number in `name`; None if this naming would not have made it."""
        if not (name.startswith(self.prefix) and name.endswith(self.suffix)):
            return None  # true for most names, since files come in threes
        middle = name[len(self.prefix) : len(name) - len(self.suffix)]
        if not re.fullmatch(f"[0-9{'a-f' if self.is_hex else ''}]{{1,{_MOST_DIGITS}}}", middle):
            return None
        number = int(middle, 16 if self.is_hex else 10)
        return number if number < NO_NUMBER and self.name(number) == name else None

    def listed(self, fs: FileSystem, directory: str) -> list[int]:
        """Return the numbers of the files in `directory`, ascending."""
        numbers = map(self.parse, names_in(fs, directory, self.prefix))
        return sorted(number for number in numbers if number is not None)


def is_last(number: int, numbers: Iterable[int]) -> bool:
    """True if none of these numbers is higher."""
    return number >= max(numbers, default=0)


def private_path(root: str, name: str) -> str:
    """Return the path of diskq's own file of this name, below `root`."""
    return join(root, PRIVATE, name)


def free_aside(fs: FileSystem, path: str, taken: Container[str] = ()) -> str:
    """Return an unused name for unreadable bytes of `path`: `path.bad`, `path.bad-1`, ...

    Never one of `taken`, names that will be used and do not exist yet.
    """

    def name(number: int) -> str:
        return f"{path}.bad-{number}" if number else f"{path}.bad"

    def is_used(number: int) -> bool:
        return name(number) in taken or fs.size_of(name(number)) is not None

    # There may be thousands: in large steps to a number that is free, and back to one after a used one.
    used, free = -1, 0
    while is_used(free):
        used, free = free, 2 * free + 1
    while free - used > 1:
        middle = (used + free) // 2
        used, free = (middle, free) if is_used(middle) else (used, middle)
    return name(free)


def set_aside_from(name: str) -> str | None:
    """Return the name of the file whose bytes are in the file of this name: see `free_aside`; else None."""
    found = _SET_ASIDE.fullmatch(name)
    return None if found is None else found[1]


def checksum_file_path(root: str, path: str) -> str:
    """Return the path of the checksum file of the file at `path`."""
    return private_path(root, f"{base_name(path)}.sums")


# --- names that differ only in case -----------------------------------------------------------------


def listed_as(fs: FileSystem, path: str) -> str | None:
    """Return the name that the directory has for the file at `path`, if it differs in case.

    None if the name is the same, or there is no file. The directory is listed only if the file is found under
    a name in another case, too. Raises OSError.
    """
    directory, name = directory_of(path), base_name(path)
    swapped = join(directory, name.translate(_SWAPPED))
    if fs.size_of(path) is None or swapped == path or fs.size_of(swapped) is None:
        return None
    names = fs.list_directory(directory)
    if name in names:
        return None
    alike = [each for each in names if _folded(each) == _folded(name)]
    try:
        place = fs.place_of(path)
        return next((each for each in alike if fs.place_of(join(directory, each)) == place), None)
    except FileNotFoundError:  # removed meanwhile
        return None


def told_apart(other: str) -> str:
    """Return why a name is refused that would share the files of `other`."""
    return f"its files are those of {other}, as the file system does not tell case apart: choose another name"


def _folded(name: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())
