# What distinguishes a log from another one: a message at an offset. Law: nothing is changed; a message that
# is not there, or cannot be read, distinguishes nothing.

from __future__ import annotations

from typing import Any

from diskq.engine.log.reader import LogReader
from diskq.errors import NotFoundError, OffsetOutOfRangeError
from diskq.storage.checksums import checksum

__all__ = ["mark_of", "message_mark"]


def message_mark(reader: LogReader[Any, Any, Any], at: int | None = None) -> tuple[int, int] | None:
    """Return the offset and the checksum of the first message, or of the one at offset `at`.

    None if it is not there, or cannot be read. Raises OSError.
    """
    try:
        reader.seek(reader.first_offset() if at is None else at)
        offset = reader.position
        message = reader.read()
    except (NotFoundError, OffsetOutOfRangeError):
        return None
    if message is None or reader.losses or message.offset != offset:
        return None
    kind = getattr(message, "type", None)
    return mark_of(offset, message.timestamp_ns, kind, message.key, message.value)


def mark_of(
    offset: int, timestamp_ns: int | None, kind: int | None, key: bytes, value: bytes
) -> tuple[int, int]:
    """Return what `message_mark` does for this message. `kind`: its type, in a journal."""
    return offset, checksum(f"{timestamp_ns} {kind} {len(key)} ".encode() + key + value)
