# How much a queue has on the disk, how much it may have, and what it gives up for more. Law: no message is
# accepted that would pass a bound, and for one that will never fit nothing is given up.
#
# Bounds are `max_bytes`, its own, and a budget that it shares with others. What waits in memory has its room
# reserved in both: it is to find some whenever it must be written.

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from diskq._native.memorytier import MemoryTier
from diskq.engine.nsqfiles import Position, QueueFiles
from diskq.engine.sealedfiles import SealedFiles
from diskq.errors import DiskFullError
from diskq.options import QueueOptions
from diskq.storage.appendfile import AppendFile
from diskq.storage.budget import BLOCK, Share
from diskq.storage.fs import FileSystem
from diskq.storage.slate import RESERVE
from diskq.storage.slate import SIZE as SLATE_SIZE

__all__ = ["FifoRoom", "Givers", "Obstacle"]

Obstacle = Literal["unsynced", "full", "over_budget", "others"]
"""Why a message cannot be accepted now: it waits for a sync, for somebody to consume (here, or anywhere in
the budget), or for another member of the budget to drop something."""

# Kept free below the byte bound: a new file's first checksums.
_HEADROOM = 4 * 1024
# In a budget, so many blocks: of the lock and of the metadata, which is replaced; of the file that is next.
_FIXED_BLOCKS = 5
_BLOCKS_OF_A_FILE = 2


@dataclass(frozen=True, slots=True)
class Givers:
    """How the queue gives room up. All raise DiskFullError and OSError where the disk refuses."""

    head: Callable[[], Position]
    """Where the first message lies that has not left the queue."""
    roll: Callable[[], None]
    """The active file is left for the next one."""
    drop_consumed: Callable[[], None]
    """Consumed files are owed to the next barrier."""
    drop_oldest: Callable[[], bool]
    """So is the oldest file, with what is in it. False: there is none to give up."""
    spill: Callable[[int], None]
    """So many bytes of the messages in memory go to the files."""


class FifoRoom:
    """The room of one queue. Sizes are in bytes."""

    def __init__(
        self,
        fs: FileSystem,
        files: QueueFiles,
        options: QueueOptions,
        sealed: SealedFiles,
        append: AppendFile[Any],
        tier: MemoryTier,
        givers: Givers,
    ) -> None:
        self._fs = fs
        self._files = files
        self._options = options
        self._sealed = sealed
        self._append = append
        self._tier = tier
        self._give = givers
        self._is_left_small = False  # since the last barrier
        self.has_slate = False
        """Does one lie beside the files?"""
        self.share: Share | None = None
        """What it has of a budget."""

    def join(self) -> None:
        """Be a member of the budget, if there is one."""
        if self._options.budget is not None:
            self.share = self._options.budget.join(
                self._files.what, self._used, self._fixed, self._options.on_full
            )
            self.note_oldest()

    def close(self) -> None:
        """Be a member no more. Idempotent."""
        if self.share is not None:
            self.share.close()

    # --- how much there is ------------------------------------------------------------------------

    @property
    def on_disk(self) -> int:
        """Data and checksums, those of consumed files until a barrier has removed them."""
        return self._kept + self._sealed.leaving

    @property
    def _kept(self) -> int:
        """The same without consumed files."""
        append = self._append
        return self._sealed.kept + (append.buffer.end + append.allocated if append.is_open else 0)

    @property
    def _reserved(self) -> int:
        """For what waits in memory."""
        # What a message takes in memory is more than its record and its share of the checksums will.
        return self._tier.size + self._append.next_growth if self._options.memory_size else 0

    @property
    def _fixed(self) -> int:
        """On the disk whatever is in the queue."""
        return _FIXED_BLOCKS * BLOCK + (SLATE_SIZE + RESERVE if self.has_slate else 0)

    @property
    def _used(self) -> int:
        """On the disk as a budget counts it: whole blocks, and all that lies beside."""
        files = len(self._sealed) + 1 + self._tier.size // self._options.file_size
        return self.on_disk + self._reserved + self._fixed + _BLOCKS_OF_A_FILE * BLOCK * files

    # --- how much there may be --------------------------------------------------------------------

    @property
    def _bound(self) -> int:
        """So much may be kept. Files are dropped one ahead, to be gone when their room is needed."""
        assert self._options.max_bytes is not None
        ahead = self._options.file_size if self._options.on_full == "drop_oldest" else 0
        return self._options.max_bytes - _HEADROOM - ahead

    @property
    def _left(self) -> int:
        """So much may be accepted now: consumed files take theirs until a barrier has removed them."""
        assert self._options.max_bytes is not None
        return min(self._bound - self._kept, self._options.max_bytes - _HEADROOM - self.on_disk)

    def left(self, most: int) -> int:
        """So much may be written without asking; `most` at most."""
        if self._options.max_bytes is not None:
            most = min(most, self._left)
        if self.share is not None:
            most = min(most, self.share.granted - self._used)
        return most

    def limit_memory(self) -> None:
        """Let the compiled door keep no more than there is room reserved for."""
        limit = self._options.memory_size
        if self._options.max_bytes is not None:
            limit = min(limit, self._left - self._append.next_growth)
        if self.share is not None:
            limit = min(limit, self._tier.size + self.share.granted - self._used)
        self._tier.limit = limit

    # --- more of it -------------------------------------------------------------------------------

    def obstacle(self, size: int) -> Obstacle | None:
        """What keeps `size` more bytes from being accepted now, after all that helps without waiting.

        Raises DiskFullError where they will never fit, and as `Givers`.
        """
        if self._options.max_bytes is not None and (obstacle := self._own_obstacle(size)) is not None:
            return obstacle
        return self._obstacle_of_budget(size) if self.share is not None else None

    def _own_obstacle(self, size: int) -> Obstacle | None:
        """What `max_bytes` says."""
        if size > self._bound:
            raise self.full_error(size)
        while not self._fits(size):
            # Not while older files have to go first: then the active one would end for nothing.
            if self._is_in_active(self._give.head()) and self._append.buffer.end:
                self._give.roll()
            self._give.drop_consumed()
            if self._fits(size):
                break
            if self._options.on_full != "drop_oldest" or not self._give.drop_oldest():
                return "full"
        return "unsynced" if self._reserved + size + self._append.growth > self._left else None

    def _fits(self, size: int) -> bool:
        return self._kept + self._reserved + size + self._append.growth <= self._bound

    def _is_in_active(self, position: Position) -> bool:
        return self._append.is_open and position.file == self._append.buffer.file_number

    def _obstacle_of_budget(self, size: int) -> Obstacle | None:
        """What the budget says."""
        share = self.share
        assert share is not None
        # With their rows; and the next zeros for them, which may be due midway.
        wanted = size + size // 64 + self._append.growth + _HEADROOM
        if share.reserve(self._used, wanted):
            return None
        if not share.covers(wanted):
            raise share.full_error(self._files.directory, size)
        self._leave_consumed()
        if self._sealed.leaving:
            return "unsynced"  # its room is free with the next barrier
        if self._options.on_full == "drop_oldest":
            if self._sealed or not share.ask_to_drop():
                share.keep()
                return self._drop_for_room(share.missing)
            return "others"
        if not share.is_waiting:
            share.press()
        return "over_budget"

    def _leave_consumed(self) -> None:
        """Owe what is consumed to the next barrier; the active file as well, where that is worth one."""
        self._give.drop_consumed()
        if self._is_worth_leaving():
            self._give.roll()
            self._give.drop_consumed()

    def _is_worth_leaving(self) -> bool:
        """Does the active file hold what is consumed, and enough of it to be left for the next one?"""
        assert self.share is not None
        head = self._give.head()
        if not self._is_in_active(head) or not head.byte:
            return False
        if head.byte >= self.share.ahead:
            return True
        # Each costs a file and a barrier: one for each barrier is enough.
        is_wanted = head.byte == self._append.buffer.end and not self._is_left_small
        self._is_left_small |= is_wanted
        return is_wanted

    def _drop_for_room(self, missing: int) -> Obstacle:
        if not self._sealed:
            self._give.spill(self._tier.size)
            if self._append.is_open and self._append.buffer.end:
                self._give.roll()
        self._drop_until(missing)
        return "unsynced" if self._sealed.leaving else "over_budget"

    def _drop_until(self, size: int) -> None:
        while self._sealed.leaving < size and self._give.drop_oldest():
            pass

    def full_error(self, size: int, obstacle: Obstacle = "full") -> DiskFullError:
        """What an obstacle that no sync does away with means to a caller that will not wait."""
        if obstacle != "full" and self.share is not None:
            return self.share.full_error(self._files.directory, size)
        return DiskFullError(
            self._files.directory,
            f"queue {self._files.name!r} holds {self.on_disk + self._tier.size} bytes, "
            f"{size} more would pass max_bytes={self._options.max_bytes}",
        )

    # --- for the others of the budget -------------------------------------------------------------

    def relieve(self) -> None:
        """Give what is not needed here, and what was asked for; the next barrier removes it.

        Raises as `Givers`.
        """
        share = self.share
        assert share is not None
        self._leave_consumed()
        asked, share.asked = share.asked, 0
        if asked:
            self._drop_until(asked)
        share.settle(self._used, is_dropping=self._sealed.leaving > 0)

    def settle(self) -> None:
        """A barrier is paid: give back what is not needed."""
        if self.share is not None:
            self.share.settle(self._used, is_dropping=self._sealed.leaving > 0)
            self._is_left_small = False

    def note_oldest(self) -> None:
        """Let the budget know when the oldest file that may be dropped was written."""
        if self.share is not None and self._options.on_full == "drop_oldest":
            first = self._give.head().file
            number = first if first in self._sealed else self._sealed.after(first)
            stamp = self._fs.stamp_of(self._files.data(number)) if number is not None else None
            self.share.oldest = stamp.modified_ns if stamp is not None else math.inf
