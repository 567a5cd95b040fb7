# How much of all there is a test run tries. Law: what is left out is chosen once and for ever, so that a run
# tries what the last one did; and one command tries all of it.
#
#   make test       each promise once: of many cases a few, of damaged bytes a small sample
#   make test-all   every test, larger samples: DISKQ_EXHAUSTIVE=1
#   make torture    every byte, and a power cut before every operation: DISKQ_EVERY_FAULT=1
#
# A test that only repeats or tries more is marked `exhaustive`, and `make test` leaves it out; so it does, by
# their parameter's name, with mutations and with most seeds (conftest.py). Where a test has several
# parameters, `make test` tries each value of each (`covering`), `make test-all` each combination. One that
# takes a sample of what it does is marked `sampled`: what `make test` left of it is in `make test-all`. A
# sample is spread over all, with both ends.

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Hashable, Iterable, Sequence, Set
from typing import Any, TypeVar

import pytest

__all__ = [
    "IS_EXHAUSTIVE",
    "IS_FULL",
    "covering",
    "examples",
    "first",
    "is_set",
    "sampled",
    "spread",
    "stride",
]


def is_set(name: str) -> bool:
    """True if the environment variable is set, and not to 0."""
    return os.environ.get(name, "") not in ("", "0")


IS_FULL = is_set("DISKQ_EVERY_FAULT")
IS_EXHAUSTIVE = IS_FULL or is_set("DISKQ_EXHAUSTIVE")

# What `make test` takes of a sample of `make test-all`.
_QUICK = 8

T = TypeVar("T")


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """Values of one parameter of a test: `make test` runs the first so many, `make test-all` all."""
    return [
        case if number < count else pytest.param(case, marks=pytest.mark.exhaustive)
        for number, case in enumerate(cases)
    ]


def covering(cases: Sequence[Set[Hashable]]) -> list[int]:
    """The numbers of a few of the cases, in which each value of the others is met at least once.

    First those are taken of which all values are new, then those of which all but one are, and so on.
    """
    new = set().union(*cases)
    taken = []
    for wanted in range(max(map(len, cases), default=0), 0, -1):
        for number, case in enumerate(cases):
            if len(new & case) == wanted:
                new -= case
                taken.append(number)
    return sorted(taken)


def examples(most: int) -> int:
    """How many examples Hypothesis tries: so many, and in `make test` an eighth of that, but ten."""
    return most if IS_EXHAUSTIVE else min(most, max(10, most // _QUICK))


def sampled(cases: Sequence[T], most: int) -> Sequence[T]:
    """At most so many of the cases, in order: one of each of as many stretches, the first and the last.

    In `make test` an eighth of that, but four. The test is marked `sampled`.
    """
    if not IS_EXHAUSTIVE:
        most = min(most, max(4, most // _QUICK))
    if IS_FULL or len(cases) <= most:
        return cases
    # Not evenly: rows of 24 bytes would be met at the same places of each.
    rng = random.Random(len(cases))
    bounds = [number * len(cases) // most for number in range(most + 1)]
    chosen = [rng.randrange(start, end) for start, end in itertools.pairwise(bounds)]
    chosen[0], chosen[-1] = 0, len(cases) - 1
    return [cases[number] for number in chosen]


def spread(cases: Sequence[T]) -> Sequence[T]:
    """All of them, as each byte of a file; in `make test` an eighth. The test is marked `sampled`."""
    return sampled(cases, len(cases))


def stride(every: int) -> int:
    """Each so many-th operation; in a sample a third of those, and in `make test` an eighth of that."""
    return every if IS_FULL else 3 * every if IS_EXHAUSTIVE else 3 * _QUICK * every
