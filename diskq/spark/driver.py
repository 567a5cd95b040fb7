# Which Spark application a batch job belongs to, so that what it staged is known for an orphan when it is
# dead. Law: what cannot be told from here is left, until it is very old.
#
# A job's name holds the boot of its machine and its JVM's process there, with the time at which that
# began, as process numbers are used again. Only Linux tells these; elsewhere age decides.

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

__all__ = ["is_dead", "job_name"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_JOB = re.compile(r"([0-9a-f]{8})_([0-9]+)_([0-9]+)_[0-9a-f]{16}")
_MOST_ANCESTORS = 8


def job_name() -> str:
    """A new name for a batch job of the Spark application whose worker this process is."""
    boot, process = _boot(), _java(os.getpid())
    own = uuid.uuid4().hex[:16]
    if boot is None or process is None:
        return own
    pid, began = process
    return f"{boot}_{pid}_{began}_{own}"


def is_dead(name: str) -> bool:
    """Is the application that the job `name` belongs to gone? False where it cannot be told."""
    found = _JOB.fullmatch(name)
    if found is None or found[1] != _boot():
        return False
    stat = _stat(int(found[2]))
    return stat is None or stat.began != int(found[3])


def _boot() -> str | None:
    try:
        return _BOOT.read_text()[:8]
    except OSError:
        return None


class _Stat:
    """What /proc says of a process."""

    def __init__(self, text: str) -> None:
        head, _, tail = text.rpartition(")")  # a program's name may hold blanks and brackets
        fields = tail.split()
        self.program = head.partition("(")[2]
        self.parent = int(fields[1])
        self.began = int(fields[19])


def _stat(pid: int) -> _Stat | None:
    try:
        return _Stat(Path(f"/proc/{pid}/stat").read_text())
    except (OSError, IndexError, ValueError):
        return None


def _java(pid: int) -> tuple[int, int] | None:
    """The JVM that started this process, or one that started it; and when that JVM began, in ticks."""
    for _ in range(_MOST_ANCESTORS):
        stat = _stat(pid)
        if stat is None:
            return None
        if stat.program == "java":
            return pid, stat.began
        pid = stat.parent
    return None
