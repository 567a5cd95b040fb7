"""Verifying: how many bytes a second one core looks over, of each format, for small and for larger messages.

What is judged is bytes by the seconds that the processor worked: a shared machine then only adds what its
caches cost. The files are in the page cache, as the measurement has just written them.
"""

from __future__ import annotations

from benchmarks.floors import VERIFIED, VERIFY
from benchmarks.harness import Measurement, Scale, Work

ROUNDS = 5
SECTIONS = VERIFY

BYTES = 250_000_000


def measurements(scale: Scale) -> dict[str, Measurement]:
    return {
        f"{kind}, {size}": Work(
            "looked_over", {"kind": kind, "size": size, "count": scale(BYTES // size)}, module="verify_works"
        )
        for kind in VERIFIED
        for size in (100, 1024)
    }
