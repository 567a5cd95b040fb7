# Shards: one log in several journals. This is how keys map to journals, and how their directories are named.
#
#   <root>/<prefix>.<bits>.<index>   bits: one hex digit, index: three; without a prefix: <bits>.<index>
#   <root>/<prefix>                  the only one, where there are no bits
#
# A key's shard is the lowest bits of its hash. sej leaves the hash to its caller; diskq uses that of sej's
# benchmark. Law: messages of one key are in one journal, in order.

from __future__ import annotations

import re
from typing import Any, NamedTuple

from diskq.engine.journal.files import JournalFiles
from diskq.errors import NotFoundError, ShardNameError
from diskq.storage.fs import FileSystem, join

__all__ = ["MOST_BITS", "Shard", "ShardSet", "journals_below", "key_hash"]

MOST_BITS = 10
_LONGEST_NAME = 255  # bytes of a directory's name
_PREFIX = re.compile(r"[a-zA-Z0-9_\-]*")
_FNV_BASIS, _FNV_PRIME = 2166136261, 16777619


def key_hash(key: bytes) -> int:
    """Return FNV-1a of 32 bits, its halves xored: 0 to 65535. As in sej's benchmark."""
    value = _FNV_BASIS
    for byte in key:
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return (value >> 16) ^ (value & 0xFFFF)


class Shard(NamedTuple):
    number: int
    path: str


class ShardSet:
    """The shards of one prefix below one root."""

    def __init__(self, root: str, prefix: Any, bits: Any) -> None:
        """Raises ShardNameError, TypeError, ValueError."""
        if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
            raise ShardNameError(prefix, "letters, digits, _ and - are allowed")
        if isinstance(bits, bool) or not isinstance(bits, int):
            raise TypeError(f"bits is a whole number, got {bits!r}")
        if not 0 <= bits <= MOST_BITS:
            raise ValueError(f"bits is 0 to {MOST_BITS}, got {bits}")
        if not bits and not prefix:
            raise ShardNameError(prefix, "a single shard needs a name")
        self.root = root
        self.bits = bits
        self.mask = (1 << bits) - 1
        self._stem = f"{prefix}.{bits:x}." if prefix else f"{bits:x}."
        self._prefix = prefix
        if len(self.path(0).rsplit("/", 1)[-1]) > _LONGEST_NAME:
            raise ShardNameError(prefix, f"its shards' names are longer than {_LONGEST_NAME} bytes")

    def __len__(self) -> int:
        return self.mask + 1

    def path(self, index: int) -> str:
        """Return the directory of a shard's journal."""
        return join(self.root, f"{self._stem}{index:03x}" if self.bits else self._prefix)

    def existing(self, fs: FileSystem) -> list[Shard]:
        """Return the shards whose directories exist, ascending, perhaps without a journal. Raises OSError."""
        names = set(fs.list_directory(self.root))
        shards = [Shard(index, self.path(index)) for index in range(len(self))]
        return [shard for shard in shards if shard.path.rsplit("/", 1)[-1] in names]


def journals_below(fs: FileSystem, root: str, known: set[str]) -> tuple[list[str], list[str]]:
    """Return the journals among root and its sub-directories, sorted; and paths that may become journals.

    Those that are `known` still count as journals if they exist. Raises OSError.
    """
    try:
        names = fs.list_directory(root)
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    found, others = [], []
    for path in [root, *(join(root, name) for name in sorted(names) if not name.startswith("."))]:
        if path in known or _can_be_read(fs, path):
            found.append(path)
        elif path != root:
            others.append(path)
    return found, others


def _can_be_read(fs: FileSystem, path: str) -> bool:
    """True for a journal, also without a segment: a reader finds the first one when it is made."""
    try:
        JournalFiles(fs, path).bases()
    except NotFoundError:
        return False
    return True
