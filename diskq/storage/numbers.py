# The bounds of numbers.

from __future__ import annotations

__all__ = ["NO_NUMBER", "UNBOUNDED"]

NO_NUMBER = 2**62
"""Numbers of files, messages and records are below it. No store reaches it; and a number counted on from
there, by all that a disk can hold, still fits into a signed 64-bit integer, in diskq and in the peers."""

UNBOUNDED = NO_NUMBER
"""All messages or bytes, for a parameter that is a number."""
