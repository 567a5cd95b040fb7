# Several processes put, and several get from them all: spools in slots feed one stream, by turns, and a group
# reads it. Law: whoever is killed, nothing is lost; what comes twice is a batch or a message in hand.

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

import diskq
from diskq.tools.view.spool import slots_of

LONG = 120.0
BATCH = 20

PUTS = f"""
import itertools, os, sys, time, diskq
def deliver(batch):
    with diskq.Stream("clicks", partition_count=4, wait=60.0) as stream:
        stream.append_many(batch)
with diskq.Spool("outbox", deliver, slots=True, max_messages={BATCH}) as spool:
    for number in itertools.count():
        body = b"%d-%d" % (os.getpid(), number)
        spool.put(body)
        os.write(1, body + b"\\n")
        time.sleep(0.002)
"""

GETS = """
import os, diskq
with diskq.StreamReader("clicks", group="billing", create=True, claim_interval=0.05) as reader:
    for message in reader:
        os.write(1, message.value + b"\\n")
        reader.commit(message)
"""


class Processes:
    """Some of one program, each of which is started again when it was killed, and what all have printed."""

    def __init__(self, program: str, count: int, directory: Path, name: str) -> None:
        self._command = [sys.executable, "-c", program]
        self._directory = directory
        self._out = directory / name
        self._running: list[subprocess.Popen[bytes]] = []
        for _ in range(count):
            self.start()

    def start(self) -> None:
        with self._out.open("ab") as out:
            self._running.append(subprocess.Popen(self._command, cwd=self._directory, stdout=out))

    def kill(self, number: int) -> None:
        victim = self._running.pop(number)
        victim.send_signal(signal.SIGKILL)
        victim.wait()

    def kill_all(self) -> int:
        count = len(self._running)
        while self._running:
            self.kill(0)
        return count

    def lines(self) -> Counter[bytes]:
        return Counter(self._out.read_bytes().split())


def until_there_are_more(processes: Processes, than: int) -> None:
    end = time.monotonic() + LONG
    while processes.lines().total() <= than:
        assert time.monotonic() < end, "nothing more comes"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.exhaustive)])
def test_several_put_and_several_get_and_all_may_be_killed(kills: int, tmp_path: Path) -> None:
    chance = random.Random(kills)
    killed = Counter[str]()
    with ExitStack() as stack:
        kinds = {}
        for name, program in (("put", PUTS), ("got", GETS)):
            kinds[name] = Processes(program, 3, tmp_path, name)
            stack.callback(kinds[name].kill_all)
        puts, gets = kinds["put"], kinds["got"]
        for turn in range(kills):
            until_there_are_more(gets, gets.lines().total())
            time.sleep(chance.random() / 4)
            name = ("put", "got")[turn % 2]
            kinds[name].kill(chance.randrange(3))
            kinds[name].start()
            killed[name] += 1
        until_there_are_more(puts, 0)
        killed["put"] += puts.kill_all()
        with diskq.Stream(tmp_path / "clicks", wait=LONG) as stream:
            for slot in slots_of(str(tmp_path / "outbox")):
                with diskq.Spool(slot, stream.append_many) as spool:
                    assert spool.drained(LONG)
            in_stream = sum(stream.next_offsets)
        end = time.monotonic() + LONG
        while (missing := set(puts.lines()) - set(gets.lines())) or gets.lines().total() < in_stream:
            assert time.monotonic() < end, f"lost, or too late: {sorted(missing)}"
            time.sleep(0.05)
        killed["got"] += gets.kill_all()
    put, got = puts.lines(), gets.lines()
    in_twice, read_twice = in_stream - len(got), got.total() - in_stream
    print(f"{kills} kills, {len(put)} put, {in_twice} twice in the stream, {read_twice} read twice")
    assert in_twice <= BATCH * killed["put"]
    assert read_twice <= killed["got"]
