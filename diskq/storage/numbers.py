# How far numbers go.

from __future__ import annotations

__all__ = ["NO_NUMBER", "UNBOUNDED"]

NO_NUMBER = 2**62
"""Numbers of files, messages and records are below it. Nobody has counted so far; and what is counted on from
there, by all that a disk can hold, still fits 64 bits with a sign, in the peers' programs and in ours."""

UNBOUNDED = NO_NUMBER
"""As many messages or bytes as there are, where a number is wanted."""
