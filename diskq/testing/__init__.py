"""Disks for tests: one that loses its power, and one that fails on demand.

Code on top of diskq that makes a promise can test it against every possible power cut. Give the
queue a `CrashFS` for a disk, and let the power fail before the first operation, before the second,
and so on; after each, look at what a killed process leaves, and at samples of what a power cut leaves:

    import contextlib, itertools, random
    from diskq import Queue
    from diskq.testing import CrashFS, PowerCut

    def take_orders(fs, confirmed):
        with Queue("/shop", "orders", fs=fs) as orders:
            for order in (b"tea", b"milk", b"sugar"):
                orders.put(order, durability="synced")
                confirmed.append(order)  # from here on the customer counts on it

    def test_a_confirmed_order_is_never_lost():
        for cut in itertools.count(1):
            fs, confirmed = CrashFS(cut_at=cut), []
            fs.make_directory_durably("/shop")
            with contextlib.suppress(PowerCut):
                take_orders(fs, confirmed)
            for after in (fs.kill(), *(fs.crash(random.Random(seed)) for seed in range(3))):
                with Queue("/shop", "orders", fs=after) as orders:
                    assert orders.peek_many(10)[: len(confirmed)] == confirmed, fs.journal
            if not fs.is_cut:  # it was finished before the power failed
                break

Try it with `durability="written"`: the test fails, and `fs.journal` shows which operation was the last.

`FaultFS` wraps any disk, the real one included, and makes it fail, run full or be slow. It also
records every call:

    import errno
    from diskq.storage.fs import OsFileSystem
    from diskq.testing import FaultFS

    disk = FaultFS(OsFileSystem())
    disk.fail("sync_files", nth=2, error=errno.EIO)  # the second file synced from now on
    disk.delay("sync_files", seconds=0.05, path="*.dat")
    disk.capacity(64 * 1024)  # this many bytes more, then ENOSPC

What a power cut may leave, and what not, is written at the top of `diskq/testing/crash_fs.py`.
"""

from __future__ import annotations

from diskq.testing.crash_fs import CrashFS, PowerCut
from diskq.testing.fault_fs import Call, Fault, FaultFS

__all__ = ["Call", "CrashFS", "Fault", "FaultFS", "PowerCut"]
