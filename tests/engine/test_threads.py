# Two threads on one engine. Law: an engine is for one thread at a time. Who shares one holds a lock of his
# own around each call, and has everything; who does not is promised nothing, but that the process lives,
# and that no message comes that nobody put.

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.torture.messages import message, number_of
from tests.torture.systems import SYSTEMS, disk

ENGINES = ["queue", "stream", "journal", "jobs"]

PROGRAM = """
    import contextlib, faulthandler, json, logging, sys, threading
    from tests.torture.messages import message
    from tests.torture.systems import SYSTEMS, disk

    faulthandler.enable()
    logging.disable()
    sys.setswitchinterval(1e-5)
    name, directory, is_locked = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
    opened = SYSTEMS[name].open(directory, disk())
    guard = threading.Lock() if is_locked else contextlib.nullcontext()
    done = []

    def put(first):
        for number in range(first, first + 60):
            with contextlib.suppress(Exception), guard:
                opened.put(message(number))
                done.append(number)

    threads = [threading.Thread(target=put, args=(first,)) for first in (0, 1000, 2000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with contextlib.suppress(Exception):
        opened.close()
    print(json.dumps(done))
"""


def put_by_three(name: str, directory: Path, *, is_locked: bool) -> set[int]:
    """What three threads were told is in."""
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM), name, str(directory), str(is_locked)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def read(name: str, directory: Path) -> list[bytes]:
    opened = SYSTEMS[name].open
    assert opened is not None
    thing = opened(str(directory), disk())
    try:
        return thing.read_all()
    finally:
        thing.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_threads_that_take_turns_under_a_lock_lose_nothing(tmp_path: Path, name: str) -> None:
    told = put_by_three(name, tmp_path, is_locked=True)
    assert len(told) == 180
    assert {number_of(body) for body in read(name, tmp_path)} == told


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_threads_at_once_kill_no_process_and_invent_no_message(tmp_path: Path, name: str) -> None:
    put_by_three(name, tmp_path, is_locked=False)
    known = {message(first + number) for first in (0, 1000, 2000) for number in range(60)}
    assert set(read(name, tmp_path)) <= known
