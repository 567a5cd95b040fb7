# Messages that tell what became of them. Law: each says its number, and its checksum tells it from every
# other and from itself with any byte changed. tests/compat/gopeer/nsq_hammer.go makes the same ones.

from __future__ import annotations

import struct
import zlib

__all__ = ["message", "number_of"]

_NUMBER = struct.Struct(">Q")
_SUM = struct.Struct(">I")


def message(number: int) -> bytes:
    """Message `number`: 12 to 211 bytes."""
    filler = bytes((number * 131 + at * at * 7 + at) & 0xFF for at in range(number * 37 % 200))
    body = _NUMBER.pack(number) + filler
    return body + _SUM.pack(zlib.crc32(body))


def number_of(body: bytes) -> int | None:
    """Which message this is. None: none of them, or one that was altered."""
    if len(body) < _NUMBER.size + _SUM.size:
        return None
    (number,) = _NUMBER.unpack_from(body)
    return number if number < 1 << 32 and body == message(number) else None
