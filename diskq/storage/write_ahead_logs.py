# The write-ahead logs of one writer, and what its lock file says of them. Law: the lock file names the
# write-ahead logs in use after they are there, and stops naming them before they go; so one that is missing
# after a kill is noticed. It does not name those that are for checksums alone: where one of them is missing
# no message is.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from diskq._native.core.append_buffer import AppendBuffer
from diskq.storage.fs import FileSystem
from diskq.storage.lock import Holder, Lock
from diskq.storage.repairs import Repair
from diskq.storage.write_ahead_log import (
    RESERVE,
    Staging,
    Waiting,
    WriteAheadLog,
    clear_rows,
    clear_wal,
    flush_to_the_end,
    holds_nothing,
    is_missing,
    is_of_this_run,
    kept_aside_since,
    open_wal,
    replay,
)

__all__ = ["Displaced", "WriteAheadLogs", "was_restarted"]


def was_restarted(fs: FileSystem, previous: Holder | None, wals: Iterable[str] = ()) -> bool | None:
    """True if the machine was restarted since a process of ours last wrote; None if no file tells.

    `previous` is what the lock file says; None: it was never signed, or a peer has emptied it. One that
    cannot be read is as one from before a restart, unless one of the `wals` was made in this run of the
    machine. Raises OSError.
    """
    if previous is not None and previous.is_of_this_boot(fs):
        return False
    if any(is_of_this_run(fs, wal) for wal in wals):
        return False
    return None if previous is None else True


class Displaced(NamedTuple):
    """Accepted messages whose place is another's: to be appended again, before `WriteAheadLogs.clear`."""

    number: int
    """Of the write-ahead log."""
    path: str
    """The file in which they were to be."""
    waiting: Waiting


class WriteAheadLogs:
    """All that a writer has, by number: a queue and a journal have write-ahead log 0, a stream one a
    partition.
    """

    def __init__(
        self, fs: FileSystem, lock: Lock, stagings: Mapping[int, Staging], told: Sequence[int] = ()
    ) -> None:
        """`told`: the numbers of those in use, by another file than the lock's, which a peer may empty."""
        self._fs = fs
        self._lock = lock
        self._stagings = stagings
        self._staged = told if lock.staged is None else lock.staged
        self._in_use: dict[int, WriteAheadLog] = {}
        self.displaced: list[Displaced] = []
        self.restored: dict[int, Waiting] = {}
        """By number of the write-ahead log: the accepted messages that are where they belong after
        `replay`.
        """
        self.repairs: list[Repair] = []
        self.unreported: list[Repair] = []
        """What an open that was killed has kept aside: perhaps it died before it could tell.

        None after a restart of the machine: what goes then was never acknowledged as durable.
        """
        self.was_killed = False
        """Was a write-ahead log in use when its process ended, or that of an open which came after and ended,
        too?
        """
        self._was_restarted = was_restarted(fs, lock.previous, (its.path for its in stagings.values()))
        self.was_restarted = self._was_restarted is True
        """True if the machine was restarted, as `was_restarted` decides."""
        self.has_run_on = self._was_restarted is False
        """True if it certainly was not. Else a power cut may have taken what was not synced."""

    def __bool__(self) -> bool:
        """May messages wait on one?"""
        return bool(self._staging)

    @property
    def size(self) -> int:
        """Bytes on the disk of those in use."""
        return sum(wal.size for wal in self._in_use.values())

    @property
    def _staging(self) -> list[int]:
        return [number for number, wal in self._in_use.items() if not wal.is_for_rows]

    def replay(self, *, in_place: bool = True) -> None:
        """After a kill: as `wal.replay`, for all of them, whose room it gives back. Raises OSError.

        Doing it twice changes nothing. Write-ahead logs with displaced records stay.
        """
        previous = self._lock.previous
        staged = self._staged
        self.was_killed = self._lock.recovering_since > 0 or any(
            number in staged or not holds_nothing(self._fs, its.path)
            for number, its in self._stagings.items()
        )
        if (since := self._lock.recovering_since) and not self.was_restarted:
            self.unreported = kept_aside_since(self._fs, since, self._stagings.values())
        if self.was_killed and previous is not None:
            self._lock.note_recovering()
        # The one with the reserve first: each makes room for the next.
        sizes = {number: self._fs.size_of(its.path) or 0 for number, its in self._stagings.items()}
        for number in sorted(sizes, key=sizes.__getitem__, reverse=True):
            staging = self._stagings[number]
            done = replay(
                self._fs,
                staging,
                was_restarted=self._was_restarted,
                was_staging=number in staged,
                in_place=in_place,
            )
            self.repairs += done.repairs
            if done.restored is not None:
                self.restored[number] = done.restored
            if done.displaced is not None:
                path = staging.data(done.displaced.file)
                self.displaced.append(Displaced(number, path, done.displaced))
                # If this open is killed, the next one is not to believe those that it gives up.
                if done.has_added_rows:
                    clear_rows(self._fs, staging.path)
            else:
                self._clear(number)

    def clear_empty(self) -> None:
        """Give back the room of those that tell nothing; one that is gone stays missed. Raises OSError."""
        for number, staging in self._stagings.items():
            if not is_missing(self._fs, staging.path) and holds_nothing(self._fs, staging.path):
                self._clear(number)

    def clear(self) -> None:
        """What was displaced was appended again, and is durable. Raises OSError."""
        for displaced in self.displaced:
            self._clear(displaced.number)
        self.displaced.clear()

    def _clear(self, number: int) -> None:
        previous = self._lock.previous
        if previous is not None:
            self._staged = [other for other in self._staged if other != number]
            self._lock.note_staged(self._staged)
        clear_wal(self._fs, self._stagings[number].path)

    def open(self, buffers: Mapping[int, AppendBuffer], *, is_for_rows: bool) -> None:
        """Begin new ones, for these buffers; the first has the reserve. Raises OSError.

        With `is_for_rows` no message waits on them.
        """
        assert not self.displaced
        for number, buffer in buffers.items():
            reserve = 0 if self._in_use else RESERVE
            path = self._stagings[number].path
            wal = open_wal(self._fs, path, buffer, reserve, is_for_rows=is_for_rows)
            if wal is not None:
                self._in_use[number] = wal
        self._lock.note_ready(self._staging)

    def flush_to_the_end(self, flush: Callable[[], None]) -> None:
        """As `wal.flush_to_the_end`; what cannot be written stays where it is."""
        with contextlib.suppress(OSError):
            flush_to_the_end(flush, list(self._in_use.values()))

    def give_up(self) -> None:
        """Nothing of what stands on them is needed: give back their room. Raises OSError."""
        self._lock.note_staged(())
        in_use, self._in_use = self._in_use, {}
        for wal in in_use.values():
            wal.give_up()

    def retire(self) -> None:
        """At a clean end: all is written and synced that is not told of by those with records left."""
        with contextlib.suppress(OSError):
            self._lock.note_staged([number for number, wal in self._in_use.items() if wal.has_records])
            for wal in self._in_use.values():
                if wal.is_for_rows:
                    wal.give_up()
                elif not wal.has_records:
                    wal.wipe()

    def close(self) -> None:
        """Let go of them. Idempotent."""
        in_use, self._in_use = self._in_use, {}
        with contextlib.ExitStack() as stack:
            for wal in in_use.values():
                stack.callback(wal.close)
