# Repairs a stream. Law: see log.py. What an open repairs is left to an open; index, timeindex and checksums
# of a damaged segment are rebuilt from its records.
#
# go-diskq's readers take offsets from the index, and go from a segment to the next existing one: according to
# its source they step over a gap between two.

from __future__ import annotations

import json

from diskq._native.core.gate import Gate
from diskq._native.stream.codec import TripletFraming
from diskq._native.stream.index_entries import rows_of
from diskq._native.stream.read_ahead import TripletAhead
from diskq.engine.log.recovery_points import read_points
from diskq.engine.stream.audit import AuditTask, audit_segment
from diskq.engine.stream.files import PartitionFiles, StreamFiles
from diskq.engine.stream.groups import ConsumerGroup, groups
from diskq.engine.stream.owner import OwnerFile
from diskq.engine.stream.segment_reader import SegmentReader
from diskq.engine.stream.settings import StreamSettings, read_settings
from diskq.engine.stream.stream import Stream
from diskq.engine.stream.time_summary import forget_from
from diskq.errors import LockedError, UnsupportedFormatError
from diskq.storage.barrier import Barrier, read_small
from diskq.storage.directories import make_directories
from diskq.storage.fs import FileSystem, base_name, join
from diskq.storage.lock import Lock
from diskq.storage.repairs import Repair, RepairKind
from diskq.storage.state import with_rest
from diskq.storage.swap import Swap
from diskq.tools.gaps import Gap, gaps_as, known_gaps, unknown_parts
from diskq.tools.redo_logs import check_log_empty
from diskq.tools.repair.log import FoundMessages, MessageRun, as_repairs, gaps_between, left_out, read_segment
from diskq.tools.repair.rewriting import copied, indexed, sums, triplet_blocks

__all__ = ["repair_stream"]

_LARGEST_SETTINGS = 1024 * 1024
_AT_ONCE = 1024 * 1024


def repair_stream(fs: FileSystem, path: str, *, is_dry: bool, take_over: bool) -> list[Repair]:
    """Repair the stream in `fs`; with `is_dry` only as an open does, and the rest is reported.

    `take_over`: the go-diskq producer that left the owner file does not run any more. Raises LockedError,
    DiskqError, OSError.
    """
    files = StreamFiles(fs, path)
    repairs = _repair_settings(fs, files, take_over)
    with Stream(path, fs=fs, take_over=take_over) as stream:
        repairs += stream.repairs
    check_log_empty(fs, files)
    lock = Lock(fs, files.lock, f"stream {path}", brief=files.redo)
    try:
        owner = OwnerFile(fs, files)
        try:
            rebuild = _StreamRebuild(fs, files)
            repairs += rebuild.run()
            if not is_dry:
                rebuild.carry_out()
        finally:
            Barrier(removals=owner.removals()).execute(fs)
    finally:
        lock.release()
    return repairs + _repair_groups(fs, files)


# --- the settings ---------------------------------------------------------------------------------


def _repair_settings(fs: FileSystem, files: StreamFiles, take_over: bool) -> list[Repair]:
    """Rewrite settings that are not JSON, from what the partitions show. Raises as `repair_stream`."""
    content = read_small(fs, files.settings, _LARGEST_SETTINGS) or b""
    try:
        read_settings(fs, files)
        return []
    except UnsupportedFormatError:
        if _is_json(content):
            raise  # valid JSON: perhaps of a newer program
    make_directories(fs, files.private)
    lock = Lock(fs, files.lock, f"stream {files.path}", brief=files.redo)
    try:
        OwnerFile(fs, files, take_over=take_over)
        is_varuint = _reach(fs, files, varuint=True) > _reach(fs, files, varuint=False)
        count = max(files.partitions(), default=-1) + 1
        settings = StreamSettings(
            partition_count=count or None, encoding="varuint" if is_varuint else "fixed"
        )
        swap = Swap(fs, files.path, files.swap)
        aside = swap.keep(files.settings, join(files.private, base_name(files.settings)))
        swap.install(files.settings, settings.render())
        swap.carry_out()
    finally:
        lock.release()
    reason = "no settings: they are taken from its files, and otherwise from the defaults"
    return [
        Repair(
            path=files.settings,
            kind=RepairKind.REBUILT,
            kept=0,
            dropped=len(content),
            reason=reason,
            saved_as=aside,
        )
    ]


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return False
    except RecursionError:
        return True  # too deep for Python; go-diskq's reader goes deeper
    return True


def _reach(fs: FileSystem, files: StreamFiles, *, varuint: bool) -> int:
    """Return how many bytes of the partitions' first segments look like records."""
    framing = TripletFraming(varuint=varuint)
    reach = 0
    for partition in map(files.partition, files.partitions()):
        for base in partition.bases()[:1]:
            window = read_small(fs, partition.data(base), _AT_ONCE) or b""
            reach += rows_of(framing, window, base, 0).valid_end
    return reach


# --- the groups -----------------------------------------------------------------------------------


def _repair_groups(fs: FileSystem, files: StreamFiles) -> list[Repair]:
    """Repair committed offsets that are damaged or beyond the end. Raises LockedError, OSError."""
    repairs: list[Repair] = []
    points = read_points(fs, files).partitions
    for group in groups(fs, files):
        wrong = {repair.path for repair in group.repairs}
        for partition, offset in group.offsets.items():
            end = points[partition].next_offset if partition in points else 0
            is_beyond = offset is not None and offset >= end
            if files.committed_offset(group.name, partition) not in wrong and not is_beyond:
                continue
            member = ConsumerGroup(fs, files, group.name)
            claim = member.claim(partition)
            if claim is None:
                raise LockedError(
                    f"partition {partition} for group {group.name!r}", "another reader of the group"
                )
            try:
                with member.committed_offset(partition) as committed_offset:
                    repairs += committed_offset.repairs
                    if is_beyond:
                        last = end - 1 if end else None
                        reason = f"it says {offset}, and {'none' if last is None else last} is the last one"
                        repairs.append(
                            Repair(
                                path=committed_offset.path,
                                kind=RepairKind.REBUILT,
                                kept=0,
                                dropped=0,
                                reason=reason,
                            )
                        )
                        committed_offset.commit(last, seek=True)
            finally:
                claim.release()
    return repairs


# --- the segments ---------------------------------------------------------------------------------


class _StreamRebuild:
    """The segments that are to be rewritten."""

    def __init__(self, fs: FileSystem, files: StreamFiles) -> None:
        self._fs = fs
        self._files = files
        settings = read_settings(fs, files)
        self._framing = TripletFraming(varuint=settings is not None and settings.encoding == "varuint")
        self._swap = Swap(fs, files.path, files.swap)
        self._changed: dict[int, int] = {}  # by partition: the first segment that is rewritten
        self._renamed: set[int] = set()  # partitions of which a segment is to have another name
        self._repairs: list[Repair] = []

    def run(self) -> list[Repair]:
        noted = read_points(self._fs, self._files)
        points = noted.partitions
        gaps = []
        for partition in self._files.partitions():
            if partition in points:
                files = self._files.partition(partition)
                gaps += self._look_over(files, points[partition].next_offset)
        known = known_gaps(self._fs, self._files)
        news = [part for gap in gaps for part in unknown_parts(gap, known)]
        if news:
            self._swap.install(self._files.gaps, gaps_as([*known, *news]))
            if not self._repairs:
                self._repairs += [self._noted(gap) for gap in news]
        if self._renamed:
            rest = noted.with_other_starts(self._renamed).render()
            self._swap.install(self._files.state, with_rest(self._fs, self._files, rest))
        return self._repairs

    def carry_out(self) -> None:
        if not self._swap:
            return
        for partition, base in self._changed.items():
            forget_from(self._fs, self._files.partition(partition), base)
        self._swap.carry_out()

    def _noted(self, gap: Gap) -> Repair:
        which = f"messages {gap.start} to {gap.end - 1} of partition {gap.partition}"
        reason = f"{which} are in no segment: noted as gone"
        return Repair(
            path=self._files.gaps,
            kind=RepairKind.LOST,
            kept=0,
            dropped=0,
            reason=reason,
            records=gap.end - gap.start,
        )

    def _look_over(self, files: PartitionFiles, next_offset: int) -> list[Gap]:
        """Decide on the segments of a partition. Returns the offsets that no message has."""
        bases = files.bases()
        founds = []
        for number, base in enumerate(bases):
            is_last = number == len(bases) - 1
            found = self._look_at(files, base, next_offset if is_last else bases[number + 1])
            founds.append(found)
            is_good = found.is_whole and (is_last or found.runs) and self._problem(files, found) is None
            if not is_good:
                self._write_anew(files, found, next_offset if is_last else None)
        return gaps_between(files.index, founds, next_offset)

    def _look_at(self, files: PartitionFiles, base: int, known_end: int) -> FoundMessages:
        ahead = TripletAhead(self._fs, self._framing, Gate())
        reader = SegmentReader(self._fs, ahead, self._framing, files, base)
        try:
            return read_segment(reader, ahead, known_end)
        finally:
            reader.close()

    def _problem(self, files: PartitionFiles, found: FoundMessages) -> str | None:
        """Return what is wrong with a segment that a reader can read completely; None: nothing."""
        end = found.runs[-1].end if found.runs else found.base
        audit = audit_segment(self._files.path, AuditTask(files.index, found.base, end), self._fs)
        return None if audit is None else audit.problem

    def _write_anew(self, files: PartitionFiles, found: FoundMessages, next_offset: int | None) -> None:
        """Make its runs segments. `next_offset` is given for the last one, where more may be missing."""
        swap, framing = self._swap, self._framing
        path = files.data(found.base)
        self._changed.setdefault(files.index, found.base)
        asides = left_out(swap, path, files.kept(path), found)
        kept = [
            swap.keep(each, files.kept(each)) for each in files.segment(found.base)[1:] if self._has(each)
        ]
        losses = as_repairs(path, found.losses, asides)
        if not losses:
            aside = next(iter([*asides.values(), *kept]), None)
            problem = self._problem(files, found) or "it holds more messages than offsets"
            losses = [
                Repair(
                    path=path,
                    kind=RepairKind.REBUILT,
                    kept=found.size,
                    dropped=0,
                    reason=problem,
                    saved_as=aside,
                )
            ]
        self._repairs += losses
        runs = list(found.runs)
        if next_offset is not None and (not runs or runs[-1].end != next_offset):
            runs.append(MessageRun(next_offset, next_offset, []))
        for number, run in enumerate(runs):
            data, index, timeindex = files.segment(run.first)
            is_active = next_offset is not None and number == len(runs) - 1
            if not (found.is_whole and run.first == found.base):
                swap.install(data, copied(path, run.pieces) if run.pieces else b"")
            swap.install(index, indexed(path, run.pieces, framing, run.first, by_time=False))
            swap.install(timeindex, indexed(path, run.pieces, framing, run.first, by_time=True))
            checksum_file = sums(path, run.pieces, triplet_blocks(framing), is_sealed=not is_active)
            swap.install(files.checksum_file(run.first), checksum_file)
        if all(run.first != found.base for run in runs):
            for each in (*files.segment(found.base), *files.private_files(found.base)):
                swap.remove(each)
            self._renamed.add(files.index)

    def _has(self, path: str) -> bool:
        return bool(self._fs.size_of(path))
