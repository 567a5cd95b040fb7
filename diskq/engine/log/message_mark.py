# What distinguishes a log from another one: a message at an offset. Law: nothing is changed; a message that
# is not there, or cannot be read, distinguishes nothing.

from __future__ import annotations

from typing import Any

from diskq.engine.log.reader import LogReader
from diskq.errors import JournalNotFoundError, OffsetOutOfRangeError, StreamNotFoundError
from diskq.storage.checksums import checksum

__all__ = ["message_mark"]


def message_mark(reader: LogReader[Any, Any, Any], at: int | None = None) -> tuple[int, int] | None:
    """Return the offset and the checksum of the first message, or of the one at offset `at`.

    None if it is not there, or cannot be read. Raises OSError.
    """
    try:
        reader.seek(reader.first_offset() if at is None else at)
        offset = reader.position
        message = reader.read()
    except (JournalNotFoundError, OffsetOutOfRangeError, StreamNotFoundError):
        return None
    if message is None or reader.losses or message.offset != offset:
        return None
    head = f"{message.timestamp_ns} {getattr(message, 'type', None)} {len(message.key)} "
    return offset, checksum(head.encode() + message.key + message.value)
