# A journal read while another process rolls its files, removes the first ones, and leaves strays beside them.
# Law: every message comes once, in order, with its own key; nothing is reported; nothing stays open.
#
# That is where a scanner of sej's loses its place for good. The suite runs a hundred rolls on each disk;
# `make soak` as many as DISKQ_SOAK_ROLLS says.

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diskq.engine.journal.reader import JournalReader
from diskq.errors import NotFoundError

ROLLS = int(os.environ.get("DISKQ_SOAK_ROLLS", "100"))
IN_A_FILE = 2
TOTAL = ROLLS * IN_A_FILE
LONGEST = 60.0 + ROLLS / 10

WRITER = """
import os, sys, time
from pathlib import Path
from diskq.engine.journal.journal import Journal
from diskq.options import JournalOptions

root, total = Path(sys.argv[1]), int(sys.argv[2])
with Journal(root, options=JournalOptions(segment_size=100, sync_every=500)) as journal:
    for number in range(total):
        journal.append(b"%08d" % number * 4, b"key" if number % 2 else None)
        if number % 10 == 0:
            (root / "jnl/stray").touch()
            for name in sorted(os.listdir(root / "jnl"))[:-300]:
                (root / "jnl" / name).unlink()
            (root / "jnl/stray").unlink()
        if number % 5 == 0:
            time.sleep(0.0003)
"""


@pytest.fixture(params=["/dev/shm", None], ids=["tmpfs", "disk"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param is None:
        yield tmp_path / "journal"
    elif not os.access(request.param, os.W_OK):
        pytest.skip(f"there is no {request.param}")
    else:
        with tempfile.TemporaryDirectory(dir=request.param) as made:
            yield Path(made) / "journal"


def test_every_message_comes_once_while_files_come_and_go(directory: Path) -> None:
    gc.collect()  # what earlier tests have left open is not counted
    files_open = len(os.listdir("/proc/self/fd"))
    writer = subprocess.Popen([sys.executable, "-c", WRITER, directory, str(TOTAL)])
    received = 0
    bases = set()
    end = time.monotonic() + LONGEST
    try:
        with JournalReader(directory) as reader:
            while received < TOTAL:
                assert time.monotonic() < end, f"{received} of {TOTAL} messages came"
                try:
                    messages = reader.read_many(100)
                except NotFoundError:
                    messages = []  # it is not there yet
                for message in messages:
                    key = b"key" if received % 2 else b""
                    assert (message.offset, message.key, message.value) == (
                        received,
                        key,
                        b"%08d" % received * 4,
                    )
                    received += 1
                bases.add(reader.base)
                if not messages:
                    time.sleep(0.0002)
            assert reader.losses == []
        assert writer.wait(timeout=60) == 0
    finally:
        writer.kill()
        writer.wait()
    assert len(bases) > 1
    assert len(os.listdir("/proc/self/fd")) == files_open
