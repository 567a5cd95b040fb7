# The FIFO queue, sound disk. Law: what is handed out has left the queue, what is peeked at has not; and
# files are what go-diskqueue would have made of the same calls.

from __future__ import annotations

import pytest

from diskq.engine.fifo import FifoQueue
from diskq.errors import DiskFullError, MessageSizeError
from tests.engine.queues import bodies, body, data, disk, drained, flip, meta, opened

# --- limits that change -----------------------------------------------------------------------


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_what_was_written_under_other_limits_is_delivered(is_killed):
    fs = disk()
    sent = [b"", b"1", b"x" * 5000, b"12345", b""]
    queue = opened(fs, max_message_size=5000)
    queue.put_many(sent)
    if not is_killed:
        queue.close()
    with opened(fs.kill(), min_message_size=3, max_message_size=10, max_bytes_per_file=20) as queue:
        with pytest.raises(MessageSizeError):
            queue.put(b"12")
        with pytest.raises(MessageSizeError):
            queue.put(b"x" * 11)
        queue.put(b"123")
        assert drained(queue) == [*sent, b"123"]
        assert not queue.repairs


# --- the byte bound ---------------------------------------------------------------------------


def filled(queue: FifoQueue) -> list[bytes]:
    """Put until the first message is dropped. Returns what was put."""
    sent: list[bytes] = []
    while not queue.statistics().dropped:
        sent.append(body(len(sent)))
        queue.put(sent[-1])
    return sent


def test_drop_oldest_gives_up_whole_files_from_the_head():
    with opened(disk(), max_bytes=64 * 1024, on_full="drop_oldest") as queue:
        sent = filled(queue)
        dropped = queue.statistics().dropped
        assert queue.depth == len(sent) - dropped
        assert drained(queue) == sent[dropped:]
        assert queue.statistics().received == len(sent) - dropped


def test_drop_oldest_keeps_what_was_peeked_at_in_later_files():
    fs = disk()
    with opened(fs, max_bytes=64 * 1024, on_full="drop_oldest") as queue:
        sent = bodies(200)
        queue.put_many(sent)
        peeked = queue.peek_many(150)
        assert fs.size_of(data(1)), "they lie in more than one file"
        while not (dropped := queue.statistics().dropped):
            sent.append(body(len(sent)))
            queue.put(sent[-1])
        assert dropped < len(peeked)
        assert queue.depth == len(sent) - dropped
        queue.advance(len(peeked))
        assert queue.depth == len(sent) - len(peeked)
        assert drained(queue) == sent[len(peeked) :]
        statistics = queue.statistics()
        assert (statistics.depth, statistics.dropped) == (0, dropped)
        assert statistics.received == len(sent) - dropped


@pytest.mark.parametrize("on_full", ["reject", "drop_oldest"])
@pytest.mark.parametrize("durability", ["written", "synced"])
@pytest.mark.parametrize("size", [0, 20, 3000])
def test_the_bound_holds_on_the_disk_checksums_included(on_full, durability, size):
    bound = 64 * 1024
    fs = disk()
    with opened(fs, max_bytes=bound, on_full=on_full, durability=durability) as queue:
        number = is_full = 0
        while is_full < 300:
            try:
                queue.put(body(number, size))
            except DiskFullError:
                break
            number += 1
            is_full += queue.statistics().dropped > 0
            if number % 16 == 0:
                sizes = [len(content) for path, content in fs.files().items() if ".dat" in path]
                on_disk = sum(sizes) - len(fs.read(meta()))
                assert queue.bytes_on_disk == on_disk <= bound


# --- depth --------------------------------------------------------------------------------------


def test_at_the_end_of_the_queue_its_depth_is_0_whatever_was_lost_on_the_way():
    fs = disk()
    with opened(fs) as queue:
        queue.put_many(bodies(5))
    flip(fs, data(), 104)
    with opened(fs) as queue:
        assert drained(queue) == []
        assert queue.depth == 0
        queue.put(b"next")
        assert queue.depth == 1
