# A journal tailed through its channel, while another process rolls its files, removes the first ones, and
# leaves strays beside them. Law: as test_journals.py has it, for who waits instead of asking again.
#
# The suite runs a hundred rolls on each disk; `make soak` as many as DISKQ_SOAK_ROLLS says.

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import diskq
from diskq.engine.journal.journal import Journal
from tests.soak.test_journals import TOTAL, WRITER, directory

__all__ = ["directory"]

LONGEST = 60.0 + TOTAL / 20


@pytest.mark.slow
@pytest.mark.timeout(2 * LONGEST)
def test_who_waits_gets_every_message_once_while_files_come_and_go(directory: Path) -> None:
    Journal(directory).close()
    gc.collect()  # what earlier tests have left open is not counted
    files_open = len(os.listdir("/proc/self/fd"))

    async def tail() -> int:
        most = 0
        async with diskq.open_scanner(directory, end=TOTAL - 1) as scanner:
            received = 0
            async for message in scanner:
                key = b"key" if received % 2 else b""
                wanted = (received, key, b"%08d" % received * 4)
                assert (message.offset, message.key, message.value) == wanted
                received += 1
                if received % 50 == 0:
                    most = max(most, len(os.listdir("/proc/self/fd")))
            assert received == TOTAL
            assert scanner.losses == ()
        return most

    async def run() -> int:
        with trio.fail_after(LONGEST):
            return await tail()

    with subprocess.Popen([sys.executable, "-c", WRITER, directory, str(TOTAL)]) as writer:
        most = trio.run(run)
        assert writer.wait(LONGEST) == 0
    assert most - files_open < 20
    assert len(os.listdir("/proc/self/fd")) == files_open
