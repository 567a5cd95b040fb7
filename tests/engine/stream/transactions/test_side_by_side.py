# Several staged files at the same time: all work has ended, and threads are for the files of the system.

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from diskq._native.stream.codec import encode
from diskq.engine.stream.stream import Stream
from diskq.engine.stream.transactions import side_by_side, staging
from diskq.engine.stream.transactions.staging import StagedFile, StagingWriter
from diskq.errors import CorruptionError
from diskq.storage.fs import OsFileSystem
from tests.engine.streams import Triple, disk, triples
from tests.engine.transactions import transaction
from tests.reference import triplet_oracle as oracle

SIZE, COUNT = 4000, 3


@pytest.fixture(autouse=True)
def small_extents(monkeypatch):
    """Segments of any size may be staged whole."""
    monkeypatch.setattr(staging, "_EXTENT", 1)


def staged_for(path: Path, epoch: int = 0) -> list[StagedFile]:
    """For each partition what follows its first extent, in a file that can become a segment."""
    with StagingWriter(
        path, sink="sink", epoch=epoch, task=0, partition_count=COUNT, encoding="fixed", segment_size=SIZE
    ) as writer:
        for partition in range(COUNT):
            for number in range(4):
                writer.add_encoded(partition, encode(triples(10, start=10 * number)).data, 10)
        return [writer.finish(), *writer.segments]


def stream(path: Path) -> Stream:
    return Stream(path, partition_count=COUNT, segment_size=SIZE)


def held(path: Path, partition: int) -> list[Triple]:
    """The messages of the partition's segments, whose files agree, and follow each other."""
    directory = path / "parts" / f"{partition:06}"
    found: list[Triple] = []
    for base in sorted(int(file.stem) for file in directory.glob("*.data")):
        assert base == len(found)
        found += oracle.read_segment(directory, base, varuint=False, may_be_torn=False)
    return found


def test_what_is_returned_is_in_the_order_of_the_items():
    waits = [threading.Event() for _ in range(3)]
    waits[2].set()

    def work(number: int) -> int:
        assert waits[number].wait(60)
        if number:
            waits[number - 1].set()
        return number

    assert side_by_side.each(OsFileSystem(), work, [0, 1, 2]) == [0, 1, 2]  # and the last one ended first


def test_the_first_error_is_raised_when_all_have_ended():
    ended, failed = [], threading.Event()

    def work(number: int) -> None:
        if number == 0:
            failed.set()
            raise ValueError("the first")
        assert failed.wait(60)
        ended.append(number)
        raise ValueError("a later one")

    with pytest.raises(ValueError, match="the first"):
        side_by_side.each(OsFileSystem(), work, [0, 1])
    assert ended in ([1], [])  # it was not begun, or has ended


def test_the_disk_of_a_test_gets_one_call_at_a_time_in_order():
    mine, seen = threading.get_ident(), []
    side_by_side.each(disk(), lambda number: seen.append((number, threading.get_ident())), [0, 1, 2])
    assert seen == [(0, mine), (1, mine), (2, mine)]


def test_several_files_become_segments_at_the_same_time(tmp_path):
    with stream(tmp_path / "s") as opened:
        staged = staged_for(tmp_path / "s")
        assert len(staged) == 1 + COUNT
        assert opened.commit(transaction(*staged))
        opened.append(b"goes on", key=b"key", timestamp=1)
    for partition in range(COUNT):
        assert held(tmp_path / "s", partition)[:40] == triples(40)
        directory = tmp_path / "s" / "parts" / f"{partition:06}"
        assert len(list(directory.glob("*.data"))) == 2


@pytest.mark.parametrize("number", [1, 2, 3])
def test_rot_in_one_of_several_files_is_found_before_anything_is_committed(tmp_path, number):
    with stream(tmp_path / "s") as opened:
        staged = staged_for(tmp_path / "s")
        path = tmp_path / "s" / ".diskq" / "staging" / staged[number].name
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(CorruptionError) as refused:
            opened.commit(transaction(*staged))
        assert refused.value.path == str(path)
        assert opened.next_offsets == (0, 0, 0)
        opened.append(b"goes on")
        assert opened.commit(transaction(*staged_for(tmp_path / "s", epoch=1), epoch=1))
