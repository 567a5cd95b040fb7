# Names that differ only in case, on a file system that does not tell case apart (vfat, exFAT, ext4 with
# casefold, macOS). Law: two names are two stores; where the file system takes them for one, that is an error.

from __future__ import annotations

import unicodedata

from diskq.storage.fs import FileSystem, base_name, directory_of, join

__all__ = ["listed_as", "told_apart"]

_SWAPPED = {code: chr(code ^ 0x20) for code in (*range(65, 91), *range(97, 123))}
"""Other letters are not folded alike everywhere."""


def listed_as(fs: FileSystem, path: str) -> str | None:
    """Return the name under which its directory lists the file at `path`, if that is another one.

    None if it is listed under its own name, or there is no file. The directory is listed only if the file is
    found under another case, too. Raises OSError.
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
    """Return why a name is refused whose files are those of `other`."""
    return f"its files are those of {other}, as the file system does not tell case apart: choose another name"


def _folded(name: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())
