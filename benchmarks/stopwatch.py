# The clock of everything measured in Python. Law: as in the Go harness, it runs over the work
# alone; opening, filling and closing are outside.

from __future__ import annotations

import gc
import math
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from time import clock_gettime, perf_counter

__all__ = [
    "Reading",
    "Stopwatch",
    "body_of",
    "cpu_seconds_of",
    "quantiles",
    "reading",
    "resident_mib",
    "shares",
]

Reading = dict[str, float]

_CPUCLOCK_SCHED = 2  # the kernel's number for it


class Stopwatch:
    """Started with the heap clean, so that what came before is not billed here.

    The collector itself stays as the interpreter has it: what it costs is part of what users get.
    """

    def __init__(self, *pids: int) -> None:
        """Processor time is this process's, and that of `pids`, which serve it."""
        gc.collect()
        self._pids = pids
        self._cpu = self._cpu_seconds()
        self._began = perf_counter()

    def stop(self, count: int) -> Reading:
        seconds = perf_counter() - self._began
        return reading(count, seconds, self._cpu_seconds() - self._cpu)

    def _cpu_seconds(self) -> float:
        return _cpu_seconds() + sum(map(cpu_seconds_of, self._pids))


def reading(count: int, seconds: float, cpu_seconds: float) -> Reading:
    return {
        "count": count,
        "seconds": seconds,
        "rate": count / seconds,
        "cpu_us": cpu_seconds / count * 1e6,
    }


def _cpu_seconds() -> float:
    """Return the processor time of this process in seconds, user and system, all its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def cpu_seconds_of(pid: int) -> float:
    """Return the processor time of another process in seconds, user and system, all threads. Linux only."""
    # clock_getcpuclockid(3), which Python has for threads alone; /proc/PID/stat has a resolution of 10 ms.
    return clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)


def resident_mib(pid: int | str = "self") -> float:
    """Return the resident memory of a process in MiB; zero if the kernel does not report it."""
    statm = Path(f"/proc/{pid}/statm")
    if not statm.exists():
        return 0.0
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def quantiles(seconds: Sequence[float]) -> Reading:
    """Return the quantiles in microseconds, by nearest rank as in the Go harness."""
    ordered = sorted(seconds)
    return {
        name: ordered[math.ceil(q * len(ordered)) - 1] * 1e6
        for name, q in (("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99), ("max_us", 1.0))
    }


def shares(count: int, parts: int) -> list[int]:
    """Divide `count` into `parts` parts that differ by at most one."""
    return [count // parts + (part < count % parts) for part in range(parts)]


def body_of(size: int) -> bytes:
    """Return the message body that the Go harness sends."""
    return bytes(ord("a") + i % 26 for i in range(size))
