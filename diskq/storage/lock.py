# One writer. Law: the lock decides, its content only informs.
#
# The lock is flock(2) on a file that is never removed: it ends with the process, however that
# ends, and the next writer takes over the file. Its content names the owner for people, and lets recovery
# see whether the machine was restarted since.
#
# A peer may remove its lock file when it closes (sej does). A lock on a file that has lost its name protects
# nothing: others lock the new file of that name. So the name is checked after locking.
#
# Some file systems write in other places (btrfs, ZFS), and need space to write over the file. If there is
# none, it stays as the previous holder left it, and `is_behind` is True. The next open would judge by that
# holder's boot and end: so no message may be written before the file is. Others may be read and removed.

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from weakref import ref

from diskq.errors import LockedError
from diskq.storage.barrier import write_all
from diskq.storage.checksums import checksum
from diskq.storage.closing import let_go, read_small
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, Identity

__all__ = [
    "Holder",
    "Lock",
    "as_bits",
    "bits_in",
    "checked_wait",
    "holder_of",
    "may_be_open",
    "parse_holder",
    "read_holder",
    "redo_named_by",
]

# The most write-ahead logs of a stream: their numbers must fit into the sector.
_MOST_STAGED = 64
_OWN = "this process has it open already: close it first; dropped unclosed, it is open until gc.collect()"

_LARGEST_LOCK = 4096
# Seconds between two attempts at a lock that is waited for: they double.
_SOON = 0.002
_SELDOM = 0.05
_SIZE = 512  # one sector, written by one call, so that no process reads half of it
_held: dict[int, ref[Lock]] = {}
"""The locks of this process by their handles, so that an error can say that one is its own."""
# First in the content: the crc32c of what comes after it, in 8 hex digits.
_CHECK = re.compile(rb'\{"check": "(?P<check>[0-9a-f]{8})", (?P<rest>.*\}) *\n', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Holder:
    """The last process that wrote the lock file. Fields that the file lacks are empty or 0."""

    pid: int = 0
    host: str = ""
    since: str = ""
    boot_id: str = ""
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
    """True if it closed after everything it wrote was durable."""
    redo: int = 0
    """The number of its redo log; 0: it has none, or nothing in it is needed."""
    is_displaced: bool = False
    """True if another program may have written where the records of the redo log belong."""
    pid_namespace: int = 0
    """The kernel's number of the namespace of `pid`; 0: that of the whole machine, or unknown."""
    started: int = 0
    """The Unix time at which the process started; 0: unknown."""
    is_unlogged: bool = False
    """True if it had no space for a write-ahead log: after a kill the last messages have no checksums."""
    has_foreign: bool = False
    """For a queue: True if it has messages of another program that no spool has taken up since."""

    def is_of_this_boot(self, fs: FileSystem) -> bool:
        """True if this holder's boot id is the machine's: it has not been restarted since."""
        return self.boot_id == fs.identity().boot_id

    def __str__(self) -> str:
        if not self.pid:
            return "another process"
        text = f"process {self.pid} on {self.host} since {self.since}"
        if self.pid_namespace:
            # Another process has this number outside of the container: here is what tells them apart.
            started = datetime.fromtimestamp(self.started, UTC).isoformat(timespec="seconds")
            text += f" (in pid namespace {self.pid_namespace}, started {started}, boot {self.boot_id[:8]})"
        return text

    def is_perhaps_alive(self, fs: FileSystem) -> bool:
        """True if it may be at work in another container of this machine, which no list of locks shows."""
        is_elsewhere = fs.identity().pid_namespace not in (0, self.pid_namespace)
        return is_elsewhere and self.pid > 0 and not self.is_closed and self.is_of_this_boot(fs)


class Lock:
    """The right to write, held until `release` or the end of the process."""

    def __init__(self, fs: FileSystem, path: str, guarded: str, *, wait: float = 0.0) -> None:
        """Take the lock. Raises LockedError, with `guarded` and the holder, if another process has it.

        It is tried for up to `wait` seconds.
        """
        self._fs = fs
        self.path = path
        self.guarded = guarded
        self.handle = -1
        self._holder = Holder()
        self.is_behind = False
        """True if there was no space to write what the file is to say: `write` it before any message."""
        self.previous = self._wait_for(wait) if wait else self._take()
        """The previous holder; None if there was none, or a peer has emptied the file since."""
        if self.previous is not None:
            self._holder = self.previous

    def _wait_for(self, seconds: float) -> Holder | None:
        end, pause = time.monotonic() + seconds, _SOON
        while True:
            try:
                return self._take()
            except LockedError:
                left = end - time.monotonic()
                if left <= 0:
                    raise
            time.sleep(min(left, pause))
            pause = min(2 * pause, _SELDOM)

    def _take(self) -> Holder | None:
        fs = self._fs
        while True:
            handle = fs.open(self.path, write=True, create=True)
            try:
                previous = parse_holder(fs.pread(handle, _SIZE, 0))
                if not fs.try_lock(handle):
                    holder = str(previous or Holder())
                    raise LockedError(self.guarded, holder, *([_OWN] if self._is_held_here() else []))
                has_name = fs.has_name(handle)
            except BaseException:
                fs.close(handle)
                raise
            if has_name:
                old, self.handle = self.handle, handle
                let_go(fs, old)
                self._pid = fs.identity().pid
                self._note_held(handle)
                return previous
            fs.close(handle)

    def _note_held(self, handle: int) -> None:
        def forget(gone: ref[Lock]) -> None:
            if _held.get(handle) is gone:
                del _held[handle]

        _held[handle] = ref(self, forget)

    def _is_held_here(self) -> bool:
        """True if this process has taken the lock, by another object."""
        fs = self._fs
        pid, place = fs.identity().pid, fs.place_of(self.path)
        # Those of a parent process were not taken here, and their file systems answer nothing.
        found = [held() for held in list(_held.values())]
        own = [lock for lock in found if lock is not None and lock.handle >= 0 and lock._pid == pid]
        return any(fs.place_of(lock.path) == place for lock in own if fs.size_of(lock.path) is not None)

    def keep(self) -> bool:
        """Make sure that the locked file is the one with this name, and that it names its holder.

        True: it had to be signed again, and is not synced; one that is behind is not. A peer that closes may
        remove the name at the very moment in which we lock the file; and one that tries to lock it may empty
        it. Raises LockedError if another process has locked the new file.
        """
        if not self._fs.has_name(self.handle):
            self._take()
        elif self.is_behind or self._fs.size(self.handle):
            return False
        self.sign()
        return True

    def sign(self, *, can_wait: bool = False) -> None:
        """Write the current holder. Only after recovery, which needs the previous one. Raises OSError.

        `can_wait`: on a full disk the file is left behind instead.
        """
        me = self._fs.identity()
        since = datetime.fromtimestamp(self._fs.wall_clock(), UTC).isoformat(timespec="seconds")
        self._holder = replace(
            self._holder,
            pid=me.pid,
            host=me.host,
            since=since,
            boot_id=me.boot_id,
            is_closed=False,
            pid_namespace=me.pid_namespace,
            started=me.started,
        )
        self.is_behind = False
        with self._waiting() if can_wait else contextlib.nullcontext():
            self.write()

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Leave the file behind if the disk is full; other errors are raised."""
        try:
            yield
        except OSError as failure:
            if failure.errno not in FULL_DISK_ERRNOS:
                raise
            self.is_behind = True

    @property
    def staged(self) -> tuple[int, ...] | None:
        """The write-ahead logs that the file names; None if a peer has emptied it, or it is unreadable."""
        return None if self.previous is None or not self.previous.pid else self._holder.staged

    @property
    def recovering_since(self) -> int:
        """The Unix time at which an unfinished recovery after a kill began; 0: none."""
        return self._holder.recovering_since

    def note_staged(self, staged: Sequence[int]) -> None:
        """Record the write-ahead logs in use from now on, and change nothing else. Raises OSError."""
        self._note(replace(self._holder, staged=tuple(staged)))

    @property
    def has_restarted(self) -> bool:
        """True if an unfinished recovery came after a restart of the machine."""
        return self._holder.has_restarted

    def note_recovering(self, *, has_restarted: bool) -> None:
        """Record that a recovery after a kill begins; or `has_restarted` after a restart. Raises OSError.

        On a full disk it is left to `sign`: what this recovery sets aside, which needs space, may then be
        reported by it alone.
        """
        its = self._holder
        since = its.recovering_since or int(self._fs.wall_clock())
        has_restarted |= its.has_restarted
        self._note(replace(its, recovering_since=since, has_restarted=has_restarted), can_wait=True)

    def note_ready(self, staged: Sequence[int], *, is_unlogged: bool = False, can_wait: bool = False) -> None:
        """Record that recovery is over, and the write-ahead logs in use. Raises OSError, as `sign`.

        `is_unlogged`: there was no space for one.
        """
        its = replace(self._holder, staged=tuple(staged), recovering_since=0, has_restarted=False)
        self._note(replace(its, is_unlogged=is_unlogged), can_wait=can_wait)

    def plan_never_empty(self) -> None:
        """Let the next `sign` record that no message of the queue is empty."""
        self._holder = replace(self._holder, never_empty=True)

    @property
    def has_foreign(self) -> bool:
        """True if the queue has messages of another program that no spool has taken up since."""
        return self._holder.has_foreign

    def plan_foreign(self) -> None:
        """Let the next `sign` record that the queue has messages of another program."""
        self._holder = replace(self._holder, has_foreign=True)

    def note_taken_up(self) -> None:
        """Record that a spool has taken up the messages of another program. Raises OSError."""
        self._note(replace(self._holder, has_foreign=False), can_wait=True)

    def note_newest(self, number: int, *, can_wait: bool = False) -> None:
        """Record the segment of a log that is written to from now on. Raises OSError, as `sign`."""
        self._note(replace(self._holder, newest=number), can_wait=can_wait)

    @property
    def redo(self) -> int:
        """The number of the redo log that the file names; 0: none; -1: a peer has emptied the file."""
        return redo_named_by(self.previous)

    @property
    def names_redo(self) -> bool:
        """True if the file names a redo log now, or will with the next `sign`."""
        return self._holder.redo != 0

    @property
    def is_displaced(self) -> bool:
        """True if records of the redo log may be displaced, as an earlier open has found."""
        return self._holder.is_displaced

    def note_redo(self, number: int) -> None:
        """Record the number of the redo log from now on; 0: none. Raises OSError."""
        self._note(replace(self._holder, redo=number, is_displaced=False))

    def plan_redo(self, number: int, *, is_displaced: bool) -> None:
        """Let the next `sign` name the redo log of the previous holder, until it is cleared."""
        self._holder = replace(self._holder, redo=number, is_displaced=is_displaced)

    def note_closed(self) -> None:
        """Record that everything written is durable, and no more will follow. Raises OSError."""
        self._note(replace(self._holder, is_closed=True))

    def _note(self, holder: Holder, *, can_wait: bool = False) -> None:
        if holder != self._holder:
            before, self._holder = self._holder, holder
            try:
                with self._waiting() if can_wait else contextlib.nullcontext():
                    self.write()
            except OSError:
                self._holder = before
                raise

    def write(self) -> None:
        """Write what the file is to say. Raises OSError."""
        its = self._holder
        content: dict[str, str | int] = {"pid": its.pid, "host": its.host, "since": its.since}
        content["boot_id"] = its.boot_id
        if its.pid_namespace:
            content["pid_namespace"] = its.pid_namespace
            content["started"] = its.started
        if its.staged:
            content["staged"] = as_bits(its.staged)
        if its.recovering_since:
            content["recovering_since"] = its.recovering_since
        if its.has_restarted:
            content["has_restarted"] = 1
        if its.newest >= 0:
            content["newest"] = its.newest
        if its.never_empty:
            content["never_empty"] = 1
        if its.is_closed:
            content["is_closed"] = 1
        if its.redo:
            content["redo"] = its.redo
        if its.is_displaced:
            content["is_displaced"] = 1
        if its.is_unlogged:
            content["is_unlogged"] = 1
        if its.has_foreign:
            content["has_foreign"] = 1
        rest = json.dumps(content).encode()[1:]
        text = b'{"check": "%08x", %s' % (checksum(rest), rest)
        write_all(self._fs, self.handle, text.ljust(_SIZE - 1) + b"\n", 0)

    def release(self) -> None:
        """Release the lock. Idempotent. The file stays: else two others could lock two different files."""
        if self.handle >= 0:
            handle, self.handle = self.handle, -1
            self._fs.close(handle)


def checked_wait(wait: float) -> float:
    """Return the seconds for which a lock is waited for. Raises TypeError, ValueError."""
    if isinstance(wait, bool) or not isinstance(wait, (int, float)):
        raise TypeError(f"wait is a number of seconds, got {wait!r}")
    if not wait >= 0:
        raise ValueError(f"wait is 0 or more seconds, got {wait}")
    return wait


def redo_named_by(holder: Holder | None) -> int:
    """Return the number of the redo log that a lock file with this holder names; 0: none; -1: not known."""
    return -1 if holder is None or not holder.pid else holder.redo


def read_holder(fs: FileSystem, path: str) -> Holder | None:
    """Return the last holder in the lock file; None if it has none. Takes no lock. Raises OSError."""
    data = read_small(fs, path, _SIZE)
    return None if data is None else parse_holder(data)


def parse_holder(data: bytes) -> Holder | None:
    """Return the holder named by a lock file's content; None if it is empty, an empty one if unreadable.

    A power cut may leave the beginning of one content and the end of another, which the check shows.
    The contents of older versions have none.
    """
    if not data:
        return None
    try:
        content = json.loads(data)
        if "check" in content:
            found = _CHECK.fullmatch(data)
            if found is None or int(found["check"], 16) != checksum(found["rest"]):
                return Holder()
        return Holder(
            int(content["pid"]),
            str(content["host"]),
            str(content["since"]),
            str(content["boot_id"]),
            bits_in(content.get("staged", 0)),
            int(content.get("recovering_since", 0)),
            bool(content.get("has_restarted", 0)),
            int(content.get("newest", -1)),
            bool(content.get("never_empty", 0)),
            bool(content.get("is_closed", 0)),
            int(content.get("redo", 0)),
            bool(content.get("is_displaced", 0)),
            int(content.get("pid_namespace", 0)),
            int(content.get("started", 0)),
            bool(content.get("is_unlogged", 0)),
            bool(content.get("has_foreign", 0)),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return Holder()


def as_bits(numbers: Iterable[int]) -> int:
    """Return a number in which the bits with these numbers are set."""
    return sum(1 << number for number in numbers)


def bits_in(mask: object) -> tuple[int, ...]:
    """Return the numbers of the bits that are set; none if `mask` is not such a number."""
    if not isinstance(mask, int) or not 0 <= mask < 1 << _MOST_STAGED:
        return ()
    return tuple(number for number in range(mask.bit_length()) if mask >> number & 1)


def may_be_open(fs: FileSystem, path: str) -> bool:
    """True if a process has the lock, or may have it where this cannot be determined. Raises OSError.

    A process in another container of this machine is not in the list of locks: it is taken to live, unless it
    says that it has closed. One on another machine is not.
    """
    holder, is_held = holder_of(fs, path)
    return bool(is_held) or (is_held is None and holder is not None and holder.is_perhaps_alive(fs))


def holder_of(fs: FileSystem, path: str) -> tuple[Holder | None, bool | None]:
    """Return the last holder, and whether a process has the lock (None: this cannot be determined).

    The lock is not taken: its owner, and others that want it, do not notice. Raises OSError.
    """
    if fs.size_of(path) is None:
        return None, False
    handle = fs.open(path)
    try:
        holder = parse_holder(fs.pread(handle, _LARGEST_LOCK, 0)) or Holder()
        owner = Identity(holder.pid, holder.host, holder.boot_id, holder.pid_namespace, holder.started)
        return holder, fs.is_locked(handle, owner)
    finally:
        fs.close(handle)
