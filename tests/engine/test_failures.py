# The queue on a disk that fails. Law: an error tells what is true. After one about a message, the message
# is not in the queue; after one about reading, nothing was removed; after a failed sync nobody knows, and
# nobody is told otherwise until the queue was opened again.

from __future__ import annotations

import errno

import pytest

from diskq.errors import DiskFullError
from tests.engine.queues import bodies, data, drained, failing_disk, listed, opened

# --- reading ----------------------------------------------------------------------------------

ONE_PER_FILE = {"max_bytes_per_file": 50}


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
            received = []
            while len(received) < len(sent):
                try:
                    received += queue.take_many(at_once)
                except OSError as failure:
                    assert failure.errno == error
                    failed += 1
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


# --- a full disk ------------------------------------------------------------------------------


def test_what_is_written_can_be_taken_though_what_is_held_in_memory_finds_no_room():
    fs = failing_disk()
    with opened(fs) as queue:
        queue.put(b"written")
        queue.put(b"held", durability="memory")
        fs.capacity(0)
        assert queue.take() == b"written"
        with pytest.raises(DiskFullError):
            queue.take()
        fs.heal()
        assert queue.take() == b"held"
