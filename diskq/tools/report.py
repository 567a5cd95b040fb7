# The findings of a verification. Law: only what two looks agree on is a finding: another process may be
# writing, or removing what is consumed, at the same time.

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from diskq.engine.log.recovery_points import RecoveryPoints
from diskq.errors import DiskqError, NotAFileError, UnsupportedFormatError
from diskq.storage.checksums import corrupt_rows
from diskq.storage.fs import FileSystem, join
from diskq.storage.lock import holder_of
from diskq.storage.numbered_files import names_in, private_path, set_aside_from
from diskq.storage.repairs import Repair, RepairKind
from diskq.storage.swap import plan_path
from diskq.tools.findings import Finding, FindingKind, Progress, Severity, StateKind

__all__ = [
    "Report",
    "report_cut_repair",
    "report_kept_aside",
    "report_leftovers",
    "report_missing_end",
    "report_missing_start",
    "report_offset",
    "report_refusal",
    "report_repairs",
    "report_rotten_entries",
    "report_unreadable_points",
    "settled",
]

# What no acknowledgement has promised, and what costs no message if none is counted.
_NEVER_PROMISED = {RepairKind.UNSYNCED, RepairKind.STALE, RepairKind.REBUILT}
_TORN_WITHOUT_LOSS = {RepairKind.TORN, RepairKind.UNWRITTEN}

_LOOKS = 5
_MOMENT = 0.02
"""Seconds between two looks: by then a write that was in progress has usually ended."""


class _Trouble(NamedTuple):
    """What two looks have to agree on."""

    severity: Severity
    kind: FindingKind
    path: str
    at: int | None
    size: int | None
    offset: int | None

    @classmethod
    def of(cls, finding: Finding) -> _Trouble:
        return cls(finding.severity, finding.kind, finding.path, finding.at, finding.size, finding.offset)


@dataclass(slots=True)
class Report:
    """What was found so far. `progress` is called with the number of bytes of each step."""

    progress: Progress | None = None
    messages: int = 0
    size: int = 0
    checksummed: int = 0
    findings: list[Finding] = field(default_factory=list)

    def saw(self, size: int) -> None:
        """Add `size` to the bytes that were looked at."""
        self.size += size
        if self.progress is not None and size:
            self.progress(size)

    def damage(
        self,
        kind: FindingKind,
        path: str,
        at: int | None,
        what: str,
        lost: int = 0,
        *,
        size: int | None = None,
        offset: int | None = None,
    ) -> None:
        self._add("damage", kind, path, at, what, lost, size, offset)

    def torn(
        self, kind: FindingKind, path: str, at: int | None, what: str, *, size: int | None = None
    ) -> None:
        self._add("torn", kind, path, at, what, 0, size, None)

    def note(
        self,
        kind: FindingKind,
        path: str,
        at: int | None,
        what: str,
        *,
        size: int | None = None,
        offset: int | None = None,
    ) -> None:
        self._add("note", kind, path, at, what, 0, size, offset)

    def _add(
        self,
        severity: Severity,
        kind: FindingKind,
        path: str,
        at: int | None,
        what: str,
        lost: int,
        size: int | None,
        offset: int | None,
    ) -> None:
        finding = Finding(
            severity=severity, kind=kind, path=path, at=at, size=size, offset=offset, what=what, lost=lost
        )
        self.findings.append(finding)

    def take(self, part: Report) -> None:
        """Add what a look at a part of the store has found. Its progress was reported already."""
        self.messages += part.messages
        self.size += part.size
        self.checksummed += part.checksummed
        self.findings += part.findings

    @property
    def lost(self) -> int:
        """Messages that cannot be read, as far as they were counted."""
        return sum(finding.lost for finding in self.findings)

    def count_lost(self, count: int) -> None:
        """Add `count` lost messages to the first damage."""
        for number, finding in enumerate(self.findings):
            if finding.severity == "damage":
                self.findings[number] = replace(finding, lost=count)
                count = 0

    def limit_lost(self, most: int) -> None:
        """Limit the lost messages of all findings to `most`; the first findings keep theirs."""
        for number, finding in enumerate(self.findings):
            self.findings[number] = replace(finding, lost=min(finding.lost, most))
            most -= self.findings[number].lost

    @property
    def troubles(self) -> set[_Trouble]:
        """What is wrong, without the numbers of lost messages, which may change a moment later."""
        return {_Trouble.of(each) for each in self.findings if each.severity != "note"}


def report_rotten_entries(fs: FileSystem, checksum_file: str, bare: int, report: Report) -> None:
    """Report rotten entries of a checksum file, if `bare` bytes of the data have no checksum."""
    if bare > 0 and (rotten := corrupt_rows(fs, checksum_file)):
        what = f"{len(rotten)} of its entries are torn or rotten: {bare} bytes of the data have no checksum"
        report.note(RepairKind.CORRUPT, checksum_file, rotten[0], what)


def report_cut_repair(fs: FileSystem, root: str, name: str, report: Report) -> None:
    """Report a repair that was begun at `root` under this name and cut short."""
    plan = plan_path(private_path(root, name))
    if fs.size_of(plan) is not None:
        what = "this is the rest of a repair that was cut short: the next open finishes it"
        report.note(StateKind.PENDING, plan, None, what)


def report_kept_aside(fs: FileSystem, directory: str, report: Report, prefix: str = "") -> None:
    """Report the files of bytes that earlier opens or repairs could not read, by names with this prefix."""
    if fs.size_of(directory) is None:
        return
    for name in sorted(names_in(fs, directory, prefix)):
        if set_aside_from(name) is not None:
            path = join(directory, name)
            size = fs.size_of(path) or 0
            what = f"{size} bytes that an earlier open or repair kept aside"
            report.note(RepairKind.KEPT_ASIDE, path, None, what, size=size)


def report_unreadable_points(points: RecoveryPoints, path: str, report: Report) -> None:
    """Report the file of the recovery points, at `path`, if it cannot be read."""
    if not points.is_readable:
        report.note(RepairKind.CORRUPT, path, 0, "it cannot be read: the next open looks at everything")


def report_offset(repair: Repair, report: Report) -> None:
    """Report what was wrong with a committed offset."""
    tell = report.torn if repair.kind is RepairKind.TORN else report.damage
    tell(repair.kind, repair.path, 0, repair.reason)


def report_leftovers(
    fs: FileSystem, paths: Sequence[str], lock: str, report: Report, why: str = "a crash left it"
) -> None:
    """Report files that the next open removes, unless a process has the lock: then it is making them now."""
    if paths and holder_of(fs, lock)[1]:
        return  # looked at after the files: whoever made one of them has the lock, or has had it
    for path in paths:
        report.note(StateKind.LEFTOVER, path, None, f"{why}: the next open removes it")


def report_repairs(repairs: Iterable[Repair], notes: Collection[str], report: Report) -> None:
    """Report what an open has repaired, by its kind, but for what a reader reports of the files after it.

    That is: messages that are missing before the next segment, and damage that stays where it is. What is no
    loss in one of the files of `notes`, such as a log, is a note: it was never acknowledged.
    """
    read = {(each.path, each.at): number for number, each in enumerate(report.findings)}
    damaged = {each.path for each in report.findings if each.severity == "damage"}
    for repair in repairs:
        kind, path, at = repair.kind, repair.path, repair.kept
        number = read.get((path, at))
        is_read = number is not None and report.findings[number].severity == "damage"
        if is_read and (repair.records or not repair.dropped):
            assert number is not None
            if kind is RepairKind.UNSYNCED:
                found = report.findings[number]
                report.findings[number] = replace(found, severity="torn", kind=kind, lost=0)
            continue
        if kind is RepairKind.CORRUPT and repair.saved_as is None and path in damaged:
            continue
        what = repair.reason
        if kind is RepairKind.KEPT_ASIDE:
            report.damage(kind, path, None, f"{what}, as {repair.saved_as}")
        elif path in notes:
            tell = report.note if repair.records == 0 else report.damage
            tell(kind, path, None, what)
        elif kind is RepairKind.FOREIGN or (kind is RepairKind.DISPLACED and repair.records == 0):
            report.note(kind, path, at, what)
        elif kind in _NEVER_PROMISED or (kind in _TORN_WITHOUT_LOSS and repair.records == 0):
            does = "repairs it" if repair.saved_as is None else "cuts it, and keeps a copy"
            what = f"{what}: the next open {does}"
            report.torn(kind, path, at, what, size=repair.dropped)
        else:
            # Without bytes there it is of a file that is gone.
            place = at if at or repair.dropped else None
            report.damage(kind, path, place, what, repair.records or 0, size=repair.dropped or None)


def report_refusal(refusal: DiskqError | OSError | None, redo: str, report: Report) -> None:
    """Report that the next open fails. `redo` is the path of the redo log.

    Raises UnsupportedFormatError, NotAFileError for the redo log, and OSError of the system.
    """
    if isinstance(refusal, NotAFileError) and refusal.path == redo:
        raise refusal
    if isinstance(refusal, UnsupportedFormatError) or not isinstance(refusal, DiskqError | None):
        raise refusal
    if refusal is not None:
        path = getattr(refusal, "path", "")
        report.damage(StateKind.REFUSED, path, None, f"the next open is refused: {refusal}")


def report_missing_start(missing: Repair | None, report: Report) -> None:
    """Report messages that are missing before the first segment."""
    if missing is not None:
        report.damage(missing.kind, missing.path, None, missing.reason, missing.records or 0)


def report_missing_end(
    end: int, promised: int, path: str, at: int | None, read: Collection[str], report: Report
) -> None:
    """Report messages `end` to `promised` - 1, which were there, without those lost in the files `read`.

    `path` is the last file, and `at` the byte in it.
    """
    counted = sum(each.lost for each in report.findings if each.path in read)
    if lost := max(0, promised - end - counted):
        start = promised - lost
        what = f"messages {start} to {promised - 1} were there, and are gone"
        report.damage(RepairKind.LOST, path, at, what, lost, offset=start)


def settled(look: Callable[[Report], None], progress: Progress | None) -> Report:
    """Return what `look` reports. If something is wrong it looks again, and keeps what both looks found."""
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
            each for each in found.findings if each.severity == "note" or _Trouble.of(each) in stayed
        ]
    return found
