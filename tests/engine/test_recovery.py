# Opening a queue after whatever happened to it. Law: opening never refuses because of a crash, never
# loses a whole message, never invents one, and tells what it did.

from __future__ import annotations

from diskq.engine.nsqfiles import Metadata, Position
from diskq.storage.checksums import Row, checksum, pack_row
from tests.engine.queues import (
    META,
    abandoned,
    bodies,
    data,
    disk,
    drained,
    opened,
    put_files,
    records,
    sums,
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
    fs.write_durably(META, empty.render())
    content = records(*bodies(3))
    fs.write_durably(data(2), content)
    fs.write_durably(sums(2), pack_row(Row(0, len(content), 3, checksum(content))))
    with opened(fs.crash()) as queue:
        assert drained(queue) == []
        (repair,) = queue.repairs
        assert (repair.path, repair.dropped) == (data(2), len(content))
