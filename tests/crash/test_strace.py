# What the kernel saw. Law: a witness that knows nothing of our code tells when a promise was made.

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# No sync is due for its time, however long a send takes on a busy machine.
PROGRAM = """
    import os, sys, trio, diskq
    kind, path, sync_to = sys.argv[1:]
    options = {"sync_to": sync_to, "sync_timeout": 1000.0}
    openers = {
        "queue": lambda: diskq.open_queue(path, "events", **options),
        "stream": lambda: diskq.open_producer(path, **options),
        "journal": lambda: diskq.open_journal(path, **options),
    }
    async def main():
        async with openers[kind]() as store:
            await store.send(b"sets the clock running")
            for number in range(5):
                os.write(2, b"MARK before %d\\n" % number)
                await store.send(b"must not be lost", durability="synced")
                os.write(2, b"MARK after %d\\n" % number)
    trio.run(main)
"""

SYNCHRONOUS = """
    import os, sys, diskq
    kind, path, sync_to = sys.argv[1:]
    options = {"sync_to": sync_to, "sync_timeout": 1000.0}
    if kind == "queue":
        store = diskq.Queue(path, "events", options=diskq.QueueOptions(**options))
        put = lambda value: store.put(value, durability="synced")
    elif kind == "stream":
        store = diskq.Stream(path, options=diskq.StreamOptions(**options))
        put = lambda value: store.append(value, b"key", durability="synced")
    else:
        store = diskq.Journal(path, options=diskq.JournalOptions(**options))
        put = lambda value: store.append(value, durability="synced")
    for number in range(5):
        os.write(2, b"MARK before %d\\n" % number)
        put(b"must not be lost")
        os.write(2, b"MARK after %d\\n" % number)
    store.close()
"""

REDO = {"queue": "events.redo", "stream": "redo", "journal": "redo"}


def traced(directory: Path, log: Path, kind: str, sync_to: str, program: str = PROGRAM) -> list[str]:
    """The calls of one of the programs above, in the order in which they returned."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    calls = "trace=pwrite64,write,fdatasync,fsync,openat,close"
    command = [strace, "-f", "-y", "-s", "256", "-e", calls, "-o", str(log)]
    python = [sys.executable, "-c", textwrap.dedent(program), kind, str(directory), sync_to]
    done = subprocess.run([*command, *python], capture_output=True, check=False)
    if done.returncode and b"ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr.decode()
    return log.read_text().splitlines()


class Send:
    """What the kernel saw of one send."""

    def __init__(self, lines: list[str], number: int) -> None:
        before = next(i for i, line in enumerate(lines) if f"MARK before {number}" in line)
        after = next(i for i, line in enumerate(lines) if f"MARK after {number}" in line)
        self._lines = lines[before:after]

    def seen(self, pattern: str) -> int:
        return next(i for i, line in enumerate(self._lines) if re.search(pattern, line))

    def synced(self) -> list[int]:
        """When each sync returned: a call that took its time is two lines, and returned with the second."""
        ended = r"fdatasync(\(.*\)| resumed>.*) += 0$"
        return [i for i, line in enumerate(self._lines) if re.search(ended, line)]


def test_a_send_synced_to_the_files_returns_after_the_sync_of_its_data_and_checksums(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    queue.mkdir()
    lines = traced(queue, tmp_path / "log", "queue", "files")
    for number in range(5):
        send = Send(lines, number)
        data = send.seen(r"pwrite64\(\d+<[^>]*/events\.diskqueue\.000000\.dat>.*must not be lost")
        row = send.seen(r"pwrite64\(\d+<[^>]*\.dat\.sums>")
        synced = send.synced()
        assert len(synced) == 2
        assert max(data, row) < min(synced)
        assert send.seen(r"fdatasync\(\d+<[^>]*/events\.diskqueue\.000000\.dat>") <= synced[0]
        assert send.seen(r"fdatasync\(\d+<[^>]*\.dat\.sums>") <= synced[1]


@pytest.mark.parametrize("program", [PROGRAM, SYNCHRONOUS], ids=["channel", "engine"])
@pytest.mark.parametrize("kind", REDO)
def test_a_synced_send_returns_after_one_sync_of_the_redo_log(
    kind: str, program: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    lines = traced(store, tmp_path / "log", kind, "log", program)
    redo = REDO[kind].replace(".", r"\.")
    for number in range(2, 5):  # the first one makes the log, and the second one is the first in it
        send = Send(lines, number)
        entry = send.seen(rf"pwrite64\(\d+<[^>]*/{redo}>.*must not be lost")
        (synced,) = send.synced()
        assert entry < send.seen(rf"fdatasync\(\d+<[^>]*/{redo}>") <= synced
