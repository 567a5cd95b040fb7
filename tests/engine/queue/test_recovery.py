# Opening a queue in whatever state it is. Law: opening never refuses because of a crash, never loses a whole
# message, never invents one, and reports what it did.

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.queue.files import QueueMetadata, QueuePosition
from diskq.errors import CorruptionError, StorageFailedError
from diskq.options import QueueOptions
from diskq.storage.checksums import Row, checksum, pack_row
from diskq.storage.fs import OsFileSystem
from diskq.storage.numbers import NO_NUMBER
from diskq.storage.repairs import RepairKind
from diskq.testing import CrashFS, FaultFS, PowerCut
from diskq.tools.stores import Store
from diskq.tools.verify.verification import verify
from tests.engine.queues import (
    ROOT,
    abandoned,
    bodies,
    body,
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
    truncate,
)
from tests.reference import nsq_oracle

LOCK = f"{ROOT}/.diskq/q.lock"
STATE = f"{ROOT}/.diskq/q.queue.state"
A_HUGE_LENGTH = b"\x7f\xff\xff\xff"

# --- metadata that is wrong -------------------------------------------------------------------


def three_files() -> tuple[CrashFS, list[bytes]]:
    """A queue of three files, five of its 25 messages consumed, closed; and the other twenty."""
    fs = disk()
    with opened(fs, segment_size=1000) as queue:
        queue.put_many(bodies(25))
        queue.get_many(5)
    return fs.kill(), bodies(20, start=5)


UNREADABLE = {
    "missing": None,
    "empty": b"",
    "zeros": bytes(64),
    "text": b"hello\n",
    "too long a number": b"1\n%s,0\n0,0\n" % (b"9" * 30),
    "negative position": b"1\n-1,0\n0,0\n",
    "a file number that is too large": b"1\n0,0\n%d,0\n" % NO_NUMBER,
    "the last file that 64 bits can tell": b"1\n0,0\n9223372036854775807,0\n",
    "a byte that is too large": b"1\n0,%d\n3,0\n" % NO_NUMBER,
    "read position after the write position": b"1\n5,0\n0,0\n",
    "no last newline": b"20\n0,520\n2,728",
    "carriage returns": b"20\r\n0,520\r\n2,728\r\n",
    "a space too many": b"20\n0, 520\n2,728\n",
    "a checksum of something else": b"20\n0,520\n2,728\ncrc32c 00000000\n",
    "a fourth line of the future": b"20\n0,520\n2,728\ncrc64 0000000000000000\n",
    "a fifth line": b"20\n0,520\n2,728\ncrc32c 00000000\nmore\n",
    "a megabyte": b"20\n0,520\n2,728\n" + b"x" * (1 << 20),
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_where_the_metadata_is_no_use_the_files_decide(content):
    """N5: the peer overwrites the files from the first on, in silence."""
    fs, rest = three_files()
    if content is None:
        fs.unlink(meta())
    else:
        fs.write_durably(meta(), content)
    with opened(fs) as queue:
        (repair,) = queue.repairs
        assert (repair.path, repair.records) == (meta(), 0)
        assert queue.depth == 25
        queue.put(b"new")
        assert drained(queue) == [*bodies(5), *rest, b"new"], "what was consumed comes again"
    with opened(fs) as queue:
        assert not queue.repairs


def test_metadata_of_an_earlier_time_brings_messages_again_and_loses_none():
    fs = disk()
    with opened(fs, segment_size=1000) as queue:
        queue.put_many(bodies(5))
    earlier = fs.read(meta())
    with opened(fs, segment_size=1000) as queue:
        queue.put_many(bodies(20, start=5))
        queue.get_many(2)
    fs = fs.kill()
    fs.write_durably(meta(), earlier)
    assert contents(fs) == bodies(25)


def test_metadata_of_a_time_when_files_were_there_that_are_consumed_skips_to_those_that_are():
    fs = disk()
    with opened(fs, segment_size=1000) as queue:
        queue.put_many(bodies(25))
    earlier = fs.read(meta())
    with opened(fs, segment_size=1000) as queue:
        queue.get_many(12)
    fs = fs.kill()
    fs.write_durably(meta(), earlier)
    with opened(fs) as queue:
        assert not queue.repairs, "a full disk leaves it so: room is made before metadata is written"
        assert queue.depth == 16
        assert drained(queue) == bodies(16, start=9), "from the start of the file that is there"


def older_metadata(fs: CrashFS, age: str, *, restarted: bool) -> CrashFS:
    """A closed queue of 6 files with 52 messages; its metadata is of an earlier time, or gone."""
    moments = {}
    for moment, count in (("empty", 0), ("in the second file", 12), ("now", 40)):
        with opened(fs, segment_size=1000) as queue:
            queue.put_many(bodies(count, start=queue.depth))
        moments[moment] = fs.read(meta())
    if restarted:
        handle = fs.open(STATE, write=True)
        fs.sync_files((handle,))
        fs.close(handle)
    fs = fs.crash() if restarted else fs.kill()
    if age == "gone":
        fs.unlink(meta())
    else:
        fs.write_durably(meta(), moments[age])
    return fs


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("gone", [0, 3, 5])
@pytest.mark.parametrize("age", ["empty", "in the second file", "now", "gone"])
def test_a_hole_in_the_file_numbers_is_reported_whatever_the_metadata_says(age, gone, restarted):
    """As after a partial restore."""
    fs = older_metadata(disk(), age, restarted=restarted)
    fs.unlink(data(gone))
    lost = 7 if gone == 5 else 9
    found = verify(Store("queue", ROOT, "q"), fs=fs)
    assert (found.verdict, found.messages, found.lost) == ("damaged", 52 - lost, lost)
    assert [each for each in found.findings if each.path == sums(gone) and 0 < gone < 5] == []
    with opened(fs) as queue:
        assert [(each.path, each.records) for each in queue.repairs if each.path != meta()] == [
            (data(gone), lost)
        ]
        assert queue.statistics().lost == lost
        assert queue.depth == 52 - lost
    assert (sums(gone) in fs.files()) == (0 < gone < 5), "kept until reading has come past it"
    with opened(fs) as queue:
        assert len(drained(queue)) == 52 - lost
    with opened(fs) as queue:
        assert not queue.repairs
    assert sums(gone) not in fs.files()


def test_a_hole_without_checksums_is_reported_whatever_the_metadata_says():
    fs = older_metadata(disk(), "empty", restarted=False)
    fs.unlink(data(3))
    fs.unlink(sums(3))
    assert verify(Store("queue", ROOT, "q"), fs=fs).verdict == "damaged"
    with opened(fs) as queue:
        assert [(each.path, each.records) for each in queue.repairs] == [(data(3), None)]


def test_files_that_were_consumed_after_metadata_of_an_earlier_time_are_no_hole():
    fs = disk()
    with opened(fs, segment_size=1000) as queue:
        queue.put_many(bodies(5))
    earlier = fs.read(meta())
    with opened(fs, segment_size=1000) as queue:
        queue.put_many(bodies(30, start=5))
        queue.get_many(30)
    fs = fs.kill()
    fs.write_durably(meta(), earlier)
    with opened(fs) as queue:
        assert not queue.repairs


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "a peer's"])
def test_metadata_ahead_of_the_data_leaves_no_hole(is_ours):
    """N4: the peer writes after the end of the file: zeros come out as empty messages, then garbage."""
    fs = disk()
    told = QueueMetadata(5, QueuePosition(0, 0), QueuePosition(0, 500), is_ours=True).render()
    put_files(fs, [records(*bodies(3))], told if is_ours else b"".join(told.splitlines(keepends=True)[:3]))
    with opened(fs) as queue:
        (repair,) = queue.repairs
        assert (repair.path, repair.kept, repair.dropped) == (data(), 312, 188)
        assert repair.records == (2 if is_ours else None), "whose count can be relied on"
        queue.put(b"next")
        assert drained(queue) == [*bodies(3), b"next"]
    assert fs.read(data()) == records(*bodies(3), b"next")


def test_metadata_that_names_a_file_never_begun_goes_on_there():
    fs = disk()
    put_files(fs, [records(*bodies(3))], b"3\n0,0\n1,0\n")
    with opened(fs) as queue:
        queue.put(b"next")
        assert not queue.repairs
        assert drained(queue) == [*bodies(3), b"next"]
        assert fs.read(data(1)) == records(b"next")


def test_a_depth_that_is_wrong_is_counted_anew():
    """N11: the peer's depth is wrong after a crash, and can be negative."""
    for depth in (-3, 0, 1, 10**9):
        fs = disk()
        put_files(fs, [records(*bodies(3))], b"%d\n0,0\n0,312\n" % depth)
        with opened(fs) as queue:
            assert queue.depth == 3
            assert drained(queue) == bodies(3)
            assert queue.depth == 0


# --- after a kill -------------------------------------------------------------------------------


def test_after_a_kill_all_is_there_and_the_depth_is_right():
    """N11, N5: nothing was synced since the open."""
    fs = disk()
    queue = opened(fs, segment_size=1000)
    queue.put_many(bodies(5))
    for number in range(5, 25):
        queue.put(body(number))
    queue.get_many(3)
    with opened(fs.kill()) as queue:
        assert not queue.repairs
        expected = bodies(queue.depth, start=25 - queue.depth)
        assert len(expected) in (22, 25), "what was consumed may come again"
        assert drained(queue) == expected
        assert queue.depth == 0


@pytest.mark.parametrize("left", [0, 500])
def test_a_file_cut_after_a_kill_has_lost_what_came_after_its_metadata_too(left):
    fs = disk()
    queue = opened(fs)
    queue.put_many(bodies(30))
    queue.sync()
    queue.put_many(bodies(10, start=30))
    killed = fs.kill()
    killed.write_durably(data(0), killed.files()[data(0)][:left])
    found = verify(Store("queue", ROOT, "q"), fs=killed)
    with opened(killed) as queue:
        there = drained(queue)
        assert there == bodies(len(there))
        assert queue.statistics().lost == found.lost == 40 - len(there)


@pytest.mark.parametrize("left", range(1, 14))
def test_a_torn_tail_is_cut_and_kept_aside(left):
    fs = disk()
    queue = opened(fs)
    queue.put_many(bodies(3))
    torn = records(b"ten bytes.")[:left]
    fs = abandoned(queue, fs)
    fs.write_durably(data(), fs.read(data()) + torn)
    with opened(fs) as queue:
        (repair,) = queue.repairs
        assert (repair.kept, repair.dropped, repair.records) == (312, left, 0)
        assert repair.saved_as == data() + ".bad"
        queue.put(b"next")
        assert drained(queue) == [*bodies(3), b"next"]
    assert fs.read(data() + ".bad") == torn


def test_a_tail_that_was_cut_twice_is_kept_twice():
    fs = disk()
    for number in range(3):
        queue = opened(fs)
        queue.put(b"whole")
        fs = abandoned(queue, fs)
        fs.write_durably(data(), fs.read(data()) + b"\0\0")
        with opened(fs) as queue:
            assert len(queue.repairs) == 1
            assert queue.depth == number + 1
    assert [name for name in listed(fs) if ".bad" in name] == [
        "q.diskqueue.000000.dat.bad",
        "q.diskqueue.000000.dat.bad-1",
        "q.diskqueue.000000.dat.bad-2",
    ]


def test_what_was_written_before_a_kill_is_checksummed_after_it():
    fs = disk()
    queue = opened(fs)
    queue.put_many(bodies(100))
    fs = abandoned(queue, fs)
    opened(fs).close()
    for at in (50, 5000, 10_000):
        rotten = fs.kill()
        flip(rotten, data(), at)
        with opened(rotten) as queue:
            received = drained(queue)
            (repair,) = queue.repairs
            assert repair.reason == "checksum mismatch"
            assert repair.records == 100 - len(received)
            assert set(received) < set(bodies(100))


def test_a_length_that_rotted_costs_its_block_and_reading_goes_on_after_it():
    """N7: the peer throws the rest of the file away."""
    fs = disk()
    with opened(fs) as queue:
        queue.put_many(bodies(1000))
    flip(fs, data(), 0)
    with opened(fs) as queue:
        received = drained(queue)
        assert received == bodies(960, start=40)
        assert queue.repairs[0].records == 40


def test_killed_while_recovering_the_next_one_recovers():
    fs = disk()
    queue = opened(fs, segment_size=1000)
    queue.put_many(bodies(25))
    fs = abandoned(queue, fs)
    fs.write_durably(data(2), fs.read(data(2)) + b"torn")
    for cut in range(1, 200):
        broken = fs.kill()
        broken.cut_at = cut
        with suppress(PowerCut):
            opened(broken).close()
        after = broken.kill()
        with opened(after) as queue:
            assert drained(queue) == bodies(25), cut
        if not broken.is_cut:
            return
    raise AssertionError("it never came to its end")


def test_after_a_failed_sync_what_was_not_synced_is_written_again():
    """The kernel holds the lost bytes for clean: a sync of the next process would write nothing."""
    fs = disk()
    queue = opened(fs)
    queue.put(b"synced", durability="synced")
    queue.put(b"written")
    fs.fail_sync()
    with pytest.raises(StorageFailedError):
        queue.sync()
    queue.close()
    fs = fs.kill()
    opened(fs).close()
    assert contents(fs.crash()) == [b"synced", b"written"]


def test_damage_that_a_peer_left_does_not_prevent_checksums_of_what_diskq_wrote_after_it():
    fs = disk()
    broken = records(b"one", b"two") + A_HUGE_LENGTH + b"three"
    put_files(fs, [broken], b"3\n0,0\n0,%d\n" % len(broken))
    queue = opened(fs)
    queue.put(b"ours")
    with opened(abandoned(queue, fs)) as queue:
        assert drained(queue) == [b"one", b"two", b"ours"]
        assert [(repair.path, repair.kept, repair.dropped) for repair in queue.repairs] == [(data(), 14, 9)]


# --- after a power cut ------------------------------------------------------------------------


def test_a_file_that_survived_without_the_one_before_it_is_not_delivered():
    fs = disk()
    opened(fs).close()
    empty = QueueMetadata(0, QueuePosition(1, 0), QueuePosition(1, 0), is_ours=True)
    fs.write_durably(meta(), empty.render())
    content = records(*bodies(3))
    fs.write_durably(data(2), content)
    fs.write_durably(sums(2), pack_row(Row(0, len(content), 3, checksum(content))))
    with opened(fs.crash()) as queue:
        assert drained(queue) == []
        (repair,) = queue.repairs
        assert (repair.path, repair.dropped, repair.records) == (data(2), len(content), None)


# --- damage that was reported -------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["closed", "killed", "killed before the file is set aside"])
def test_a_file_with_damage_is_kept_though_another_process_consumes_the_rest_of_it(ending):
    fs = disk()
    with opened(fs, segment_size=9000) as queue:
        queue.put_many(bodies(200))
    flip(fs, data(0), 10)
    damaged = fs.read(data(0))
    queue = opened(fs, segment_size=9000)
    queue.get()
    assert queue.repairs
    if ending == "closed":
        queue.close()
    else:
        queue.sync()
    fs = fs.kill()
    if ending == "killed before the file is set aside":
        broken = FaultFS(fs)
        broken.fail("rename", path=data(0))
        with pytest.raises(StorageFailedError):
            drained(opened(broken, segment_size=9000))
        fs = fs.kill()
    with opened(fs, segment_size=9000) as queue:
        drained(queue)
    assert fs.read(data(0) + ".bad") == damaged
    assert listed(fs, f"{ROOT}/.diskq") == [
        "q.diskqueue.000002.dat.sums",
        "q.lock",
        "q.queue.state",
        "q.wal",
    ]


# --- leftovers ----------------------------------------------------------------------------------


def test_leftovers_of_a_crash_are_removed_and_nothing_else():
    """N14: the peer never removes its temporary files."""
    fs = disk()
    with opened(fs) as queue:
        queue.put(b"one")
    ours = [f"{meta()}.1.tmp", f"{meta()}.9223372036854775807.tmp", sums(7), sums(1_000_000)]
    others = [
        f"{meta()}.tmp",
        f"{meta()}.x.tmp",
        f"{meta()}.1.tmp.tmp",
        f"{ROOT}/other.diskqueue.meta.dat.1.tmp",
        f"{ROOT}/.diskq/other.diskqueue.000007.dat.sums",
        f"{ROOT}/.diskq/README",
        f"{data(7)}.bad",
        f"{ROOT}/notes",
    ]
    for path in ours + others:
        fs.write_durably(path, b"content")
    with opened(fs) as queue:
        assert not queue.repairs
        assert drained(queue) == [b"one"]
    assert not set(ours) & set(fs.files())
    assert set(others) < set(fs.files())


def test_consumed_files_that_a_kill_left_are_removed():
    fs, rest = three_files()
    fs.write_durably(
        meta(), QueueMetadata(7, QueuePosition(2, 0), QueuePosition(2, 728), is_ours=True).render()
    )
    with opened(fs) as queue:
        assert not queue.repairs
        assert drained(queue) == rest[-7:]
        assert listed(fs)[1:] == ["q.diskqueue.000002.dat", "q.diskqueue.meta.dat"]
        assert sums(0) not in fs.files()


def test_a_consumed_file_is_removed_only_after_the_position_after_it_is_durable():
    """N10: the peer removes it first."""
    fs = failing_disk()
    with opened(fs, segment_size=200) as queue:
        queue.put_many(bodies(5))
        fs.calls.clear()
        queue.get_many(3)
        queue.sync()
    acts = [(call.verb, call.path) for call in fs.calls]
    renamed = acts.index(("rename", next(path for verb, path in acts if verb == "rename")))
    assert ("sync_directory", ROOT) in acts[renamed : acts.index(("unlink", data(0)))]


# --- other programs' files ------------------------------------------------------------------------


def in_turn(tmp_path) -> tuple[Path, list[bytes]]:
    """A directory that diskq wrote and a peer then appended to, and its messages."""
    with Queue(tmp_path, "q", options=QueueOptions(segment_size=10_000)) as queue:
        queue.put_many(bodies(150))
        queue.get_many(10)
    told = nsq_oracle.read_meta(tmp_path, "q")
    path = nsq_oracle.data_path(tmp_path, "q", told.write_file)
    path.write_bytes(path.read_bytes() + records(*bodies(20, start=150)))
    end = path.stat().st_size
    nsq_oracle.write_meta(tmp_path, "q", told._replace(depth=told.depth + 20, write_position=end))
    return tmp_path, bodies(160, start=10)


def test_a_peers_directory_is_taken_as_it_is(tmp_path):
    nsq_oracle.write_dir(tmp_path, "q", bodies(100), segment_size=2000)
    nsq_oracle.consume(tmp_path, "q", 30)
    with Queue(tmp_path, "q") as queue:
        assert not queue.repairs
        assert queue.depth == 70
        assert queue.get_many(10) == bodies(10, start=30)
    assert nsq_oracle.read_dir(tmp_path, "q") == bodies(60, start=40)


@given(
    st.lists(st.binary(max_size=60), max_size=40),
    st.integers(1, 400),
    st.integers(0, 40),
    st.integers(0, 5),
)
@settings(deadline=None)
def test_any_peers_directory_is_taken_as_it_is(tmp_path_factory, sent, segment_size, consumed, first_file):
    directory = tmp_path_factory.mktemp("theirs")
    consumed = min(consumed, len(sent))
    nsq_oracle.write_dir(directory, "q", sent, segment_size, first_file)
    nsq_oracle.consume(directory, "q", consumed)
    with opened(CrashFS.from_directory(directory, ROOT)) as queue:
        assert not queue.repairs
        assert queue.depth == len(sent) - consumed
        assert drained(queue) == sent[consumed:]


def test_what_a_peer_appended_to_diskqs_files_is_delivered_and_never_cut(tmp_path):
    directory, expected = in_turn(tmp_path)
    with Queue(directory, "q") as queue:
        assert not queue.repairs
        assert queue.depth == len(expected)
        queue.put(b"ours again")
        assert drained(queue) == [*expected, b"ours again"]


def test_it_is_not_cut_after_a_restart_of_the_machine_either(tmp_path):
    directory, expected = in_turn(tmp_path)
    fs = CrashFS.from_directory(directory, ROOT)
    assert not fs.identity().boot_id.startswith(OsFileSystem().identity().boot_id)
    with opened(fs) as queue:
        assert not queue.repairs
        assert drained(queue) == expected


def test_a_peer_may_consume_into_the_middle_of_diskqs_blocks(tmp_path):
    directory, expected = in_turn(tmp_path)
    nsq_oracle.consume(directory, "q", 105)
    with Queue(directory, "q") as queue:
        assert queue.depth == len(expected) - 105
        assert drained(queue) == expected[105:]
        assert not queue.repairs


def test_a_peers_torn_tail_is_cut_and_kept_aside(tmp_path):
    directory, expected = in_turn(tmp_path)
    path = nsq_oracle.data_path(directory, "q", 1)
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes() + records(b"unsynced") + b"\0\0\0\x09torn")
    with Queue(directory, "q") as queue:
        (repair,) = queue.repairs
        assert (repair.path, repair.kept, repair.dropped) == (str(path), whole + 12, 8)
        assert drained(queue) == [*expected, b"unsynced"]


def test_diskqs_checksums_still_guard_what_diskq_wrote(tmp_path):
    directory, expected = in_turn(tmp_path)
    path = nsq_oracle.data_path(directory, "q", 1)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with Queue(directory, "q") as queue:
        received = drained(queue)
        (repair,) = queue.repairs
        assert set(received) < set(expected)
        assert repair.records == len(expected) - len(received)


def test_a_peer_that_began_again_at_the_first_file_is_believed(tmp_path):
    """N5, the other way round: a peer lost the metadata, and diskq's checksums are not of its bytes."""
    directory, _ = in_turn(tmp_path)
    for path in directory.glob("*.dat"):
        path.unlink()
    nsq_oracle.write_dir(directory, "q", bodies(50, start=1000))
    with Queue(directory, "q") as queue:
        assert drained(queue) == bodies(50, start=1000)
        assert not queue.repairs


def test_a_file_that_a_peer_left_over_is_left_alone_and_reported(tmp_path):
    nsq_oracle.write_dir(tmp_path, "q", bodies(30), segment_size=1000)
    left = nsq_oracle.data_path(tmp_path, "q", 0)
    content = left.read_bytes()
    nsq_oracle.consume(tmp_path, "q", 12)
    left.write_bytes(content)
    with Queue(tmp_path, "q") as queue:
        assert [(repair.path, repair.dropped) for repair in queue.repairs] == [(str(left), len(content))]
        assert drained(queue) == bodies(18, start=12)
    assert left.read_bytes() == content


def test_the_messages_around_damage_in_a_peers_files_are_delivered():
    """TestDiskQueueCorruption: a short middle file, a short last file, and a length below the minimum."""
    files = [records(*bodies(10, 20, start=10 * number)) for number in range(4)]
    files[1] = files[1][:100]
    files[3] = files[3][:-5]
    fs = disk()
    put_files(fs, files, b"40\n0,0\n3,240\n")
    options: dict[str, Any] = {"min_message_size": 10, "segment_size": 240}
    with opened(fs, **options) as queue:
        expected = [*bodies(14, 20), *bodies(10, 20, start=20), *bodies(9, 20, start=30)]
        assert drained(queue) == expected
        assert queue.depth == 0
        queue.put(body(99, 20))
        assert queue.get() == body(99, 20)
    fs = disk()
    put_files(fs, [records(body(100, 20)) + bytes(4) + records(body(101, 20))], b"3\n0,0\n0,52\n")
    with opened(fs, **options) as queue:
        assert drained(queue) == [body(100, 20)], "a length of 0 is below the minimum"
        assert queue.depth == 0


@pytest.mark.parametrize("is_synced", [True, False], ids=["with checksums", "without"])
def test_a_file_cut_under_an_open_queue_costs_what_was_cut_off(is_synced):
    """TestDiskQueueCorruption, as it is done there: the file changes while the queue is open."""
    for number, first, last in ((1, 9, 18), (2, 18, 25)):
        for cut in (0, 3, 4, 50, 104, 500, 520, 727):
            fs = disk()
            with opened(fs, segment_size=1000) as queue:
                queue.put_many(bodies(25))
                if is_synced:
                    queue.sync()
                truncate(fs, data(number), cut)
                expected = [*bodies(first + cut // 104), *bodies(25 - last, start=last)]
                assert queue.get_many(100) == expected
                assert queue.depth == 0
                (repair,) = queue.repairs
                assert (repair.path, repair.kept) == (data(number), cut // 104 * 104)
                if is_synced or number == 1:
                    assert repair.records == 25 - len(expected)


def test_every_fault_of_the_peer_has_its_test():
    """In this package: docs/format/nsq.md has the list."""
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert set(re.findall(r"\bN(\d+)\b", text)) == {str(number) for number in range(1, 18)}


# --- strict -----------------------------------------------------------------------------------


DAMAGES = {
    "rotten metadata": lambda fs: flip(fs, meta(), 0),
    "missing metadata": lambda fs: fs.unlink(meta()),
    "missing file": lambda fs: fs.unlink(data(1)),
    "short last file": lambda fs: truncate(fs, data(2), 100),
    "short first file": lambda fs: truncate(fs, data(0), 10),
    "a peer's metadata inside a message": lambda fs: fs.write_durably(meta(), b"25\n0,7\n2,728\n"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_strict_raises_at_what_would_be_repaired_and_changes_nothing(damage):
    fs = disk()
    with opened(fs, segment_size=1000) as queue:
        queue.put_many(bodies(25))
        queue.get()
    fs = fs.kill()
    DAMAGES[damage](fs)
    before = fs.files()
    for _ in range(2):
        with pytest.raises(CorruptionError) as raised:
            opened(fs.kill(), strict=True)
        assert raised.value.path.startswith(ROOT)
    assert fs.files() == before
    with opened(fs) as queue:
        assert queue.repairs


def test_strict_raises_at_a_length_that_no_writer_wrote_before_it_is_cut():
    fs = disk()
    queue = opened(fs, strict=True)
    queue.put(b"one")
    fs = abandoned(queue, fs)
    handle = fs.open(data(), write=True)
    fs.pwrite(handle, A_HUGE_LENGTH[::-1] + b"not a message", 7)
    with pytest.raises(CorruptionError, match="a length that no writer wrote"):
        opened(fs, strict=True)
    assert len(fs.read(data())) > 7


def test_strict_does_not_mind_a_torn_tail():
    fs = disk()
    queue = opened(fs, strict=True)
    queue.put(b"one")
    fs = abandoned(queue, fs)
    handle = fs.open(data(), write=True)
    fs.pwrite(handle, records(b"two")[:-1], 7)
    with opened(fs, strict=True) as queue:
        assert drained(queue) == [b"one"]
        assert [(repair.kept, repair.dropped, repair.records) for repair in queue.repairs] == [(7, 6, 0)]


@pytest.mark.parametrize("content", [b"", b"0\n0,0\n0,1904\n", b"0" * 26, b"0" * 70], ids=len)
def test_after_a_kill_a_file_of_other_bytes_has_lost_no_more_than_it_had(content: bytes) -> None:
    fs = disk()
    queue = Queue(ROOT, "q", fs=fs, time_slice=1000.0, uses_wal=True)
    for _ in range(4):  # each a block with checksums of its own
        queue.put_many([b"." * 20] * 3)
        queue.sync()
    queue.put(b"with a checksum on the write-ahead log")
    queue.flush()
    fs = fs.kill()
    fs.write_durably(data(), content)
    fs.write_durably(meta(), b"neither has the metadata")
    with opened(fs) as queue:
        assert sum(repair.records or 0 for repair in queue.repairs) == 13
        assert queue.depth == 0


# --- files that a disk took with it -----------------------------------------------------------


def test_a_file_between_others_that_a_disk_took_with_it_is_reported() -> None:
    """The machine was not restarted, so that what comes after the file is delivered."""
    fs = disk()
    queue = opened(fs, segment_size=1000)
    queue.put(bodies(25)[0], durability="synced")
    metadata = fs.read(meta())
    for each in bodies(24, start=1):
        queue.put(each)
    fs = fs.kill()
    fs.write_durably(meta(), metadata)
    fs.write_durably(f"{ROOT}/.diskq/q.wal", bytes(4096))
    for path in (data(1), sums(1)):
        fs.unlink(path)
    with opened(fs) as queue:
        found = queue.peek_many(100)
        assert [found[0], found[-1]] == [body(0), body(24)]
        assert len(found) < 25
        assert [(its.path, its.kind) for its in queue.repairs] == [(data(1), RepairKind.LOST)]


@pytest.mark.parametrize(
    "content, kind, verdict",
    [
        (None, RepairKind.REBUILT, "torn"),
        (bytes(20), RepairKind.TORN, "torn"),
        (b"no metadata", RepairKind.CORRUPT, "damaged"),
    ],
)
def test_metadata_that_is_missing_not_written_or_damaged_is_told_apart(content, kind, verdict):
    fs = disk()
    with opened(fs) as queue:
        queue.put_many(bodies(3))
    if content is None:
        fs.unlink(meta())
    else:
        fs.write_durably(meta(), content)
    found = verify(Store("queue", ROOT, "q"), fs=fs)
    with opened(fs) as queue:
        assert [(repair.path, repair.kind) for repair in queue.repairs] == [(meta(), kind)]
    assert ([(each.path, each.kind) for each in found.findings], found.verdict) == ([(meta(), kind)], verdict)


def test_an_open_that_was_killed_set_nothing_aside_by_the_name_of_the_queue():
    fs = disk()
    Queue(ROOT, "jobs.bad", fs=fs).put_many(bodies(5))
    killed = fs.kill()
    for cut in range(1, 100):
        broken = killed.copy()
        broken.cut_at = broken.operations + cut
        with suppress(PowerCut):
            Queue(ROOT, "jobs.bad", fs=broken)
        with Queue(ROOT, "jobs.bad", fs=broken.kill()) as queue:
            assert (queue.repairs, queue.depth) == ((), 5), cut
        if not broken.is_cut:
            return
    raise AssertionError("it never came to its end")


def test_what_another_queue_of_the_directory_kept_aside_is_not_reported_after_a_killed_open() -> None:
    fs = CrashFS()
    fs.make_directory_durably("/q")
    for name in ("one", "another"):
        queue = Queue("/q", name, fs=fs)
        queue.put(b"whole")
        queue.flush()
    fs = fs.kill()
    torn = "/q/another.diskqueue.000000.dat"
    fs.write_durably(torn, fs.files()[torn] + b"\0\0\1")
    state = "/q/.diskq/one.queue.state"
    cut = fs.operations
    while b"recovering_since" not in fs.files()[state]:  # the open is killed at each operation in turn
        cut += 1
        killed = fs.copy()
        killed.cut_at = cut
        with suppress(PowerCut):
            Queue("/q", "one", fs=killed)
        assert killed.is_cut
        if b"recovering_since" in (after := killed.kill()).files()[state]:
            fs = after
    with Queue("/q", "another", fs=fs) as queue:
        assert [repair.kind for repair in queue.repairs] == [RepairKind.TORN]
    assert f"{torn}.bad" in fs.files()
    with Queue("/q", "one", fs=fs) as queue:
        assert queue.repairs == ()
        assert queue.get_many(10) == [b"whole"]
