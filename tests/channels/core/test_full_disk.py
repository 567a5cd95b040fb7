# Spools, streams and journals on a real file system that is full: a tmpfs of 1 MiB. Law: what was
# accepted is delivered, in order, what was refused is not in, and no part of either stays on the disk.

from __future__ import annotations

import json

import pytest

from tests.namespaces import DISK, run_on_small_disk
from tests.sampling import first

BOUND = 512 * 1024
BESIDE = 192 * 1024
"""What a spool has beside its messages: the write-ahead log, locks, notes."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "on_full, bound, stopped_by",
    [
        ("wait", 0, "FullError"),
        ("drop_oldest", BOUND, "nothing"),
        pytest.param("wait", BOUND, "waiting", marks=pytest.mark.exhaustive),
        pytest.param("reject", BOUND, "FullError", marks=pytest.mark.exhaustive),
    ],
)
def test_a_spool_on_a_full_disk(tmp_path, on_full, bound, stopped_by):
    found = json.loads(run_on_small_disk(tmp_path, "tests.channels.full_disk", on_full, str(bound)))
    assert len(found["rounds"]) == 4
    for each in found["rounds"]:
        assert (each["stopped_by"], each["letters"], each.get("repairs", [])) == (stopped_by, 0, [])
        # What was accepted came, in order, all of it or, where that was the wish, the newest of it.
        accepted, drained = each["accepted"], each["drained"]
        assert len(drained) == each["depth"]
        assert drained == accepted[-len(drained) :]
        assert (drained == accepted) == (on_full != "drop_oldest")
        assert len(drained) * 1000 > (bound or DISK) // 2
        if bound:
            assert each["free"] >= DISK - bound - BESIDE
        assert each.get("left", DISK) > DISK * 3 // 4
    assert not [name for name in found["files"] if name.endswith(".tmp")]


@pytest.mark.parametrize("word", first(1, ["written", "synced", "memory"]))
def test_streams_and_journals_open_on_the_disk_that_they_have_filled(tmp_path, word):
    assert run_on_small_disk(tmp_path, "tests.channels.full_producers", word) == "done\n"
