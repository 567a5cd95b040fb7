"""What can go wrong, in one family.

Every error names the path, the place and what to do; none carries a message's bytes.
Trio's own words (`trio.ClosedResourceError`, `trio.BrokenResourceError`, `trio.WouldBlock`, ...)
are raised by the channels; these are raised below them, and travel as their causes.
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
    "ForeignFilesError",
    "GroupNameError",
    "HubError",
    "JournalNotFoundError",
    "KeySizeError",
    "LeaseError",
    "LineError",
    "LockedError",
    "MessageSizeError",
    "OffsetMismatchError",
    "OffsetNameError",
    "OffsetOutOfRangeError",
    "Permanent",
    "PriorityRangeError",
    "QueueExistsError",
    "QueueFullError",
    "QueueMovedError",
    "QueueNameError",
    "QueueNotFoundError",
    "Retry",
    "ShardNameError",
    "SinkError",
    "SinkNameError",
    "StagedError",
    "StorageFailedError",
    "StreamNotFoundError",
    "UnsupportedFormatError",
]


class DiskqError(Exception):
    """The root of diskq's own errors."""


# --- what the files say ---------------------------------------------------------------------------


class CorruptionError(DiskqError):
    """The file holds bytes that no writer wrote.

    Never raised for a torn tail, which every crash may leave. Raised only where the caller
    asked for strictness (`strict=True`): otherwise damage is reported as a `Repair` and
    reading goes on behind it.
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path}: corrupt at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class DamagedStoreError(CorruptionError):
    """A store of priority queues is not opened: without the bytes that are damaged its state is unknown.

    Raised without `strict`, too: to skip a command would be to invent a state. `lsn` is the number of the
    first record that cannot be told, where one is concerned, and `kind` says what is wrong in one word.
    """

    def __init__(
        self, path: str, position: int, reason: str, *, kind: str, root: str, lsn: int | None
    ) -> None:
        where = f"byte {position}" if lsn is None else f"byte {position}, record {lsn}"
        Exception.__init__(
            self, f"{path}: damaged at {where}: {reason}; `diskq repair {root}` saves what can be told"
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


class StreamNotFoundError(DiskqError, LookupError):
    """There is no such stream, or no such partition in it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class JournalNotFoundError(DiskqError, LookupError):
    """There is no journal at this path."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: there is no journal here")
        self.path = path


class OffsetOutOfRangeError(DiskqError, LookupError):
    """An offset before the first message that a partition or a journal has, or beyond the end.

    `first` is the first offset that is there, `next` the one that the next message will get; `partition`
    is 0 for a journal, which is given None.
    """

    def __init__(self, path: str, partition: int | None, offset: int, first: int, next_offset: int) -> None:
        what = "is gone" if offset < first else "is not there yet"
        where = path if partition is None else f"{path}[{partition}]"
        super().__init__(
            f"offset {offset} of {where} {what}: the first is {first}, the next is {next_offset}"
        )
        self.path = path
        self.partition = partition or 0
        self.offset = offset
        self.first = first
        self.next = next_offset


class QueueMovedError(DiskqError, LookupError):
    """A snapshot of a queue cannot be read any more: its messages were taken out, and their file is gone.

    What was read of the snapshot before is good. A new snapshot begins where the queue is now.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class ForeignFilesError(DiskqError):
    """A directory that is a stream's alone holds files that are not the stream's."""

    def __init__(self, path: str, names: list[str]) -> None:
        some = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
        super().__init__(f"{path}: {some} is not a stream's file; move it elsewhere, go-diskq stops at it")
        self.path = path
        self.names = names


class NotAFileError(DiskqError, OSError):
    """Where one of our files should be there is something else: a named pipe, a device, a link, a directory.

    It was not read, written or waited for. `path` says where, and `what` says what it is.
    """

    def __init__(self, path: str, what: str, number: int = errno.EINVAL) -> None:
        super().__init__(number, f"{what} where a file should be; move it away", path)
        self.path = path
        self.what = what


# --- who may use them -----------------------------------------------------------------------------


class LockedError(DiskqError):
    """Somebody else has the files open for writing. `holder` says who, and since when."""

    def __init__(self, path: str, holder: str, advice: str = "close it there first") -> None:
        super().__init__(f"{path} is in use by {holder}; {advice}")
        self.path = path
        self.holder = holder


class BusyError(DiskqError, RuntimeError):
    """Another thread is inside: what is without Trio is for one thread at a time. Nothing was done.

    A lock around each call lets threads share it; where Trio runs, `from_threads` does. A channel belongs to
    the thread of its Trio run alone. `path` says what it is about.
    """

    def __init__(self, path: str, *, is_channel: bool = False) -> None:
        super().__init__(
            f"{path} belongs to the thread of its Trio run, and this is another one: send with "
            "diskq.from_threads, or have trio.from_thread.run make the call"
            if is_channel
            else f"{path}: another thread is inside; hold a lock around each call, or use from_threads"
        )
        self.path = path


class ForkedError(DiskqError, RuntimeError):
    """It was opened before os.fork(), in another process, which has it still. Nothing was done.

    What a child inherits is its parent's: every call raises this, and a `with` block is left without
    a word. Open it in the child, when the parent has closed it. `path` says what it is about, where that is
    known, and `pid` is the process that opened it.
    """

    def __init__(self, path: str, pid: int) -> None:
        super().__init__(
            f"{path or 'this'}: opened before a fork, by process {pid}, whose it is; open it in this process"
        )
        self.path = path
        self.pid = pid


# --- what the caller gave -------------------------------------------------------------------------


class QueueNameError(DiskqError, ValueError):
    """A queue's name becomes part of file names, and this one cannot."""

    def __init__(self, name: object, reason: str) -> None:
        super().__init__(f"queue name {name!r}: {reason}")
        self.name = name
        self.reason = reason


class QueueNotFoundError(DiskqError, LookupError):
    """The store has no queue of this name, or has it no more."""

    def __init__(self, path: str, name: str) -> None:
        super().__init__(f"{path} has no queue {name!r}")
        self.path = path
        self.name = name


class QueueExistsError(DiskqError):
    """The store has a queue of this name already."""

    def __init__(self, path: str, name: str) -> None:
        super().__init__(f"{path} has a queue {name!r} already")
        self.path = path
        self.name = name


class QueueFullError(DiskqError):
    """A queue holds as many messages as it may, those in hand included. Nothing was written."""

    def __init__(self, name: str, limit: int, stored: int) -> None:
        super().__init__(f"queue {name!r} holds {stored} messages: {limit} are allowed")
        self.name = name
        self.limit = limit
        self.stored = stored


class PriorityRangeError(DiskqError, ValueError):
    """A priority outside what its queue allows. Nothing was written."""

    def __init__(self, priority: int, minimum: int, maximum: int) -> None:
        super().__init__(f"priority {priority}: allowed are {minimum} to {maximum}")
        self.priority = priority
        self.minimum = minimum
        self.maximum = maximum


class MessageSizeError(DiskqError, ValueError):
    """A message is smaller or larger (bytes) than the options allow. Nothing was written."""

    def __init__(self, size: int, minimum: int, maximum: int) -> None:
        super().__init__(f"message of {size} bytes: allowed are {minimum} to {maximum} bytes")
        self.size = size
        self.minimum = minimum
        self.maximum = maximum


class LeaseError(DiskqError, LookupError):
    """A lease that has ended: it was acknowledged or given back before, or its work is over.

    `id` is the message's, as in the lease. Nothing was done, for none of the leases in the call.
    """

    def __init__(self, queue: str, lease_id: object) -> None:
        super().__init__(
            f"the lease of message {lease_id} of queue {queue!r} has ended: it was acknowledged, given "
            "back, or its work is over"
        )
        self.queue = queue
        self.id = lease_id


class LineError(DiskqError, ValueError):
    """A line of JSON is no message, or none that can be taken."""

    def __init__(self, path: str, number: int, reason: str) -> None:
        super().__init__(f"{path}, line {number}: {reason}")
        self.path = path
        self.number = number
        self.reason = reason


class ConversionError(DiskqError, ValueError):
    """A message cannot be carried into another format. `where` says which one, by number and offset."""

    def __init__(self, source: str, where: str, reason: str) -> None:
        super().__init__(f"{source}: {where}: {reason}")
        self.source = source
        self.where = where
        self.reason = reason


class ConversionLossError(DiskqError):
    """A conversion would lose something, and was not told that it may. Nothing was written.

    `losses` says of what, and how many messages have it.
    """

    def __init__(self, source: str, losses: Mapping[str, int], told: str) -> None:
        super().__init__(f"{source}: this loses: {told}")
        self.source = source
        self.losses = dict(losses)


class GroupNameError(DiskqError, ValueError):
    """A consumer group's name becomes the name of a directory, and this one cannot."""

    def __init__(self, name: object, reason: str) -> None:
        super().__init__(f"group name {name!r}: {reason}")
        self.name = name
        self.reason = reason


class KeySizeError(DiskqError, ValueError):
    """A message's key is longer (bytes) than the options allow. Nothing was written."""

    def __init__(self, size: int, maximum: int) -> None:
        super().__init__(f"key of {size} bytes: at most {maximum} bytes are allowed")
        self.size = size
        self.maximum = maximum


class OffsetNameError(DiskqError, ValueError):
    """The name of a journal's reader becomes a file name, and this one cannot."""

    def __init__(self, name: object, reason: str) -> None:
        super().__init__(f"offset name {name!r}: {reason}")
        self.name = name
        self.reason = reason


class ShardNameError(DiskqError, ValueError):
    """The prefix of shards becomes a directory name, and this one cannot."""

    def __init__(self, prefix: object, reason: str) -> None:
        super().__init__(f"shard prefix {prefix!r}: {reason}")
        self.prefix = prefix
        self.reason = reason


class OffsetMismatchError(DiskqError, ValueError):
    """A message was to get `offset`, but the journal's next one is `expected`. Nothing was written."""

    def __init__(self, path: str, offset: int, expected: int) -> None:
        super().__init__(f"{path}: message {offset} was given, the next one is {expected}")
        self.path = path
        self.offset = offset
        self.expected = expected


class SinkNameError(DiskqError, ValueError):
    """A sink's name becomes part of file names, and this one cannot."""

    def __init__(self, name: object, reason: str) -> None:
        super().__init__(f"sink name {name!r}: {reason}")
        self.name = name
        self.reason = reason


class SinkError(DiskqError):
    """The sink has committed transactions of another query: its epochs do not tell what of this one is in.

    Nothing was committed. Give the query a sink of its own; or, if it is to go on where the other one
    ended, the other one's name.
    """

    def __init__(self, path: str, sink: str, found: str, given: str) -> None:
        super().__init__(f"{path}: sink {sink!r} belongs to query {found!r}, not to {given!r}")
        self.path = path
        self.sink = sink
        self.found = found
        self.given = given


class StagedError(DiskqError):
    """A staged file is gone, or was staged for another stream than this one has become.

    Raised by a commit, nothing was committed: stage it again. Raised by an open, the transaction was
    committed already, and the stream is not opened while the file is not there.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


# --- what the disk did ----------------------------------------------------------------------------


class DiskFullError(DiskqError):
    """There is no room: the queue's own byte bound, a quota, or the disk itself.

    Nothing partial is left behind and the queue stays usable: consume, free space, send again.
    `accepted` counts the messages of a batch that are in all the same (always 0 for a single send). Of
    a queue they are the first: repeat the batch from there. Of a stream, whose partitions are written
    one after the other, they may be any: repeat it with `rest`, which are the others, in order.
    """

    def __init__(self, path: str, reason: str, accepted: int = 0, rest: Sequence[Any] = ()) -> None:
        done = f" ({accepted} messages of the batch were accepted)" if accepted else ""
        super().__init__(f"{path}: {reason}{done}")
        self.path = path
        self.reason = reason
        self.accepted = accepted
        self.rest = list(rest)


class StorageFailedError(DiskqError):
    """The disk broke a promise (an fsync failed), so no promise is made on it any more.

    The cause is the `OSError`. What was not acknowledged as synced may or may not be in the
    files. Close and reopen: recovery rewrites what the kernel may have dropped.
    """

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: storage failed; close it and reopen to recover")
        self.path = path


# --- what a hub said -----------------------------------------------------------------------------


class HubError(DiskqError):
    """The hub, or what is between, refused. `code` is gRPC's word for it, such as "FAILED_PRECONDITION".

    `expected` is the offset that the hub expects next of this journal, where it told: everything before is
    there, and synced. `first` is the first that it has. `is_temporary`: the same may work later.
    """

    def __init__(
        self,
        reason: str,
        *,
        code: str = "UNKNOWN",
        expected: int | None = None,
        first: int | None = None,
        is_temporary: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.expected = expected
        self.first = first
        self.is_temporary = is_temporary


# --- what a destination said: raised by who delivers for a spool --------------------------------------


class Retry(Exception):
    """Try the same batch again, not before `after` seconds; None: when the spool's back-off says so."""

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        if after is not None and not 0 <= after < math.inf:
            raise ValueError(f"after is 0 or more seconds, got {after}")
        super().__init__(reason or "to be tried again")
        self.reason = reason
        self.after = after


class Permanent(Exception):
    """These messages of the batch will never be delivered: they become dead letters.

    `items` are their places in the batch, from 0; None: all of them. The others are tried again.
    """

    def __init__(self, reason: object, items: Iterable[int] | None = None) -> None:
        # Programs give what they caught, or nothing: the dead letter needs a text all the same.
        self.reason = _text_of(reason)
        super().__init__(self.reason)
        self.items = None if items is None else tuple(items)


def _text_of(reason: object) -> str:
    if reason is None:
        return "no reason was given"
    try:
        return str(reason)
    except Exception:
        return f"<{type(reason).__name__}, whose text cannot be had>"
