# One log in several journals: which key belongs to which, and what their directories are called.
#
#   <root>/<prefix>.<bits>.<index>   bits: one hex digit, index: three; without a prefix: <bits>.<index>
#   <root>/<prefix>                  the only one, where there are no bits
#
# A key's shard is its hash, of which the lowest bits count. sej leaves the hash to its caller; ours is the
# one that its benchmark has. Law: messages of one key are in one journal, in order.

from __future__ import annotations

import re
from typing import Any, NamedTuple

from diskq.engine.journal.files import JournalFiles
from diskq.errors import JournalNotFoundError, ShardNameError
from diskq.storage.fs import FileSystem, join

__all__ = ["MOST_BITS", "Shard", "ShardSet", "journals_below", "key_hash"]

MOST_BITS = 10
_LONGEST_NAME = 255  # bytes of a directory's name
_PREFIX = re.compile(r"[a-zA-Z0-9_\-]*")
_FNV_BASIS, _FNV_PRIME = 2166136261, 16777619


def key_hash(key: bytes) -> int:
    """FNV-1a of 32 bits, its halves xored: 0 to 65535. As sej's users have it."""
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
        """The directory of a shard's journal."""
        return join(self.root, f"{self._stem}{index:03x}" if self.bits else self._prefix)

    def existing(self, fs: FileSystem) -> list[Shard]:
        """Those whose directories are there, ascending; a journal may not be in it yet. Raises OSError."""
        names = set(fs.list_directory(self.root))
        shards = [Shard(index, self.path(index)) for index in range(len(self))]
        return [shard for shard in shards if shard.path.rsplit("/", 1)[-1] in names]


def journals_below(fs: FileSystem, root: str, known: set[str]) -> tuple[list[str], list[str]]:
    """The journals among root and its sub-directories, sorted; and names there that may become some.

    Those that are `known` are believed to be journals if they are there still. Raises OSError.
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
    """Also a journal that has no segment yet, of which a reader learns by itself when one comes."""
    try:
        JournalFiles(fs, path).bases()
    except JournalNotFoundError:
        return False
    return True
