# Dead letters: messages that will not be delivered, each with the reason. Law: a dead letter is on stable
# storage before its message leaves the spool, and it is removed after its replacement, if any, is on stable
# storage.
#
# They are messages of an NSQ queue of their own, `dead`, in the spool's directory. After a crash between the
# write of a dead letter and the removal of its message, there may be a second one; both have the message's
# id, and the first one counts. Single dead letters are removed from the middle by appending again what is to
# stay and removing all before it: a crash in between again leaves some twice, but loses none. Format:
# docs/format/spool.md.

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from diskq.engine.log.reader import SkippedBytes
from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.queue.snapshot import QueueSnapshot, SnapshotRange, SnapshotReader
from diskq.engine.spool.files import DEAD, SPOOL
from diskq.options import QueueOptions
from diskq.storage.closing import Closing
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path
from diskq.storage.repairs import Repair, RepairKind

__all__ = ["DeadLetter", "DeadLetters", "view_dead_letters"]

VERSION = 1
_LONGEST_REASON = 4000
# A dead letter is a little longer than its message, whose limits may be those of the format.
_OPTIONS = QueueOptions(max_message_size=2**31 - 1)
_PEEKED_AT_ONCE = 1000
# The size of the length before each message.
_OVERHEAD = 4


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up."""

    id: str
    """The message's id, as in `Batch.ids`."""
    reason: str
    timestamp_ns: int
    """When it was given up, in nanoseconds since the Unix epoch."""
    attempts: int
    """How often its delivery was tried."""
    body: bytes

    def _pack(self) -> bytes:
        head = {
            "version": VERSION,
            "id": self.id,
            "reason": self.reason[:_LONGEST_REASON],
            "time": self.timestamp_ns,
            "attempts": self.attempts,
        }
        return json.dumps(head, ensure_ascii=True).encode() + b"\n" + self.body

    @classmethod
    def _unpack(cls, envelope: bytes, place: str) -> DeadLetter:
        """Parse a dead letter. One from another program has only a body, and `place` for its id."""
        line, _, body = envelope.partition(b"\n")
        try:
            head = json.loads(line)
            if head["version"] == VERSION:
                return cls(
                    str(head["id"]), str(head["reason"]), int(head["time"]), int(head["attempts"]), body
                )
            reason = f"a dead letter of version {head['version']}, which this diskq cannot read"
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            reason = "not written by a spool"
        return cls(place, reason, 0, 0, envelope)


DeadLetterList = list[DeadLetter]
Envelopes = list[tuple[DeadLetter, bytes]]


class DeadLetters(Closing):
    """The dead letters of the spool at `path`, while no process has it open.

    For one thread at a time. A program that has the spool open finds them at `spool.dead_letters`.
    """

    def __init__(self, path: AnyPath, *, fs: FileSystem | None = None) -> None:
        """Raises LockedError, which names the process with the spool open, FileNotFoundError and other
        OSErrors.
        """
        self._fs = fs or OsFileSystem()
        self._path = as_path(path)
        self._queue = Queue(self._path, DEAD, options=_OPTIONS, fs=self._fs, never_empty=True)
        self._losses: dict[tuple[str, int], Repair] = {}  # found by `list`, by file and byte

    def close(self) -> None:
        self._queue.close()

    def __len__(self) -> int:
        """The number of dead letters; a crash may have left some twice."""
        return self._queue.depth

    def list(self) -> DeadLetterList:
        """Return all of them, in the order in which they were given up. Reads them all."""
        losses: list[SkippedBytes] = []
        dead_letters = _look(self._fs, self._path, losses)  # unlike peeking, this leaves nothing in memory
        for loss in losses:
            self._losses.setdefault((loss.path, loss.start), _as_repair(loss))
        return dead_letters

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """The repairs of the dead letters' files, at the open and in reading them since."""
        found = self._queue.repairs
        known = {(repair.path, repair.kept) for repair in found}
        return found + tuple(repair for place, repair in tuple(self._losses.items()) if place not in known)

    def replay(self, ids: Collection[str] | None = None) -> int:
        """Put the messages of these dead letters, or of all, at the spool's tail. Returns how many.

        They are messages like any other then, with new ids. They are durable before the dead letters are
        removed: a crash in between leaves both. Raises LockedError, KeyError for an unknown id,
        DiskFullError: all the dead letters are still there then.
        """
        dead_letters = self._select(ids)
        with Queue(self._path, SPOOL, options=_OPTIONS, fs=self._fs) as spool:
            spool.put_many([letter.body for letter in dead_letters], durability="synced")
        self._remove([letter.id for letter in dead_letters])
        return len(dead_letters)

    def purge(self, ids: Collection[str] | None = None) -> int:
        """Remove these dead letters, or all, for good. Returns how many. Raises as `replay`."""
        dead_letters = self._select(ids)
        self._remove([letter.id for letter in dead_letters])
        return len(dead_letters)

    # --- the steps, for a process that has the spool open -----------------------------------------

    def _add(self, dead_letters: Iterable[DeadLetter]) -> None:
        """Add dead letters, durably. Raises DiskFullError: some of them may be stored all the same."""
        self._queue.put_many([letter._pack() for letter in dead_letters], durability="synced")

    def _select(self, ids: Collection[str] | None) -> DeadLetterList:
        """Return these dead letters, or all, in order. Raises KeyError for an unknown id."""
        dead_letters = self.list()
        if ids is None:
            return dead_letters
        wanted = {ids} if isinstance(ids, str) else set(ids)
        if missing := wanted.difference(letter.id for letter in dead_letters):
            raise KeyError(f"no such dead letter: {', '.join(sorted(missing))}")
        return [letter for letter in dead_letters if letter.id in wanted]

    def _remove(self, ids: Collection[str]) -> None:
        """Remove dead letters, durably. Raises DiskFullError if the others do not fit again: all stay."""
        if not ids:
            return
        gone, queue = set(ids), self._queue
        found = self._envelopes()
        last = max((index for index, (letter, _) in enumerate(found) if letter.id in gone), default=-1)
        stay: dict[str, bytes] = {}
        for letter, envelope in sorted(found[: last + 1], key=lambda pair: _age(pair[0])):
            if letter.id not in gone:
                stay.setdefault(letter.id, envelope)
        queue.put_many(stay.values(), durability="synced")
        queue.advance(last + 1)
        queue.sync()

    def _envelopes(self) -> Envelopes:
        """Return all dead letters, which stay, in the order of the queue, with their messages there."""
        queue = self._queue
        wanted = _PEEKED_AT_ONCE
        while len(envelopes := queue.peek_many(wanted)) == wanted:
            wanted *= 2
        ends = queue.steps.head.peeked_ends(len(envelopes))
        return [
            (DeadLetter._unpack(envelope, f"{end.file}:{end.byte}"), envelope)
            for envelope, end in zip(envelopes, ends, strict=True)
        ]


def _age(letter: DeadLetter) -> tuple[int, ...]:
    """Return a sort key: older ones first; of those given up together, in the order of the spool."""
    return (letter.timestamp_ns, *(int(part) for part in letter.id.split(":") if part.isdecimal()))


def _in_order(dead_letters: Iterable[DeadLetter]) -> DeadLetterList:
    """Return each once, in the order in which they were given up. Of two with one id the older one counts."""
    first: dict[str, DeadLetter] = {}
    for letter in sorted(dead_letters, key=_age):
        first.setdefault(letter.id, letter)
    return list(first.values())


# --- without a lock -------------------------------------------------------------------------------


def view_dead_letters(path: AnyPath, *, fs: FileSystem | None = None) -> list[DeadLetter]:
    """Return the dead letters of the spool at `path`, also while it is in use: no file is changed.

    As `DeadLetters.list`. Raises OSError; QueueMovedError if they are removed faster than they can be read.
    """
    return _look(fs or OsFileSystem(), as_path(path), [])


def _look(fs: FileSystem, directory: str, losses: list[SkippedBytes]) -> list[DeadLetter]:
    """Return the dead letters. What cannot be read is added to `losses`."""
    ranges = itertools.chain.from_iterable(QueueSnapshot(directory, DEAD, fs=fs).plan())
    return _in_order(letter for each in ranges for letter in _dead_letters_of(fs, directory, each, losses))


def _as_repair(loss: SkippedBytes) -> Repair:
    return Repair.of_bytes(loss.path, RepairKind.CORRUPT, loss.start, loss.end, loss.reason, loss.count)


def _dead_letters_of(
    fs: FileSystem, directory: str, part: SnapshotRange, losses: list[SkippedBytes]
) -> Iterator[DeadLetter]:
    end = part.start
    with SnapshotReader(directory, DEAD, [part], fs=fs) as reader:
        while (found := reader.columns()) is not None:
            _, columns = found
            ends = struct.iter_unpack("=i" if columns.offset_width == 4 else "=q", columns.value_offsets)
            for (start,), (stop,) in itertools.pairwise(ends):
                end += _OVERHEAD + stop - start
                yield DeadLetter._unpack(columns.values[start:stop], f"{part.file}:{end}")
        losses += reader.losses
