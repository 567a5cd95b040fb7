"""The errors of diskq, all derived from `DiskqError`.

Every error names the path, the place and what to do; none carries a message's bytes.
Channels also raise Trio's own errors, on asyncio as well: `diskq.ClosedResourceError` is Trio's, and so are
`BrokenResourceError`, `BusyResourceError`, `WouldBlock` and `EndOfChannel`. They have an error of this module
as the cause where there is one.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = [
    "BusyError",
    "ConversionError",
    "ConversionLossError",
    "CorruptionError",
    "DamagedStoreError",
    "DiskFullError",
    "DiskqError",
    "ExistsError",
    "ForeignFilesError",
    "ForkedError",
    "FullError",
    "GroupNameError",
    "HubError",
    "KeySizeError",
    "LeaseError",
    "LineError",
    "LockedError",
    "MessageSizeError",
    "NotAFileError",
    "NotFoundError",
    "OffsetMismatchError",
    "OffsetOutOfRangeError",
    "Permanent",
    "PriorityRangeError",
    "QueueMovedError",
    "QueueNameError",
    "ReaderNameError",
    "Retry",
    "ShardNameError",
    "SinkError",
    "SinkNameError",
    "StagedError",
    "StorageFailedError",
    "TableGapError",
    "TableMismatchError",
    "UnsupportedFormatError",
]


class DiskqError(Exception):
    """The root of diskq's own errors. Each can be pickled, for another process: with its text and fields."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by calling the class with `args`, as pickle does by itself: those are the text alone.
        if isinstance(self, OSError):  # its constructor has taken the path out of `args`
            return _unpickled, (type(self), self.errno, self.strerror, self.filename), self.__dict__
        return _unpickled, (type(self), *self.args), self.__dict__


def _unpickled(kind: type[DiskqError], *args: Any) -> DiskqError:
    error = kind.__new__(kind, *args)
    if isinstance(error, OSError):
        OSError.__init__(error, *args)
    return error


# --- what the files say ---------------------------------------------------------------------------


class CorruptionError(DiskqError):
    """The file holds bytes that no writer wrote.

    Never raised for a torn tail, which every crash may leave. Raised only if the caller
    asked for strictness (`strict=True`): otherwise damage is reported as a `Repair` and
    reading goes on after it.
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path}: corrupt at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class DamagedStoreError(CorruptionError):
    """A store of priority queues cannot be opened: without the damaged bytes its state is unknown.

    Raised without `strict`, too: skipping a command would invent a state. `lsn` is the number of the
    first record that cannot be read, or None if no record is concerned; `kind` names the damage in one word.
    """

    def __init__(
        self, path: str, position: int, reason: str, *, kind: str, root: str, lsn: int | None
    ) -> None:
        where = f"byte {position}" if lsn is None else f"byte {position}, record {lsn}"
        Exception.__init__(
            self, f"{path}: damaged at {where}: {reason}; `diskq repair {root}` saves what can be read"
        )
        self.path = path
        self.position = position
        self.reason = reason
        self.kind = kind
        self.lsn = lsn


class UnsupportedFormatError(DiskqError):
    """The files are of a kind or a version that this diskq does not read."""

    def __init__(self, path: str, found: str, supported: str) -> None:
        super().__init__(f"{path}: found {found}, supported: {supported}")
        self.path = path
        self.found = found
        self.supported = supported


class NotFoundError(DiskqError, LookupError):
    """There is no such store, or no such part of it: a queue of a priority store, a partition of a stream.

    `kind` says what is missing, as in the message: "queue", "stream", "partition", "journal", "spool",
    "priority store", "priority queue", "hub". `path` is where it was looked for.
    """

    def __init__(self, kind: str, path: str, reason: str = "", *, way_out: str = "") -> None:
        super().__init__(f"{path}: {reason or f'there is no {kind} here'}{way_out and '; '}{way_out}")
        self.kind = kind
        self.path = path
        self.reason = reason

    @classmethod
    def with_create_false(cls, kind: str, path: str, reason: str = "") -> NotFoundError:
        """Of a store that is opened with `create=False`."""
        way_out = "open it without create=False to make it, or start first what makes it"
        return cls(kind, path, reason, way_out=way_out)


class OffsetOutOfRangeError(DiskqError, LookupError):
    """The offset is before the first message of the partition or journal, or beyond its end.

    `first_offset` is the first one that exists, `next_offset` the one that the next message will get;
    `partition` is 0 for a journal.
    """

    def __init__(
        self, path: str, partition: int | None, offset: int, first_offset: int, next_offset: int
    ) -> None:
        what = "is gone" if offset < first_offset else "is not there yet"
        where = path if partition is None else f"{path}[{partition}]"
        super().__init__(
            f"offset {offset} of {where} {what}: the first is {first_offset}, the next is {next_offset}"
        )
        self.path = path
        self.partition: int = partition or 0
        self.offset = offset
        self.first_offset = first_offset
        self.next_offset = next_offset


class QueueMovedError(DiskqError, LookupError):
    """A snapshot of a queue cannot be read any more: its messages were consumed and their file was removed.

    The messages read from it so far are valid. A new snapshot begins where the queue is now.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class ForeignFilesError(DiskqError):
    """A directory that belongs to a stream, or a table, holds files that are not its own."""

    def __init__(
        self,
        path: str,
        names: list[str],
        reason: str = "is not a stream's file; move it elsewhere, go-diskq stops at it",
    ) -> None:
        some = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
        super().__init__(f"{path}: {some} {reason}")
        self.path = path
        self.names = names


class TableMismatchError(DiskqError):
    """The table has messages of another stream or journal, or of this one before it was made again.

    Nothing was written. `path` is the table's directory, `source` that of the stream or journal.
    """

    def __init__(self, path: str, source: str, reason: str) -> None:
        super().__init__(f"{path} is not a table of {source}: {reason}")
        self.path = path
        self.source = source
        self.reason = reason


class TableGapError(DiskqError, LookupError):
    """Messages with offsets `first_offset` to `next_offset` - 1 are missing in a table, or would be.

    Those before them are there, and nothing after them was written. `path` is the table's directory;
    `partition` is 0 for a journal.
    """

    def __init__(self, path: str, partition: int, first_offset: int, next_offset: int, reason: str) -> None:
        missing = f"offsets {first_offset} to {next_offset - 1}"
        super().__init__(f"{path}, partition {partition}: {missing} are missing: {reason}")
        self.path = path
        self.partition = partition
        self.first_offset = first_offset
        self.next_offset = next_offset
        self.reason = reason


class NotAFileError(DiskqError, OSError):
    """A named pipe, a device, a link or a directory is where one of diskq's files should be.

    It was not read, written or waited for. `path` is its path, and `what` says what it is.
    """

    def __init__(self, path: str, what: str, number: int = errno.EINVAL) -> None:
        super().__init__(number, f"{what} where a file should be; move it away", path)
        self.path = path
        self.what = what


# --- who may use them -----------------------------------------------------------------------------


_WAYS_OUT = (
    "close it there first, or wait for that: wait=5.0. For several processes there are spools with "
    "slots=True, and groups that read a stream"
)


class LockedError(DiskqError):
    """Another program has the files open for writing. `holder` names it, and says since when."""

    def __init__(self, path: str, holder: str, advice: str = _WAYS_OUT) -> None:
        super().__init__(f"{path} is in use by {holder}; {advice}")
        self.path = path
        self.holder = holder


class BusyError(DiskqError, RuntimeError):
    """The channel belongs to the thread of its event loop, and another thread has called it.

    The refused call did nothing. Threads can send into a channel with `open_thread_sender`. Engines, which
    run without Trio, may be used by any threads, whose calls wait for each other. `path` names the channel.
    """

    def __init__(self, path: str, *, is_channel: bool = False) -> None:
        super().__init__(
            f"{path} belongs to the thread of its event loop, and this is another one: send with "
            "diskq.open_thread_sender, or have trio.from_thread.run make the call"
            if is_channel
            else f"{path}: another thread is inside a call"
        )
        self.path = path


class ForkedError(DiskqError, RuntimeError):
    """The store was opened by another process, before os.fork(), and belongs to it. Nothing was done.

    In the child every call raises this, but a `with` block that it inherited ends silently. Open the store in
    the child, after the parent has closed it. `path` names the store, or is empty if that is not known;
    `pid` is the process that opened it.
    """

    def __init__(self, path: str, pid: int) -> None:
        super().__init__(
            f"{path or 'this'}: opened before a fork by process {pid}, which keeps it; open it here after "
            "that process has closed it"
        )
        self.path = path
        self.pid = pid


# --- what the caller gave -------------------------------------------------------------------------


class QueueNameError(DiskqError, ValueError):
    """The queue name cannot become part of file names."""

    def __init__(self, name: object, reason: str) -> None:
        super().__init__(f"queue name {name!r}: {reason}")
        self.name = name
        self.reason = reason


class ExistsError(DiskqError):
    """What was to be made is there already: `kind` says what, as in `NotFoundError`. Nothing was changed."""

    def __init__(self, kind: str, path: str, reason: str = "") -> None:
        super().__init__(f"{path}: {reason or f'there is a {kind} already'}")
        self.kind = kind
        self.path = path
        self.reason = reason


class PriorityRangeError(DiskqError, ValueError):
    """The priority is outside the range that its queue allows. Nothing was written."""

    def __init__(self, priority: int, minimum: int, maximum: int) -> None:
        super().__init__(f"priority {priority}: allowed are {minimum} to {maximum}")
        self.priority = priority
        self.minimum = minimum
        self.maximum = maximum


class MessageSizeError(DiskqError, ValueError):
    """The message is smaller or larger (bytes) than the options allow. Nothing was written."""

    def __init__(self, size: int, minimum: int, maximum: int) -> None:
        super().__init__(f"message of {size} bytes: allowed are {minimum} to {maximum} bytes")
        self.size = size
        self.minimum = minimum
        self.maximum = maximum


class LeaseError(DiskqError, LookupError):
    """The lease has ended: it was acknowledged or given back before, or its work is over.

    `id` is the message's id, as in the lease. The call did nothing, also for its other leases.
    """

    def __init__(self, queue: str, lease_id: object) -> None:
        super().__init__(
            f"the lease of message {lease_id} of queue {queue!r} has ended: it was acknowledged, given "
            "back, or its work is over"
        )
        self.queue = queue
        self.id = lease_id


class LineError(DiskqError, ValueError):
    """A line of JSON is not a message, or the target cannot accept it."""

    def __init__(self, path: str, number: int, reason: str) -> None:
        super().__init__(f"{path}, line {number}: {reason}")
        self.path = path
        self.number = number
        self.reason = reason


class ConversionError(DiskqError, ValueError):
    """A message cannot be converted to another format. `where` gives its number and offset."""

    def __init__(self, source: str, where: str, reason: str) -> None:
        super().__init__(f"{source}: {where}: {reason}")
        self.source = source
        self.where = where
        self.reason = reason


class ConversionLossError(DiskqError):
    """A conversion would lose fields, and the caller did not allow that. Nothing was written.

    `losses` maps each field to the number of messages that have it.
    """

    def __init__(self, source: str, losses: Mapping[str, int], summary: str) -> None:
        super().__init__(f"{source}: this loses: {summary}")
        self.source = source
        self.losses = dict(losses)


class GroupNameError(DiskqError, ValueError):
    """The consumer group's name cannot become the name of a directory."""

    def __init__(self, name: object, reason: str) -> None:
        super().__init__(f"group name {name!r}: {reason}")
        self.name = name
        self.reason = reason


class KeySizeError(DiskqError, ValueError):
    """The message's key is longer (bytes) than the options allow. Nothing was written."""

    def __init__(self, size: int, maximum: int) -> None:
        super().__init__(f"key of {size} bytes: at most {maximum} bytes are allowed")
        self.size = size
        self.maximum = maximum


class ReaderNameError(DiskqError, ValueError):
    """The name of a journal's reader cannot become a file name."""

    def __init__(self, name: object, reason: str) -> None:
        super().__init__(f"reader name {name!r}: {reason}")
        self.name = name
        self.reason = reason


class ShardNameError(DiskqError, ValueError):
    """The prefix of the shards cannot become part of a directory name."""

    def __init__(self, prefix: object, reason: str) -> None:
        super().__init__(f"shard prefix {prefix!r}: {reason}")
        self.prefix = prefix
        self.reason = reason


class OffsetMismatchError(DiskqError, ValueError):
    """The caller gave a message `offset`, but the journal's next one is `expected`. Nothing was written."""

    def __init__(self, path: str, offset: int, expected: int) -> None:
        super().__init__(f"{path}: message {offset} was given, the next one is {expected}")
        self.path = path
        self.offset = offset
        self.expected = expected


class SinkNameError(DiskqError, ValueError):
    """The sink's name cannot become part of file names."""

    def __init__(self, name: object, reason: str) -> None:
        super().__init__(f"sink name {name!r}: {reason}")
        self.name = name
        self.reason = reason


class SinkError(DiskqError):
    """The sink has committed transactions of another query, so its epochs say nothing about this one.

    Nothing was committed. Give the query a sink of its own; or, if it is to continue where the other query
    ended, the other query's name.
    """

    def __init__(self, path: str, sink: str, found: str, given: str) -> None:
        super().__init__(f"{path}: sink {sink!r} belongs to query {found!r}, not to {given!r}")
        self.path = path
        self.sink = sink
        self.found = found
        self.given = given


class StagedError(DiskqError):
    """A staged file is missing, is given twice, or does not fit this stream's partitions or encoding.

    If a commit raises it, nothing was committed: stage the file again. If an open raises it, the transaction
    was committed already, and the stream cannot be opened while the file is missing.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


# --- what the disk did ----------------------------------------------------------------------------


class FullError(DiskqError):
    """No space: within `max_bytes`, `max_messages` or a budget; or, as a `DiskFullError`, on the disk.

    Nothing partial is left in the files and the store stays usable: consume, free space, send again.
    `accepted` counts the messages of a batch that were written nevertheless (always 0 for a single send). In
    a queue they are the first ones: repeat the batch from there. In a stream, whose partitions are written
    one after the other, they may be any: repeat it with `rest`, which holds the others in order.
    """

    def __init__(self, path: str, reason: str, accepted: int = 0, rest: Sequence[Any] = ()) -> None:
        done = f" ({accepted} messages of the batch were accepted)" if accepted else ""
        super().__init__(f"{path}: {reason}{done}")
        self.path = path
        self.reason = reason
        self.accepted = accepted
        self.rest: list[Any] = list(rest)


class DiskFullError(FullError):
    """The disk has no space, or the quota of the disk's user is used up. The store is as in `FullError`."""


class StorageFailedError(DiskqError):
    """The disk broke a promise (an fsync failed), so the store promises nothing more.

    The cause is the `OSError`, or the `KeyboardInterrupt` that ended a sync half-way. Messages that were not
    acknowledged as synced may or may not be in the files. Close and reopen: recovery rewrites what the
    kernel may have dropped.
    """

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: storage failed; close it and reopen to recover")
        self.path = path


# --- what a hub said -----------------------------------------------------------------------------


class HubError(DiskqError):
    """The hub or the connection to it failed a request. `code` is gRPC's name, such as "FAILED_PRECONDITION".

    `expected` is the offset that the hub expects next of this journal, if it said: everything before it is
    stored and synced. `first_offset` is the first that it has. `is_temporary`: the same may work later.
    """

    def __init__(
        self,
        reason: str,
        *,
        code: str = "UNKNOWN",
        expected: int | None = None,
        first_offset: int | None = None,
        is_temporary: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.expected = expected
        self.first_offset = first_offset
        self.is_temporary = is_temporary


# --- what a destination answered: raised by a spool's `deliver` -----------------------------------


class Retry(Exception):
    """Asks the spool to try the same batch again, after `after` seconds; None: after the spool's back-off."""

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        if after is not None and not 0 <= after < math.inf:
            raise ValueError(f"after is 0 or more seconds, got {after}")
        super().__init__(reason or "try again")
        self.reason = reason
        self.after = after


class Permanent(Exception):
    """Says that messages of the batch can never be delivered: they become dead letters.

    `messages` are their places in the batch, from 0, or one; None: all. The others are tried again at once.
    If one of them is no place in the batch, no message becomes a dead letter, and the batch is tried again as
    after a `Retry`: the log and `statistics().last_error` say why.
    """

    def __init__(self, reason: object, messages: Iterable[int] | int | None = None) -> None:
        # Programs pass the exception they caught, or nothing: the dead letter needs a text in any case.
        self.reason: str = _text_of(reason)
        super().__init__(self.reason)
        self.messages: tuple[int, ...] | None = (
            None if messages is None else tuple(messages) if isinstance(messages, Iterable) else (messages,)
        )


def _text_of(reason: object) -> str:
    if reason is None:
        return "no reason was given"
    try:
        return str(reason)
    except Exception:
        return f"<{type(reason).__name__}, whose str() failed>"
