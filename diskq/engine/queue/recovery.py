# Opening an NSQ queue, in whatever state it is. Law: opening never refuses because of a crash, never loses a
# whole message, never invents one, and reports what it did.
#
# The metadata is a hint. What it says is checked against the files; if it is missing, garbled or points past
# them, the files decide. After the position it names as written comes what was written after the last full
# barrier. How much of it is believed, log/recovery.py decides:
#
#   framing is believed   The tail is cut where the last whole record ends.
#   only checksums are    The tail is cut at the first byte that no checksum verifies.
#
# A peer that was first after a power cut has no checksums, so its framing is believed; but its depth shows
# what is not its own: `_cut_uncounted`. Whatever is cut is kept aside: log/recovery.py.
#
# A look (`survey`) is the same recovery, of an overlay: what it changes there is in memory alone.

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from diskq._native.core.append_buffer import BLOCK_SIZE
from diskq._native.core.framing import Framing
from diskq._native.core.gate import Gate
from diskq._native.core.read_ahead import ReadAhead
from diskq._native.queue.codec import count
from diskq.engine.log.recovery import UNSYNCED, UNWRITTEN, OpenRepairs, QueueUse, Trust
from diskq.engine.queue.files import DamagedFiles, QueueFiles, QueueMetadata, QueuePosition, Stretch
from diskq.engine.queue.overwritten import find_overwritten
from diskq.storage.append_file import ChecksumFile
from diskq.storage.barrier import Barrier, PendingSyncs, let_go, opened, write_all
from diskq.storage.block_reader import BlockReader, Loss
from diskq.storage.checksums import (
    LEAST_ZEROS,
    Row,
    Rows,
    VerifiedPrefix,
    checksummed,
    rows_after,
    rows_before,
    sealed_end,
    verified_prefix,
    zeros_in,
)
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem
from diskq.storage.log.entries import DATA, Displaced, lost_without
from diskq.storage.log.format import read_redo
from diskq.storage.log.replay import RedoSource, missing_size, rows_to_add, view_with_rows
from diskq.storage.numbers import NO_NUMBER
from diskq.storage.repairs import Repair, RepairKind

__all__ = ["QueueRecovery", "Recovered", "count_records", "redo_source", "survey"]

# A peer's count is believed for a longer backlog than this: counting it would delay the open.
_COUNT_UP_TO = 256 * 1024 * 1024
_CHUNK = 256 * 1024
_MANY = 2**31
_ZEROS_AFTER = "zeros after the last message that was written"


@dataclass(slots=True)
class Recovered:
    """A queue as it was found: `Queue` goes on from here."""

    read: QueuePosition
    write: QueuePosition
    depth: int
    uncounted: tuple[Stretch, ...]
    """Where messages are lost to damage that `depth` has not, since they were looked at to count them."""
    sizes: dict[int, int]
    """The bytes of each data file that is not consumed, ascending by number; the last may be written to."""
    repairs: list[Repair] = field(default_factory=list)
    is_ours: bool = False
    """True if diskq wrote the metadata, and no peer wrote after it."""
    reported: list[Repair] = field(default_factory=list)
    """Those of `repairs` that were logged at once, because their traces are gone now."""
    unchecked: set[int] = field(default_factory=set)
    """Files whose checksums are of other bytes, and were removed."""
    added: dict[int, list[Row]] = field(default_factory=dict)
    """For a look, by file: checksums that the open adds to the existing ones, from the write-ahead log or
    computed.
    """
    moved: dict[int, bytes] = field(default_factory=dict)
    """For a look, by number: files that the open makes, of messages that a peer has left whole."""


def survey(
    fs: FileSystem, files: QueueFiles, framing: Framing, any_size: Framing, *, is_free: bool = False
) -> Recovered:
    """Return what `QueueRecovery` would find, and where it would let the queue go on; nothing is changed.

    `is_free`: certainly no process has the queue, so that its write-ahead log is complete.
    `repairs` contains only lost messages, and useless metadata. `depth` is unknown if the metadata does not
    contain it. Raises OSError.
    """
    use = QueueUse.seen(fs, files, files.wal, is_free=is_free)
    with view_with_rows(fs, files.staging, rows_to_add(fs, files.staging)) as view:
        view.make_directory(files.private)  # as the open does
        acts = OpenRepairs(view, PendingSyncs(), is_overlay=True)
        there = QueueFiles(view, files.directory, files.name)
        recovery = QueueRecovery(view, there, framing, any_size, use, acts, count_up_to=-1)
        found = recovery.run()
        recovery.settle(found)
        for number in found.sizes.keys() - found.unchecked:
            checksum_file = files.checksum_file(number)
            if view.is_changed(checksum_file):
                _, covered = rows_before(fs, checksum_file, found.sizes[number])
                found.added[number] = rows_after(view, checksum_file, covered)
    found.repairs = [repair for repair in found.repairs if _is_loss(repair, files)]
    return found


def _is_loss(repair: Repair, files: QueueFiles) -> bool:
    """False for what was never acknowledged as durable, or is another program's."""
    if repair.kind in (RepairKind.UNSYNCED, RepairKind.FOREIGN):
        return False
    return repair.records != 0 or not repair.dropped or repair.path == files.metadata


class QueueRecovery:
    """One recovery of a queue."""

    def __init__(
        self,
        fs: FileSystem,
        files: QueueFiles,
        framing: Framing,
        any_size: Framing,
        use: QueueUse,
        acts: OpenRepairs,
        *,
        log_repair: Callable[[Repair], None] = lambda _: None,
        displaced: Sequence[Displaced] = (),
        count_up_to: int = _COUNT_UP_TO,
    ) -> None:
        """`any_size` is the framing for what diskq certainly wrote, under whatever limits.

        `log_repair` logs a repair whose traces the next open will not find; messages that are `displaced` are
        not counted in it, as the open appends them again. A peer's count is believed for a backlog of more
        than `count_up_to` bytes.
        """
        self.fs = fs
        self.files = files
        self.any_size = any_size
        self.use = use
        self.acts = acts
        self.log_repair = log_repair
        self.displaced = displaced
        self.count_up_to = count_up_to
        self.repairs = acts.made
        self.has_torn_tail = False
        self.has_uncounted = False  # what is lost on the way was not counted
        self.gone_after = 0
        """Messages after the position that metadata names as written, in a file that is shorter."""
        self.reported: list[Repair] = []
        self.unchecked: set[int] = set()
        self.moved: dict[int, bytes] = {}
        self.to_cover: tuple[int, int] | None = None
        self.ahead = ReadAhead(fs, framing, Gate(), any_size)

    def run(self) -> Recovered:
        """Find out where the queue is, repair its tail, and leave the rest to the first barrier.

        `settle` comes next, after the repairs were reported. Raises OSError, and CorruptionError if the open
        is strict and more than a torn tail was found.
        """
        # The metadata first: if the owner is at work, the files are then as far as it says, or further.
        content = self.files.read_metadata()
        numbers = self.files.numbers()
        self.sizes = {number: self.fs.size_of(self.files.data(number)) or 0 for number in numbers}
        metadata = self._metadata(content)
        is_ours = metadata is not None and metadata.is_ours
        is_foreign = metadata is not None and not is_ours
        trust = self.use.trust(is_foreign=is_foreign)
        short = [] if trust is Trust.POWER_CUT else self._short(metadata)
        if metadata is not None and is_foreign:
            self._restore_overwritten(metadata)
            self._forget_stale_checksums()
            self.acts.sync_cleared(self.files.wal)
            self._keep_ours()
        read, known, depth = self._start(metadata)
        count = len(self.repairs)
        if trust is not Trust.POWER_CUT:  # which takes files, and all that comes after them is set aside
            self._report_missing_later(metadata)
        later = sum(repair.records or 0 for repair in self.repairs[count:])
        if is_foreign and depth is not None:
            self._cut_uncounted(read, known, depth)
        tail = self._cut_tail(trust, read, known, has_metadata=metadata is not None)
        self._report_short(short)
        write = self._write_position(known)
        read = min(read, write)
        uncounted = metadata.uncounted if metadata is not None else ()
        counted_from = known
        if depth is not None:
            depth += tail
        if depth is None or (is_foreign and self._backlog(read, write) <= self.count_up_to):
            depth, counted_from, uncounted = self._counted(read), read, ()
        if self.has_uncounted and counted_from < write:
            uncounted += ((counted_from, write),)
        if metadata is not None and is_ours:
            expected = metadata.depth + (tail if known == metadata.write else self.gone_after)
            self._add_lost_count(expected - depth + later, self.repairs[:count])
        self._join_reports()
        leftovers = self.files.leftovers(numbers, range(read.file, write.file))
        self.acts.pending_syncs.removals += leftovers
        return Recovered(
            read,
            write,
            depth,
            uncounted,
            self.sizes,
            self.repairs,
            is_ours,
            reported=self.reported,
            unchecked=self.unchecked,
            moved=self.moved,
        )

    def settle(self, found: Recovered) -> int:
        """Make the last file's checksums agree with its data. Returns the size of their entries, in bytes.

        Checksums of messages that are gone are the only trace of them, so this is done once they were
        reported. Raises OSError.
        """
        if self.to_cover is not None:
            (number, start), self.to_cover = self.to_cover, None
            self._cover(number, start)
        sums = self._sums(found.write.file)
        rows, covered = rows_before(self.fs, sums, found.write.byte)
        if sums is not None and rows_after(self.fs, sums, found.write.byte):
            self.acts.cut_checksums(sums, rows, covered)
        return rows

    def _start(self, metadata: QueueMetadata | None) -> tuple[QueuePosition, QueuePosition, int | None]:
        """Return where the queue is read, up to where it is known to be written, and how many lie between.

        Reports files that are missing, and drops those that are consumed. The count is None if it is unknown.
        """
        if metadata is None:
            start = QueuePosition(min(self.sizes, default=0), 0)
            return start, start, None
        read, known, depth = self._placed(metadata)
        if self._report_missing(metadata):
            depth = None
        self._drop_consumed(read if metadata.is_ours else metadata.read, is_ours=metadata.is_ours)
        return read, known, depth

    def _cut_tail(
        self, trust: Trust, read: QueuePosition, known: QueuePosition, *, has_metadata: bool
    ) -> int:
        """Cut what is not trusted after `known`, and return how many messages lie between."""
        if trust is Trust.POWER_CUT:
            return self._cut_at_checksums(known, prefix=has_metadata)
        is_ours = trust is not Trust.PEER_WROTE
        if is_ours or self.use.was_restarted or not (self.use.was_closed or self.use.was_unlogged):
            self._cut_zeros(read.file, known, is_ours=is_ours)
        if is_ours and not (self.use.was_closed or self.use.was_unlogged):
            self._cut_unwritten(known)
        return self._cut_at_framing(known, is_ours=is_ours)

    @cached_property
    def _checksum_files(self) -> list[int]:
        """The numbers of the data files that have, or had, checksum files, as they were found, ascending."""
        return self.files.checksum_files()

    @property
    def _newest(self) -> int:
        """The number of the last data file; -1 if there is none. `sizes` is in ascending order."""
        return next(reversed(self.sizes), -1)

    def _sums(self, number: int) -> str | None:
        """Return the checksum file of a data file; None if it is of other bytes."""
        return None if number in self.unchecked else self.files.checksum_file(number)

    # --- what the metadata says, against the files ------------------------------------------------

    def _metadata(self, content: bytes | None) -> QueueMetadata | None:
        if content is None:
            if self.sizes:
                reason = "metadata is missing: positions taken from the data"
                self._report(self.files.metadata, RepairKind.REBUILT, 0, 0, reason)
            return None
        metadata = QueueMetadata.parse(content)
        if metadata is None:
            reason = "metadata is unreadable: positions taken from the data"
            kind = RepairKind.CORRUPT if content.strip(b"\0") else RepairKind.TORN
            self._report(self.files.metadata, kind, 0, len(content), reason)
        return metadata

    def _placed(self, metadata: QueueMetadata) -> tuple[QueuePosition, QueuePosition, int | None]:
        """Return where to read, the end of what the metadata covers, and its depth if that still holds."""
        read, write, depth = metadata.read, metadata.write, metadata.depth
        if (size := self.sizes.get(write.file)) is not None and size < write.byte:
            # The file's end may lie inside a message: look at all of it that is not consumed.
            if self.use.was_killed:
                self.gone_after = checksummed(self.fs, self.files.checksum_file(write.file), write.byte)[1]
            reason = f"metadata names byte {write.byte} as written, the file ends here"
            self._report(self.files.data(write.file), RepairKind.LOST, size, write.byte - size, reason, None)
            write = QueuePosition(
                write.file, read.byte if read.file == write.file and read.byte <= size else 0
            )
            depth = -1
        later = [number for number in self.sizes if number > read.file]
        onward = QueuePosition(later[0], 0) if later else QueuePosition(write.file, 0)
        if read.file not in self.sizes:
            if read.file != write.file or read.byte:
                # On a full disk a consumed file may be removed before the new read position is recorded.
                depth = -1
            read = onward
        elif (size := self.sizes[read.file]) < read.byte:
            if read.file < write.file:
                lost = max(0, checksummed(self.fs, self.files.checksum_file(read.file))[0] - read.byte)
                reason = f"metadata names this byte as read, the file ends at {size}"
                self._report(self.files.data(read.file), RepairKind.LOST, read.byte, lost, reason, None)
                read = onward
            else:
                read = QueuePosition(read.file, size)  # reported above
            depth = -1
        elif not metadata.is_ours and self._scan(read.file, 0, read.byte)[0]:
            reason = "metadata names this byte as read, which is inside a message: read again from the start"
            self._report(self.files.data(read.file), RepairKind.REBUILT, read.byte, 0, reason)
            read = QueuePosition(read.file, 0)
            depth = -1
        # The file in which an empty queue was to go on may not have survived while a later one did:
        # the code that cuts the tail judges that.
        is_unbegun = metadata.read == metadata.write and not write.byte
        known = write if is_unbegun else max(write, read)
        return read, known, depth if depth >= 0 else None

    def _drop_consumed(self, read: QueuePosition, *, is_ours: bool) -> None:
        """Remove files before the read position: diskq's barrier was interrupted before it removed them."""
        consumed = [number for number in self.sizes if number < read.file]
        damaged = DamagedFiles(self.fs, self.files)
        if consumed and is_ours:
            damaged.find_marked(set(consumed))
        for number in consumed:
            size = self.sizes.pop(number)
            if is_ours:
                damaged.let_go(number, self.acts.pending_syncs)
            else:
                reason = "lies before a peer's read position: left alone"
                self._report(self.files.data(number), RepairKind.FOREIGN, 0, size, reason, None)

    def _report_missing(self, metadata: QueueMetadata) -> bool:
        """Report missing files between the positions. False if all are there, or were consumed."""
        count = len(self.repairs)
        read, beyond = metadata.read, metadata.write.file + (metadata.write.byte > 0)
        for start, end in self._gaps(read.file, beyond):
            is_head = start == read.file
            may_be_consumed = is_head and (read == metadata.write or bool(self.sizes))
            self._report_gap(start, end, read.byte if is_head else 0, may_be_consumed=may_be_consumed)
        return len(self.repairs) > count

    def _report_missing_later(self, metadata: QueueMetadata | None) -> None:
        """Report missing files after the position that was written to: the metadata may be an older one."""
        numbers = list(self.sizes)
        if metadata is None or metadata.is_ours:
            numbers += [
                number
                for number in self._checksum_files
                if number not in self.sizes and checksummed(self.fs, self.files.checksum_file(number))[1]
            ]
        if metadata is None:
            begin = min(numbers, default=0)
        else:
            begin = metadata.write.file + (metadata.write.byte > 0)
        first = min(self.sizes, default=-1)
        for start, end in self._gaps(begin, max(numbers, default=-1) + 1):
            self._report_gap(start, end, may_be_consumed=start < first)

    def _gaps(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the stretches of file numbers in begin:end of which there is no file."""
        found: list[tuple[int, int]] = []
        due = begin
        for number in (*(number for number in sorted(self.sizes) if due <= number < end), end):
            if due < number:
                found.append((due, number))
            due = number + 1
        return found

    def _report_gap(self, start: int, end: int, at_head: int = 0, *, may_be_consumed: bool) -> None:
        """Report that files start:end are missing; the first one was read up to byte `at_head`."""
        listed = self._checksum_files
        if known := listed[bisect_left(listed, start) : bisect_left(listed, end)]:
            for number in known:
                self._report_absent(number, at_head if number == start else 0)
        elif not may_be_consumed:
            others = end - start - 1
            reason = f"the file is missing, and the next {others}" if others else "the file is missing"
            self._report(self.files.data(start), RepairKind.LOST, 0, 0, reason, None)
        # Otherwise they were consumed: on a full disk their removal may come before the new read position,
        # and with a peer it always does.

    def _short(self, metadata: QueueMetadata | None) -> list[int]:
        """Return diskq's files, but its last, whose checksums do not say that they are complete as they are.

        They say so before the next file is begun. But a disk that loses what was not synced may cut a file
        where a message ends, and take those checksums. Files that the metadata has counted are not looked at.
        """
        if self.use.was_closed or self.use.was_unlogged:
            return []
        first = 0 if metadata is None else metadata.write.file if metadata.is_ours else metadata.read.file
        ours = [number for number in self._checksum_files if first <= number and number in self.sizes]
        short = [number for number in ours if sealed_end(self.fs, self._sums(number)) != self.sizes[number]]
        if short and short[-1] == ours[-1] and not self._has_lost_its_end(ours[-1]):
            short.pop()
        return short

    def _has_lost_its_end(self, number: int) -> bool:
        """True if the file was complete, and its end is not there, or another program's is."""
        end = sealed_end(self.fs, self._sums(number))
        return end is not None and self._verified_prefix(number, 0, prefix=True).end < end

    def _report_short(self, numbers: list[int]) -> None:
        """Report that messages may be missing at the end of these files, where nothing else is reported."""
        reported = {repair.path for repair in self.repairs}
        for number in numbers:
            path = self.files.data(number)
            if number in self.sizes and path not in reported:
                reason = "no checksum says that the file is complete: messages may be missing at its end"
                self.repairs.append(
                    Repair(
                        path=path,
                        kind=RepairKind.LOST,
                        kept=self.sizes[number],
                        dropped=0,
                        reason=reason,
                        records=None,
                    )
                )

    def _report_absent(self, number: int, begin: int = 0) -> None:
        """Report a file of which only the checksums are there, from byte `begin` on."""
        size, records = checksummed(self.fs, self.files.checksum_file(number))
        reason = "the file is missing, its checksums are there"
        lost = None if begin else records
        self._report(self.files.data(number), RepairKind.LOST, begin, size - begin, reason, lost)

    def _join_reports(self) -> None:
        """Join two repairs of one event: the lost end of a file, and the cut of a torn message before it."""
        for lost in [repair for repair in self.repairs if repair.kind is RepairKind.LOST]:
            for at, cut in enumerate(self.repairs):
                if cut.path != lost.path or not cut.dropped or cut.kept + cut.dropped != lost.kept:
                    continue
                counts = cut.records, lost.records
                self.repairs[at] = replace(
                    cut,
                    kind=lost.kind,
                    reason=lost.reason,
                    dropped=cut.dropped + lost.dropped,
                    records=None if None in counts else sum(count or 0 for count in counts),
                )
                self.repairs.remove(lost)
                break

    def _add_lost_count(self, lost: int, reported: list[Repair]) -> None:
        """Add the number of lost messages to a report without one; diskq's own metadata implies it."""
        uncounted = [index for index, repair in enumerate(reported) if repair.records is None]
        if len(uncounted) == 1:
            records = max(0, lost - sum(repair.records or 0 for repair in self.repairs))
            self.repairs[uncounted[0]] = replace(reported[uncounted[0]], records=records)

    def _keep_ours(self) -> None:
        """Have the first barrier sync what a killed diskq wrote: the peer that came after it does not."""
        if not self.use.was_closed:
            for number in set(self.files.checksum_files()) & self.sizes.keys():
                self.acts.keep((self.files.data(number), self.sizes[number]))

    def _restore_overwritten(self, metadata: QueueMetadata) -> None:
        """Keep a peer's messages in files of diskq that it began anew, and move diskq's to the end."""
        touched = [number for number in self.sizes if metadata.read.file <= number <= metadata.write.file]
        for number in touched:
            path = self.files.data(number)
            end = metadata.write.byte if number == metadata.write.file else None
            found = find_overwritten(self.fs, path, self.files.checksum_file(number), end)
            if found is None:
                continue
            if self.use.was_closed and not found.ours and found.end == self.sizes[number]:
                # Nothing of diskq's was pending: the peer may have consumed the file before it began it anew.
                continue
            if found.ours:
                self._move(found.ours)
            lost = lost_without(self.displaced, path, 0, found.lost, count_records, found.lost_end)
            reason = f"another program began this file anew, and overwrote {lost} messages"
            if found.end < self.sizes[number]:
                self._cut(number, found.end, RepairKind.DISPLACED, reason, lost)
            else:
                self._report(path, RepairKind.DISPLACED, 0, found.end, reason, lost)
            self.reported.append(self.repairs[-1])
            self.log_repair(self.repairs[-1])
            # At once: if the metadata is diskq's, checksums are believed.
            self._forget(number)

    def _move(self, records: bytes) -> None:
        """Write them durably to a new file after all others."""
        number = self._newest + 1
        handle = self.fs.open(self.files.data(number), write=True, create=True, exclusive=True)
        try:
            write_all(self.fs, handle, records, 0)
            Barrier(files=(handle,), directories=(self.files.directory,)).execute(self.fs)
        finally:
            self.fs.close(handle)
        self.sizes[number] = len(records)
        self.moved[number] = records

    def _forget_stale_checksums(self) -> None:
        """Remove checksums that are not of a peer's bytes.

        After losing its metadata it begins at file 0; and after a power cut it writes where bytes are gone
        whose checksums are there.
        """
        for number in self.sizes.keys() - self.unchecked:
            checksum_file = self.files.checksum_file(number)
            if self.fs.size_of(checksum_file) and not self._verified_prefix(number, 0, prefix=False).end:
                self._forget(number)
            elif not self.use.was_closed:
                self.acts.void(self.files.data(number), checksum_file, count=count)

    def _forget(self, number: int) -> None:
        self.unchecked.add(number)
        # Durably, before the metadata is diskq's: then checksums are believed.
        self.acts.cut_checksums(self.files.checksum_file(number), 0, 0)

    # --- the tail ---------------------------------------------------------------------------------

    def _cut_uncounted(self, read: QueuePosition, known: QueuePosition, depth: int) -> None:
        """Cut what diskq wrote after the last full barrier, and did not sync, before a peer's first file.

        A peer that finds a file longer than the metadata says goes on in the next one, and does not count
        the messages in the rest. So the messages up to the end of what checksums and the log verify, and
        those in the later files, are all `depth` messages; if they are fewer, the rest is the peer's.

        A file of which no checksum is left may be a peer's, who does not count what is verified in the one
        before: so there must be zeros where a message should begin, too.
        """
        use = self.use
        if use.was_closed or not use.are_all_covered:
            return
        ours = set(self._checksum_files) - self.unchecked
        last = max((number for number in self.sizes if number < known.file and number in ours), default=-1)
        if last >= 0 and self._checksummed_between(last, 0, self.sizes[last]) is None:
            number, end = last, self._verified_prefix(last, 0, prefix=True).end
        else:
            number, end = min((its for its in self.sizes if its > last), default=known.file), 0
        if not read.file <= number < known.file:
            return
        end = max(end, logged_end(self.fs, self.files, number))
        if use.staged is not None and use.staged.file == number:
            end = max(end, use.staged.end)
        path, size = self.files.data(number), self.sizes[number]
        if end == size or self._counts(read, number, end, known) < depth:
            return
        with opened(self.fs, path) as handle:
            rest = self.fs.pread(handle, min(_CHUNK, size - end), end)
        if number not in ours and _zeros_for_messages(rest, False) is None:
            return
        if not use.was_restarted and zeros_in(rest) is None and count(rest).valid_end == size - end:
            return  # a kill came between the messages and their checksums
        if len(rest) == size - end and not rest.strip(b"\0"):
            self._cut(number, end, RepairKind.UNWRITTEN, _ZEROS_AFTER, 0)
        else:
            lost = self._checksummed_between(number, end, size)
            self._cut(number, end, RepairKind.UNSYNCED, UNSYNCED, lost)
        self._drop_checksums_after(number, end)

    def _counts(self, read: QueuePosition, number: int, end: int, known: QueuePosition) -> int:
        """Return the number of messages from `read` to byte `end` of a file, and from the next to `known`."""
        counted = 0
        for each, size in self.sizes.items():
            if read.file <= each <= known.file:
                start = read.byte if each == read.file else 0
                limit = end if each == number else known.byte if each == known.file else size
                counted += self._scan(each, start, min(limit, size))[1]
        return counted

    def _cut_zeros(self, first: int, known: QueuePosition, *, is_ours: bool) -> None:
        """Cut zeros after what the checksums cover: they are not empty messages.

        Checksums cover all of a file that is complete, and of the last one if there was a write-ahead log, or
        it was closed. What was staged is written without them. What the metadata has counted, up to `known`,
        was taken for messages by an open that could not decide.

        If a peer wrote first after diskq had not closed the queue (not `is_ours`), zeros that end a file
        after blocks of diskq are what the power cut left: the peer has gone on elsewhere, or after what its
        metadata says. So are zeros where a message should begin, if what follows them is not whole, or if
        they are in a file that is diskq's and not the peer's.
        """
        staged = self.use.staged
        newest = self._newest
        for number in [number for number in self.sizes if number >= first]:
            is_last = number == newest
            if not is_last and sealed_end(self.fs, self._sums(number)) == self.sizes[number]:
                continue  # as most are, and there may be many
            with closing(Rows(self.fs, self._sums(number))) as rows:
                rows.seek(NO_NUMBER)
                last = rows.last
            size = self.sizes[number]
            if last is None and is_ours:
                continue
            has_all = self.use.has_all_checksums if is_last else last is not None and last.is_seal
            if is_ours and not has_all:
                continue
            end = last.end if last is not None else 0
            if not is_ours:  # a power cut may have taken any of them
                end = min(end, self._verified_prefix(number, 0, prefix=True).end)
            if not is_ours and number == known.file:
                end = max(end, known.byte)
            if staged is not None and staged.file == number:
                end = max(end, staged.end)
            if (is_ours and not end) or not end < size <= end + _CHUNK:
                continue
            if number == known.file and size <= known.byte:
                continue
            handle = self.fs.open(self.files.data(number))
            try:
                tail = self.fs.pread(handle, size - end, end)
            finally:
                self.fs.close(handle)
            if not (is_ours or has_all or self.use.was_restarted) and len(tail) < LEAST_ZEROS:
                continue  # after a kill they are up to three empty messages
            # A peer that goes on in the next file says so in its metadata.
            is_theirs = number < known.file and number not in self._checksum_files
            may_be_theirs = not is_ours and (number == known.file or is_theirs)
            if not tail.strip(b"\0") and not (may_be_theirs and number < known.file):
                self._cut(number, end, RepairKind.UNWRITTEN, _ZEROS_AFTER, 0)
            elif not is_ours and (zeros := _zeros_for_messages(tail, may_be_theirs)) is not None:
                reason = "zeros among messages that were not synced"
                self._cut(number, end + zeros, RepairKind.UNWRITTEN, reason, None)

    def _cut_unwritten(self, known: QueuePosition) -> None:
        """Cut what a disk leaves that went away while the machine ran on: what was synced comes before."""
        staged = self.use.staged
        pending = [number for number in self.sizes if number >= known.file]
        for at, number in enumerate(pending):
            end = self.acts.cut_unwritten(
                self.files.data(number),
                self._sums(number),
                known.byte if number == known.file else 0,
                staged if staged is not None and staged.file == number else None,
                count,
            )
            if end is not None:
                self.sizes[number] = end
                self._set_aside(pending[at + 1 :], RepairKind.UNWRITTEN, UNWRITTEN)
                return

    def _set_aside(self, numbers: list[int], kind: RepairKind, reason: str) -> None:
        for number in numbers:
            del self.sizes[number]
            checksum_file = self.files.checksum_file(number)
            path = self.files.data(number)
            self.acts.set_aside(path, kind, reason, None, removals=(checksum_file,))
        self.acts.execute_asides()

    def _cut_at_framing(self, known: QueuePosition, *, is_ours: bool) -> int:
        """Believe the page cache. Returns the number of records after `known`."""
        judging = self.ahead
        if is_ours:
            self.ahead = ReadAhead(self.fs, self.any_size, Gate())
        counted = 0
        newest = self._newest
        for number in [number for number in self.sizes if number >= known.file]:
            start = known.byte if number == known.file else 0
            is_last = number == newest
            size = self.sizes[number]
            losses, records = self._scan(number, start, size, is_complete=not is_last)
            counted += records
            beyond: list[Row] = []
            if is_last and is_ours:
                beyond = self._entries_beyond(number, size)
            if is_last and losses and losses[-1].end >= size:
                self._cut_loss(number, losses.pop())
            self.has_uncounted |= bool(losses) or self.has_torn_tail
            if beyond:
                self._report_cut_off(number, size, beyond)
            if is_ours and start < self.sizes[number]:
                if is_last:
                    self.to_cover = number, start
                self.acts.keep((self.files.data(number), start), (self.files.checksum_file(number), 0))
        self.ahead = judging
        return counted

    def _entries_beyond(self, number: int, size: int) -> list[Row]:
        """Return the checksum entries of blocks that end after byte `size`, the end of the last file."""
        beyond = rows_after(self.fs, self._sums(number), size)
        # If its owner is at work, they may be of what has come since.
        return beyond if self.fs.size_of(self.files.data(number)) == size else []

    def _report_cut_off(self, number: int, size: int, beyond: list[Row]) -> None:
        """Report messages after byte `size`, the end of the last file, that have these checksum entries."""
        path = self.files.data(number)
        reported = [repair for repair in self.repairs if repair.path == path]
        if any(repair.records is None for repair in reported):
            return
        start, end = beyond[0].start, beyond[-1].end
        lost = sum(row.records for row in beyond)
        lost -= sum(repair.records or 0 for repair in reported if repair.kept >= start)
        if start < self.sizes[number]:
            lost -= self._scan(number, start, self.sizes[number])[1]
        if lost > 0:
            kept = self.sizes[number]
            reason = f"the file ends at byte {size}, its checksums at {end}"
            if reported and reported[-1].kept == kept:
                repair = reported[-1]
                self.repairs[self.repairs.index(repair)] = replace(
                    repair, reason=f"{repair.reason}; {reason}", records=(repair.records or 0) + lost
                )
            else:
                self._report(path, RepairKind.LOST, kept, end - size, reason, lost)

    def _cover(self, number: int, start: int) -> None:
        """Add the missing checksums at the file's end: the process died before it wrote them.

        Only the records from `start` on are certainly diskq's, and have just been scanned: those before may
        be a peer's, and broken.
        """
        checksum_file, end = self.files.checksum_file(number), self.sizes[number]
        self.acts.cover(
            checksum_file, end, lambda sums, begin: self._fill(sums, number, begin, end), start=start
        )

    def _fill(self, sums: ChecksumFile, number: int, covered: int, end: int) -> None:
        """Add the checksums of bytes covered:end."""
        ahead = ReadAhead(self.fs, self.any_size, Gate())
        handle = self.fs.open(self.files.data(number))
        try:
            ahead.seek(covered)
            tried = 0
            while covered < end:
                # By the framing alone: the scan before this has checked the same bytes.
                if records := len(ahead.take_many(_MANY, BLOCK_SIZE)):
                    size = ahead.position - covered
                    sums.add(covered + size, size, records, memoryview(self.fs.pread(handle, size, covered)))
                    covered += size
                    tried = 0
                    continue
                claimed = ahead.claimed if ahead.why == "TORN" else 0
                size = min(max(_CHUNK, claimed), end - covered)
                if size <= tried:
                    break
                tried = size
                ahead.load(handle, covered, size)
                ahead.admit(covered, covered + size)
        finally:
            let_go(self.fs, handle)

    def _cut_at_checksums(self, known: QueuePosition, *, prefix: bool) -> int:
        """Believe checksums only. Returns the number of records after `known`.

        With `prefix` everything after `known` is younger than the last full barrier, and is kept up to the
        first disagreement: what was not synced survives as a prefix. Without it old and young cannot be
        distinguished, and everything is kept up to the last agreement.
        """
        counted = done = 0
        numbers = [number for number in self.sizes if number >= known.file]
        due = known.file
        agreeing: int | None = None  # the last file of which a checksum agrees, once it was looked for
        while done < len(numbers) and (numbers[done] == due or not prefix):
            number = numbers[done]
            start = known.byte if number == known.file else 0
            end, records, is_complete = self._verified_prefix(number, start, prefix)
            counted += records
            done += 1
            if end < self.sizes[number]:
                if agreeing is None and not prefix:
                    later = (each for each in reversed(numbers) if self._verified_prefix(each, 0, prefix).end)
                    agreeing = next(later, -1)
                if agreeing is None or number >= agreeing:
                    lost = self._checksummed_between(number, end, self.sizes[number])
                    self._cut(number, end, RepairKind.UNSYNCED, UNSYNCED, lost)
                    self._drop_checksums_after(number, end)
            # If a file is not known to be complete, the next file does not continue it.
            due = number + 1 if is_complete else -1
        self._set_aside(numbers[done:], RepairKind.UNSYNCED, UNSYNCED)
        return counted

    def _checksummed_between(self, number: int, start: int, end: int) -> int | None:
        """Return the number of messages in these bytes; None if checksums do not cover all of them."""
        rows = [row for row in rows_after(self.fs, self._sums(number), start) if not row.is_seal]
        is_known = bool(rows) and rows[0].start == start and rows[-1].end >= end
        is_known = is_known and all(one.end == next_one.start for one, next_one in pairwise(rows))
        return sum(row.records for row in rows) if is_known else None

    def _drop_checksums_after(self, number: int, end: int) -> None:
        """Remove the checksums of unsynced bytes that were cut at `end`.

        Before the lock is signed: an open after a kill takes what has checksums for written.
        """
        checksum_file = self.files.checksum_file(number)
        if self.fs.size_of(checksum_file):
            self.acts.cut_checksums(checksum_file, *rows_before(self.fs, checksum_file, end))

    def _verified_prefix(self, number: int, start: int, prefix: bool) -> VerifiedPrefix:
        """Return how far checksums verify the file from `start` on; without `prefix`, also past gaps."""
        path, sums, size = self.files.data(number), self._sums(number), self.sizes[number]
        return verified_prefix(self.fs, path, sums, start, size=size, over_gaps=not prefix)

    def _cut_loss(self, number: int, loss: Loss) -> None:
        """Cut off a loss at the end. What a torn write left was never acknowledged: no message is lost."""
        if not loss.is_torn:
            self.acts.check(self.files.data(number), loss.start, loss.reason)
        records = loss.records or 0 if loss.is_torn else loss.records
        try:
            self._cut(number, loss.start, loss.kind, loss.reason, records)
        except OSError as failure:
            if failure.errno not in FULL_DISK_ERRNOS:
                raise
            # No space to keep it aside: it stays where it is, as in a peer's queue, and the queue goes
            # on in the next file. Reading passes over it, and reports it.
            self.has_torn_tail = True

    def _cut(self, number: int, end: int, kind: RepairKind, reason: str, records: int | None) -> None:
        self.acts.cut(self.files.data(number), end, kind, reason, records)
        self.sizes[number] = end

    # --- counting ---------------------------------------------------------------------------------

    def _write_position(self, known: QueuePosition) -> QueuePosition:
        """Return the place after the last record. A file that does not exist yet is written from 0."""
        last = self._newest
        if last < known.file:
            return QueuePosition(known.file, 0)
        return QueuePosition(last + 1, 0) if self.has_torn_tail else QueuePosition(last, self.sizes[last])

    def _counted(self, read: QueuePosition) -> int:
        """Return the number of records from `read` on, by looking at all of them."""
        counted = 0
        for number, size in self.sizes.items():
            if number >= read.file:
                start = read.byte if number == read.file else 0
                losses, records = self._scan(number, start, size, is_complete=number != self._newest)
                counted += records
                self.has_uncounted |= bool(losses)
        return counted

    def _scan(
        self, number: int, start: int, end: int, *, is_complete: bool = False
    ) -> tuple[list[Loss], int]:
        """Return what reading bytes start:end of a file would pass over, and the number of its records.

        `is_complete`: these are all that follow; what checksums say comes after them is lost, too.
        """
        losses: list[Loss] = []
        records = 0
        path = self.files.data(number)
        with closing(BlockReader(self.fs, self.ahead, path, self._sums(number), start)) as reader:
            while self.ahead.position < end:
                if (loss := reader.fill(end)) is not None:
                    losses.append(loss)
                records += self.ahead.count()
            if is_complete and (loss := reader.missing(end)) is not None:
                losses.append(loss)
        return losses, records

    def _backlog(self, read: QueuePosition, write: QueuePosition) -> int:
        return sum(size for number, size in self.sizes.items() if read.file <= number <= write.file)

    def _report(
        self, path: str, kind: RepairKind, kept: int, dropped: int, reason: str, records: int | None = 0
    ) -> None:
        self.acts.check(path, kept, reason)
        self.repairs.append(
            Repair(path=path, kind=kind, kept=kept, dropped=dropped, reason=reason, records=records)
        )


def _zeros_for_messages(tail: bytes, may_be_messages: bool) -> int | None:
    """Return where zeros begin in place of messages; None: nowhere.

    If they `may_be_messages`, which are empty, they are none only if the messages after them are not whole.
    """
    at = before = 0
    while (zeros := zeros_in(tail[at:])) is not None:
        begin = at + count(tail[at : at + zeros]).valid_end
        if tail.startswith(bytes(LEAST_ZEROS), begin):
            if may_be_messages and count(tail[begin:]).valid_end == len(tail) - begin:
                return None
            # A message that ends in them may be one that the power cut has taken in part.
            return before if begin == at and tail[:begin].endswith(b"\0") else begin
        before, at = begin, begin + 4 + int.from_bytes(tail[begin : begin + 4], "big")
    return None


# --- the redo log -------------------------------------------------------------------------------------


def redo_source(files: QueueFiles) -> RedoSource:
    """Return it. Everything up to the written position of diskq's metadata is durable. Raises OSError."""
    metadata = QueueMetadata.parse(files.read_metadata() or b"")
    return RedoSource(
        {0: files.staging},
        in_place=metadata is None or metadata.is_ours,
        is_covered=lambda _, file, end: metadata is not None and (file, end) <= metadata.write,
        counted=count_records,
    )


def logged_end(fs: FileSystem, files: QueueFiles, number: int) -> int:
    """Return the byte of a data file up to which the redo log has its records, too. Raises OSError.

    0: it has none. After records that are not there, it appends all others again.
    """
    content = read_redo(fs, files.redo)
    parts = [part for entry in content.entries for part in entry.parts] if content is not None else []
    end = 0
    with opened(fs, files.data(number)) as handle:
        for part in parts:
            if part.kind == DATA and part.file == number:
                there = fs.pread(handle, len(part.content), part.position)
                same = len(part.content) - missing_size(there, part.content)
                end = part.position + count(there[:same]).valid_end
                if end < part.end:
                    break
    return end


def count_records(records: bytes) -> int:
    """Return how many messages these bytes of a data file are."""
    return count(records).records
