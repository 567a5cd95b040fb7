# One script that puts and another that gets. Law: they may be started in any order and killed at any moment:
# nothing is lost, and at most one message comes twice for each kill of the one that gets.

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests import waiting

until = partial(waiting.until, seconds=60.0, pause=0.05)

PUTS = """
import sys, time, diskq
with diskq.Stream(sys.argv[1], partition_count=2, wait=60.0) as stream:
    number = sum(stream.next_offsets)
    while True:
        stream.append(b"%d" % number)
        sys.stdout.write("%d\\n" % number)
        sys.stdout.flush()
        number += 1
        time.sleep(0.0005)
"""

GETS = """
import sys, diskq
with diskq.StreamReader(sys.argv[1], group="billing", create=True, claim_interval=0.05) as reader:
    for message in reader:
        sys.stdout.write(message.value.decode() + "\\n")
        sys.stdout.flush()
        reader.commit(message)
"""


class Script:
    """A program that is started again whenever it was killed, and what all its lives have printed."""

    def __init__(self, program: str, directory: Path, name: str) -> None:
        self._command = [sys.executable, "-c", program, str(directory / "s")]
        self._out = directory / name
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is None:
            with self._out.open("ab") as out:
                self._process = subprocess.Popen(self._command, stdout=out)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def lines(self) -> Counter[int]:
        return Counter(map(int, self._out.read_bytes().split())) if self._out.exists() else Counter()


@pytest.mark.slow
def test_two_scripts_that_are_started_in_any_order_and_killed_at_will(tmp_path: Path) -> None:
    chance, kills = random.Random(1), 0
    puts, gets = Script(PUTS, tmp_path, "put"), Script(GETS, tmp_path, "got")
    try:
        for _ in range(40):
            chance.choice([puts, gets]).start()
            time.sleep(chance.random() / 10)
            puts.start()
            gets.start()
            time.sleep(chance.random() * 0.6)
            victim = chance.choice([puts, gets])
            victim.kill()
            kills += victim is gets
        puts.start()  # on a busy machine no life may have been long enough
        until(lambda: len(puts.lines()) > 200)
        puts.kill()
        gets.start()
        put = puts.lines()
        until(lambda: set(put) <= set(gets.lines()), "lost")
    finally:
        puts.kill()
        gets.kill()
    got = gets.lines()
    assert sum(got.values()) - len(got) <= kills, "more than the one in hand came twice"
