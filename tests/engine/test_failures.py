# The queue on a disk that fails. Law: an error tells what is true. After one about a message, the message
# is not in the queue; after one about reading, nothing was removed; after a failed sync nobody knows, and
# nobody is told otherwise until the queue was opened again.

from __future__ import annotations

import errno
from typing import Any

import pytest

from diskq.engine.fifo import FifoQueue
from diskq.errors import DiskFullError
from diskq.testing import CrashFS, FaultFS
from tests.engine.queues import bodies, data, drained, failing_disk, listed, meta, opened

# --- reading ----------------------------------------------------------------------------------

ONE_PER_FILE: dict[str, Any] = {"max_bytes_per_file": 50}


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
                    received += queue.take_many(at_once)
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
        queue.take()
        fs.fail("open", error=errno.EMFILE, path="*.dat", times=None)
        queue.sync()
        fs.heal()
        assert fs.size_of(data(0)) is None
        assert drained(queue) == bodies(2, start=1)


# --- few descriptors ----------------------------------------------------------------------------


def most_open(fs: FaultFS[CrashFS]) -> int:
    """So many handles were open at once."""
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


def test_what_is_held_in_memory_and_finds_no_room_can_be_taken_all_the_same():
    fs = failing_disk()
    with opened(fs) as queue:
        queue.put(b"written")
        queue.put(b"held", durability="memory")
        fs.capacity(0)
        assert queue.take() == b"written"
        with pytest.raises(DiskFullError):
            queue.sync()
        assert queue.take() == b"held"
        queue.sync()  # nobody needs the room any more


FULL_AT = [*range(0, 9000, 700), *range(9000, 400_000, 43_000)]


def fill(queue: FifoQueue, in_batches_of: int) -> list[bytes]:
    """Put until the disk is full. Returns what is in the queue."""
    sent: list[bytes] = []
    while True:
        batch = bodies(in_batches_of, start=len(sent))
        try:
            queue.put_many(batch)
        except DiskFullError as full:
            return sent + batch[: full.accepted]
        sent += batch


@pytest.mark.parametrize("in_batches_of", [1, 7, 5000])
@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_on_a_full_disk_a_queue_can_be_opened_again_and_drained_and_filled_again(in_batches_of, is_killed):
    for room in FULL_AT:
        fs = failing_disk()
        queue = opened(fs, max_bytes_per_file=100_000)
        fs.capacity(room)
        sent = fill(queue, in_batches_of)
        if not is_killed:
            queue.close()
        fs = FaultFS(fs.inner.kill())
        fs.capacity(0)
        with opened(fs, max_bytes_per_file=100_000) as queue:
            assert queue.depth == len(sent)
            with pytest.raises(DiskFullError):
                queue.put(b"x" * 10_000)
            assert drained(queue) == sent
            fs.heal()
            queue.put(b"there is room again")
            assert drained(queue) == [b"there is room again"]
            assert not queue.repairs
