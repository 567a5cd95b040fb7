# Snapshots of queues. Law: a snapshot shows what the next open would deliver, each message once whatever the
# parts, with its number; what cannot be read is reported; no file is changed, and nothing is consumed.

from __future__ import annotations

import itertools
import pickle
import random
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskq._native.queue.codec import QueueColumns
from diskq.engine.log.reader import SkippedBytes
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.queue.files import QueueFiles, QueuePosition
from diskq.engine.queue.snapshot import QueueSnapshot, SnapshotReader, steady_wal, waiting_after
from diskq.errors import QueueMovedError, QueueNameError
from diskq.storage.fs import FileSystem
from diskq.testing import CrashFS
from tests.engine.queues import (
    ROOT,
    abandoned,
    bodies,
    contents,
    data,
    disk,
    flip,
    meta,
    opened,
    put_files,
    records,
    size,
    sums,
    truncate,
)
from tests.engine.ram import RamFS
from tests.golden import test_nsq as golden
from tests.reference.nsq_oracle import data_path, frame, write_dir
from tests.sampling import examples

Numbered = list[tuple[int, bytes]]

ENOUGH = 200
"""Looks at a queue beside its writer."""

# --- the vocabulary ---------------------------------------------------------------------------


def cut_up(found: QueueColumns) -> list[bytes]:
    number = "i" if found.offset_width == 4 else "q"
    offsets = [offset for (offset,) in struct.iter_unpack("=" + number, found.value_offsets)]
    return [found.values[start:end] for start, end in itertools.pairwise(offsets)]


def look(fs: FileSystem, **options: Any) -> QueueSnapshot:
    return QueueSnapshot(ROOT, "q", fs=fs, **options)


def read(
    fs: FileSystem | None, part: Any, max_bytes: int = 2**62, *, path: Any = ROOT, name: str = "q"
) -> tuple[Numbered, list[SkippedBytes]]:
    """Return the messages of one part, with their numbers, and the losses, as another process reads it."""
    found: Numbered = []
    with SnapshotReader(path, name, pickle.loads(pickle.dumps(part)), fs=fs) as reader:
        while (piece := reader.columns(max_bytes)) is not None:
            found += enumerate(cut_up(piece[1]), piece[0])
        assert reader.columns() is None
        return found, reader.losses


def seen(fs: FileSystem, parts: int = 1, **options: Any) -> tuple[Numbered, list[SkippedBytes]]:
    """Return all of it, read in `parts` parts; the ranges of the plan must follow each other."""
    planned = look(fs, **options).plan(parts)
    assert len(planned) <= parts
    ranges = [part_range for part in planned for part_range in part]
    for before, after in itertools.pairwise(ranges):
        assert before.first + before.records == after.first
        assert (before.file, before.end) == (after.file, after.start) or before.file < after.file
    found: Numbered = []
    losses: list[SkippedBytes] = []
    for part in planned:
        more, lost = read(fs, part)
        told = sum(gap.count for gap in lost)
        assert sum(part_range.records for part_range in part) == len(more) + told
        found += more
        losses += lost
    return found, losses


def messages(fs: FileSystem, parts: int = 1) -> list[bytes]:
    """Of a queue that has lost nothing."""
    found, losses = seen(fs, parts)
    assert losses == []
    assert [number for number, _ in found] == list(range(len(found)))
    return [body for _, body in found]


def three_files() -> CrashFS:
    """A closed queue of 200 messages, the first twenty consumed: the read position is inside a block."""
    fs = disk()
    with opened(fs, segment_size=9_000) as queue:
        queue.put_many(bodies(200))
        queue.get_many(20)
    return fs


SOME_PARTS = pytest.mark.parametrize("parts", [1, 2, 3, 7, 1000])

# --- what is seen -----------------------------------------------------------------------------


@SOME_PARTS
def test_all_that_is_not_consumed_is_seen_and_numbered_from_the_read_position(parts):
    fs = three_files()
    assert messages(fs, parts) == bodies(180, start=20) == contents(fs)


def test_nothing_is_changed_or_consumed():
    fs = three_files()
    before, operations = fs.files(), fs.operations
    messages(fs, 3)
    assert (fs.files(), fs.operations) == (before, operations)


def test_a_process_with_the_queue_open_does_not_notice():
    fs = disk()
    with opened(fs) as queue:
        queue.put_many(bodies(50))
        assert messages(fs) == bodies(50)
        queue.put_many(bodies(50, start=50))
        assert messages(fs) == bodies(100)
        assert queue.get_many(1000) == bodies(100)


def test_what_was_taken_since_the_last_barrier_is_still_seen():
    fs = disk()
    with opened(fs) as queue:
        queue.put_many(bodies(9))
        queue.sync()
        queue.get_many(4)
        assert messages(fs) == bodies(9)
        queue.sync()
        assert messages(fs) == bodies(5, start=4)


@pytest.mark.parametrize("max_bytes", [1, 500, 5_000])
def test_columns_are_bounded_but_one_message_however_large(max_bytes):
    fs = three_files()
    (part,) = look(fs).plan()
    with SnapshotReader(ROOT, "q", part, fs=fs) as reader:
        pieces = list(iter(lambda: reader.columns(max_bytes), None))
    assert [body for _, found in pieces for body in cut_up(found)] == bodies(180, start=20)
    assert all(found.records == 1 or len(found.values) <= max_bytes for _, found in pieces)


def test_parts_are_of_about_one_size():
    fs = disk()
    with opened(fs, segment_size=300_000) as queue:
        queue.put_many(bodies(10_000))
    snapshot = look(fs)
    for parts in (2, 5, 8):
        planned = snapshot.plan(parts)
        sizes = [sum(its.end - its.start for its in part) for part in planned]
        assert len(planned) == parts
        assert sum(sizes) == snapshot.size == 10_000 * 104
        assert max(sizes) - min(sizes) < 10_000
    assert messages(fs, 8) == bodies(10_000)


def test_a_message_larger_than_a_part_is_seen():
    fs = disk()
    large = random.Random(1).randbytes(700_000)
    with opened(fs) as queue:
        queue.put_many([b"before", large, b"after"])
    assert messages(fs, 50) == [b"before", large, b"after"]


@pytest.mark.parametrize("make", [lambda fs: None, lambda fs: opened(fs).close()])
def test_a_queue_that_is_empty_or_not_there_has_no_parts(make):
    fs = disk()
    make(fs)
    snapshot = look(fs)
    assert (snapshot.size, snapshot.plan(3), snapshot.repairs) == (0, [], ())
    assert read(fs, ()) == ([], [])


def test_a_directory_that_is_not_there_and_a_name_that_none_can_have_are_refused():
    with pytest.raises(FileNotFoundError):
        QueueSnapshot("/nowhere", "q", fs=disk())
    with pytest.raises(QueueNameError):
        QueueSnapshot(ROOT, "a/b", fs=disk())
    with pytest.raises(ValueError, match="0 parts"):
        look(disk()).plan(0)


# --- messages on the write-ahead log ------------------------------------------------------------


def jotting(fs: CrashFS) -> Queue:
    """A queue with written messages and others that are on the write-ahead log."""
    queue = Queue(ROOT, "q", fs=fs, time_slice=1000.0, uses_wal=True)
    queue.put_many(bodies(4))
    queue.sync()
    queue.put(bodies(5)[-1])
    for body in bodies(7, start=5):
        assert queue.steps.tail.stage(body)
    return queue


def test_what_waits_on_the_wal_is_seen_as_the_next_open_would_write_it():
    fs = disk()
    queue = jotting(fs)
    assert not queue.log.is_flushed
    assert messages(fs, 2) == bodies(12) == contents(fs.kill())
    queue.flush()
    assert messages(fs, 2) == bodies(12)


@pytest.mark.parametrize("size", [1, 60, 2000])
def test_what_waits_where_another_program_has_written_makes_up_no_message(size: int) -> None:
    fs = disk()
    jotting(fs)
    fs = fs.kill()
    files = QueueFiles(fs, ROOT, "q")
    fs.write_durably(files.data(0), fs.files()[files.data(0)] + frame(b"t" * size))
    waiting = steady_wal(fs, files.wal)
    assert waiting is not None
    assert waiting_after(fs, files, waiting, QueuePosition(0, len(fs.files()[files.data(0)]))) is None
    assert set(messages(fs)) <= {*bodies(12), b"t" * size}


@pytest.mark.parametrize("size_left", [0, 104])
def test_what_waits_after_an_end_that_was_cut_off_is_not_seen_as_the_next_open_does_not_write_it(
    size_left: int,
) -> None:
    fs = disk()
    queue = Queue(ROOT, "q", fs=fs, time_slice=1000.0, uses_wal=True)
    queue.put_many(bodies(4))
    assert queue.steps.tail.stage(b"waits")
    fs = fs.kill()
    truncate(fs, data(0), size_left)
    assert [body for _, body in seen(fs)[0]] == contents(fs) == bodies(size_left // 104)


def test_what_waited_when_it_was_planned_is_read_whatever_became_of_it():
    fs = disk()
    queue = jotting(fs)
    planned = look(fs).plan(2)
    queue.put_many(bodies(100, start=12))
    found = [body for part in planned for _, body in read(fs, part)[0]]
    assert found == bodies(12)


def test_after_a_restart_the_wal_is_not_read():
    fs = disk()
    jotting(fs)
    after = fs.crash()
    assert messages(after) == bodies(4) == contents(after)


def test_after_a_restart_only_checksums_are_believed():
    fs = disk()
    with opened(fs) as queue:
        queue.put_many(bodies(3))
        queue.sync()
        queue.put_many(bodies(9, start=3))
        for seed in range(30):
            after = fs.crash(random.Random(seed))
            assert messages(after) == contents(after)


# --- what is damaged --------------------------------------------------------------------------


@SOME_PARTS
def test_a_block_that_rots_costs_its_messages_which_keep_their_numbers(parts):
    fs = three_files()
    flip(fs, data(1), 5000)
    found, (gap,) = seen(fs, parts)
    missing = set(range(180)) - {number for number, _ in found}
    assert missing == set(range(gap.offset, gap.offset + gap.count))
    assert (gap.path, gap.reason) == (data(1), "checksum mismatch")
    assert all(body == bodies(1, start=20 + number)[0] for number, body in found)
    assert [body for _, body in found] == contents(fs)


def test_rot_of_one_part_is_reported_by_its_reader_alone():
    fs = three_files()
    flip(fs, data(1), 5000)
    told = [losses for _, losses in (read(fs, part) for part in look(fs).plan(20))]
    assert sum(map(bool, told)) == 1


def test_a_torn_tail_is_the_end_and_no_loss():
    fs = disk()
    put_files(fs, [records(b"one", b"two") + b"\0\0\0\x09torn"])
    assert messages(fs) == [b"one", b"two"] == contents(fs)


def test_a_length_that_no_writer_wrote_costs_the_rest_of_a_peer_s_file():
    fs = disk()
    broken = records(b"one", b"two") + b"\xff" * 4 + records(b"lost")
    put_files(fs, [broken, records(b"three")], b"4\n0,0\n1,9\n")
    found, (gap,) = seen(fs, 2)
    assert found == [(0, b"one"), (1, b"two"), (2, b"three")]
    assert (gap.path, gap.start, gap.end, gap.offset, gap.count) == (data(0), 14, len(broken), 2, 0)


def test_the_end_that_a_complete_file_has_lost_is_reported_with_its_messages():
    fs = three_files()
    truncate(fs, data(1), 8000)
    found, losses = seen(fs, 5)
    assert len(found) + sum(gap.count for gap in losses) == 180
    assert [body for _, body in found] == contents(fs)


@pytest.mark.parametrize("size_left", [0, 20 * 104, 30 * 104])
def test_what_a_file_has_lost_is_reported_though_nothing_of_it_is_left_to_read(size_left):
    fs = three_files()
    truncate(fs, data(0), size_left)
    found, losses = seen(fs, 5)
    lost = sum(gap.count for gap in losses) + sum(repair.records or 0 for repair in look(fs).repairs)
    assert len(found) + lost == 180
    assert [body for _, body in found] == contents(fs)


def test_a_file_that_is_missing_is_reported_before_anything_is_read():
    fs = three_files()
    fs.unlink(data(1))
    snapshot = look(fs)
    (repair,) = snapshot.repairs
    assert (repair.path, repair.reason) == (data(1), "the file is missing, its checksums are there")
    assert len(seen(fs, 3)[0]) + (repair.records or 0) == 180


def test_without_metadata_the_files_decide_and_it_is_reported():
    fs = three_files()
    fs.unlink(meta())
    (repair,) = look(fs).repairs
    assert (repair.path, repair.records) == (meta(), 0)
    assert messages(fs) == contents(fs)


def test_the_snapshot_goes_on_after_rot_where_the_next_open_does():
    fs = disk()
    queue = opened(fs)
    queue.put(b"")
    queue.sync()
    queue.put(b"")
    fs = abandoned(queue, fs)
    fs.write_durably(sums(0), b"")
    flip(fs, data(0), 0, 0x01)
    for parts in (1, 2):
        found, (gap,) = seen(fs, parts)
        assert ([body for _, body in found], gap.start, gap.end) == ([b""], 0, 4)
    assert contents(fs) == [b""]


def test_checksums_of_other_bytes_are_not_believed_where_a_peer_wrote():
    fs = three_files()
    put_files(fs, [records(*bodies(40, 77))], b"40\n0,0\n0,%d\n" % (40 * 81))
    for number in (1, 2):
        fs.unlink(data(number))
    assert fs.size_of(sums(0))
    assert messages(fs, 2) == bodies(40, 77) == contents(fs)


@SOME_PARTS
def test_messages_that_a_peer_has_left_of_a_file_are_seen_where_the_next_open_moves_them(parts: int) -> None:
    fs = three_files()
    theirs = records(*bodies(10, 50))
    ours = fs.read(data(1))
    fs.write_durably(data(1), theirs + ours[len(theirs) :])
    fs.write_durably(meta(), b"96\n0,0\n1,%d\n" % len(theirs))
    before = fs.files()
    found, losses = seen(fs, parts)
    assert fs.files() == before
    snapshot = look(fs)
    lost = sum(repair.records or 0 for repair in snapshot.repairs)
    assert (snapshot.end.file, losses) == (3, [])
    assert 0 < lost < len(found) - 10
    delivered = contents(fs)
    assert [body for _, body in found] == delivered


def test_what_is_too_small_to_be_a_peer_s_message_is_where_its_file_ends():
    fs = disk()
    put_files(fs, [records(b"long enough", b"no"), records(b"good enough")], b"3\n0,0\n1,15\n")
    found, (gap,) = seen(fs, min_message_size=3)
    assert ([body for _, body in found], gap.start) == ([b"long enough", b"good enough"], 15)


# --- against the queue itself -----------------------------------------------------------------


@st.composite
def left_behind(draw: Any) -> RamFS:
    """A disk with a queue as another process may have left it, damaged or not."""
    fs = RamFS({f"{ROOT}/other": b""})
    queue = Queue(ROOT, "q", fs=fs)
    for _ in range(draw(st.integers(0, 3))):
        queue.close()
        queue = opened(fs, segment_size=draw(st.sampled_from([300, 5_000, 20_000])))
        for act in draw(st.lists(st.sampled_from(["put", "put", "take", "sync"]), max_size=8)):
            if act == "put":
                count = draw(st.integers(1, 60))
                queue.put_many(
                    bodies(count, draw(st.sampled_from([0, 9, 100, 900])), queue.steps.accepted_total)
                )
            elif act == "take":
                queue.get_many(draw(st.integers(1, 60)))
            else:
                queue.sync()
    if draw(st.booleans()):
        queue.close()
    left = RamFS(fs.files())
    left.directories |= fs.directories
    names = sorted(name for name in left.now if "diskqueue" in name)
    for _ in range(draw(st.integers(0, 2)) if names else 0):
        name = draw(st.sampled_from(names))
        content = left.now.get(name, b"")
        at = draw(st.integers(0, max(0, len(content) - 1)))
        match draw(st.sampled_from(["rot", "cut", "gone", "more"])):
            case "rot" if content:
                flip(left, name, at, draw(st.integers(1, 255)))
            case "cut":
                left.write_durably(name, bytes(content[:at]))
            case "gone":
                left.now.pop(name, None)
            case "more":
                left.write_durably(name, bytes(content) + draw(st.binary(max_size=30)))
    return left


@settings(max_examples=examples(300), deadline=None)
@given(left_behind(), st.sampled_from([1, 2, 5, 40]))
def test_what_is_seen_is_what_the_next_open_delivers(left, parts):
    before = left.files()
    found, losses = seen(left, parts)
    lost = sum(gap.count for gap in losses) + sum(repair.records or 0 for repair in look(left).repairs)
    assert left.files() == before
    with opened(left) as queue:
        assert [body for _, body in found] == queue.get_many(10**6)
        assert lost == queue.statistics().lost
    numbers = [number for number, _ in found]
    assert numbers == sorted(set(numbers))


@golden.of_all
def test_what_go_diskqueue_left_is_seen_and_left_as_it_is(case):
    folder = golden.HERE / case.folder / "data"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    snapshot = QueueSnapshot(folder, case.name, min_message_size=case.options.min_message_size)
    for parts in (1, 3):
        found = [
            body
            for part in snapshot.plan(parts)
            for _, body in read(None, part, path=folder, name=case.name)[0]
        ]
        assert golden.described(found) == golden.expected(case)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


# --- while it is read -------------------------------------------------------------------------


def test_a_file_that_was_consumed_since_is_reported():
    fs = three_files()
    snapshot = look(fs)
    planned = snapshot.plan(3)
    with opened(fs) as queue:
        queue.get_many(100)
    with pytest.raises(QueueMovedError, match=r"000000\.dat: its messages were consumed"):
        read(fs, planned[0])
    with pytest.raises(QueueMovedError):
        snapshot.plan(2)
    assert [number for number, _ in read(fs, planned[2])[0]] == [*range(planned[2][0].first, 180)]


def test_a_file_of_that_name_in_another_queue_is_not_taken_for_it():
    fs = three_files()
    (part,) = look(fs).plan()
    for name in list(fs.list_directory(ROOT)):
        if name.endswith(".dat"):
            fs.unlink(f"{ROOT}/{name}")
    with opened(fs) as queue:
        queue.put_many(bodies(200, start=1000))
    with pytest.raises(QueueMovedError, match="other messages"):
        read(fs, part)


def test_a_file_that_was_open_is_read_to_its_end_though_it_is_removed():
    fs = three_files()
    (part,) = look(fs).plan()
    with SnapshotReader(ROOT, "q", part[:1], fs=fs) as reader:
        first = reader.columns(500)
        assert first is not None
        with opened(fs) as queue:
            queue.get_many(100)
        rest = list(iter(reader.columns, None))
    assert sum(found.records for _, found in (first, *rest)) == part[0].records


def test_what_is_written_after_it_was_planned_is_not_seen():
    fs = disk()
    with opened(fs, segment_size=9_000) as queue:
        queue.put_many(bodies(50))
        (part,) = look(fs).plan()
        queue.put_many(bodies(50, start=50))
        queue.sync()
        assert read(fs, part) == ([*enumerate(bodies(50))], [])


BESIDE = """
    import select, sys
    import diskq

    options = diskq.QueueOptions(segment_size=40_000, sync_every=50)
    with diskq.Queue(sys.argv[1], "q", options=options) as queue:
        print("open", flush=True)
        number = 0
        while not select.select([sys.stdin], [], [], 0)[0]:
            queue.put_many([b"%010d" % i * 12 for i in range(number, number + 100)])
            number += 100
            if queue.depth > 2000:
                queue.get_many(700)
"""


@pytest.mark.slow
def test_of_a_queue_in_use_every_snapshot_is_a_run_of_its_messages(tmp_path):
    beside = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(BESIDE), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    whole = moved = most = 0
    end = time.monotonic() + 60
    try:
        assert beside.stdout is not None
        assert beside.stdout.readline() == b"open\n"
        while whole < ENOUGH or most <= 1000:
            assert time.monotonic() < end, f"{whole} looks were whole, {moved} not; most were {most} messages"
            assert beside.poll() is None
            try:
                snapshot = QueueSnapshot(tmp_path, "q")
                found: Numbered = []
                for part in snapshot.plan(3):
                    more, losses = read(None, part, path=tmp_path)
                    assert losses == []
                    found += more
            except QueueMovedError:
                moved += 1
                continue
            assert snapshot.repairs == ()
            told = [int(body[:10]) for _, body in found]
            assert all(body == b"%010d" % number * 12 for number, (_, body) in zip(told, found, strict=True))
            assert told == list(range(told[0], told[0] + len(told))) if told else True
            assert [number for number, _ in found] == list(range(len(found)))
            whole += 1
            most = max(most, len(found))
    finally:
        beside.communicate(b"enough")
    assert beside.returncode == 0


def test_a_peer_s_queue_is_read_where_it_lies(tmp_path: Path):
    sent = bodies(3000)
    write_dir(tmp_path, "topic:channel", sent, segment_size=60_000, first_file=7)
    planned = QueueSnapshot(tmp_path, "topic:channel").plan(4)
    found = [read(None, part, path=tmp_path, name="topic:channel") for part in planned]
    assert [body for numbered, _ in found for _, body in numbered] == sent
    assert all(losses == [] for _, losses in found)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == []
    assert data_path(tmp_path, "topic:channel", 7).exists()


def test_a_snapshot_has_its_begin_and_end():
    fs = three_files()
    snapshot = look(fs)
    assert snapshot.read == QueuePosition(0, 20 * 104)
    assert snapshot.end == QueuePosition(2, size(fs, data(2)))
