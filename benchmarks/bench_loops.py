"""One queue on asyncio and on uvloop, beside Trio in the same process."""

from __future__ import annotations

from benchmarks.floors import LOOPS
from benchmarks.harness import Measurement, Scale, Work

ROUNDS = 9
SECTIONS = LOOPS


def measurements(scale: Scale) -> dict[str, Measurement]:
    seconds = max(0.02, 0.4 * scale.factor)
    return {
        loop: Work(f"on_{loop}", {"seconds": seconds}, module="loop_works") for loop in ("asyncio", "uvloop")
    }
