"""The hub on loopback, beside one in Go: the same client puts into both, and each batch is synced.

The client and the hub in Go are of our own writing (tests/compat/gohub): sej's hub cannot be had. That one
writes a batch into one file, syncs it and answers; it has no checksums, no limits and no lock.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.floors import HUB
from benchmarks.harness import Measurement, MissingError, Readings, Scale
from benchmarks.stopwatch import cpu_seconds_of, reading
from tests.compat.go_hub import GoHub
from tests.compat.golang import GoUnavailableError

ROUNDS = 7
SECTIONS = HUB


class HubWork:
    """Batches of messages of 100 bytes, one after the other, into a hub in a process of its own."""

    def __init__(self, hub: str, count: int, batch: int) -> None:
        self._hub = hub
        self._count = count
        self._batch = batch

    def measure(self, directory: Path) -> Readings:
        try:
            go = GoHub.build()
        except GoUnavailableError as reason:
            raise MissingError(str(reason)) from reason
        with (go.running if self._hub == "go" else ours)(directory) as (address, pid):
            before = cpu_seconds_of(pid)
            answer = go.put(address, count=self._count, batch=self._batch, size=100)
            if answer["code"] != "OK":
                raise RuntimeError(f"{answer['code']}: {answer['error']}")
            used = cpu_seconds_of(pid) - before
        return {"": reading(self._count, answer["seconds"], used)}

    def describe(self) -> dict[str, Any]:
        return {"hub": self._hub, "count": self._count, "batch": self._batch, "size": 100}


@contextmanager
def ours(root: Path) -> Iterator[tuple[str, int]]:
    """Where `diskq hub serve` listens, and its process."""
    command = [sys.executable, "-m", "diskq", "hub", "serve", str(root), "--listen", "127.0.0.1:0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            if not (address := process.stdout.readline().strip()):
                raise RuntimeError(f"diskq hub serve: {process.stderr.read()}")
            yield address, process.pid
        finally:
            process.send_signal(signal.SIGTERM)


def measurements(scale: Scale) -> dict[str, Measurement]:
    return {
        f"{name}, {batch}": HubWork(hub, scale(count, least=batch), batch)
        for name, hub in (("hub", "diskq"), ("hub in Go", "go"))
        for batch, count in ((1000, 400_000), (100, 40_000))
    }
