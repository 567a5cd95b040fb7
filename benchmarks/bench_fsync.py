"""Group commit, by the disk's own measure: what n tasks make of one fdatasync.

A shared disk is ten times slower in one second than in the next. So each round is one process
that probes the disk and sends in turns of a fraction of a second, and only their ratio is judged.
"""

from __future__ import annotations

from benchmarks.floors import FSYNC
from benchmarks.harness import Measurement, Scale, Work

ROUNDS = 15
SECTIONS = FSYNC


def measurements(scale: Scale) -> dict[str, Measurement]:
    turn = max(0.02, 0.25 * scale.factor)
    return {"fdatasync": Work("fdatasync_by_turns", {"seconds": turn, "tasks": [1, 16, 64, 256]})}
