# The queue on a disk that fails. Law: errors are accurate. After one about a message, the message is not in
# the queue; after one about reading, nothing was removed; after a failed sync the state is unknown, and every
# call says so until the queue is opened again.

from __future__ import annotations

import errno
from contextlib import suppress
from typing import Any

import pytest

from diskq.engine.queue.fifo_queue import Queue
from diskq.errors import DiskFullError, DiskqError, FullError, StorageFailedError
from diskq.options import Durability
from diskq.testing import CrashFS, FaultFS
from tests.engine.queues import (
    ROOT,
    WAL,
    bodies,
    body,
    data,
    disk,
    drained,
    failing_disk,
    listed,
    meta,
    opened,
    records,
)
from tests.sampling import first

# --- reading ----------------------------------------------------------------------------------

ONE_PER_FILE: dict[str, Any] = {"segment_size": 50}


@pytest.mark.parametrize("verb", ["open", "pread"])
@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EINTR, errno.EIO])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_an_error_while_reading_removes_nothing_and_sets_nothing_aside(verb, error, at_once):
    sent = bodies(10)
    failed = 0
    for nth in range(1, 40):
        fs = failing_disk()
        with opened(fs, **ONE_PER_FILE) as queue:
            queue.put_many(sent)
            fs.fail(verb, nth=nth, error=error, path="/q/q.diskqueue.0*.dat")
            received: list[bytes] = []
            while len(received) < len(sent):
                try:
                    received += queue.get_many(at_once)
                except OSError as failure:
                    failed += failure.errno == error
            assert received == sent, nth
            assert not queue.repairs
        assert not [name for name in listed(fs) if name.endswith(".bad")]
    assert failed


def test_a_sync_does_not_mind_that_the_next_file_cannot_be_read():
    fs = failing_disk()
    with opened(fs, **ONE_PER_FILE) as queue:
        queue.put_many(bodies(3))
        queue.sync()
        queue.get()
        fs.fail("open", error=errno.EMFILE, path="*.dat", times=None)
        queue.sync()
        fs.heal()
        assert fs.size_of(data(0)) is None
        assert drained(queue) == bodies(2, start=1)


# --- few descriptors ----------------------------------------------------------------------------


def most_open(fs: FaultFS[CrashFS]) -> int:
    """Return how many handles were open at once."""
    most = now = 0
    for call in fs.calls:
        now += (call.verb == "open") - (call.verb == "close")
        most = max(most, now)
    return most


def test_a_batch_over_many_files_keeps_few_of_them_open():
    fs = failing_disk()
    with opened(fs, **ONE_PER_FILE) as queue:
        queue.put_many(bodies(300))
        assert queue.statistics().files == 300
    assert most_open(fs) < 100


def test_many_files_without_metadata_are_opened_with_few_descriptors():
    fs = failing_disk()
    with opened(fs, **ONE_PER_FILE) as queue:
        queue.put_many(bodies(300))
    fs = FaultFS(fs.inner.kill())
    fs.unlink(meta())
    with opened(fs, **ONE_PER_FILE) as queue:
        assert queue.depth == 300
    assert most_open(fs) < 100


# --- a full disk ------------------------------------------------------------------------------


def test_messages_held_in_memory_can_be_taken_though_the_disk_is_full():
    fs = failing_disk()
    with opened(fs) as queue:
        queue.put(b"written")
        queue.put(b"held", durability="memory")
        fs.capacity(0)
        assert queue.get() == b"written"
        with pytest.raises(DiskFullError):
            queue.sync()
        assert queue.get() == b"held"
        queue.sync()  # the space is not needed any more


FULL_AT = [*range(0, 9000, 700), *range(9000, 400_000, 43_000)]


def fill(queue: Queue, in_batches_of: int) -> list[bytes]:
    """Put until the disk is full. Returns what is in the queue."""
    sent: list[bytes] = []
    while True:
        batch = bodies(in_batches_of, start=len(sent))
        try:
            queue.put_many(batch)
        except FullError as full:
            return sent + batch[: full.accepted]
        sent += batch


@pytest.mark.parametrize("in_batches_of", [1, 7, 5000])
@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_on_a_full_disk_a_queue_can_be_opened_again_and_drained_and_filled_again(in_batches_of, is_killed):
    for room in FULL_AT:
        fs = failing_disk()
        queue = opened(fs, segment_size=100_000)
        fs.capacity(room)
        sent = fill(queue, in_batches_of)
        if not is_killed:
            queue.close()
        fs = FaultFS(fs.inner.kill())
        fs.capacity(0)
        with opened(fs, segment_size=100_000) as queue:
            assert queue.depth == len(sent)
            with pytest.raises(DiskFullError):
                queue.put(b"x" * 10_000)
            assert drained(queue) == sent
            fs.heal()
            queue.put(b"there is room again")
            assert drained(queue) == [b"there is room again"]
            assert not queue.repairs


# --- a write that fails -----------------------------------------------------------------------

WRITES = {
    "no room": lambda fs: fs.fail("pwrite", error=errno.ENOSPC, path="*.dat"),
    "no quota": lambda fs: fs.fail("pwrite", error=errno.EDQUOT, path="*.dat"),
    "a file too large": lambda fs: fs.fail("pwrite", error=errno.EFBIG, path="*.dat"),
    "an error": lambda fs: fs.fail("pwrite", error=errno.EIO, path="*.dat"),
    "some room": lambda fs: fs.capacity(50),
}
FULL = ("no room", "no quota", "a file too large", "some room")


@pytest.mark.parametrize("failure", WRITES)
@pytest.mark.parametrize("durability", ["written", "synced"])
def test_a_message_whose_write_failed_is_not_in_the_queue_and_the_queue_goes_on(failure, durability):
    fs = failing_disk()
    with opened(fs, durability=durability) as queue:
        queue.put_many(bodies(3))
        for _ in range(3):
            WRITES[failure](fs)
            with pytest.raises(DiskFullError if failure in FULL else OSError) as refused:
                queue.put(b"x" * 100)
            assert ROOT in str(refused.value)
            assert fs.inner.read(data()) == records(*bodies(3))
            fs.heal()
        assert queue.depth == 3
        queue.put(b"next")
        assert drained(queue) == [*bodies(3), b"next"]
        assert not queue.repairs


def test_a_full_disk_is_named_with_its_cause():
    fs = failing_disk()
    with opened(fs) as queue:
        fs.capacity(0)
        with pytest.raises(DiskFullError, match="/q: the disk is full") as full:
            queue.put(b"one")
        assert isinstance(full.value.__cause__, OSError)
        assert full.value.__cause__.errno == errno.ENOSPC


def test_a_batch_that_failed_midway_can_be_repeated_from_there():
    for room in range(5000, 60_000, 5000):
        fs = failing_disk()
        with opened(fs, segment_size=10_000) as queue:
            sent = bodies(500)
            fs.capacity(room)
            with pytest.raises(DiskFullError) as full:
                queue.put_many(sent)
            assert queue.depth == full.value.accepted
            fs.heal()
            queue.put_many(sent[full.value.accepted :])
            assert drained(queue) == sent, room


def test_a_torn_tail_that_cannot_be_kept_aside_stays_and_the_queue_goes_on_in_the_next_file():
    inner = disk()
    queue = opened(inner)
    queue.put_many(bodies(3))
    inner = inner.kill()
    inner.write_durably(data(), inner.read(data()) + b"\0\0\0\x09torn")
    inner.write_durably(WAL, b"")  # or it would make room
    fs = FaultFS(inner)
    fs.capacity(0)
    with opened(fs) as queue:
        assert queue.depth == 3
        assert queue.get() == body(0)
        fs.heal()
        queue.put(b"next")
        assert drained(queue) == [*bodies(2, start=1), b"next"]
        (repair,) = queue.repairs
        assert (repair.path, repair.kept, repair.dropped) == (data(), 312, 8)
    assert listed(fs)[1:] == [
        "q.diskqueue.000000.dat.bad",
        "q.diskqueue.000001.dat",
        "q.diskqueue.meta.dat",
    ]


def test_consuming_makes_room_on_a_full_disk():
    fs = failing_disk()
    with opened(fs, segment_size=1000) as queue:
        queue.put_many(bodies(50))
        queue.sync()
        fs.capacity(0)
        with suppress(FullError):
            while True:
                queue.put(body(50))
        beyond = queue.statistics().accepted - 50
        taken = queue.get_many(30)
        queue.sync()
        queue.put(b"there is room")
        assert taken + drained(queue) == [*bodies(50), *[body(50)] * beyond, b"there is room"]


def test_metadata_that_does_not_fit_on_the_disk_is_pending_without_an_error():
    fs = failing_disk()
    with opened(fs) as queue:
        queue.put(b"one")
        fs.fail("pwrite", error=errno.ENOSPC, path="*.tmp", times=None)
        queue.sync()
        queue.put(b"two", durability="synced")
        assert queue.get() == b"one"
        queue.sync()
        assert not [name for name in listed(fs) if name.endswith(".tmp")]
        assert drained(opened(fs.inner.crash()))[-1:] == [b"two"]
        fs.heal()
        queue.sync()
        assert drained(opened(fs.inner.crash())) == [b"two"]


# --- a sync that fails ------------------------------------------------------------------------

PROMISES = [
    ("sync_files", "*.diskqueue.0*.dat"),
    ("sync_files", "*.sums"),
    ("sync_files", "*.tmp"),
    ("sync_directory", ROOT),
    ("sync_directory", f"{ROOT}/.diskq"),
    ("rename", "*.tmp"),
]


@pytest.mark.parametrize("verb, path", PROMISES)
def test_a_broken_promise_is_final_and_every_call_raises_it(verb, path):
    """N9: the peer ignores a failed sync of its metadata, and syncs no directory."""
    fs = failing_disk()
    queue = opened(fs, segment_size=1000)
    queue.put(b"synced", durability="synced")
    queue.sync()
    queue.put(b"written")
    queue.put_many(bodies(10))
    fs.fail(verb, path=path)

    def begin_a_file_and_sync() -> None:
        queue.put_many(bodies(10))
        queue.sync()

    with pytest.raises(StorageFailedError, match="close it and reopen to recover") as failed:
        begin_a_file_and_sync()
    assert isinstance(failed.value.__cause__, OSError)
    fs.heal()
    for call in (
        lambda: queue.put(b"more"),
        lambda: queue.put(b"more", durability="memory"),
        lambda: queue.put_many([b"more"]),
        queue.get,
        queue.peek,
        queue.sync,
        queue.flush,
        queue.empty,
        lambda: queue.log.prepare(full=True),
    ):
        with pytest.raises(StorageFailedError) as again:
            call()
        assert again.value is failed.value
    queue.close()
    with opened(fs) as queue:
        assert queue.get_many(100)[:2] == [b"synced", b"written"]


def test_closing_a_broken_queue_writes_nothing_and_releases_everything():
    fs = failing_disk()
    queue = opened(fs)
    queue.put(b"one")
    fs.fail("sync_files")
    with pytest.raises(StorageFailedError):
        queue.sync()
    before = fs.inner.files()
    queue.close()
    assert fs.inner.files() == before
    opened(fs).close()


def test_a_failed_sync_while_closing_raises_and_the_queue_is_closed_all_the_same():
    fs = failing_disk()
    queue = opened(fs)
    queue.put(b"one")
    fs.fail("sync_files")
    with pytest.raises(StorageFailedError):
        queue.close()
    queue.close()
    with opened(fs) as queue:
        assert drained(queue) == [b"one"]


# --- short writes; for each call that fails see tests/contract/test_each_call.py ----------------


class Witness:
    """A queue in use on a disk that fails, and what it has promised."""

    def __init__(self, fs: FaultFS[CrashFS]) -> None:
        self.fs = fs
        self.accepted: list[bytes] = []
        self.doubtful: list[bytes] = []
        """Messages that may or may not be in: the storage failed."""
        self.synced = 0
        self.taken = 0
        self.errors = 0

    def run(self) -> None:
        """Do some of everything, going on after errors as a program would."""
        queue = self.attempt(lambda: opened(self.fs, segment_size=1000, sync_every=11))
        if queue is None:
            return
        number = 0
        for act in "ppsppPppttppsPtptTppPttppppcppT":
            if act in "ps":
                batch = [body(number, number * 13 % 300)]
            elif act == "P":
                batch = [body(number + index, 90) for index in range(12)]
            number += len(batch) if act in "psP" else 0
            if act in "psP":
                self.attempt(self.put, queue, batch, "synced" if act == "s" else "written")
            elif act in "tT":
                self.attempt(self.take, queue, 1 if act == "t" else 5)
            else:
                self.attempt(self.sync, queue)
        self.attempt(queue.close)

    def attempt(self, act, *arguments):
        try:
            return act(*arguments)
        except (OSError, DiskqError):
            self.errors += 1
            return None

    def put(self, queue: Queue, batch: list[bytes], durability: Durability) -> None:
        before = queue.steps.accepted_total
        try:
            queue.put_many(batch, durability=durability)
        except StorageFailedError:
            self.doubtful += batch
            raise
        except OSError:
            # Apart from a full disk: the part of a batch that was accepted before is in.
            batch = batch[: queue.steps.accepted_total - before]
            self.accepted += batch
            raise
        except FullError as full:
            self.accepted += batch[: full.accepted]
            raise
        self.accepted += batch
        if durability == "synced":
            self.synced = len(self.accepted)

    def take(self, queue: Queue, count: int) -> None:
        received = queue.get_many(count)
        assert received == self.accepted[self.taken : self.taken + len(received)]
        self.taken += len(received)

    def sync(self, queue: Queue) -> None:
        queue.sync()
        self.synced = len(self.accepted)

    def check(self) -> None:
        self.fs.heal()
        for after, promised in (
            (self.fs.inner.kill(), len(self.accepted)),
            (self.fs.inner.crash(), self.synced),
        ):
            with opened(after) as queue:
                found = drained(queue)
                assert not [repair for repair in queue.repairs if "stopped" not in repair.reason]
            known = [*self.accepted, *self.doubtful]
            start = known.index(found[0]) if found else max(self.taken, promised)
            assert start <= self.taken, "skipped"
            assert found == known[start : start + len(found)], "altered, invented or out of order"
            assert start + len(found) >= promised, "lost"


@pytest.mark.parametrize("taken", first(1, [3, 1, 50]))
def test_short_writes_tear_nothing(taken):
    for nth in range(1, 200):
        witness = Witness(failing_disk())
        fault = witness.fs.short_write(nth=nth, bytes_taken=taken)
        witness.run()
        if not fault.hits:
            break
        assert witness.errors == 0
        witness.check()
    assert nth > 10
