# A producer at full speed, alone and watched in turn. Law: both sides of a ratio are of one process, seconds
# apart; the watcher is stopped (SIGSTOP) while the producer is to be alone, and has a terminal to draw on.

from __future__ import annotations

import os
import pty
import signal
import statistics
import subprocess
import sys
import termios
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.stopwatch import Reading, Stopwatch, body_of, cpu_seconds_of
from diskq import open_producer, open_queue

SendMany = Callable[[list[bytes]], Awaitable[Any]]

_BATCH = 100
# Reads what is drawn, in a process of its own: not at the cost of the producer.
_DRAIN = "import os\nwhile os.read(0, 65536): pass"


async def queue(directory: str, *, phases: int, count: int, warm_up: float) -> dict[str, Reading]:
    """`phases` times `count` messages alone, and as many watched."""
    os.mkdir(f"{directory}/queue")
    # A bound, and what is oldest goes: so that the disk does not fill.
    async with open_queue(
        f"{directory}/queue", "bench", max_bytes=2**30, on_full="drop_oldest", segment_size=2**26
    ) as events:
        return await _measured(f"{directory}/queue", events.send_many, phases, count, warm_up)


async def stream(directory: str, *, phases: int, count: int, warm_up: float) -> dict[str, Reading]:
    """The same of a stream."""
    async with open_producer(f"{directory}/stream") as producer:
        return await _measured(f"{directory}/stream", producer.send_many, phases, count, warm_up)


async def _measured(
    path: str, send_many: SendMany, phases: int, count: int, warm_up: float
) -> dict[str, Reading]:
    alone: list[Reading] = []
    beside: list[Reading] = []
    busy = 0.0
    with _watcher(path) as process:
        await _warm_up(send_many, warm_up)
        for _ in range(phases):
            process.send_signal(signal.SIGSTOP)
            alone.append(await _sending(send_many, count))
            process.send_signal(signal.SIGCONT)
            before = cpu_seconds_of(process.pid)
            beside.append(await _sending(send_many, count))
            busy += cpu_seconds_of(process.pid) - before
        assert process.poll() is None, "the watcher ended"
    watched = sum(each["seconds"] for each in beside)
    return {
        "alone": _median(alone),
        "beside": _median(beside),
        "watcher": {
            "core_percent": 100 * busy / watched,
            "seconds": watched,
            "cpu_us": busy / (phases * count) * 1e6,
        },
    }


async def _warm_up(send_many: SendMany, seconds: float) -> None:
    """Until the watcher has been imported, and has drawn itself once."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        await _sending(send_many, 10 * _BATCH)


async def _sending(send_many: SendMany, count: int) -> Reading:
    batch = [body_of(100)] * _BATCH
    watch = Stopwatch()
    for _ in range(count // _BATCH):
        await send_many(batch)
    return watch.stop(count // _BATCH * _BATCH)


def _median(readings: list[Reading]) -> Reading:
    return {name: statistics.median(each[name] for each in readings) for name in readings[0]}


@contextmanager
def _watcher(path: str) -> Iterator[subprocess.Popen[bytes]]:
    """`diskq top` at a terminal, at its default interval."""
    inner, outer = pty.openpty()
    termios.tcsetwinsize(outer, (40, 160))
    command = [sys.executable, "-m", "diskq", "top", path]
    with (
        subprocess.Popen([sys.executable, "-c", _DRAIN], stdin=inner) as drain,
        subprocess.Popen(
            command, stdin=outer, stdout=outer, stderr=outer, env=os.environ | {"TERM": "xterm-256color"}
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            drain.kill()
            os.close(inner)
            os.close(outer)
