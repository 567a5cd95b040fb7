# Writes that fail while many wait for them: the ways in which a disk refuses. Law: a plan says which write it
# is, counted from now on, and what the disk does; it knows nothing of whose file it is.

from __future__ import annotations

import errno
from collections.abc import Callable

from diskq.testing import CrashFS, FaultFS

__all__ = ["PLANS", "Plan"]

Plan = Callable[[FaultFS[CrashFS], str, int], object]
"""Called with the disk, the files that it is about (a pattern), and the number of the write, from 1 on."""

PLANS: dict[str, Plan] = {
    "EIO": lambda disk, path, nth: disk.fail("pwrite", nth, path=path),
    "no room": lambda disk, path, nth: disk.fail("pwrite", nth, errno.ENOSPC, path=path, times=3),
    "a short write": lambda disk, path, nth: disk.short_write(nth, 70, path=path),
    "a short write, and then no room": lambda disk, path, nth: (
        disk.short_write(nth, 70, path=path),
        disk.fail("pwrite", nth + 1, errno.ENOSPC, path=path),
    ),
}
