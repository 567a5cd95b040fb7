# What waits in the logs of a store that no process has open. Law: these are notes. The next open puts it into
# the files, or appends it again, and what that shows is judged as everything else.

from __future__ import annotations

from collections.abc import Callable, Iterable

from diskq.storage.barrier import opened
from diskq.storage.checksums import rows_before
from diskq.storage.fs import FileSystem
from diskq.storage.lock import may_be_open
from diskq.storage.log.entries import Staging
from diskq.storage.log.format import holds_nothing, read_wal, redo_path
from diskq.storage.log.reader_replay import LoggedFiles
from diskq.storage.log.replay import FromLog, rows_to_add
from diskq.storage.log.restored import RestoredFiles
from diskq.storage.numbers import UNBOUNDED
from diskq.storage.overlay import OverlayFS
from diskq.storage.repairs import RepairKind
from diskq.storage.state import StateFiles, read_state
from diskq.tools.findings import StateKind
from diskq.tools.report import Report

__all__ = ["checksummed_size", "report_waiting", "was_killed"]


def report_waiting(
    fs: FileSystem,
    files: LoggedFiles,
    found: Iterable[FromLog],
    stagings: Iterable[Staging],
    counted: Callable[[bytes], int],
    report: Report,
) -> None:
    """Report messages in the redo log, where a replay `found` them, and in write-ahead logs.

    `counted` returns how many messages some records are. Raises OSError.
    """
    unfinished = redo_path(files.redo)
    if fs.size_of(unfinished) is not None and not may_be_open(fs, files.lock):
        what = "a crash left it: the next open removes it"
        report.note(StateKind.LEFTOVER, unfinished, None, what)
    for its in found:
        if its.is_displaced:
            what = f"{its.records} messages of {its.path} are in the redo log"
            why = "another program may have written since: the next open appends them at the end"
            report.note(RepairKind.DISPLACED, files.redo, None, f"{what}, and {why}")
        elif its.size:
            what = f"{its.records} messages ({its.size} bytes) are in the redo log, not yet in {its.path}"
            report.note(StateKind.WAITING, files.redo, None, f"{what}: the next open puts them there")
    for staging in stagings:
        if (waiting := read_wal(fs, staging.path)) is None:
            continue
        size = fs.size_of(path := staging.data(waiting.file))
        if size is None or size < waiting.position:
            continue  # its open reports that
        with opened(fs, path) as handle:
            there = fs.pread(handle, len(waiting.content), waiting.position)
        if not waiting.content.startswith(there):
            what = f"{counted(waiting.content)} messages wait here, but their place is taken"
            report.note(
                RepairKind.DISPLACED, staging.path, None, f"{what}: the next open appends them at the end"
            )
        elif len(there) < len(waiting.content):
            what = f"{counted(waiting.content[len(there) :])} messages wait here: the next open writes them"
            report.note(StateKind.WAITING, staging.path, None, what)


def checksummed_size(
    size: int, look: FileSystem, below: FileSystem, found: Iterable[FromLog], staging: Staging, number: int
) -> int:
    """Return how many of `size` bytes of a data file were covered by checksums before an open in memory.

    Those of the bytes that it believed are added by it. `look` are the files after the open, `below` those
    before, and `found` is what the redo log had. Raises OSError.
    """
    checksum_file = staging.checksum_file(number)
    if not (isinstance(look, OverlayFS | RestoredFiles) and look.is_changed(checksum_file)):
        return size
    _, end = rows_before(below, checksum_file, UNBOUNDED)
    path = staging.data(number)
    logged = (its.checksummed for its in found if its.path == path)
    staged = (row.end for row in rows_to_add(below, staging).get(number, ()))
    return min(size, max([end, *logged, *staged]))


def was_killed(fs: FileSystem, files: StateFiles, stagings: Iterable[Staging]) -> bool:
    """True if the last process that had the store died, and none opened it since."""
    left = read_state(fs, files)
    is_named = left is not None and bool(left.staged or left.recovering_since)
    is_killed = is_named or not all(holds_nothing(fs, its.path) for its in stagings)
    return is_killed and not may_be_open(fs, files.lock)
