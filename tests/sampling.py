# How much of all there is a test run tries. Law: what is left out is chosen once and for ever, so that a run
# tries what the last one did; and one command tries all of it.
#
# A test that damages every byte, or cuts the power before every operation, takes a sample in `make test`:
# spread over all, with both ends. With DISKQ_EVERY_FAULT=1 it takes them all, as `make torture` does.

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["IS_FULL", "sampled", "stride"]

IS_FULL = os.environ.get("DISKQ_EVERY_FAULT", "") not in ("", "0")

T = TypeVar("T")


def sampled(cases: Sequence[T], most: int) -> Sequence[T]:
    """At most so many of the cases, in order: one of each of as many stretches, the first and the last."""
    if IS_FULL or len(cases) <= most:
        return cases
    # Not evenly: rows of 24 bytes would be met at the same places of each.
    rng = random.Random(len(cases))
    bounds = [number * len(cases) // most for number in range(most + 1)]
    chosen = [rng.randrange(start, end) for start, end in itertools.pairwise(bounds)]
    chosen[0], chosen[-1] = 0, len(cases) - 1
    return [cases[number] for number in chosen]


def stride(every: int) -> int:
    """Each so many-th operation, or in a sample a third of those."""
    return every if IS_FULL else 3 * every
