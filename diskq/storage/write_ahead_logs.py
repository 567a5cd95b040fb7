# The write-ahead logs of one writer, and what its state says about them. Law: the state names a
# write-ahead log after it is created, and stops naming it before it is removed; so a missing one is noticed
# after a kill. It does not name those for checksums alone: if one of them is missing, no message is.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from diskq._native.core.append_buffer import AppendBuffer
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem, full_disk_ignored
from diskq.storage.log.entries import Displaced, Part, Staging
from diskq.storage.repairs import Repair
from diskq.storage.state import LastWriter, StoreState
from diskq.storage.write_ahead_log import (
    RESERVE,
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

__all__ = ["WriteAheadLogs", "was_restarted"]


def was_restarted(fs: FileSystem, previous: LastWriter | None, wals: Iterable[str] = ()) -> bool | None:
    """Return True if the machine was restarted since a diskq process last wrote; None if no file shows it.

    `previous` is what the state says; None: diskq never wrote to the store. An unreadable
    one counts as written before a restart, unless one of the `wals` was made in this boot. Raises OSError.
    """
    if previous is not None and previous.is_of_this_boot(fs):
        return False
    if any(is_of_this_run(fs, wal) for wal in wals):
        return False
    return None if previous is None else True


class WriteAheadLogs:
    """A writer's write-ahead logs by number: a queue or journal has number 0, a stream one per partition."""

    def __init__(self, fs: FileSystem, state: StoreState, stagings: Mapping[int, Staging]) -> None:
        self._fs = fs
        self._state = state
        self._stagings = stagings
        self._staged: Sequence[int] = state.staged
        self._in_use: dict[int, WriteAheadLog] = {}
        self._kept: list[int] = []  # empty ones that the disk was too full to give up
        self.displaced: list[Displaced] = []
        self.restored: dict[int, Part] = {}
        """By number of the write-ahead log: the accepted messages that are in their place after `replay`."""
        self.repairs: list[Repair] = []
        self.unreported: list[Repair] = []
        """What a killed open has kept aside, and perhaps not reported.

        Empty after a restart of the machine: what is lost then was never acknowledged as durable.
        """
        self.was_killed = False
        """True if a write-ahead log was in use when its process ended, or a later recovery was killed."""
        self.is_resumed = False
        """True if it was a recovery after a restart of the machine that was killed: files may be missing."""
        self.was_unlogged = state.previous is not None and state.previous.is_unlogged
        """True if there was no space for one of them."""
        self._was_restarted = was_restarted(fs, state.previous, (its.path for its in stagings.values()))
        self.was_restarted = self._was_restarted is True
        """True if the machine was restarted, as `was_restarted` decides."""
        self.has_run_on = self._was_restarted is False
        """True if it certainly was not. Otherwise a power cut may have taken what was not synced."""

    def __bool__(self) -> bool:
        """True if messages may wait in one of them."""
        return bool(self._staging)

    @property
    def size(self) -> int:
        """Bytes on the disk of all write-ahead logs that this writer uses."""
        return sum(wal.size for wal in self._in_use.values())

    @property
    def _staging(self) -> list[int]:
        return [number for number, wal in self._in_use.items() if not wal.is_for_rows]

    def replay(
        self, *, in_place: bool = True, voided: Mapping[tuple[int, int], int] = MappingProxyType({})
    ) -> None:
        """After a kill, call `write_ahead_log.replay` for all of them, and free their space. Raises OSError.

        `voided`: by number and file, the byte from which on their checksums are of bytes that are gone. A
        second call changes nothing. Write-ahead logs with displaced records stay.
        """
        previous = self._state.previous
        staged = self._staged
        self.was_killed = self._state.recovering_since > 0 or any(
            number in staged or not holds_nothing(self._fs, its.path)
            for number, its in self._stagings.items()
        )
        if (since := self._state.recovering_since) and not self.was_restarted:
            self.unreported = kept_aside_since(self._fs, since, self._stagings.values())
        self.is_resumed = self._state.has_restarted and not self.was_restarted
        if self.was_killed and previous is not None:
            self._state.note_recovering(has_restarted=self.was_restarted)
        # The one with the reserve comes first: each frees space for the next.
        sizes = {number: self._fs.size_of(its.path) or 0 for number, its in self._stagings.items()}
        for number in sorted(sizes, key=sizes.__getitem__, reverse=True):
            staging = self._stagings[number]
            done = replay(
                self._fs,
                staging,
                was_restarted=self._was_restarted,
                was_staging=number in staged,
                in_place=in_place,
                voided={file: start for (its, file), start in voided.items() if its == number},
            )
            self.repairs += done.repairs
            if done.restored is not None:
                self.restored[number] = done.restored
            if done.displaced is not None:
                path, part = done.displaced
                self.displaced.append(Displaced(path, part._replace(group=number)))
                # If this open is killed, the next one must not use the rows that this one gives up.
                if done.has_added_rows:
                    clear_rows(self._fs, staging.path)
            else:
                self._clear(number)

    def clear_empty(self) -> None:
        """Free the space of those that hold nothing; a missing one stays missing. Raises OSError."""
        for number, staging in self._stagings.items():
            if not is_missing(self._fs, staging.path) and holds_nothing(self._fs, staging.path):
                self._clear(number)

    def clear(self) -> None:
        """Clear the displaced messages, which were appended again and are durable. Raises OSError."""
        for displaced in self.displaced:
            self._clear(displaced.part.group)
        self.displaced.clear()

    def _clear(self, number: int) -> None:
        path = self._stagings[number].path
        previous = self._state.previous
        if previous is not None:
            others = [other for other in self._staged if other != number]
            try:
                self._state.note_staged(others)
            except OSError as failure:
                if failure.errno not in FULL_DISK_ERRNOS or not holds_nothing(self._fs, path):
                    raise
                self._kept.append(number)  # the state names it still
                return
            self._staged = others
        clear_wal(self._fs, path)

    def open(
        self,
        buffers: Mapping[int, AppendBuffer],
        *,
        is_for_rows: bool,
        stagings: Mapping[int, Staging],
    ) -> None:
        """Create new ones for these buffers; the first has the reserve. Raises OSError.

        With `is_for_rows` no message waits in them. `stagings` are the files of all numbers. There are none
        while the state cannot name them.
        """
        assert not self.displaced
        self._stagings = stagings
        for number, buffer in buffers.items() if not self._state.is_pending else ():
            reserve = 0 if self._in_use else RESERVE
            path = self._stagings[number].path
            wal = open_wal(self._fs, path, buffer, reserve, is_for_rows=is_for_rows)
            if wal is not None:
                self._in_use[number] = wal
        with full_disk_ignored():
            staged = sorted({*self._staging, *self._kept})
            self._state.note_ready(staged, is_unlogged=len(self._in_use) < len(buffers))
            return
        self._discard()
        self._state.note_ready(self._kept, is_unlogged=True, can_wait=True)

    def flush_to_the_end(self, flush: Callable[[], None]) -> None:
        """Call `write_ahead_log.flush_to_the_end`; what cannot be written stays where it is."""
        with contextlib.suppress(OSError):
            flush_to_the_end(flush, list(self._in_use.values()))

    def give_up(self) -> None:
        """Discard them with their content, and free their space. Raises OSError."""
        self._state.note_staged(())
        self._discard()

    def _discard(self) -> None:
        in_use, self._in_use = self._in_use, {}
        for wal in in_use.values():
            wal.give_up()

    def retire(self) -> None:
        """Retire them at a clean close: what they do not hold any more is written and synced."""
        with contextlib.suppress(OSError):
            self._state.note_staged([number for number, wal in self._in_use.items() if wal.has_records])
            for wal in self._in_use.values():
                if wal.is_for_rows:
                    wal.give_up()
                elif not wal.has_records:
                    wal.wipe()

    def close(self) -> None:
        """Close them. Idempotent."""
        in_use, self._in_use = self._in_use, {}
        with contextlib.ExitStack() as stack:
            for wal in in_use.values():
                stack.callback(wal.close)
