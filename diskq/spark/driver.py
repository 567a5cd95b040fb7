# Which Spark application a batch job belongs to, so that its staged files are recognized as orphans once the
# application has ended. Law: a job whose application cannot be identified from here is left until it is very
# old.
#
# A job's name holds the boot id of its machine and the process id of its JVM there, with the time at which
# that process began, since process ids are used again. Only Linux provides these; elsewhere age decides.

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
    """Return a new name for a batch job of the Spark application whose worker this process is."""
    boot, process = _boot(), _java(os.getpid())
    own = uuid.uuid4().hex[:16]
    if boot is None or process is None:
        return own
    pid, began = process
    return f"{boot}_{pid}_{began}_{own}"


def is_dead(name: str) -> bool:
    """True if the application of the job `name` has ended. False if that cannot be determined."""
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
    """The fields of a process in /proc."""

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
    """Return the nearest JVM among the ancestors of this process, and when it began, in clock ticks."""
    for _ in range(_MOST_ANCESTORS):
        stat = _stat(pid)
        if stat is None:
            return None
        if stat.program == "java":
            return pid, stat.began
        pid = stat.parent
    return None
