# Reading a journal, forward and backward. Law: see log/reader.py. Nothing is made, and nothing is left in
# its directory: any number of readers may be at work, in any process, beside the one who writes.
#
# Segments are removed by hand, and may come and go at any time. A reader keeps what it has open; where
# what comes next is gone, it says so.

from __future__ import annotations

from functools import partial
from typing import Literal

from diskq._native.core.gate import Gate
from diskq._native.core.message import JournalMessage
from diskq._native.journal import codec as journal_codec
from diskq._native.journal.codec import JournalColumns, SejFraming
from diskq._native.journal.read_ahead import SejAhead
from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.segment_reader import JournalSegmentReader
from diskq.engine.log.tail import BufferedEnd, LogTail
from diskq.errors import OffsetOutOfRangeError
from diskq.storage.block_reader import STRETCH, Loss
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path
from diskq.storage.numbers import UNBOUNDED
from diskq.storage.old_names import old_name
from diskq.storage.write_ahead_log import rows_on

__all__ = ["JournalReader"]

# So few bytes that a writer elsewhere has just written have no checksum yet, or hardly ever.
_JUST_WRITTEN = 64 * 1024


class JournalReader(LogTail[JournalMessage, JournalColumns, JournalSegmentReader]):
    """The messages of one journal, from any offset on.

    `ahead` holds what was read and is not handed out yet; its `take`, `take_some` and `take_columns` are
    the fast doors, and `fill` puts more behind them. `losses` tells what could not be read, in order.
    `read`, `read_many` and `columns` do both.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        fs: FileSystem | None = None,
        gate: Gate | None = None,
        live: BufferedEnd | None = None,
        partition: int = 0,
    ) -> None:
        """At offset 0, with no file open: seek first. It need not be there yet.

        `gate` shuts the fast doors; without it they are open. `live`: the journal's writer, while there is
        one in this thread (`Journal.live`); it may be set, and set to None, at any time. `partition` is the
        number that messages are to have: of their shard.
        """
        fs = fs or OsFileSystem()
        if gate is None:
            gate = Gate()
            gate.left = UNBOUNDED
        self.fs = fs
        self.gate = gate
        self.path = as_path(path)
        self.files = JournalFiles(fs, self.path)
        self.ahead = SejAhead(fs, SejFraming(), gate)
        self.ahead.partition = partition
        super().__init__(fs, self.files, self.ahead, live)

    # --- what its segments are --------------------------------------------------------------------

    def _open_segment(self, base: int) -> JournalSegmentReader:
        wal_rows = partial(rows_on, self._fs, self.files.wal, base)
        return JournalSegmentReader(self._fs, self.ahead, self.files, base, wal_rows)

    def another(self) -> JournalReader:
        """Another reader of the same journal, at offset 0."""
        return self._another()

    def _another(self) -> JournalReader:
        return JournalReader(self.path, fs=self._fs, live=self.live, partition=self.ahead.partition)

    def _out_of_range(self, offset: int, first: int, end: int | None = None) -> OffsetOutOfRangeError:
        end = self.next_offset() if end is None else end
        return OffsetOutOfRangeError(self.path, None, offset, first, end)

    # --- at the end -------------------------------------------------------------------------------

    @property
    def tail(self) -> Literal["END", "TORN", "CORRUPT"]:
        """After `fill` found nothing: END of what was written; TORN, a message that is not all there, which
        is waited for, or which a crash has cut; CORRUPT, bytes of no message, which its writer will cut.
        """
        return "END" if self._segment is None else self._segment.tail

    def fill(self) -> bool:
        while super().fill():
            # By framing alone, what was admitted may begin with no whole record: whoever measures it, knows.
            if self.ahead.next_size >= 0 and self.ahead.why == "END":
                return True
        return False

    def _read_on(self, segment: JournalSegmentReader) -> Loss | None:
        loss = super()._read_on(segment)
        is_short = self._end < self.ahead.position and self._next_base(segment) is None
        if loss is None and not self.ahead.is_ready and is_short:
            # Somebody cut what was handed out already, or is about to be.
            raise self._out_of_range(self.position, self.first_offset())
        return loss

    # --- backward ---------------------------------------------------------------------------------

    def read_back(self, max_items: int) -> list[JournalMessage]:
        """The messages before the position, the last one first, at most `max_items`; it is then before them.

        None where there is none. What cannot be read is told in `losses`. Raises as `fill`.
        """
        taken: list[JournalMessage] = []
        with self._another() as other:
            while len(taken) < max_items:
                wanted = max_items - len(taken)
                place = self._step_back(other, wanted)
                if place is None:
                    break
                base, first, near = place
                offset = self.position
                more = []
                while other.position < offset and (message := other.read()) is not None:
                    more.append(message)
                found = [message for message in more if message.offset < offset][-wanted:]
                lost = [gap for gap in other.losses if gap.offset < offset]
                other.losses.clear()
                self._go_to(base, found[0].offset if found else first, near)
                self.losses += lost
                taken += reversed(found)
        return taken

    take_back = old_name(read_back)

    def _step_back(self, other: JournalReader, most: int) -> tuple[int, int, tuple[int, int] | None] | None:
        """Let `other` be before our position, in the segment of the message before it, about `most` messages.

        Returns the segment, the message and what is known to be near it, as for `_go_to`; None: nothing is
        before.
        """
        offset = self.position
        while bases := [base for base in self.files.bases() if base < offset]:
            base = bases[-1]
            if not other._enter(base):
                continue
            assert other._segment is not None
            near = self._near(other._segment, offset)
            first = max(base, offset - most)
            if near is not None and near[1] > first:
                first = near[1]
            if other._go_to(base, first, near) and other.position < offset:
                return base, first, near
            offset = base
        return None

    def _near(self, segment: JournalSegmentReader, offset: int) -> tuple[int, int] | None:
        """A byte and the message there, not far before `offset`, by the sizes at the ends of records."""
        end = self.ahead.position if self.base == segment.base else segment.size
        start = max(0, end - STRETCH)
        at, reached = journal_codec.boundary(
            self._fs.pread(segment.blocks.handle, end - start, start), offset
        )
        return (start + at, reached) if reached < offset else None
