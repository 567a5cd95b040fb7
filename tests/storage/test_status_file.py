# The status note: written seldom, never needed, and believed only if it is whole.

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from diskq.engine.log.sync import DurationCounter
from diskq.storage.status_file import DiskBound, StatusBoard, StatusNote, read_status
from diskq.testing import FaultFS
from tests.clock import Clock

NOTE = StatusNote(1, 2, 3, 4, 5, DiskBound(6, 7, is_shared=False))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "status")


def execute(
    board: StatusBoard, clock: Clock, *seconds: float, counter: DurationCounter | None = None
) -> None:
    counter = counter or DurationCounter()
    for each in seconds:
        counter.count(each)
        if clock.now >= board.due_at:
            board.write(clock.now, counter.now(), counter.take_longest())


def test_a_writer_open_for_a_moment_makes_no_file(clock: Clock, path: str) -> None:
    execute(StatusBoard(clock, path), clock, 0.25)
    assert clock.size_of(path) is None


def test_after_a_second_the_next_barrier_is_noted_with_those_before(clock: Clock, path: str) -> None:
    board = StatusBoard(clock, path)
    board.bound = DiskBound(1000, 10, is_shared=True)
    clock.now += 1
    execute(board, clock, 0.25, 0.5)
    board.close()
    note = read_status(clock, path)
    assert note is not None
    assert (note.pid, note.barriers, note.spent_ns) == (clock.identity().pid, 1, 250_000_000)
    assert note.bound == board.bound


def test_it_is_written_once_a_second_at_most(clock: Clock, path: str) -> None:
    board, counter = StatusBoard(clock, path), DurationCounter()
    for _ in range(30):
        clock.now += 0.1
        execute(board, clock, 0.01, counter=counter)
        if (first := read_status(clock, path)) is not None:
            break
    clock.now += 0.9
    assert clock.now < board.due_at
    execute(board, clock, 0.5, counter=counter)
    assert read_status(clock, path) == first
    clock.now += 0.2
    assert clock.now >= board.due_at
    execute(board, clock, 0.01, counter=counter)
    board.close()
    note = read_status(clock, path)
    assert note is not None
    assert note.longest_ns == 500_000_000


def test_a_full_disk_only_leaves_the_note_out(clock: Clock, path: str) -> None:
    faults = FaultFS(clock)
    board = StatusBoard(faults, path)
    faults.fail("pwrite", error=errno.ENOSPC)
    clock.now += 1
    execute(board, clock, 0.1)
    assert read_status(clock, path) is None
    clock.now += 1
    execute(board, clock, 0.1)
    board.close()
    assert read_status(clock, path) is not None


@pytest.mark.parametrize("at", [0, 8, 40, 71, 75])
def test_a_corrupt_note_is_none(at: int) -> None:
    row = bytearray(NOTE.pack())
    row[at] ^= 1
    assert StatusNote.unpack(bytes(NOTE.pack())) == NOTE
    assert StatusNote.unpack(bytes(row)) is None


@pytest.mark.parametrize("size", [0, 1, 75])
def test_a_torn_note_is_none(size: int) -> None:
    assert StatusNote.unpack(NOTE.pack()[:size]) is None
