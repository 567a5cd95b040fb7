# One writer. Law: the lock decides, its content only informs.
#
# The lock is flock(2) on a file that is never removed: it ends with the process, however that
# ends, and a lock file whose process is gone is simply taken over. Its content tells people who
# has it, and recovery whether the machine was restarted since.
#
# A peer may remove its own when it lets go (sej does). Who has locked a file that has lost its name
# has locked nothing: others lock the one that has the name now. So that is looked at behind the lock.

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from diskq.errors import LockedError
from diskq.storage.barrier import write_all
from diskq.storage.closing import let_go
from diskq.storage.fs import FileSystem
from diskq.storage.small_file import read_small

__all__ = ["Holder", "Lock", "as_bits", "bits_in", "holder_of", "parse_holder", "read_holder"]

# A stream has so many write-ahead logs at most: they are named in the sector.
_MOST_STAGED = 64
_LARGEST_LOCK = 4096
_SIZE = 512  # one sector, written by one call: read whole, or not ours


@dataclass(frozen=True, slots=True)
class Holder:
    """Who wrote the lock file last. Empty and 0 where the file does not tell."""

    pid: int = 0
    host: str = ""
    since: str = ""
    boot_id: str = ""
    staged: tuple[int, ...] = ()
    """The numbers of its write-ahead logs in use: after a kill they should be there."""
    recovering_since: int = 0
    """It found that the one before was killed, at this Unix time, and was not yet ready itself; 0: no."""
    newest: int = -1
    """Of a store: the number of the segment of its log that was written to last; -1: it does not say."""
    never_empty: bool = False
    """Of a queue: is no message of it empty? Then zeros after the last one are none."""
    is_closed: bool = False
    """Did it let go after all that it wrote was durable?"""

    def is_of_this_boot(self, fs: FileSystem) -> bool:
        """False if the machine was restarted since, so that the page cache is another one."""
        return self.boot_id == fs.identity().boot_id

    def __str__(self) -> str:
        if not self.pid:
            return "another process"
        return f"process {self.pid} on {self.host} since {self.since}"


class Lock:
    """The right to write, held until `release` or the end of the process."""

    def __init__(self, fs: FileSystem, path: str, guarded: str) -> None:
        """Take it. Raises LockedError, naming `guarded` and the holder, where somebody has it."""
        self._fs = fs
        self.path = path
        self.guarded = guarded
        self.handle = -1
        self._holder = Holder()
        self.previous = self._take()
        """Who had it before; None where nobody ever had, or a peer has emptied the file since."""
        if self.previous is not None:
            self._holder = self.previous

    def _take(self) -> Holder | None:
        fs = self._fs
        while True:
            handle = fs.open(self.path, write=True, create=True)
            try:
                previous = parse_holder(fs.pread(handle, _SIZE, 0))
                if not fs.try_lock(handle):
                    raise LockedError(self.guarded, str(previous or Holder()))
                has_name = fs.has_name(handle)
            except BaseException:
                fs.close(handle)
                raise
            if has_name:
                old, self.handle = self.handle, handle
                let_go(fs, old)
                return previous
            fs.close(handle)

    def keep(self) -> bool:
        """Make sure that it is the file of this name that is locked, and that it says who has it.

        True: it had to be signed anew, and is not synced. A peer that lets go may take the name away in the
        very moment in which we have locked the file; and one that tries to lock it may empty it. Raises
        LockedError where somebody has locked the new one.
        """
        if not self._fs.has_name(self.handle):
            self._take()
        elif self._fs.size(self.handle):
            return False
        self.sign()
        return True

    def sign(self) -> None:
        """Say who has it now. Only after recovery, which needs to know who had it before."""
        me = self._fs.identity()
        since = datetime.fromtimestamp(self._fs.wall_clock(), UTC).isoformat(timespec="seconds")
        self._holder = replace(
            self._holder, pid=me.pid, host=me.host, since=since, boot_id=me.boot_id, is_closed=False
        )
        self._write()

    @property
    def staged(self) -> tuple[int, ...] | None:
        """The write-ahead logs that the file names; None if a peer has emptied it, or it cannot be read."""
        return None if self.previous is None or not self.previous.pid else self._holder.staged

    @property
    def recovering_since(self) -> int:
        """The Unix time at which a recovery after a kill began that was not finished; 0: none."""
        return self._holder.recovering_since

    def note_staged(self, staged: Sequence[int]) -> None:
        """Write which write-ahead logs are in use from here on, and change nothing else. Raises OSError."""
        self._note(replace(self._holder, staged=tuple(staged)))

    def note_recovering(self) -> None:
        """Say that a recovery after a kill begins. Raises OSError."""
        since = self._holder.recovering_since or int(self._fs.wall_clock())
        self._note(replace(self._holder, recovering_since=since))

    def note_ready(self, staged: Sequence[int]) -> None:
        """Say that recovery is over, and which write-ahead logs are in use. Raises OSError."""
        self._note(replace(self._holder, staged=tuple(staged), recovering_since=0))

    def note_never_empty(self) -> None:
        """Say that no message of the queue is empty. Raises OSError."""
        self._note(replace(self._holder, never_empty=True))

    def note_newest(self, number: int) -> None:
        """Say to which segment of a log is written from here on. Raises OSError."""
        self._note(replace(self._holder, newest=number))

    def note_closed(self) -> None:
        """Say that all that was written is durable, and nothing more will come. Raises OSError."""
        self._note(replace(self._holder, is_closed=True))

    def _note(self, holder: Holder) -> None:
        if holder != self._holder:
            self._holder = holder
            self._write()

    def _write(self) -> None:
        its = self._holder
        content: dict[str, str | int] = {"pid": its.pid, "host": its.host, "since": its.since}
        content["boot_id"] = its.boot_id
        if its.staged:
            content["staged"] = as_bits(its.staged)
        if its.recovering_since:
            content["recovering_since"] = its.recovering_since
        if its.newest >= 0:
            content["newest"] = its.newest
        if its.never_empty:
            content["never_empty"] = 1
        if its.is_closed:
            content["is_closed"] = 1
        write_all(self._fs, self.handle, json.dumps(content).encode().ljust(_SIZE - 1) + b"\n", 0)

    def release(self) -> None:
        """Idempotent. The file stays: removing it would let two others lock two different files."""
        if self.handle >= 0:
            handle, self.handle = self.handle, -1
            self._fs.close(handle)


def read_holder(fs: FileSystem, path: str) -> Holder | None:
    """Who wrote the lock file last; None where nobody ever did. Takes nothing. Raises OSError."""
    data = read_small(fs, path, _SIZE)
    return None if data is None else parse_holder(data)


def parse_holder(data: bytes) -> Holder | None:
    """Who a lock file with this content names; None: nobody. One without a name where it cannot be read."""
    if not data:
        return None
    try:
        content = json.loads(data)
        return Holder(
            int(content["pid"]),
            str(content["host"]),
            str(content["since"]),
            str(content["boot_id"]),
            bits_in(content.get("staged", 0)),
            int(content.get("recovering_since", 0)),
            int(content.get("newest", -1)),
            bool(content.get("never_empty", 0)),
            bool(content.get("is_closed", 0)),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return Holder()


def as_bits(numbers: Iterable[int]) -> int:
    """A number in which the bits with these numbers are set."""
    return sum(1 << number for number in numbers)


def bits_in(mask: object) -> tuple[int, ...]:
    """The numbers of the bits that are set; none where it is no such number."""
    if not isinstance(mask, int) or not 0 <= mask < 1 << _MOST_STAGED:
        return ()
    return tuple(number for number in range(mask.bit_length()) if mask >> number & 1)


def holder_of(fs: FileSystem, path: str) -> tuple[Holder | None, bool | None]:
    """Who signed the lock file last, and whether a process has the lock (None: it cannot be told).

    The lock is not taken: its owner, and who wants it, do not notice. Raises OSError.
    """
    if fs.size_of(path) is None:
        return None, False
    handle = fs.open(path)
    try:
        holder = parse_holder(fs.pread(handle, _LARGEST_LOCK, 0)) or Holder()
        return holder, fs.is_locked(handle, holder.pid, holder.host)
    finally:
        fs.close(handle)
