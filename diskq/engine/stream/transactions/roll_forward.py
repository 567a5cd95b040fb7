# Executing a committed transaction. Law: the files that the intent names are appended once, in order, however
# often that is interrupted; and before anything else is appended.
#
#     1  verify       every staged record is there, and whole
#     2  sync         the stream is durable: a partition cannot end before the intent's offsets
#     3  intent       durable: the commit point
#     4  append       the staged records, through the stream's own buffers; or by renaming their file
#                     (adoption.py)
#     5  sync         they are durable
#     6  committed    durable: the transaction is not committed again
#     7  forget       the intent, then the staged files are removed
#
# A process that opens the stream and finds an intent continues at 4. Offsets show which records are there
# already, as no process appends between 3 and 7: a kill leaves all that was written, a power cut a beginning
# of it, in each partition. A disk that came back while the machine ran on may have lost any part of it, so
# that a record is damaged and a later one whole: recovery cuts each partition where it is not as staged
# (`differs_at`), and the rest is appended again. Only if a go-diskq producer wrote meanwhile (the owner file
# was removed by hand) may there be other messages: so existing ones are compared, and the intent is replaced
# if they differ.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from diskq._native.core.message import Message
from diskq._native.stream.codec import count, scan
from diskq.engine.log.recovery_points import RecoveryPoint
from diskq.engine.log.writer import LogWriter
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.partition_reader import PartitionReader
from diskq.engine.stream.transactions import side_by_side
from diskq.engine.stream.transactions.staging import Extent, StagedFile, StagedName, StagedReader
from diskq.engine.stream.transactions.transaction import (
    Committed,
    Intent,
    PartitionShare,
    Transaction,
    committed,
    forget_finished,
    shares_of,
)
from diskq.errors import DiskFullError, OffsetOutOfRangeError, SinkError, StagedError
from diskq.storage.barrier import NO_ROOM, Barrier, Replacement, opened
from diskq.storage.fs import FileSystem

__all__ = [
    "TransactionTarget",
    "differs_at",
    "intent_of",
    "is_committed",
    "note_committed",
    "roll_forward",
    "verified",
    "write_intent",
]


# Files that become segments together: each has some handles until their sync.
_MOST_AT_ONCE = 16


class TransactionTarget(Protocol):
    """The stream to which a transaction is appended, which is open and locked."""

    files: StreamFiles

    def next_offset(self, partition: int) -> int: ...

    @property
    def log(self) -> LogWriter: ...

    def accept_encoded(self, partition: int, data: bytes | memoryview) -> None: ...

    def may_adopt(self, extent: Extent) -> bool: ...

    def adopt(self, staged: Iterable[StagedFile]) -> None: ...


# --- before the commit point ----------------------------------------------------------------------


def is_committed(fs: FileSystem, files: StreamFiles, transaction: Transaction) -> bool:
    """True if the sink has committed that epoch before. Raises SinkError, CorruptionError, OSError."""
    last = committed(fs, files, transaction.sink)
    if last is None:
        return False
    if last.query != transaction.query:
        raise SinkError(files.path, transaction.sink, last.query, transaction.query)
    return last.epoch >= transaction.epoch


def verified(
    fs: FileSystem, files: StreamFiles, transaction: Transaction, partition_count: int, *, varuint: bool
) -> dict[int, int]:
    """Verify that all staged records exist and are whole. Returns how many records each partition gets.

    Raises StagedError, CorruptionError, OSError.
    """
    seen: set[str] = set()
    for file in transaction.staged:
        path = files.staged(file.name)
        name = StagedName.parse(file.name)
        if name is None or (name.sink, name.epoch) != (transaction.sink, transaction.epoch):
            of = f"epoch {transaction.epoch} of sink {transaction.sink!r}"
            raise StagedError(path, f"the file was not staged for {of}")
        if file.name in seen:
            raise StagedError(path, "the staged file is given twice")
        seen.add(file.name)

    def verify(file: StagedFile) -> None:
        with StagedReader(fs, files, file.name, varuint=varuint) as reader:
            end = 0 if file.whole is not None else reader.check_head(partition_count)
            for extent in file.extents:
                if not 0 <= extent.partition < partition_count or extent.start < end or extent.records < 1:
                    raise StagedError(reader.path, f"{extent} does not belong to it")
                reader.verify(extent)
                end = extent.start + extent.size

    # A task that had no rows has staged no file.
    side_by_side.each(fs, verify, [file for file in transaction.staged if file.extents])
    return shares_of(transaction.staged)


def write_intent(fs: FileSystem, files: StreamFiles, intent: Intent) -> None:
    """Make the intent durable. Raises DiskFullError (nothing has changed) or OSError (it may be durable)."""
    _replace(fs, intent.replacing(files))


# --- after the commit point -----------------------------------------------------------------------


def roll_forward(
    stream: TransactionTarget, fs: FileSystem, intent: Intent, *, varuint: bool, is_new: bool
) -> None:
    """Append the records that are not in the stream yet, and note that the transaction is committed.

    The intent is durable; `is_new`: this process wrote it, so that no record is in the stream. Raises
    CorruptionError, StagedError, DiskFullError, StorageFailedError, OSError: the intent then stays.
    """
    if not is_new:
        intent = _as_found(stream, fs, intent, varuint)
    _append(stream, fs, intent, varuint)
    stream.log.sync()
    note_committed(fs, stream.files, intent.sink, Committed(intent.epoch, intent.query))
    forget_finished(fs, stream.files)


def note_committed(fs: FileSystem, files: StreamFiles, sink: str, last: Committed) -> None:
    """Note durably what the sink has committed last. Raises as `write_intent`."""
    _replace(fs, last.replacing(files, sink))


def _replace(fs: FileSystem, replacement: Replacement) -> None:
    # Nothing may be removed in the same barrier: on a full disk removals are executed first.
    if not Barrier(replacements=(replacement,)).execute(fs):
        raise DiskFullError(replacement.path, NO_ROOM)


def _append(stream: TransactionTarget, fs: FileSystem, intent: Intent, varuint: bool) -> None:
    # Records to skip.
    left = {p: stream.next_offset(p) - share.start + share.skip for p, share in intent.shares.items()}
    adopted: dict[int, StagedFile] = {}  # to become segments, by partition

    def adopt() -> None:
        if adopted:
            stream.adopt(adopted.values())
            adopted.clear()

    for file, before in _files(intent):
        if len(adopted) == _MOST_AT_ONCE or any(extent.partition in adopted for extent in file.extents):
            adopt()
        whole = file.whole
        if whole is not None and not left[whole.partition] and stream.may_adopt(whole):
            adopted[whole.partition] = file
            continue
        due: list[tuple[Extent, int]] = []
        for extent in file.extents:
            skip = min(left[extent.partition], extent.records)
            left[extent.partition] -= skip
            if skip < extent.records:
                due.append((extent, skip))
        if due:
            with _opened(fs, stream.files, intent, file, before, varuint) as reader:
                for extent, skip in due:
                    for data in reader.records(extent, skip):
                        stream.accept_encoded(extent.partition, data)
    adopt()
    stream.log.flush()


# --- records that are in the stream already -------------------------------------------------------


def differs_at(
    fs: FileSystem, files: StreamFiles, intent: Intent, partition: int, point: RecoveryPoint, *, varuint: bool
) -> tuple[int, int] | None:
    """Return the segment, and the byte of its data, where the first record begins that is not as staged.

    For a partition that holds nothing else after the transaction's beginning, before its recovery. Records
    before the recovery point count as they are. None: all bytes that are there are as staged. Raises
    StagedError, CorruptionError, OSError.
    """
    share, its = intent.shares[partition], files.partition(partition)
    offset, base, position = point.next_offset, point.base, point.end
    if offset < share.start:
        with PartitionReader(fs, its, varuint=varuint) as reader:
            try:
                reader.seek(share.start)
            except OffsetOutOfRangeError:
                return None
            if reader.base is None or reader.position != share.start:
                return None
            offset, base, position = share.start, reader.base, reader.ahead.position
    for data in _staged(fs, files, intent, partition, share.skip + offset - share.start, varuint):
        while data:
            size = fs.size_of(its.data(base))
            if size is None:
                return None
            with opened(fs, its.data(base)) as handle:
                there = fs.pread(handle, len(data), position)
            same = len(data) if there == data else _same_records(there, data, varuint)
            offset, position = offset + count(data[:same], varuint).records, position + same
            if not bytes(data[same:]).startswith(there[same:]):
                return base, position
            data = data[same:]
            if data and (position < size or base == offset):
                return None  # it ends in this record, or before it
            if data:
                base, position = offset, 0
    return None


def _same_records(there: bytes, data: memoryview, varuint: bool) -> int:
    """Return the bytes at the start of both that are the same whole records."""
    end = 0
    while end < len(data):
        size = count(data[end:], varuint, 1).valid_end
        if there[end : end + size] != data[end : end + size]:
            break
        end += size
    return end


def _as_found(stream: TransactionTarget, fs: FileSystem, intent: Intent, varuint: bool) -> Intent:
    """Return the intent with offsets that match the stream, replaced durably if they did not."""
    shares = dict(intent.shares)
    for partition, share in intent.shares.items():
        there = _there(stream, fs, intent, partition, varuint)
        next_offset = stream.next_offset(partition)
        if share.start + there != next_offset:
            # Another producer's messages are there. The transaction's continue after them.
            shares[partition] = PartitionShare(next_offset, share.skip + there, share.records)
    if shares == intent.shares:
        return intent
    intent = replace(intent, shares=shares)
    write_intent(fs, stream.files, intent)
    return intent


def _there(stream: TransactionTarget, fs: FileSystem, intent: Intent, partition: int, varuint: bool) -> int:
    """Return how many records of the transaction are in the partition, at their offsets."""
    share = intent.shares[partition]
    files = stream.files.partition(partition)
    with PartitionReader(fs, files, varuint=varuint) as reader:
        # Retention may have removed complete segments that contain only such records.
        at = min(max(share.start, reader.first_offset()), share.offsets.stop)
        try:
            reader.seek(at)
        except OffsetOutOfRangeError:
            return 0  # even older messages are gone
        if at == stream.next_offset(partition):
            return at - share.start
        skip = share.skip + at - share.start
        staged = _staged(fs, stream.files, intent, partition, skip, varuint)
        expected = (message for data in staged for message in scan(data, varuint=varuint).messages)
        seen = 0
        while at < share.offsets.stop:
            message = reader.read()
            for gap in reader.losses[seen:]:
                if gap.start == gap.end:
                    return max(at, gap.offset) - share.start  # these offsets were never assigned
                # Damaged bytes: their records were there.
                for _ in range(min(gap.offset + gap.count, share.offsets.stop) - max(at, gap.offset)):
                    next(expected, None)
                    at += 1
            seen = len(reader.losses)
            if message is None or message.offset != at or not _is_same(message, next(expected, None)):
                break
            at += 1
        return at - share.start


def _staged(
    fs: FileSystem, files: StreamFiles, intent: Intent, partition: int, skip: int, varuint: bool
) -> Iterator[memoryview]:
    """Yield the encoded records staged for a partition, without the first `skip`, many at a time."""
    for file, before in _files(intent):
        due: list[tuple[Extent, int]] = []
        for extent in file.extents:
            if extent.partition != partition:
                continue
            if skip < extent.records:
                due.append((extent, skip))
            skip = max(0, skip - extent.records)
        if due:
            with _opened(fs, files, intent, file, before, varuint) as reader:
                for extent, passed in due:
                    yield from reader.records(extent, passed)


def _files(intent: Intent) -> Iterator[tuple[StagedFile, dict[int, int]]]:
    """Yield the staged files, each with how many records of each partition come before it."""
    before: dict[int, int] = dict.fromkeys(intent.shares, 0)
    for file in intent.staged:
        yield file, before
        for extent in file.extents:
            before[extent.partition] += extent.records


def _opened(
    fs: FileSystem,
    files: StreamFiles,
    intent: Intent,
    file: StagedFile,
    before: dict[int, int],
    varuint: bool,
) -> StagedReader:
    """Open a staged file, which may be a segment already. Raises StagedError if it is gone, OSError."""
    segment = None
    if (whole := file.whole) is not None:
        share = intent.shares[whole.partition]
        base = share.start - share.skip + before[whole.partition]
        segment = files.partition(whole.partition).data(base) if base >= 0 else None
    return StagedReader(fs, files, file.name, varuint=varuint, segment=segment)


def _is_same(message: Message, other: Message | None) -> bool:
    if other is None:
        return False
    return (message.key, message.timestamp_ns, message.value) == (other.key, other.timestamp_ns, other.value)


def intent_of(transaction: Transaction, records: dict[int, int], next_offsets: tuple[int, ...]) -> Intent:
    """Return the intent to append the transaction where its partitions end now."""
    shares = {
        partition: PartitionShare(next_offsets[partition], 0, number) for partition, number in records.items()
    }
    staged = tuple(file for file in transaction.staged if file.extents)
    return Intent(transaction.sink, transaction.epoch, transaction.query, shares, staged)
