# The redo log of one writer: when there is one, and what is in it. Law: an entry is added only while all that
# was accepted before its records is durable, or is in the log too; and the log is not synced together with
# changes of names.
#
# It is made for the first `synced` message, by the sync of the files that covers that message; and again,
# twice as large, after a sync for which it had no space. Until it is there, and whenever it cannot take a
# message, the files are synced instead. The state names it once it is there: so a missing one is noticed.

from __future__ import annotations

import contextlib
import errno
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from diskq.engine.log.format import LoggedOptions
from diskq.storage.append_file import AppendFile, Written
from diskq.storage.barrier import Barrier, PendingSyncs, opened
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, directory_of, full_disk_ignored
from diskq.storage.log.entries import Part
from diskq.storage.log.format import redo_path
from diskq.storage.log.replay import FromLog, Redone, RedoSource, replay_redo
from diskq.storage.log_events import Log
from diskq.storage.redo_log import LEAST_SIZE, RedoLog
from diskq.storage.state import StoreState

__all__ = ["Appends", "Redo", "RedoMark"]

Appends = Callable[[], Iterable[tuple[int, AppendFile[Any]]]]
"""Returns the files that are written, each with the number of its partition, or 0."""

# More bytes are synced in their files: they are written once then, not twice.
LARGEST_ENTRY = 128 * 1024
# Seconds until a log is made again after the disk had no space for it.
_RETRY = 10.0


class RedoMark(NamedTuple):
    """What is durable in the files once a sync of them is complete."""

    sequence: int
    """All entries before this."""
    written: tuple[tuple[AppendFile[Any], Written], ...]
    makes_log: bool
    noted: int = 0
    """The log then says durably that no entry before this is needed; 0: only a later entry will say it."""


class Redo:
    """The redo log of an open store."""

    __slots__ = (
        "_appends",
        "_clock",
        "_current",
        "_fs",
        "_is_full",
        "_is_named",
        "_is_noting",
        "_is_old_needed",
        "_is_wanted",
        "_largest",
        "_log",
        "_most",
        "_new",
        "_retry_at",
        "_state",
        "found",
        "is_ready",
        "path",
    )

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        state: StoreState,
        options: LoggedOptions,
        appends: Appends,
        topic: Log,
        clock: Callable[[], float],
        *,
        most: int,
    ) -> None:
        """`most`: the most bytes that it may have on the disk; 0: there is none."""
        self._fs = fs
        self.path = path
        self._state = state
        self._appends = appends
        self._log = topic
        self._clock = clock
        self._most = most
        self._largest = min(LARGEST_ENTRY, most // 4)
        self._is_wanted = options.sync_to == "log" and most >= LEAST_SIZE
        self._current: RedoLog | None = None
        self._new: RedoLog | None = None  # it is made by a sync of the files
        self.is_ready = False
        """True if there is a log, and no larger one is being made."""
        self._is_full = False  # it had no space
        self._is_noting = False  # the next sync of the files makes it durable that nothing in it is needed
        self._retry_at = -math.inf
        self._is_named = False  # durably, in the state
        self._is_old_needed = False  # the log of the writer before, for which the disk was too full
        self.found: tuple[FromLog, ...] = ()
        """What the log of the writer before had, by data file."""

    # --- after a crash ----------------------------------------------------------------------------

    def replay(self, source: RedoSource) -> Redone:
        """Put into the files what is in the log alone; before they are looked at.

        Raises as `replay_redo`.
        """
        state = self._state
        done = replay_redo(
            self._fs,
            self.path,
            source,
            named=state.redo,
            was_displaced=state.is_displaced,
            has_run_on=state.previous is not None and state.previous.is_of_this_boot(self._fs),
        )
        must_append = state.is_displaced or not source.in_place or bool(done.displaced)
        is_displaced = done.number != 0 and must_append
        state.plan_redo(max(0, done.number), is_displaced=is_displaced)
        self._is_old_needed = not done.is_durable
        self._is_wanted &= done.is_durable
        self.found = tuple(done.found)
        return done

    def leftovers(self) -> list[str]:
        """Return the file of a log that was being made; a directory there stays, and no log is made."""
        path = redo_path(self.path)
        if self._fs.size_of(path) is None:
            return []
        try:
            with opened(self._fs, path):
                return [path]
        except OSError as failure:
            return [path] if failure.errno != errno.EISDIR else []

    def clear_old(self) -> None:
        """Clear the log of the writer before: what it held is durable in the files. Raises OSError.

        If it is not, for lack of space, the log stays, and the next open compares again: there is no new one.
        """
        if self._is_old_needed:
            return
        with full_disk_ignored():  # the next open finds the same
            if self._state.names_redo:
                self._forget()
            if self._fs.size_of(self.path):
                with opened(self._fs, self.path, write=True) as handle:
                    self._empty(handle)

    def _forget(self) -> None:
        """Stop naming the log, durably: an empty one that is named is a loss."""
        self._state.note_redo(0)
        self._state.sync()

    def _empty(self, handle: int) -> None:
        self._fs.truncate(handle, 0)
        Barrier(files=(handle,)).execute(self._fs)

    # --- syncing ----------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        logs = (log for log in (self._current, self._new) if log is not None)
        return max((log.size for log in logs), default=0)

    @property
    def is_due(self) -> bool:
        """True if there is no log, and `begin` would make one."""
        is_missing = self._current is None and self._new is None and self._is_wanted
        return is_missing and self._clock() >= self._retry_at

    def begin(self, pending: PendingSyncs) -> None:
        """Have a log made by the next sync of the files, if there is none and there is to be one."""
        if self.is_due:
            self._make(pending, 0)

    def add(self, pending: PendingSyncs) -> tuple[int, ...] | None:
        """Add what was written since the last time. Returns the handles to be synced.

        None: it takes nothing now, and the files must be synced; a log may then be among the `pending` syncs.
        Raises OSError.
        """
        if self._new is not None:
            return None
        appends: list[tuple[int, AppendFile[Any]]] = []
        size = 0
        for group, append in self._appends():
            if (unlogged := append.buffer.flushed - append.logged) > 0:
                appends.append((group, append))
                size += unlogged
        if size > self._largest:
            return None
        log = self._current
        if log is None:
            return None
        if self._is_full or size > log.largest:
            if log.size < self._most:
                self._make(pending, size)
                return None
            if size > log.largest:
                return None
        parts: list[Part] = []
        for group, append in appends:
            own = append.unlogged(group)
            if own is None:
                return None
            parts += own
        try:
            is_added = log.add(parts)
        except OSError as failure:
            # Some file systems need space to write over bytes, too.
            if failure.errno not in FULL_DISK_ERRNOS:
                raise
            return None
        if not is_added:
            if log.needs_sync:
                self._is_noting = True
                pending.files.append(log.handle)
            else:
                self._is_full = True
            return None
        for _, append in appends:
            append.note_logged()
        if self._is_named:
            if self._state.handle >= 0:
                self._state.let_go()
            return (log.handle,)
        self._is_named = True
        return (self._state.opened(), log.handle)

    def _make(self, pending: PendingSyncs, size: int) -> None:
        """Make a log, or a larger one; the next sync of the files completes it."""
        now = self._clock()
        if now < self._retry_at:
            return
        old = self._current
        wanted = LEAST_SIZE if old is None else 2 * old.size
        while wanted < 8 * size:
            wanted *= 2
        number = self._fs.unique_number() or 1 if old is None else old.number
        path = redo_path(self.path)
        try:
            if old is None and self._state.names_redo:
                self._forget()  # the open found no space to do so
            new = RedoLog(
                self._fs,
                path,
                number,
                min(wanted, self._most),
                sequence=1 if old is None else old.next_sequence,
            )
        except OSError as failure:
            self._retry_at = now + _RETRY
            self._is_full = False
            self._give_up(path)
            self._log.report(
                "no_redo_log",
                "%s cannot be made, the files are synced instead: %s",
                self.path,
                failure,
                path=self.path,
                error=failure,
            )
            return
        self._new = new
        self.is_ready = False
        pending.files.append(new.handle)
        pending.directories[directory_of(self.path)] = None
        pending.installs.append((path, self.path))

    def _give_up(self, path: str) -> None:
        with contextlib.suppress(OSError):  # the next attempt replaces it
            Barrier(removals=(path,)).execute(self._fs)

    def mark(self) -> RedoMark:
        """Return what is durable once the sync of the files that is being prepared is complete."""
        log = self._new or self._current
        sequence = 0 if log is None else log.next_sequence
        written = tuple((append, append.written) for _, append in self._appends())
        noted, self._is_noting = sequence if self._is_noting else 0, False
        return RedoMark(sequence, written, self._new is not None, noted)

    def release(self, mark: RedoMark) -> None:
        """Note that the sync of the files for which `mark` was taken is complete. Raises OSError."""
        for append, written in mark.written:
            append.note_synced(written)
        if mark.makes_log:
            old, self._current, self._new = self._current, self._new, None
            self._is_full = False
            if old is not None:
                old.close()
            elif not self._name():
                return
            self.is_ready = True
        if self._current is not None:
            self._current.note_synced(mark.noted)
            with full_disk_ignored():  # the next open may find entries that are not needed, and no harm
                self._current.release(mark.sequence)

    def _name(self) -> bool:
        """Name the new log in the state. False: there is no space to do so, and it is not used."""
        assert self._current is not None
        with full_disk_ignored():
            self._state.note_redo(self._current.number)
            return True
        self._current.close()
        self._current = None
        self._retry_at = self._clock() + _RETRY
        return False

    # --- the end ----------------------------------------------------------------------------------

    def clear(self) -> None:
        """Empty the log at a clean close: all of it is durable in the files. Raises OSError."""
        if self._current is not None and not self._current.is_needed:
            with full_disk_ignored():  # nothing in it is needed: the next open clears it
                self._forget()
                self._empty(self._current.handle)

    def close(self) -> None:
        """Close it. Idempotent."""
        for log in (self._current, self._new):
            if log is not None:
                log.close()
        self._current = self._new = None
        self._is_wanted = self.is_ready = False
