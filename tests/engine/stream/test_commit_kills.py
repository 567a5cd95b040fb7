# Commits and kills. Law: a commit that has returned survives a kill of its process: the next reader gets at
# most the one message again that was in hand.

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import diskq

READER = """
import sys, diskq
with diskq.StreamReader(sys.argv[1], group="g", wait=20.0) as reader:
    for message in reader:
        sys.stdout.write(message.value.decode() + "\\n")
        sys.stdout.flush()
        reader.commit(message)
""".replace(", wait=20.0", ", claim_interval=0.01")

CONSUMER = """
import sys, trio, diskq
async def main():
    async with diskq.open_consumer(sys.argv[1], group="g", claim_interval=0.01) as consumer:
        async for message in consumer:
            sys.stdout.write(message.value.decode() + "\\n")
            sys.stdout.flush()
            await consumer.commit(message)
trio.run(main)
"""

SCANNER = """
import sys, trio, diskq
async def main():
    async with diskq.open_scanner(sys.argv[1], reader="g", wait=20.0) as scanner:
        async for message in scanner:
            sys.stdout.write(message.value.decode() + "\\n")
            sys.stdout.flush()
            await scanner.commit(message)
trio.run(main)
"""

MESSAGES = 3000


def read_and_kill(program: str, path: Path, kills: int, seed: int) -> Counter[int]:
    """Return what was printed by processes that are killed after some messages, and by a last one."""
    chance = random.Random(seed)
    found: Counter[int] = Counter()
    for kill in range(kills + 1):
        command = [sys.executable, "-c", program, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            most = chance.randrange(1, MESSAGES // kills) if kill < kills else MESSAGES
            for count, line in enumerate(child.stdout, 1):
                found[int(line)] += 1
                if count >= most or int(line) == MESSAGES - 1:
                    break
            child.send_signal(signal.SIGKILL)
            # The last line may be cut: then it was not in hand for whoever reads this pipe.
            found.update(int(line) for line in child.stdout.read().split("\n")[:-1])
        if found[MESSAGES - 1]:
            break
    return found


def check(found: Counter[int], kills: int) -> None:
    assert set(found) == set(range(MESSAGES)), "lost"
    assert sum(found.values()) - MESSAGES <= kills, "more than the one in hand came twice"


@pytest.mark.slow
@pytest.mark.parametrize("name, program", [("reader", READER), ("consumer", CONSUMER)])
def test_at_most_the_message_in_hand_comes_twice_per_kill(name: str, program: str, tmp_path: Path) -> None:
    with diskq.Stream(tmp_path / "s", partition_count=1) as stream:
        stream.append_many([b"%d" % number for number in range(MESSAGES)])
    check(read_and_kill(program, tmp_path / "s", kills=8, seed=1), kills=8)


@pytest.mark.slow
def test_at_most_the_message_in_hand_of_a_journal_comes_twice_per_kill(tmp_path: Path) -> None:
    with diskq.Journal(tmp_path / "j") as journal:
        journal.append_many([b"%d" % number for number in range(MESSAGES)])
    check(read_and_kill(SCANNER, tmp_path / "j", kills=5, seed=2), kills=5)
