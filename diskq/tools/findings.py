# The findings of a verification. Law: what the next open repairs without loss is not called damage, and lost
# messages are counted as far as that is possible.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from diskq.tools.stores import Store

__all__ = ["Finding", "Progress", "Severity", "Verdict", "Verification"]

Severity = Literal["damage", "torn", "note"]
"""`damage`: messages are lost, altered or unreachable. `torn`: the end of a write that a crash cut off, which
the next open cuts and keeps aside. `note`: worth knowing, and not wrong."""

Verdict = Literal["clean", "torn", "damaged"]

Progress: TypeAlias = Callable[[int], object]
"""Called with the number of bytes that were looked at since the last call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference from what was written."""

    severity: Severity
    path: str
    """The file."""
    at: int | None = None
    """The byte in it; None: the whole file, or the file does not exist."""
    what: str
    lost: int = 0
    """Messages that cannot be read, as far as they can be counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of a verification."""

    store: Store
    messages: int
    """Messages that can be read."""
    size: int
    """Bytes that were looked at."""
    checksummed: int
    """Bytes of these that are covered by a checksum."""
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        severities = {finding.severity for finding in self.findings}
        return "damaged" if "damage" in severities else "torn" if "torn" in severities else "clean"

    @property
    def lost(self) -> int:
        """Messages that cannot be read, as far as they can be counted."""
        return sum(finding.lost for finding in self.findings)
