# The lives of what is open, and how each one ends: for the tests that make any sequence of calls, kills and
# power cuts. Law: all choices are the example's own, so that one that failed fails again, and shrinks.

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import trio
import trio.testing
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from diskq.testing import CrashFS
from tests.sampling import examples

__all__ = [
    "ENDINGS",
    "MEMORY_FLUSH",
    "REOPENS",
    "REPEATED",
    "SYNC_TIMEOUT",
    "WORDS",
    "Reopen",
    "Run",
    "left_by",
    "play",
    "settled",
]

# In seconds.
MEMORY_FLUSH = 0.01
SYNC_TIMEOUT = 2.0

ENDINGS = ("close", "kill", "power cut")

WORDS = st.sampled_from(["memory", "written", "synced"])

# Without a database: each run of the tests tries the same examples.
REPEATED = settings(
    max_examples=examples(100),
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example, HealthCheck.data_too_large],
)


@dataclass(frozen=True)
class Reopen:
    """An operation, the last one of a life."""

    how: str
    """One of `ENDINGS`."""
    seed: int


REOPENS = st.builds(
    Reopen, st.sampled_from(["close", "kill", "kill", "power cut", "power cut"]), st.integers(0, 99)
)


def left_by(ending: str, disk: CrashFS, seed: int) -> CrashFS:
    """The disk as the next life finds it. By seed 0 a power cut takes everything that was not synced."""
    if ending == "kill":
        return disk.kill()
    if ending == "power cut":
        return disk.crash(random.Random(seed) if seed else None)
    return disk


class Run(Protocol):
    """One of what is tested, through all its lives."""

    async def example(self, operations: list[Any]) -> None: ...


def play(begin: Callable[[trio.testing.MockClock], Run], operations: list[Any]) -> None:
    """Make them, in order. `begin` gets the clock, on which no time passes but as the run says."""
    clock = trio.testing.MockClock()
    trio.run(begin(clock).example, operations, clock=clock)


async def settled() -> None:
    """Let tasks and threads come to rest, so that an example that failed fails again."""
    await trio.testing.wait_all_tasks_blocked(0.001)
