"""What `diskq top` costs the process that it watches, and itself."""

from __future__ import annotations

from benchmarks.floors import TOP
from benchmarks.harness import Measurement, Scale, Work

ROUNDS = 5
PHASES = 4
SECTIONS = TOP


def measurements(scale: Scale) -> dict[str, Measurement]:
    # Half a second and more each, at rates of a 2026 laptop; the watcher redraws in all phases together.
    counts = {"queue": 4_000_000, "stream": 1_000_000}
    return {
        name: Work(
            name,
            {"phases": PHASES, "count": scale(count, least=10_000), "warm_up": min(5.0, 50 * scale.factor)},
            module="top_works",
        )
        for name, count in counts.items()
    }
