# The disk quota of one queue: how much it has on the disk, how much it may have, and what would free more
# space. Law: no message is accepted that would pass a bound, and nothing is given up for a message that will
# never fit.
#
# The quota only answers questions; it calls nothing of the queue. If acts of the queue would help, the answer
# comes from a generator that yields them first: the queue carries out an act, sends the position of its head
# after it, and receives the next act, or the answer.
#
# The bounds are `max_bytes`, the queue's own, and a budget that it shares with others. Disk space for
# messages that wait in memory is reserved in both: it must be there whenever they are written.

#
# The parts of an open queue are made at the end of this module, each once: its two ends (head.py, tail.py)
# and its quota share them.

from __future__ import annotations

import functools
import math
from collections.abc import Generator
from typing import Any, Literal

from diskq._native.core.read_ahead import ReadAhead
from diskq._native.queue.append_buffer import NsqBuffer
from diskq._native.queue.codec import MAX_BODY, NsqFraming
from diskq._native.queue.memory_tier import MemoryTier
from diskq.engine.log.writer import LogWriter
from diskq.engine.queue.files import QueueFiles, QueuePosition, SealedFiles
from diskq.errors import FullError
from diskq.options import QueueOptions
from diskq.storage.append_file import AppendFile
from diskq.storage.budget import BLOCK, WALS_IN_A_BUDGET, BudgetShare, check_new_member, join_budget
from diskq.storage.fs import FileSystem
from diskq.storage.log.format import ROWS_SIZE, WAL_SIZE
from diskq.storage.redo_log import LEAST_SIZE
from diskq.storage.write_ahead_log import RESERVE

__all__ = ["Act", "Obstacle", "QueueParts", "QueueQuota"]

Obstacle = Literal["unsynced", "full", "over_budget", "others"]
"""Why a message cannot be accepted now: it waits for a sync, for a consumer (of this queue, or of any member
of the budget), or for another member of the budget to drop something."""

Act = Literal["roll", "drop_consumed", "drop_oldest", "spill"]
"""What a queue does for more space. "roll": it goes on from the active file to the next one. "drop_consumed":
it hands consumed files to the next barrier, which removes them. "drop_oldest": it gives up what is left of
the oldest file, which is not the active one. "spill": it writes the messages in memory to the files."""

# Kept free below the byte bound: a new file's first checksums, the lock file, the state and the metadata.
_HEADROOM = 5 * 1024
# Blocks counted in a budget: for the lock and the metadata, which is replaced; and for each file.
_FIXED_BLOCKS = 5
# A redo log may take this part of a bound; and a write-ahead log for messages this part of the queue's own
# bound. Without it each message is written at once, and the log has a page, for checksums.
_REDO_LOGS_IN_A_BOUND = 64
_WALS_IN_A_BOUND = 8
_BLOCKS_OF_A_FILE = 2


class QueueQuota:
    """The disk quota of one queue. Sizes are in bytes."""

    def __init__(
        self,
        fs: FileSystem,
        files: QueueFiles,
        options: QueueOptions,
        sealed: SealedFiles,
        append: AppendFile[Any],
        tier: MemoryTier,
    ) -> None:
        self._fs = fs
        self._files = files
        self._options = options
        self._sealed = sealed
        self._append = append
        self._tier = tier
        self._drops = options.on_full == "drop_oldest"
        self._is_left_small = False  # a small active file was left since the last barrier
        self.wal_size = ROWS_SIZE
        """The bytes of the queue's write-ahead log, also while it is given up on a full disk."""
        self.share: BudgetShare | None = None
        """The share of the disk budget that the queue uses, or None."""

    def plan_wal(self, *, is_wanted: bool) -> bool:
        """Decide whether messages may wait on a write-ahead log, and count it: not in a small bound."""
        size, options = WAL_SIZE + RESERVE, self._options
        is_too_large = options.max_bytes is not None and size > options.max_bytes // _WALS_IN_A_BOUND
        if options.budget is not None:
            is_too_large |= size > options.budget.max_bytes // WALS_IN_A_BUDGET
        has_wal = is_wanted and not is_too_large
        self.wal_size = size if has_wal else ROWS_SIZE
        return has_wal

    def check_new(self) -> None:
        """Raise FullError if a new queue could never hold a message in the budget, for lack of space."""
        if self._options.budget is not None:
            least = self._fixed + BLOCK * (_BLOCKS_OF_A_FILE + 1) + _HEADROOM
            check_new_member(self._options.budget, self._files.what, self._files.directory, least)

    def join(self, head: QueuePosition) -> None:
        """Become a member of the budget, if there is one.

        `head`, here and below, is the place up to which messages have left the queue.
        """
        if self._options.budget is not None:
            self.share = join_budget(
                self._options.budget, self._files.what, self._used, self._fixed, self._options.on_full
            )
            self.note_oldest(head)

    def close(self, *, is_dropped: bool) -> None:
        """Leave the budget. Idempotent. `is_dropped`: no lock may be taken."""
        if self.share is not None:
            if is_dropped:
                self.share.drop()
            else:
                self.share.close()

    @property
    def most_redo(self) -> int:
        """The most bytes that the redo log may have: a small part of a bound, and 0 for a small one."""
        options = self._options
        bounds = [options.max_bytes, options.budget.max_bytes if options.budget is not None else None]
        parts = [bound // _REDO_LOGS_IN_A_BOUND for bound in bounds if bound is not None]
        most = min([options.redo_log_size, *parts])
        return most if most >= LEAST_SIZE and options.sync_to == "log" else 0

    # --- how much there is ------------------------------------------------------------------------

    @property
    def on_disk(self) -> int:
        """Bytes of data and checksums. Consumed files count until a barrier has removed them."""
        return self._kept + self._sealed.leaving

    @property
    def _kept(self) -> int:
        """The same without consumed files."""
        append = self._append
        return self._sealed.kept + (append.buffer.end + append.allocated if append.is_open else 0)

    @property
    def _reserved(self) -> int:
        """Bytes reserved for messages that wait in memory."""
        # A message takes more bytes in memory than its record and its share of the checksums will in files.
        return self._tier.size + self._append.next_growth if self._options.memory_size else 0

    @property
    def _fixed(self) -> int:
        """Bytes that are on the disk whatever the queue holds."""
        return _FIXED_BLOCKS * BLOCK + self.wal_size + self.most_redo

    @property
    def _used(self) -> int:
        """Bytes on the disk as a budget counts them: whole blocks, and all small files."""
        files = len(self._sealed) + 1 + self._tier.size // self._options.roll_size
        return self.on_disk + self._reserved + self._fixed + _BLOCKS_OF_A_FILE * BLOCK * files

    # --- how much there may be --------------------------------------------------------------------

    @property
    def _own(self) -> int:
        """The bytes of its bound that the queue needs for itself: both logs, and what `_HEADROOM` is for."""
        return _HEADROOM + self.wal_size + self.most_redo

    @property
    def counted(self) -> int:
        """The bytes that count for `max_bytes`."""
        return self.on_disk + self._own

    @property
    def _bound(self) -> int:
        """The bytes that may be kept. One file more is dropped, to be gone when its space is needed."""
        assert self._options.max_bytes is not None
        ahead = self._options.roll_size if self._drops else 0
        return self._options.max_bytes - self._own - ahead

    @property
    def _left(self) -> int:
        """The bytes that may be accepted now: consumed files count until a barrier has removed them."""
        assert self._options.max_bytes is not None
        return min(self._bound - self._kept, self._options.max_bytes - self.counted)

    def left(self, most: int) -> int:
        """Return how many bytes may be written without asking; up to `most`."""
        if self._options.max_bytes is not None:
            most = min(most, self._left)
        if self.share is not None:
            most = min(most, self.share.granted - self._used)
        return most

    @property
    def memory_limit(self) -> int:
        """The bytes that may be kept in memory: disk space is reserved for no more."""
        limit = self._options.memory_size
        if self._options.max_bytes is not None:
            limit = min(limit, self._left - self._append.next_growth)
        if self.share is not None:
            limit = min(limit, self._tier.size + self.share.granted - self._used)
        return limit

    # --- acts that free space ---------------------------------------------------------------------

    @property
    def is_bounded(self) -> bool:
        """False if only the disk itself bounds the queue: `obstacle` then returns None at once."""
        return self._options.max_bytes is not None or self.share is not None

    def obstacle(self, size: int, head: QueuePosition) -> Generator[Act, QueuePosition, Obstacle | None]:
        """Yield acts that free space for `size` more bytes without waiting.

        Returns what still keeps them from being accepted. Raises FullError if they will never fit.
        """
        obstacle: Obstacle | None = None
        if self._options.max_bytes is not None:
            obstacle, head = yield from self._own_obstacle(size, head)
        if obstacle is None and self.share is not None:
            obstacle = yield from self._obstacle_of_budget(size, head, self.share)
        return obstacle

    def _own_obstacle(
        self, size: int, head: QueuePosition
    ) -> Generator[Act, QueuePosition, tuple[Obstacle | None, QueuePosition]]:
        """Return what `max_bytes` forbids, and the head after the acts."""
        if size > self._bound:
            raise self.full_error(size)
        while not self._fits(size):
            # Not while older files have to go first: the active file would end for nothing.
            if self._is_in_active(head) and self._append.buffer.end:
                head = yield "roll"
            head = yield "drop_consumed"
            if self._fits(size):
                break
            act = self._oldest(head) if self._drops else None
            if act is None:
                return "full", head
            head = yield act
        must_wait = self._reserved + size + self._append.growth > self._left
        return "unsynced" if must_wait else None, head

    def _fits(self, size: int) -> bool:
        return self._kept + self._reserved + size + self._append.growth <= self._bound

    def _is_in_active(self, head: QueuePosition) -> bool:
        return self._append.is_open and head.file == self._append.buffer.file_number

    def _oldest(self, head: QueuePosition) -> Act | None:
        """Return the act that gives up the oldest messages; None: no complete file, and nothing in memory."""
        if head.file in self._sealed:
            return "drop_oldest"
        return "spill" if self._tier.count else None  # afterwards it is in files that can be given up

    def _obstacle_of_budget(
        self, size: int, head: QueuePosition, share: BudgetShare
    ) -> Generator[Act, QueuePosition, Obstacle | None]:
        """Return what the budget forbids, after the acts."""
        # With their checksum entries; and the next zeros for these, which may be due midway.
        wanted = size + size // 64 + self._append.growth + _HEADROOM
        if share.reserve(self._used, wanted):
            return None
        if not share.covers(wanted):
            raise share.full_error(self._files.directory, size)
        head = yield from self._drop_consumed_of(head, share)
        if self._is_leaving():
            return "unsynced"  # the next barrier frees the space
        refusal = share.on_refusal(has_old=self._drops and bool(self._sealed), has_young=self._drops)
        if refusal != "droppable":
            return refusal
        missing = share.missing
        if not self._sealed:
            if self._tier.count:
                head = yield "spill"
            if self._append.is_open and self._append.buffer.end:
                head = yield "roll"
        yield from self._drop_oldest_until(missing, head)
        return "unsynced" if self._is_leaving() else "over_budget"

    def _is_leaving(self) -> bool:
        """True if the next barrier removes files."""
        return self._sealed.leaving > 0

    def _drop_consumed_of(
        self, head: QueuePosition, share: BudgetShare
    ) -> Generator[Act, QueuePosition, QueuePosition]:
        """Give up what is consumed; the active file as well, if that is worth a barrier."""
        head = yield "drop_consumed"
        if self._is_worth_a_roll(head, share):
            yield "roll"
            head = yield "drop_consumed"
        return head

    def _is_worth_a_roll(self, head: QueuePosition, share: BudgetShare) -> bool:
        """True if the active file holds enough consumed messages to go on to the next file."""
        if not self._is_in_active(head) or not head.byte:
            return False
        if head.byte >= share.ahead:
            return True
        # Each roll costs a file and a barrier: one for each barrier is enough.
        is_wanted = head.byte == self._append.buffer.end and not self._is_left_small
        self._is_left_small |= is_wanted
        return is_wanted

    def _drop_oldest_until(self, size: int, head: QueuePosition) -> Generator[Act, QueuePosition, None]:
        while self._sealed.leaving < size and (act := self._oldest(head)) is not None:
            head = yield act

    def is_full(self, size: int) -> bool:
        """True if `size` more bytes would pass `max_bytes`, whatever a barrier removes."""
        return self._options.max_bytes is not None and not self._drops and not self._fits(size)

    def full_error(self, size: int, obstacle: Obstacle = "full") -> FullError:
        """Return the error for a caller that does not wait, for an obstacle that no sync removes."""
        if obstacle != "full" and self.share is not None:
            return self.share.full_error(self._files.directory, size)
        return FullError(
            self._files.directory,
            f"queue {self._files.name!r} holds {self.counted + self._tier.size} bytes, "
            f"{size} more would pass max_bytes={self._options.max_bytes}",
        )

    # --- for the others of the budget -------------------------------------------------------------

    def relief(self, head: QueuePosition) -> Generator[Act, QueuePosition, None]:
        """Yield the acts that free what is not needed here, and what other members of the budget asked for.

        The next barrier removes it.
        """
        if (share := self.share) is not None:
            head = yield from self._drop_consumed_of(head, share)
            asked, share.asked = share.asked, 0
            yield from self._drop_oldest_until(asked, head)
            self._give_back(share)

    def settle(self) -> None:
        """Give back to the budget what is not needed, after a barrier was executed."""
        if self.share is not None:
            self._give_back(self.share)
            self._is_left_small = False

    def _give_back(self, share: BudgetShare) -> None:
        share.settle(self._used, is_dropping=self._is_leaving())

    def note_oldest(self, head: QueuePosition) -> None:
        """Report to the budget when the oldest file that may be dropped was written."""
        if self.share is not None and self._drops:
            first = head.file
            number = first if first in self._sealed else self._sealed.after(first)
            stamp = self._fs.stamp_of(self._files.data(number)) if number is not None else None
            self.share.oldest = stamp.modified_ns if stamp is not None else math.inf


# --- the parts of an open queue -----------------------------------------------------------------------


_framing = functools.cache(NsqFraming)  # it has no state: many queues may have one


class QueueParts:
    """The parts of one queue."""

    def __init__(self, fs: FileSystem, files: QueueFiles, options: QueueOptions, log: LogWriter) -> None:
        self.fs = fs
        self.files = files
        self.options = options
        self.log = log
        gate_in = self.gate_in = log.new_gate()
        self.gate_out = log.new_gate()
        framing = self.framing = _framing(options.min_message_size, options.max_message_size)
        self.any_size = _framing(0, MAX_BODY)
        """The framing of what diskq certainly wrote: the limits may have changed since."""
        self.append = AppendFile(fs, gate_in, lambda on_block: NsqBuffer(fs, framing, gate_in, on_block))
        self.buffer = self.append.buffer
        """Its `file_number` is that of the file that is written, or will be written next."""
        self.ahead = ReadAhead(fs, framing, self.gate_out, self.any_size)
        self.tier = MemoryTier(framing, gate_in, self.gate_out, self.ahead)
        self.tier.limit = options.memory_size
        self.has_tier = options.memory_size > 0
        self.sealed = SealedFiles(fs, files)
        self.quota = QueueQuota(fs, files, options, self.sealed, self.append, self.tier)
