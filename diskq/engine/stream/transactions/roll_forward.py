# Carrying a transaction out. Law: what the intent names is appended once, in order, whatever interrupts it
# and however often; and it is done before anything else is appended.
#
#     1  verify       every staged record is there, and whole
#     2  sync         all that is in the stream is durable: a partition cannot end before the intent's offsets
#     3  intent       durable: the commit point
#     4  append       the staged records, through the stream's own buffers
#     5  sync         they are durable
#     6  committed    durable: the transaction is not committed again
#     7  forget       the intent, then the staged files are removed
#
# Whoever opens the stream and finds an intent goes on at 4. What is there already is told by offsets, as
# nobody appends between 3 and 7: a kill leaves all that was written, a power cut a beginning of it, in each
# partition. Only where a go-diskq producer was let in meanwhile (its owner file was removed by hand) may
# there be something else: so what is there is compared, and the intent replaced where it differs.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from diskq._native.core.message import Message
from diskq._native.stream.codec import scan
from diskq.engine.log.writer import LogWriter
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.partition_reader import PartitionReader
from diskq.engine.stream.transactions.staging import StagedName, StagedReader
from diskq.engine.stream.transactions.transaction import (
    Committed,
    Intent,
    PartitionShare,
    Transaction,
    committed,
    finished,
    shares_of,
)
from diskq.errors import DiskFullError, OffsetOutOfRangeError, SinkError, StagedError
from diskq.storage.barrier import NO_ROOM, Barrier, Replacement
from diskq.storage.fs import FileSystem

__all__ = [
    "TransactionTarget",
    "forget",
    "intent_of",
    "is_committed",
    "note_committed",
    "roll_forward",
    "verified",
    "write_intent",
]


class TransactionTarget(Protocol):
    """The stream that it goes into, which is open and locked."""

    files: StreamFiles

    @property
    def next_offsets(self) -> tuple[int, ...]: ...

    @property
    def log(self) -> LogWriter: ...

    def accept_encoded(self, partition: int, data: bytes | memoryview) -> None: ...


# --- before the commit point ----------------------------------------------------------------------


def is_committed(fs: FileSystem, files: StreamFiles, transaction: Transaction) -> bool:
    """Has the sink committed that epoch before? Raises SinkError, CorruptionError, OSError."""
    last = committed(fs, files, transaction.sink)
    if last is None:
        return False
    if last.query != transaction.query:
        raise SinkError(files.path, transaction.sink, last.query, transaction.query)
    return last.epoch >= transaction.epoch


def verified(
    fs: FileSystem, files: StreamFiles, transaction: Transaction, partition_count: int, *, varuint: bool
) -> dict[int, int]:
    """How many records each partition gets, all of which are there and whole.

    Raises StagedError, CorruptionError, OSError.
    """
    seen: set[str] = set()
    for file in transaction.staged:
        path = files.staged(file.name)
        name = StagedName.parse(file.name)
        if name is None or (name.sink, name.epoch) != (transaction.sink, transaction.epoch):
            of = f"epoch {transaction.epoch} of sink {transaction.sink!r}"
            raise StagedError(path, f"that was not staged for {of}")
        if file.name in seen:
            raise StagedError(path, "the staged file is given twice")
        seen.add(file.name)
        if not file.extents:
            continue  # nothing was staged, and there is no file
        with StagedReader(fs, files, file.name, varuint=varuint) as reader:
            end = reader.check_head(partition_count)
            for extent in file.extents:
                if not 0 <= extent.partition < partition_count or extent.start < end or extent.records < 1:
                    raise StagedError(path, f"{extent} is none of it")
                reader.verify(extent)
                end = extent.start + extent.size
    return shares_of(transaction.staged)


def write_intent(fs: FileSystem, files: StreamFiles, intent: Intent) -> None:
    """Make it durable. Raises DiskFullError, nothing has changed; OSError, nobody knows."""
    _replace(fs, intent.replacing(files))


# --- behind it ------------------------------------------------------------------------------------


def roll_forward(
    stream: TransactionTarget, fs: FileSystem, intent: Intent, *, varuint: bool, is_new: bool
) -> None:
    """Append what is not there yet, and note that it is committed.

    The intent is durable; `is_new`: by this very process, so that nothing of it is there. Raises
    CorruptionError, StagedError, DiskFullError, StorageFailedError, OSError: the intent is there still.
    """
    if not is_new:
        intent = _as_found(stream, fs, intent, varuint)
    _append(stream, fs, intent, varuint)
    stream.log.sync()
    note_committed(fs, stream.files, intent.sink, Committed(intent.epoch, intent.query))
    forget(fs, stream.files)


def note_committed(fs: FileSystem, files: StreamFiles, sink: str, last: Committed) -> None:
    """Make it durable that the sink has come so far. Raises as `write_intent`."""
    _replace(fs, last.replacing(files, sink))


def forget(fs: FileSystem, files: StreamFiles) -> None:
    """Remove an intent that is carried out, and what was staged for epochs that are committed.

    That they are is durable, and says enough of whatever a power cut brings back.
    """
    removals = [files.intent] if fs.size_of(files.intent) is not None else []
    Barrier(removals=(*removals, *finished(fs, files))).execute(fs)


def _replace(fs: FileSystem, replacement: Replacement) -> None:
    # Nothing may be removed in the same barrier: on a full disk that would come first.
    if not Barrier(replacements=(replacement,)).execute(fs):
        raise DiskFullError(replacement.path, NO_ROOM)


def _append(stream: TransactionTarget, fs: FileSystem, intent: Intent, varuint: bool) -> None:
    offsets = stream.next_offsets
    left = {p: offsets[p] - share.start + share.skip for p, share in intent.shares.items()}  # to pass over
    for file in intent.staged:
        with StagedReader(fs, stream.files, file.name, varuint=varuint) as reader:
            for extent in file.extents:
                skip = min(left[extent.partition], extent.records)
                left[extent.partition] -= skip
                if skip < extent.records:
                    for data in reader.records(extent, skip):
                        stream.accept_encoded(extent.partition, data)
    stream.log.flush()


# --- what is there already ------------------------------------------------------------------------


def _as_found(stream: TransactionTarget, fs: FileSystem, intent: Intent, varuint: bool) -> Intent:
    """The intent, by whose offsets all that is there is as it says. Replaced durably where it was not so."""
    shares = dict(intent.shares)
    for partition, share in intent.shares.items():
        there = _there(stream, fs, intent, partition, varuint)
        next_offset = stream.next_offsets[partition]
        if share.start + there != next_offset:
            # Somebody else's messages are there. Ours go on behind them.
            shares[partition] = PartitionShare(next_offset, share.skip + there, share.records)
    if shares == intent.shares:
        return intent
    intent = replace(intent, shares=shares)
    write_intent(fs, stream.files, intent)
    return intent


def _there(stream: TransactionTarget, fs: FileSystem, intent: Intent, partition: int, varuint: bool) -> int:
    """How many of the records that a partition is to get stand where they are to stand."""
    share = intent.shares[partition]
    files = stream.files.partition(partition)
    with PartitionReader(fs, files, varuint=varuint) as reader:
        # Of complete segments that are full of them retention may have removed some.
        at = min(max(share.start, reader.first_offset()), share.offsets.stop)
        try:
            reader.seek(at)
        except OffsetOutOfRangeError:
            return 0  # even what was there before is gone
        if at == stream.next_offsets[partition]:
            return at - share.start
        expected = _staged(stream, fs, intent, partition, share.skip + at - share.start, varuint)
        seen = 0
        while at < share.offsets.stop:
            message = reader.read()
            for gap in reader.losses[seen:]:
                if gap.start == gap.end:
                    return max(at, gap.offset) - share.start  # nobody was given these offsets
                # CorruptBlock bytes: what they held was there.
                for _ in range(min(gap.offset + gap.count, share.offsets.stop) - max(at, gap.offset)):
                    next(expected, None)
                    at += 1
            seen = len(reader.losses)
            if message is None or message.offset != at or not _is_same(message, next(expected, None)):
                break
            at += 1
        return at - share.start


def _staged(
    stream: TransactionTarget, fs: FileSystem, intent: Intent, partition: int, skip: int, varuint: bool
) -> Iterator[Message]:
    """The records staged for a partition, but for the first `skip`."""
    for file in intent.staged:
        with StagedReader(fs, stream.files, file.name, varuint=varuint) as reader:
            for extent in file.extents:
                if extent.partition != partition:
                    continue
                if skip < extent.records:
                    for data in reader.records(extent, skip):
                        yield from scan(data, varuint=varuint).messages
                skip = max(0, skip - extent.records)


def _is_same(message: Message, other: Message | None) -> bool:
    if other is None:
        return False
    return (message.key, message.timestamp_ns, message.value) == (other.key, other.timestamp_ns, other.value)


def intent_of(transaction: Transaction, records: dict[int, int], next_offsets: tuple[int, ...]) -> Intent:
    """The transaction, to be appended where its partitions end now."""
    shares = {
        partition: PartitionShare(next_offsets[partition], 0, number) for partition, number in records.items()
    }
    staged = tuple(file for file in transaction.staged if file.extents)
    return Intent(transaction.sink, transaction.epoch, transaction.query, shares, staged)
