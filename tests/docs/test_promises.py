# Rows of docs/durability.md and faults of docs/format/nsq.md whose proof is short enough to stand here.
# Law: one act, one claim, in the words of the document.

from __future__ import annotations

import errno
import random

import pytest
import trio

import diskq
from diskq._native.queue import codec as queue_codec
from diskq.engine.log.sync import SyncPolicy
from diskq.storage.fs import OsFileSystem
from tests.engine.queues import (
    ROOT,
    bodies,
    contents,
    data,
    disk,
    drained,
    failing_disk,
    flip,
    listed,
    meta,
    opened,
    put_files,
    records,
    sums,
)

# --- memory -----------------------------------------------------------------------------------


async def test_a_memory_message_survives_a_kill_once_memory_flush_is_over(autojump_clock):
    fs = disk()
    async with diskq.open_queue(ROOT, "q", fs=fs, durability="memory", memory_flush=0.01) as queue:
        await queue.send(b"x")
        assert contents(fs.kill()) == []
        await trio.sleep(0.02)
        assert contents(fs.kill()) == [b"x"]


# --- a failed fsync ---------------------------------------------------------------------------


def test_after_a_failed_fsync_nothing_is_promised_until_the_queue_is_reopened():
    fs = failing_disk()
    queue = opened(fs)
    queue.put(b"synced", durability="synced")
    fs.fail("sync_files", error=errno.EIO)
    with pytest.raises(diskq.StorageFailedError) as raised:
        queue.put(b"unknown", durability="synced")
    assert isinstance(raised.value.__cause__, OSError)
    for call in (queue.sync, queue.get, queue.peek, lambda: queue.put(b"refused")):
        with pytest.raises(diskq.StorageFailedError):
            call()


def test_reopening_after_a_failed_fsync_writes_again_what_the_kernel_forgot():
    fs = failing_disk()
    queue = opened(fs)
    queue.put(b"synced", durability="synced")
    fs.fail("sync_files", error=errno.EIO)
    with pytest.raises(diskq.StorageFailedError):
        queue.put(b"unknown", durability="synced")
    queue.close()
    with opened(fs) as queue:
        assert queue.depth == 2
    assert contents(fs.inner.crash(random.Random(1))) == [b"synced", b"unknown"]


# --- bit rot ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [5000, 104 * 60])  # in a body; in a length word
def test_a_rotten_byte_costs_its_block_is_reported_and_the_file_is_kept(at):
    fs = disk()
    with opened(fs, segment_size=20_000) as queue:
        queue.put_many(bodies(300))
    flip(fs, data(), at)
    with opened(fs) as queue:
        found = drained(queue)
        (repair,) = queue.repairs
        assert (repair.path, repair.records, repair.saved_as) == (data(), 40, data() + ".bad")
        lost = queue.statistics().lost
    assert found == [each for each in bodies(300) if each in found]
    assert (len(found), lost) == (260, 40)
    assert listed(fs)[1:3] == ["q.diskqueue.000000.dat.bad", "q.diskqueue.000001.dat"]


def test_a_rotten_row_costs_no_message():
    fs = disk()
    with opened(fs) as queue:
        queue.put_many(bodies(300))
    flip(fs, sums(), 30)
    assert contents(fs) == bodies(300)


def test_a_rotten_byte_of_the_metadata_loses_nothing_and_is_reported():
    for at in range(30):
        fs = disk()
        with opened(fs) as queue:
            queue.put_many(bodies(20))
            queue.get_many(5)
        flip(fs, meta(), at, mask=1)
        with opened(fs) as queue:
            assert queue.repairs
            assert drained(queue) == bodies(20)


# --- N12 to N17 of go-diskqueue ---------------------------------------------------------------


@pytest.mark.parametrize("directory", ["100%d", "%s", "a b"])
def test_a_path_is_not_a_format_string(tmp_path, directory):
    (tmp_path / directory).mkdir()
    with diskq.Queue(tmp_path / directory, "events") as queue:
        queue.put(b"x")
    assert (tmp_path / directory / "events.diskqueue.000000.dat").read_bytes() == records(b"x")


def test_closing_twice_is_closing_once_and_deleting_removes_the_files():
    fs = disk()
    queue = opened(fs)
    queue.put(b"x")
    queue.close()
    queue.close()
    queue = opened(fs)
    queue.delete()
    queue.close()
    assert listed(fs) == [".diskq"]
    assert listed(fs, "/q/.diskq") == ["q.lock"]


def test_temporary_metadata_that_a_crash_left_is_swept_up():
    fs = disk()
    fs.write_durably(meta() + ".123.tmp", b"3\n0,")
    opened(fs).close()
    assert [name for name in listed(fs) if name.endswith(".tmp")] == []


@pytest.mark.parametrize("length", [b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff"])
def test_a_length_is_judged_before_memory_is_asked_for(length):
    fs = disk()
    put_files(fs, [records(b"whole") + length + b"rest"])
    with opened(fs) as queue:
        assert drained(queue) == [b"whole"]
        assert queue.repairs


def test_a_message_longer_than_the_length_word_can_say_is_refused():
    with pytest.raises(ValueError, match="max_message_size is at most 2147483647"):
        diskq.QueueOptions(max_message_size=2**31)
    with pytest.raises(ValueError, match="2147483647"):
        queue_codec.NsqFraming(0, 2**31)


@pytest.mark.parametrize("senders", [2, 64, 256])
async def test_who_sends_at_once_shares_a_barrier(tmp_path, senders):
    async with diskq.open_queue(tmp_path, "events", durability="synced", fs=OsFileSystem()) as queue:
        before = queue.statistics().barriers
        async with trio.open_nursery() as nursery:
            for message in bodies(senders):
                nursery.start_soon(queue.send, message)
        assert queue.depth == senders
        assert queue.statistics().barriers - before <= 2


def test_a_count_that_jumps_past_sync_every_is_not_missed():
    policy = SyncPolicy(every=10, timeout=2.0)
    policy.count(9, now=0.0)
    assert policy.count(0, 0.0) > 0
    policy.count(5, now=0.0)
    assert policy.count(0, 0.0) == 0
