"""Synced puts of threads that share an engine, beside one lock around each call."""

from __future__ import annotations

from benchmarks.floors import THREADS
from benchmarks.harness import Measurement, Scale, Work

ROUNDS = 9
KINDS = ("queue", "stream", "journal", "priority", "bare")
SLOWER_BY = 0.001  # seconds, of a sync
SECTIONS = THREADS


def measurements(scale: Scale) -> dict[str, Measurement]:
    # The disk is another one in the next second: what is compared is measured in one process, in turn.
    turn = max(0.02, 0.5 * scale.factor)
    options = {"seconds": turn, "threads": [1, 16, 64]}
    slower = {"seconds": turn, "threads": [64], "delay": SLOWER_BY}
    return {
        **{name: Work(name, options, module="thread_works") for name in KINDS},
        **{f"{name}, slower disk": Work(name, slower, module="thread_works") for name in KINDS},
    }
