# Reading a journal, forward and backward. Law: as log/reader.py. A reader makes no file: any number of
# readers may be active, in any process, with a writer at the same time. Only the first open after a crash
# puts into the files what the redo log alone has (storage/log/reader_replay.py).
#
# Segments are removed by hand, and may come and go at any time. A reader keeps the files that it has open;
# if the next segment is gone, it reports that.

from __future__ import annotations

from functools import partial
from typing import Literal

from diskq._native.core.gate import Gate
from diskq._native.core.message import JournalMessage
from diskq._native.journal import codec as journal_codec
from diskq._native.journal.codec import JournalColumns, SejFraming
from diskq._native.journal.read_ahead import SejAhead
from diskq.engine.journal.files import JournalFiles
from diskq.engine.journal.replayed import journal_replay
from diskq.engine.journal.segment_reader import JournalSegmentReader
from diskq.engine.log.tail import BufferedEnd, LogTail
from diskq.errors import OffsetOutOfRangeError
from diskq.storage.block_reader import STRETCH, Loss
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path
from diskq.storage.log.format import rows_on
from diskq.storage.numbers import UNBOUNDED

__all__ = ["JournalReader"]

# Up to this many bytes that another process has just written usually have no checksum yet.
_JUST_WRITTEN = 64 * 1024


class JournalReader(LogTail[JournalMessage, JournalColumns, JournalSegmentReader]):
    """The messages of one journal, from any offset on.

    `ahead` has what was read and not returned yet; its `take`, `take_some` and `take_columns` are the fast
    path, and `fill` reads more for them. `losses` lists what could not be read, in order. `read`,
    `read_many` and `columns` do both.
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
        """Make a reader at offset 0, with no file open: seek first. The journal need not exist yet.

        `gate` closes the fast path; without it the path is open. `live`: the journal's writer, while there is
        one in this thread (`Journal.live`); it may be set, and set to None, at any time. `partition` is the
        number that the messages get: that of their shard.
        """
        fs = journal_replay(fs or OsFileSystem(), as_path(path)).files_to_read()
        if gate is None:
            gate = Gate()
            gate.left = UNBOUNDED
        self.fs = fs
        self.gate = gate
        self.path: str = as_path(path)
        self.files: JournalFiles = JournalFiles(fs, self.path)
        self.ahead: SejAhead = SejAhead(fs, SejFraming(), gate)
        self.ahead.partition = partition
        super().__init__(fs, self.files, self.ahead, live)

    # --- segments ---------------------------------------------------------------------------------

    def _open_segment(self, base: int) -> JournalSegmentReader:
        wal_rows = partial(rows_on, self._fs, self.files.wal, base)
        return JournalSegmentReader(self._fs, self.ahead, self.files, base, wal_rows)

    def another(self) -> JournalReader:
        """Return another reader of the same journal, at offset 0."""
        return self._another()

    def _another(self) -> JournalReader:
        return JournalReader(self.path, fs=self._fs, live=self.live, partition=self.ahead.partition)

    def _out_of_range(self, offset: int, first: int, end: int | None = None) -> OffsetOutOfRangeError:
        end = self.next_offset() if end is None else end
        return OffsetOutOfRangeError(self.path, None, offset, first, end)

    # --- at the end -------------------------------------------------------------------------------

    @property
    def tail(self) -> Literal["END", "TORN", "CORRUPT"]:
        """Why `fill` found nothing: END, nothing more is written; TORN, an incomplete message, which is still
        being written, or which a crash has cut; CORRUPT, bytes of no message, which the writer will cut.
        """
        return "END" if self._segment is None else self._segment.tail

    def fill(self) -> bool:
        while super().fill():
            # By framing alone, admitted bytes may begin with no whole record: its size shows it.
            if self.ahead.next_size >= 0 and self.ahead.why == "END":
                return True
        return False

    def _read_on(self, segment: JournalSegmentReader) -> Loss | None:
        loss = super()._read_on(segment)
        is_short = self._end < self.ahead.position and self._next_base(segment) is None
        if loss is None and not self.ahead.is_ready and is_short:
            # Another program cut messages that were returned already, or would be next.
            raise self._out_of_range(self.position, self.first_offset())
        return loss

    # --- backward ---------------------------------------------------------------------------------

    def read_back(self, max_messages: int) -> list[JournalMessage]:
        """Return up to `max_messages` messages before the position, the last one first, and move before them.

        Empty if there are none. What cannot be read is added to `losses`. Raises as `fill`.
        """
        taken: list[JournalMessage] = []
        with self._another() as other:
            while len(taken) < max_messages:
                wanted = max_messages - len(taken)
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
                self.losses.extend(lost)
                taken += reversed(found)
        return taken

    def _step_back(self, other: JournalReader, most: int) -> tuple[int, int, tuple[int, int] | None] | None:
        """Move `other` about `most` messages before the position, within the segment before it.

        Returns the segment, the message and a known place near it, as for `_go_to`; None if nothing is
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
        """Return a byte and the message there, shortly before `offset`, by the sizes after records."""
        end = self.ahead.position if self.base == segment.base else segment.size
        start = max(0, end - STRETCH)
        at, reached = journal_codec.boundary(
            self._fs.pread(segment.blocks.handle, end - start, start), offset
        )
        return (start + at, reached) if reached < offset else None
