# The head of a spool, in cases that the crash tests do not reach: two crashes in a row, and dropped messages.

from __future__ import annotations

import errno

import pytest

import diskq
from diskq.engine.spool.delivery_cursor import DeliveryCursor
from diskq.engine.spool.files import SpoolStatus
from diskq.testing import CrashFS, FaultFS
from tests.channels.spools import PATH, spool_disk


class Life:
    """A spool in one process."""

    def __init__(self, fs: CrashFS, **options: int) -> None:
        self.fs = fs
        self.queue = diskq.Queue(PATH, "spool", options=diskq.QueueOptions(**options), fs=fs)  # type: ignore[arg-type]
        self.cursor = DeliveryCursor(fs, PATH, self.queue.steps)

    def tried(self, count: int) -> diskq.Batch:
        self.cursor.take_batch(self.queue.steps.head.peek_many(*self.cursor.limits(count, 2**40)))
        return self.cursor.begin_try()

    def delivered(self, count: int) -> diskq.Batch:
        batch = self.tried(count)
        self.queue.advance(self.cursor.count)
        self.cursor.commit()
        return batch

    def remember(self) -> None:
        self.cursor.barrier(SpoolStatus()).execute(self.fs)


@pytest.fixture
def disk() -> CrashFS:
    fs = spool_disk()
    fs.make_directory_durably(PATH)
    return fs


def test_messages_keep_their_ids_when_a_power_cut_takes_back_what_was_delivered(disk):
    """Of two processes the second has delivered messages that it never synced."""
    first = Life(disk)
    first.queue.put_many([b"%d" % n for n in range(5)], durability="synced")
    second = Life(disk.kill())
    second.queue.put_many([b"%d" % n for n in range(5, 10)], durability="synced")
    before = second.delivered(10)
    second.queue.put(b"never synced")
    second.delivered(1)
    second.remember()
    third = Life(second.fs.crash())
    again = third.tried(10)
    assert list(again) == list(before)
    assert again.ids == before.ids
    assert len({id_.split(":")[0] for id_ in again.ids}) == 2


def test_many_crashes_do_not_make_the_state_grow_for_ever(disk, monkeypatch):
    monkeypatch.setattr("diskq.engine.spool.delivery_cursor._MOST_EPOCHS", 10)
    fs = disk
    for n in range(30):
        life = Life(fs)
        life.queue.put(b"%d" % n)
        life.delivered(1)
        fs = fs.kill()
    assert len(life.cursor.state(SpoolStatus()).epochs) == 10


def test_a_batch_is_the_same_again_whatever_the_limit_is_by_now(disk):
    life = Life(disk)
    life.queue.put_many([b"%d" % n for n in range(9)], durability="synced")
    assert list(life.tried(3)) == [b"0", b"1", b"2"]
    for limit in (1, 100):
        life = Life(life.fs.kill())
        assert list(life.tried(limit)) == [b"0", b"1", b"2"]
    assert life.cursor.attempts == 3
    life.queue.advance(life.cursor.count)
    life.cursor.commit()
    assert list(life.tried(4)) == [b"3", b"4", b"5", b"6"]
    assert life.cursor.attempts == 1


def test_tries_of_a_batch_that_was_dropped_are_not_held_against_the_next_one(disk):
    life = Life(disk)
    life.queue.put_many([b"a", b"b", b"c"], durability="synced")
    life.tried(2)
    life.queue.advance(2)  # as if they were dropped: there was no commit
    life.queue.sync()
    life = Life(disk.kill())
    assert list(life.tried(5)) == [b"c"]
    assert life.cursor.attempts == 1


def test_what_is_buried_is_not_tried_again_after_a_restart(disk):
    life = Life(disk)
    life.queue.put_many([b"a", b"b", b"c"], durability="synced")
    life.tried(3)
    life.cursor.bury([1])
    life.cursor.do_not_count_failed_try()
    life.remember()
    life = Life(disk.kill())
    assert list(life.tried(3)) == [b"a", b"c"]
    assert (life.cursor.attempts, life.cursor.failed_attempts) == (2, 1)


def test_a_parent_directory_without_permissions_is_no_hindrance(disk):
    fs = FaultFS(disk)
    fault = fs.fail("sync_directory", error=errno.EACCES, path="/")
    with diskq.Queue(PATH, "spool", fs=fs) as queue, DeliveryCursor(fs, PATH, queue.steps):
        assert fault.hits == 1
    with diskq.Queue(PATH, "spool", fs=fs) as queue, DeliveryCursor(fs, PATH, queue.steps) as cursor:
        assert cursor.found is not None
