# Threads on one engine. Law: with a lock of the caller around each call or without, no call is refused, and
# what was accepted is stored: no message is lost, none comes twice, and none that was not put.

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.engine.crowd import CROWDS
from tests.sampling import first
from tests.torture.messages import number_of
from tests.torture.systems import SYSTEMS, disk

ENGINES = ["queue", "stream", "journal", "jobs"]
SEEDS = range(4)

PROGRAM = """
    import faulthandler, json, logging, sys, threading
    from tests.torture.messages import message
    from tests.torture.systems import SYSTEMS, disk

    faulthandler.enable()
    logging.disable()
    sys.setswitchinterval(1e-5)
    name, directory = sys.argv[1], sys.argv[2]
    opened = SYSTEMS[name].open(directory, disk())
    lock = threading.Lock()
    done = []

    def put(first):
        for number in range(first, first + 60):
            with lock:
                opened.put(message(number))
                done.append(number)

    threads = [threading.Thread(target=put, args=(first,)) for first in (0, 1000, 2000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened.close()
    print(json.dumps(done))
"""


def run(*command: str) -> str:
    """Return what a Python process of its own printed; fail if it crashed."""
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def put_by_three(name: str, directory: Path) -> set[int]:
    """Return the messages that three threads were able to put."""
    return set(json.loads(run("-c", textwrap.dedent(PROGRAM), name, str(directory))))


def read(name: str, directory: Path) -> list[bytes]:
    opened = SYSTEMS[name].open
    assert opened is not None
    store = opened(str(directory), disk())
    try:
        return store.read_all()
    finally:
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", first(2, ENGINES))
def test_threads_that_take_turns_under_a_lock_lose_nothing(tmp_path: Path, name: str) -> None:
    told = put_by_three(name, tmp_path)
    assert len(told) == 180
    assert {number_of(body) for body in read(name, tmp_path)} == told


@pytest.mark.slow
@pytest.mark.parametrize("name", first(1, CROWDS))
def test_threads_at_once_keep_all_confirmed_messages_and_none_is_refused(tmp_path: Path, name: str) -> None:
    told = run("-X", "faulthandler", "-m", "tests.engine.crowd", name, str(tmp_path), *map(str, SEEDS))
    meetings = [json.loads(line) for line in told.splitlines()]
    for seed, meeting in zip(SEEDS, meetings, strict=True):
        assert meeting["surprises"] == [], f"seed {seed}"
        assert meeting["found"] == meeting["acknowledged"], f"seed {seed}"
    assert any(meeting["waited"] for meeting in meetings), "they did not meet"
