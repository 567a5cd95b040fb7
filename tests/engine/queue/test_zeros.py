# Zeros after the end of a queue's file, which its framing takes for empty messages. Law: if checksums show
# where the file ended, zeros are not messages: they are kept aside and reported, and all readers agree.

from __future__ import annotations

import pytest

from diskq import Queue
from diskq.engine.queue.snapshot import QueueSnapshot
from diskq.options import QueueOptions
from diskq.testing import CrashFS
from diskq.tools.stores import Store
from diskq.tools.verify.verification import verify
from tests.engine.queue.test_snapshot import read
from tests.engine.queues import taken
from tests.reference import nsq_oracle

DIRECTORY, NAME = "/q", "q"
META = f"{DIRECTORY}/{NAME}.diskqueue.meta.dat"
BODIES = [b"%04d" % number + b"." * 60 for number in range(40)]
SMALL = QueueOptions(segment_size=1000)


def path(number: int) -> str:
    return f"{DIRECTORY}/{NAME}.diskqueue.{number:06d}.dat"


def filled() -> tuple[CrashFS, int]:
    """A queue that was closed, and the number of its last file."""
    fs = CrashFS()
    fs.make_directory_durably(DIRECTORY)
    with Queue(DIRECTORY, NAME, options=SMALL, fs=fs) as queue:
        queue.put_many(BODIES)
    numbers = [number for number in range(10) if path(number) in fs.files()]
    return fs, numbers[-1]


def append(fs: CrashFS, number: int, content: bytes) -> None:
    fs.write_durably(path(number), fs.files()[path(number)] + content)


@pytest.mark.parametrize("size", [4, 24, 512, 4096])
@pytest.mark.parametrize("which", ["last", "complete"])
def test_zeros_after_the_end_are_not_messages(which: str, size: int) -> None:
    fs, last = filled()
    number = last if which == "last" else last - 1
    append(fs, number, bytes(size))
    found = verify(Store("queue", DIRECTORY, NAME), fs=fs)
    assert (found.messages, found.lost) == (len(BODIES), 0)
    assert path(number) in [each.path for each in found.findings if each.severity != "note"]
    seen = QueueSnapshot(DIRECTORY, NAME, fs=fs).plan()
    assert [body for part in seen for _, body in read(fs, part, path=DIRECTORY)[0]] == BODIES
    with Queue(DIRECTORY, NAME, options=SMALL, fs=fs) as queue:
        assert [(each.path, each.dropped, each.records) for each in queue.repairs] == [
            (path(number), size, 0)
        ]
        assert [queue.get() for _ in BODIES] == BODIES
        assert queue.depth == 0


def test_empty_messages_that_were_sent_are_messages() -> None:
    fs = CrashFS()
    fs.make_directory_durably(DIRECTORY)
    with Queue(DIRECTORY, NAME, fs=fs) as queue:
        queue.put_many([b"1", *[b""] * 100])
    queue = Queue(DIRECTORY, NAME, fs=fs)
    queue.put_many([b""] * 100)
    with Queue(DIRECTORY, NAME, fs=fs.kill()) as queue:
        assert queue.repairs == ()
        assert queue.depth == 201


def staging_empty(fs: CrashFS, body: bytes) -> None:
    """A process that has written `body`, staged two empty messages, and is to be killed."""
    queue = Queue(DIRECTORY, NAME, fs=fs, time_slice=1000.0, uses_wal=True)
    queue.put(body)
    assert queue.steps.tail.stage(b"")
    assert queue.steps.tail.stage(b"")
    assert not queue.steps.is_flushed


@pytest.mark.parametrize("body", [b"", b"1"])
def test_empty_messages_that_were_staged_are_messages(body: bytes) -> None:
    fs = CrashFS()
    fs.make_directory_durably(DIRECTORY)
    staging_empty(fs, body)
    fs = fs.kill()
    assert verify(Store("queue", DIRECTORY, NAME), fs=fs).messages == 3
    with Queue(DIRECTORY, NAME, fs=fs) as queue:
        assert queue.repairs == ()
        assert [taken(queue) for _ in range(4)] == [body, b"", b"", None]


@pytest.mark.parametrize("size", [1, 4, 8])
def test_empty_messages_that_were_staged_and_partly_written_are_messages(size: int) -> None:
    fs = CrashFS()
    fs.make_directory_durably(DIRECTORY)
    staging_empty(fs, b"1")
    fs = fs.kill()
    append(fs, 0, bytes(size))
    with Queue(DIRECTORY, NAME, fs=fs) as queue:
        assert queue.repairs == ()
        assert [taken(queue) for _ in range(4)] == [b"1", b"", b"", None]


def test_zeros_after_empty_messages_that_were_staged_are_not_messages() -> None:
    fs = CrashFS()
    fs.make_directory_durably(DIRECTORY)
    staging_empty(fs, b"1")
    fs = fs.kill()
    append(fs, 0, bytes(8 + 12))
    with Queue(DIRECTORY, NAME, fs=fs) as queue:
        assert [(each.dropped, each.records) for each in queue.repairs] == [(12, 0)]
        assert [taken(queue) for _ in range(4)] == [b"1", b"", b"", None]


def test_frames_that_another_program_appends_after_a_close_are_delivered() -> None:
    fs, last = filled()
    append(fs, last, nsq_oracle.frame(b"theirs"))
    with Queue(DIRECTORY, NAME, options=SMALL, fs=fs) as queue:
        assert [queue.get() for _ in range(len(BODIES) + 1)] == [*BODIES, b"theirs"]


@pytest.mark.parametrize("size", [4, 24, 512])
def test_after_a_kill_all_readers_agree_with_the_open(size: int) -> None:
    fs = CrashFS()
    fs.make_directory_durably(DIRECTORY)
    queue = Queue(DIRECTORY, NAME, fs=fs, time_slice=1000.0, uses_wal=True)
    queue.put_many(BODIES)
    queue.flush()
    fs = fs.kill()
    append(fs, 0, bytes(size))
    found = verify(Store("queue", DIRECTORY, NAME), fs=fs)
    assert (found.messages, found.lost, found.verdict) == (len(BODIES), 0, "torn")
    seen = QueueSnapshot(DIRECTORY, NAME, fs=fs)
    assert [body for part in seen.plan() for _, body in read(fs, part, path=DIRECTORY)[0]] == BODIES
    with Queue(DIRECTORY, NAME, fs=fs) as queue:
        assert [(each.dropped, each.records) for each in queue.repairs] == [(size, 0)]
        assert [queue.get() for _ in BODIES] == BODIES
        assert queue.depth == 0


def synced() -> tuple[CrashFS, Queue]:
    """A disk with a queue that has synced BODIES."""
    fs = CrashFS()
    fs.make_directory_durably(DIRECTORY)
    queue = Queue(DIRECTORY, NAME, fs=fs)
    queue.put_many(BODIES)
    queue.sync()
    return fs, queue


def let_peer_write(fs: CrashFS, theirs: list[bytes]) -> None:
    """go-diskqueue finds the file longer than its metadata says, and goes on in the next one."""
    frames = b"".join(map(nsq_oracle.frame, theirs))
    fs.write_durably(path(1), frames)
    fs.write_durably(META, b"%d\n0,0\n1,%d\n" % (len(BODIES) + len(theirs), len(frames)))


@pytest.mark.parametrize("size", [4, 24, 4096])
def test_zeros_that_a_power_cut_left_are_no_messages_when_a_peer_wrote_first(size):
    fs = synced()[0].crash()
    end = len(fs.files()[path(0)])
    append(fs, 0, bytes(size))
    theirs = [b"theirs %d" % number for number in range(3)]
    let_peer_write(fs, theirs)
    found = verify(Store("queue", DIRECTORY, NAME), fs=fs)
    assert (found.messages, found.lost) == (len(BODIES) + 3, 0)
    with Queue(DIRECTORY, NAME, fs=fs) as queue:
        assert [(each.path, each.kept, each.dropped, each.records) for each in queue.repairs] == [
            (path(0), end, size, 0)
        ]
        assert queue.depth == len(BODIES) + 3
        assert [taken(queue) for _ in range(len(BODIES) + 4)] == [*BODIES, *theirs, None]


def test_zeros_before_whole_messages_are_none_either_where_a_peer_went_on_in_the_next_file() -> None:
    """Four zeros are the frame of an empty message, so that all frames of the file are whole."""
    fs = synced()[0].crash()
    end = len(fs.files()[path(0)])
    unsynced = nsq_oracle.frame(b"x" * 40)
    append(fs, 0, bytes(1136) + unsynced)
    let_peer_write(fs, [b"theirs"])
    with Queue(DIRECTORY, NAME, fs=fs) as queue:
        (repair,) = queue.repairs
        assert (repair.path, repair.kept, repair.records) == (path(0), end, None)
        assert repair.saved_as is not None
        assert fs.files()[repair.saved_as].endswith(unsynced)
        assert [taken(queue) for _ in range(len(BODIES) + 2)] == [*BODIES, b"theirs", None]


@pytest.mark.parametrize("is_sealed", [True, False], ids=["its seal is left", "no checksum is left"])
def test_zeros_in_a_file_of_diskqs_are_none_whatever_is_left_of_its_checksums(is_sealed: bool) -> None:
    fs = CrashFS()
    fs.make_directory_durably(DIRECTORY)
    queue = Queue(DIRECTORY, NAME, options=SMALL, fs=fs)
    while len([name for name in fs.files() if name.endswith(".dat") and ".diskqueue.0" in name]) < 2:
        queue.put(b"x" * 40)
    queue.sync()
    fs = fs.crash()
    sums = next(name for name in fs.files() if name.endswith("000000.dat.sums"))
    rows = fs.files()[sums]
    fs.write_durably(sums, bytes(len(rows) - 24) + rows[-24:] + bytes(48) if is_sealed else b"")
    whole = fs.files()[path(0)]
    hole = bytes(len(whole) // 44 // 2 * 44)  # whole frames of empty messages, and whole ones after them
    fs.write_durably(path(0), whole[:44] + hole + whole[44 + len(hole) :])
    end = len(fs.files()[path(1)])
    fs.write_durably(META, b"9\n0,0\n1,%d\n" % end)
    with Queue(DIRECTORY, NAME, options=SMALL, fs=fs) as queue:
        assert any(repair.path == path(0) and repair.records is None for repair in queue.repairs)
        assert set(iter(lambda: taken(queue), None)) == {b"x" * 40}


@pytest.mark.parametrize("count", [1, 3])
def test_empty_messages_at_the_end_of_a_killed_queue_are_delivered_when_a_peer_was_first(count: int) -> None:
    """It was killed before it had written their checksums."""
    fs, queue = synced()
    before = {name: content for name, content in fs.files().items() if name.endswith((".sums", ".wal"))}
    for _ in range(count):
        queue.put(b"")
    fs = fs.kill()
    for name, content in before.items():
        fs.write_durably(name, content)
    let_peer_write(fs, [b"theirs"])
    with Queue(DIRECTORY, NAME, fs=fs) as queue:
        assert queue.repairs == ()
        assert queue.get_many(1000) == [*BODIES, *[b""] * count, b"theirs"]
