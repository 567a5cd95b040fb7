# Opening a queue after whatever happened to it. Law: opening never refuses because of a crash, never
# loses a whole message, never invents one, and tells what it did.

from __future__ import annotations

import pytest

from diskq.engine.nsqfiles import Metadata, Position
from diskq.errors import CorruptionError, StorageFailedError
from diskq.storage.checksums import Row, checksum, pack_row
from diskq.testing import FaultFS
from tests.engine.queues import (
    ROOT,
    abandoned,
    bodies,
    data,
    disk,
    drained,
    flip,
    listed,
    meta,
    opened,
    put_files,
    records,
    sums,
    truncate,
)

A_HUGE_LENGTH = b"\x7f\xff\xff\xff"


# --- after a kill -----------------------------------------------------------------------------


def test_damage_that_a_peer_left_does_not_keep_us_from_checksumming_what_we_wrote_behind_it():
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
    empty = Metadata(0, Position(1, 0), Position(1, 0), is_ours=True)
    fs.write_durably(meta(), empty.render())
    content = records(*bodies(3))
    fs.write_durably(data(2), content)
    fs.write_durably(sums(2), pack_row(Row(0, len(content), 3, checksum(content))))
    with opened(fs.crash()) as queue:
        assert drained(queue) == []
        (repair,) = queue.repairs
        assert (repair.path, repair.dropped, repair.records) == (data(2), len(content), None)


# --- damage that was told -----------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["closed", "killed", "killed before the file is set aside"])
def test_a_file_with_damage_is_kept_though_another_process_consumes_the_rest_of_it(ending):
    fs = disk()
    with opened(fs, max_bytes_per_file=9000) as queue:
        queue.put_many(bodies(200))
    flip(fs, data(0), 10)
    damaged = fs.read(data(0))
    queue = opened(fs, max_bytes_per_file=9000)
    queue.take()
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
            drained(opened(broken, max_bytes_per_file=9000))
        fs = fs.kill()
    with opened(fs, max_bytes_per_file=9000) as queue:
        drained(queue)
    assert fs.read(data(0) + ".bad") == damaged
    assert listed(fs, f"{ROOT}/.diskq") == ["q.diskqueue.000002.dat.sums", "q.lock"]


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
    with opened(fs, max_bytes_per_file=1000) as queue:
        queue.put_many(bodies(25))
        queue.take()
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
