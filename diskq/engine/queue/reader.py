# Reading a queue, file after file. Law: what was lost on the way is reported, and what was written a moment
# ago and is still in memory is not read from the disk.

from __future__ import annotations

from typing import NamedTuple

from diskq._native.core.gate import Gate
from diskq._native.core.read_ahead import ReadAhead
from diskq.engine.queue.files import QueuePosition
from diskq.engine.queue.quota import QueueParts
from diskq.storage.block_reader import BlockReader, Loss

__all__ = ["FileLoss", "QueueReader"]


class FileLoss(NamedTuple):
    """Bytes of one file that were passed over."""

    file: int
    loss: Loss


class QueueReader:
    """Fills the read-ahead with the next messages. The file that is being written may not exist yet."""

    def __init__(self, parts: QueueParts) -> None:
        self._parts = parts
        self._fs = parts.fs
        self._files = parts.files
        self._ahead = parts.ahead
        self._sealed = parts.sealed
        self._append = parts.append
        self._reader: BlockReader | None = None  # of `file`
        self.file = 0
        """The number of the file that is being read."""

    @property
    def position(self) -> QueuePosition:
        """The place up to which messages have been read."""
        return QueuePosition(self.file, self._ahead.position)

    def seek(self, position: QueuePosition) -> None:
        """Read on at `position`."""
        self.close()
        self.file = position.file
        self._ahead.seek(position.byte)

    def next_file(self) -> None:
        """Read on at the beginning of the next existing file."""
        later = self._sealed.after(self.file)
        self.seek(QueuePosition(self._append.buffer.file_number if later is None else later, 0))

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def fill(self) -> bool | FileLoss:
        """Load messages into the read-ahead. False if there are no more messages in the files.

        Lost bytes are passed over and returned: call it again to go on after them. Raises OSError.
        """
        ahead = self._ahead
        while not ahead.is_ready or ahead.why != "END":
            is_active = self.file == self._append.buffer.file_number
            if is_active and ahead.position >= self._append.buffer.end:
                return False
            if self.load_from_memory():
                return True
            if self._reader is None:
                self._reader = self._open(ahead, self.position)
            covered = None
            if is_active:
                covered = self._append.show_rows(ahead.position)
                end = self._append.buffer.flushed
            else:
                end = self._sealed[self.file]
            number = self.file
            loss = self._reader.fill(end, covered)
            if loss is None and ahead.position >= end and not is_active:
                loss = self._reader.missing(end)
                self.next_file()
            if loss is not None:
                return FileLoss(number, loss)
        return True

    def load_from_memory(self) -> bool:
        """Load what was accepted a moment ago into the read-ahead, if it comes next there.

        It is still in memory, and need not be read from a file. Nothing is taken yet.
        """
        buffer = self._append.buffer
        return self.file == buffer.file_number and not self._ahead.is_ready and buffer.lend(self._ahead)

    def ends_file(self) -> bool:
        """True if the file was read to its end, and nothing is appended to it any more."""
        end = self._sealed.get(self.file)
        ahead = self._ahead
        return end is not None and not ahead.is_ready and ahead.position >= end and ahead.why == "END"

    def count_on(self) -> int:
        """Return how many messages that file, which must be sealed, holds from here on. Raises OSError."""
        ahead = ReadAhead(self._fs, self._parts.framing, Gate(), self._parts.any_size)
        reader = self._open(ahead, self.position)
        end = self._sealed[self.file]
        counted = 0
        try:
            while ahead.position < end:
                reader.fill(end)
                counted += ahead.count()
        finally:
            reader.close()
        return counted

    def _open(self, ahead: ReadAhead, position: QueuePosition) -> BlockReader:
        number = position.file
        path, checksum_file = self._files.data(number), self._files.checksum_file(number)
        return BlockReader(self._fs, ahead, path, checksum_file, position.byte)
