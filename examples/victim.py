"""Processes that a demo watches, and kills in the middle of their work."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from flights import DemoError

STALLED = 60  # seconds without progress

Counts = tuple[int, ...]


@dataclass
class Life:
    """The report of a process at its start, and the seconds that it worked after that."""

    report: dict[str, Any]
    seconds: float


def live(
    script: str,
    job: str,
    counts: Callable[[], Counts],
    show: Callable[..., None],
    kill_when: Callable[[], bool] | None = None,
) -> Life:
    """Start `script` on a job, and wait for its end; or kill it (SIGKILL) once `kill_when()` is true.

    `counts()` returns its progress, which is passed to `show` about ten times a second.
    """
    command = [sys.executable, script, "--worker", job]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            began = time.perf_counter()
            for _ in _progress(process, counts, show):
                if kill_when is not None and kill_when():
                    process.send_signal(signal.SIGKILL)
                    process.wait()
        finally:
            process.kill()
    seconds = time.perf_counter() - began
    if process.returncode != (0 if kill_when is None else -signal.SIGKILL):
        raise DemoError(f"the worker process failed (exit code {process.returncode})")
    show(*counts())
    return Life(json.loads(first), seconds)


def _progress(
    process: subprocess.Popen[bytes], counts: Callable[[], Counts], show: Callable[..., None]
) -> Iterator[None]:
    """Yield every 2 ms while the process runs, and show the progress about ten times a second."""
    last: Counts = ()
    moved, shown = time.monotonic(), 0.0
    while process.poll() is None:
        yield
        time.sleep(0.002)
        now = time.monotonic()
        if now - shown > 0.1:
            shown, seen = now, counts()
            show(*seen)
            if seen != last:
                last, moved = seen, now
            elif now - moved > STALLED:
                raise DemoError(f"no progress for {STALLED} s (counts: {seen})")


def report(**facts: object) -> None:
    """Print the first line of a process: what it found at its start."""
    print(json.dumps(facts), flush=True)
