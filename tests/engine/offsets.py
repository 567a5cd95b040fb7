# The vocabulary of the tests on groups: a stream that has only partitions, and committed offsets in it.

from __future__ import annotations

from typing import Any

from diskq.engine.log.committed_offset import FoundOffset
from diskq.engine.stream.committed_offset import GroupOffset, read_offset
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.groups import ConsumerGroup
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS

ROOT = "/s"
GROUP = "g"
MARKER = f"{ROOT}/groups/{GROUP}/000000"
SHADOW = f"{ROOT}/.diskq/groups/{GROUP}/000000.mark"


def disk() -> CrashFS:
    fs = CrashFS()
    for partition in range(3):
        fs.make_directory_durably(f"{ROOT}/parts/{partition:06d}")
    return fs


def files(fs: FileSystem) -> StreamFiles:
    return StreamFiles(fs, ROOT)


def group(fs: FileSystem, name: str = GROUP) -> ConsumerGroup:
    return ConsumerGroup(fs, files(fs), name)


def open_offset(fs: FileSystem, partition: int = 0, **options: Any) -> GroupOffset:
    return group(fs).committed_offset(partition, **options)


def read(fs: FileSystem, partition: int = 0) -> FoundOffset | None:
    """Return the offset as any process without a claim reads it."""
    return read_offset(fs, files(fs), GROUP, partition)


def found(fs: FileSystem, partition: int = 0) -> FoundOffset:
    """The same, for an offset that exists."""
    mark = read(fs, partition)
    assert mark is not None
    return mark


def offset(fs: FileSystem, partition: int = 0) -> int | None:
    return found(fs, partition).offset


def committed(fs: FileSystem, *offsets: int) -> None:
    """The group processes these, one sync each, and leaves."""
    with open_offset(fs) as committed_offset:
        for each in offsets:
            committed_offset.commit(each)
            committed_offset.sync()


def packed(value: int) -> bytes:
    return value.to_bytes(8, "little")


def move_as_go_does(fs: CrashFS, value: int, *, seconds: float = 1.0) -> None:
    """go-diskq overwrites the offset file in place; some time has passed."""
    fs.clock += seconds
    handle = fs.open(MARKER, write=True, create=True)
    fs.pwrite(handle, packed(value), 0)
    fs.close(handle)
