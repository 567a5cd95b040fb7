# How much memory an update, a compaction and a read take. Law: it does not depend on how large a segment is.

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import diskq

MOST = 300
"""MiB of a process, all included."""

PROGRAM = """
import sys, diskq
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))
table = diskq.open_table(sys.argv[1], sys.argv[2])
table.update()
print(peak())
print(sum(batch.num_rows for batch in diskq.read_arrow(sys.argv[1], table=table)))
print(peak())
"""


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is in /proc")
@pytest.mark.parametrize("size", [100, 100_000])
def test_memory_is_bounded_whatever_the_size_of_a_segment(size: int, tmp_path: Path) -> None:
    total = 400 * 2**20
    values = [
        b"%d " % number * (size // 8) for number in range(1_000_000, 1_000_000 + min(1000, total // size))
    ]
    count = 0
    with diskq.Stream(tmp_path / "clicks", partition_count=1, segment_size=300 * 2**20) as stream:
        while count * size < total:
            stream.append_many([(b"key", value) for value in values])
            count += len(values)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "clicks"), str(tmp_path / "lake")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    updating, rows, reading = map(int, done.stdout.split())
    assert len(diskq.open_table(tmp_path / "clicks", tmp_path / "lake").files()) == 1
    assert rows == count
    assert max(updating, reading) < MOST
