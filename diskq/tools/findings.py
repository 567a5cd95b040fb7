# The findings of a verification. Law: what the next open repairs without loss is not called damage, and lost
# messages are counted as far as that is possible.

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from diskq.storage.repairs import RepairKind
from diskq.tools.stores import Store

__all__ = ["Finding", "FindingKind", "Progress", "Severity", "StateKind", "Verdict", "Verification"]

Severity = Literal["damage", "torn", "note"]
"""`damage`: messages are lost, altered or unreachable. `torn`: the end of a write that a crash cut off, which
the next open cuts and keeps aside. `note`: worth knowing, and not wrong."""

Verdict = Literal["clean", "torn", "damaged"]


class StateKind(enum.StrEnum):
    """What a finding is about that is not the damage of a `RepairKind`. Each value is its name in JSON."""

    WAITING = "waiting"
    """Messages in a log that are not yet in their files: the next open writes them there."""
    UNCOUNTED = "uncounted"
    """Messages that the metadata does not count, or counts and are not there."""
    LEFTOVER = "leftover"
    """A file that a crash left: the next open removes it."""
    PENDING = "pending"
    """A repair or a transaction that was cut short: the next open finishes it."""
    REFUSED = "refused"
    """Files that the next open refuses."""


FindingKind: TypeAlias = RepairKind | StateKind
"""What a finding is about: the kind of the repair, where the next open makes one."""

Progress: TypeAlias = Callable[[int], object]
"""Called with the number of bytes that were looked at since the last call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference from what was written."""

    severity: Severity
    kind: FindingKind
    path: str
    """The file."""
    at: int | None = None
    """The byte in it; None: the whole file, or the file does not exist."""
    size: int | None = None
    """Bytes from there on that are concerned; None: unknown, or no bytes are."""
    offset: int | None = None
    """The first message that is concerned, where messages have offsets; None: unknown, or none is."""
    what: str
    """The finding in words, for people."""
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
