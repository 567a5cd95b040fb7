# Opening a queue after whatever happened to it. Law: opening never refuses because of a crash, never
# loses a whole message, never invents one, and tells what it did.

from __future__ import annotations

from tests.engine.queues import abandoned, data, disk, drained, opened, put_files, records

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
