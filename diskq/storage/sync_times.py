# How long syncs took, as statistics, status files and metrics show it. Law: data alone. What counts it is in
# engine/log/sync.py.

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BOUNDS", "Durations"]

BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds, ascending: from a disk with its own cache to one that is about to fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """How often an operation ran, and how long it took."""

    count: int
    seconds: float
    """Total duration."""
    buckets: tuple[int, ...]
    """How many took at most `BOUNDS[i]` seconds and more than the bound before; the last: more than all."""
