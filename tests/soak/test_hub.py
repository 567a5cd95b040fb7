# Journals that grow, copied into a hub, while the hub and those who push are killed again and again. Law: at
# the end the copies are the journals, byte by byte.
#
# The suite does it for some seconds; `make soak` for DISKQ_SOAK_HUB_SECONDS: half an hour.

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.hub.rig import bytes_of

SECONDS = float(os.environ.get("DISKQ_SOAK_HUB_SECONDS", "4"))
SEED = int(os.environ.get("DISKQ_SOAK_HUB_SEED", "14"))
CLIENTS = ("web1", "web2", "web3")

ROOT = Path(__file__).parents[2]


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """One of the programs of hubs.py. It is killed at the end of the block."""
    command = [sys.executable, "-m", "tests.soak.hubs", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


class Replaceable:
    """A process that is killed, and followed by another one that does the same."""

    def __init__(self, stack: ExitStack, *arguments: object) -> None:
        self._stack = stack
        self._arguments = arguments
        self.process = stack.enter_context(started(*arguments))

    def replace(self) -> None:
        assert self.process.poll() is None, f"{self._arguments} ended by itself"
        self.process.kill()
        self.process.wait()
        self.process = self._stack.enter_context(started(*self._arguments))


@pytest.mark.slow
@pytest.mark.timeout(180 + 2 * SECONDS)
def test_copies_are_the_journals_whoever_is_killed(tmp_path):
    rng = random.Random(SEED)
    root, address = tmp_path / "root", f"unix:{tmp_path / 'hub'}"
    kills = {"hub": 0, "push": 0}
    with ExitStack() as stack:
        sources = {name: tmp_path / name for name in CLIENTS}
        writers = [stack.enter_context(started("write", path, SECONDS, SEED)) for path in sources.values()]
        for path in sources.values():
            until(lambda path=path: any((path / "jnl").glob("*.jnl")))
        hub = Replaceable(stack, "serve", root, address)
        pushes = [Replaceable(stack, "push", path, address, name, "ever") for name, path in sources.items()]
        while any(writer.poll() is None for writer in writers) or not all(kills.values()):
            time.sleep(rng.uniform(0.3, 1.5))
            if rng.random() < 0.5:
                hub.replace()
                kills["hub"] += 1
            else:
                rng.choice(pushes).replace()
                kills["push"] += 1
        for push in pushes:
            push.process.kill()
        for name, path in sources.items():
            with started("push", path, address, name, "all") as last:
                assert last.wait(60 + SECONDS) == 0
    for name, path in sources.items():
        written = bytes_of(path)
        assert len(written) > 10_000
        is_same = bytes_of(root / f"{name}.log") == written
        assert is_same, name  # said so, as a comparison of that many bytes is not to be read
    print(f"{kills}, {sum(len(bytes_of(path)) for path in sources.values())} bytes")


def until(is_so) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)
