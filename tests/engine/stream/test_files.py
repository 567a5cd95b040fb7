# The names of a stream's files, and what is there.

from __future__ import annotations

import pytest

import diskq
from diskq.engine.stream.files import PartitionFiles, StreamFiles
from diskq.storage.fs import OsFileSystem, join


class RacingFS(OsFileSystem):
    """A listing that is overtaken by a producer: it has the last segment, and not the one before it."""

    def __init__(self) -> None:
        self.is_racing = True

    def list_directory(self, path: str) -> list[str]:
        names = super().list_directory(path)
        if self.is_racing:
            self.is_racing = False
            names = [name for name in names if not name.startswith(f"{20:020d}")]
        return names


@pytest.fixture
def partition(tmp_path):
    fs = RacingFS()
    files = StreamFiles(fs, str(tmp_path)).partition(0)
    fs.make_directory(files.stream.parts)
    fs.make_directory(files.directory)
    for base in (0, 10, 20, 30):
        for path in files.segment(base):
            fs.close(fs.open(path, write=True, create=True))
    return files


def test_no_segment_is_missing_between_two_others(partition: PartitionFiles):
    assert partition.bases() == [0, 10, 20, 30]


def test_nor_behind_one(partition: PartitionFiles):
    assert partition.bases_after(10) == [20, 30]


def test_a_segment_that_is_made_between_two_looks_is_seen_by_the_next(partition: PartitionFiles):
    class Growing(OsFileSystem):
        made = 0

        def list_directory(self, path: str) -> list[str]:
            names = super().list_directory(path)
            Growing.made += 10
            self.close(self.open(join(path, f"{30 + Growing.made:020d}.data"), write=True, create=True))
            return names

    files = StreamFiles(Growing(), partition.stream.path).partition(0)
    assert files.bases() == [0, 10, 20, 30]
    assert files.bases() == [0, 10, 20, 30, 40, 50]


def test_a_partition_that_is_not_there_is_named(partition: PartitionFiles):
    missing = StreamFiles(OsFileSystem(), partition.stream.path).partition(7)
    for look in (missing.bases, lambda: missing.bases_after(0)):
        with pytest.raises(diskq.NotFoundError, match="there is no partition 7"):
            look()
