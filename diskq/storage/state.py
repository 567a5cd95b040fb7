# What the last writer of a store left behind, for recovery: one small file, `.diskq/state`. Law: a barrier
# replaces it, whole or not at all. Between two barriers only its first sector is written over, by one call
# and without a sync: that is for notes that only a kill needs, as the page cache outlives a process.
#
# The sector has its own check. What comes after it is the recovery points of a stream or a journal, with
# theirs: a sector that a power cut has torn costs its notes, and no point.
#
# The state of one open: what is found (`previous`) counts until the first barrier. `sign` plans what that
# barrier writes. If the disk is too full for it, the file stays as the previous writer left it, and
# `is_pending` stays True: no message may be written before the file is.
#
# Versions without this file had the same in their lock file and their points: old_state.py reads them.
# Format: docs/format/state.md.

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from diskq.storage.barrier import Barrier, Replacement, let_go, opened, read_small, write_all
from diskq.storage.checksums import checksum
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem
from diskq.storage.lock import parse_holder
from diskq.storage.old_state import old_fields, old_points

__all__ = [
    "HEAD_SIZE",
    "LastWriter",
    "StoreState",
    "as_bits",
    "bits_in",
    "has_state",
    "read_rest",
    "read_state",
    "redo_named_by",
    "with_rest",
]

HEAD_SIZE = 512
"""Bytes of the first part: one sector, written by one call, so that no process reads half of it."""

# The most write-ahead logs of a stream: their numbers must fit into the sector.
_MOST_STAGED = 64
# Bytes. Far more than one line for each partition that a stream may have.
_LARGEST = 64 * 1024 * 1024
HAS_STATE = b'"has_state": 1'
"""A lock file with this is of a version that has a state."""

# First in the sector: the crc32c of what comes after it, in 8 hex digits.
_CHECK = re.compile(rb'\{"check": "(?P<check>[0-9a-f]{8})", (?P<rest>.*\}) *\n', re.DOTALL)


class StateFiles(Protocol):
    """The paths of a store's state, and of what earlier versions had instead."""

    @property
    def lock(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def old_points(self) -> str | None: ...

    def state_temporary(self, number: int) -> str:
        """Return the path of a temporary file, for a replacement of the state."""


@dataclass(frozen=True, slots=True)
class LastWriter:
    """What the sector says. Fields that it lacks are empty or 0."""

    boot_id: str = ""
    """The boot of the machine in which it wrote."""
    staged: tuple[int, ...] = ()
    """The numbers of its write-ahead logs in use: after a kill they should exist."""
    recovering_since: int = 0
    """The Unix time at which it began a recovery after a kill that is not finished; 0: none."""
    has_restarted: bool = False
    """True if that recovery came after a restart of the machine, so that files may be missing."""
    newest: int = -1
    """For a priority store: the number of the segment of its log that was written to last; -1: unknown."""
    never_empty: bool = False
    """For a queue: True if it has no empty messages, so that zeros after the last one are not messages."""
    is_closed: bool = False
    """For a queue: True if it was closed after everything written was durable."""
    redo: int = 0
    """The number of its redo log; 0: it has none, or nothing in it is needed."""
    is_displaced: bool = False
    """True if another program may have written where the records of the redo log belong."""
    is_unlogged: bool = False
    """True if it had no space for a write-ahead log: after a kill the last messages have no checksums."""
    has_foreign: bool = False
    """For a queue: True if it has messages of another program that no spool has taken up since."""
    old_lock: int = 0
    """The crc32c of the lock file of an earlier version from which this was taken; 0: from none."""
    is_readable: bool = True
    """False if there is a state, and it cannot be read."""

    def is_of_this_boot(self, fs: FileSystem) -> bool:
        """True if the machine has not been restarted since."""
        return self.boot_id == fs.identity().boot_id

    def render(self) -> bytes:
        """Return the sector."""
        content: dict[str, str | int] = {"boot_id": self.boot_id}
        if self.staged:
            content["staged"] = as_bits(self.staged)
        if self.newest >= 0:
            content["newest"] = self.newest
        for name in _NUMBERS:
            if number := int(getattr(self, name)):
                content[name] = number
        rest = json.dumps(content).encode()[1:]
        text = b'{"check": "%08x", %s' % (checksum(rest), rest)
        return text.ljust(HEAD_SIZE - 1) + b"\n"

    @classmethod
    def parse(cls, sector: bytes) -> LastWriter | None:
        """Parse what `render` returns. None for any other bytes."""
        found = _CHECK.fullmatch(sector)
        if len(sector) != HEAD_SIZE or found is None or int(found["check"], 16) != checksum(found["rest"]):
            return None
        return cls.of(b"{" + found["rest"])

    @classmethod
    def of(cls, text: bytes) -> LastWriter | None:
        """Return the fields in this JSON; None if it has none."""
        try:
            content = json.loads(text)
            numbers = {name: int(content.get(name, 0)) for name in _NUMBERS}
            return cls(
                str(content["boot_id"]),
                bits_in(content.get("staged", 0)),
                numbers["recovering_since"],
                bool(numbers["has_restarted"]),
                int(content.get("newest", -1)),
                bool(numbers["never_empty"]),
                bool(numbers["is_closed"]),
                numbers["redo"],
                bool(numbers["is_displaced"]),
                bool(numbers["is_unlogged"]),
                bool(numbers["has_foreign"]),
                numbers["old_lock"],
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return None


_NUMBERS = (
    "recovering_since",
    "has_restarted",
    "never_empty",
    "is_closed",
    "redo",
    "is_displaced",
    "is_unlogged",
    "has_foreign",
    "old_lock",
)


def read_state(fs: FileSystem, files: StateFiles) -> LastWriter | None:
    """Return what the last writer left; None if diskq never wrote to the store. Raises OSError."""
    return _found(read_small(fs, files.state, HEAD_SIZE), read_small(fs, files.lock, HEAD_SIZE))


def _found(sector: bytes | None, lock: bytes | None) -> LastWriter | None:
    if _is_old(sector, lock):
        return LastWriter.of(old_fields(lock) or b"") or LastWriter(is_readable=False)
    if sector is None:
        return None
    if (found := LastWriter.parse(sector)) is not None:
        return found
    # The lock file says which boot it was: what a kill has left is not judged as after a power cut.
    holder = parse_holder(lock or b"")
    return LastWriter("" if holder is None else holder.boot_id, is_readable=False)


def _is_old(sector: bytes | None, lock: bytes | None) -> bool:
    """True if an earlier version was the last one to sign the lock file, so that its files count."""
    if not lock or HAS_STATE in lock:
        return False
    old = old_fields(lock)
    known = None if sector is None else LastWriter.parse(sector)
    # Either this version has not had the store, or has not come to its first barrier; or an earlier one had
    # it since. A state that was taken from this very lock file is newer.
    return known is None or (bool(old) and known.old_lock != checksum(lock))


def read_rest(fs: FileSystem, files: StateFiles, lock: bytes | None = None) -> bytes | None:
    """Return what follows the sector: the recovery points; None if there is no state. Raises OSError.

    `lock` is what the lock file has, if that is known.
    """
    content = read_small(fs, files.state, _LARGEST)
    sector = None if content is None else content[:HEAD_SIZE]
    if files.old_points is not None and fs.size_of(files.old_points) is not None:
        signed = read_small(fs, files.lock, HEAD_SIZE) if lock is None else lock
        if _is_old(sector, signed):
            return old_points(fs, files.old_points)
    return None if content is None else content[HEAD_SIZE:]


def has_state(fs: FileSystem, files: StateFiles) -> bool:
    """True if a diskq process has had the store: there is a state, or what an earlier version had instead."""
    old = files.old_points
    return fs.size_of(files.state) is not None or (old is not None and fs.size_of(old) is not None)


def with_rest(fs: FileSystem, files: StateFiles, rest: bytes) -> bytes:
    """Return the content of the state with another `rest`. For the holder of the lock. Raises OSError."""
    return (read_state(fs, files) or LastWriter()).render() + rest


def redo_named_by(found: LastWriter | None) -> int:
    """Return the number of the redo log that a state names; 0: none; -1: it cannot be known."""
    return found.redo if found is not None and found.is_readable else -1


class StoreState:
    """The state of an open store, whose lock is held."""

    __slots__ = (
        "_files",
        "_fs",
        "_is_signed",
        "_lock",
        "_now",
        "handle",
        "is_due",
        "is_old",
        "is_pending",
        "previous",
    )

    def __init__(self, fs: FileSystem, files: StateFiles, *, lock: bytes) -> None:
        """Read it. `lock` is what the lock file had. Raises OSError."""
        self._fs = fs
        self._files = files
        sector = read_small(fs, files.state, HEAD_SIZE)
        self.previous = _found(sector, lock)
        """What the previous writer left; None if there was none."""
        self.is_old = _is_old(sector, lock)
        """True if an earlier version left it in its lock file."""
        self._lock = lock
        self._now = self.previous or LastWriter()
        if self.is_old:
            self._now = replace(self._now, old_lock=checksum(lock))
        self.handle = -1
        self._is_signed = False
        self.is_pending = True
        """True until a barrier has written what `sign` planned."""
        self.is_due = False
        """True while the first barrier of an open is to write it."""

    # --- by a barrier -----------------------------------------------------------------------------

    def sign(self) -> None:
        """Plan the state of this process: it is there with the next `replacing`, and the notes before too."""
        self._is_signed = self.is_due = True
        boot_id = self._fs.identity().boot_id
        self._now = replace(self._now, boot_id=boot_id, is_closed=False, is_readable=True)

    def replacing(self, rest: bytes = b"", *, is_last: bool = False) -> Replacement:
        """Return the replacement by the state as it is now, with this `rest`.

        `is_last`: everything written is durable then, and no more will follow: no write-ahead log is in use.
        """
        now = replace(self._now, staged=()) if is_last else self._now
        return Replacement(self._files.state, now.render() + rest, self._files.state_temporary)

    # --- between two barriers ---------------------------------------------------------------------

    def _note(self, now: LastWriter, *, can_wait: bool = False) -> None:
        if now == self._now:
            return
        before, self._now = self._now, now
        if can_wait and self.is_pending and self._is_signed:
            return  # the barrier writes it
        try:
            self._write()
        except OSError as failure:
            if not can_wait or failure.errno not in FULL_DISK_ERRNOS:
                self._now = before
                raise

    def _write(self) -> None:
        """Write the sector over. Raises OSError."""
        fs, path = self._fs, self._files.state
        if (self.is_old and self.is_pending) or fs.size_of(path) is None:
            # Beside what an earlier version left, which is believed if a power cut tears this.
            rest = read_rest(fs, self._files, self._lock) or b""
            with opened(fs, path, write=True, create=True) as handle:
                write_all(fs, handle, self._now.render() + rest, 0)
                fs.truncate(handle, HEAD_SIZE + len(rest))
            return
        with opened(fs, path, write=True) as handle:
            write_all(fs, handle, self._now.render(), 0)

    def sync(self) -> None:
        """Make the notes durable. Raises OSError."""
        with opened(self._fs, self._files.state, write=True) as handle:
            Barrier(files=(handle,)).execute(self._fs)

    def opened(self) -> int:
        """Return a handle, to sync the notes together with other files; open until `let_go`."""
        if self.handle < 0:
            self.handle = self._fs.open(self._files.state, write=True)
        return self.handle

    def let_go(self) -> None:
        """Close that handle. Idempotent."""
        handle, self.handle = self.handle, -1
        let_go(self._fs, handle)

    # --- what there is to note ----------------------------------------------------------------------

    @property
    def staged(self) -> tuple[int, ...]:
        """The write-ahead logs that were in use, and are not cleared yet."""
        return self._now.staged

    @property
    def recovering_since(self) -> int:
        """The Unix time at which an unfinished recovery after a kill began; 0: none."""
        return self._now.recovering_since

    def note_staged(self, staged: Sequence[int]) -> None:
        """Record the write-ahead logs in use from now on, and change nothing else. Raises OSError."""
        self._note(replace(self._now, staged=tuple(staged)))

    @property
    def has_restarted(self) -> bool:
        """True if an unfinished recovery came after a restart of the machine."""
        return self._now.has_restarted

    def note_recovering(self, *, has_restarted: bool) -> None:
        """Record that a recovery after a kill begins; or `has_restarted` after a restart. Raises OSError.

        On a full disk it is left out: what this recovery sets aside, which needs space, may then be reported
        by it alone.
        """
        its = self._now
        since = its.recovering_since or int(self._fs.wall_clock())
        has_restarted |= its.has_restarted
        self._note(replace(its, recovering_since=since, has_restarted=has_restarted), can_wait=True)

    def note_ready(self, staged: Sequence[int], *, is_unlogged: bool = False, can_wait: bool = False) -> None:
        """Record that recovery is over, and the write-ahead logs in use. Raises OSError.

        `is_unlogged`: there was no space for one.
        """
        its = replace(self._now, staged=tuple(staged), recovering_since=0, has_restarted=False)
        self._note(replace(its, is_unlogged=is_unlogged), can_wait=can_wait)

    def plan_never_empty(self) -> None:
        """Let the next barrier record that no message of the queue is empty."""
        self._now = replace(self._now, never_empty=True)

    @property
    def has_foreign(self) -> bool:
        """True if the queue has messages of another program that no spool has taken up since."""
        return self._now.has_foreign

    def plan_foreign(self) -> None:
        """Let the next barrier record that the queue has messages of another program."""
        self._now = replace(self._now, has_foreign=True)

    def note_taken_up(self) -> None:
        """Record that a spool has taken up the messages of another program. Raises OSError."""
        self._note(replace(self._now, has_foreign=False), can_wait=True)

    def note_newest(self, number: int, *, can_wait: bool = False) -> None:
        """Record the segment of a log that is written to from now on. Raises OSError."""
        self._note(replace(self._now, newest=number), can_wait=can_wait)

    @property
    def redo(self) -> int:
        """The number of the redo log that was named at the open; 0: none; -1: it cannot be known."""
        return redo_named_by(self.previous)

    @property
    def names_redo(self) -> bool:
        """True if a redo log is named now, or will be with the next barrier."""
        return self._now.redo != 0

    @property
    def is_displaced(self) -> bool:
        """True if records of the redo log may be displaced, as an earlier open has found."""
        return self._now.is_displaced

    def note_redo(self, number: int) -> None:
        """Record the number of the redo log from now on; 0: none. Raises OSError."""
        self._note(replace(self._now, redo=number, is_displaced=False))

    def plan_redo(self, number: int, *, is_displaced: bool) -> None:
        """Let the next barrier name the redo log of the previous holder, until it is cleared."""
        self._now = replace(self._now, redo=number, is_displaced=is_displaced)

    def note_closed(self) -> None:
        """Record that everything written is durable, and no more will follow. Raises OSError."""
        self._note(replace(self._now, is_closed=True))


def as_bits(numbers: Iterable[int]) -> int:
    """Return a number in which the bits with these numbers are set."""
    return sum(1 << number for number in numbers)


def bits_in(mask: object) -> tuple[int, ...]:
    """Return the numbers of the bits that are set; none if `mask` is not such a number."""
    if not isinstance(mask, int) or not 0 <= mask < 1 << _MOST_STAGED:
        return ()
    return tuple(number for number in range(mask.bit_length()) if mask >> number & 1)
