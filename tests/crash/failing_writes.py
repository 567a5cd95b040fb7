# Writes that fail while many wait for them: the ways in which a disk refuses. Law: a plan says which write it
# is, counted from now on, and what the disk does; it knows nothing of whose file it is.

from __future__ import annotations

import errno
from collections.abc import Callable

from diskq.channels.core import commit_loop
from diskq.testing import CrashFS, FaultFS
from tests.crash.mutations import Mutation

__all__ = ["LATE_WRITES", "PLANS", "Plan"]

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

_FILES = """\
        self._write_gathered()
        with_metadata = self._writer.note() or self._wants_metadata
        self._wants_barrier = self._wants_metadata = False
        sync = self._writer.prepare(full=with_metadata)
"""
_LOG = """\
        self._write_gathered()
        sync = self._writer.prepare_log()
"""


def _late(source: str) -> Mutation:
    write, *rest = source.splitlines(keepends=True)
    return Mutation(commit_loop.__name__, source, "".join((*rest, write)))


LATE_WRITES = (_late(_FILES), _late(_LOG))
"""Gathered messages are written after the sync was prepared that should cover them: files, or log."""
