# What whoever looks over a thing writes down. Law: what two looks do not agree on was in motion, and is no
# finding: somebody may be writing, or taking away what is consumed, while we look.

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from diskq.storage.checksums import corrupt_rows
from diskq.storage.fs import FileSystem
from diskq.storage.numbered_files import private_path
from diskq.storage.repairs import Repair
from diskq.storage.swap import plan_path
from diskq.tools.findings import Finding, Progress, Severity

__all__ = ["Report", "settled", "tell_of_a_repair", "tell_of_rows", "tell_of_the_start"]

_LOOKS = 5
_MOMENT = 0.02
"""Seconds between two looks: a write that was under way is over by then, mostly."""


@dataclass(slots=True)
class Report:
    """What was found so far. `progress` is told of bytes."""

    progress: Progress | None = None
    messages: int = 0
    size: int = 0
    checksummed: int = 0
    findings: list[Finding] = field(default_factory=list)

    def saw(self, size: int) -> None:
        """So many bytes more were looked at."""
        self.size += size
        if self.progress is not None and size:
            self.progress(size)

    def damage(self, path: str, at: int | None, what: str, lost: int = 0) -> None:
        self._add("damage", path, at, what, lost)

    def torn(self, path: str, at: int | None, what: str) -> None:
        self._add("torn", path, at, what, 0)

    def note(self, path: str, at: int | None, what: str) -> None:
        self._add("note", path, at, what, 0)

    def _add(self, severity: Severity, path: str, at: int | None, what: str, lost: int) -> None:
        self.findings.append(Finding(severity=severity, path=path, at=at, what=what, lost=lost))

    def take(self, part: Report) -> None:
        """Add what a look at a part of the thing has found. Its progress was told already."""
        self.messages += part.messages
        self.size += part.size
        self.checksummed += part.checksummed
        self.findings += part.findings

    @property
    def lost(self) -> int:
        """Messages that cannot be read, as far as they were counted."""
        return sum(finding.lost for finding in self.findings)

    def count_lost(self, count: int) -> None:
        """So many messages are lost, and the first damage has them."""
        for number, finding in enumerate(self.findings):
            if finding.severity == "damage":
                self.findings[number] = replace(finding, lost=count)
                count = 0

    def limit_lost(self, most: int) -> None:
        """No more than these are lost: of what several findings tell, the first ones have them."""
        for number, finding in enumerate(self.findings):
            self.findings[number] = replace(finding, lost=min(finding.lost, most))
            most -= self.findings[number].lost

    @property
    def troubles(self) -> set[tuple[str, str, int | None, str]]:
        """What is wrong, without what can be another number a moment later."""
        wrong = (each for each in self.findings if each.severity != "note")
        return {(each.severity, each.path, each.at, each.what) for each in wrong}


def tell_of_rows(fs: FileSystem, checksum_file: str, bare: int, report: Report) -> None:
    """Where `bare` bytes of a file have no checksum: is that because rows of its checksum file rotted?"""
    if bare > 0 and (rotten := corrupt_rows(fs, checksum_file)):
        what = f"{len(rotten)} of its rows are torn or rotten: {bare} bytes of the data have no checksum"
        report.note(checksum_file, rotten[0], what)


def tell_of_a_repair(fs: FileSystem, root: str, name: str, report: Report) -> None:
    """Was one begun at `root` under this name, and cut short?"""
    plan = plan_path(private_path(root, name))
    if fs.size_of(plan) is not None:
        report.note(
            plan, None, "a repair was cut short, of which this is the rest: the next open finishes it"
        )


def tell_of_the_start(missing: Repair | None, report: Report) -> None:
    """Was there more before the first segment than there is?"""
    if missing is not None:
        report.damage(missing.path, None, missing.reason, missing.records or 0)


def settled(look: Callable[[Report], None], progress: Progress | None) -> Report:
    """What `look` writes down. Where something is wrong it looks again, and only what stays counts."""
    found = Report(progress)
    look(found)
    for _ in range(_LOOKS):
        if not found.troubles:
            break
        before = found.troubles
        time.sleep(_MOMENT)
        found = Report()
        look(found)
        if found.troubles <= before:
            break
        stayed = found.troubles & before
        found.findings = [
            each
            for each in found.findings
            if each.severity == "note" or (each.severity, each.path, each.at, each.what) in stayed
        ]
    return found
