# Inspecting a store's files without opening it. Law: nothing is locked, made or changed; faults of a file are
# reported, and the other files are inspected all the same.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from diskq._native.priority.audit import CommandTally
from diskq._native.priority.codec import ADD, CREATE, DELETE, FILE_HEAD, scan
from diskq._native.priority.state_codec import METADATA_SIZE, decode_metadata
from diskq.engine.priority.command_log import SegmentScan, go_over_segment, has_records_after
from diskq.engine.priority.files import StoreFiles
from diskq.engine.priority.snapshot import BadSnapshot, load_snapshot
from diskq.engine.priority.state import State, UnknownImplementation
from diskq.storage.barrier import opened, read_small
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem

__all__ = [
    "LoggedCommand",
    "SegmentReport",
    "SnapshotReport",
    "StoreReport",
    "inspect_store",
    "read_commands",
]

_WINDOW = 1024 * 1024
# Attempts, if new snapshots come in between.
_MOST_LOOKS = 10
_KINDS = {CREATE: "create", DELETE: "delete", ADD: "add"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReport:
    """A segment's file. `trouble` says what is wrong at byte `end`, with record `next_lsn`; or None."""

    path: str
    lsn: int
    """The number of its first record."""
    next_lsn: int
    size: int
    end: int
    """The byte after its last whole record."""
    layout: str
    """"document" or "aligned" (terms have 8 bytes; also if nothing is padded)."""
    is_covered: bool
    """True if the snapshot covers it: it is no longer needed."""
    trouble: str | None
    """In words, for people."""
    has_more: bool
    """True if whole records follow the trouble."""
    is_blank: bool = False
    """True if the trouble is that its head was not written."""
    is_refused: bool = False
    """True if no crash leaves that, and an open refuses it: another version's head, an invalid command."""

    @property
    def records(self) -> int:
        return self.next_lsn - self.lsn


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReport:
    """The snapshot's file."""

    path: str
    size: int
    lsn: int = -1
    """The last record that it covers."""
    term: int = 0
    layout: str = ""
    queues: dict[str, int] = field(default_factory=dict)
    """How many records each holds."""
    trouble: str | None = None
    """What is wrong, in words for people; or None."""
    is_refused: bool = False
    """True if another version wrote it: an open refuses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """The contents of a store's directory."""

    root: str
    metadata_trouble: str | None
    term: int
    snapshot: SnapshotReport | None
    segments: tuple[SegmentReport, ...]
    gaps: tuple[int, ...]
    """Numbers of records that should follow a segment, and are in no segment."""
    messages: int
    """How many messages the snapshot and the commands after it leave, up to the first fault."""

    @property
    def is_sound(self) -> bool:
        """True if nothing is torn, damaged or missing."""
        snapshot_trouble = self.snapshot is not None and self.snapshot.trouble is not None
        torn = any(each.trouble is not None for each in self.segments if not each.is_covered)
        return not (self.metadata_trouble or snapshot_trouble or torn or self.gaps)


def inspect_store(
    path: AnyPath, *, fs: FileSystem | None = None, on_bytes: Callable[[int], object] | None = None
) -> StoreReport:
    """Inspect the store at `path`, which may be in use: the report is then of some moment's files.

    `on_bytes` is called with numbers of bytes read. Raises OSError; FileNotFoundError if there is no store.
    """
    disk = fs or OsFileSystem()
    files = StoreFiles.existing(disk, path)
    for _ in range(_MOST_LOOKS):
        before = disk.stamp_of(files.snapshot), files.segments()
        with contextlib.suppress(FileNotFoundError):
            return _inspected(disk, files, on_bytes)
        if (disk.stamp_of(files.snapshot), files.segments()) == before:
            break
    return _inspected(disk, files, on_bytes)


def _inspected(disk: FileSystem, files: StoreFiles, on_bytes: Callable[[int], object] | None) -> StoreReport:
    """Inspect once. Raises FileNotFoundError also if a segment is removed meanwhile, after a new snapshot."""
    term, trouble = _metadata(disk, files)
    snapshot, state = _snapshot(disk, files)
    if snapshot is not None and on_bytes is not None:
        on_bytes(snapshot.size)
    covered = -1 if snapshot is None else snapshot.lsn
    tally = CommandTally({queue.encoded_name: queue.table for queue in state.queues.values()})
    bases = files.segments()
    reports = []
    gaps = [] if not bases or bases[0] <= covered + 1 else [covered + 1]
    is_unbroken = not gaps
    for number, base in enumerate(bases):
        following = bases[number + 1] if number + 1 < len(bases) else None
        is_covered = following is not None and following <= covered + 1
        counted = tally if is_unbroken and not is_covered else CommandTally({})
        scanned = _segment(disk, files, base, counted, max(0, covered + 1 - base), on_bytes)
        next_lsn = base + scanned.records
        if following is not None and not is_covered and next_lsn != following:
            gaps.append(next_lsn)
        if not is_covered and (following != next_lsn or scanned.trouble is not None):
            is_unbroken = False
        reports.append(_report(disk, files, base, scanned, is_covered))
    return StoreReport(
        root=files.root,
        metadata_trouble=trouble,
        term=term,
        snapshot=snapshot,
        segments=tuple(reports),
        gaps=tuple(gaps),
        messages=tally.stored,
    )


def _metadata(fs: FileSystem, files: StoreFiles) -> tuple[int, str | None]:
    content = read_small(fs, files.metadata, METADATA_SIZE)
    if not content:
        return 1, None  # it is written by the next open
    try:
        metadata = decode_metadata(content)
    except ValueError as version:
        return 1, f"version {version}"
    return (1, "no metadata that a writer wrote") if metadata is None else (metadata.term, None)


def _snapshot(fs: FileSystem, files: StoreFiles) -> tuple[SnapshotReport | None, State]:
    """Return the snapshot's report, and its state if it can be believed."""
    state, is_refused = State(), False
    size = fs.size_of(files.snapshot) or 0
    try:
        read = load_snapshot(fs, files.snapshot, state)
        if read is None:
            return None, state
        head, _ = read
        report = SnapshotReport(
            path=files.snapshot,
            size=size,
            lsn=head.lsn,
            term=head.term,
            layout=_layout(head.is_document),
            queues={name: queue.table.stored for name, queue in state.queues.items()},
        )
        return report, state
    except BadSnapshot as bad:
        trouble = f"{bad.args[1]}, at byte {bad.args[0]}"
    except UnknownImplementation as unknown:
        trouble, is_refused = f"queue implementation {unknown.args[0]}", True
    found = SnapshotReport(path=files.snapshot, size=size, trouble=trouble, is_refused=is_refused)
    return found, State()


def _layout(is_document: bool) -> str:
    return "document" if is_document else "aligned"


def _segment(
    fs: FileSystem,
    files: StoreFiles,
    base: int,
    tally: CommandTally,
    skip: int,
    on_bytes: Callable[[int], object] | None,
) -> SegmentScan:
    with opened(fs, files.segment(base)) as handle:
        return go_over_segment(fs, handle, tally, skip, on_bytes)


def _report(
    fs: FileSystem, files: StoreFiles, base: int, scanned: SegmentScan, is_covered: bool
) -> SegmentReport:
    trouble = scanned.trouble
    if scanned.is_blank and scanned.size:
        trouble = "its head was not written"
    elif scanned.version is not None:
        trouble = f"version {scanned.version}"
    elif scanned.is_alien:
        trouble = "no segment's head"
    has_more = False
    if trouble is not None and not scanned.is_blank:
        with opened(fs, files.segment(base)) as handle:
            has_more = has_records_after(fs, handle, scanned.end)
    return SegmentReport(
        path=files.segment(base),
        lsn=base,
        next_lsn=base + scanned.records,
        size=scanned.size,
        end=scanned.end,
        layout=_layout(scanned.is_narrow),
        is_covered=is_covered,
        trouble=trouble,
        has_more=has_more,
        is_blank=scanned.is_blank and scanned.size > 0,
        is_refused=scanned.is_bad
        or scanned.version is not None
        or (scanned.is_alien and not scanned.is_torn),
    )


# --- one command after the other --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCommand:
    """A command in the log."""

    lsn: int
    offset: int
    """The byte at which its record begins."""
    term: int
    kind: str
    """"create", "delete", "add" or "remove"."""
    queue: str
    priority: int | None = None
    """Of an "add"."""
    body: bytes | None = None
    id: int | None = None
    """Of a "remove"."""


def read_commands(path: AnyPath, lsn: int, *, fs: FileSystem | None = None) -> Iterator[LoggedCommand]:
    """Yield the commands of the segment whose first record is `lsn`, up to its end or the first damage.

    Raises OSError.
    """
    disk = fs or OsFileSystem()
    handle = disk.open(StoreFiles.existing(disk, path).segment(lsn))
    try:
        at, size, width = len(FILE_HEAD), disk.size(handle), _WINDOW
        window, start = disk.pread(handle, width, at), at
        while True:
            found = scan(memoryview(window)[at - start :], size - at, most=1)
            if found.records:
                yield _logged(lsn, at, found.term, *found.commands[0])
                lsn, at = lsn + 1, at + found.end
            elif found.stop == "MORE":
                width = width * 2 if at == start else _WINDOW
                window, start = disk.pread(handle, width, at), at
            else:
                return
    finally:
        disk.close(handle)


def _logged(lsn: int, offset: int, term: int, kind: int, name: bytes, *more: object) -> LoggedCommand:
    queue = name.decode("ascii")
    if kind == ADD:
        priority, body = more
        assert isinstance(priority, int)
        assert isinstance(body, bytes)
        return LoggedCommand(
            lsn=lsn, offset=offset, term=term, kind="add", queue=queue, priority=priority, body=body
        )
    if kind in _KINDS:
        return LoggedCommand(lsn=lsn, offset=offset, term=term, kind=_KINDS[kind], queue=queue)
    (number,) = more
    assert isinstance(number, int)
    return LoggedCommand(lsn=lsn, offset=offset, term=term, kind="remove", queue=queue, id=number)
