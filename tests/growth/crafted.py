"""Redo logs that no writer makes: whoever opens a store must not spend hours on a small file."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import MappingProxyType

from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.queue.files import QueueFiles
from diskq.storage.barrier import opened
from diskq.storage.checksums import checksum
from diskq.storage.fs import FileSystem
from tests.growth.stores import NAME

__all__ = ["CRAFTED", "KIB", "queue_with_log"]

KIB = 1024
_NUMBER = 77
_HEADER = struct.Struct("<8sIIQ64sIIQ20x")
_NUMBERS = struct.Struct("<QQQ")
_ENTRY_SIZE = 40
_PART = struct.Struct("<IIqqI4x")
_DATA, _CHECKSUMS = 0, 1


def _log(half: bytes, size: int) -> bytes:
    header = _HEADER.pack(b"diskqlog", 1, 2, _NUMBER, b"", 4096, 2, size)
    header = (header + checksum(header).to_bytes(4, "little")).ljust(4096, b"\0")
    return header + half.ljust(size, b"\0") + bytes(size)


def _head(size: int, sequence: int, content: bytes) -> bytes:
    numbers = _NUMBERS.pack(_NUMBER, sequence, 1)
    check = checksum(numbers)
    state = struct.pack("<II", size, checksum(content, check))
    return state + numbers + struct.pack("<Q", check)


def _entry(sequence: int, content: bytes) -> bytes:
    return _head(_ENTRY_SIZE + len(content), sequence, content) + content


def _parts(size: int) -> bytes:
    """An entry of nothing but empty parts: of data, and of checksums beside each."""
    pair = _PART.pack(0, _DATA, 0, 0, 0) + _PART.pack(0, _CHECKSUMS, 0, 0, 0)
    return _entry(1, pair * ((size - _ENTRY_SIZE) // len(pair)))


def _heads(size: int) -> bytes:
    """Heads of entries, each of which claims all bytes up to the end."""
    places = range(_ENTRY_SIZE, size - _ENTRY_SIZE, _ENTRY_SIZE)
    heads = (_head((size - at) // 8 * 8, number, b"?") for number, at in enumerate(places, 2))
    return bytes(_ENTRY_SIZE) + b"".join(heads)


def _files(size: int) -> bytes:
    """An entry with parts of ever other files, none of which exists."""
    count = (size - _ENTRY_SIZE) // (16 * (_PART.size + 8))
    parts = (_PART.pack(0, _DATA, number, 0, 8) + bytes(8) for number in range(1, count))
    return _entry(1, b"".join(parts))


def _far(size: int) -> bytes:
    """An entry whose number is far from the first that is needed."""
    return _entry(1000 * size, b"")


CRAFTED = MappingProxyType[str, Callable[[int], bytes]](
    {"parts": _parts, "overlapping heads": _heads, "files that are gone": _files, "a far number": _far}
)
"""By what there is of it: a function that returns the first half of a log, of about that size."""


def queue_with_log(fs: FileSystem, path: str, half: bytes, size: int) -> None:
    """Make a queue with this redo log, of which it is not known whether the machine was restarted since."""
    Queue(path, NAME, fs=fs).close()
    files = QueueFiles(fs, path, NAME)
    with opened(fs, files.lock, write=True) as handle:
        fs.truncate(handle, 0)
    with opened(fs, files.redo, write=True, create=True) as handle:
        fs.pwrite(handle, _log(half, size), 0)
