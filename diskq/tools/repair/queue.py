# Repairs a queue. Law: what an open repairs is left to an open; a file with bytes that cannot be read is
# rewritten without them, and positions in it are moved. The messages keep their order.
#
# NSQ's files have no offsets: records follow each other, and a reader that meets something else skips the
# rest of the file. So a file without the damaged stretch is valid for every program. If a file between two
# others is missing, an empty one takes its place, and readers go on after it.

from __future__ import annotations

from diskq._native.core.gate import Gate
from diskq._native.core.read_ahead import ReadAhead
from diskq._native.queue.codec import MAX_BODY, NsqFraming
from diskq.engine.queue.ack_log import acked_row, handed_row, read_ack_logs, tried_row
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.queue.files import QueueFiles, QueueMetadata, QueuePosition
from diskq.options import QueueOptions
from diskq.storage.block_reader import BlockReader, Loss
from diskq.storage.fs import FileSystem
from diskq.storage.lock import Lock
from diskq.storage.repairs import Repair, RepairKind
from diskq.storage.swap import Swap
from diskq.tools.redo_logs import check_log_empty
from diskq.tools.repair.log import as_repairs
from diskq.tools.repair.rewriting import RecordRange, between, copied, moved, nsq_blocks, size_of, sums

__all__ = ["repair_queue"]

# No existing message is too large to be kept.
_ANY_SIZE = QueueOptions(max_message_size=MAX_BODY)


def repair_queue(fs: FileSystem, directory: str, name: str, *, is_dry: bool) -> list[Repair]:
    """Repair the queue in `fs`; with `is_dry` only as an open does, and the rest is reported.

    Raises LockedError, DiskqError, OSError.
    """
    with Queue(directory, name, options=_ANY_SIZE, fs=fs) as queue:
        repairs = list(queue.repairs)
    files = QueueFiles(fs, directory, name)
    check_log_empty(fs, files)
    lock = Lock(fs, files.lock, files.what, brief=files.redo)
    try:
        swap = Swap(fs, directory, files.swap)
        repairs += _QueueRebuild(fs, files, swap).run()
        if swap and not is_dry:
            swap.carry_out()
    finally:
        lock.release()
    return repairs


class _QueueRebuild:
    """The files that are to be rewritten."""

    def __init__(self, fs: FileSystem, files: QueueFiles, swap: Swap) -> None:
        self._fs = fs
        self._files = files
        self._swap = swap
        self._pieces: dict[int, list[RecordRange]] = {}  # of the files that are rewritten
        self._repairs: list[Repair] = []

    def run(self) -> list[Repair]:
        content = self._files.read_metadata()
        metadata = QueueMetadata.parse(content or b"")
        assert metadata is not None, "it was just opened, and closed"
        read, write = metadata.read, metadata.write
        numbers = [number for number in self._files.numbers() if read.file <= number <= write.file]
        depth = sum(self._look_at(number, read, write) for number in numbers)
        for number in range(read.file, write.file):
            if number not in numbers:
                self._fill_in(number)
        if self._pieces or depth != metadata.depth:
            self._point(metadata, depth)
        return self._repairs

    def _look_at(self, number: int, read: QueuePosition, write: QueuePosition) -> int:
        """Decide on a file. Returns how many records of it can be read."""
        path = self._files.data(number)
        start = read.byte if number == read.file else 0
        size = self._fs.size_of(path) or 0
        losses, records = self._scan(number, start, size, is_complete=number != write.file)
        if not losses:
            return records
        pieces, at = [], start
        for loss in losses:
            if at < min(loss.start, size):
                pieces.append(RecordRange(at, min(loss.start, size)))
            at = max(at, loss.end)
        if at < size:
            pieces.append(RecordRange(at, size))
        self._write_anew(number, pieces, is_sealed=number != write.file)
        asides = {piece: self._swap.keep(path, path, *piece) for piece in between(pieces, start, size)}
        self._repairs += as_repairs(path, losses, asides)
        return records

    def _scan(self, number: int, start: int, size: int, *, is_complete: bool) -> tuple[list[Loss], int]:
        """Read the file. Returns what it skips, and how many records it delivers."""
        any_size = NsqFraming(0, MAX_BODY)
        ahead = ReadAhead(self._fs, any_size, Gate(), any_size)
        checksum_file = self._files.checksum_file(number)
        reader = BlockReader(self._fs, ahead, self._files.data(number), checksum_file, start)
        losses: list[Loss] = []
        records = 0
        try:
            while ahead.position < size:
                if (loss := reader.fill(size)) is not None:
                    losses.append(loss)
                records += ahead.count()
            if is_complete and (loss := reader.missing(size)) is not None:
                losses.append(loss)
        finally:
            reader.close()
        return losses, records

    def _fill_in(self, number: int) -> None:
        path = self._files.data(number)
        self._repairs.append(
            Repair(
                path=path,
                kind=RepairKind.LOST,
                kept=0,
                dropped=0,
                reason="the file is missing: an empty one takes its place",
                records=None,
            )
        )
        self._write_anew(number, [], is_sealed=True)

    def _write_anew(self, number: int, pieces: list[RecordRange], *, is_sealed: bool) -> None:
        path = self._files.data(number)
        self._pieces[number] = pieces
        self._swap.install(path, copied(path, pieces) if pieces else b"")
        self._swap.install(
            self._files.checksum_file(number), sums(path, pieces, nsq_blocks, is_sealed=is_sealed)
        )
        if number in self._files.marked():
            self._swap.remove(self._files.mark(number))

    # --- positions in them ------------------------------------------------------------------------

    def _point(self, metadata: QueueMetadata, depth: int) -> None:
        read, write = self._moved(metadata.read), self._moved(metadata.write)
        if not self._repairs:
            reason = f"it counts {metadata.depth} messages, and {depth} exist"
            self._repairs.append(
                Repair(path=self._files.metadata, kind=RepairKind.REBUILT, kept=0, dropped=0, reason=reason)
            )
        changed = QueueMetadata(depth, read, write, True)
        self._swap.install(self._files.metadata, changed.render())
        ack_logs = self._files.ack_logs()
        if not ack_logs or not self._pieces:
            return
        known = read_ack_logs(self._fs, self._files)
        rows = [handed_row(self._moved(known.handed))]
        for file, ranges in known.acked.items():
            for start, end in ranges:
                rows += self._acked(file, start, end)
        for (file, byte), tried in known.tried.items():
            if file not in self._pieces or any(start <= byte < end for start, end in self._pieces[file]):
                place = self._moved(QueuePosition(file, byte))
                rows.append(tried_row(*place, tried.attempts, tried.due, tried.delay))
        self._swap.install(self._files.ack_log(ack_logs[-1]), b"".join(rows))
        for number in ack_logs[:-1]:
            self._swap.remove(self._files.ack_log(number))

    def _acked(self, file: int, start: int, end: int) -> list[bytes]:
        if file not in self._pieces:
            return [acked_row(file, start, end)]
        pieces = self._pieces[file]
        parts = [(max(start, piece.start), min(end, piece.end)) for piece in pieces]
        return [
            acked_row(file, moved(first, pieces), moved(first, pieces) + last - first)
            for first, last in parts
            if first < last
        ]

    def _moved(self, place: QueuePosition) -> QueuePosition:
        pieces = self._pieces.get(place.file)
        if pieces is None:
            return place
        byte = (
            size_of(pieces)
            if place.byte >= max((end for _, end in pieces), default=0)
            else moved(place.byte, pieces)
        )
        return QueuePosition(place.file, byte)
