# Repairs. Law: a repair destroys nothing: cut bytes are durable beside the file first.

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from diskq.storage.barrier import rewrite
from diskq.storage.repairs import Repair, RepairKind, cut_tail
from diskq.testing import CrashFS, FaultFS, PowerCut

PATH = "/q/data"
CONTENT = bytes(range(256)) * 20_000  # more than is copied at once


def disk() -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably("/q")
    fs.write_durably(PATH, CONTENT)
    return fs


@pytest.mark.parametrize("end", [0, 1, 1_000_000, len(CONTENT) - 1, len(CONTENT)])
def test_cut_bytes_are_kept_aside(end):
    fs = disk()
    repair = cut_tail(fs, fs.open(PATH, write=True), PATH, end, RepairKind.TORN, "because", None)
    assert fs.read(PATH) == CONTENT[:end]
    assert fs.read("/q/data.bad") == CONTENT[end:]
    assert repair == Repair(
        path=PATH,
        kind=RepairKind.TORN,
        kept=end,
        dropped=len(CONTENT) - end,
        reason="because",
        records=None,
        saved_as="/q/data.bad",
    )


def test_every_cut_has_a_place_of_its_own():
    fs = disk()
    handle = fs.open(PATH, write=True)
    cut_tail(fs, handle, PATH, 10, RepairKind.TORN, "", 0)
    assert cut_tail(fs, handle, PATH, 5, RepairKind.TORN, "", 0).saved_as == "/q/data.bad-1"
    assert fs.read("/q/data.bad-1") == CONTENT[5:10]


def test_after_any_power_cut_each_byte_is_in_one_of_the_files():
    for cut in range(1, 20):
        fs = disk()
        fs.cut_at = cut
        with suppress(PowerCut):
            cut_tail(fs, fs.open(PATH, write=True), PATH, 100, RepairKind.TORN, "", 0)
        for seed in range(10):
            files = fs.crash(random.Random(seed)).files()
            assert files[PATH] == CONTENT or files["/q/data.bad"] == CONTENT[100:]
        if not fs.is_cut:
            return
    raise AssertionError("it never came to its end")


def test_if_the_copy_fails_nothing_is_cut():
    fs = FaultFS(disk())
    fs.capacity(1000)
    with pytest.raises(OSError, match="No space"):
        cut_tail(fs, fs.open(PATH, write=True), PATH, 100, RepairKind.TORN, "", 0)
    assert fs.inner.read(PATH) == CONTENT
    assert fs.list_directory("/q") == ["data"], "no half of a copy is left"


def test_rewriting_makes_the_next_sync_write():
    fs = disk()
    handle = fs.open(PATH, write=True)
    fs.pwrite(handle, b"unsynced", 1000)
    fs.fail_sync()
    with pytest.raises(OSError, match="Input/output"):
        fs.sync_files((handle,))
    fs.sync_files((handle,))
    assert fs.crash().read(PATH) == CONTENT, "the kernel held the bytes for clean"
    rewrite(fs, handle, 900, 1100)
    fs.sync_files((handle,))
    assert fs.crash().read(PATH)[1000:1008] == b"unsynced"


@pytest.mark.parametrize(
    "records, lost", [(None, "an unknown number of messages"), (0, "0 messages"), (7, "7 messages")]
)
def test_a_repair_reads_as_a_sentence(records, lost):
    repair = Repair(
        path=PATH,
        kind=RepairKind.LOST,
        kept=5,
        dropped=10,
        reason="it rained",
        records=records,
        saved_as="/q/x",
    )
    assert str(repair) == f"/q/data: it rained; 10 bytes from 5 dropped ({lost}), kept in /q/x"
