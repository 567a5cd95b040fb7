# What a look at files found. Law: what the next open mends without loss is not called damage, and what is
# lost is counted as far as anybody can.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from diskq.tools.stores import Store

__all__ = ["Finding", "Progress", "Severity", "Verdict", "Verification"]

Severity = Literal["damage", "torn", "note"]
"""Messages are lost, altered or unreachable; the end of a write that a crash cut off, which the next open
cuts and keeps aside; something to know, which is not wrong."""

Verdict = Literal["clean", "torn", "damaged"]

Progress: TypeAlias = Callable[[int], object]
"""Is told how many bytes more were looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it was written."""

    severity: Severity
    path: str
    """The file."""
    at: int | None = None
    """The byte in it; None: all of it, or there is no such file."""
    what: str
    lost: int = 0
    """Messages that cannot be read, as far as they can be counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A thing as it was found."""

    store: Store
    messages: int
    """Those that can be read."""
    size: int
    """Bytes that were looked at."""
    checksummed: int
    """For so many of them a checksum vouches."""
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        severities = {finding.severity for finding in self.findings}
        return "damaged" if "damage" in severities else "torn" if "torn" in severities else "clean"

    @property
    def lost(self) -> int:
        """Messages that cannot be read, as far as they can be counted."""
        return sum(finding.lost for finding in self.findings)
