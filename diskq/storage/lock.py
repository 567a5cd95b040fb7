# One writer. Law: the lock decides, its content only informs.
#
# The lock is flock(2) on a file that is never removed: it ends with the process, however that
# ends, and the next writer takes over the file. Its content names the owner for people. What recovery needs
# to know of the last writer is in another file: state.py.
#
# A peer may remove its lock file when it closes (sej does). A lock on a file that has lost its name protects
# nothing: others lock the new file of that name. So the name is checked after locking.
#
# A reader that replays a log holds the lock for some milliseconds (`locked_briefly`). It has another file
# locked as well, the log: so an open that is refused knows that it is worth waiting. No content of the lock
# file could say that of a process that may have been killed.
#
# Some file systems write in other places (btrfs, ZFS), and need space to write over the file. If there is
# none, it stays as the previous holder left it, and `is_behind` is True.

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from weakref import WeakValueDictionary

from diskq.errors import LockedError
from diskq.storage.barrier import let_go, read_small, write_all
from diskq.storage.checksums import checksum
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, Identity

__all__ = [
    "Holder",
    "Lock",
    "checked_wait",
    "holder_of",
    "is_held_briefly",
    "locked_briefly",
    "may_be_open",
    "parse_holder",
    "read_holder",
]

_OWN = "this process has it open already: close it first; dropped unclosed, it is open until gc.collect()"

_LARGEST_LOCK = 4096
# Seconds between two attempts at a lock that is waited for: they double.
_SOON = 0.002
_SELDOM = 0.05
# Seconds for which an open waits for one that holds the lock briefly.
_BRIEF = 5.0
_SIZE = 512  # one sector, written by one call, so that no process reads half of it
_held: WeakValueDictionary[int, Lock] = WeakValueDictionary()
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
    is_closed: bool = False
    """True if it closed after everything it wrote was durable."""
    pid_namespace: int = 0
    """The kernel's number of the namespace of `pid`; 0: that of the whole machine, or unknown."""
    started: int = 0
    """The Unix time at which the process started; 0: unknown."""

    def is_of_this_boot(self, fs: FileSystem) -> bool:
        """True if this holder's boot id is the machine's: it has not been restarted since."""
        return self.boot_id == fs.identity().boot_id

    def __str__(self) -> str:
        if not self.pid:
            return "another process"
        text = f"process {self.pid} on {self.host} since {self.since}"
        if self.pid_namespace:
            # Another process has this number outside of the container: namespace and start distinguish them.
            started = datetime.fromtimestamp(self.started, UTC).isoformat(timespec="seconds")
            text += f" (in pid namespace {self.pid_namespace}, started {started}, boot {self.boot_id[:8]})"
        return text

    def is_perhaps_alive(self, fs: FileSystem) -> bool:
        """True if it may be at work in another container of this machine, which no list of locks shows."""
        is_elsewhere = fs.identity().pid_namespace not in (0, self.pid_namespace)
        return is_elsewhere and self.pid > 0 and not self.is_closed and self.is_of_this_boot(fs)


class Lock:
    """The right to write, held until `release` or the end of the process."""

    __slots__ = (
        "__weakref__",
        "_fs",
        "_holder",
        "_pid",
        "found",
        "guarded",
        "handle",
        "is_behind",
        "path",
        "previous",
    )

    def __init__(
        self, fs: FileSystem, path: str, guarded: str, *, wait: float = 0.0, brief: str | None = None
    ) -> None:
        """Take the lock. Raises LockedError, with `guarded` and the holder, if another process has it.

        It is tried for up to `wait` seconds; for 5 seconds at least while the holder has the file `brief`
        locked, too, as one does that lets go soon.
        """
        self._fs = fs
        self.path = path
        self.guarded = guarded
        self.handle = -1
        self.found = b""
        """The content that the file had."""
        self._holder = Holder()
        self.is_behind = False
        """True if there was no space to write what the file is to say: `write` it before any message."""
        self.previous = self._wait_for(wait, brief)
        """The previous holder; None if there was none, or a peer has emptied the file since."""
        if self.previous is not None:
            self._holder = self.previous

    def _wait_for(self, seconds: float, brief: str | None) -> Holder | None:
        begin, pause = time.monotonic(), _SOON
        may_be_over = brief is not None
        while True:
            try:
                return self._take()
            except LockedError:
                left = begin + seconds - time.monotonic()
                if brief is not None and left <= 0:
                    left = begin + _BRIEF - time.monotonic()
                    if not is_held_briefly(self._fs, brief):
                        if not may_be_over:
                            raise
                        may_be_over = False  # it may have let go between the two looks
                        continue
                    may_be_over = True
                if left <= 0:
                    raise
            time.sleep(min(left, pause))
            pause = min(2 * pause, _SELDOM)

    def _take(self) -> Holder | None:
        fs = self._fs
        while True:
            handle = fs.open(self.path, write=True, create=True)
            try:
                content = fs.pread(handle, _SIZE, 0)
                previous = parse_holder(content)
                if not fs.try_lock(handle):
                    holder = str(previous or Holder())
                    raise LockedError(self.guarded, holder, *([_OWN] if self._is_held_here() else []))
                has_name = fs.has_name(handle)
            except BaseException:
                fs.close(handle)
                raise
            if has_name:
                self.found = content
                old, self.handle = self.handle, handle
                let_go(fs, old)
                self._pid = fs.identity().pid
                _held[handle] = self
                return previous
            fs.close(handle)

    def _is_held_here(self) -> bool:
        """True if this process has taken the lock, by another object."""
        fs = self._fs
        pid, place = fs.identity().pid, fs.place_of(self.path)
        # Those of a parent process were not taken here, and their file systems answer nothing.
        own = [lock for lock in list(_held.values()) if lock.handle >= 0 and lock._pid == pid]
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
        """Write the current holder. Raises OSError.

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

    def note_closed(self) -> None:
        """Record that everything written is durable, and no more will follow. Raises OSError."""
        self._holder = replace(self._holder, is_closed=True)
        self.write()

    def write(self) -> None:
        """Write what the file is to say. Raises OSError."""
        its = self._holder
        content: dict[str, str | int] = {"pid": its.pid, "host": its.host, "since": its.since}
        content["boot_id"] = its.boot_id
        if its.pid_namespace:
            content["pid_namespace"] = its.pid_namespace
            content["started"] = its.started
        if its.is_closed:
            content["is_closed"] = 1
        content["has_state"] = 1  # earlier versions had more here: old_state.py
        rest = json.dumps(content).encode()[1:]
        text = b'{"check": "%08x", %s' % (checksum(rest), rest)
        write_all(self._fs, self.handle, text.ljust(_SIZE - 1) + b"\n", 0)

    def release(self) -> None:
        """Release the lock. Idempotent. The file stays: else two others could lock two different files."""
        if self.handle >= 0:
            handle, self.handle = self.handle, -1
            self._fs.close(handle)


@contextlib.contextmanager
def locked_briefly(fs: FileSystem, path: str, brief: str) -> Iterator[bool]:
    """Hold the lock in the block, which must take no longer than some milliseconds.

    False: another one is doing the same, and nothing is held. `brief` is as in `Lock`, a file that exists.
    Nothing is written. Raises LockedError if a process has the lock, OSError.
    """
    handle = fs.open(brief)
    try:
        if not fs.try_lock(handle):
            yield False
            return
        lock = Lock(fs, path, path)
        try:
            yield True
        finally:
            lock.release()
    finally:
        fs.close(handle)


def is_held_briefly(fs: FileSystem, brief: str) -> bool:
    """True if a process has `brief` locked, as one does that holds the lock briefly."""
    try:
        handle = fs.open(brief)
        try:
            return not fs.try_lock(handle)
        finally:
            fs.close(handle)
    except OSError:
        return False


def checked_wait(wait: float) -> float:
    """Return the seconds for which a lock is waited for. Raises TypeError, ValueError."""
    if isinstance(wait, bool) or not isinstance(wait, (int, float)):
        raise TypeError(f"wait is a number of seconds, got {wait!r}")
    if not wait >= 0:
        raise ValueError(f"wait is 0 or more seconds, got {wait}")
    return wait


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
            bool(content.get("is_closed", 0)),
            int(content.get("pid_namespace", 0)),
            int(content.get("started", 0)),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return Holder()


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
