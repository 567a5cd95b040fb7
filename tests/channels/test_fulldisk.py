# A spool on a real file system that is full: a tmpfs of 1 MiB. Law: what was accepted is delivered, in
# order, what was refused is not in, and nothing of either is left behind.

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.channels.fulldisk import DISK

ROOT = Path(__file__).parents[2]
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
BOUND = 512 * 1024
BESIDE = 192 * 1024
"""What a spool has beside its messages: the slate, locks, notes."""


@pytest.fixture(scope="module")
def namespace() -> list[str]:
    """What to run a program with that is to mount something, which is gone when it ends."""
    if shutil.which(NAMESPACE[0]) is None:
        pytest.skip("there is no unshare(1) here: no file system can be mounted")
    may = subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True)
    if may.returncode:
        pytest.skip(f"no file system may be mounted here: {may.stderr.strip()}")
    return NAMESPACE


def filled(namespace: list[str], mount: Path, on_full: str, bound: int) -> dict[str, Any]:
    command = [*namespace, sys.executable, "-m", "tests.channels.fulldisk", str(mount), on_full, str(bound)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "on_full, bound, stopped_by",
    [
        ("wait", 0, "DiskFullError"),
        ("wait", BOUND, "waiting"),
        ("reject", BOUND, "DiskFullError"),
        ("drop_oldest", BOUND, "nothing"),
    ],
)
def test_a_spool_on_a_full_disk(namespace, tmp_path, on_full, bound, stopped_by):
    found = filled(namespace, tmp_path, on_full, bound)
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
