# What the kernel saw. Law: a witness that knows nothing of our code tells when a promise was made.

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = """
    import os, sys, trio, diskq
    async def main():
        async with diskq.open_queue(sys.argv[1], "events") as queue:
            await queue.send(b"sets the clock running")
            for number in range(5):
                os.write(2, b"MARK before %d\\n" % number)
                await queue.send(b"must not be lost", durability="synced")
                os.write(2, b"MARK after %d\\n" % number)
    trio.run(main)
"""


def traced(directory: Path, log: Path) -> list[str]:
    """The calls of the program above, in the order in which they returned."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    calls = "trace=pwrite64,write,fdatasync,fsync,openat,close"
    command = [strace, "-f", "-y", "-e", calls, "-o", str(log)]
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(directory)]
    done = subprocess.run([*command, *program], capture_output=True, check=False)
    if done.returncode and b"ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr.decode()
    return log.read_text().splitlines()


def test_a_synced_send_returns_after_the_fsync_of_its_data_and_checksums(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    queue.mkdir()
    lines = traced(queue, tmp_path / "log")
    for number in range(5):
        before = next(i for i, line in enumerate(lines) if f"MARK before {number}" in line)
        after = next(i for i, line in enumerate(lines) if f"MARK after {number}" in line)
        inside = lines[before:after]

        def seen(pattern: str, within: list[str] = inside) -> int:
            return next(i for i, line in enumerate(within) if re.search(pattern, line))

        data = seen(r"pwrite64\(\d+<[^>]*/events\.diskqueue\.000000\.dat>.*must not be lost")
        row = seen(r"pwrite64\(\d+<[^>]*\.dat\.sums>")
        # A call that took its time is two lines, and it returned with the second.
        synced = [
            i for i, line in enumerate(inside) if re.search(r"fdatasync(\(.*\)| resumed>.*) += 0$", line)
        ]
        assert len(synced) == 2
        assert max(data, row) < min(synced)
        assert seen(r"fdatasync\(\d+<[^>]*/events\.diskqueue\.000000\.dat>") <= synced[0]
        assert seen(r"fdatasync\(\d+<[^>]*\.dat\.sums>") <= synced[1]
