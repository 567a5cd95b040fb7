# The state that a killed process, or a power cut, left, as the next open finds it. Law: nothing is changed;
# what the open would write, report or append again is reported, and the rest of a look reads the files as
# they are after that.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from diskq.storage.fs import FileSystem
from diskq.storage.lock import Holder, may_be_open, read_holder
from diskq.storage.log.entries import Staging
from diskq.storage.redo_log import redo_path
from diskq.storage.redo_view import LoggedFiles, RedoLook
from diskq.storage.repairs import RepairKind
from diskq.storage.write_ahead_log import (
    Replayed,
    holds_nothing,
    kept_aside_since,
    read_wal,
    view_after_replay,
)
from diskq.storage.write_ahead_logs import was_restarted
from diskq.tools.findings import StateKind
from diskq.tools.report import Report

__all__ = ["as_put_back", "count_displaced", "report_redo", "was_killed"]


def report_redo(
    fs: FileSystem,
    files: LoggedFiles,
    look: RedoLook | None,
    counted: Callable[[bytes], int],
    report: Report,
) -> FileSystem:
    """Return the files as they are after the replay of the redo log, and add to `report` what it would do.

    `look` is what was found of the log; `counted` returns how many messages some records are. Raises OSError.
    """
    unfinished = redo_path(files.redo)
    if fs.size_of(unfinished) is not None and not may_be_open(fs, files.lock):
        what = "a crash left it: the next open removes it"
        report.note(StateKind.LEFTOVER, unfinished, None, what)
    if look is None:
        return fs
    for repair in look.redone.repairs:
        if repair.records == 0:
            report.note(repair.kind, repair.path, None, repair.reason)
        else:
            report.damage(repair.kind, repair.path, None, repair.reason, repair.records or 0)
    for displaced in look.redone.displaced:
        count = counted(displaced.part.content)
        report.messages += count
        what = f"{count} messages of {displaced.path} are in the redo log"
        why = "another program may have written since: the next open appends them at the end"
        report.note(RepairKind.DISPLACED, files.redo, None, f"{what}, and {why}")
    for its in look.restored:
        if its.beside:
            count = counted(its.content) - counted(its.content[: len(its.content) - its.missing])
            what = f"{count} messages ({its.missing} bytes) are in the redo log, not yet in {its.path}"
            report.note(StateKind.WAITING, files.redo, None, f"{what}: the next open puts them there")
    return look.fs


def count_displaced(look: RedoLook | None, counted: Callable[[bytes], int], report: Report) -> None:
    """Do not count messages as lost that the redo log has and the next open appends again.

    For the findings so far; `look` and `counted` as `report_redo`.
    """
    for number, finding in enumerate(report.findings):
        lost = finding.lost
        for displaced in () if look is None else look.redone.displaced:
            lost = displaced.lost_without(finding.path, finding.at or 0, lost, counted)
        report.findings[number] = replace(finding, lost=lost)


@contextmanager
def as_put_back(
    fs: FileSystem,
    lock: str,
    stagings: Mapping[int, Staging],
    counted: Callable[[bytes], int],
    report: Report,
    named: Sequence[int] = (),
) -> Iterator[FileSystem]:
    """Return the files with the contents of write-ahead logs in their places, and add to `report` what the
    open would report of that.

    `counted` returns how many messages some records are. `named` are the write-ahead logs that another file
    than the lock's says are in use, which a peer may empty. If a process has the lock, or no write-ahead log
    holds anything, the files themselves are returned. Raises OSError.
    """
    holder, staged = _killed(fs, lock, stagings, named)
    if staged is None:
        yield fs
        return
    wals = (its.path for its in stagings.values())
    is_restarted = was_restarted(fs, read_holder(fs, lock), wals)
    view, replayed = view_after_replay(fs, stagings, was_restarted=is_restarted, staged=staged)
    try:
        if holder is not None and (since := holder.recovering_since) and not is_restarted:
            for repair in kept_aside_since(fs, since, stagings.values()):
                report.damage(repair.kind, repair.path, None, f"{repair.reason}, as {repair.saved_as}")
        for number, done in replayed.items():
            _report_replayed(fs, stagings[number], done, counted, report)
        yield view
    finally:
        view.close_all()


def was_killed(fs: FileSystem, lock: str, stagings: Mapping[int, Staging], named: Sequence[int] = ()) -> bool:
    """True if the last process with the lock died, and none opened it since. Arguments as `as_put_back`."""
    return _killed(fs, lock, stagings, named)[1] is not None


def _killed(
    fs: FileSystem, lock: str, stagings: Mapping[int, Staging], named: Sequence[int]
) -> tuple[Holder | None, Sequence[int] | None]:
    """Return the process that was killed, and the write-ahead logs that it used; None if none was."""
    holder = read_holder(fs, lock)
    staged = named if holder is None or not holder.pid else holder.staged
    is_recovering = holder is not None and holder.recovering_since > 0
    is_killed = staged or is_recovering or not all(holds_nothing(fs, its.path) for its in stagings.values())
    return holder, staged if is_killed and not may_be_open(fs, lock) else None


def _report_replayed(
    fs: FileSystem, staging: Staging, done: Replayed, counted: Callable[[bytes], int], report: Report
) -> None:
    for repair in done.repairs:
        report.damage(repair.kind, repair.path, None, repair.reason, repair.records or 0)
    if done.displaced is not None:
        count = counted(done.displaced.part.content)
        report.messages += count
        what = f"{count} messages wait here, but their place is taken: the next open appends them at the end"
        report.note(RepairKind.DISPLACED, staging.path, None, what)
        return
    waiting = read_wal(fs, staging.path)
    size = None if waiting is None else fs.size_of(staging.data(waiting.file))
    if waiting is None or size is None or not waiting.position <= size < waiting.end:
        return
    count = counted(waiting.content[size - waiting.position :])
    what = f"{count} messages wait here: the next open writes them"
    report.note(StateKind.WAITING, staging.path, None, what)
